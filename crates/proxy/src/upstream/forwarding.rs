//! The headers that tell an origin about earlier hops of a request: `Forwarded` and `X-Forwarded-*`.
//!
//! Owns: what Nectary adds to these headers, which is the same for all methods. `rules/forwarded` says which of a
//! request's own headers stay. If the origin may learn the client's address, Nectary then adds its own elements, `for`
//! and `proto`. It adds no host. `X-Forwarded-Proto` is always the same, unless the operator makes it a part of the
//! key. *Source*: RFC 7239.

use std::fmt::Write;
use std::net::IpAddr;

use http::header::FORWARDED;
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::rules::forwarded::remove_unkeyed;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// The earlier hops of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ForwardingHops<'a> {
    /// The peer that sent the request.
    pub peer: IpAddr,
    /// Whether the request came over TLS.
    pub is_secure: bool,
    /// Whether the peer's headers about earlier hops are trusted.
    pub is_trusted: bool,
    /// Whether the origin gets the client's address.
    pub is_told: bool,
    /// The request headers that are part of every key.
    pub keyed: &'a [HeaderName],
}

impl ForwardingHops<'_> {
    /// Turns a client's headers into those for an origin.
    pub fn apply(&self, headers: &mut HeaderMap) {
        remove_unkeyed(headers, self.is_trusted, self.keyed);
        if !self.is_told {
            return;
        }
        let peer = self.peer.to_canonical();
        // Extend the header that a trusted peer has sent. If the other header were added without the peer's entries,
        // the two headers would contradict each other.
        let (has_one, has_other) = (headers.contains_key(FORWARDED), headers.contains_key(X_FORWARDED_FOR));
        if has_one || !has_other {
            let mut own = match peer {
                IpAddr::V4(peer) => format!("for={peer}"),
                IpAddr::V6(peer) => format!("for=\"[{peer}]\""),
            };
            _ = write!(own, ";proto={}", self.scheme());
            extend(headers, FORWARDED, &own);
        }
        if has_other || !has_one {
            extend(headers, X_FORWARDED_FOR, &peer.to_string());
            if !headers.contains_key(X_FORWARDED_PROTO) {
                headers.insert(X_FORWARDED_PROTO, HeaderValue::from_static(self.scheme()));
            }
        }
    }

    fn scheme(&self) -> &'static str {
        if self.is_secure { "https" } else { "http" }
    }
}

/// Joins all lines of a header into one and appends `last`.
fn extend(headers: &mut HeaderMap, name: HeaderName, last: &str) {
    let mut list: Vec<u8> = Vec::new();
    for value in headers.get_all(&name) {
        list.extend_from_slice(value.as_bytes());
        list.extend_from_slice(b", ");
    }
    list.extend_from_slice(last.as_bytes());
    let value = HeaderValue::from_bytes(&list).expect("header values and an address");
    headers.insert(name, value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::headers;

    type Lines<'a> = &'a [(&'a str, &'a str)];

    #[test]
    fn forwarding_headers_depend_on_peer_trust() {
        let (nobody, trusted, silent) = ((false, true), (true, true), (false, false));
        let said: Lines = &[
            ("forwarded", "for=a"),
            ("x-forwarded-for", "a"),
            ("x-forwarded-host", "a"),
            ("x-forwarded-anything", "a"),
            ("x-real-ip", "a"),
            ("accept", "x"),
        ];
        let kept: Lines = &[("forwarded", "for=a"), ("x-forwarded-for", "a"), ("x-real-ip", "a"), ("accept", "x")];
        let own: Lines = &[
            ("accept", "x"),
            ("forwarded", "for=192.0.2.9;proto=http"),
            ("x-forwarded-for", "192.0.2.9"),
            ("x-forwarded-proto", "http"),
        ];
        let table: &[(&str, (bool, bool), Lines, Lines)] = &[
            ("192.0.2.9", nobody, &[("accept", "x")], own),
            ("192.0.2.9", nobody, said, own),
            ("::ffff:192.0.2.9", trusted, &[("accept", "x")], own),
            ("192.0.2.9", silent, said, &[("accept", "x")]),
            ("192.0.2.9", (true, false), said, kept),
            (
                "192.0.2.9",
                trusted,
                said,
                &[
                    ("forwarded", "for=a, for=192.0.2.9;proto=http"),
                    ("x-forwarded-for", "a, 192.0.2.9"),
                    ("x-real-ip", "a"),
                    ("accept", "x"),
                    ("x-forwarded-proto", "http"),
                ],
            ),
            (
                "192.0.2.9",
                trusted,
                &[("x-forwarded-for", "a"), ("x-forwarded-for", "b"), ("x-forwarded-proto", "https")],
                &[("x-forwarded-for", "a, b, 192.0.2.9"), ("x-forwarded-proto", "http")],
            ),
            (
                "192.0.2.9",
                trusted,
                &[("x-forwarded-for", "a"), ("x-forwarded-keyed", "b")],
                &[("x-forwarded-for", "a, 192.0.2.9"), ("x-forwarded-proto", "http"), ("x-forwarded-keyed", "b")],
            ),
            (
                "2001:db8::1",
                trusted,
                &[("forwarded", "for=a;proto=https")],
                &[("forwarded", "for=a, for=\"[2001:db8::1]\";proto=http")],
            ),
        ];
        let keyed = [HeaderName::from_static("x-forwarded-keyed")];
        for (peer, (is_trusted, is_told), before, after) in table {
            let mut map = headers(before);
            let peer = peer.parse().expect("an address");
            ForwardingHops { peer, is_secure: false, is_trusted: *is_trusted, is_told: *is_told, keyed: &keyed }
                .apply(&mut map);
            assert_eq!(map, headers(after), "{before:?} from {peer}");
        }
        let mut map = headers(&[]);
        let peer = "192.0.2.9".parse().expect("an address");
        ForwardingHops { peer, is_secure: true, is_trusted: false, is_told: true, keyed: &[] }.apply(&mut map);
        let secure = [
            ("forwarded", "for=192.0.2.9;proto=https"),
            ("x-forwarded-for", "192.0.2.9"),
            ("x-forwarded-proto", "https"),
        ];
        assert_eq!(map, headers(&secure));
    }
}
