//! The responses that an unsafe request makes invalid.
//!
//! Owns: the choice of the keys to purge after a non-error response to an unsafe method: the target, and the URLs in
//! `Location` and `BodyContent-Location` if they have the same origin as the target. *Source*: RFC 9111, 4.4.

use http::header::{CONTENT_LOCATION, LOCATION};
use http::{HeaderMap, Method, StatusCode, Uri};

use super::key::push_key;

/// Whether a method may change its target. An unknown method is assumed to change it.
pub fn is_unsafe(method: &Method) -> bool {
    !(method == Method::GET || method == Method::HEAD || method == Method::OPTIONS || method == Method::TRACE)
}

/// The keys that a response makes invalid: none, or `target` and up to two more.
///
/// `target` is the primary key of the request.
pub fn invalidated(method: &Method, target: &[u8], status: StatusCode, headers: &HeaderMap) -> Vec<Vec<u8>> {
    if !is_unsafe(method) || !(status.is_success() || status.is_redirection()) {
        return Vec::new();
    }
    let mut keys = vec![target.to_vec()];
    for name in [LOCATION, CONTENT_LOCATION] {
        let Some(reference) = headers.get(name).and_then(|value| value.to_str().ok()) else { continue };
        if let Some(key) = resolve(target, reference.trim())
            && !keys.contains(&key)
            && origin_of(&key) == origin_of(target)
        {
            keys.push(key);
        }
    }
    keys
}

/// Resolves a reference against the URL of key `target` (RFC 3986, 5.2) and returns the key of the result.
fn resolve(target: &[u8], reference: &str) -> Option<Vec<u8>> {
    let target = std::str::from_utf8(target).ok()?;
    let (scheme, rest) = target.split_once("://")?;
    let (authority, path) = rest.split_at(rest.find('/')?);
    let path = path.split('?').next()?;
    let reference = reference.split('#').next()?;
    let absolute = if reference.split('/').next()?.contains(':') {
        reference.to_owned()
    } else if reference.starts_with("//") {
        format!("{scheme}:{reference}")
    } else {
        let (reference_path, query) = match reference.split_once('?') {
            Some((path, query)) => (path, format!("?{query}")),
            None => (reference, String::new()),
        };
        let merged = if reference_path.is_empty() {
            path.to_owned()
        } else if reference_path.starts_with('/') {
            without_dot_segments(reference_path)
        } else {
            let folder = &path[..=path.rfind('/')?];
            without_dot_segments(&format!("{folder}{reference_path}"))
        };
        format!("{scheme}://{authority}{merged}{query}")
    };
    let mut key = Vec::new();
    push_key(&mut key, &absolute.parse::<Uri>().ok()?).then_some(key)
}

fn without_dot_segments(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        match segment {
            "." if is_last => kept.push(""),
            "." => {}
            ".." => {
                kept.pop();
                if is_last {
                    kept.push("");
                }
            }
            other => kept.push(other),
        }
    }
    format!("/{}", kept.join("/"))
}

/// `scheme://authority` of a key.
pub fn origin_of(key: &[u8]) -> &[u8] {
    let slash = key.iter().enumerate().filter(|(_, byte)| **byte == b'/').nth(2).map_or(key.len(), |(at, _)| at);
    &key[..slash]
}

#[cfg(test)]
mod tests {
    use super::super::headers;
    use super::*;

    #[test]
    fn unsafe_request_invalidates_affected_urls() {
        let target = "http://a/dir/page?q";
        type Lines<'a> = &'a [(&'a str, &'a str)];
        let table: &[(&str, u16, Lines, &[&str])] = &[
            ("GET", 200, &[], &[]),
            ("HEAD", 200, &[], &[]),
            ("OPTIONS", 200, &[], &[]),
            ("POST", 200, &[], &[target]),
            ("PUT", 201, &[], &[target]),
            ("DELETE", 204, &[], &[target]),
            ("M-SEARCH", 200, &[], &[target]),
            ("POST", 302, &[], &[target]),
            ("POST", 404, &[], &[]),
            ("POST", 500, &[], &[]),
            ("POST", 201, &[("location", "/new")], &[target, "http://a/new"]),
            ("POST", 201, &[("location", "new?x#f")], &[target, "http://a/dir/new?x"]),
            ("POST", 201, &[("location", "../new")], &[target, "http://a/new"]),
            ("POST", 201, &[("location", "./a/./b/..")], &[target, "http://a/dir/a/"]),
            ("POST", 201, &[("location", "?x")], &[target, "http://a/dir/page?x"]),
            ("POST", 201, &[("location", "http://A:80/new")], &[target, "http://a/new"]),
            ("POST", 201, &[("location", "//a/new")], &[target, "http://a/new"]),
            ("POST", 201, &[("location", "http://b/new")], &[target]),
            ("POST", 201, &[("location", "https://a/new")], &[target]),
            ("POST", 201, &[("location", "http://a:81/new")], &[target]),
            ("POST", 201, &[("location", "mailto:x")], &[target]),
            ("POST", 200, &[("content-location", "/c"), ("location", "/l")], &[target, "http://a/l", "http://a/c"]),
            ("POST", 200, &[("content-location", "/dir/page?q")], &[target]),
        ];
        for (method, status, lines, expected) in table {
            let found = invalidated(
                &Method::from_bytes(method.as_bytes()).expect("a method"),
                target.as_bytes(),
                StatusCode::from_u16(*status).expect("a status"),
                &headers(lines),
            );
            let expected: Vec<Vec<u8>> = expected.iter().map(|key| key.as_bytes().to_vec()).collect();
            assert_eq!(found, expected, "{method} {status} {lines:?}");
        }
    }
}
