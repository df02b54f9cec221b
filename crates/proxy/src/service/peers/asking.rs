//! Asking another node for an object that is in its share.
//!
//! Owns: the request, the order of the nodes that are asked, and which of their answers are used and kept.

use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http::header::HOST;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use hyper::body::Incoming;
use nectary_host::fleet::peer_headers::{
    CLIENT, FLEET, FRESH, FROM, HOP, PREFIX, REVISION, SECURE, STATE, STATE_OK, TAGS,
};
use nectary_host::fleet::{FleetNode, NodeName, OwnerOrder, Standing};
use tokio::time::{timeout, timeout_at};

use super::super::request::ClientRequest;
use crate::connections::Door;
use crate::fleet::{Peers, origin_of};
use crate::sites::Target;
use crate::upstream::{Destination, Forwarding, Lease, Reach, RequestBody, RequestHead, exchange};
use crate::wire::http1::informational::Informational;
use crate::worker::Worker;

/// A question to the owners of a key.
pub(in crate::service) struct PeerQuestion {
    owners: OwnerOrder,
    head: RequestHead,
    peers: Arc<Peers>,
    key: Vec<u8>,
    client: IpAddr,
}

/// The answer of another node.
pub(in crate::service) struct PeerAnswer {
    pub response: Response<Incoming>,
    pub lease: Lease,
    /// Whether a copy may be kept.
    pub may_keep: bool,
}

impl ClientRequest {
    /// Whether this node keeps what it fetches for this request in memory alone, as the key is another node's.
    pub(in crate::service) fn is_copy(&self) -> bool {
        self.owners().is_some_and(|owners| !owners.is_own())
    }

    /// The owners of this request's key; `None` if it is for no share.
    fn owners(&self) -> Option<OwnerOrder> {
        let (seat, _) = self.worker.fleet.as_ref().zip(self.worker.peers.as_ref())?;
        // A copy without the tags that clients do not get could not be purged by them.
        let is_shared = matches!(self.route.target, Target::Pool(_)) && !self.route.strips_tags && self.part.is_none();
        is_shared.then(|| seat.membership().owners(&self.key))
    }

    /// The question to the nodes that own this request's key before this one; `None` if there are none, or if this node may
    /// ask nobody.
    pub(in crate::service) fn peer_question(&self) -> Option<PeerQuestion> {
        if self.client.door == Door::Fleet || self.standing() != Standing::Member {
            return None;
        }
        let owners = self.owners().filter(|owners| !owners.is_own())?;
        let (seat, peers) = self.worker.fleet.as_ref().zip(self.worker.peers.as_ref())?;
        let host = match self.uri.authority() {
            Some(authority) => HeaderValue::from_str(authority.as_str()).ok()?,
            None => self.headers.get(HOST)?.clone(),
        };
        // The owner reads the headers about earlier hops as if the client had come to it.
        let forwarding = Forwarding {
            peer: self.client.address.ip(),
            is_secure: self.client.is_secure,
            is_trusted: true,
            is_told: false,
            keyed: &self.route.key_headers,
        };
        let via = self.worker.via_of(self.version);
        let mut head = RequestHead::new(Method::GET, &self.uri, &self.headers, "peer", via, &forwarding);
        head.ask_for_all();
        head.accept(&self.headers, &self.route.request_headers);
        remove_ours(&mut head.headers);
        head.headers.insert(HOST, host);
        let mut say = |name: &'static str, value: &str| {
            HeaderValue::from_str(value).ok().map(|value| head.headers.insert(HeaderName::from_static(name), value))
        };
        say(HOP, "1");
        say(FROM, seat.membership().name().as_str());
        if let Some(address) = self.client.own_address() {
            say(CLIENT, &address.to_string());
        }
        say(SECURE, if self.client.is_secure { "1" } else { "0" });
        Some(PeerQuestion {
            owners,
            head,
            peers: peers.clone(),
            key: self.key.clone(),
            client: self.client.address.ip(),
        })
    }
}

/// Removes the headers of requests between nodes.
pub(super) fn remove_ours(headers: &mut HeaderMap) {
    let ours: Vec<HeaderName> = headers.keys().filter(|name| name.as_str().starts_with(PREFIX)).cloned().collect();
    ours.iter().for_each(|name| _ = headers.remove(name));
}

/// What this node has applied when it asks.
#[derive(Clone, Copy)]
struct Asked {
    fleet: u64,
    /// What the answering node must have applied.
    applied: u64,
    /// What it must have applied if a copy is kept.
    begun: u64,
}

impl PeerQuestion {
    /// Asks the owners until one answers: the next one when one has failed, and also when it has not answered in the time in
    /// which it nearly always does. *Returns*: `None` if nobody has answered; then the origin is asked.
    ///
    /// Call it after the fill has begun in which a copy is kept.
    pub async fn ask(&self, worker: &Rc<Worker>) -> Option<PeerAnswer> {
        let gate = worker.fleet.as_ref()?.gate();
        // The fill has begun before `begun` is read: what the store has begun to apply later ends it.
        let asked = Asked { begun: gate.begun(), applied: gate.applied(), fleet: gate.fleet() };
        if asked.fleet == 0 {
            return None;
        }
        let mut nodes = self.owners.others();
        let mut running = FuturesUnordered::<Pin<Box<dyn Future<Output = Option<PeerAnswer>> + '_>>>::new();
        loop {
            let node = nodes.by_ref().find(|node| worker.peer_paces.borrow_mut().may_ask(&node.name, Instant::now()));
            let node = node?;
            running.push(Box::pin(self.ask_one(worker, node, asked)));
            let ends = tokio::time::Instant::now() + worker.peer_paces.borrow_mut().wait(&node.name);
            loop {
                match timeout_at(ends, running.next()).await {
                    Ok(Some(Some(answer))) => return Some(answer),
                    // The others go on, if there are any.
                    Ok(Some(None)) if !running.is_empty() => {}
                    Ok(_) => break,
                    Err(_) => {
                        worker.peer_paces.borrow_mut().failed(&node.name, Instant::now());
                        break;
                    }
                }
            }
        }
    }

    /// Asks a node.
    async fn ask_one(&self, worker: &Rc<Worker>, node: &FleetNode, asked: Asked) -> Option<PeerAnswer> {
        let begun = Instant::now();
        let found = self.exchange_with(worker, node, asked).await;
        match &found {
            Some(_) => worker.peer_paces.borrow_mut().answered(&node.name, begun.elapsed()),
            None => worker.peer_paces.borrow_mut().failed(&node.name, Instant::now()),
        }
        found
    }

    async fn exchange_with(&self, worker: &Rc<Worker>, node: &FleetNode, asked: Asked) -> Option<PeerAnswer> {
        let origin = origin_of(node)?;
        let to = Destination::new(origin, Reach::Everywhere, self.client, self.peers.rules.clone());
        let mut head = self.head.clone();
        head.headers.insert(HeaderName::from_static(REVISION), HeaderValue::from(asked.applied));
        let invalidation = self.peers.invalidation_of(&self.key);
        if invalidation.is_some() {
            head.headers.insert(HeaderName::from_static(FRESH), HeaderValue::from_static("1"));
        }
        let fleet = HeaderValue::from_str(&format!("{:016x}", asked.fleet)).ok()?;
        head.headers.insert(HeaderName::from_static(FLEET), fleet);
        let sent = exchange(&worker.upstream, &to, head, RequestBody::Empty, &|_: &Informational| {});
        let (mut response, lease) = timeout(self.peers.rules.times.response, sent).await.ok()?.ok()?;
        let revision = usable(&response, asked)?;
        invalidation.iter().for_each(|number| self.peers.note_fresh(&self.key, *number));
        let has_all_tags = !response.headers().contains_key(TAGS);
        remove_ours(response.headers_mut());
        Some(PeerAnswer { response, lease, may_keep: has_all_tags && revision >= asked.begun })
    }
}

/// The revision that a node had applied before it looked, if its answer may be used. One of a node that could not reach the
/// origin says nothing: this one may reach it.
fn usable(response: &Response<Incoming>, asked: Asked) -> Option<u64> {
    let text = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
    let is_gateway = matches!(response.status(), StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT);
    let is_fleet = text(FLEET).and_then(|text| u64::from_str_radix(text, 16).ok()) == Some(asked.fleet);
    let revision = text(REVISION).and_then(|text| text.parse().ok())?;
    (text(STATE) == Some(STATE_OK) && is_fleet && !is_gateway && revision >= asked.applied).then_some(revision)
}

/// The name of the node that asks, as it says.
pub(super) fn name_of(headers: &HeaderMap) -> Option<NodeName> {
    NodeName::new(headers.get(FROM)?.to_str().ok()?)
}
