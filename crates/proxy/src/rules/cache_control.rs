//! `NameCache-Control` in requests and responses, and `Pragma` in requests without `NameCache-Control`.
//!
//! Owns: the meaning of each directive, and of duplicate and malformed directives. *Source*: RFC 9111, 4.2.1 and 5.2;
//! RFC 5861. [`targeted`](super::targeted) reads the header that replaces `NameCache-Control` in a reverse proxy.
//! - Names compare without regard to case; arguments may be tokens or quoted strings.
//! - If a directive occurs twice, the first one counts. A freshness directive whose argument is not a number counts as
//!   0, so the response is stale.
//! - `no-cache` and `private` with field names count as the directive without names, which is stricter. The exception
//!   is `no-cache="set-cookie"`, which applies to the cookie only.
//! - Unknown directives are ignored.

use http::HeaderMap;
use http::header::{CACHE_CONTROL, PRAGMA};

use super::list::{directive, members_of};

/// The longest duration of a directive, in seconds. Longer durations count as this one.
pub const DELTA_SECONDS_MAX: u64 = 1 << 31;

/// The directives of a response's `NameCache-Control`. Durations are in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ResponseDirectives {
    /// The response must not be stored.
    pub no_store: bool,
    /// The response must not be used without validation.
    pub no_cache: bool,
    /// `Set-Cookie` must not be used without validation; the rest of the response may be.
    pub no_cache_cookie: bool,
    /// Only the cache of a single user may store the response.
    pub private: bool,
    /// The response may be stored even if no other header allows it.
    pub public: bool,
    /// The response must not be used after its lifetime without validation.
    pub must_revalidate: bool,
    /// A shared cache must not use the response after its lifetime without validation.
    pub proxy_revalidate: bool,
    /// Only a cache that understands the status code may store the response.
    pub must_understand: bool,
    /// The time for which the response is fresh.
    pub max_age: Option<u64>,
    /// The time for which the response is fresh in a shared cache.
    pub s_maxage: Option<u64>,
    /// The time after its lifetime in which the response may be used while it is being validated.
    pub stale_while_revalidate: Option<u64>,
    /// The time after its lifetime in which the response may be used if the origin fails.
    pub stale_if_error: Option<u64>,
    /// Whether these directives come from a header that also replaces `Expires`.
    pub replaces_expires: bool,
}

/// The directives of a request's `NameCache-Control` (or `Pragma`). Durations are in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestDirectives {
    /// Stored responses must be validated.
    pub no_cache: bool,
    /// The response must not be stored.
    pub no_store: bool,
    /// Only a stored response may answer the request.
    pub only_if_cached: bool,
    /// The greatest age of the response that the client accepts.
    pub max_age: Option<u64>,
    /// The time for which the response must still stay fresh.
    pub min_fresh: Option<u64>,
    /// The time for which the response may have been stale; `u64::MAX` for any time.
    pub max_stale: Option<u64>,
    /// The time for which the response may have been stale if the origin fails.
    pub stale_if_error: Option<u64>,
}

impl ResponseDirectives {
    /// Reads a response's header.
    pub fn parse(headers: &HeaderMap) -> ResponseDirectives {
        let mut found = ResponseDirectives::default();
        for member in members_of(headers, &CACHE_CONTROL) {
            let (name, argument) = directive(member);
            let argument = argument.as_deref();
            match DirectiveName::of(name) {
                DirectiveName::NoStore => found.no_store = true,
                DirectiveName::NoCache if is_about_cookies(argument) => found.no_cache_cookie = true,
                DirectiveName::NoCache => found.no_cache = true,
                DirectiveName::Private => found.private = true,
                DirectiveName::Public => found.public = true,
                DirectiveName::MustRevalidate => found.must_revalidate = true,
                DirectiveName::ProxyRevalidate => found.proxy_revalidate = true,
                DirectiveName::MustUnderstand => found.must_understand = true,
                DirectiveName::MaxAge => _ = found.max_age.get_or_insert(delta_seconds(argument).unwrap_or(0)),
                DirectiveName::SMaxage => _ = found.s_maxage.get_or_insert(delta_seconds(argument).unwrap_or(0)),
                DirectiveName::StaleWhileRevalidate if found.stale_while_revalidate.is_none() => {
                    found.stale_while_revalidate = delta_seconds(argument);
                }
                DirectiveName::StaleIfError if found.stale_if_error.is_none() => {
                    found.stale_if_error = delta_seconds(argument)
                }
                _ => {}
            }
        }
        found
    }

    /// Whether a shared cache must not use the response after its lifetime without validation.
    pub fn forbids_stale(&self) -> bool {
        self.must_revalidate || self.proxy_revalidate || self.no_cache || self.s_maxage.is_some()
    }
}

impl RequestDirectives {
    /// Removes the directives with which a client demands a fresher response than the origin requires: `no-cache` (also
    /// from `Pragma`), `max-age` and `min-fresh`. `no-store` and `only-if-cached` stay.
    pub fn without_demands(self) -> RequestDirectives {
        RequestDirectives { no_cache: false, max_age: None, min_fresh: None, ..self }
    }

    /// Reads a request's headers.
    pub fn parse(headers: &HeaderMap) -> RequestDirectives {
        let mut found = RequestDirectives::default();
        if !headers.contains_key(CACHE_CONTROL) {
            found.no_cache = members_of(headers, &PRAGMA).any(|member| member.eq_ignore_ascii_case(b"no-cache"));
            return found;
        }
        for member in members_of(headers, &CACHE_CONTROL) {
            let (name, argument) = directive(member);
            let argument = argument.as_deref();
            match DirectiveName::of(name) {
                DirectiveName::NoStore => found.no_store = true,
                DirectiveName::NoCache => found.no_cache = true,
                DirectiveName::OnlyIfCached => found.only_if_cached = true,
                DirectiveName::MaxAge => _ = found.max_age.get_or_insert(delta_seconds(argument).unwrap_or(0)),
                DirectiveName::MinFresh if found.min_fresh.is_none() => found.min_fresh = delta_seconds(argument),
                DirectiveName::MaxStale if found.max_stale.is_none() => {
                    found.max_stale = if argument.is_none() { Some(u64::MAX) } else { delta_seconds(argument) };
                }
                DirectiveName::StaleIfError if found.stale_if_error.is_none() => {
                    found.stale_if_error = delta_seconds(argument)
                }
                _ => {}
            }
        }
        found
    }
}

/// The known directives.
pub(super) enum DirectiveName {
    NoStore,
    NoCache,
    Private,
    Public,
    MustRevalidate,
    ProxyRevalidate,
    MustUnderstand,
    MaxAge,
    SMaxage,
    StaleWhileRevalidate,
    StaleIfError,
    OnlyIfCached,
    MinFresh,
    MaxStale,
    Unknown,
}

impl DirectiveName {
    /// Reads the name of a directive, in upper or lower case.
    pub fn of(name: &[u8]) -> DirectiveName {
        let is = |known: &[u8]| name.eq_ignore_ascii_case(known);
        match name.len() {
            6 if is(b"public") => DirectiveName::Public,
            7 if is(b"max-age") => DirectiveName::MaxAge,
            7 if is(b"private") => DirectiveName::Private,
            8 if is(b"no-store") => DirectiveName::NoStore,
            8 if is(b"no-cache") => DirectiveName::NoCache,
            8 if is(b"s-maxage") => DirectiveName::SMaxage,
            9 if is(b"min-fresh") => DirectiveName::MinFresh,
            9 if is(b"max-stale") => DirectiveName::MaxStale,
            14 if is(b"only-if-cached") => DirectiveName::OnlyIfCached,
            14 if is(b"stale-if-error") => DirectiveName::StaleIfError,
            15 if is(b"must-revalidate") => DirectiveName::MustRevalidate,
            15 if is(b"must-understand") => DirectiveName::MustUnderstand,
            16 if is(b"proxy-revalidate") => DirectiveName::ProxyRevalidate,
            22 if is(b"stale-while-revalidate") => DirectiveName::StaleWhileRevalidate,
            _ => DirectiveName::Unknown,
        }
    }
}

/// Whether a directive's list of field names contains `Set-Cookie` and nothing else.
pub(super) fn is_about_cookies(argument: Option<&[u8]>) -> bool {
    argument.is_some_and(|names| names.trim_ascii().eq_ignore_ascii_case(b"set-cookie"))
}

/// Reads a number of seconds, at most [`DELTA_SECONDS_MAX`]; `None` if it is not a number.
pub fn delta_seconds(argument: Option<&[u8]>) -> Option<u64> {
    let digits = argument?;
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let seconds = digits.iter().fold(0u64, |seconds, digit| {
        seconds.saturating_mul(10).saturating_add(u64::from(digit - b'0')).min(DELTA_SECONDS_MAX)
    });
    Some(seconds)
}

#[cfg(test)]
mod tests {
    use super::super::headers;
    use super::*;

    #[test]
    fn response_directives_follow_rfc() {
        type Fields = fn(&ResponseDirectives) -> bool;
        let table: &[(&[&str], Fields)] = &[
            (&["max-age=60"], |d| d.max_age == Some(60)),
            (&["MAX-AGE=60"], |d| d.max_age == Some(60)),
            (&["max-age=\"60\""], |d| d.max_age == Some(60)),
            (&["max-age='60'"], |d| d.max_age == Some(0)),
            (&["max-age=60, max-age=1"], |d| d.max_age == Some(60)),
            (&["max-age=60", "max-age=1"], |d| d.max_age == Some(60)),
            (&["max-age=1.5"], |d| d.max_age == Some(0)),
            (&["max-age=-1"], |d| d.max_age == Some(0)),
            (&["max-age"], |d| d.max_age == Some(0)),
            (&["max-age="], |d| d.max_age == Some(0)),
            (&["max-age= 60"], |d| d.max_age == Some(0)),
            (&["max-age =60"], |d| d.max_age.is_none()),
            (&["max-age=99999999999999999999999"], |d| d.max_age == Some(DELTA_SECONDS_MAX)),
            (&["s-maxage=5,max-age=60"], |d| d.s_maxage == Some(5) && d.max_age == Some(60) && d.forbids_stale()),
            (&["extension=\"max-age=7\", max-age=60"], |d| d.max_age == Some(60)),
            (&["extension=\"a, no-store\""], |d| !d.no_store),
            (&["no-store, private, public"], |d| d.no_store && d.private && d.public),
            (&["no-cache=\"Set-Cookie, X\""], |d| d.no_cache && d.forbids_stale()),
            (&["no-cache=\"set-cookie\""], |d| !d.no_cache && d.no_cache_cookie && !d.forbids_stale()),
            (&["no-cache=\"set-cookie\", no-cache"], |d| d.no_cache),
            (&["private=\"X\""], |d| d.private),
            (&["must-revalidate,proxy-revalidate,must-understand"], |d| {
                d.must_revalidate && d.proxy_revalidate && d.must_understand
            }),
            (&["stale-while-revalidate=5, stale-if-error=\"6\""], |d| {
                d.stale_while_revalidate == Some(5) && d.stale_if_error == Some(6)
            }),
            (&["stale-while-revalidate=x, stale-if-error"], |d| *d == ResponseDirectives::default()),
            (&[""], |d| *d == ResponseDirectives::default()),
            (&["nostore, no_cache, max_age=4"], |d| *d == ResponseDirectives::default()),
        ];
        for (lines, holds) in table {
            let lines: Vec<_> = lines.iter().map(|line| ("cache-control", *line)).collect();
            let found = ResponseDirectives::parse(&headers(&lines));
            assert!(holds(&found), "{lines:?} gave {found:?}");
        }
    }

    /// Directives of requests are read too.
    #[test]
    fn pragma_counts_only_without_cache_control() {
        type Fields = fn(&RequestDirectives) -> bool;
        let table: &[(&[(&str, &str)], Fields)] = &[
            (&[("cache-control", "no-cache")], |d| d.no_cache),
            (&[("pragma", "no-cache")], |d| d.no_cache),
            (&[("pragma", "No-Cache, x")], |d| d.no_cache),
            (&[("pragma", "no-cache"), ("cache-control", "max-age=5")], |d| !d.no_cache && d.max_age == Some(5)),
            (&[("cache-control", "max-stale")], |d| d.max_stale == Some(u64::MAX)),
            (&[("cache-control", "max-stale=7")], |d| d.max_stale == Some(7)),
            (&[("cache-control", "max-stale=x")], |d| d.max_stale.is_none()),
            (&[("cache-control", "min-fresh=9")], |d| d.min_fresh == Some(9)),
            (&[("cache-control", "stale-if-error=9")], |d| d.stale_if_error == Some(9)),
            (&[("cache-control", "max-age=x")], |d| d.max_age == Some(0)),
            (&[("cache-control", "only-if-cached, no-store")], |d| d.only_if_cached && d.no_store),
            (&[("cache-control", "no-cache, max-age=0, min-fresh=5, max-stale=7, no-store, only-if-cached")], |d| {
                let rest = RequestDirectives {
                    no_store: true,
                    only_if_cached: true,
                    max_stale: Some(7),
                    ..Default::default()
                };
                d.without_demands() == rest
            }),
        ];
        for (lines, holds) in table {
            let found = RequestDirectives::parse(&headers(lines));
            assert!(holds(&found), "{lines:?} gave {found:?}");
        }
    }
}
