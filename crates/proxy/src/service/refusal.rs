//! The answer to a client whose bytes were refused before they formed a request.
//!
//! Owns: the status of each violation, and the bytes of the answer. There is no parsed request that could be logged or
//! counted; only the connection is counted. *Source*: RFC 9112, 2.3, 3 and 6.1; RFC 9110, 15.5 and 15.6.

use crate::wire::framing::Violation;

/// The answer to a refused head; the connection ends after it.
pub(super) fn of(violation: Violation) -> Vec<u8> {
    let (status, detail) = match violation {
        Violation::TargetTooLong => ("414 URI Too Long", "url-too-long"),
        Violation::TooLong => ("431 Request Header Fields Too Large", "head-too-large"),
        Violation::UnknownCoding => ("501 Not Implemented", "transfer-coding"),
        Violation::Version => ("505 HTTP Version Not Supported", "version"),
        _ => ("400 Bad Request", "bad-request"),
    };
    let text = format!("The request is refused: {violation}.\n");
    format!(
        "HTTP/1.1 {status}\r\nconnection: close\r\ncache-status: nectary; detail={detail}\r\n\
         content-type: text/plain; charset=utf-8\r\ncontent-length: {}\r\n\r\n{text}",
        text.len()
    )
    .into_bytes()
}
