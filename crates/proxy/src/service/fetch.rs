//! The fetch that fills the store.
//!
//! Owns: one request to the origin for all requests that wait for a key. The fetch runs in its own task, so it
//! continues if the first client disconnects. It decides the kind of response (confirmation, storable, not storable)
//! and reports it to the request that began the fetch. It writes the body into the fill, from which all waiting
//! requests read. If the body is incomplete, the fill fails. A fetch for a part (`parts`) requests its range, and stores
//! the part, or the response as a whole if the origin has sent that. `superseded` purges what the answer takes the place of.

mod superseded;

use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::StreamExt;
use http::header::{ACCEPT_ENCODING, FORWARDED, RANGE, TRANSFER_ENCODING, VIA};
use http::response::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, Version};
use hyper::body::{Body, Incoming};
use nectary_store::{Fill, KeyRef, StoredObject};
use tokio::sync::oneshot;

use self::superseded::{leave_part, supersede};
pub(super) use self::superseded::{purge, purge_copies};
use super::herald::InformationalRelay;
use super::lookup::facts_of;
use super::parts::part_facts::PartAnswer;
use super::parts::part_range::PartRange;
use super::peers::{AskedOfNode, NodeBody};
use super::peers::{PeerAnswer, PeerQuestion};
use super::request::ClientRequest;
use super::rest::strong_validator;
use crate::access_log::AnswerNote;
use crate::hit_for_miss::HitForMissReason;
use crate::rules::age::ExchangeTimes;
use crate::rules::cache_control::RequestDirectives;
use crate::rules::conditional::{set_validation, validates};
use crate::rules::cookies::{self, CookieTreatment};
use crate::rules::hop::remove_hop_by_hop;
use crate::rules::invalidate::{is_unsafe, origin_of};
use crate::rules::key::UrlOrigin;
use crate::rules::serve::{OriginFailure, decide_on_failure};
use crate::rules::storable::Storability;
use crate::rules::tags::{strip, tags_of};
use crate::rules::update::merged;
use crate::rules::vary::{PART_MARKER, PART_NAME, Vary, push_variant};
use crate::sites::{HostSent, RouteTarget, SiteRoute};
use crate::stats::AskedUrl;
use crate::stored::metadata::encode_marker;
use crate::stored::response::{ObjectView, to_metadata};
use crate::upstream::{
    AddressReach, ConnectionLease, Destination, FetchError, ForwardingHops, OriginRules, RequestBody, RequestHead,
    end_empty, exchange, pieces,
};
use crate::wire::http1::informational::InformationalResponse;
use crate::worker::ProxyWorker;

/// A fetch that has not begun yet.
pub(super) struct FetchPlan {
    worker: Rc<ProxyWorker>,
    route: Arc<SiteRoute>,
    key: Vec<u8>,
    /// The client's headers, to which `Vary` refers.
    headers: HeaderMap,
    directives: RequestDirectives,
    /// The request headers by which the URL is known to vary.
    names: Vec<HeaderName>,
    stale: Option<StoredObject>,
    to: Option<Destination>,
    head: RequestHead,
    /// The part that is fetched; `None` for the whole.
    part: Option<PartRange>,
    herald: InformationalRelay,
    /// The question to other nodes that is asked first.
    peers: Option<Rc<PeerQuestion>>,
    /// Whether what is fetched stays in memory alone, as its key is in the share of another node.
    is_copy: bool,
    /// Where the log of the request that began the fetch is told of the origin's answer.
    answer: AnswerNote,
    /// What counts among what is requested from origins most.
    asked: AskedUrl,
}

/// The result that the fetch reports to the request that began it.
pub(super) enum FetchOutcome {
    /// The response with this status is being stored: read it from the fill. The cookies are only for the requesting
    /// client.
    Streaming(u16, Vec<HeaderValue>),
    /// The stored response is still valid. The cookies are only for the requesting client.
    Refreshed(StoredObject, Vec<HeaderValue>),
    /// The response is not stored; it goes only to the requesting client.
    Direct(Response<Incoming>, ConnectionLease),
    /// The store cannot take the response at present; it goes only to the requesting client.
    Refused(Response<Incoming>, ConnectionLease),
    /// The response could be stored, but is too long for the store; it goes only to the requesting client.
    TooLarge(Response<Incoming>, ConnectionLease),
    /// The origin gives no part that can be stored.
    NoPart,
    /// The origin answered with this error, and the stored response may be served instead.
    Stale(StatusCode),
    /// There is no response.
    Failed(FetchError),
}

impl ClientRequest {
    /// The destination of this request; `None` if its URL names no origin.
    pub(super) fn destination(&self) -> Option<Destination> {
        match &self.route.target {
            RouteTarget::Named(rules) => Some(self.named_destination(UrlOrigin::of(&self.uri)?, rules.clone())),
            RouteTarget::Pool(pool) => {
                let sends_own_host = self.route.host == HostSent::Server;
                Some(Destination::of_pool(pool, sends_own_host, &self.key, self.client.address.ip()))
            }
            _ => None,
        }
    }

    /// The destination at an origin that the client names.
    pub(super) fn named_destination(&self, origin: UrlOrigin, rules: Arc<OriginRules>) -> Destination {
        let reach = if self.client.is_loopback { AddressReach::Everywhere } else { AddressReach::Beyond };
        Destination::new(origin, reach, self.client.address.ip(), rules)
    }

    /// The URL of this request and the origin that answers it, for the list of what is requested most.
    pub(super) fn asked(&self) -> AskedUrl {
        let origin = match &self.route.target {
            RouteTarget::Pool(pool) if !pool.name.is_empty() => pool.name.clone(),
            RouteTarget::Pool(pool) => pool.named.shown(),
            _ => UrlOrigin::of(&self.uri)
                .map(|origin| format!("{}://{}", origin.scheme(), origin.authority()))
                .unwrap_or_default(),
        };
        let asked = AskedUrl::new(&self.worker.stats.traffic, &self.question().logged_url(&self.headers), origin);
        if self.continues.is_some() { asked.continued() } else { asked }
    }

    /// The destination of this request, and the head to send to it.
    pub(super) fn upstream(&self) -> (Option<Destination>, RequestHead) {
        let route = &*self.route;
        // Only the origin of a reverse proxy is told the client's address; the origins of a forward proxy are not.
        let forwarding = ForwardingHops {
            peer: self.client.address.ip(),
            is_secure: self.client.is_secure,
            is_trusted: self.client.is_trusted,
            is_told: !route.is_forward() && !route.is_silent,
            keyed: &route.key_headers,
        };
        let to = self.destination();
        let authority = match &route.target {
            RouteTarget::Pool(pool) => Cow::Borrowed(route.host_for(&self.key, &pool.authority)),
            _ => Cow::Owned(to.as_ref().map(|to| to.origin.authority()).unwrap_or_default()),
        };
        let via = self.worker.via_of(self.version);
        let mut head = RequestHead::new(self.method.clone(), &self.uri, &self.headers, &authority, via, &forwarding);
        if !is_unsafe(&self.method)
            && let Some(target) = route.target_sent(&self.uri)
        {
            head.target = target;
        }
        route.request_headers.apply(&mut head.headers);
        (to, head)
    }
}

impl FetchPlan {
    /// Plans to fetch the whole of the requested response, or the part that the request is for.
    pub fn new(request: &ClientRequest, names: Vec<HeaderName>, stale: Option<StoredObject>) -> FetchPlan {
        let (to, mut head) = request.upstream();
        // The method is GET even if a HEAD request found the stale response that must be validated.
        head.method = Method::GET;
        head.ask_for_all();
        // All clients whose copy this may become are asked for in the same words.
        head.accept(&request.headers, &request.route.request_headers);
        if let Some(part) = request.part {
            head.headers.insert(RANGE, part.requested());
        }
        FetchPlan {
            worker: request.worker.clone(),
            route: request.route.clone(),
            key: request.key.clone(),
            headers: request.headers.clone(),
            directives: request.directives,
            names,
            stale,
            to,
            head,
            part: request.part,
            herald: request.herald(),
            peers: request.peer_question(AskedOfNode::Whole),
            is_copy: request.is_copy(),
            answer: request.answer.clone(),
            asked: request.asked(),
        }
    }

    /// Like [`FetchPlan::new`], for a fetch that no client waits for. Nobody receives its informational responses.
    pub fn for_later(request: &ClientRequest, names: Vec<HeaderName>, stale: StoredObject) -> FetchPlan {
        let (herald, answer) = (InformationalRelay::silent(&request.worker, &request.route), AnswerNote::default());
        FetchPlan { herald, answer, ..FetchPlan::new(request, names, Some(stale)) }
    }

    /// Whether the stored response may be served although the origin failed.
    fn allows_stale_on(&self, failure: OriginFailure) -> bool {
        let (Some(object), policy) = (&self.stale, &self.route.policy) else { return false };
        let ObjectView::Response(stored) = object.decoded(|bytes| ObjectView::read(bytes, &self.key, policy)) else {
            return false;
        };
        let (now_ms, unreachable_s) = (self.worker.now_ms(), policy.stale_unreachable_s);
        let facts = facts_of(policy, &self.key, object, stored, now_ms);
        decide_on_failure(&facts, &self.directives, now_ms, failure, unreachable_s).is_some()
    }

    fn stale_headers(&self) -> Option<HeaderMap> {
        let object = self.stale.as_ref()?;
        match object.decoded(|bytes| ObjectView::read(bytes, &self.key, &self.route.policy)) {
            ObjectView::Response(stored) => Some(stored.headers()),
            _ => None,
        }
    }
}

/// Makes the planned fetch. When this task ends, for any reason, the fill ends, too.
pub(super) async fn run(plan: FetchPlan, mut fill: Fill, tell: oneshot::Sender<FetchOutcome>) {
    let worker = plan.worker.clone();
    let _counted = CountedFetch::new(&worker);
    let Some(to) = plan.to.clone() else {
        _ = tell.send(FetchOutcome::Failed(FetchError::Connect("the URL names no origin".into())));
        return;
    };
    if plan.is_copy {
        fill.keep_in_memory();
    }
    if let Some(question) = &plan.peers {
        let request_ms = worker.now_ms();
        if let Some(answer) = question.ask(&worker).await {
            return take_from_peer(&plan, fill, answer, request_ms, tell).await;
        }
    }
    let stale = plan.stale_headers();
    let mut head = plan.head.clone();
    let mut validates_stale = stale.as_ref().is_some_and(|stale| set_validation(&mut head.headers, stale));
    loop {
        let request_ms = worker.now_ms();
        let hear = |response: &InformationalResponse| plan.herald.announce(response);
        let counted = plan.asked.begin();
        let (response, lease) = match exchange(&worker.upstream, &to, head, RequestBody::Empty, &hear).await {
            Ok((response, lease)) => (response, lease.of_request(counted)),
            Err(error) => {
                if let Some(question) = &plan.peers
                    && let Some(answer) = question.ask_left_out(&worker).await
                {
                    return take_from_peer(&plan, fill, answer, request_ms, tell).await;
                }
                worker.stats.failed_fills.add(1);
                drop(fill);
                _ = tell.send(FetchOutcome::Failed(error));
                return;
            }
        };
        plan.answer.set(|| lease.answer());
        if OriginFailure::of(response.status()).is_some_and(|failure| plan.allows_stale_on(failure)) {
            // When the fill is dropped, its followers also fall back to the stale response, if they may.
            drop(fill);
            _ = tell.send(FetchOutcome::Stale(response.status()));
            return;
        }
        let times = ExchangeTimes { request_ms, response_ms: worker.now_ms() };
        let (mut parts, body) = response.into_parts();
        plan.route.adapt(&mut parts.headers);
        let is_doubtful = plan.route.distrusts_close && is_close_delimited(&parts, &body);
        remove_hop_by_hop(&mut parts.headers);
        if validates_stale && parts.status == StatusCode::NOT_MODIFIED {
            end_empty(body, lease);
            let stored = stale.as_ref().filter(|stored| validates(&parts.headers, stored, times.response_ms));
            if let (Some(stored), Some(object)) = (stored, &plan.stale) {
                // The object keeps its tags, and gets those of the 304 in addition.
                let is_tagged = tag(&plan, &mut fill, &parts.headers);
                let mut fresh = parts.headers.clone();
                let own_cookies = if keeps_cookies(&plan.route, &merged(stored, &fresh)) {
                    Vec::new()
                } else {
                    cookies::take(&mut fresh)
                };
                let mut headers = merged(stored, &fresh);
                if plan.route.strips_tags {
                    strip(&mut headers);
                }
                // The object's key in the store depends on the names in `Vary`, so these names must not change. A part
                // is joined with others by its strong validator.
                let is_joinable = plan.part.is_none() || strong_validator(&headers).is_some();
                let is_same_key = Vary::parse(&headers).union(&plan.names) == Vary::of(plan.names.clone());
                if is_tagged && is_joinable && is_same_key {
                    refresh(&plan, fill, object, &headers, times, (tell, own_cookies)).await;
                    return;
                }
            }
            // The 304 cannot renew the object: it confirms another response, changes `Vary`, or has too many tags.
            // Request the whole response.
            validates_stale = false;
            head = plan.head.clone();
            continue;
        }
        let response = Response::from_parts(parts, body);
        let from = if is_doubtful { Sender::DoubtfulOrigin } else { Sender::Origin };
        fetch_body(&plan, fill, response, lease, times, from, tell).await;
        return;
    }
}

/// Handles the answer of another node. It has made the origin's response fit for all clients.
async fn take_from_peer(
    plan: &FetchPlan,
    fill: Fill,
    PeerAnswer { response, lease, may_keep, .. }: PeerAnswer,
    request_ms: u64,
    tell: oneshot::Sender<FetchOutcome>,
) {
    plan.answer.set(|| lease.answer());
    if OriginFailure::of(response.status()).is_some_and(|failure| plan.allows_stale_on(failure)) {
        drop(fill);
        _ = tell.send(FetchOutcome::Stale(response.status()));
        return;
    }
    let times = ExchangeTimes { request_ms, response_ms: plan.worker.now_ms() };
    let (mut parts, body) = response.into_parts();
    remove_hop_by_hop(&mut parts.headers);
    parts.extensions.insert(AskedOfNode::Whole);
    let response = Response::from_parts(parts, body);
    if may_keep {
        return fetch_body(plan, fill, response, lease, times, Sender::Node, tell).await;
    }
    fill.decline();
    // The owner joins a whole body from parts, of which this node can keep copies when it has no whole response.
    let is_joined = plan.part.is_none() && plan.route.part_bytes.is_some() && response.status() == StatusCode::OK;
    _ = tell.send(FetchOutcome::Direct(response, lease));
    if is_joined && plan.stale.is_some() {
        supersede(plan, Sender::Node).await;
    }
}

/// Who sends a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sender {
    Origin,
    /// An origin whose body may be cut off.
    DoubtfulOrigin,
    /// Another node: if it breaks the body off, the origin has the rest.
    Node,
}

/// Counts a fetch as under way until this value is dropped.
struct CountedFetch(Rc<ProxyWorker>);

impl CountedFetch {
    fn new(worker: &Rc<ProxyWorker>) -> CountedFetch {
        worker.fills.set(worker.fills.get() + 1);
        CountedFetch(worker.clone())
    }
}

impl Drop for CountedFetch {
    fn drop(&mut self) {
        self.0.fills.set(self.0.fills.get() - 1);
    }
}

/// Whether a body ends only when the connection closes. It is complete if the connection closes cleanly: a reset, or the
/// end of a TLS connection without its closing message, is an error of the body (RFC 9112, 8). If the origin's program
/// crashes, its kernel closes cleanly as well, so the operator can distrust such bodies.
fn is_close_delimited(parts: &Parts, body: &Incoming) -> bool {
    // In HTTP/2 each body has an end.
    parts.version != Version::HTTP_2
        && body.size_hint().exact().is_none()
        && !parts.headers.contains_key(TRANSFER_ENCODING)
}

/// Replaces the headers of the stored response.
async fn refresh(
    plan: &FetchPlan,
    fill: Fill,
    object: &StoredObject,
    headers: &HeaderMap,
    times: ExchangeTimes,
    (tell, cookies): (oneshot::Sender<FetchOutcome>, Vec<HeaderValue>),
) {
    let status = match object.decoded(|bytes| ObjectView::read(bytes, &plan.key, &plan.route.policy)) {
        ObjectView::Response(stored) => stored.head.status,
        _ => StatusCode::OK,
    };
    let result = match to_metadata(status, headers, times) {
        Some(metadata) => fill.refresh(object, metadata).await.map_err(drop),
        None => Err(()),
    };
    let told = match result {
        Ok(object) => FetchOutcome::Refreshed(object, cookies),
        Err(()) => {
            plan.worker.stats.failed_fills.add(1);
            // The origin has just confirmed the stored response, so it may be served although the store could not
            // update it.
            FetchOutcome::Refreshed(object.clone(), cookies)
        }
    };
    _ = tell.send(told);
}

/// Stores a response if it may be stored; otherwise hands it to the request that began the fetch.
async fn fetch_body(
    plan: &FetchPlan,
    mut fill: Fill,
    response: Response<Incoming>,
    lease: ConnectionLease,
    times: ExchangeTimes,
    from: Sender,
    tell: oneshot::Sender<FetchOutcome>,
) {
    let worker = &plan.worker;
    let status = response.status();
    // A `204` may name a length in HTTP/2, but has no body.
    let has_ended = response.body().is_end_stream();
    let announced_bytes = if has_ended { Some(0) } else { response.body().size_hint().exact() };
    let part_bytes = match plan.part.map(|part| PartAnswer::of(part, status, response.headers(), announced_bytes)) {
        None => None,
        Some(PartAnswer::Whole) => {
            if status == StatusCode::OK && announced_bytes.is_none() {
                // It may turn out to be long: those who want other parts join a fetch of the whole.
                remember(plan, HitForMissReason::NoParts, times.response_ms);
            }
            None
        }
        Some(PartAnswer::Part(bytes)) => Some(bytes),
        Some(PartAnswer::Behind) => {
            return leave_part(plan, fill, from, (tell, FetchOutcome::Direct(response, lease))).await;
        }
        Some(PartAnswer::Useless) => {
            // This ends the connection to the origin, with the rest of the body.
            drop((response, lease));
            remember(plan, HitForMissReason::NoParts, times.response_ms);
            return leave_part(plan, fill, from, (tell, FetchOutcome::NoPart)).await;
        }
    };
    let is_part = part_bytes.is_some();
    let verdict = storability_of(plan, &response, is_part, times);
    let vary = Vary::parse(response.headers()).union(&known_names(plan, is_part)).union(&plan.route.key_headers);
    // Together, the names that earlier responses brought and those of this one may be too many.
    let is_bounded = vary != Vary::Any;
    let names = match vary {
        Vary::Names(names) => names,
        Vary::Nothing | Vary::Any => Vec::new(),
    };
    let is_of_client = varies_by_address(plan, &names);
    let mut variant = Vec::new();
    push_variant(&mut variant, &names, &plan.headers);
    let mut headers = response.headers().clone();
    headers.append(VIA, worker.via.clone());
    // An object that cannot be found by its tags must not be stored.
    let is_tagged = tag(plan, &mut fill, &headers);
    if plan.route.strips_tags {
        strip(&mut headers);
    }
    let own_cookies = if keeps_cookies(&plan.route, &headers) { Vec::new() } else { cookies::take(&mut headers) };
    let is_good = is_tagged && is_bounded && !is_of_client && from != Sender::DoubtfulOrigin;
    let metadata = (is_good && verdict.is_storable()).then(|| to_metadata(status, &headers, times)).flatten();
    let Some(metadata) = metadata else {
        // After a server error the next response may be storable, so the key is not remembered.
        if !is_trouble(status) {
            let reason = match verdict {
                Storability::Authorization => HitForMissReason::Authorization,
                _ => HitForMissReason::Response,
            };
            remember(plan, reason, times.response_ms);
        }
        fill.decline();
        _ = tell.send(FetchOutcome::Direct(response, lease));
        let is_newer = verdict.is_storable() && !is_trouble(status);
        if plan.stale.is_some() && (is_newer || verdict.supersedes(status)) {
            supersede(plan, from).await;
        }
        return;
    };
    let body_bytes = part_bytes.or(announced_bytes);
    // Wait until the store has room, so that clients are told correctly whether the response is stored (`is_promised`).
    fill.wait_for_room(&variant, &metadata, body_bytes).await;
    let is_too_large = body_bytes.is_some_and(|bytes| bytes > fill.object_bytes_max());
    if !fill.start(&variant, metadata, body_bytes) {
        drop(fill);
        if is_too_large {
            remember_size(plan, &names, times.response_ms);
        }
        let told =
            if is_too_large { FetchOutcome::TooLarge(response, lease) } else { FetchOutcome::Refused(response, lease) };
        _ = tell.send(told);
        if is_too_large && plan.stale.is_some() && !is_trouble(status) {
            supersede(plan, from).await;
        }
        return;
    }
    // The fetch continues even if no request waits for it any more.
    _ = tell.send(FetchOutcome::Streaming(status.as_u16(), own_cookies));
    let node = plan.to.as_ref().filter(|_| from == Sender::Node);
    let node = node.map(|to| NodeBody::new(worker, (to, &plan.head), &response, plan.asked.clone()));
    let body = response.into_body();
    let mut pieces = match node {
        Some(node) => node.pieces(body, lease),
        None => pieces(body, lease),
    };
    let mut left_bytes = Some(fill.object_bytes_max());
    while let Some(piece) = pieces.next().await {
        let written = match piece {
            Ok(piece) => {
                left_bytes = left_bytes.and_then(|left| {
                    let left = left.checked_sub(piece.len() as u64);
                    if left.is_none() {
                        // A body without an announced length has turned out to be too long.
                        remember_size(plan, &names, worker.now_ms());
                    }
                    left
                });
                fill.write(piece).await.map_err(|error| error.to_string())
            }
            Err(error) => Err(error.to_string()),
        };
        if written.is_err() {
            worker.stats.failed_fills.add(1);
            return;
        }
    }
    if fill.finish().await.is_err() {
        // A worker that stops has left the store: the body went to its clients alone.
        worker.stats.failed_fills.add(u64::from(!worker.is_leaving.get()));
        return;
    }
    if !names.is_empty()
        && names != plan.names
        && let Some(marker) = encode_marker(&names)
    {
        let variant = if is_part { PART_MARKER } else { b"" };
        // If the marker cannot be stored, later requests do not find the variant. This only costs a miss.
        _ = worker.store.put(KeyRef::new(&plan.key, variant), marker, bytes::Bytes::new()).await;
    }
}

/// The names by which the URL is known to vary, for a response that is a part or a whole one.
fn known_names(plan: &FetchPlan, is_part: bool) -> Cow<'_, [HeaderName]> {
    if plan.part.is_none() || is_part {
        return Cow::Borrowed(&plan.names);
    }
    plan.names.iter().filter(|name| *name != PART_NAME).cloned().collect()
}

/// Whether a response with these names in `Vary` depends on the client's address, which the proxy has told the origin
/// and which is in no key.
fn varies_by_address(plan: &FetchPlan, names: &[HeaderName]) -> bool {
    let is_added = |name: &HeaderName| plan.head.headers.contains_key(name) && !plan.headers.contains_key(name);
    names.iter().any(|name| (*name == FORWARDED || name == "x-forwarded-for") && is_added(name))
}

/// Remembers that the response to such a request could not be stored.
fn remember(plan: &FetchPlan, reason: HitForMissReason, now_ms: u64) {
    plan.worker.hit_for_miss.borrow_mut().insert(&plan.key, &plan.headers, reason, now_ms);
}

/// Remembers that the response was too long, unless its length may depend on more of the request than `Accept-Encoding`.
fn remember_size(plan: &FetchPlan, names: &[HeaderName], now_ms: u64) {
    if names.iter().all(|name| *name == ACCEPT_ENCODING) {
        remember(plan, HitForMissReason::Size, now_ms);
    }
}

/// Gives the fetched object the tags that `headers` name; false if a tag is too long or there are too many.
fn tag(plan: &FetchPlan, fill: &mut Fill, headers: &HeaderMap) -> bool {
    let mut tags = tags_of(headers, origin_of(&plan.key));
    tags.extend_from_slice(&plan.route.tags);
    fill.tag(tags.iter().map(Vec::as_slice)).is_ok()
}

/// Whether cookies are stored with the response that has these headers.
fn keeps_cookies(route: &SiteRoute, headers: &HeaderMap) -> bool {
    route.policy.cookies(headers) == CookieTreatment::Kept
}

/// Whether a status says nothing about the resource, because it is a server error or no status of HTTP (RFC 9110, 15).
fn is_trouble(status: StatusCode) -> bool {
    status.as_u16() >= 500
}

fn storability_of(plan: &FetchPlan, response: &Response<Incoming>, is_part: bool, times: ExchangeTimes) -> Storability {
    let request = (&Method::GET, &plan.key[..], &plan.headers, &plan.directives);
    let status = if is_part { StatusCode::OK } else { response.status() };
    plan.route.policy.storability(request, (status, response.headers(), times.response_ms))
}
