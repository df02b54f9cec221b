//! A request for a range whose fetch, which was to fill the store, got a response that is not stored.
//!
//! Owns: sparing the client and the origin the rest of that response. A fetch for the store requests the whole
//! response, because a range cannot be stored. When the response's head says that it is not stored, there are three
//! ways:
//! - a range that begins near the start is cut out of the running body, whose rest is not read;
//! - for any other range, the fetch is given up, and the request is repeated once with the client's own headers, if the
//!   origin says that it serves ranges or the body is long;
//! - otherwise the response is passed on as it is, as one to which the range does not apply: another status than 200, or
//!   an `If-Range` that does not hold.
//!
//! The answer goes only to the requesting client. Other clients that wait for the fetch send their own requests, and
//! later requests go to the origin at once (`hit_for_miss`). *Source*: RFC 9110, 13.1.5, 14.2 and 15.3.7.

use std::ops::Range;

use http::header::ACCEPT_RANGES;
use http::{HeaderMap, Method, Response, StatusCode};
use hyper::body::{Body, Incoming};

use super::pass::{self, UnstoredReason};
use super::peers::ask_alone;
use super::reply::failed;
use super::request::ClientRequest;
use crate::body::ReplyBody;
use crate::rules::cache_status::{CacheStatus, ForwardReason};
use crate::rules::conditional::if_range_holds;
use crate::rules::range::{RequestedRange, wanted};
use crate::upstream::ConnectionLease;

/// The greatest start of a range that is cut out of the running body. About as many bytes are on their way already.
const SKIPPED_BYTES_MAX: u64 = 64 * 1024;

/// A longer body is requested as a range even if the origin does not say whether it serves ranges. *Units*: bytes.
const LONG_BYTES: u64 = 1 << 20;

/// The way to answer a request with a response that is not stored.
#[derive(Debug, PartialEq, Eq)]
enum PartialAnswer {
    /// The response is passed on as it is.
    Whole,
    /// These bytes of the body are passed on; the number is the length of the whole body.
    Part(Range<u64>, u64),
    /// The response is dropped, and the request goes to the origin with its range.
    Repeat,
}

/// Answers the request that began a fetch with the fetch's response, which is not stored.
pub(super) async fn answer(
    request: ClientRequest,
    response: Response<Incoming>,
    lease: ConnectionLease,
    why: ForwardReason,
    size: UnstoredReason,
) -> Response<ReplyBody> {
    let body_bytes = response.body().size_hint().exact();
    let has_range = request.features.has_range && request.method == Method::GET && response.status() == StatusCode::OK;
    let way = if has_range {
        way(&request.headers, request.features.is_conditional, response.headers(), body_bytes)
    } else {
        PartialAnswer::Whole
    };
    match way {
        PartialAnswer::Whole => pass::forward(request, response, lease, why, size),
        PartialAnswer::Part(range, size_bytes) => {
            pass::forward_part(request, response, lease, why, size, Some((range, size_bytes)))
        }
        PartialAnswer::Repeat => {
            // This ends the connection to the origin, with the rest of the body.
            drop((response, lease));
            match ask_alone(&request).await {
                Ok((response, lease)) => pass::forward(request, response, lease, why, size),
                Err(error) => {
                    let unanswered = CacheStatus::Forwarded { why, status: None, stored: false, collapsed: false };
                    failed(&request, &error, unanswered)
                }
            }
        }
    }
}

/// The way for a GET with a range whose response has status 200 and `headers`.
fn way(request: &HeaderMap, is_conditional: bool, headers: &HeaderMap, body_bytes: Option<u64>) -> PartialAnswer {
    if !if_range_holds(request, headers) {
        return PartialAnswer::Whole;
    }
    // Without `Accept-Ranges` only a long body is requested twice, because the origin may compute it each time.
    let is_repeatable = match headers.get(ACCEPT_RANGES) {
        Some(unit) if unit == "none" => false,
        Some(_) => body_bytes.is_none_or(|bytes| bytes > SKIPPED_BYTES_MAX),
        None => body_bytes.is_some_and(|bytes| bytes > LONG_BYTES),
    };
    let otherwise = if is_repeatable { PartialAnswer::Repeat } else { PartialAnswer::Whole };
    match (wanted(request, body_bytes.unwrap_or(u64::MAX)), body_bytes) {
        (RequestedRange::Whole, _) => PartialAnswer::Whole,
        (RequestedRange::Part(range), None) if range == (0..u64::MAX) => PartialAnswer::Whole,
        // The origin evaluates the conditions before the range.
        _ if is_conditional => otherwise,
        (RequestedRange::Part(range), Some(size_bytes))
            if range.start <= SKIPPED_BYTES_MAX || (!is_repeatable && size_bytes <= LONG_BYTES) =>
        {
            PartialAnswer::Part(range, size_bytes)
        }
        _ => otherwise,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::headers;

    #[test]
    fn only_near_range_uses_running_body() {
        const LONG: Option<u64> = Some(1 << 30);
        let part = |range: Range<u64>| PartialAnswer::Part(range, 1 << 30);
        // Each row has the request's `Range`, its `If-Range`, the response's `Accept-Ranges`, its length, and the way.
        let short = |range: Range<u64>| PartialAnswer::Part(range, 100_000);
        let table = [
            ("bytes=0-9", "", "", LONG, part(0..10)),
            ("bytes=0-", "", "", LONG, part(0..1 << 30)),
            ("bytes=65536-65536", "", "", LONG, part(65536..65537)),
            ("bytes=65537-65537", "", "", LONG, PartialAnswer::Repeat),
            ("bytes=-1", "", "", LONG, PartialAnswer::Repeat),
            ("bytes=0-1,5-6", "", "", LONG, PartialAnswer::Repeat),
            ("bytes=1073741824-", "", "", LONG, PartialAnswer::Repeat),
            ("bytes=0-9", "", "bytes", None, PartialAnswer::Repeat),
            ("bytes=0-9", "", "", None, PartialAnswer::Whole),
            ("bytes=0-", "", "bytes", None, PartialAnswer::Whole),
            ("lines=0-9", "", "", LONG, PartialAnswer::Whole),
            ("bytes=9-0", "", "", None, PartialAnswer::Whole),
            ("bytes=65537-", "\"a\"", "", LONG, PartialAnswer::Repeat),
            ("bytes=0-9", "\"a\"", "", LONG, part(0..10)),
            ("bytes=0-9", "\"b\"", "", LONG, PartialAnswer::Whole),
            ("bytes=-1", "", "", Some(100_000), short(99_999..100_000)),
            ("bytes=-1", "", "none", Some(100_000), short(99_999..100_000)),
            ("bytes=-1", "", "bytes", Some(100_000), PartialAnswer::Repeat),
            ("bytes=500-", "", "bytes", Some(100), PartialAnswer::Whole),
            ("bytes=0-1,5-6", "", "bytes", Some(100), PartialAnswer::Whole),
            ("bytes=-1", "", "none", LONG, PartialAnswer::Whole),
            ("bytes=0-9", "", "none", LONG, part(0..10)),
            ("bytes=0-1,5-6", "", "none", LONG, PartialAnswer::Whole),
            ("bytes=0-9", "", "none", None, PartialAnswer::Whole),
        ];
        for (range, if_range, accepted, length, expected) in table {
            let mut request = headers(&[("range", range)]);
            if !if_range.is_empty() {
                request.extend(headers(&[("if-range", if_range)]));
            }
            let mut response = headers(&[("etag", "\"a\"")]);
            if !accepted.is_empty() {
                response.extend(headers(&[("accept-ranges", accepted)]));
            }
            assert_eq!(way(&request, false, &response, length), expected, "{range} {if_range} {accepted} {length:?}");
        }
        let conditional =
            |headers: &HeaderMap, length| way(&crate::rules::headers(&[("range", "bytes=0-9")]), true, headers, length);
        assert_eq!(conditional(&headers(&[]), LONG), PartialAnswer::Repeat);
        assert_eq!(conditional(&headers(&[]), Some(100)), PartialAnswer::Whole);
        assert_eq!(conditional(&headers(&[("accept-ranges", "none")]), LONG), PartialAnswer::Whole);
    }
}
