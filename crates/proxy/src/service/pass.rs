//! Handles requests that go to the origin and whose responses go only to the requesting client.
//!
//! Owns: passing on requests that must not be answered from the store, or whose response must not be stored. After an
//! unsafe request, the stored responses that it may have changed are purged before its response is passed on.

use std::ops::Range;
use std::time::Duration;

use futures_util::future::join_all;
use http::header::{CONTENT_LENGTH, CONTENT_RANGE, VIA};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use hyper::body::{Body, Incoming};
use nectary_host::fleet::peer_headers::{FOUND, FOUND_PASS};
use nectary_host::log::{LogLevel, LogThrottle};
use nectary_store::TAGS_MAX;

use super::peers::NodeBody;
use super::reply::{CACHE_STATUS, content_range, failed, finish, remove_digests};
use super::request::ClientRequest;
use crate::access_log::CacheOutcome;
use crate::body::{BodyContent, ReplyBody};
use crate::connections::EntranceRole;
use crate::rules::cache_status::{CacheStatus, ForwardReason};
use crate::rules::hop::remove_hop_by_hop;
use crate::rules::invalidate::{invalidated, is_unsafe, origin_of};
use crate::rules::tags::{invalidated_groups_of, strip};
use crate::upstream::{ConnectionLease, FetchError, RequestBody, end_empty, exchange, pieces};

/// Limits how often a failed purge is logged. After a failed purge, the purged responses may be back when the store is
/// opened again.
pub(super) static PURGE_FAILED: LogThrottle = LogThrottle::every(Duration::from_secs(60));

/// Passes a request to the origin, and the response to the client.
pub(super) async fn pass(request: ClientRequest, body: Option<Incoming>, why: ForwardReason) -> Response<ReplyBody> {
    match ask(&request, body).await {
        Ok((response, lease)) => forward(request, response, lease, why, UnstoredReason::Any),
        Err(error) => {
            let unanswered = CacheStatus::Forwarded { why, status: None, stored: false, collapsed: false };
            failed(&request, &error, unanswered)
        }
    }
}

/// Passes a request to the origin, and purges the stored responses that the request made invalid.
pub(super) async fn ask(
    request: &ClientRequest,
    body: Option<Incoming>,
) -> Result<(Response<Incoming>, ConnectionLease), FetchError> {
    let (Some(to), head) = request.upstream() else {
        return Err(FetchError::Connect("the URL names no origin".into()));
    };
    let body = match body {
        Some(body) if !body.is_end_stream() => {
            RequestBody::of_client(body, request.worker.options.limits.request_body_bytes_max, &request.client.exchange)
        }
        _ => RequestBody::Empty,
    };
    let herald = request.herald();
    let _changing = UnsafeRequestGuard::begin(request);
    let counted = request.asked().begin();
    let (mut response, lease) =
        exchange(&request.worker.upstream, &to, head, body, &|response| herald.announce(response)).await?;
    let lease = lease.of_request(counted);
    request.answer.set(|| lease.answer());
    request.route.adapt(response.headers_mut());
    invalidate(request, &response).await;
    Ok((response, lease))
}

/// Keeps the key of an unsafe request among those that requests under way may change, until it is dropped.
struct UnsafeRequestGuard<'a>(&'a ClientRequest);

impl<'a> UnsafeRequestGuard<'a> {
    fn begin(request: &'a ClientRequest) -> Option<UnsafeRequestGuard<'a>> {
        // What begins after the worker has left the store was not purged then.
        (is_unsafe(&request.method) && !request.worker.is_leaving.get()).then(|| {
            request.worker.changing.borrow_mut().push(request.key.clone());
            UnsafeRequestGuard(request)
        })
    }
}

impl Drop for UnsafeRequestGuard<'_> {
    fn drop(&mut self) {
        let mut changing = self.0.worker.changing.borrow_mut();
        if let Some(index) = changing.iter().position(|key| *key == self.0.key) {
            changing.swap_remove(index);
        }
    }
}

/// The reason why a response is not stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UnstoredReason {
    /// The response is not stored for a reason other than these.
    Any,
    /// The response is longer than the store accepts.
    TooLarge,
    /// Neither the response nor the operator says how long it is fresh.
    NoLifetime,
}

impl UnstoredReason {
    /// The token that names the reason in the status for clients, if it has one.
    fn detail(self) -> Option<&'static str> {
        match self {
            UnstoredReason::Any => None,
            UnstoredReason::TooLarge => Some("too-large"),
            UnstoredReason::NoLifetime => Some("no-lifetime"),
        }
    }
}

/// Passes a response that is not stored to the client.
pub(super) fn forward(
    request: ClientRequest,
    response: Response<Incoming>,
    lease: ConnectionLease,
    why: ForwardReason,
    size: UnstoredReason,
) -> Response<ReplyBody> {
    forward_part(request, response, lease, why, size, None)
}

/// Like [`forward`], but if there is a range, only these bytes of a whole response are passed on, as a `206`. The
/// second number is the length of the whole body.
pub(super) fn forward_part(
    request: ClientRequest,
    response: Response<Incoming>,
    lease: ConnectionLease,
    why: ForwardReason,
    size: UnstoredReason,
    part: Option<(Range<u64>, u64)>,
) -> Response<ReplyBody> {
    let size = review(&request, &response, why, size);
    let node = NodeBody::of(&request, &response);
    let (mut parts, body) = response.into_parts();
    remove_hop_by_hop(&mut parts.headers);
    // Another node makes the response of its client.
    if request.client.door == EntranceRole::Fleet {
        parts.headers.insert(HeaderName::from_static(FOUND), HeaderValue::from_static(FOUND_PASS));
    } else {
        if request.route.strips_tags {
            strip(&mut parts.headers);
        }
        request.route.response_headers.apply(&mut parts.headers);
    }
    parts.headers.append(VIA, request.worker.via.clone());
    let status = parts.status.as_u16();
    let cache_status = match size.detail() {
        None => CacheStatus::Forwarded { why, status: Some(status), stored: false, collapsed: false },
        Some(detail) => CacheStatus::Unstored { why, status, detail },
    };
    parts.headers.append(CACHE_STATUS, cache_status.value());
    // The response to a HEAD names a length in HTTP/2, too, but has no body.
    let length = if body.is_end_stream() { Some(0) } else { body.size_hint().exact() };
    let whole_bytes = match parts.status {
        StatusCode::PARTIAL_CONTENT => whole_bytes(&parts.headers),
        _ => length,
    };
    let outcome = match why {
        _ if size == UnstoredReason::TooLarge => CacheOutcome::TooLarge,
        ForwardReason::Method | ForwardReason::Bypass => CacheOutcome::Bypass,
        _ => CacheOutcome::Pass,
    };
    let pieces_of = |body, lease| match node {
        Some(node) => node.pieces(body, lease),
        None => pieces(body, lease),
    };
    let content = match part {
        Some((range, size_bytes)) => {
            parts.status = StatusCode::PARTIAL_CONTENT;
            parts.headers.insert(CONTENT_RANGE, content_range(&range, size_bytes));
            parts.headers.remove(CONTENT_LENGTH);
            remove_digests(&mut parts.headers);
            BodyContent::of_part(pieces_of(body, lease), range)
        }
        None if length == Some(0) => {
            end_empty(body, lease);
            BodyContent::Empty
        }
        None => BodyContent::Pieces(pieces_of(body, lease), length),
    };
    let ticket = request.ticket(parts.status.as_u16(), outcome, whole_bytes);
    finish(&request.client, parts.status, parts.headers, content, Some(Box::new(ticket)))
}

/// The length of the whole that the `BodyContent-Range` of a part names.
fn whole_bytes(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_RANGE)?.to_str().ok()?.rsplit_once('/')?.1.parse().ok()
}

/// Looks at a response that is not stored, and finds the reason: that it has no lifetime, unless it is not to be stored anyway.
/// If it could have been stored, and the URL is one whose responses could not, the URL is forgotten, so that the next request
/// fills the store. If only its length forbids that, returns [`UnstoredReason::TooLarge`].
fn review(
    request: &ClientRequest,
    response: &Response<Incoming>,
    why: ForwardReason,
    size: UnstoredReason,
) -> UnstoredReason {
    let worker = &request.worker;
    let is_remembered = worker.hit_for_miss.borrow().contains(&request.key, &request.headers, request.at_ms);
    let is_for_store = size == UnstoredReason::Any && !matches!(why, ForwardReason::Bypass | ForwardReason::Method);
    if request.method != Method::GET || !(is_remembered || is_for_store) {
        return size;
    }
    let facts = (&request.method, &request.key[..], &request.headers, &request.directives);
    let found = (response.status(), response.headers(), request.at_ms);
    let verdict = request.route.policy.storability(facts, found);
    if is_for_store && verdict.lacks_lifetime() {
        return UnstoredReason::NoLifetime;
    }
    if !is_remembered || !verdict.is_storable() {
        return size;
    }
    // A body without a length may turn out to be too long.
    let Some(bytes) = response.body().size_hint().exact() else { return size };
    if bytes > worker.store.object_bytes_max(&request.key).unwrap_or(u64::MAX) {
        return UnstoredReason::TooLarge;
    }
    worker.hit_for_miss.borrow_mut().remove(&request.key, &request.headers);
    size
}

/// Purges the keys and groups that the response to an unsafe request makes invalid.
async fn invalidate(request: &ClientRequest, response: &Response<Incoming>) {
    if !is_unsafe(&request.method) {
        return;
    }
    for key in invalidated(&request.method, &request.key, response.status(), response.headers()) {
        request.worker.stats.invalidations.add(1);
        if let Err(error) = request.worker.purge_key(&key).await {
            let url = String::from_utf8_lossy(&key);
            PURGE_FAILED.write(LogLevel::Error, "proxy", format_args!("cannot purge {url} durably: {error}"));
        }
    }
    let groups = invalidated_groups_of(response.headers(), origin_of(&request.key));
    let purges = groups.iter().take(TAGS_MAX).map(|group| request.worker.purge_tag(group));
    for error in join_all(purges).await.into_iter().filter_map(Result::err) {
        let url = String::from_utf8_lossy(&request.key);
        PURGE_FAILED.write(LogLevel::Error, "proxy", format_args!("cannot purge a group of {url} durably: {error}"));
    }
    request.worker.stats.invalidations.add(groups.len() as u64);
}
