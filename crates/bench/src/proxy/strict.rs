//! What a proxy sent to its origin on a connection, read as strictly as the standard allows.
//!
//! Owns: the rule by which a request has one meaning (RFC 9112, 2.2, 3, 5, 6.3 and 7.1): lines end in CRLF, a name is
//! directly followed by its colon, at most one field says the length, and chunks have no other form. Whoever reads more
//! kindly sees the same request. A request that is cut off has no second meaning either.

/// The fields that say where a body ends.
const LENGTH: &[u8] = b"content-length";
const CODING: &[u8] = b"transfer-encoding";
/// The most digits of the length of a chunk.
const CHUNK_DIGITS_MAX: usize = 16;

/// A line without its end, and what follows.
type LineAndRest<'a> = (&'a [u8], &'a [u8]);

/// The end of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BodyEnd {
    Length(u64),
    Chunks,
}

/// Reads all requests of a connection; returns the start line of each.
///
/// *Errors*: what has two meanings.
pub(super) fn read(bytes: &[u8]) -> Result<Vec<String>, &'static str> {
    let (mut rest, mut lines) = (bytes, Vec::new());
    while !rest.is_empty() {
        let (line, end, body) = head(rest)?;
        lines.push(line);
        rest = match end {
            BodyEnd::Length(length) => &body[body.len().min(usize::try_from(length).unwrap_or(usize::MAX))..],
            BodyEnd::Chunks => chunks(body)?,
        };
    }
    Ok(lines)
}

/// Reads a head; returns its start line, where its body ends, and what follows.
fn head(bytes: &[u8]) -> Result<(String, BodyEnd, &[u8]), &'static str> {
    let (start, mut rest) = line(bytes)?.ok_or("a head without an end")?;
    let words: Vec<&[u8]> = start.split(|byte| *byte == b' ').collect();
    let [method, target, version] = words.as_slice() else { return Err("a start line that has not three words") };
    if method.is_empty() || target.is_empty() || !method.iter().all(|byte| is_of_name(*byte)) {
        return Err("a method or target that is none");
    }
    let is_old = *version == b"HTTP/1.0";
    if !is_old && *version != b"HTTP/1.1" {
        return Err("an unknown version");
    }
    let (mut lengths, mut codings) = (Vec::new(), Vec::new());
    loop {
        let (field, after) = line(rest)?.ok_or("a head without an end")?;
        rest = after;
        if field.is_empty() {
            break;
        }
        let (name, value) = parts(field)?;
        match name.to_ascii_lowercase().as_slice() {
            LENGTH => lengths.push(value),
            CODING => codings.push(value),
            _ => {}
        }
    }
    let end = match (lengths.as_slice(), codings.as_slice()) {
        ([], []) => BodyEnd::Length(0),
        ([length], []) => BodyEnd::Length(decimal(length).ok_or("a length that is no number")?),
        ([], [coding]) if is_old || !coding.eq_ignore_ascii_case(b"chunked") => {
            return Err("a coding other than chunked");
        }
        ([], [_]) => BodyEnd::Chunks,
        _ => return Err("several fields say the length"),
    };
    Ok((String::from_utf8_lossy(start).into_owned(), end, rest))
}

/// Name and value of a field.
fn parts(field: &[u8]) -> Result<(&[u8], &[u8]), &'static str> {
    let colon = field.iter().position(|byte| *byte == b':').ok_or("a field without a colon")?;
    let (name, value) = (&field[..colon], field[colon + 1..].trim_ascii());
    match !name.is_empty() && name.iter().all(|byte| is_of_name(*byte)) {
        true => Ok((name, value)),
        false => Err("a name that is none"),
    }
}

/// Reads chunks to their end; returns what follows.
fn chunks(bytes: &[u8]) -> Result<&[u8], &'static str> {
    let mut rest = bytes;
    loop {
        let Some((size, after)) = line(rest)? else { return Ok(&[]) };
        let digits = size.split(|byte| *byte == b';').next().unwrap_or_default();
        let is_number = (1..=CHUNK_DIGITS_MAX).contains(&digits.len()) && digits.iter().all(u8::is_ascii_hexdigit);
        let size = is_number.then(|| u64::from_str_radix(&String::from_utf8_lossy(digits), 16).ok()).flatten();
        let size = size.ok_or("a chunk whose length is no number")?;
        rest = after;
        if size == 0 {
            break;
        }
        let Some(after) = usize::try_from(size).ok().and_then(|size| rest.get(size..)) else { return Ok(&[]) };
        match after {
            [b'\r', b'\n', next @ ..] => rest = next,
            [] | [b'\r'] => return Ok(&[]),
            _ => return Err("a chunk of another length"),
        }
    }
    loop {
        let Some((field, after)) = line(rest)? else { return Ok(&[]) };
        rest = after;
        if field.is_empty() {
            return Ok(rest);
        }
        parts(field)?;
    }
}

/// The next line without its end, and what follows; `None` if it is cut off.
fn line(bytes: &[u8]) -> Result<Option<LineAndRest<'_>>, &'static str> {
    let end = bytes.iter().position(|byte| (*byte < b' ' && *byte != b'\t') || *byte == 127);
    let Some(end) = end else { return Ok(None) };
    match &bytes[end..] {
        [b'\r', b'\n', after @ ..] => Ok(Some((&bytes[..end], after))),
        [b'\r'] => Ok(None),
        [b'\r' | b'\n', ..] => Err("a line that does not end in CRLF"),
        _ => Err("a control character"),
    }
}

fn decimal(value: &[u8]) -> Option<u64> {
    let is_number = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    is_number.then(|| String::from_utf8_lossy(value).parse().ok()).flatten()
}

/// Whether a byte may be in a name or a method.
fn is_of_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::payloads::{AMBIGUOUS_HEADS, WRONG_CHUNKS};

    #[test]
    fn plain_requests_have_one_meaning() {
        for (bytes, count) in [
            ("", 0),
            ("GET /a HTTP/1.1\r\nhost: a\r\n\r\n", 1),
            ("POST /a HTTP/1.1\r\nhost: a\r\nContent-Length: 4\r\n\r\nabcdGET /b HTTP/1.0\r\n\r\n", 2),
            ("POST /a HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\nx: y\r\n\r\n", 1),
            ("POST /a HTTP/1.1\r\ncontent-length: 4\r\n\r\na", 1),
            ("POST /a HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3\r\na", 1),
            ("POST /a HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n", 1),
        ] {
            assert_eq!(read(bytes.as_bytes()).map(|lines| lines.len()), Ok(count), "{bytes:?}");
        }
    }

    /// Every payload has a second meaning if it is passed on as it is.
    #[test]
    fn payloads_have_a_second_meaning() {
        for (name, head) in AMBIGUOUS_HEADS {
            let bytes = format!("{}GET /b HTTP/1.1\r\nhost: a\r\n\r\n", head.replace('@', "/a"));
            assert!(read(bytes.as_bytes()).is_err(), "{name}");
        }
        for body in WRONG_CHUNKS {
            let bytes = format!("POST /a HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n{body}GET /b HTTP/1.1\r\n\r\n");
            assert!(read(bytes.as_bytes()).is_err(), "{body:?}");
        }
    }
}
