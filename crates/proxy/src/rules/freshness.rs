//! The time for which a response is fresh.
//!
//! Owns: the choice of a lifetime: the explicit one, else the operator's default, else the heuristic. *Source*: RFC
//! 9111, 4.2.1 and 4.2.2.

use http::header::{DATE, EXPIRES, LAST_MODIFIED};
use http::{HeaderMap, HeaderValue, StatusCode};

use super::cache_control::ResponseDirectives;
use super::parse_date_s;

/// The longest heuristic lifetime, in seconds.
pub const HEURISTIC_LIFETIME_S_MAX: u64 = 24 * 3600;

/// The source of a lifetime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LifetimeSource {
    /// `s-maxage`, `max-age` or `Expires`.
    Explicit,
    /// The operator's rules.
    DefaultTtl,
    /// A tenth of the time since the last modification.
    Heuristic,
    /// There is no source; the lifetime is 0.
    None,
}

/// A freshness lifetime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Freshness {
    /// The time for which the response is fresh, counted from its generation, in milliseconds.
    pub lifetime_ms: u64,
    /// The source of the lifetime.
    pub source: LifetimeSource,
}

/// Whether a response with this status may be stored and given a lifetime by default (RFC 9110, 15.1, except 206: a
/// stored part is judged as a 200, see `policy`).
pub fn is_heuristically_cacheable(status: StatusCode) -> bool {
    matches!(status.as_u16(), 200 | 203 | 204 | 300 | 301 | 308 | 404 | 405 | 410 | 414 | 501)
}

/// Whether the operator's default lifetime applies to a status. It applies to heuristically cacheable statuses, except
/// `204` and all errors but `410`.
pub fn takes_default_ttl(status: StatusCode) -> bool {
    matches!(status.as_u16(), 200 | 203 | 300 | 301 | 308 | 410)
}

/// Whether a response has an explicit lifetime.
pub fn is_explicit(headers: &HeaderMap, directives: &ResponseDirectives) -> bool {
    directives.s_maxage.is_some() || directives.max_age.is_some() || expires(headers, directives).is_some()
}

/// The lifetime in seconds that the operator gives to a response without one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperatorTtl {
    /// A default for its URL, if there is one. It applies to some statuses only.
    Usual(Option<u64>),
    /// For exactly its status.
    OfStatus(u64),
}

/// The freshness lifetime of a response received at `response_ms`; `default_ttl_s` is the operator's default for its
/// URL. See [`lifetime_by`].
pub fn lifetime(
    status: StatusCode,
    headers: &HeaderMap,
    directives: &ResponseDirectives,
    default_ttl_s: Option<u64>,
    response_ms: u64,
) -> Freshness {
    lifetime_by(status, headers, directives, OperatorTtl::Usual(default_ttl_s), response_ms)
}

/// The freshness lifetime of a response received at `response_ms`; `default` is the operator's.
///
/// A response whose `Expires` is not a date is stale. The default does not apply to responses with `no-cache`,
/// `no-store` or `private`.
pub fn lifetime_by(
    status: StatusCode,
    headers: &HeaderMap,
    directives: &ResponseDirectives,
    default: OperatorTtl,
    response_ms: u64,
) -> Freshness {
    let explicit = |seconds: u64| Freshness { lifetime_ms: seconds * 1000, source: LifetimeSource::Explicit };
    if let Some(seconds) = directives.s_maxage.or(directives.max_age) {
        return explicit(seconds);
    }
    let date_s = headers.get(DATE).and_then(parse_date_s).unwrap_or(response_ms / 1000);
    if let Some(expires) = expires(headers, directives) {
        return explicit(parse_date_s(expires).map_or(0, |expires_s| expires_s.saturating_sub(date_s)));
    }
    let default_ttl_s = match default {
        OperatorTtl::Usual(ttl_s) => ttl_s.filter(|_| takes_default_ttl(status)),
        OperatorTtl::OfStatus(ttl_s) => Some(ttl_s),
    };
    if let Some(seconds) = default_ttl_s
        && !(directives.no_cache || directives.no_store || directives.private)
    {
        return Freshness { lifetime_ms: seconds * 1000, source: LifetimeSource::DefaultTtl };
    }
    if (is_heuristically_cacheable(status) || directives.public)
        && let Some(modified_s) = headers.get(LAST_MODIFIED).and_then(parse_date_s)
    {
        let seconds = (date_s.saturating_sub(modified_s) / 10).min(HEURISTIC_LIFETIME_S_MAX);
        return Freshness { lifetime_ms: seconds * 1000, source: LifetimeSource::Heuristic };
    }
    Freshness { lifetime_ms: 0, source: LifetimeSource::None }
}

/// `Expires`, unless another header replaces it.
fn expires<'a>(headers: &'a HeaderMap, directives: &ResponseDirectives) -> Option<&'a HeaderValue> {
    headers.get(EXPIRES).filter(|_| !directives.replaces_expires)
}

#[cfg(test)]
mod tests {
    use super::super::headers;
    use super::*;

    const NOW_MS: u64 = 784_111_777_000;
    const NOW: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

    #[test]
    fn lifetime_sources_follow_rfc_order() {
        use LifetimeSource::{DefaultTtl, Explicit, Heuristic, None as Nothing};
        type Row<'a> = (&'a str, u16, &'a [(&'a str, &'a str)], Option<u64>, u64, LifetimeSource);
        let table: &[Row] = &[
            ("nothing", 200, &[], None, 0, Nothing),
            ("max-age", 200, &[("cache-control", "max-age=5")], None, 5, Explicit),
            ("s-maxage wins", 200, &[("cache-control", "max-age=5, s-maxage=9")], None, 9, Explicit),
            (
                "max-age wins over expires",
                200,
                &[("cache-control", "max-age=5"), ("expires", "Sun, 06 Nov 1994 09:49:37 GMT")],
                None,
                5,
                Explicit,
            ),
            ("expires", 200, &[("date", NOW), ("expires", "Sun, 06 Nov 1994 09:49:37 GMT")], None, 3600, Explicit),
            ("expires without date", 200, &[("expires", "Sun, 06 Nov 1994 08:49:47 GMT")], None, 10, Explicit),
            ("expires in rfc850 form", 200, &[("expires", "Sunday, 06-Nov-94 08:49:47 GMT")], None, 10, Explicit),
            ("expires in asctime form", 200, &[("expires", "Sun Nov  6 08:49:47 1994")], None, 10, Explicit),
            ("expires 0 is stale", 200, &[("expires", "0")], Some(99), 0, Explicit),
            ("expired", 200, &[("date", NOW), ("expires", "Sun, 06 Nov 1994 07:49:37 GMT")], None, 0, Explicit),
            ("bad max-age is stale", 200, &[("cache-control", "max-age=x")], Some(99), 0, Explicit),
            ("default", 200, &[], Some(99), 99, DefaultTtl),
            ("default before heuristic", 200, &[("last-modified", NOW)], Some(99), 99, DefaultTtl),
            ("no default for 404", 404, &[], Some(99), 0, Nothing),
            ("no default for no-cache", 200, &[("cache-control", "no-cache")], Some(99), 0, Nothing),
            ("no default for private", 200, &[("cache-control", "private")], Some(99), 0, Nothing),
            ("heuristic", 200, &[("last-modified", "Sun, 06 Nov 1994 08:32:57 GMT")], None, 100, Heuristic),
            ("heuristic, bounded", 200, &[("last-modified", "Wed, 06 Nov 1974 08:32:57 GMT")], None, 86400, Heuristic),
            (
                "heuristic from the future",
                200,
                &[("last-modified", "Sun, 06 Nov 2044 08:32:57 GMT")],
                None,
                0,
                Heuristic,
            ),
            ("no heuristic for 201", 201, &[("last-modified", "Sun, 06 Nov 1994 08:32:57 GMT")], None, 0, Nothing),
            (
                "heuristic for public 201",
                201,
                &[("cache-control", "public"), ("last-modified", "Sun, 06 Nov 1994 08:32:57 GMT")],
                None,
                100,
                Heuristic,
            ),
        ];
        for (name, status, lines, default, seconds, source) in table {
            let map = headers(lines);
            let status = StatusCode::from_u16(*status).expect("a status");
            let found = lifetime(status, &map, &ResponseDirectives::parse(&map), *default, NOW_MS + 999);
            assert_eq!(found, Freshness { lifetime_ms: seconds * 1000, source: *source }, "{name}");
        }
    }
}
