//! Requests that go to the origin for themselves alone.
//!
//! Owns: passing on what may not be answered from a store or kept in it, and purging what an unsafe request may have changed
//! before its response is passed on.

use std::time::Duration;

use futures_util::future::join_all;
use http::header::VIA;
use http::{Method, Response};
use hyper::body::{Body, Incoming};
use nectary_host::log::{Level, Throttle};
use nectary_store::TAGS_MAX;

use super::asked::Asked;
use super::reply::{CACHE_STATUS, failed, finish};
use crate::access_log::Outcome;
use crate::body::{Content, ReplyBody};
use crate::rules::cache_status::{CacheStatus, Forward};
use crate::rules::hop::remove_hop_by_hop;
use crate::rules::invalidate::{invalidated, is_unsafe, origin_of};
use crate::rules::tags::{invalidated_groups_of, strip};
use crate::upstream::{FetchError, Lease, RequestBody, exchange, pieces};

/// Says that what an unsafe request changed is out of memory, but perhaps not off the device.
pub(super) static PURGE_FAILED: Throttle = Throttle::every(Duration::from_secs(60));

/// Passes a request on and its response back.
pub(super) async fn pass(asked: Asked, body: Option<Incoming>, why: Forward) -> Response<ReplyBody> {
    match ask(&asked, body).await {
        Ok((response, lease)) => forward(asked, response, lease, why, Size::Any),
        Err(error) => {
            let unanswered = CacheStatus::Forwarded { why, status: None, stored: false, collapsed: false };
            failed(&asked, &error, unanswered)
        }
    }
}

/// Passes a request on, and purges what that made invalid.
pub(super) async fn ask(asked: &Asked, body: Option<Incoming>) -> Result<(Response<Incoming>, Lease), FetchError> {
    let (Some(to), head) = asked.upstream() else {
        return Err(FetchError::Connect("the URL names no origin".into()));
    };
    let body = match body {
        Some(body) if !body.is_end_stream() => {
            RequestBody::of_client(body, asked.worker.options.limits.request_body_bytes_max, &asked.client.guard)
        }
        _ => RequestBody::Empty,
    };
    let herald = asked.herald();
    let (response, lease) = exchange(&asked.worker, &to, head, body, &|response| herald.announce(response)).await?;
    invalidate(asked, &response).await;
    Ok((response, lease))
}

/// Whether its size is why a response is not stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Size {
    /// It is not.
    Any,
    /// It is longer than the store takes.
    TooLarge,
}

/// Passes back a response that is not stored.
pub(super) fn forward(
    asked: Asked,
    response: Response<Incoming>,
    lease: Lease,
    why: Forward,
    size: Size,
) -> Response<ReplyBody> {
    forget_if_storable(&asked, &response);
    let (mut parts, body) = response.into_parts();
    remove_hop_by_hop(&mut parts.headers);
    if asked.worker.options.strip_tags {
        strip(&mut parts.headers);
    }
    parts.headers.append(VIA, asked.worker.via.clone());
    let status = parts.status.as_u16();
    let cache_status = match size {
        Size::Any => CacheStatus::Forwarded { why, status: Some(status), stored: false, collapsed: false },
        Size::TooLarge => CacheStatus::TooLarge { why, status },
    };
    parts.headers.append(CACHE_STATUS, cache_status.value());
    let length = body.size_hint().exact();
    let outcome = match why {
        _ if size == Size::TooLarge => Outcome::TooLarge,
        Forward::Method | Forward::Bypass => Outcome::Bypass,
        _ => Outcome::Pass,
    };
    let ticket = asked.ticket(parts.status.as_u16(), outcome, length);
    let content = if length == Some(0) {
        lease.finish();
        Content::Empty
    } else {
        Content::Pieces(pieces(body, lease), length)
    };
    finish(&asked.client, parts.status, parts.headers, content, Some(Box::new(ticket)))
}

/// Lets the next request for a URL fill the store where this response could have.
fn forget_if_storable(asked: &Asked, response: &Response<Incoming>) {
    if asked.method != Method::GET || !asked.worker.memo.borrow().contains(&asked.key, asked.at_ms) {
        return;
    }
    let request = (&asked.method, &asked.key[..], &asked.headers, &asked.directives);
    let response = (response.status(), response.headers(), asked.at_ms);
    if asked.worker.policy.storability(request, response).is_storable() {
        asked.worker.memo.borrow_mut().remove(&asked.key);
    }
}

/// Purges what the response to an unsafe request makes invalid.
async fn invalidate(asked: &Asked, response: &Response<Incoming>) {
    if !is_unsafe(&asked.method) {
        return;
    }
    for key in invalidated(&asked.method, &asked.key, response.status(), response.headers()) {
        asked.worker.stats.invalidations.add(1);
        if let Err(error) = asked.worker.store.purge_key(&key).await {
            let url = String::from_utf8_lossy(&key);
            PURGE_FAILED.write(Level::Error, "proxy", format_args!("cannot purge {url} durably: {error}"));
        }
    }
    let groups = invalidated_groups_of(response.headers(), origin_of(&asked.key));
    let purges = groups.iter().take(TAGS_MAX).map(|group| asked.worker.store.purge_tag(group));
    for error in join_all(purges).await.into_iter().filter_map(Result::err) {
        let url = String::from_utf8_lossy(&asked.key);
        PURGE_FAILED.write(Level::Error, "proxy", format_args!("cannot purge a group of {url} durably: {error}"));
    }
    asked.worker.stats.invalidations.add(groups.len() as u64);
}
