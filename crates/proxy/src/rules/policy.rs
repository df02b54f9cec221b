//! Decides by all rules together whether a response is stored and how long it is fresh.
//!
//! Owns: the settings of the operator, the kind of proxy (forward or reverse), and the choice of the header that gives
//! a response's directives.

use http::{HeaderMap, Method, StatusCode};

use super::cache_control::{RequestDirectives, ResponseDirectives};
use super::cookies::{CookieTreatment, cookies};
use super::default_ttl::DefaultTtl;
use super::freshness::{Freshness, OperatorTtl, lifetime_by};
use super::storable::{Storability, storability};
use super::targeted;

/// The settings by which responses are judged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResponsePolicy {
    /// The operator's lifetimes for responses that have no lifetime.
    pub default_ttl: DefaultTtl,
    /// The same by status, instead of `default_ttl`.
    pub status_ttl: Vec<(u16, u64)>,
    /// The time beyond its lifetime for which a response that does not say is served while it is validated, in seconds.
    pub while_revalidate_s: u32,
    /// Whether this is a reverse proxy, which obeys `CDN-NameCache-Control`. A forward proxy ignores that header.
    pub is_for_origin: bool,
    /// Whether responses with `Set-Cookie` are stored in the same way as responses without it.
    pub stores_cookies: bool,
    /// The time beyond its lifetime for which a response without `stale-if-error` is served while the origin cannot be
    /// reached, in seconds; 0 if it never is.
    pub stale_unreachable_s: u64,
    /// The number of the configuration that this is of. A stored response that was judged by another one is judged again.
    pub generation: u32,
}

impl ResponsePolicy {
    /// The directives of a response, from the header that this kind of proxy obeys.
    pub fn directives(&self, headers: &HeaderMap) -> ResponseDirectives {
        let targeted = self.is_for_origin.then(|| targeted::directives(headers)).flatten();
        targeted.unwrap_or_else(|| ResponseDirectives::parse(headers))
    }

    /// The lifetime of a response received at `response_ms`; `key` is the primary key. A part is fresh for as long as the
    /// whole would be.
    pub fn lifetime(
        &self,
        key: &[u8],
        status: StatusCode,
        headers: &HeaderMap,
        directives: &ResponseDirectives,
        response_ms: u64,
    ) -> Freshness {
        let status = if status == StatusCode::PARTIAL_CONTENT { StatusCode::OK } else { status };
        let default = if self.status_ttl.is_empty() {
            OperatorTtl::Usual(self.default_ttl.for_key(key))
        } else {
            match self.status_ttl.iter().find(|(of, _)| *of == status.as_u16()) {
                Some((_, ttl_s)) => OperatorTtl::OfStatus(*ttl_s),
                None => OperatorTtl::Usual(self.default_ttl.for_key(key)),
            }
        };
        lifetime_by(status, headers, directives, default, response_ms)
    }

    /// The treatment of a response's cookies.
    pub fn cookies(&self, headers: &HeaderMap) -> CookieTreatment {
        cookies(headers, &self.directives(headers), self.stores_cookies)
    }

    /// Whether the response to a request may be stored.
    pub fn storability(
        &self,
        (method, key, request_headers, request): (&Method, &[u8], &HeaderMap, &RequestDirectives),
        (status, headers, response_ms): (StatusCode, &HeaderMap, u64),
    ) -> Storability {
        let directives = self.directives(headers);
        if cookies(headers, &directives, self.stores_cookies) == CookieTreatment::Forbidding {
            return Storability::SetCookie;
        }
        let freshness = self.lifetime(key, status, headers, &directives, response_ms);
        storability(method, request_headers, request, status, headers, &directives, freshness)
    }
}

#[cfg(test)]
mod tests {
    use super::super::headers;
    use super::*;

    /// Whether a response with these headers is stored, and for how many seconds it is fresh.
    fn judge(is_for_origin: bool, lines: &[(&str, &str)]) -> (bool, u64) {
        let policy = ResponsePolicy { is_for_origin, ..ResponsePolicy::default() };
        let (map, none) = (headers(lines), HeaderMap::new());
        let request = (&Method::GET, &b"http://a/"[..], &none, &RequestDirectives::default());
        let freshness = policy.lifetime(b"http://a/", StatusCode::OK, &map, &policy.directives(&map), 0);
        (policy.storability(request, (StatusCode::OK, &map, 0)).is_storable(), freshness.lifetime_ms / 1000)
    }

    #[test]
    fn a_part_lives_like_the_whole() {
        let policy = ResponsePolicy {
            default_ttl: DefaultTtl::of_all(Some(60)),
            status_ttl: vec![(404, 5), (200, 90)],
            ..ResponsePolicy::default()
        };
        let none = HeaderMap::new();
        let lifetime =
            |status| policy.lifetime(b"http://a/", status, &none, &policy.directives(&none), 0).lifetime_ms / 1000;
        assert_eq!((lifetime(StatusCode::OK), lifetime(StatusCode::PARTIAL_CONTENT)), (90, 90));
        assert_eq!((lifetime(StatusCode::NOT_FOUND), lifetime(StatusCode::GONE)), (5, 60));
    }

    /// Only in a reverse proxy does the field replace `Cache-Control` and `Expires`.
    #[test]
    fn targeted_field_replaces_standard_ones() {
        const LATER: &str = "Thu, 01 Jan 1970 01:00:00 GMT";
        // Each row has a response's headers, and the result of `judge` in a reverse and in a forward proxy.
        type Row<'a> = (&'a [(&'a str, &'a str)], (bool, u64), (bool, u64));
        let table: &[Row] = &[
            (&[("cdn-cache-control", "max-age=60"), ("cache-control", "no-store")], (true, 60), (false, 0)),
            (&[("cdn-cache-control", "no-store"), ("cache-control", "max-age=60")], (false, 0), (true, 60)),
            (&[("cdn-cache-control", "private"), ("expires", LATER)], (false, 0), (true, 3600)),
            (&[("cdn-cache-control", "none"), ("cache-control", "max-age=60")], (false, 0), (true, 60)),
            (&[("cdn-cache-control", "none"), ("expires", LATER)], (false, 0), (true, 3600)),
            (&[("cdn-cache-control", "max-age=60"), ("expires", "0")], (true, 60), (false, 0)),
            (&[("cdn-cache-control", "max-age=60, &&"), ("cache-control", "no-store")], (false, 0), (false, 0)),
            (&[("cdn-cache-control", "no-store, &&"), ("cache-control", "max-age=60")], (true, 60), (true, 60)),
            (&[("cdn-cache-control", ""), ("cache-control", "max-age=60")], (true, 60), (true, 60)),
        ];
        for (lines, reverse, forward) in table {
            assert_eq!((judge(true, lines), judge(false, lines)), (*reverse, *forward), "{lines:?}");
        }
    }
}
