//! Headers that belong to one connection and are not forwarded.
//!
//! Owns: the list of these headers, and removing them. *Source*: RFC 9110, 7.6.1; RFC 9111, 3.1.

use http::HeaderMap;
use http::header::{
    AGE, CACHE_CONTROL, CDN_CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, DATE, EXPIRES, HOST, HeaderName,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, SET_COOKIE, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, VARY, VIA,
};

use super::forwarded::is_forwarding;
use super::list::members_of;

/// Removes every hop-by-hop header and those that `SweptConnection` names.
pub fn remove_hop_by_hop(headers: &mut HeaderMap) {
    remove_named(headers);
    headers.remove(CONNECTION);
    for name in [TE, TRAILER, TRANSFER_ENCODING, UPGRADE, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION] {
        headers.remove(name);
    }
    for name in ["keep-alive", "proxy-connection", "proxy-authentication-info"] {
        headers.remove(name);
    }
}

/// Removes the headers that `SweptConnection` names; returns whether there were any. In requests they are removed before the
/// variant part of a key is made: an origin does not get them, so its response must not be found by their values.
///
/// Headers that caching and framing depend on stay even if `SweptConnection` names them. Otherwise `Connection:
/// cache-control` would turn a private response into a shared one. `Upgrade` stays for this connection. *Cost*: no
/// allocation for `keep-alive` and `close`.
pub fn remove_named(headers: &mut HeaderMap) -> bool {
    let is_option = |name: &&[u8]| name.eq_ignore_ascii_case(b"keep-alive") || name.eq_ignore_ascii_case(b"close");
    let names: Vec<HeaderName> = members_of(headers, &CONNECTION)
        .filter(|name| !is_option(name))
        .filter_map(|name| HeaderName::from_bytes(name).ok())
        .filter(|name| !is_protected(name) && headers.contains_key(name))
        .collect();
    names.iter().for_each(|name| _ = headers.remove(name));
    !names.is_empty()
}

fn is_protected(name: &HeaderName) -> bool {
    [AGE, CACHE_CONTROL, CDN_CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, DATE, EXPIRES, HOST, SET_COOKIE, UPGRADE, VARY]
        .contains(name)
        || *name == VIA
        || is_forwarding(name)
}

#[cfg(test)]
mod tests {
    use super::super::headers;
    use super::*;

    #[test]
    fn only_connection_headers_are_removed() {
        type Lines<'a> = &'a [(&'a str, &'a str)];
        let table: &[(Lines, Lines)] = &[
            (&[("a", "1")], &[("a", "1")]),
            (&[("connection", "close"), ("a", "1")], &[("a", "1")]),
            (
                &[("connection", "A, b"), ("connection", "c"), ("a", "1"), ("b", "1"), ("c", "1"), ("d", "1")],
                &[("d", "1")],
            ),
            (&[("connection", "cache-control"), ("cache-control", "private")], &[("cache-control", "private")]),
            (&[("connection", "host"), ("host", "x")], &[("host", "x")]),
            (&[("connection", "not a name, @"), ("a", "1")], &[("a", "1")]),
            (
                &[
                    ("keep-alive", "1"),
                    ("proxy-connection", "1"),
                    ("te", "trailers"),
                    ("trailer", "x"),
                    ("transfer-encoding", "chunked"),
                    ("upgrade", "h2c"),
                    ("proxy-authorization", "x"),
                    ("proxy-authenticate", "x"),
                    ("proxy-authentication-info", "x"),
                    ("authorization", "kept"),
                ],
                &[("authorization", "kept")],
            ),
        ];
        for (before, after) in table {
            let mut map = headers(before);
            remove_hop_by_hop(&mut map);
            assert_eq!(map, headers(after), "{before:?}");
        }
    }
}
