//! The Common Log Format, `client identity user [time] "request" status bytes`, and the formats that begin like it.
//!
//! Combined has `"referrer" "user agent"` behind it, Nectary's log has a result, seconds and the size of the object
//! behind these, and Apache's `vhost_combined` has the virtual host in front.

use std::borrow::Cow;

use super::{LogLine, count_of};

/// Reads a line; `None` if it is not of this format.
pub(super) fn parse(line: &str) -> Option<LogLine<'_>> {
    let (who, rest) = line.split_once(" [")?;
    let names: Vec<&str> = who.split_ascii_whitespace().collect();
    let (host, client) = match names.as_slice() {
        [client, _, _] => ("", *client),
        [host, client, _, _] => (*host, *client),
        _ => return None,
    };
    let (_time, rest) = rest.split_once("] ")?;
    let (request, rest) = quoted(rest)?;
    let (method, url) = request_of(request)?;
    let mut fields = rest.split_ascii_whitespace();
    let status = fields.next()?.parse().ok()?;
    let bytes = count_of(fields.next()?)?;
    let url = if host.is_empty() { Cow::Borrowed(url) } else { Cow::Owned(format!("{host}{url}")) };
    let (client, method) = (client.into(), method.into());
    Some(LogLine { client, method, url, status, bytes, object_bytes: object_bytes(rest), ..LogLine::default() })
}

/// The method and the URL of a request line; the URL may have spaces, and the version may be missing.
pub(super) fn request_of(request: &str) -> Option<(&str, &str)> {
    let (method, rest) = request.split_once(' ')?;
    let url = rest.rsplit_once(' ').filter(|parts| parts.1.starts_with("HTTP/")).map_or(rest, |parts| parts.0);
    (!method.is_empty() && !url.is_empty()).then_some((method, url))
}

/// The text between the quotes at the beginning, and what follows it. A quote behind a backslash ends nothing.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let inside = text.strip_prefix('"')?;
    let mut is_escaped = false;
    for (at, byte) in inside.bytes().enumerate() {
        match byte {
            b'"' if !is_escaped => return Some((&inside[..at], &inside[at + 1..])),
            b'\\' => is_escaped = !is_escaped,
            _ => is_escaped = false,
        }
    }
    None
}

/// The size of the object in a line of Nectary's log: the last of the three fields behind the last quote.
fn object_bytes(rest: &str) -> Option<u64> {
    let mut fields = rest.rsplit_once('"')?.1.split_ascii_whitespace();
    let (result, seconds, bytes) = (fields.next()?, fields.next()?, fields.next()?);
    let is_nectary = result.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-');
    (is_nectary && seconds.parse::<f64>().is_ok() && fields.next().is_none()).then(|| bytes.parse().ok())?
}
