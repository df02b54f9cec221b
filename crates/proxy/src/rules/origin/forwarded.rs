//! The headers about earlier hops of a request that reach an origin: `Forwarded`, `X-Forwarded-*` and `X-Real-IP`.
//!
//! Owns: the choice of what is removed from a request before its key is made. An origin may build links and redirects
//! from the host, the scheme or the port that such a header names. These headers are not part of the key, so one client
//! could decide which links other clients get from the store. Hence they are removed unless the operator makes them a
//! part of the key (`key_headers`):
//!
//! | header | from a peer that is not trusted | from a trusted peer |
//! |---|---|---|
//! | `X-Forwarded-For`, `X-Real-IP` | removed | kept: they name clients |
//! | `Forwarded` | removed | `for` and `by` are kept, `host`, `proto` and all else is removed |
//! | `X-Forwarded-Host`, `-Proto` and all other `X-Forwarded-*` | removed | removed |
//! | any of these, if it is part of the key | removed | kept |
//!
//! *Source*: RFC 7239.

use http::header::FORWARDED;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::super::list::{members_of, parts_of};

/// Whether a header describes earlier hops of a request. Names with underscores count as those with hyphens: origins
/// that get headers as variables of CGI cannot tell them apart.
pub fn is_forwarding(name: &HeaderName) -> bool {
    match name.as_str().as_bytes() {
        [b'x', b'-' | b'_', rest @ ..] => rest.starts_with(b"forwarded") || is_alike(rest, b"real-ip"),
        name => name == b"forwarded",
    }
}

/// Whether a name, in lower case, is `expected` except that it may have underscores instead of hyphens.
pub fn is_alike(name: &[u8], expected: &[u8]) -> bool {
    let is_same = |(found, expected): (&u8, &u8)| found == expected || (*found == b'_' && *expected == b'-');
    name.len() == expected.len() && name.iter().zip(expected).all(is_same)
}

/// Removes what an origin must not get, from the headers of a request whose peer is trusted or not. `keyed` are the
/// headers that are part of the key. A second call changes nothing.
pub fn remove_unkeyed(headers: &mut HeaderMap, is_trusted: bool, keyed: &[HeaderName]) {
    let is_kept = |name: &HeaderName| {
        is_trusted && (name == "x-forwarded-for" || name == "x-real-ip" || *name == FORWARDED || keyed.contains(name))
    };
    let removed: Vec<HeaderName> =
        headers.keys().filter(|name| is_forwarding(name) && !is_kept(name)).cloned().collect();
    removed.iter().for_each(|name| _ = headers.remove(name));
    if headers.contains_key(FORWARDED) && !keyed.contains(&FORWARDED) {
        match addresses_of(headers) {
            Some(value) => _ = headers.insert(FORWARDED, value),
            None => _ = headers.remove(FORWARDED),
        }
    }
}

/// The elements of `Forwarded` with their addresses alone; `None` if no address is left.
fn addresses_of(headers: &HeaderMap) -> Option<HeaderValue> {
    let mut kept: Vec<u8> = Vec::new();
    for element in members_of(headers, &FORWARDED) {
        let mut separator = if kept.is_empty() { "" } else { ", " };
        for pair in parts_of(element, b';') {
            let Some(equals) = memchr::memchr(b'=', pair) else { continue };
            let (name, node) = (&pair[..equals], &pair[equals + 1..]);
            if (name.eq_ignore_ascii_case(b"for") || name.eq_ignore_ascii_case(b"by")) && is_node(node) {
                kept.extend_from_slice(separator.as_bytes());
                kept.extend_from_slice(pair);
                separator = ";";
            }
        }
    }
    if kept.is_empty() { None } else { HeaderValue::from_bytes(&kept).ok() }
}

/// Whether a value is an address or a name for one, with or without quotes. It has no byte that a careless reader could
/// mistake for the beginning of another parameter.
fn is_node(value: &[u8]) -> bool {
    let inner = value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or(value);
    !inner.is_empty() && inner.iter().all(|byte| byte.is_ascii_alphanumeric() || b"._-:[]".contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::headers;

    type Lines<'a> = &'a [(&'a str, &'a str)];

    #[test]
    fn only_addresses_and_keyed_headers_stay() {
        let said: Lines = &[
            ("forwarded", "for=192.0.2.1;host=evil;proto=https"),
            ("x-forwarded-for", "a"),
            ("x-forwarded-host", "a"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-anything", "a"),
            ("x-forwarded", "a"),
            ("x-real-ip", "a"),
            ("accept", "x"),
            ("x_forwarded_for", "a"),
            ("x-forwarded_host", "a"),
            ("x_real-ip", "a"),
        ];
        let addresses: Lines =
            &[("forwarded", "for=192.0.2.1"), ("x-forwarded-for", "a"), ("x-real-ip", "a"), ("accept", "x")];
        let table: &[(bool, &[&str], Lines)] = &[
            (false, &[], &[("accept", "x")]),
            (false, &["x-forwarded-host", "forwarded"], &[("accept", "x")]),
            (true, &[], addresses),
            (true, &["accept", "x-forwarded-proto"], &[addresses, &[("x-forwarded-proto", "https")]].concat()),
            (true, &["forwarded"], &[&said[..2], &said[6..8]].concat()),
        ];
        for (is_trusted, keyed, after) in table {
            let keyed: Vec<_> = keyed.iter().map(|name| HeaderName::from_static(name)).collect();
            let mut map = headers(said);
            for _ in 0..2 {
                remove_unkeyed(&mut map, *is_trusted, &keyed);
                assert_eq!(map, headers(after), "{is_trusted} {keyed:?}");
            }
        }
    }

    #[test]
    fn forwarded_keeps_no_byte_but_addresses() {
        let table = [
            ("for=a, for=b;proto=https", Some("for=a, for=b")),
            ("For=\"[2001:db8::1]:80\";by=_x", Some("For=\"[2001:db8::1]:80\";by=_x")),
            ("host=evil;for=a", Some("for=a")),
            ("host=evil", None),
            ("host=evil, for=a", Some("for=a")),
            ("for=\"a;host=evil\"", None),
            ("for=\"a,host=evil\", for=b", Some("for=b")),
            ("for=\"a\\\";host=evil\"", None),
            ("for=\"a", None),
            ("for=a b", None),
            ("for= a", None),
            ("for=;by=", None),
            ("", None),
            (";;,,", None),
        ];
        for (value, expected) in table {
            let mut map = headers(&[("forwarded", value)]);
            remove_unkeyed(&mut map, true, &[]);
            assert_eq!(map.get(FORWARDED).map(HeaderValue::as_bytes), expected.map(str::as_bytes), "{value}");
        }
    }
}
