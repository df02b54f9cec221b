//! The rest of a stored body whose store no longer gives it.
//!
//! Owns: the request for the rest, and the check that its response continues the same representation. A body that is
//! read from the store can lose its rest at any byte (`pieces`). The response's head has been sent by then, so without
//! the rest the connection must end. The rest is believed only with the strong validator of the stored response, its
//! exact range and its exact length; whatever else the origin answers ends the connection, and so does a failure in the
//! middle of the rest. The origin is asked in the words of the fetch that filled the store. Of a body that is stored in
//! parts, whatever is not stored can be requested so. *Source*: RFC 9110, 8.8.2.2, 13.1.5, 14.4 and 15.3.7.

use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    CONTENT_ENCODING, CONTENT_RANGE, CONTENT_TYPE, DATE, ETAG, HeaderName, IF_RANGE, LAST_MODIFIED, RANGE,
};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use hyper::body::Body;
use nectary_host::log::{LogLevel, LogThrottle};
use nectary_store::StoredObject;

use super::reply::content_range;
use super::request::ClientRequest;
use crate::pieces::{BodyError, LostRange, Pieces, Resume, exactly};
use crate::rules::parse_date_s;
use crate::stats::{AskedUrl, WorkerStats};
use crate::stored::response::ObjectView;
use crate::upstream::{Destination, RequestBody, RequestHead, exchange, pieces};
use crate::worker::ProxyWorker;

/// Limits how often it is logged that a body goes on from the origin. A silent disk interrupts many.
static RESUMED: LogThrottle = LogThrottle::every(Duration::from_secs(60));

/// Limits how often it is logged that a body was cut off.
static CUT_OFF: LogThrottle = LogThrottle::every(Duration::from_secs(60));

/// Where the head of the stored response is.
pub(super) enum StoredHead {
    Object(StoredObject),
    Metadata(Bytes),
}

/// What the rest of a response needs, should it be lost. Few are, so nothing is made of it before.
struct ResponseRest {
    request: ClientRequest,
    kept: StoredHead,
    /// The length of the whole body, if the kept head is that of a part.
    whole_bytes: Option<u64>,
}

/// A way to get the rest of the stored response that answers a request; `None` if its body is not sent.
pub(super) fn of(request: &ClientRequest, kept: StoredHead) -> Option<Resume> {
    resume(request, kept, None)
}

/// Like [`of`], for a body of this length that is stored in parts. The kept head is that of any part.
pub(super) fn of_parts(request: &ClientRequest, kept: StoredHead, whole_bytes: u64) -> Option<Resume> {
    resume(request, kept, Some(whole_bytes))
}

fn resume(request: &ClientRequest, kept: StoredHead, whole_bytes: Option<u64>) -> Option<Resume> {
    if request.method != Method::GET {
        return None;
    }
    let rest = Rc::new(ResponseRest { request: request.clone(), kept, whole_bytes });
    Some(Rc::new(move |lost| {
        let rest = rest.clone();
        Box::pin(async move { rest.get(lost).await })
    }))
}

/// The request of the fetch for the response to `request`.
pub(super) fn unconditional(request: &ClientRequest) -> Option<(Destination, RequestHead)> {
    let (to, mut head) = request.upstream();
    head.ask_for_all();
    head.accept(&request.headers, &request.route.request_headers);
    Some((to?, head))
}

/// Where the rest of a response is, and what proves that it is the rest of the same one.
struct OriginOfRest {
    worker: Rc<ProxyWorker>,
    to: Destination,
    /// The request for the whole.
    head: RequestHead,
    /// The headers of the response that has begun.
    begun: HeaderMap,
    asked: AskedUrl,
}

impl OriginOfRest {
    fn new(
        worker: &Rc<ProxyWorker>,
        (to, head): (&Destination, &RequestHead),
        begun: HeaderMap,
        asked: AskedUrl,
    ) -> OriginOfRest {
        OriginOfRest { worker: worker.clone(), to: to.clone(), head: head.clone(), begun, asked }
    }

    /// Requests a range of the body. *Errors*: the origin does not have the same body, or does not prove it.
    async fn get(self, range: Range<u64>, size_bytes: u64) -> Result<Pieces, BodyError> {
        let OriginOfRest { worker, to, mut head, begun, asked } = self;
        let validator = strong_validator(&begun).ok_or_else(|| BodyError("it has no strong validator".to_owned()))?.1;
        head.headers.insert(IF_RANGE, validator);
        let text = format!("bytes={}-{}", range.start, range.end - 1);
        head.headers.insert(RANGE, HeaderValue::try_from(text).expect("digits and punctuation"));
        let counted = asked.begin();
        let answered = exchange(&worker.upstream, &to, head, RequestBody::Empty, &|_| {}).await;
        let (response, lease) = answered.map_err(|error| BodyError(error.to_string()))?;
        let lease = lease.of_request(counted);
        if let Some(odd) = difference(&response, &begun, &range, size_bytes) {
            return Err(BodyError(format!("the origin does not have the same body now: {odd}")));
        }
        Ok(exactly(pieces(response.into_body(), lease), range.end - range.start))
    }
}

/// Counts and logs that a body goes on from the origin, or that it is cut off.
pub(super) fn note_rest(stats: &WorkerStats, (url, start, why): (&str, u64, &str), found: &Result<Pieces, BodyError>) {
    match found {
        Ok(_) => {
            stats.resumed.add(1);
            let message = format_args!("{url}: from byte {start} on the body comes from the origin ({why})");
            RESUMED.write(LogLevel::Warning, "proxy", message);
        }
        Err(error) => {
            stats.cut_off.add(1);
            let message = format_args!("{url}: the body is cut off at byte {start} ({why}): {error}");
            CUT_OFF.write(LogLevel::Warning, "proxy", message);
        }
    }
}

impl ResponseRest {
    /// Returns the headers of the stored response, if a range of it can be requested.
    fn stored(&self) -> Option<HeaderMap> {
        let read = |bytes: &Bytes| ObjectView::read(bytes, &self.request.key, &self.request.route.policy);
        let status = if self.whole_bytes.is_some() { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
        let of = |found: &ObjectView| match found {
            ObjectView::Response(stored) if stored.head.status == status => Some(stored.headers()),
            _ => None,
        };
        match &self.kept {
            StoredHead::Object(object) => of(object.decoded(read)),
            StoredHead::Metadata(metadata) => of(&read(metadata)),
        }
    }

    /// Gets lost bytes, counts and logs that, or that the body is cut off.
    async fn get(&self, lost: LostRange) -> Result<Pieces, BodyError> {
        let found = self.find(&lost).await;
        let url = String::from_utf8_lossy(&self.request.key);
        note_rest(&self.request.worker.stats, (&url, lost.start, &lost.why), &found);
        found
    }

    async fn find(&self, lost: &LostRange) -> Result<Pieces, BodyError> {
        let refused = |why: &str| BodyError(why.to_owned());
        let stored = self.stored().ok_or_else(|| refused("it has no strong validator"))?;
        let (to, head) = unconditional(&self.request).ok_or_else(|| refused("it has no origin"))?;
        let size_bytes = self.whole_bytes.or(lost.size_bytes);
        let size_bytes = size_bytes.ok_or_else(|| refused("its length is not known yet"))?;
        let range = lost.start..lost.end.unwrap_or(size_bytes);
        if range.is_empty() || range.end > size_bytes {
            return Err(refused("it has no such bytes"));
        }
        let origin = OriginOfRest::new(&self.request.worker, (&to, &head), stored, self.request.asked());
        origin.get(range, size_bytes).await
    }
}

/// The entity tag if it is strong, else the modification date if it is a strong validator.
pub(super) fn strong_validator(headers: &HeaderMap) -> Option<(HeaderName, HeaderValue)> {
    if let Some(tag) = headers.get(ETAG) {
        return tag.as_bytes().starts_with(b"\"").then(|| (ETAG, tag.clone()));
    }
    let modified = headers.get(LAST_MODIFIED)?;
    let is_strong = headers.get(DATE).and_then(parse_date_s)? > parse_date_s(modified)?;
    is_strong.then(|| (LAST_MODIFIED, modified.clone()))
}

/// In what a response differs from exactly this range of the stored representation; `None` if it is that range.
pub(super) fn difference<B: Body>(
    response: &Response<B>,
    stored: &HeaderMap,
    range: &Range<u64>,
    size_bytes: u64,
) -> Option<&'static str> {
    let headers = response.headers();
    let only = |name: &HeaderName| {
        let mut values = headers.get_all(name).iter();
        values.next().filter(|_| values.next().is_none())
    };
    // A `206` need not repeat the modification date if it has an entity tag. But it must have the validator: an origin
    // that ignores `If-Range` would otherwise pass off any body of the same length.
    let is_same = |name: &HeaderName| !headers.contains_key(name) || only(name) == stored.get(name);
    let length = range.end - range.start;
    let is_multipart =
        |value: &HeaderValue| value.as_bytes().get(..10).is_some_and(|kind| kind.eq_ignore_ascii_case(b"multipart/"));
    if response.status() != StatusCode::PARTIAL_CONTENT {
        return Some("the status is not 206");
    }
    if only(&CONTENT_RANGE) != Some(&content_range(range, size_bytes)) {
        return Some("the range is another one");
    }
    if response.body().size_hint().exact().is_some_and(|bytes| bytes != length) {
        return Some("the length is not that of the range");
    }
    if headers.get(CONTENT_TYPE).is_some_and(is_multipart) {
        return Some("it has several parts");
    }
    let validator = strong_validator(stored).map(|(name, _)| name);
    if !validator.is_some_and(|name| headers.contains_key(name)) {
        return Some("it has no validator");
    }
    (!is_same(&ETAG) || !is_same(&LAST_MODIFIED) || !is_same(&CONTENT_ENCODING)).then_some("the validators differ")
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt, Full, StreamBody};

    use super::*;
    use crate::rules::headers;

    const EARLY: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const LATE: &str = "Sun, 06 Nov 1994 09:49:37 GMT";

    type Lines<'a> = &'a [(&'a str, &'a str)];

    #[test]
    fn only_strong_validator_requests_rest() {
        let table: [(Lines, Option<&str>); 6] = [
            (&[("etag", "\"a\"")], Some("\"a\"")),
            (&[("etag", "W/\"a\""), ("last-modified", EARLY), ("date", LATE)], None),
            (&[("last-modified", EARLY), ("date", LATE)], Some(EARLY)),
            (&[("last-modified", EARLY), ("date", EARLY)], None),
            (&[("last-modified", EARLY)], None),
            (&[], None),
        ];
        for (lines, expected) in table {
            let found = strong_validator(&headers(lines));
            let value = found.as_ref().and_then(|(_, value)| value.to_str().ok());
            assert_eq!(value, expected, "{lines:?}");
        }
    }

    /// What is wrong with a response as the bytes 5 to 9 of 10 of a stored one.
    fn wrong(stored: Lines, status: u16, lines: Lines, body: Option<&'static [u8]>) -> Option<&'static str> {
        let body = match body {
            Some(body) => Full::new(Bytes::from_static(body)).boxed(),
            // A body of unknown length, as one in chunks.
            None => BodyExt::boxed(StreamBody::new(futures_util::stream::empty())),
        };
        let mut response = Response::new(body);
        *response.status_mut() = StatusCode::from_u16(status).expect("a status");
        *response.headers_mut() = headers(lines);
        difference(&response, &headers(stored), &(5..10), 10)
    }

    #[test]
    fn another_representation_does_not_continue() {
        const FIVE: Option<&[u8]> = Some(b"56789");
        const RANGE: (&str, &str) = ("content-range", "bytes 5-9/10");
        const TAG: (&str, &str) = ("etag", "\"a\"");
        let tagged: Lines = &[TAG, ("last-modified", EARLY), ("date", LATE), ("content-encoding", "br")];
        let dated: Lines = &[("last-modified", EARLY), ("date", LATE)];
        for body in [FIVE, None] {
            assert_eq!(wrong(tagged, 206, &[RANGE, TAG], body), None);
            assert_eq!(
                wrong(tagged, 206, &[RANGE, TAG, ("last-modified", EARLY), ("content-encoding", "br")], body),
                None
            );
            assert_eq!(wrong(dated, 206, &[RANGE, ("last-modified", EARLY)], body), None);
        }
        for status in [200, 204, 304, 412, 416, 503] {
            assert!(wrong(tagged, status, &[RANGE, TAG], FIVE).is_some(), "{status}");
        }
        for range in ["bytes 4-9/10", "bytes 5-8/10", "bytes 5-9/11", "bytes 5-9/*", "bytes */10", "lines 5-9/10", ""] {
            assert!(wrong(tagged, 206, &[("content-range", range), TAG], FIVE).is_some(), "{range}");
        }
        assert!(wrong(tagged, 206, &[TAG], FIVE).is_some(), "no range");
        assert!(wrong(tagged, 206, &[RANGE, RANGE, TAG], FIVE).is_some(), "two ranges");
        for body in [&b"5678"[..], b"567890", b""] {
            assert!(wrong(tagged, 206, &[RANGE, TAG], Some(body)).is_some(), "{body:?}");
        }
        for line in [
            ("etag", "\"b\""),
            ("etag", "W/\"a\""),
            ("last-modified", LATE),
            ("content-encoding", "gzip"),
            ("content-type", "Multipart/byteranges; boundary=x"),
        ] {
            assert!(wrong(tagged, 206, &[RANGE, line], FIVE).is_some(), "{line:?}");
            assert!(wrong(tagged, 206, &[RANGE, TAG, line], FIVE).is_some(), "{line:?} beside the right tag");
        }
        assert!(wrong(tagged, 206, &[RANGE], FIVE).is_some(), "no validator");
        assert!(
            wrong(tagged, 206, &[RANGE, ("last-modified", EARLY)], FIVE).is_some(),
            "not the validator of the request"
        );
        assert!(wrong(dated, 206, &[RANGE], FIVE).is_some(), "no date");
        assert!(wrong(dated, 206, &[RANGE, ("last-modified", LATE)], FIVE).is_some(), "another date");
        assert!(wrong(dated, 206, &[RANGE, ("last-modified", EARLY), TAG], FIVE).is_some(), "a tag that was not there");
    }
}
