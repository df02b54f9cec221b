//! Paths of routes, paths of files, and names.
//!
//! Owns: their syntax.

use std::path::PathBuf;

use super::{Read, ValueProblem, strange};
use crate::problem::quoted;
use crate::values::{NamePattern, RoutePath};

/// The longest path of a route. *Units*: bytes.
const ROUTE_MAX: usize = 4096;
/// The longest path of a file. *Units*: bytes.
const FILE_MAX: usize = 4095;
/// The longest name of a parameter, cookie or tag. *Units*: bytes.
const NAME_MAX: usize = 256;
/// The longest name of an origin. *Units*: bytes.
const ORIGIN_MAX: usize = 64;

/// Reads the path of a route: `/static/`, or `=/exact`.
pub(crate) fn route_path(text: &str) -> Read<RoutePath> {
    let (path, is_exact) = text.strip_prefix('=').map_or((text, false), |path| (path, true));
    if !path.starts_with('/') {
        let help = match path.split_once("://").and_then(|(_, rest)| rest.find('/').map(|at| &rest[at..])) {
            Some(path) => format!("hosts are `names` of the site: write {}", quoted(path)),
            None => format!("a path begins with `/`: write {}", quoted(&format!("/{path}"))),
        };
        return Err(ValueProblem::not(text, "a path", help));
    }
    checked_path(text, path)?;
    if let Some(end) = path.find(['?', '#']) {
        let shown = if is_exact { &text[..=end] } else { &text[..end] };
        return Err(ValueProblem::has(
            text,
            "a query",
            format!("queries do not count for routes: write {}", quoted(shown)),
        ));
    }
    if let Some(prefix) = path.strip_suffix('*').filter(|_| !is_exact) {
        return Err(ValueProblem::has(
            text,
            "a `*`",
            format!("a path is a prefix without it: write {}", quoted(prefix)),
        ));
    }
    if path.split('/').any(|part| matches!(part, "." | "..")) {
        return Err(ValueProblem::has(
            text,
            "a part `.` or `..`",
            "no request has such a path: write the path without it",
        ));
    }
    let path = path.to_owned();
    Ok(if is_exact { RoutePath::Exact(path) } else { RoutePath::Prefix(path) })
}

/// Reads path and query of a request.
pub(crate) fn check_path(text: &str) -> Read<String> {
    if !text.starts_with('/') {
        return Err(ValueProblem::not(text, "a path", "write path and query, such as `/health`"));
    }
    checked_path(text, text)?;
    if text.contains('#') {
        return Err(ValueProblem::has(text, "a `#`", "what follows a `#` is never sent: leave it out"));
    }
    Ok(text.to_owned())
}

/// Checks the characters of a path, and its length.
fn checked_path(text: &str, path: &str) -> Read<()> {
    if let Some(strange) = strange(path) {
        return Err(ValueProblem::has(text, &strange, "write it percent-encoded, for example `%20` for a space"));
    }
    if path.len() > ROUTE_MAX {
        return Err(ValueProblem::not(text, "a path", format!("a path has at most {ROUTE_MAX} bytes")));
    }
    let is_encoded = |rest: &str| rest.len() >= 2 && rest.as_bytes()[..2].iter().all(u8::is_ascii_hexdigit);
    if path.split('%').skip(1).any(|rest| !is_encoded(rest)) {
        return Err(ValueProblem::has(text, "a `%` without two hexadecimal digits", "write `%25` for a `%`"));
    }
    Ok(())
}

/// Reads the path of a file.
pub(crate) fn file_path(text: &str) -> Read<PathBuf> {
    const HELP: &str = "write a path, such as `/etc/nectary/example.org.pem`";
    if text.is_empty() {
        return Err(ValueProblem { message: "the path is empty".to_owned(), help: HELP.to_owned() });
    }
    if text.chars().any(char::is_control) {
        return Err(ValueProblem::has(text, "a control character", HELP));
    }
    if text.len() > FILE_MAX {
        return Err(ValueProblem::not(text, "a file", format!("a path has at most {FILE_MAX} bytes")));
    }
    Ok(text.into())
}

/// Reads the name of a cookie.
pub(crate) fn plain_name(text: &str) -> Read<String> {
    named(text, text)?;
    Ok(text.to_owned())
}

/// Reads a name, or the beginning of names and `*`.
pub(crate) fn name_pattern(text: &str) -> Read<NamePattern> {
    match text.strip_suffix('*') {
        Some("") => Ok(NamePattern::Prefix(String::new())),
        Some(prefix) => named(text, prefix).map(|()| NamePattern::Prefix(prefix.to_owned())),
        None => named(text, text).map(|()| NamePattern::Exact(text.to_owned())),
    }
}

fn named(text: &str, name: &str) -> Read<()> {
    if let Some(strange) = strange(name) {
        return Err(ValueProblem::has(text, &strange, "write the name as it is in requests, percent-encoded"));
    }
    if name.contains('*') {
        return Err(ValueProblem::has(
            text,
            "a `*` that is not at its end",
            "a `*` is only allowed at the end, as in `utm_*`",
        ));
    }
    if let Some(sign) = name.chars().find(|c| matches!(c, '&' | '=' | ';' | ',')) {
        return Err(ValueProblem::has(text, &format!("a `{sign}`"), "write each name alone"));
    }
    if name.is_empty() || name.len() > NAME_MAX {
        return Err(ValueProblem::not(text, "a name", format!("a name has 1 to {NAME_MAX} bytes")));
    }
    Ok(())
}

/// Reads a tag.
pub(crate) fn tag(text: &str) -> Read<String> {
    if text.is_empty() || text.len() > NAME_MAX || text.contains(',') || strange(text).is_some() {
        let help = format!("a tag has 1 to {NAME_MAX} visible ASCII characters, without spaces and commas");
        return Err(ValueProblem::not(text, "a tag", help));
    }
    Ok(text.to_owned())
}

/// Reads the name of an origin.
pub(crate) fn origin_name(text: &str) -> Read<String> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'));
    if text.is_empty() || text.len() > ORIGIN_MAX || !is_plain {
        let help = format!("a name has 1 to {ORIGIN_MAX} letters, digits, `-`, `_` and dots");
        return Err(ValueProblem::not(text, "the name of an origin", help));
    }
    Ok(text.to_owned())
}
