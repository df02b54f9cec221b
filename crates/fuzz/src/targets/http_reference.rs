//! The reference parser: it finds the end of an HTTP/1 message in the same way as a reader behind the guard. It parses
//! heads with httparse, and bodies as RFC 9112, section 6, says.
//!
//! Owns: this second parser, with which the guard is compared. It refuses ambiguous requests, some of which hyper
//! accepts.

use httparse::{EMPTY_HEADER, Header, Request, Response, Status, parse_chunk_size};

const HEADERS_MAX: usize = 128;

/// Where a message ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageEnd {
    /// The message ends after this many bytes.
    At(usize),
    /// The message does not end within these bytes.
    Later,
    /// The message is refused, and nothing after it is read.
    Refused,
}

/// The end of a request.
pub fn request(bytes: &[u8]) -> MessageEnd {
    let mut headers = [EMPTY_HEADER; HEADERS_MAX];
    let mut request = Request::new(&mut headers);
    let head = match request.parse(bytes) {
        Ok(Status::Complete(head)) => head,
        Ok(Status::Partial) => return MessageEnd::Later,
        Err(_) => return MessageEnd::Refused,
    };
    if request.method == Some("CONNECT") {
        return MessageEnd::Later;
    }
    match length(request.headers) {
        Some(BodyLength::Chunked) => chunked(bytes, head),
        Some(BodyLength::Known(length)) => sized(bytes, head, length),
        Some(BodyLength::None) => MessageEnd::At(head),
        None => MessageEnd::Refused,
    }
}

/// The end of a response.
pub fn response(bytes: &[u8], to_head: bool) -> MessageEnd {
    let mut headers = [EMPTY_HEADER; HEADERS_MAX];
    let mut response = Response::new(&mut headers);
    let head = match response.parse(bytes) {
        Ok(Status::Complete(head)) => head,
        Ok(Status::Partial) => return MessageEnd::Later,
        Err(_) => return MessageEnd::Refused,
    };
    match (response.code.unwrap_or(0), length(response.headers)) {
        (101, _) | (_, None) => MessageEnd::Refused,
        (100..=199 | 204 | 304, _) => MessageEnd::At(head),
        _ if to_head => MessageEnd::At(head),
        (_, Some(BodyLength::Chunked)) => chunked(bytes, head),
        (_, Some(BodyLength::Known(length))) => sized(bytes, head, length),
        (_, Some(BodyLength::None)) => MessageEnd::Later,
    }
}

enum BodyLength {
    Chunked,
    Known(u64),
    None,
}

/// The length of the body, from the headers; `None` if they are ambiguous.
fn length(headers: &[Header<'_>]) -> Option<BodyLength> {
    let mut found = BodyLength::None;
    for header in headers {
        let value = std::str::from_utf8(header.value).ok().map(str::trim);
        if header.name.eq_ignore_ascii_case("transfer-encoding") {
            match found {
                BodyLength::None if value?.eq_ignore_ascii_case("chunked") => found = BodyLength::Chunked,
                _ => return None,
            }
        } else if header.name.eq_ignore_ascii_case("content-length") {
            let length = value?.parse().ok()?;
            match found {
                BodyLength::None => found = BodyLength::Known(length),
                BodyLength::Known(known) if known == length => {}
                _ => return None,
            }
        }
    }
    Some(found)
}

fn sized(bytes: &[u8], head: usize, length: u64) -> MessageEnd {
    match usize::try_from(length).ok().and_then(|length| head.checked_add(length)).filter(|&end| end <= bytes.len()) {
        Some(end) => MessageEnd::At(end),
        None => MessageEnd::Later,
    }
}

fn chunked(bytes: &[u8], head: usize) -> MessageEnd {
    let mut at = head;
    loop {
        let (taken, size) = match parse_chunk_size(&bytes[at..]) {
            Ok(Status::Complete(found)) => found,
            Ok(Status::Partial) => return MessageEnd::Later,
            Err(_) => return MessageEnd::Refused,
        };
        at += taken;
        if size == 0 {
            break;
        }
        let MessageEnd::At(end) = sized(bytes, at, size) else { return MessageEnd::Later };
        match &bytes[end..] {
            [b'\r', b'\n', ..] => at = end + 2,
            [] | [b'\r'] => return MessageEnd::Later,
            _ => return MessageEnd::Refused,
        }
    }
    // Reads trailers up to an empty line.
    loop {
        let Some(end) = bytes[at..].iter().position(|&byte| byte == b'\n') else { return MessageEnd::Later };
        let line = &bytes[at..at + end];
        at += end + 1;
        if line == b"\r" || line.is_empty() {
            return MessageEnd::At(at);
        }
    }
}
