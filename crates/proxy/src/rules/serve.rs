//! Whether a stored response may answer a request without being validated first.
//!
//! Owns: the rules of RFC 9111 (4, 4.2.4 and 5.2.1) and RFC 5861. They decide whether the response is fresh, may be
//! used stale, may be used stale while it is validated, or must be validated first, and whether it may be used if
//! validation fails. Leaves to the caller: `only-if-cached`, and the case that nothing is stored.
//!
//! | the stored response is stale, and | it is served |
//! |---|---|
//! | the origin says `must-revalidate`, `proxy-revalidate`, `no-cache` or `s-maxage` | never |
//! | the request says `no-cache`, or a `max-age` or `min-fresh` that it does not meet | never |
//! | the request says `max-stale` | for this long |
//! | the origin says `stale-while-revalidate` | for this long, while it is validated |
//! | origin or request has `stale-if-error` | for this long, if the origin fails or answers 500, 502, 503 or 504 |
//! | the origin cannot be reached and says none of these | for as long as the operator says |

use http::StatusCode;

use super::age::current_age_ms;
use super::cache_control::{RequestDirectives, ResponseDirectives};
use super::cache_status::ForwardReason;

/// The facts about a stored response on which the decision depends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoredFacts {
    /// The time at which the response was received, in Unix milliseconds.
    pub response_ms: u64,
    /// The response's age when it was received, in milliseconds.
    pub initial_age_ms: u64,
    /// The response's freshness lifetime, in milliseconds.
    pub lifetime_ms: u64,
    /// The time after its lifetime in which the response may be served while it is being validated, in seconds.
    pub while_revalidate_s: u32,
    /// The time after its lifetime in which the response may be served if the origin fails, in seconds; `None` without
    /// `stale-if-error`.
    pub if_error_s: Option<u32>,
    /// Whether the response must never be served without validation.
    pub no_cache: bool,
    /// Whether the response must never be served stale.
    pub forbids_stale: bool,
}

impl StoredFacts {
    /// Gathers the facts.
    pub fn new(
        response_ms: u64,
        initial_age_ms: u64,
        lifetime_ms: u64,
        directives: &ResponseDirectives,
    ) -> StoredFacts {
        let seconds = |seconds: u64| u32::try_from(seconds).unwrap_or(u32::MAX);
        StoredFacts {
            response_ms,
            initial_age_ms,
            lifetime_ms,
            while_revalidate_s: directives.stale_while_revalidate.map_or(0, seconds),
            if_error_s: directives.stale_if_error.map(seconds),
            no_cache: directives.no_cache,
            forbids_stale: directives.forbids_stale(),
        }
    }

    /// The facts about a response that was softly purged at `purged_s`, in Unix seconds: its lifetime ended then, if it
    /// had not ended before. A time in the future, from before the clock was set back, counts as now.
    pub fn purged_at(self, purged_s: u32, now_ms: u64) -> StoredFacts {
        let age_ms = self.age_ms((u64::from(purged_s) * 1000).min(now_ms));
        StoredFacts { lifetime_ms: self.lifetime_ms.min(age_ms), ..self }
    }

    /// The response's age at `now_ms`, in milliseconds.
    pub fn age_ms(&self, now_ms: u64) -> u64 {
        current_age_ms(self.initial_age_ms, self.response_ms, now_ms)
    }

    /// The response's age and its remaining lifetime at `now_ms`, in milliseconds. The remaining lifetime of a stale
    /// response is zero or negative.
    fn age_and_ttl_ms(&self, now_ms: u64) -> (u64, i64) {
        let age_ms = self.age_ms(now_ms);
        (age_ms, self.lifetime_ms as i64 - age_ms.min(i64::MAX as u64) as i64)
    }
}

/// The decision about a stored response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServeVerdict {
    /// Serve the response: it is fresh, or the request allows a stale response.
    Serve {
        /// Its age, in seconds.
        age_s: u64,
        /// The remaining lifetime of the response in seconds; negative if it is stale.
        ttl_s: i64,
    },
    /// Serve the stale response, and validate it with the origin, so that the next request finds a fresh response.
    ServeAndValidate {
        /// Its age, in seconds.
        age_s: u64,
        /// The remaining lifetime in seconds; zero or negative, because the response is stale.
        ttl_s: i64,
    },
    /// Validate the response with the origin first, for this reason.
    Validate(ForwardReason),
}

/// How an origin failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OriginFailure {
    /// The origin could not be reached, or did not answer.
    Unreachable,
    /// The origin answered with an error or with an invalid response.
    Error,
}

impl OriginFailure {
    /// The failure that a status means according to `stale-if-error` (RFC 5861, 4); `None` if the status is no failure.
    pub fn of(status: StatusCode) -> Option<OriginFailure> {
        matches!(status.as_u16(), 500 | 502 | 503 | 504).then_some(OriginFailure::Error)
    }
}

/// Decides about a stored response at `now_ms`.
pub fn decide(stored: &StoredFacts, request: &RequestDirectives, now_ms: u64) -> ServeVerdict {
    let (age_ms, ttl_ms) = stored.age_and_ttl_ms(now_ms);
    let (age_s, ttl_s) = (age_ms / 1000, ttl_ms / 1000);
    if stored.no_cache {
        return ServeVerdict::Validate(ForwardReason::Stale);
    }
    if is_demanding(request, age_ms, ttl_ms) {
        return ServeVerdict::Validate(ForwardReason::Request);
    }
    if ttl_ms > 0 {
        return ServeVerdict::Serve { age_s, ttl_s };
    }
    let is_within = |seconds: u64| is_stale_within(stored, request, ttl_ms, seconds);
    if request.max_stale.is_some_and(is_within) {
        return ServeVerdict::Serve { age_s, ttl_s };
    }
    if stored.while_revalidate_s > 0 && is_within(u64::from(stored.while_revalidate_s)) {
        return ServeVerdict::ServeAndValidate { age_s, ttl_s };
    }
    ServeVerdict::Validate(ForwardReason::Stale)
}

/// Decides about a stored response that could not be validated because the origin failed. If it may be served anyway,
/// returns its age and its remaining lifetime in seconds, as in [`ServeVerdict::Serve`].
///
/// `unreachable_s` is the time, in seconds, for which a response without `stale-if-error` may have been stale if the
/// origin cannot be reached.
pub fn decide_on_failure(
    stored: &StoredFacts,
    request: &RequestDirectives,
    now_ms: u64,
    failure: OriginFailure,
    unreachable_s: u64,
) -> Option<(u64, i64)> {
    let (age_ms, ttl_ms) = stored.age_and_ttl_ms(now_ms);
    if stored.no_cache || is_demanding(request, age_ms, ttl_ms) {
        return None;
    }
    let response_s = match (stored.if_error_s, failure) {
        (Some(seconds), _) => u64::from(seconds),
        (None, OriginFailure::Unreachable) => unreachable_s,
        (None, OriginFailure::Error) => 0,
    };
    let seconds = response_s.max(request.stale_if_error.unwrap_or(0));
    (seconds > 0 && is_stale_within(stored, request, ttl_ms, seconds)).then_some((age_ms / 1000, ttl_ms / 1000))
}

/// Whether a request demands a fresher response than one with this age and this remaining lifetime, even if that
/// response is fresh.
fn is_demanding(request: &RequestDirectives, age_ms: u64, ttl_ms: i64) -> bool {
    let min_fresh_ms = request.min_fresh.unwrap_or(0).saturating_mul(1000).min(i64::MAX as u64) as i64;
    request.no_cache
        || request.max_age.is_some_and(|max_age_s| age_ms > max_age_s.saturating_mul(1000))
        || (request.max_age == Some(0) && request.max_stale.is_none())
        || (ttl_ms > 0 && ttl_ms < min_fresh_ms)
}

/// Whether a stale response may be served: neither the origin nor the request forbids it, and the response is at most
/// `seconds` beyond its lifetime.
fn is_stale_within(stored: &StoredFacts, request: &RequestDirectives, ttl_ms: i64, seconds: u64) -> bool {
    !stored.forbids_stale
        && request.min_fresh.unwrap_or(0) == 0
        && ttl_ms.unsigned_abs() <= seconds.saturating_mul(1000)
}

#[cfg(test)]
mod tests {
    use super::super::headers;
    use super::*;

    #[test]
    fn soft_purge_ends_the_lifetime() {
        const THEN_MS: u64 = 1_000_000_000_000;
        let stored = StoredFacts {
            response_ms: THEN_MS,
            initial_age_ms: 5000,
            lifetime_ms: 60_000,
            while_revalidate_s: 30,
            ..StoredFacts::default()
        };
        let decided = |purged_s: u64, after_s: u64| {
            let now_ms = THEN_MS + after_s * 1000;
            let purged = stored.purged_at((THEN_MS / 1000 + purged_s) as u32, now_ms);
            decide(&purged, &RequestDirectives::default(), now_ms)
        };
        assert_eq!(decided(10, 10), ServeVerdict::ServeAndValidate { age_s: 15, ttl_s: 0 });
        assert_eq!(decided(10, 40), ServeVerdict::ServeAndValidate { age_s: 45, ttl_s: -30 });
        assert_eq!(decided(10, 41), ServeVerdict::Validate(ForwardReason::Stale));
        // Its lifetime had ended before, its clock was set back, or it was received after the purge.
        assert_eq!(decided(70, 71), ServeVerdict::ServeAndValidate { age_s: 76, ttl_s: -16 });
        assert_eq!(decided(100, 10), ServeVerdict::ServeAndValidate { age_s: 15, ttl_s: 0 });
        let early = stored.purged_at((THEN_MS / 1000 - 100) as u32, THEN_MS);
        assert_eq!(early.lifetime_ms, 5000);
    }

    #[test]
    fn request_and_response_both_decide() {
        let serve = |age_s, ttl_s| ServeVerdict::Serve { age_s, ttl_s };
        let behind = |age_s, ttl_s| ServeVerdict::ServeAndValidate { age_s, ttl_s };
        let stale = ServeVerdict::Validate(ForwardReason::Stale);
        let asked = ServeVerdict::Validate(ForwardReason::Request);
        // Each row has the request's `NameCache-Control`, the response's `NameCache-Control`, the age in seconds, and the
        // verdict.
        let table: &[(&str, &str, u64, ServeVerdict)] = &[
            ("", "max-age=10", 0, serve(0, 10)),
            ("", "max-age=10", 9, serve(9, 1)),
            ("", "max-age=10", 10, stale),
            ("", "max-age=10, no-cache", 0, stale),
            ("no-cache", "max-age=10", 0, asked),
            ("max-age=0", "max-age=10", 0, asked),
            ("max-age=5", "max-age=10", 5, serve(5, 5)),
            ("max-age=5", "max-age=10", 6, asked),
            ("min-fresh=5", "max-age=10", 5, serve(5, 5)),
            ("min-fresh=5", "max-age=10", 6, asked),
            ("max-stale=5", "max-age=10", 15, serve(15, -5)),
            ("max-stale=5", "max-age=10", 16, stale),
            ("max-stale", "max-age=10", 1_000_000, serve(1_000_000, -999_990)),
            ("max-stale", "max-age=10, must-revalidate", 11, stale),
            ("max-stale", "max-age=10, proxy-revalidate", 11, stale),
            ("max-stale", "s-maxage=10", 11, stale),
            ("max-stale, min-fresh=1", "max-age=10", 11, stale),
            ("max-stale, max-age=3", "max-age=10", 11, asked),
            ("no-store", "max-age=10", 3, serve(3, 7)),
            ("min-fresh=99999999999999999999", "max-age=10", 3, asked),
            ("", "max-age=10, stale-while-revalidate=5", 9, serve(9, 1)),
            ("", "max-age=10, stale-while-revalidate=5", 10, behind(10, 0)),
            ("", "max-age=10, stale-while-revalidate=5", 15, behind(15, -5)),
            ("", "max-age=10, stale-while-revalidate=5", 16, stale),
            ("", "max-age=10, stale-while-revalidate=0", 10, stale),
            ("", "max-age=10, stale-while-revalidate=5, must-revalidate", 11, stale),
            ("", "max-age=10, stale-while-revalidate=5, no-cache", 11, stale),
            ("", "s-maxage=10, stale-while-revalidate=5", 11, stale),
            ("max-stale=5", "max-age=10, stale-while-revalidate=5", 11, serve(11, -1)),
            ("no-cache", "max-age=10, stale-while-revalidate=5", 11, asked),
            ("max-age=5", "max-age=10, stale-while-revalidate=5", 11, asked),
            ("min-fresh=1", "max-age=10, stale-while-revalidate=5", 11, stale),
            ("", "max-age=10, stale-if-error=5", 11, stale),
        ];
        for (request, response, age_s, expected) in table {
            let (stored, directives) = facts(request, response);
            let found = decide(&stored, &directives, 1_000_000 + age_s * 1000);
            assert_eq!(found, *expected, "{request:?} against {response:?} at {age_s}");
        }
    }

    fn facts(request: &str, response: &str) -> (StoredFacts, RequestDirectives) {
        let response = ResponseDirectives::parse(&headers(&[("cache-control", response)]));
        let lifetime_ms = response.s_maxage.or(response.max_age).unwrap_or(0) * 1000;
        let request = RequestDirectives::parse(&headers(&[("cache-control", request)]));
        (StoredFacts::new(1_000_000, 0, lifetime_ms, &response), request)
    }

    #[test]
    fn stale_serves_on_failure_unless_forbidden() {
        use OriginFailure::{Error, Unreachable};
        // Each row has the request's `NameCache-Control`, the response's `NameCache-Control`, the age in seconds, the failure,
        // and whether the response is served.
        let table: &[(&str, &str, u64, OriginFailure, bool)] = &[
            ("", "max-age=10", 11, Unreachable, true),
            ("", "max-age=10", 110, Unreachable, true),
            ("", "max-age=10", 111, Unreachable, false),
            ("", "max-age=10", 11, Error, false),
            ("", "max-age=10, stale-if-error=5", 15, Error, true),
            ("", "max-age=10, stale-if-error=5", 16, Error, false),
            ("", "max-age=10, stale-if-error=5", 15, Unreachable, true),
            ("", "max-age=10, stale-if-error=5", 16, Unreachable, false),
            ("", "max-age=10, stale-if-error=0", 11, Unreachable, false),
            ("stale-if-error=5", "max-age=10", 15, Error, true),
            ("stale-if-error=5", "max-age=10", 16, Error, false),
            ("", "max-age=10, must-revalidate", 11, Unreachable, false),
            ("", "max-age=10, proxy-revalidate", 11, Unreachable, false),
            ("", "s-maxage=10", 11, Unreachable, false),
            ("", "max-age=10, no-cache", 11, Unreachable, false),
            ("", "max-age=10, must-revalidate, stale-if-error=5", 11, Error, false),
            ("stale-if-error=5", "max-age=10, must-revalidate", 11, Error, false),
            ("no-cache", "max-age=10", 11, Unreachable, false),
            ("no-cache", "max-age=10, stale-if-error=5", 11, Error, false),
            ("max-age=5", "max-age=10", 11, Unreachable, false),
            ("min-fresh=5", "max-age=10", 11, Unreachable, false),
        ];
        for (request, response, age_s, failure, expected) in table {
            let (stored, directives) = facts(request, response);
            let found = decide_on_failure(&stored, &directives, 1_000_000 + age_s * 1000, *failure, 100);
            let expected = expected.then_some((*age_s, 10 - *age_s as i64));
            assert_eq!(found, expected, "{request:?} against {response:?} at {age_s}, {failure:?}");
        }
        for (status, expected) in [(500, true), (501, false), (502, true), (503, true), (504, true), (599, false)] {
            assert_eq!(
                OriginFailure::of(StatusCode::from_u16(status).expect("a status")).is_some(),
                expected,
                "{status}"
            );
        }
    }
}
