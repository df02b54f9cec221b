//! The answer to a client whose bytes were refused before they formed a request.
//!
//! Owns: the status of each violation, the bytes of the answer, and the line of the access log, with as much of the
//! request's start line as was read. Such a request is counted as an own response; it was not accepted, so it is not
//! counted as a request. *Source*: RFC 9112, 2.3, 3 and 6.1; RFC 9110, 6.6.1, 15.5 and 15.6.

use std::time::Duration;

use http::{Method, Uri, Version};

use super::request::RequestClient;
use crate::access_log::{AccessLogLine, CacheOutcome};
use crate::stored::response::http_date;
use crate::wire::http1::framing::FramingViolation;
use crate::worker::ProxyWorker;

/// The maximum number of bytes of a refused start line that are logged.
const LOGGED_BYTES_MAX: usize = 1024;

/// An answer to bytes that are not a request; the connection ends after it.
pub(crate) struct RefusalAnswer {
    pub status: u16,
    pub bytes: Vec<u8>,
    pub body_bytes: u64,
}

/// The answer to a refused head at `at_ms`.
pub(super) fn of(violation: FramingViolation, at_ms: u64) -> RefusalAnswer {
    let (status, reason, detail) = match violation {
        FramingViolation::TargetTooLong => (414, "URI Too Long", "url-too-long"),
        FramingViolation::TooLong => (431, "Request Header Fields Too Large", "head-too-large"),
        FramingViolation::UnknownCoding => (501, "Not Implemented", "transfer-coding"),
        FramingViolation::Version => (505, "HTTP Version Not Supported", "version"),
        _ => (400, "Bad Request", "bad-request"),
    };
    answer((status, reason), detail, "", &format!("The request is refused: {violation}.\n"), at_ms)
}

/// The answer at `at_ms` to a new connection of a worker that has too many connections.
pub(crate) fn too_many_connections(at_ms: u64) -> Vec<u8> {
    let text = "This proxy has too many connections at present.\n";
    answer((503, "Service Unavailable"), "too-many-connections", "retry-after: 1\r\n", text, at_ms).bytes
}

/// The answer at `at_ms` to a new connection of a network that has too many connections.
pub(crate) fn too_many_of_network(at_ms: u64) -> Vec<u8> {
    let text = "Your network has too many connections to this proxy.\n";
    answer((429, "Too Many Requests"), "client-connections", "retry-after: 1\r\n", text, at_ms).bytes
}

fn answer((status, reason): (u16, &str), detail: &str, more: &str, text: &str, at_ms: u64) -> RefusalAnswer {
    let body_bytes = text.len();
    let mut bytes = format!(
        "HTTP/1.1 {status} {reason}\r\nconnection: close\r\ncache-status: nectary; detail={detail}\r\n{more}\
         content-type: text/plain; charset=utf-8\r\ncontent-length: {body_bytes}\r\ndate: "
    )
    .into_bytes();
    bytes.extend_from_slice(http_date(at_ms).as_bytes());
    bytes.extend_from_slice(b"\r\n\r\n");
    bytes.extend_from_slice(text.as_bytes());
    RefusalAnswer { status, bytes, body_bytes: body_bytes as u64 }
}

/// Logs and counts a request whose head was refused. `head` is the part of the head that was read.
pub(super) fn note(worker: &ProxyWorker, client: &RequestClient, head: &[u8], status: u16, body_bytes: u64) {
    let (method, target, version) = start_line(head);
    worker.log.note(&AccessLogLine {
        client: client.own_address(),
        at_ms: worker.now_ms(),
        method: &method,
        url: target,
        version,
        status,
        body_bytes,
        referrer: None,
        user_agent: None,
        outcome: CacheOutcome::Own,
        duration: Duration::ZERO,
        object_bytes: None,
        tls: client.tls,
        route: None,
        answer: None,
    });
}

/// The first line of a head without its line end, and whether the line is complete. An empty line may precede it.
fn first_line(head: &[u8]) -> (&[u8], bool) {
    let head = head.strip_prefix(b"\r\n").unwrap_or(head);
    match memchr::memchr(b'\n', head) {
        Some(end) => (head[..end].strip_suffix(b"\r").unwrap_or(&head[..end]), true),
        None => (head, false),
    }
}

/// The method, the target and the version of a start line that may be anything. The method is `-` if the line does not
/// begin with one, and the target is then the whole line; it is `-` if nothing of it was read.
fn start_line(head: &[u8]) -> (Method, &[u8], Version) {
    let (line, is_complete) = first_line(head);
    let is_complete = is_complete && line.len() <= LOGGED_BYTES_MAX;
    let line = &line[..line.len().min(LOGGED_BYTES_MAX)];
    let end = memchr::memchr(b' ', line).unwrap_or(line.len());
    let (method, rest) = match Method::from_bytes(&line[..end]) {
        Ok(method) if end < line.len() => (method, &line[end + 1..]),
        _ => (Method::from_bytes(b"-").unwrap_or_default(), line),
    };
    let at = memchr::memrchr(b' ', rest).map_or(0, |space| space + 1);
    let (target, version) = match &rest[at..] {
        b"HTTP/1.0" => (&rest[..at], Version::HTTP_10),
        [b'H', b'T', b'T', b'P', b'/', b'2', ..] => (&rest[..at], Version::HTTP_2),
        [b'H', b'T', b'T', b'P', b'/', b'3', ..] => (&rest[..at], Version::HTTP_3),
        [b'H', b'T', b'T', b'P', b'/', ..] => (&rest[..at], Version::HTTP_11),
        // A line without a version is a request of HTTP/0.9.
        _ if is_complete => (rest, Version::HTTP_09),
        _ => (rest, Version::HTTP_11),
    };
    let target = target.trim_ascii_end();
    (method, if target.is_empty() { b"-" } else { target }, version)
}

/// Whether a head has a target that is not a URI, or nothing after the target.
pub(super) fn has_bad_target(head: &[u8]) -> bool {
    let (_, target, version) = start_line(head);
    version == Version::HTTP_09 || Uri::try_from(target).is_err()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readable_start_line_is_logged() {
        for (head, method, target, version) in [
            ("GET /a HTTP/1.1\r\nx", "GET", "/a", Version::HTTP_11),
            ("\r\nGET /a HTTP/1.0\n", "GET", "/a", Version::HTTP_10),
            ("GET /a b HTTP/1.1\r\n", "GET", "/a b", Version::HTTP_11),
            ("PRI * HTTP/2.0\r\n", "PRI", "*", Version::HTTP_2),
            ("GET /a HTTP/3.0", "GET", "/a", Version::HTTP_3),
            ("GET /a\r\n", "GET", "/a", Version::HTTP_09),
            ("GET /a", "GET", "/a", Version::HTTP_11),
            ("GET  HTTP/1.1\r\n", "GET", "-", Version::HTTP_11),
            ("G\u{1}T /a HTTP/1.1\r\n", "-", "G\u{1}T /a", Version::HTTP_11),
            ("\u{16}\u{3}\u{1}", "-", "\u{16}\u{3}\u{1}", Version::HTTP_11),
            ("GET", "-", "GET", Version::HTTP_11),
            ("", "-", "-", Version::HTTP_11),
        ] {
            let found = start_line(head.as_bytes());
            assert_eq!((found.0.as_str(), found.1, found.2), (method, target.as_bytes(), version), "{head:?}");
        }
        let long = format!("GET /{} HTTP/1.0\r\n", "x".repeat(5000));
        let found = start_line(long.as_bytes());
        assert_eq!((found.1.len(), found.2), (LOGGED_BYTES_MAX - 4, Version::HTTP_11));
        assert!(has_bad_target(b"GET /<a> HTTP/1.1\r\n") && !has_bad_target(b"GET /a HTTP/1.1\r\n"));
    }

    #[test]
    fn refusal_has_required_headers() {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("ASCII");
        let at_ms = 784_111_777_000;
        for answer in
            [of(FramingViolation::TooLong, at_ms).bytes, too_many_connections(at_ms), too_many_of_network(at_ms)]
                .map(text)
        {
            assert!(answer.contains("\r\ndate: Sun, 06 Nov 1994 08:49:37 GMT\r\n"), "{answer}");
            let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
            assert!(head.contains("\r\nconnection: close\r\n") && head.contains("\r\ncontent-type: text/plain"));
            assert!(head.contains(&format!("\r\ncontent-length: {}\r\n", body.len())), "{answer}");
        }
    }
}
