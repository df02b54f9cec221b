//! Parses a target, whose query describes the whole answer that the origin must send.

use crate::content;

/// An answer, as described by its target.
///
/// | query | answer |
/// |---|---|
/// | `size=N` | body of N bytes; without it, the size distribution's size for the number in the last path element |
/// | `cc=TEXT` | `Cache-ControlConnection: TEXT`; `+` stands for a space; without it `max-age=86400` |
/// | `nocc` | no `Cache-ControlConnection` |
/// | `notag` | no `ETag` and no 304 |
/// | `modified=N` | `Last-Modified`: N days after 2020-01-01, N up to 30 |
/// | `chunked` | chunked framing |
/// | `close` | the body ends with the connection, and the length is not announced |
/// | `ranges` | `Accept-Ranges: bytes`; a range of one part is sent as 206 if `If-Range`, where there is one, is the tag |
/// | `tags=TEXT` | `Surrogate-Key: TEXT`; `+` stands for a space |
/// | `vary=NAME` | `Vary: NAME`; the value of that request header is part of the content's identity |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetAnswer {
    /// The size of the body, in bytes.
    pub bytes: u64,
    /// Value of `Cache-ControlConnection`.
    pub cache_control: Option<String>,
    /// Whether an `ETag` is sent and honoured.
    pub tag: bool,
    /// `Last-Modified`, in days after 2020-01-01.
    pub modified_days: Option<u64>,
    /// Whether chunked framing is used.
    pub chunked: bool,
    /// Whether the end of the connection marks the end of the body.
    pub close: bool,
    /// Whether ranges are served.
    pub ranges: bool,
    /// Value of `Surrogate-Key`.
    pub tags: Option<String>,
    /// Name of the header that `Vary` names.
    pub vary: Option<String>,
}

impl TargetAnswer {
    /// Reads a target (path and query).
    pub fn parse(target: &str) -> Self {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let id = path.rsplit('/').next().and_then(|last| last.parse().ok()).unwrap_or(0);
        let mut resource = Self {
            bytes: 0,
            cache_control: Some("max-age=86400".to_owned()),
            tag: true,
            modified_days: None,
            chunked: false,
            close: false,
            ranges: false,
            tags: None,
            vary: None,
        };
        let mut bytes = None;
        for part in query.split('&') {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            match name {
                "size" => bytes = value.parse().ok(),
                "cc" => resource.cache_control = Some(value.replace('+', " ")),
                "nocc" => resource.cache_control = None,
                "notag" => resource.tag = false,
                "modified" => resource.modified_days = value.parse().ok(),
                "chunked" => resource.chunked = true,
                "close" => resource.close = true,
                "ranges" => resource.ranges = true,
                "tags" => resource.tags = Some(value.replace('+', " ")),
                "vary" => resource.vary = Some(value.to_ascii_lowercase()),
                _ => {}
            }
        }
        resource.bytes = bytes.unwrap_or_else(|| content::law_bytes(id));
        resource
    }

    /// The value of `Last-Modified`.
    pub fn last_modified(&self) -> Option<String> {
        const NAMES: [&str; 7] = ["Wed", "Thu", "Fri", "Sat", "Sun", "Mon", "Tue"]; // 2020-01-01 was a Wednesday.
        let days = self.modified_days?.min(30);
        Some(format!("{}, {:02} Jan 2020 00:00:00 GMT", NAMES[(days % 7) as usize], days + 1))
    }

    /// The parameters of the content in addition to the version: the target and the value of the header that `Vary`
    /// names.
    pub fn identity(&self, target: &str, vary_value: &str) -> String {
        match &self.vary {
            Some(name) => format!("{target} {name}={vary_value}"),
            None => target.to_owned(),
        }
    }
}
