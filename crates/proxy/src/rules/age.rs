//! How old a response is.
//!
//! Owns: the calculation of RFC 9111, 4.2.3, from a response's `Age` and `Date` and the times at which it was requested
//! and received.

use http::HeaderMap;
use http::header::{AGE, DATE};

use super::cache_control::delta_seconds;
use super::list::ListMembers;
use super::parse_date_s;

/// The times at which a response was requested and received, in Unix milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExchangeTimes {
    /// The time at which the request was sent.
    pub request_ms: u64,
    /// The time at which the response's head had arrived.
    pub response_ms: u64,
}

/// The age that a response had when it was received, in milliseconds.
///
/// `Date` has whole seconds, so the time of the response is rounded down to whole seconds before `Date` is subtracted
/// from it. If there are several `Age` values, the first one counts. An `Age` that is not a number is ignored.
pub fn corrected_initial_age_ms(headers: &HeaderMap, times: ExchangeTimes) -> u64 {
    let response_s = times.response_ms / 1000;
    let apparent_s = headers.get(DATE).and_then(parse_date_s).map_or(0, |date_s| response_s.saturating_sub(date_s));
    let delay_ms = times.response_ms.saturating_sub(times.request_ms);
    let age_s =
        headers.get(AGE).and_then(|value| delta_seconds(ListMembers::new(value.as_bytes()).next())).unwrap_or(0);
    (apparent_s * 1000).max((age_s * 1000).saturating_add(delay_ms))
}

/// The age at `now_ms`, in milliseconds, of a response received at `response_ms` with `initial_age_ms`.
pub fn current_age_ms(initial_age_ms: u64, response_ms: u64, now_ms: u64) -> u64 {
    initial_age_ms.saturating_add(now_ms.saturating_sub(response_ms))
}

#[cfg(test)]
mod tests {
    use super::super::headers;
    use super::*;

    // Sun, 06 Nov 1994 08:49:37 GMT
    const DATE_MS: u64 = 784_111_777_000;
    const DATE_TEXT: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

    /// The initial age is the greater of the apparent and the claimed age.
    #[test]
    fn initial_age_is_greater_age() {
        type Lines<'a> = &'a [(&'a str, &'a str)];
        let table: &[(Lines, u64, u64, u64)] = &[
            // Each row has the response's headers, the times of request and response in milliseconds, and the expected
            // age in milliseconds.
            (&[], 0, 0, 0),
            (&[("date", DATE_TEXT)], 0, 999, 999),
            (&[("date", DATE_TEXT)], 5000, 5999, 5000),
            (&[("date", DATE_TEXT), ("age", "10")], 5000, 5500, 10_500),
            (&[("date", DATE_TEXT), ("age", "2")], 5000, 5500, 5000),
            (&[("age", "7")], 0, 2000, 9000),
            (&[("age", "7, 100")], 0, 0, 7000),
            (&[("age", "7"), ("age", "100")], 0, 0, 7000),
            (&[("age", "-7")], 0, 0, 0),
            (&[("age", "x")], 0, 0, 0),
            (&[("date", "nonsense"), ("age", "3")], 0, 0, 3000),
            (&[("age", "99999999999999999999")], 0, 0, (1 << 31) * 1000),
        ];
        for (lines, request, response, expected) in table {
            let times = ExchangeTimes { request_ms: DATE_MS + request, response_ms: DATE_MS + response };
            assert_eq!(corrected_initial_age_ms(&headers(lines), times), *expected, "{lines:?}");
        }
    }

    #[test]
    fn age_never_decreases() {
        assert_eq!(current_age_ms(500, 1000, 4000), 3500);
        assert_eq!(current_age_ms(500, 4000, 1000), 500);
    }
}
