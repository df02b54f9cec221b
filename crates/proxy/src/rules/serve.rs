//! Whether a stored response may answer a request as it is.
//!
//! Owns: RFC 9111, 4, 4.2.4 and 5.2.1: fresh, allowed stale, or to be validated first. `only-if-cached` and what to do
//! when there is nothing stored are the caller's.

use super::age::current_age_ms;
use super::cache_control::{RequestDirectives, ResponseDirectives};
use super::cache_status::Forward;

/// What of a stored response matters for the decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stored {
    /// When it was received, Unix milliseconds.
    pub response_ms: u64,
    /// Its age when it was received, in milliseconds.
    pub initial_age_ms: u64,
    /// Its freshness lifetime, in milliseconds.
    pub lifetime_ms: u64,
    /// Never without validation.
    pub no_cache: bool,
    /// Never stale.
    pub forbids_stale: bool,
}

impl Stored {
    /// Gathers the facts.
    pub fn new(response_ms: u64, initial_age_ms: u64, lifetime_ms: u64, directives: &ResponseDirectives) -> Stored {
        Stored {
            response_ms,
            initial_age_ms,
            lifetime_ms,
            no_cache: directives.no_cache,
            forbids_stale: directives.forbids_stale(),
        }
    }

    /// Its age at `now_ms`, in milliseconds.
    pub fn age_ms(&self, now_ms: u64) -> u64 {
        current_age_ms(self.initial_age_ms, self.response_ms, now_ms)
    }
}

/// What to do with a stored response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Serve it. Where it is stale, the request allows that.
    Serve {
        /// Its age, in seconds.
        age_s: u64,
        /// How long it stays fresh, in seconds; negative when stale.
        ttl_s: i64,
    },
    /// Ask the origin first, for this reason.
    Validate(Forward),
}

/// Decides about a stored response at `now_ms`.
pub fn decide(stored: &Stored, request: &RequestDirectives, now_ms: u64) -> Verdict {
    let age_ms = stored.age_ms(now_ms);
    let age_s = age_ms / 1000;
    let ttl_ms = stored.lifetime_ms as i64 - age_ms.min(i64::MAX as u64) as i64;
    if stored.no_cache {
        return Verdict::Validate(Forward::Stale);
    }
    if request.no_cache || request.max_age.is_some_and(|max_age_s| age_ms > max_age_s.saturating_mul(1000)) {
        return Verdict::Validate(Forward::Request);
    }
    if request.max_age == Some(0) && request.max_stale.is_none() {
        return Verdict::Validate(Forward::Request);
    }
    let min_fresh_ms = request.min_fresh.unwrap_or(0).saturating_mul(1000).min(i64::MAX as u64) as i64;
    if ttl_ms > 0 {
        if ttl_ms < min_fresh_ms {
            return Verdict::Validate(Forward::Request);
        }
        return Verdict::Serve { age_s, ttl_s: ttl_ms / 1000 };
    }
    match request.max_stale {
        Some(max_stale_s)
            if !stored.forbids_stale
                && min_fresh_ms == 0
                && ttl_ms.unsigned_abs() <= max_stale_s.saturating_mul(1000) =>
        {
            Verdict::Serve { age_s, ttl_s: ttl_ms / 1000 }
        }
        _ => Verdict::Validate(Forward::Stale),
    }
}

#[cfg(test)]
mod tests {
    use super::super::headers;
    use super::*;

    #[test]
    fn requests_and_responses_both_have_a_say() {
        let serve = |age_s, ttl_s| Verdict::Serve { age_s, ttl_s };
        let stale = Verdict::Validate(Forward::Stale);
        let asked = Verdict::Validate(Forward::Request);
        // request's cache-control, response's cache-control, age in seconds
        let table: &[(&str, &str, u64, Verdict)] = &[
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
        ];
        for (request, response, age_s, expected) in table {
            let response = ResponseDirectives::parse(&headers(&[("cache-control", response)]));
            let lifetime_ms = response.s_maxage.or(response.max_age).unwrap_or(0) * 1000;
            let stored = Stored::new(1_000_000, 0, lifetime_ms, &response);
            let request_directives = RequestDirectives::parse(&headers(&[("cache-control", request)]));
            let found = decide(&stored, &request_directives, 1_000_000 + age_s * 1000);
            assert_eq!(found, *expected, "{request:?} against {response:?} at {age_s}");
        }
    }
}
