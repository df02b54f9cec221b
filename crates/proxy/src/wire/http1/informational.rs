//! Informational responses (`1xx`) on their way from an origin to a client.
//!
//! Owns: the part of such a response that is kept, the limits, and the bytes that a client gets. hyper reads these
//! responses but hides their headers, so [`FramingReader`](super::framing::FramingReader) keeps their lines. *Source*: RFC 9110,
//! 15.2; RFC 8297.

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

/// The maximum number of informational responses before a final one. Their heads and the final head together must not
/// be longer than one head may be.
pub const INFORMATIONAL_MAX: u32 = 16;

/// One informational response as received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InformationalResponse {
    /// The response's status, from 100 to 199.
    pub status: u16,
    /// The response's header lines, without their line ends.
    pub lines: Vec<Vec<u8>>,
}

impl InformationalResponse {
    /// The response's headers; `None` if a line is not a header.
    pub fn headers(&self) -> Option<HeaderMap> {
        let mut headers = HeaderMap::with_capacity(self.lines.len());
        for line in &self.lines {
            let colon = memchr::memchr(b':', line)?;
            let name = HeaderName::from_bytes(&line[..colon]).ok()?;
            let value = HeaderValue::from_bytes(line[colon + 1..].trim_ascii()).ok()?;
            headers.append(name, value);
        }
        Some(headers)
    }
}

/// Appends a response without a body to `out`.
pub fn render(status: u16, headers: &HeaderMap, out: &mut Vec<u8>) {
    let reason = StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason()).unwrap_or("");
    out.extend_from_slice(format!("HTTP/1.1 {status} {reason}\r\n").as_bytes());
    for (name, value) in headers {
        out.extend_from_slice(name.as_str().as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(value.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn informational_renders_only_valid_headers() {
        let of = |lines: &[&str]| InformationalResponse {
            status: 103,
            lines: lines.iter().map(|line| line.as_bytes().to_vec()).collect(),
        };
        let mut out = Vec::new();
        let headers = of(&["Link: </a>", "link:</b>", "X: "]).headers().expect("headers");
        render(103, &headers, &mut out);
        assert_eq!(out, b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\nlink: </b>\r\nx: \r\n\r\n");
        out.clear();
        render(199, &HeaderMap::new(), &mut out);
        assert_eq!(out, b"HTTP/1.1 199 \r\n\r\n");
        for wrong in ["no colon", "a b: c", ": c", "a: b\rc", "a: b\0", "a : b"] {
            assert!(of(&["x: y", wrong]).headers().is_none(), "{wrong:?}");
        }
    }
}
