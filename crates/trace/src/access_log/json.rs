//! JSON lines: an object for each request, with the names that the usual programs give its members.

use std::borrow::Cow;

use serde_json::Value;

use super::common::request_of;
use super::{LogLine, count_of};

/// The names of a member that means the same.
const CLIENT: &[&str] = &["client", "client_ip", "remote_addr", "remote_ip", "clientip"];
const METHOD: &[&str] = &["method", "request_method", "verb"];
const HOST: &[&str] = &["host", "http_host", "server_name"];
const URL: &[&str] = &["url", "target", "uri", "request_uri", "path"];
const STATUS: &[&str] = &["status", "status_code", "response_status"];
const BYTES: &[&str] = &["bytes", "body_bytes_sent", "bytes_sent", "size", "response_size", "bytes_read"];
const TYPE: &[&str] = &["content_type", "sent_http_content_type", "mime_type"];

/// Reads a line; `None` if it is no object, or lacks a member that a request needs.
pub(super) fn parse(line: &str) -> Option<LogLine<'static>> {
    let line: Value = serde_json::from_str(line).ok().filter(Value::is_object)?;
    let request = &line["request"];
    // Members may be inside of `request`, as Caddy has them.
    let find = |names: &[&str]| names.iter().find_map(|name| line.get(name).or_else(|| request.get(name)));
    let text = |names: &[&str]| find(names).and_then(Value::as_str);
    let number = |names: &[&str]| match find(names)? {
        Value::String(text) => count_of(text),
        value => value.as_u64(),
    };
    let (method, url) = match request.as_str().and_then(request_of) {
        Some(parts) => parts,
        None => (text(METHOD)?, text(URL)?),
    };
    let host = text(HOST).unwrap_or_default();
    let url = match (url.starts_with('/'), text(&["scheme"])) {
        (true, Some(scheme)) if !host.is_empty() => format!("{scheme}://{host}{url}"),
        (true, _) => format!("{host}{url}"),
        (false, _) => url.to_owned(),
    };
    Some(LogLine {
        client: owned(text(CLIENT)),
        method: Cow::Owned(method.to_owned()),
        url: Cow::Owned(url),
        status: u16::try_from(number(STATUS)?).ok()?,
        bytes: number(BYTES).unwrap_or(0),
        object_bytes: number(&["object_bytes"]),
        content_type: owned(text(TYPE)),
    })
}

fn owned(text: Option<&str>) -> Cow<'static, str> {
    Cow::Owned(text.unwrap_or_default().to_owned())
}
