//! Answering another node.
//!
//! Owns: whose request it is, whether this node may answer it, and what the answer says beside the response.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use http::header::CACHE_STATUS;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use hyper::body::{Body, Incoming};
use nectary_host::fleet::peer_headers::{
    CLIENT, FLEET, FRESH, HOP, PART, REVISION, RULES, SECURE, STATE, STATE_AWAY, STATE_BEHIND, STATE_FAILED,
    STATE_NONE, STATE_OK,
};
use nectary_host::fleet::{NodeStanding, RulesHash};
use tokio::time::timeout;

use super::super::cached;
use super::super::parts;
use super::super::reply::{LackingResponse, own};
use super::super::request::{ClientRequest, RequestClient};
use super::asking::name_of;
use crate::body::ReplyBody;
use crate::connections::EntranceRole;
use crate::sites::RouteTarget;
use crate::worker::ProxyWorker;

/// How long a request waits until this node has applied what the asking one has.
const REACH_TIME_MAX: Duration = Duration::from_millis(500);

/// The client for whom a node asks, whose question is counted. At other listeners the headers of nodes count for nothing.
pub(in crate::service) fn client_of(
    worker: &ProxyWorker,
    client: &Rc<RequestClient>,
    headers: &HeaderMap,
) -> Rc<RequestClient> {
    if client.door != EntranceRole::Fleet {
        return client.clone();
    }
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let address = text(CLIENT).and_then(|text| text.parse().ok());
    let mut own = client.with(client.exchange.clone());
    own.is_unnamed = address.is_none();
    // One without an address counts as the machine that it is on, as at the node that asks.
    own.address = SocketAddr::new(address.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)), 0);
    own.is_trusted = address.is_some_and(|address| worker.options.forwarded.trusts(address));
    own.is_secure = text(SECURE) == Some("1");
    own.node = worker.peers.as_ref().zip(name_of(headers)).map(|(peers, name)| peers.counts.of(&name));
    match &own.node {
        Some(node) => node.answered.questions.add(1),
        None => worker.stats.requests.add(1),
    }
    Rc::new(own)
}

/// Answers a request of another node: from the store, or from the origin, and from no other node.
pub(in crate::service) async fn answer(request: ClientRequest, body: Incoming) -> Response<ReplyBody> {
    let headers = &request.headers;
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let number = |name: &str, radix| text(name).and_then(|text| u64::from_str_radix(text, radix).ok());
    let (is_hop, revision, fleet) = (text(HOP) == Some("1"), number(REVISION, 10), number(FLEET, 16));
    let (Some(revision), Some(fleet), Some(_), true) = (revision, fleet, name_of(headers), is_hop) else {
        let text = "This address is for the nodes of a fleet, whose requests say where they come from.";
        return own(&request, StatusCode::BAD_REQUEST, "fleet", text, true);
    };
    if !matches!(request.method, Method::GET | Method::HEAD) || !body.is_end_stream() {
        let text = "Nodes ask each other only for objects.";
        return own(&request, StatusCode::METHOD_NOT_ALLOWED, "fleet", text, true);
    }
    // By other rules the same request may be for another key.
    let is_alike = text(RULES).and_then(RulesHash::parse) == Some(request.rules);
    let is_shared = is_alike && matches!(request.route.target, RouteTarget::Pool(_)) && !request.route.is_pass;
    let Some(seat) = request.worker.fleet.clone().filter(|_| is_shared) else { return not_here(&request, STATE_AWAY) };
    let gate = seat.gate();
    let may_serve =
        || !request.worker.is_leaving.get() && request.standing() == NodeStanding::Member && gate.fleet() == fleet;
    if !may_serve() {
        return not_here(&request, STATE_AWAY);
    }
    // The asking node has invalidated what this one may have: all variants of it, and what is being fetched.
    if request.headers.get(FRESH).is_some_and(|value| value == "1") {
        request.worker.stats.invalidations.add(1);
        if request.worker.store.purge_key(&request.key).await.is_err() {
            return not_here(&request, STATE_AWAY);
        }
    }
    if gate.applied() < revision && timeout(REACH_TIME_MAX, seat.membership().reach(revision)).await.is_err() {
        return not_here(&request, STATE_BEHIND);
    }
    // Read before anything is looked for. What this node has applied later ends what it looks for.
    let applied = gate.applied();
    if applied < revision || !may_serve() {
        return not_here(&request, STATE_BEHIND);
    }
    let name = seat.membership().name().clone();
    let is_of_part = request.headers.get(PART).is_some_and(|value| value == "1");
    let mut response = match request.route.part_bytes {
        None => cached::serve(request).await,
        Some(part_bytes) if is_of_part => parts::serve_part(request, part_bytes).await,
        Some(part_bytes) => parts::serve(request, part_bytes).await,
    };
    let state = match response.extensions().get() {
        None => STATE_OK,
        Some(LackingResponse::Failed) => STATE_FAILED,
        Some(LackingResponse::NotStored) => STATE_NONE,
    };
    say(response.headers_mut(), STATE, state);
    say(response.headers_mut(), REVISION, &applied.to_string());
    say(response.headers_mut(), FLEET, &format!("{fleet:016x}"));
    add_to_cache_status(response.headers_mut(), &format!("fleet=\"{name}\""));
    response
}

/// The answer of a node that cannot answer: the asking one goes on without it.
fn not_here(request: &ClientRequest, state: &str) -> Response<ReplyBody> {
    let text = "This node does not answer for its fleet at present.";
    let mut response = own(request, StatusCode::SERVICE_UNAVAILABLE, "fleet-away", text, false);
    say(response.headers_mut(), STATE, state);
    response
}

fn say(headers: &mut HeaderMap, name: &'static str, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(HeaderName::from_static(name), value);
    }
}

/// Adds a parameter to the last member of `NameCache-Status`, which is this node's.
pub(in crate::service) fn add_to_cache_status(headers: &mut HeaderMap, parameter: &str) {
    let mut values: Vec<_> = headers.get_all(CACHE_STATUS).iter().cloned().collect();
    let said = values
        .pop()
        .and_then(|own| HeaderValue::from_bytes(&[own.as_bytes(), b"; ", parameter.as_bytes()].concat()).ok());
    headers.remove(CACHE_STATUS);
    for value in values.into_iter().chain(said) {
        headers.append(CACHE_STATUS, value);
    }
}
