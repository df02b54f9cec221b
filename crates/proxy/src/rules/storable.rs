//! Whether a response may be stored.
//!
//! Owns: the rules of RFC 9111, 3 and 3.5, for a shared cache that stores responses to GET. A `206` is storable only as
//! the answer to the proxy's own request for a part, and is then judged here as a `200` (`service/parts`). It stores no
//! response that it could never serve.

use http::header::{AUTHORIZATION, ETAG, LAST_MODIFIED};
use http::{HeaderMap, Method, StatusCode};

use super::cache_control::{RequestDirectives, ResponseDirectives};
use super::freshness::{Freshness, LifetimeSource, is_explicit, is_heuristically_cacheable};
use super::vary::Vary;

/// Whether a response may be stored, or the reason why it must not be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Storability {
    /// It may be stored.
    Storable,
    /// The method is not GET.
    Method,
    /// The status is 1xx, 206 or 304; or it is 600 or above, which RFC 9110, 15 treats as a server error; or this cache
    /// does not know it and the response has `must-understand`.
    Status,
    /// The request or the response has `no-store`.
    NoStore,
    /// The response has `private`.
    Private,
    /// The request had `Authorization` and the response does not allow sharing.
    Authorization,
    /// The response has `Set-Cookie`, and nothing permits storing it (see `cookies`).
    SetCookie,
    /// No rule allows storing: the response has no lifetime and no `public`, and its status is not cacheable by
    /// default.
    NotAllowed,
    /// The response has `Vary: *`, or more names in `Vary` than the cache supports.
    Vary,
    /// The response would be stale as soon as it arrives, as nothing gives it a lifetime, and could never be validated.
    NoLifetime,
    /// The response would be stale as soon as it arrives, as it says itself, and could never be validated.
    Useless,
}

impl Storability {
    /// Whether the response may be stored.
    pub fn is_storable(self) -> bool {
        self == Storability::Storable
    }

    /// Whether the response would be stored if it had a lifetime: neither it nor the operator says how long it is fresh.
    pub fn lacks_lifetime(self) -> bool {
        matches!(self, Storability::NotAllowed | Storability::NoLifetime)
    }

    /// Whether the stored response for the URL must be purged, because the origin now has a different response, which
    /// must not be stored. The stored response stays if only the method or `Authorization` of the request forbids
    /// storing, or if the status is a server error.
    pub fn supersedes(self, status: StatusCode) -> bool {
        let is_about_the_request = matches!(self, Storability::Method | Storability::Authorization);
        !(self.is_storable() || is_about_the_request || status.is_server_error() || status.as_u16() >= 600)
    }
}

/// Whether this cache knows what a final status code means for caches.
fn is_understood(status: StatusCode) -> bool {
    matches!(status.as_u16(),
        200..=205 | 300..=303 | 307 | 308 | 400..=417 | 421 | 422 | 426 | 428 | 429 | 431 | 451 | 500..=505 | 511)
}

/// Decides about one response to `method` with `request_headers`.
pub fn storability(
    method: &Method,
    request_headers: &HeaderMap,
    request: &RequestDirectives,
    status: StatusCode,
    headers: &HeaderMap,
    response: &ResponseDirectives,
    freshness: Freshness,
) -> Storability {
    if method != Method::GET {
        return Storability::Method;
    }
    if !(200..600).contains(&status.as_u16())
        || status == StatusCode::PARTIAL_CONTENT
        || status == StatusCode::NOT_MODIFIED
    {
        return Storability::Status;
    }
    if response.must_understand && !is_understood(status) {
        return Storability::Status;
    }
    // In a response with `must-understand`, `no-store` is meant for caches that do not know `must-understand`.
    if request.no_store || (response.no_store && !response.must_understand) {
        return Storability::NoStore;
    }
    if response.private {
        return Storability::Private;
    }
    if request_headers.contains_key(AUTHORIZATION)
        && !(response.must_revalidate || response.public || response.s_maxage.is_some())
    {
        return Storability::Authorization;
    }
    if !(response.public
        || is_explicit(headers, response)
        || is_heuristically_cacheable(status)
        || freshness.source == LifetimeSource::DefaultTtl)
    {
        return Storability::NotAllowed;
    }
    if matches!(Vary::parse(headers), Vary::Any) {
        return Storability::Vary;
    }
    let has_validator = headers.contains_key(ETAG) || headers.contains_key(LAST_MODIFIED);
    if (freshness.lifetime_ms == 0 || response.no_cache) && !has_validator {
        let is_unsaid = freshness.source == LifetimeSource::None && !response.no_cache;
        return if is_unsaid { Storability::NoLifetime } else { Storability::Useless };
    }
    Storability::Storable
}

#[cfg(test)]
mod tests {
    use super::super::freshness::lifetime;
    use super::super::headers;
    use super::*;

    #[test]
    fn storability_follows_the_rfc() {
        use Storability::*;
        let fresh = ("cache-control", "max-age=60");
        type Lines<'a> = &'a [(&'a str, &'a str)];
        let table: &[(&str, &str, Lines, u16, Lines, Storability)] = &[
            ("plain", "GET", &[], 200, &[fresh], Storable),
            ("head", "HEAD", &[], 200, &[fresh], Method),
            ("post", "POST", &[], 200, &[fresh], Method),
            ("partial", "GET", &[], 206, &[fresh], Status),
            ("not modified", "GET", &[], 304, &[fresh], Status),
            ("no-store", "GET", &[], 200, &[("cache-control", "no-store, max-age=60")], NoStore),
            ("request no-store", "GET", &[("cache-control", "no-store")], 200, &[fresh], NoStore),
            ("private", "GET", &[], 200, &[("cache-control", "private, max-age=60")], Private),
            ("set-cookie is for `cookies`", "GET", &[], 200, &[fresh, ("set-cookie", "a=b")], Storable),
            ("authorization", "GET", &[("authorization", "x")], 200, &[fresh], Authorization),
            (
                "authorized, public",
                "GET",
                &[("authorization", "x")],
                200,
                &[("cache-control", "public, max-age=1")],
                Storable,
            ),
            (
                "authorized, s-maxage",
                "GET",
                &[("authorization", "x")],
                200,
                &[("cache-control", "s-maxage=1")],
                Storable,
            ),
            (
                "authorized, must-revalidate",
                "GET",
                &[("authorization", "x")],
                200,
                &[("cache-control", "must-revalidate, max-age=1")],
                Storable,
            ),
            ("heuristic", "GET", &[], 200, &[("last-modified", "Sun, 06 Nov 1994 08:49:37 GMT")], Storable),
            ("404 with lifetime", "GET", &[], 404, &[fresh], Storable),
            ("302 without lifetime", "GET", &[], 302, &[("etag", "\"a\"")], NotAllowed),
            ("302 with lifetime", "GET", &[], 302, &[fresh], Storable),
            ("500 with lifetime", "GET", &[], 500, &[fresh], Storable),
            ("599 with lifetime", "GET", &[], 599, &[fresh], Storable),
            ("600 with lifetime", "GET", &[], 600, &[fresh], Status),
            ("999 with lifetime", "GET", &[], 999, &[fresh], Status),
            ("must-understand unknown", "GET", &[], 599, &[("cache-control", "must-understand, max-age=1")], Status),
            (
                "must-understand known",
                "GET",
                &[],
                200,
                &[("cache-control", "must-understand, no-store, max-age=1")],
                Storable,
            ),
            ("vary star", "GET", &[], 200, &[fresh, ("vary", "accept, *")], Vary),
            ("nothing to go by", "GET", &[], 200, &[], NoLifetime),
            ("404 with nothing to go by", "GET", &[], 404, &[("cache-control", "public")], NoLifetime),
            ("always validated", "GET", &[], 200, &[("cache-control", "no-cache"), ("etag", "\"a\"")], Storable),
            ("never validatable", "GET", &[], 200, &[("cache-control", "no-cache, max-age=9")], Useless),
            ("expired, no validator", "GET", &[], 200, &[("expires", "0")], Useless),
        ];
        for (name, method, request, status, response, expected) in table {
            let (request, response) = (headers(request), headers(response));
            let status = StatusCode::from_u16(*status).expect("a status");
            let directives = ResponseDirectives::parse(&response);
            let found = storability(
                &http::Method::from_bytes(method.as_bytes()).expect("a method"),
                &request,
                &RequestDirectives::parse(&request),
                status,
                &response,
                &directives,
                lifetime(status, &response, &directives, None, 0),
            );
            assert_eq!(found, *expected, "{name}");
            assert_eq!(found.lacks_lifetime(), matches!(expected, NotAllowed | NoLifetime), "{name}");
        }
    }
}
