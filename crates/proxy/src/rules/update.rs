//! New headers for a stored response, from the `304` that validated it.
//!
//! Owns: the choice of the headers that are replaced. The body stays, so the headers that describe its bytes stay, too.
//! *Source*: RFC 9111, 3.2 and 4.3.4.

use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderName};

const ABOUT_THE_BODY: [HeaderName; 3] = [CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE];

/// Updates the headers of the stored response with the headers of a `304`. The caller has removed hop-by-hop headers
/// from the `304`.
///
/// Every header of the `304` replaces all stored lines of the same name; other stored headers stay. The old `Age` and
/// `Date` are removed even if the `304` has none: they would make the response look as old as before. A weak `ETag` stays
/// if that of the `304` is strong: it would promise that the stored bytes are those of every response with this tag, so
/// that parts of both could be joined.
pub fn merged(stored: &HeaderMap, fresh: &HeaderMap) -> HeaderMap {
    let mut result = stored.clone();
    result.remove(http::header::AGE);
    if !fresh.contains_key(http::header::DATE) {
        result.remove(http::header::DATE);
    }
    for name in fresh.keys() {
        if ABOUT_THE_BODY.contains(name) || (*name == ETAG && is_weak(stored) && !is_weak(fresh)) {
            continue;
        }
        result.remove(name);
        for value in fresh.get_all(name) {
            result.append(name.clone(), value.clone());
        }
    }
    result
}

fn is_weak(headers: &HeaderMap) -> bool {
    headers.get(ETAG).is_some_and(|tag| tag.as_bytes().starts_with(b"W/"))
}

#[cfg(test)]
mod tests {
    use super::super::headers;
    use super::*;

    #[test]
    fn update_replaces_headers_except_body_ones() {
        type Lines<'a> = &'a [(&'a str, &'a str)];
        let table: &[(Lines, Lines, Lines)] = &[
            (&[("a", "1")], &[], &[("a", "1")]),
            (&[("a", "1")], &[("a", "2")], &[("a", "2")]),
            (&[("a", "1"), ("a", "2")], &[("a", "3")], &[("a", "3")]),
            (&[("a", "1")], &[("a", "2"), ("a", "3"), ("b", "4")], &[("a", "2"), ("a", "3"), ("b", "4")]),
            (&[("content-length", "5")], &[("content-length", "0")], &[("content-length", "5")]),
            (&[("content-encoding", "gzip")], &[("content-encoding", "br")], &[("content-encoding", "gzip")]),
            (&[("content-type", "a/b")], &[("content-type", "c/d")], &[("content-type", "c/d")]),
            (&[("cache-control", "max-age=1")], &[("cache-control", "max-age=9")], &[("cache-control", "max-age=9")]),
            (&[("etag", "W/\"a\"")], &[("etag", "\"a\"")], &[("etag", "W/\"a\"")]),
            (&[("etag", "W/\"a\"")], &[("etag", "W/\"b\"")], &[("etag", "W/\"b\"")]),
            (&[("etag", "\"a\"")], &[("etag", "W/\"a\"")], &[("etag", "W/\"a\"")]),
            (&[], &[("etag", "\"a\"")], &[("etag", "\"a\"")]),
            (&[("age", "100"), ("date", "x")], &[], &[]),
            (&[("age", "100"), ("date", "x")], &[("date", "y")], &[("date", "y")]),
        ];
        for (stored, fresh, expected) in table {
            assert_eq!(merged(&headers(stored), &headers(fresh)), headers(expected), "{stored:?} {fresh:?}");
        }
    }
}
