//! Request headers that the operator makes a part of every key.
//!
//! Owns: the names that may be such headers. A response is then stored as if it named them in `Vary`: requests with
//! different values get different copies, and a purge of the URL purges all of them. Such a header reaches the origin
//! although other headers of its kind are removed (see `forwarded`). A single cookie that is part of every key has a
//! name among them (see `key_cookies`).

use std::fmt;
use std::str::FromStr;

use http::HeaderName;

use super::super::vary::{PART_NAME, sort_names};
use super::key_cookies::cookie_in;

/// The maximum number of headers and single cookies that may be part of every key.
pub const KEY_HEADERS_MAX: usize = 8;

/// Headers that cannot be part of a key, because the proxy changes or evaluates them.
const REFUSED: [&str; 24] = [
    "cache-control",
    "connection",
    "content-length",
    "expect",
    "host",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "keep-alive",
    "max-forwards",
    PART_NAME,
    "pragma",
    "proxy-authenticate",
    "proxy-authentication-info",
    "proxy-authorization",
    "proxy-connection",
    "range",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
];

/// The name of a header that is part of every key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyHeader(pub(crate) HeaderName);

impl fmt::Display for KeyHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str())
    }
}

impl FromStr for KeyHeader {
    type Err = String;

    fn from_str(text: &str) -> Result<KeyHeader, String> {
        let name = HeaderName::from_bytes(text.as_bytes())
            .map_err(|_| format!("`{text}` is no header: write one as `X-Forwarded-Proto`"))?;
        match name.as_str() {
            "host" => Err("`Host` becomes part of the key by --origin-host client".to_owned()),
            other if cookie_in(other).is_some() => {
                Err(format!("`{text}` is no header: `cookies-key` of a configuration file is for cookies"))
            }
            other if REFUSED.contains(&other) => Err(format!("`{text}` cannot be part of a key: the proxy handles it")),
            _ => Ok(KeyHeader(name)),
        }
    }
}

/// The names of the headers, sorted and each once.
pub fn names(headers: &[KeyHeader]) -> Vec<HeaderName> {
    let mut names: Vec<_> = headers.iter().map(|header| header.0.clone()).collect();
    sort_names(&mut names);
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxy_headers_are_no_key_headers() {
        let read = |text: &str| text.parse::<KeyHeader>();
        assert_eq!(read("X-Forwarded-Proto").expect("a name").0, "x-forwarded-proto");
        for wrong in ["", "a b", "a:", "Host", "Range", "if-none-match", "connection", "cookie!a", "part!", "\u{e9}"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        let list = ["b", "a", "B"].map(|text| read(text).expect("a name"));
        assert_eq!(names(&list), ["a", "b"]);
    }
}
