//! Asking another node for an object that is in its share.
//!
//! Owns: the request, and which answers are used and kept. Leaves to others: which nodes are asked, and when (`turns`).

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::header::{AGE, CACHE_CONTROL, HOST, PRAGMA, RANGE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};
use hyper::body::Incoming;
use nectary_host::fleet::peer_headers::{
    CLIENT, FLEET, FOUND, FOUND_HIT, FOUND_PASS, FRESH, FROM, HOP, PART, PREFIX, REVISION, RULES, SECURE, STALE, STATE,
    STATE_AWAY, STATE_BEHIND, STATE_FAILED, STATE_NONE, STATE_OK, STORED, STORED_FRESH, TAGS, VALIDATOR,
};
use nectary_host::fleet::{FleetNode, NodeName, NodeStanding, OwnerOrder};
use nectary_host::log::{LogLevel, LogThrottle};
use tokio::time::timeout;

use super::super::request::ClientRequest;
use super::body::AskedOfNode;
use crate::connections::EntranceRole;
use crate::fleet::{FleetPeers, origin_of};
use crate::rules::invalidate;
use crate::rules::tags::tags_of;
use crate::sites::RouteTarget;
use crate::upstream::{
    AddressReach, ConnectionLease, Destination, FetchError, ForwardingHops, RequestBody, RequestHead, exchange,
};
use crate::wire::http1::informational::InformationalResponse;
use crate::worker::ProxyWorker;

/// Limits how often it is logged that a node does not answer.
static SILENT: LogThrottle = LogThrottle::every(Duration::from_secs(60));

/// A question to the owners of a key.
pub(in crate::service) struct PeerQuestion {
    pub(super) owners: OwnerOrder,
    head: RequestHead,
    pub(super) peers: Arc<FleetPeers>,
    key: Vec<u8>,
    client: IpAddr,
    /// Whether nodes answer from their stores alone: no store is filled, so the origin is this node's to ask.
    pub(super) is_of_stores: bool,
    /// The nodes that were not asked, as they have not answered others.
    pub(super) left_out: RefCell<Vec<FleetNode>>,
}

/// The answer of another node.
pub(in crate::service) struct PeerAnswer {
    pub response: Response<Incoming>,
    pub lease: ConnectionLease,
    /// Whether a copy may be kept.
    pub may_keep: bool,
    /// Whether the node keeps it.
    pub is_kept: bool,
    /// The node.
    pub(super) from: NodeName,
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
        let are_parts_shared = self.route.part_bytes.is_none_or(|bytes| bytes <= SHARED_PART_MAX);
        let is_shared =
            matches!(self.route.target, RouteTarget::Pool(_)) && !self.route.strips_tags && are_parts_shared;
        is_shared.then(|| seat.membership().owners(&self.key))
    }

    /// The question to the nodes that own this request's key before this one; `None` if there are none, or if this node may
    /// ask nobody.
    pub(in crate::service) fn peer_question(&self, what: AskedOfNode) -> Option<Rc<PeerQuestion>> {
        if self.client.door == EntranceRole::Fleet || self.standing() != NodeStanding::Member {
            return None;
        }
        let owners = self.owners().filter(|owners| !owners.is_own())?;
        let (seat, peers) = self.worker.fleet.as_ref().zip(self.worker.peers.as_ref())?;
        let host = match self.uri.authority() {
            Some(authority) => HeaderValue::from_str(authority.as_str()).ok()?,
            None => self.headers.get(HOST)?.clone(),
        };
        // The owner reads the headers about earlier hops as if the client had come to it.
        let forwarding = ForwardingHops {
            peer: self.client.address.ip(),
            is_secure: self.client.is_secure,
            is_trusted: true,
            is_told: false,
            keyed: &self.route.key_headers,
        };
        let via = self.worker.via_of(self.version);
        let method = if what == AskedOfNode::Whole { Method::GET } else { self.method.clone() };
        let mut head = RequestHead::new(method, &self.uri, &self.headers, "peer", via, &forwarding);
        if what == AskedOfNode::Whole {
            head.ask_for_all();
            head.accept(&self.headers, &self.route.request_headers);
        }
        let part = self.part.filter(|_| what == AskedOfNode::Whole);
        if let Some(part) = part {
            head.headers.insert(RANGE, part.requested());
        }
        remove_ours(&mut head.headers);
        head.headers.insert(HOST, host);
        if let Some(validator) = &self.continues {
            // What the client demands was met by the first part.
            [CACHE_CONTROL, PRAGMA].iter().for_each(|name| _ = head.headers.remove(name));
            head.headers.insert(HeaderName::from_static(VALIDATOR), validator.clone());
        }
        let mut say = |name: &'static str, value: &str| {
            HeaderValue::from_str(value).ok().map(|value| head.headers.insert(HeaderName::from_static(name), value))
        };
        say(HOP, "1");
        say(FROM, seat.membership().name().as_str());
        say(RULES, &self.rules.to_string());
        if let Some(address) = self.client.own_address() {
            say(CLIENT, &address.to_string());
        }
        if part.is_some() {
            say(PART, "1");
        }
        say(SECURE, if self.client.is_secure { "1" } else { "0" });
        Some(Rc::new(PeerQuestion {
            owners,
            head,
            peers: peers.clone(),
            key: self.key.clone(),
            client: self.client.address.ip(),
            is_of_stores: what == AskedOfNode::ByClient && self.method == Method::HEAD,
            left_out: RefCell::default(),
        }))
    }
}

/// The longest parts that nodes share: a store keeps longer objects in no memory, so nodes could keep no copies of them, and
/// would ask for each again and again. *Units*: bytes.
const SHARED_PART_MAX: u64 = 128 << 10;

/// Removes the headers of requests between nodes.
pub(super) fn remove_ours(headers: &mut HeaderMap) {
    let ours: Vec<HeaderName> = headers.keys().filter(|name| name.as_str().starts_with(PREFIX)).cloned().collect();
    ours.iter().for_each(|name| _ = headers.remove(name));
}

/// What a node must meet to answer.
#[derive(Clone, Copy)]
pub(super) struct QuestionTerms {
    fleet: u64,
    /// What the answering node must have applied.
    applied: u64,
    /// What it must have applied if a copy is kept.
    begun: u64,
    /// What it may have stored to answer, if it must not ask the origin.
    stored: Option<&'static str>,
    /// Whether it is to say only that it is there.
    is_for_life: bool,
}

impl QuestionTerms {
    /// What counts for a question that begins now; `None` if this node may ask nobody.
    pub fn now(worker: &ProxyWorker, stored: Option<&'static str>) -> Option<QuestionTerms> {
        let gate = worker.fleet.as_ref()?.gate();
        // The fill has begun before `begun` is read: what the store has begun to apply later ends it.
        let begun = gate.begun();
        let (required, applied, fleet) = (gate.required(), gate.applied(), gate.fleet());
        let may_ask = fleet != 0 && required != u64::MAX;
        let (applied, begun) = (applied.max(required), begun.max(required));
        may_ask.then_some(QuestionTerms { fleet, applied, begun, stored, is_for_life: false })
    }

    /// The same for an answer from the store alone.
    pub fn of_store(self) -> QuestionTerms {
        QuestionTerms { stored: Some(STORED_FRESH), ..self }
    }
}

impl PeerQuestion {
    /// Whether what nodes have of the key was invalidated here, so that they are to purge it.
    pub(super) fn is_invalidated(&self) -> bool {
        self.peers.invalidation_of(&self.key).is_some()
    }

    /// Asks a node for a sign of life, which takes a `HEAD` of what it has stored.
    pub(super) async fn has_life(&self, worker: &Rc<ProxyWorker>, node: &FleetNode, asked: QuestionTerms) -> bool {
        let asked = QuestionTerms { is_for_life: true, ..asked.of_store() };
        let answer = self.send(worker, node, asked, false).await;
        answer.is_some_and(|(response, _)| is_state(&response, &[STATE_OK, STATE_NONE, STATE_FAILED]))
    }

    /// Asks a node.
    pub(super) async fn ask_one(
        self: Rc<Self>,
        worker: Rc<ProxyWorker>,
        node: FleetNode,
        asked: QuestionTerms,
    ) -> NodeVerdict {
        let begun = Instant::now();
        let counts = self.peers.counts.of(&node.name);
        counts.asked.questions.add(1);
        let found = self.exchange_with(&worker, &node, asked).await;
        let mut paces = worker.peer_paces.borrow_mut();
        let mut answered = || match asked.stored {
            // Answers from stores say nothing of those for which the origin is asked, too.
            Some(_) if !self.is_of_stores => paces.lives(&node.name),
            _ => paces.answered(&node.name, begun.elapsed()),
        };
        match found {
            Some(Reply::Usable(answer)) => {
                answered();
                NodeVerdict::Answers(answer)
            }
            Some(Reply::NotStored) => {
                counts.asked.misses.add(1);
                answered();
                NodeVerdict::HasNothing
            }
            // It may have no response of the origin, which says nothing about other requests.
            Some(Reply::Useless { is_away: false }) => {
                counts.asked.failed.add(1);
                answered();
                NodeVerdict::CannotAnswer
            }
            Some(Reply::Useless { is_away: true }) | None => {
                if found.is_some() { &counts.asked.refused } else { &counts.unreachable }.add(1);
                paces.failed(&node.name, Instant::now());
                NodeVerdict::CannotAnswer
            }
        }
    }

    /// *Returns*: `None` if the node cannot be asked.
    async fn exchange_with(&self, worker: &Rc<ProxyWorker>, node: &FleetNode, asked: QuestionTerms) -> Option<Reply> {
        let invalidation = self.peers.invalidation_of(&self.key);
        let mut response = self.send(worker, node, asked, invalidation.is_some()).await?;
        if invalidation.is_none() && usable(&response.0, asked).is_some() && self.is_outdated(worker, &response.0) {
            response = self.send(worker, node, asked, true).await?;
        }
        let (mut response, lease) = response;
        // It has purged what it had. Another node that was asked instead may do so, and the owner still has what was before.
        if is_state(&response, &[STATE_OK, STATE_NONE, STATE_FAILED])
            && self.owners.others().next().is_some_and(|owner| owner.name == node.name)
        {
            invalidation.iter().for_each(|number| self.peers.note_fresh(&self.key, *number));
        }
        let Some(revision) = usable(&response, asked) else {
            // Earlier programs are away for parts alone.
            let is_of_part = self.head.headers.contains_key(PART);
            let is_away = is_state(&response, &[STATE_BEHIND]) || (is_state(&response, &[STATE_AWAY]) && !is_of_part);
            return Some(if is_state(&response, &[STATE_NONE]) {
                Reply::NotStored
            } else {
                Reply::Useless { is_away }
            });
        };
        let found = |what: &str| response.headers().get(FOUND).is_some_and(|found| found == what);
        let (is_hit, is_kept) = (found(FOUND_HIT), !found(FOUND_PASS));
        let counts = self.peers.counts.of(&node.name);
        if is_hit { &counts.asked.hits } else { &counts.asked.misses }.add(1);
        let lease = lease.of_node(counts.asked.body_bytes.clone());
        let says_all = ![TAGS, STALE].iter().any(|name| response.headers().contains_key(*name));
        remove_ours(response.headers_mut());
        let may_keep = says_all && revision >= asked.begun;
        let from = node.name.clone();
        Some(Reply::Usable(Box::new(PeerAnswer { response, lease, may_keep, is_kept, from })))
    }

    /// Sends the request to a node. `is_fresh` says that the node has to purge what it has before.
    async fn send(
        &self,
        worker: &Rc<ProxyWorker>,
        node: &FleetNode,
        asked: QuestionTerms,
        is_fresh: bool,
    ) -> Option<(Response<Incoming>, ConnectionLease)> {
        let to = Destination::new(origin_of(node)?, AddressReach::Everywhere, self.client, self.peers.rules.clone());
        let mut head = self.head.clone();
        if asked.is_for_life {
            head.method = Method::HEAD;
        }
        head.headers.insert(HeaderName::from_static(REVISION), HeaderValue::from(asked.applied));
        if is_fresh {
            head.headers.insert(HeaderName::from_static(FRESH), HeaderValue::from_static("1"));
        }
        if let Some(stored) = asked.stored {
            head.headers.insert(HeaderName::from_static(STORED), HeaderValue::from_static(stored));
        }
        let fleet = HeaderValue::from_str(&format!("{:016x}", asked.fleet)).ok()?;
        head.headers.insert(HeaderName::from_static(FLEET), fleet);
        let sent = exchange(&worker.upstream, &to, head, RequestBody::Empty, &|_: &InformationalResponse| {});
        let answered = timeout(self.peers.rules.times.response, sent).await;
        let answered = answered.unwrap_or(Err(FetchError::TimedOut("responding")));
        let (name, counts) = (&node.name, self.peers.counts.of(&node.name));
        if let Err(error) = &answered {
            counts.note_failure(node.run, error.to_string(), Instant::now());
            SILENT.write(LogLevel::Warning, "proxy", format_args!("fleet: the node {name} cannot be asked: {error}"));
        } else {
            counts.note_asked();
        }
        answered.ok()
    }

    /// Whether a response of another node is older than an unsafe request that has invalidated one of its groups here.
    fn is_outdated(&self, worker: &ProxyWorker, response: &Response<Incoming>) -> bool {
        if !self.peers.has_invalidated_tags() {
            return false;
        }
        let headers = response.headers();
        if !names_groups(response.status(), headers) {
            return true;
        }
        let age_s = headers.get(AGE).and_then(|age| age.to_str().ok()?.parse::<u64>().ok()).unwrap_or(0);
        // An age is of whole seconds.
        let made_ms = worker.now_ms().saturating_sub(age_s.saturating_add(1).saturating_mul(1000));
        let tags = tags_of(headers, invalidate::origin_of(&self.key));
        tags.iter().any(|tag| self.peers.is_tag_invalidated_since(tag, made_ms))
    }
}

/// What a question to a node has given.
pub(super) enum NodeVerdict {
    Answers(Box<PeerAnswer>),
    /// It has nothing stored, and must not ask the origin.
    HasNothing,
    CannotAnswer,
}

/// What a node has said.
enum Reply {
    Usable(Box<PeerAnswer>),
    /// It has nothing stored that it may answer with.
    NotStored,
    /// Nothing that can be used; `is_away` says that it would say so of other requests, too.
    Useless {
        is_away: bool,
    },
}

/// Whether a node says one of these of its answer.
fn is_state(response: &Response<Incoming>, known: &[&str]) -> bool {
    response.headers().get(STATE).is_some_and(|state| known.iter().any(|known| state == *known))
}

/// The revision that a node had applied before it looked, if its answer may be used.
fn usable(response: &Response<Incoming>, asked: QuestionTerms) -> Option<u64> {
    let text = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
    let is_fleet = text(FLEET).and_then(|text| u64::from_str_radix(text, 16).ok()) == Some(asked.fleet);
    let revision = text(REVISION).and_then(|text| text.parse().ok())?;
    (text(STATE) == Some(STATE_OK) && is_fleet && revision >= asked.applied).then_some(revision)
}

/// Whether a response names all of its groups: a `304` of earlier programs, which do not say where it is from, names none.
fn names_groups(status: StatusCode, headers: &HeaderMap) -> bool {
    status != StatusCode::NOT_MODIFIED || headers.contains_key(FOUND)
}

/// The name of the node that asks, as it says.
pub(super) fn name_of(headers: &HeaderMap) -> Option<NodeName> {
    NodeName::new(headers.get(FROM)?.to_str().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::headers;

    #[test]
    fn earlier_304_names_no_groups() {
        let said = headers(&[(FOUND, FOUND_HIT)]);
        assert!(names_groups(StatusCode::NOT_MODIFIED, &said) && names_groups(StatusCode::OK, &HeaderMap::new()));
        assert!(!names_groups(StatusCode::NOT_MODIFIED, &HeaderMap::new()));
    }
}
