//! Whose turn it is: the owners of a key are asked one after another.
//!
//! Owns: the order, how long an answer is waited for, and what is asked meanwhile. An owner whose answer is late waits for a
//! slow origin, or is dead: it has to show a sign of life, and the next owner is asked what it has stored. Neither goes to
//! the origin, so a slow one gets one request. Only if there is no sign of life, the next owner is asked in full.

use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http::Response;
use nectary_host::fleet::peer_headers::{STORED_FRESH, STORED_ON_ERROR, STORED_UNREACHABLE};
use nectary_host::fleet::{FleetNode, NodeName};
use tokio::time::{Instant, timeout, timeout_at};

use super::asking::{NodeVerdict, PeerAnswer, PeerQuestion, QuestionTerms};
use super::pace::WAIT_MAX;
use crate::fleet::FleetPeers;
use crate::rules::serve::OriginFailure;
use crate::upstream::{ConnectionLease, FetchError};
use crate::worker::ProxyWorker;

/// How long owners are waited for that show signs of life; then this node asks the origin, too.
const PATIENCE_MAX: Duration = Duration::from_secs(10);

/// The time from a sign of life to the next request for one.
const LIFE_INTERVAL: Duration = Duration::from_secs(1);

/// The bounds of the time that a sign of life may take. Within them it is the time of nearly all answers.
const LIFE_TIME_MIN: Duration = Duration::from_millis(250);
const LIFE_TIME_MAX: Duration = Duration::from_millis(500);

/// What has come of a request to a node.
enum TurnReport {
    /// The answer to the question in the turn of this number.
    Question(usize, NodeVerdict),
    /// The answer of a store to a hedge.
    Stored(NodeVerdict),
    /// Whether the node of this turn lives.
    Life(usize, bool),
}

/// How a turn ends.
enum TurnEnd {
    /// With an answer.
    Answered(Box<PeerAnswer>),
    /// It is the next one's turn.
    Next,
    /// Nobody else is asked, but the origin.
    Origin,
}

/// The requests to nodes that are under way.
type RunningRequests = FuturesUnordered<Pin<Box<dyn Future<Output = TurnReport>>>>;

/// The turns of one question.
struct OwnerTurns<'a> {
    question: &'a Rc<PeerQuestion>,
    worker: &'a Rc<ProxyWorker>,
    asked: QuestionTerms,
    nodes: Vec<&'a FleetNode>,
    running: RunningRequests,
    hedges: HedgedNodes<'a>,
    /// When this node has waited long enough.
    patience: Instant,
}

impl PeerQuestion {
    /// Asks the owners until one answers: the next one when one has failed, or shows no sign of life. *Returns*: `None` if nobody
    /// has answered, or the first one has nothing stored and must not ask the origin, or the origin has been waited for
    /// long; then this node asks that.
    ///
    /// Call it after the fill has begun in which a copy is kept.
    pub async fn ask(self: &Rc<Self>, worker: &Rc<ProxyWorker>) -> Option<PeerAnswer> {
        let mut turns = OwnerTurns {
            question: self,
            worker,
            asked: QuestionTerms::now(worker, self.is_of_stores.then_some(STORED_FRESH))?,
            nodes: self.owners.others().collect(),
            running: RunningRequests::new(),
            hedges: HedgedNodes { peers: &self.peers, nodes: Vec::new() },
            patience: Instant::now() + PATIENCE_MAX.min(self.peers.rules.times.response),
        };
        let mut found = None;
        for turn in 0..turns.nodes.len() {
            if !turns.may_ask(turn) {
                self.left_out.borrow_mut().push(turns.nodes[turn].clone());
                continue;
            }
            match turns.take(turn).await {
                TurnEnd::Next => {}
                TurnEnd::Origin => break,
                TurnEnd::Answered(answer) => {
                    turns.hedges.won_by(&answer.from);
                    found = Some(*answer);
                    break;
                }
            }
        }
        learn(worker, turns.running);
        found
    }

    /// Asks the nodes that [`ask`](PeerQuestion::ask) has left out, as the origin has given nothing.
    pub async fn ask_left_out(self: &Rc<Self>, worker: &Rc<ProxyWorker>) -> Option<PeerAnswer> {
        let nodes = self.left_out.take();
        self.ask_in_turn(worker, nodes, None).await
    }

    /// Asks again if the origin has given nothing: the nodes that were left out, and for a `HEAD` the first owner, which may
    /// have what is stale. Only if nothing was sent to the origin they may ask that, too.
    pub async fn ask_again<T>(
        self: &Rc<Self>,
        worker: &Rc<ProxyWorker>,
        found: &Result<(Response<T>, ConnectionLease), FetchError>,
    ) -> Option<PeerAnswer> {
        let failure = match found {
            Ok((response, _)) => OriginFailure::of(response.status()).filter(|_| self.is_of_stores)?,
            Err(error) => error.failure(),
        };
        let mut nodes = self.left_out.take();
        if !self.is_of_stores {
            return self.ask_in_turn(worker, nodes, None).await;
        }
        if let Some(owner) = self.owners.others().next()
            && nodes.iter().all(|node| node.name != owner.name)
        {
            nodes.insert(0, owner.clone());
        }
        let stored = match failure {
            _ if found.as_ref().is_err_and(FetchError::is_of_connecting) => None,
            OriginFailure::Error => Some(STORED_ON_ERROR),
            OriginFailure::Unreachable => Some(STORED_UNREACHABLE),
        };
        self.ask_in_turn(worker, nodes, stored).await
    }

    /// Asks nodes one after another until one answers.
    async fn ask_in_turn(
        self: &Rc<Self>,
        worker: &Rc<ProxyWorker>,
        nodes: Vec<FleetNode>,
        stored: Option<&'static str>,
    ) -> Option<PeerAnswer> {
        let asked = QuestionTerms::now(worker, stored)?;
        for node in nodes {
            let late = self.peers.counts.of(&node.name);
            match timeout(WAIT_MAX, self.clone().ask_one(worker.clone(), node, asked)).await {
                Ok(NodeVerdict::Answers(answer)) => return Some(*answer),
                Ok(_) => {}
                Err(_) => late.late.add(1),
            }
        }
        None
    }
}

impl OwnerTurns<'_> {
    fn may_ask(&self, turn: usize) -> bool {
        let now = std::time::Instant::now();
        self.worker.peer_paces.borrow_mut().may_ask(&self.nodes[turn].name, now)
    }

    /// Asks the node whose turn it is, and waits for it, or for the answer of any other.
    async fn take(&mut self, turn: usize) -> TurnEnd {
        let name = &self.nodes[turn].name;
        let answers = self.worker.peer_paces.borrow_mut().answers(name);
        if !self.running.is_empty() {
            self.hedges.nodes.push(name.clone());
        }
        self.ask_in_full(turn);
        let mut until = Instant::now() + self.worker.peer_paces.borrow_mut().wait(name);
        let mut is_late = false;
        loop {
            match timeout_at(until.min(self.patience), self.running.next()).await {
                Ok(Some(TurnReport::Question(_, NodeVerdict::Answers(answer)))) => return TurnEnd::Answered(answer),
                Ok(Some(TurnReport::Stored(NodeVerdict::Answers(answer)))) => return TurnEnd::Answered(answer),
                // An owner that is only late may still have it.
                Ok(Some(TurnReport::Question(of, NodeVerdict::HasNothing)))
                    if self.running.is_empty() && of == turn =>
                {
                    return TurnEnd::Origin;
                }
                Ok(Some(TurnReport::Question(of, NodeVerdict::CannotAnswer))) if of == turn => return TurnEnd::Next,
                Ok(Some(TurnReport::Life(of, true))) if of == turn => until = Instant::now() + LIFE_INTERVAL,
                Ok(Some(TurnReport::Life(of, false))) if of == turn => return TurnEnd::Next,
                Ok(Some(_)) => {}
                Ok(None) => return TurnEnd::Next,
                Err(_) if Instant::now() >= self.patience => return TurnEnd::Origin,
                Err(_) => {
                    if !is_late {
                        self.question.peers.counts.of(name).late.add(1);
                    }
                    if self.question.is_of_stores {
                        self.worker.peer_paces.borrow_mut().late(name, answers, std::time::Instant::now());
                        return TurnEnd::Next;
                    }
                    if !is_late {
                        self.ask_next_store(turn);
                    }
                    self.ask_for_life(turn);
                    (is_late, until) = (true, self.patience);
                }
            }
        }
    }

    fn ask_in_full(&self, turn: usize) {
        let (question, worker, node) = (self.question.clone(), self.worker.clone(), self.nodes[turn].clone());
        let asked = self.asked;
        self.running
            .push(Box::pin(async move { TurnReport::Question(turn, question.ask_one(worker, node, asked).await) }));
    }

    /// Asks the next owner for what it has stored, unless that was invalidated.
    fn ask_next_store(&mut self, turn: usize) {
        let next = (turn + 1..self.nodes.len()).find(|next| self.may_ask(*next));
        let Some(next) = next.filter(|_| !self.question.is_invalidated()) else { return };
        let (question, worker, node) = (self.question.clone(), self.worker.clone(), self.nodes[next].clone());
        self.hedges.nodes.push(node.name.clone());
        let asked = self.asked.of_store();
        self.running.push(Box::pin(async move { TurnReport::Stored(question.ask_one(worker, node, asked).await) }));
    }

    /// Asks a node whether it lives.
    fn ask_for_life(&self, turn: usize) {
        let (question, worker, node) = (self.question.clone(), self.worker.clone(), self.nodes[turn].clone());
        let asked = self.asked;
        let longest = worker.peer_paces.borrow_mut().wait(&node.name).clamp(LIFE_TIME_MIN, LIFE_TIME_MAX);
        self.running.push(Box::pin(async move {
            let lives = timeout(longest, question.has_life(&worker, &node, asked)).await.unwrap_or(false);
            let mut paces = worker.peer_paces.borrow_mut();
            match lives {
                true => paces.lives(&node.name),
                false => paces.failed(&node.name, std::time::Instant::now()),
            }
            TurnReport::Life(turn, lives)
        }));
    }
}

/// The nodes that were asked because others were late. When this is dropped, those of them whose answer was not used are
/// counted as lost.
struct HedgedNodes<'a> {
    peers: &'a FleetPeers,
    nodes: Vec<NodeName>,
}

impl HedgedNodes<'_> {
    /// Notes whose answer is used.
    fn won_by(&mut self, node: &NodeName) {
        if let Some(index) = self.nodes.iter().position(|hedge| hedge == node) {
            self.peers.counts.of(&self.nodes.swap_remove(index)).hedges_won.add(1);
        }
    }
}

impl Drop for HedgedNodes<'_> {
    fn drop(&mut self) {
        self.nodes.iter().for_each(|node| self.peers.counts.of(node).hedges_lost.add(1));
    }
}

/// Lets requests go on for a while that are not waited for any more: when they are answered is known only then.
fn learn(worker: &Rc<ProxyWorker>, running: RunningRequests) {
    if !running.is_empty() {
        worker.connections.tasks.spawn_local(timeout(WAIT_MAX, running.for_each(|_| std::future::ready(()))));
    }
}
