//! Squid's native format: `time elapsed client result/status bytes method URL user hierarchy/peer type`.
//!
//! The bytes include the head of the answer. Source: the page of Squid's documentation on `logformat squid`.

use super::LogLine;

/// Reads a line; `None` if it is not of this format.
pub(super) fn parse(line: &str) -> Option<LogLine<'_>> {
    let mut fields = line.split_ascii_whitespace();
    let mut next = || fields.next();
    next()?.parse::<f64>().ok()?;
    next()?.parse::<i64>().ok()?;
    let client = next()?.into();
    let status = next()?.rsplit_once('/')?.1.parse().ok()?;
    let bytes = next()?.parse().ok()?;
    let (method, url) = (next()?.into(), next()?.into());
    let (_user, _peer) = (next()?, next()?);
    let content_type = next().filter(|kind| *kind != "-").unwrap_or_default().into();
    Some(LogLine { client, method, url, status, bytes, object_bytes: None, content_type })
}
