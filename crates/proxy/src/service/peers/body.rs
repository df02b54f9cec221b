//! A body that another node of the fleet sends, and the origin if that node breaks it off.
//!
//! Owns: [`NodeBody`]: the request for the rest, and the proof that it continues the same body. A node that dies costs its
//! clients no error if the origin still has what they are getting:
//! - with a strong validator and a range, the origin sends the bytes that are missing;
//! - else it sends all of the response again, whose head and first bytes must be those that were passed on. So also what has
//!   no length and no validator goes on, and what the client has is one response of the origin in any case. A response
//!   that sets a cookie does not go on, nor one that others may keep differently: the copy may be for all clients.
//!
//! A body goes on once. *Source*: RFC 9110, 8.8.2.2, 13.1.5 and 15.3.7. Leaves to others: bodies that a store loses (`rest`).

use std::ops::Range;
use std::rc::Rc;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::unfold;
use http::header::{
    CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, IF_RANGE, LAST_MODIFIED, RANGE,
    SET_COOKIE, VARY,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use hyper::body::{Body, Incoming};
use xxhash_rust::xxh3::Xxh3;

use super::super::request::ClientRequest;
use super::super::rest::{difference, note_rest, strong_validator, unconditional};
use crate::pieces::{BodyError, Pieces, exactly};
use crate::stats::AskedUrl;
use crate::upstream::{ConnectionLease, Destination, RequestBody, RequestHead, exchange, pieces};
use crate::worker::ProxyWorker;

/// What two heads of the same response have in common.
const SAME: [HeaderName; 8] =
    [CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, LAST_MODIFIED, VARY];

/// In the extensions of a response of another node: what it was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::service) enum AskedOfNode {
    /// The whole response, without conditions.
    Whole,
    /// What the client has asked.
    ByClient,
}

/// A response of another node whose body has begun.
pub(in crate::service) struct NodeBody {
    worker: Rc<ProxyWorker>,
    to: Destination,
    /// The request to the origin for the same response.
    head: RequestHead,
    status: StatusCode,
    begun: HeaderMap,
    /// The bytes of the whole that the body has, and the length of the whole; `None` if it does not say.
    range: Option<(Range<u64>, u64)>,
    asked: AskedUrl,
}

/// The bytes of a body that were passed on.
#[derive(Clone)]
struct PassedBytes {
    count: u64,
    hash: Box<Xxh3>,
}

impl NodeBody {
    /// The response to a request; the head is that of the request to the origin.
    pub fn new(
        worker: &Rc<ProxyWorker>,
        (to, head): (&Destination, &RequestHead),
        response: &Response<Incoming>,
        asked: AskedUrl,
    ) -> NodeBody {
        let (status, begun) = (response.status(), response.headers().clone());
        let length = response.body().size_hint().exact();
        let range = match status {
            StatusCode::PARTIAL_CONTENT => begun.get(CONTENT_RANGE).and_then(range_of),
            _ => length.map(|length| (0..length, length)),
        };
        NodeBody { worker: worker.clone(), to: to.clone(), head: head.clone(), status, begun, range, asked }
    }

    /// The response to a client's request, if another node has sent it.
    pub fn of(request: &ClientRequest, response: &Response<Incoming>) -> Option<NodeBody> {
        let (to, head) = match response.extensions().get::<AskedOfNode>()? {
            AskedOfNode::Whole => unconditional(request)?,
            AskedOfNode::ByClient => {
                let (to, mut head) = request.upstream();
                // The node has evaluated them.
                head.ask_unconditionally();
                (to?, head)
            }
        };
        (request.method == Method::GET).then(|| NodeBody::new(&request.worker, (&to, &head), response, request.asked()))
    }

    /// The request for the rest, and the offset in the whole from which on it asks for a range, if it does.
    fn request_of_rest(&self, passed: u64) -> (RequestHead, Option<u64>) {
        let mut head = self.head.clone();
        let (start, last) = match (&self.range, self.status) {
            (Some((range, _)), StatusCode::OK | StatusCode::PARTIAL_CONTENT) => {
                (range.start + passed, range.end.checked_sub(1))
            }
            (None, StatusCode::OK) => (passed, None),
            _ => return (head, None),
        };
        let is_inside = passed > 0 && last.is_none_or(|last| start <= last);
        let Some((_, validator)) = strong_validator(&self.begun).filter(|_| is_inside) else { return (head, None) };
        head.headers.insert(IF_RANGE, validator);
        let text = format!("bytes={start}-{}", last.map(|last| last.to_string()).unwrap_or_default());
        head.headers.insert(RANGE, HeaderValue::try_from(text).expect("digits and punctuation"));
        (head, Some(start))
    }

    /// The range with which a body goes on that has no length, by what the origin says now.
    fn range_now(&self, response: &Response<Incoming>) -> Option<(Range<u64>, u64)> {
        self.range.clone().or_else(|| range_of(response.headers().get(CONTENT_RANGE)?))
    }

    /// Requests what follows these bytes. *Errors*: the origin does not have the same body, or does not prove it.
    async fn rest_after(&self, passed: &PassedBytes) -> Result<Pieces, BodyError> {
        let other = |what: &str| BodyError(format!("the origin does not have the same body now: {what}"));
        let (head, start) = self.request_of_rest(passed.count);
        let counted = self.asked.begin();
        let answered = exchange(&self.worker.upstream, &self.to, head, RequestBody::Empty, &|_| {}).await;
        let (mut response, lease) = answered.map_err(|error| BodyError(error.to_string()))?;
        let lease = lease.of_request(counted);
        if let (Some(start), StatusCode::PARTIAL_CONTENT) = (start, response.status()) {
            let (range, size_bytes) = self.range_now(&response).ok_or_else(|| other("it does not say which range"))?;
            let end = if self.range.is_some() { range.end } else { size_bytes };
            return match difference(&response, &self.begun, &(start..end), size_bytes) {
                Some(odd) => Err(other(odd)),
                None => Ok(exactly(pieces(response.into_body(), lease), end - start)),
            };
        }
        let length = response.body().size_hint().exact();
        length.iter().for_each(|length| _ = response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(*length)));
        let is_same = |name: &HeaderName| {
            let (begun, now) = (self.begun.get_all(name), response.headers().get_all(name));
            begun == now || (*name == CONTENT_LENGTH && (begun.iter().count() == 0 || now.iter().count() == 0))
        };
        if response.status() != self.status || !SAME.iter().all(is_same) {
            return Err(other("its head differs"));
        }
        if response.headers().contains_key(SET_COOKIE) {
            return Err(other("it may be meant for one client"));
        }
        let rest = behind(pieces(response.into_body(), lease), passed).await;
        let rest = rest.ok_or_else(|| other("its first bytes differ"))?;
        let left = self.range.as_ref().map(|(range, _)| (range.end - range.start).saturating_sub(passed.count));
        Ok(match left {
            Some(left) => exactly(rest, left),
            None => rest,
        })
    }

    /// The pieces of the body of this response; if the node breaks it off, the rest comes from the origin.
    pub fn pieces(self, body: Incoming, lease: ConnectionLease) -> Pieces {
        let passed = PassedBytes { count: 0, hash: Box::default() };
        let state = (pieces(body, lease), passed, Some(self));
        Box::pin(unfold(state, async |(mut pieces, mut passed, origin)| {
            let piece = pieces.next().await?;
            let (mut pieces, piece) = match (piece, origin) {
                (Ok(piece), origin) => {
                    passed.take(&piece);
                    return Some((Ok(piece), (pieces, passed, origin)));
                }
                (Err(why), Some(origin)) => match origin.found_rest(&passed, &why).await {
                    Ok(mut rest) => {
                        let piece = rest.next().await?;
                        (rest, piece)
                    }
                    Err(error) => (pieces, Err(error)),
                },
                (error, None) => (pieces, error),
            };
            if piece.is_err() {
                pieces = Box::pin(futures_util::stream::empty());
            }
            Some((piece, (pieces, passed, None)))
        }))
    }

    /// Gets the rest, counts and logs that, or that the body is cut off.
    async fn found_rest(&self, passed: &PassedBytes, why: &BodyError) -> Result<Pieces, BodyError> {
        let found = self.rest_after(passed).await;
        let url = String::from_utf8_lossy(self.asked.url());
        note_rest(&self.worker.stats, (&url, passed.count, &why.0), &found);
        found
    }
}

impl PassedBytes {
    fn take(&mut self, piece: &Bytes) {
        self.count += piece.len() as u64;
        self.hash.update(piece);
    }
}

/// What follows in a body behind bytes that were passed on; `None` if it does not begin with these.
async fn behind(mut body: Pieces, passed: &PassedBytes) -> Option<Pieces> {
    let mut seen = PassedBytes { count: 0, hash: Box::default() };
    let mut first = Bytes::new();
    while seen.count < passed.count {
        let mut piece = body.next().await?.ok()?;
        let taken = usize::try_from(passed.count - seen.count).unwrap_or(usize::MAX).min(piece.len());
        seen.take(&piece.split_to(taken));
        first = piece;
    }
    let is_same = seen.hash.digest128() == passed.hash.digest128();
    let first = futures_util::stream::iter((!first.is_empty()).then_some(Ok(first)));
    is_same.then(|| Box::pin(first.chain(body)) as Pieces)
}

/// The range that a `Content-Range` names, and the length of the whole.
fn range_of(value: &HeaderValue) -> Option<(Range<u64>, u64)> {
    let (range, size) = value.to_str().ok()?.strip_prefix("bytes ")?.split_once('/')?;
    let (start, last) = range.split_once('-')?;
    let (start, last, size): (u64, u64, u64) = (start.parse().ok()?, last.parse().ok()?, size.parse().ok()?);
    (start <= last && last < size).then(|| (start..last + 1, size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_ranges_of_nodes_are_read() {
        let of = |text: &'static str| range_of(&HeaderValue::from_static(text));
        assert_eq!(of("bytes 5-9/10"), Some((5..10, 10)));
        assert_eq!(of("bytes 0-18446744073709551615/1"), None);
        for odd in ["bytes 5-9/*", "bytes */10", "lines 5-9/10", "bytes 9-5/10", "bytes 5-10/10", "", "bytes 5-9"] {
            assert_eq!(of(odd), None, "{odd}");
        }
    }

    #[tokio::test]
    async fn only_the_same_beginning_goes_on() {
        let body = |texts: &[&'static str]| -> Pieces {
            let pieces: Vec<_> = texts.iter().map(|text| Ok(Bytes::from_static(text.as_bytes()))).collect();
            Box::pin(futures_util::stream::iter(pieces))
        };
        let mut passed = PassedBytes { count: 0, hash: Box::default() };
        for (texts, expected) in [(["ab", "cd"], "abcd"), (["a", "bcd"], "abcd"), (["abcd", ""], "abcd")] {
            let mut rest = behind(body(&texts), &passed).await.expect("nothing was passed on");
            let mut whole = Vec::new();
            while let Some(piece) = rest.next().await {
                whole.extend_from_slice(&piece.expect("a piece"));
            }
            assert_eq!(whole, expected.as_bytes());
        }
        passed.take(&Bytes::from_static(b"abc"));
        for (texts, expected) in
            [(&["ab", "cd"][..], Some("d")), (&["abc"], Some("")), (&["abd", "d"], None), (&["ab"], None)]
        {
            let found = match behind(body(texts), &passed).await {
                None => None,
                Some(rest) => Some(rest.map(|piece| piece.expect("a piece").to_vec()).concat().await),
            };
            assert_eq!(found.as_deref(), expected.map(str::as_bytes), "{texts:?}");
        }
    }
}
