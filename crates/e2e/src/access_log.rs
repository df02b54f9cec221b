//! Reads the proxy's access log: each request, the answer that was sent, and the cache's result.
//!
//! The layout is the combined format followed by result, seconds and object bytes (`docs/formats/access-log.md`); like
//! a user's script, this reader splits a line only into quoted strings and words between spaces.

use anyhow::{Context, Result};
use std::path::Path;

/// One line of the access log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessLogEntry {
    /// Request method.
    pub method: String,
    /// The URL or target as logged.
    pub url: String,
    /// The status code that was sent.
    pub status: u16,
    /// The number of body bytes that were sent.
    pub body_bytes: u64,
    /// The cache's result (`HIT`, `MISS`, …).
    pub result: String,
    /// Size of the whole object, if it is known.
    pub object_bytes: Option<u64>,
}

impl AccessLogEntry {
    /// True if the answer came from the store.
    pub fn is_hit(&self) -> bool {
        self.result == "HIT"
    }
}

/// Reads every line of a log. *Errors*: the file cannot be read, or a line is not an access log line; the error then
/// has the number of the line.
pub fn read(path: &Path) -> Result<Vec<AccessLogEntry>> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read the access log {}", path.display()))?;
    text.lines()
        .enumerate()
        .map(|(index, line)| parse(line).with_context(|| format!("{}:{}: {line:?}", path.display(), index + 1)))
        .collect()
}

/// Reads one line; `None` if it does not have the layout.
pub fn parse(line: &str) -> Option<AccessLogEntry> {
    let (_, rest) = line.split_once('"')?;
    let (request, rest) = rest.split_once('"')?;
    let mut request = request.split(' ');
    let method = request.next()?.to_owned();
    let url = request.next()?.to_owned();
    let mut words = rest.trim_start().splitn(3, ' ');
    let status = words.next()?.parse().ok()?;
    let body_bytes = words.next().map(|word| if word == "-" { "0" } else { word })?.parse().ok()?;
    let mut tail = words.next()?.split('"');
    // The rest of the line has the form `"referer" "user agent" result …`.
    let after = tail.nth(4)?;
    let mut words = after.split_whitespace();
    let result = words.next()?.to_owned();
    let object_bytes = words.nth(1).and_then(|word| word.parse().ok());
    Some(AccessLogEntry { method, url, status, body_bytes, result, object_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_taken_apart() {
        let text = r#"127.0.0.1 - - [01/Jan/2026:00:00:00 +0000] "GET http://h/p HTTP/1.1" 200 1234 "-" "a (b) c" HIT 0.000123 5678"#;
        let line = parse(text).unwrap();
        assert_eq!((line.method.as_str(), line.url.as_str(), line.status), ("GET", "http://h/p", 200));
        assert_eq!((line.body_bytes, line.is_hit(), line.object_bytes), (1234, true, Some(5678)));
        assert_eq!(parse("garbage"), None);
    }
}
