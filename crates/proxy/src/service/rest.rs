//! The rest of a stored body whose store no longer has it.
//!
//! Owns: the request for the rest, and the check that its response continues the same representation. A body that is
//! read from the disk can lose its rest in three ways: its oldest part is overwritten, the device fails, or the process
//! has given the store up to the next one. The response's head has been sent by then, so without the rest the
//! connection must end. *Source*: RFC 9110, 13.1.5, 14.4 and 15.3.7.

use std::ops::Range;

use http::header::{CONTENT_ENCODING, CONTENT_RANGE, DATE, ETAG, IF_RANGE, LAST_MODIFIED, RANGE};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};

use super::reply::content_range;
use super::request::ClientRequest;
use crate::body::{BodyError, Resume};
use crate::rules::parse_date_s;
use crate::stored::response::StoredResponse;
use crate::upstream::{RequestBody, exchange, pieces};

/// A way to get the rest of the response that answers a request; `None` if nothing can prove that the origin's rest
/// continues it.
pub(super) fn of(request: &ClientRequest, stored: &StoredResponse, size_bytes: u64) -> Option<Resume> {
    if request.method != Method::GET || stored.head.status != StatusCode::OK {
        return None;
    }
    let (Some(to), mut head) = request.upstream() else { return None };
    let stored = stored.headers();
    let condition = strong_validator(&stored)?;
    head.ask_for_all();
    head.headers.insert(IF_RANGE, condition);
    let worker = request.worker.clone();
    Some(Box::new(move |range: Range<u64>| {
        Box::pin(async move {
            let text = format!("bytes={}-{}", range.start, range.end.saturating_sub(1));
            head.headers.insert(RANGE, HeaderValue::try_from(text).expect("digits and punctuation"));
            let asked = exchange(&worker.upstream, &to, head, RequestBody::Empty, &|_| {}).await;
            let (response, lease) = asked.map_err(|error| BodyError(error.to_string()))?;
            if !continues(&response, &stored, &range, size_bytes) {
                return Err(BodyError("the store no longer has the rest, and the origin has another body now".into()));
            }
            worker.stats.resumed.add(1);
            Ok(pieces(response.into_body(), lease))
        })
    }))
}

/// The entity tag if it is strong, else the modification date if it is a strong validator.
fn strong_validator(headers: &HeaderMap) -> Option<HeaderValue> {
    if let Some(tag) = headers.get(ETAG) {
        return tag.as_bytes().starts_with(b"\"").then(|| tag.clone());
    }
    let modified = headers.get(LAST_MODIFIED)?;
    let is_strong = headers.get(DATE).and_then(parse_date_s)? > parse_date_s(modified)?;
    is_strong.then(|| modified.clone())
}

/// Whether a response has exactly this range of the stored representation.
fn continues<B>(response: &Response<B>, stored: &HeaderMap, range: &Range<u64>, size_bytes: u64) -> bool {
    let headers = response.headers();
    // A `206` need not repeat the modification date if it has an entity tag.
    let is_same = |name| headers.get(&name).is_none_or(|value| stored.get(&name) == Some(value));
    response.status() == StatusCode::PARTIAL_CONTENT
        && headers.get(CONTENT_RANGE) == Some(&content_range(range, size_bytes))
        && is_same(ETAG)
        && is_same(LAST_MODIFIED)
        && is_same(CONTENT_ENCODING)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::headers;

    const EARLY: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const LATE: &str = "Sun, 06 Nov 1994 09:49:37 GMT";

    #[test]
    fn only_strong_validators_ask_for_the_rest() {
        type Lines<'a> = &'a [(&'a str, &'a str)];
        let table: [(Lines, Option<&str>); 5] = [
            (&[("etag", "\"a\"")], Some("\"a\"")),
            (&[("etag", "W/\"a\""), ("last-modified", EARLY), ("date", LATE)], None),
            (&[("last-modified", EARLY), ("date", LATE)], Some(EARLY)),
            (&[("last-modified", EARLY), ("date", EARLY)], None),
            (&[], None),
        ];
        for (lines, expected) in table {
            let found = strong_validator(&headers(lines));
            assert_eq!(found.as_ref().and_then(|value| value.to_str().ok()), expected, "{lines:?}");
        }
    }

    #[test]
    fn another_representation_does_not_continue() {
        let stored = headers(&[("etag", "\"a\""), ("last-modified", EARLY)]);
        let check = |status: u16, lines: &[(&str, &str)]| {
            let mut response = Response::new(());
            *response.status_mut() = StatusCode::from_u16(status).expect("a status");
            *response.headers_mut() = headers(lines);
            continues(&response, &stored, &(5..10), 10)
        };
        assert!(check(206, &[("content-range", "bytes 5-9/10"), ("etag", "\"a\"")]));
        assert!(check(206, &[("content-range", "bytes 5-9/10")]));
        assert!(!check(200, &[("etag", "\"a\"")]));
        for wrong in ["bytes 4-9/10", "bytes 5-8/10", "bytes 5-9/11", "bytes 5-9/*"] {
            assert!(!check(206, &[("content-range", wrong)]), "{wrong}");
        }
        assert!(!check(206, &[("content-range", "bytes 5-9/10"), ("etag", "\"b\"")]));
        assert!(!check(206, &[("content-range", "bytes 5-9/10"), ("last-modified", LATE)]));
        assert!(!check(206, &[("content-range", "bytes 5-9/10"), ("content-encoding", "gzip")]));
    }
}
