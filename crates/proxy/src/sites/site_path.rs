//! The form of a path that origins may see in it.
//!
//! Owns: that form. A route is chosen by the bytes of the path. But many origins decode a path, and resolve dots and
//! double slashes, so `/public/..%2fprivate` could be cached by the rules of `/public` although it is `/private`. Where
//! the two forms lead to different routes, the request is refused. Otherwise the key and the origin get the path as it
//! was sent.

/// The path of a target: without its query, and at least `/`.
pub(super) fn path_alone(path_and_query: &[u8]) -> &[u8] {
    let end = memchr::memchr(b'?', path_and_query).unwrap_or(path_and_query.len());
    if end == 0 { b"/" } else { &path_and_query[..end] }
}

/// The path decoded once, without dot segments and double slashes; `None` if it has nothing of that kind.
pub(super) fn plain_form(path: &[u8]) -> Option<Vec<u8>> {
    let is_odd = |pair: &[u8]| pair[0] == b'/' && matches!(pair[1], b'/' | b'.');
    if !path.iter().any(|byte| matches!(byte, b'%' | b'\\')) && !path.windows(2).any(is_odd) {
        return None;
    }
    let decoded = decode(path);
    let mut kept: Vec<&[u8]> = Vec::new();
    let mut ends_open = false;
    for segment in decoded.split(|byte| matches!(byte, b'/' | b'\\')) {
        ends_open = matches!(segment, b"" | b"." | b"..");
        match segment {
            b"" | b"." => {}
            b".." => _ = kept.pop(),
            other => kept.push(other),
        }
    }
    let mut plain = Vec::with_capacity(decoded.len() + 1);
    for segment in &kept {
        plain.push(b'/');
        plain.extend_from_slice(segment);
    }
    if ends_open || kept.is_empty() {
        plain.push(b'/');
    }
    Some(plain)
}

/// Decodes `%XX` once. What is no such code stays.
fn decode(path: &[u8]) -> Vec<u8> {
    let digit = |byte: u8| (byte as char).to_digit(16).map(|digit| digit as u8);
    let mut decoded = Vec::with_capacity(path.len());
    let mut at = 0;
    while at < path.len() {
        let code = match path[at..] {
            [b'%', high, low, ..] => digit(high).zip(digit(low)).map(|(high, low)| high * 16 + low),
            _ => None,
        };
        decoded.push(code.unwrap_or(path[at]));
        at += if code.is_some() { 3 } else { 1 };
    }
    decoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_has_form_seen_by_origin() {
        for (path, expected) in [
            ("/a/../b", "/b"),
            ("/a/%2e%2E/b", "/b"),
            ("/a/..%2fb", "/b"),
            ("/a\\..\\b", "/b"),
            ("//a///b/", "/a/b/"),
            ("/../../a", "/a"),
            ("/a/..", "/"),
            ("/a/b/.", "/a/b/"),
            ("/%61%", "/a%"),
            ("/a%zz%252e", "/a%zz%2e"),
            ("/.well-known/x", "/.well-known/x"),
        ] {
            let found = plain_form(path.as_bytes());
            let found = found.as_deref().unwrap_or(path.as_bytes());
            assert_eq!(String::from_utf8_lossy(found), expected, "{path}");
        }
        for (target, path) in [("", "/"), ("?x", "/"), ("/a/b?/../c", "/a/b"), ("/a", "/a")] {
            assert_eq!(path_alone(target.as_bytes()), path.as_bytes());
        }
    }
}
