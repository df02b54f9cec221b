//! The rules of HTTP caching as pure functions: they take requests, responses and the time, and return decisions.
//!
//! They do no I/O and read no clock. Only the boundary of a multipart response is random. Times are Unix milliseconds
//! and durations are milliseconds unless a name says otherwise; `Age`, `max-age` and similar values are seconds on the
//! wire. *Source*: RFC 5861, 9110, 9111, 9112, 9211, 9213, 9651, 9875.

pub mod age;
pub mod cache_control;
pub mod cache_status;
pub mod conditional;
pub mod cookies;
pub mod default_ttl;
pub mod freshness;
pub mod hop;
pub mod invalidate;
pub mod key;
pub mod multipart;
pub mod origin;
pub mod policy;
pub mod range;
pub mod serve;
pub mod storable;
pub mod syntax;
pub mod tags;
pub mod targeted;
pub mod update;
pub mod vary;

pub use origin::{forwarded, key_headers};
pub use syntax::date::parse_date_s;
pub use syntax::{host, list, structured};

#[cfg(test)]
pub(crate) fn headers(lines: &[(&str, &str)]) -> http::HeaderMap {
    let mut map = http::HeaderMap::new();
    for (name, value) in lines {
        map.append(
            http::HeaderName::from_bytes(name.as_bytes()).expect("a header name"),
            http::HeaderValue::from_str(value).expect("a header value"),
        );
    }
    map
}
