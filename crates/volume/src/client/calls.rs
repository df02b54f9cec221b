//! The calls of a session that have no answer yet, and what it knows of its server.
//!
//! Owns: numbers of operations, which of them are acknowledged, and until when the lease holds. Promises: a call that
//! has no answer is sent again on the next connection, in the order of the calls. Leaves to others: who calls
//! (`session`), and connections (`link`).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nectary_host::clock::since_boot;
use nectary_host::tls::ClientTls;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};

use super::error::Error;
use crate::format::Identity;
use crate::net::Address;
use crate::protocol::{Answer, Code, Failure, FileId, Held, Locked, Message, Shape};
use crate::tokens::Why;

/// The most calls without an answer; the sum is below the protocol's bound for a connection. Each kind has its share,
/// because some calls wait for other hosts, and these may wait for calls of another kind from this host. Operations,
/// and questions that a call asks while it changes a file, wait for nobody. Questions that show attributes wait for
/// commits of other hosts, requests for tokens for tokens of other hosts, a restarted server's questions for what it is
/// told then, and requests for locks for the programs that hold them.
const OPERATIONS_MAX: usize = 64;
const QUESTIONS_MAX: usize = 48;
const LOOKS_MAX: usize = 48;
const TOKENS_MAX: usize = 48;
const RESTART_MAX: usize = 8;
const LOCKS_MAX: usize = 40;
/// After so many answered operations the server is told that it may delete their replies.
const ACKNOWLEDGE_AFTER: u64 = 128;
/// The part of a lease in which I/O may begin, counted from when its last renewal was sent.
const IO_OF_LEASE: (u32, u32) = (6, 10);
/// The most operations whose acknowledgement the server has not received: the protocol's bound.
const UNACKNOWLEDGED_MAX: u64 = 1024;
/// Renewals without an answer that are remembered.
const TOLD_MAX: usize = 64;

/// The server of a session, and the identity of this client.
#[derive(Clone)]
pub struct ClientOptions {
    /// Where the server is.
    pub server: Address,
    /// TLS, if the server wants it.
    pub tls: Option<ClientTls>,
    /// The volume that is on the disk here.
    pub volume: Identity,
    /// The name of this host, for messages.
    pub host: String,
    /// 1 a FUSE mount, 2 a library.
    pub kind: u8,
}

/// What a server said when it was greeted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Welcomed {
    pub session: u64,
    pub epoch: u64,
    pub lease: Duration,
    pub server_ns: i64,
}

/// What the server asks of a client.
#[derive(Debug)]
pub(crate) enum Event {
    /// Appends up to this one are durable at the server.
    Durable(u64),
    /// The server is another incarnation: its memory is empty.
    Restarted,
    /// The server wants a token back, or a commit.
    Recalled(Held, Why),
    /// The kernel is to know that a file has at least this size; the answer names the number.
    Push(FileId, u64, u64),
}

/// A token that was granted, and what its file is.
#[derive(Debug)]
pub(super) struct Grant {
    pub held: Held,
    /// New ends are pushed to other hosts.
    pub is_watched: bool,
    pub shape: Option<Shape>,
}

/// The answer to a call.
#[derive(Debug)]
pub(super) enum Said {
    Answer(Answer),
    Granted(Grant),
    Found(Option<Locked>),
}

/// The share that a call belongs to.
#[derive(Debug, Clone, Copy)]
pub(super) enum Share {
    Operations,
    Questions,
    Looks,
    Tokens,
    /// The first and the last messages to a restarted server.
    Restart,
    /// Requests for locks that others hold.
    Locks,
}

/// What a session does.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionFigures {
    /// Its number.
    pub session: u64,
    /// The epoch of the server.
    pub epoch: u64,
    /// Operations that were answered.
    pub operations: u64,
    /// Questions that were answered.
    pub questions: u64,
    /// Operations and questions without an answer.
    pub waiting: usize,
    /// How often the connection was made again.
    pub reconnections: u64,
    /// Whether there is a connection; else why not, and when the next attempt is.
    pub trouble: Option<String>,
    /// Why the session ended, if it has.
    pub ended: Option<String>,
}

/// A call that waits for its answer.
pub(super) struct Waiting {
    pub message: Message,
    pub number: Option<u64>,
    pub is_restart: bool,
    pub reply: oneshot::Sender<Result<Said, Failure>>,
    /// Counts the call until it is answered.
    pub _turn: OwnedSemaphorePermit,
}

/// What a session knows.
#[derive(Default)]
pub(super) struct State {
    pub session: u64,
    pub epoch: u64,
    pub lease: Duration,
    /// The server's clock minus ours. *Units*: nanoseconds.
    pub clock_offset_ns: i64,
    pub next_number: u64,
    pub next_request: u64,
    pub waiting: BTreeMap<u64, Waiting>,
    /// Numbers without an answer.
    pub open_numbers: BTreeSet<u64>,
    told_acknowledged: u64,
    /// Renewals without an answer: when they were sent, and what they said.
    told: VecDeque<(u64, u64)>,
    heard_acknowledged: u64,
    pub drained: u64,
    /// Where frames of the bulk connection go while there is one.
    pub bulk: Option<mpsc::UnboundedSender<Vec<u8>>>,
    /// Those of the control connection.
    pub control: Option<mpsc::UnboundedSender<Vec<u8>>>,
    pub figures: SessionFigures,
}

impl State {
    fn acknowledged(&self) -> u64 {
        self.open_numbers.first().map_or(self.next_number, |first| *first).saturating_sub(1)
    }

    /// Whether the server keeps the reply of one more operation.
    pub fn has_room(&self) -> bool {
        self.next_number <= self.heard_acknowledged + UNACKNOWLEDGED_MAX
    }
}

/// The shared part.
pub(super) struct Inner {
    /// Renewals say when they were sent, counted from this moment, on a clock that also runs while the host is
    /// suspended.
    pub start: Duration,
    pub options: ClientOptions,
    pub incarnation: [u8; 16],
    state: Mutex<State>,
    /// Something is to be told to the server on the control connection.
    pub nudge: Notify,
    /// By `Share`.
    pub turns: [Arc<Semaphore>; 6],
    /// I/O may begin until then, counted from `start`. *Units*: nanoseconds.
    pub io_until_ns: AtomicU64,
    /// The lease ends then, counted in the same way.
    pub lease_until_ns: AtomicU64,
    pub renewed: Notify,
    /// Connections so far.
    connections: AtomicU64,
    pub events: mpsc::UnboundedSender<Event>,
    pub ended: watch::Sender<bool>,
}

/// This host's clock. *Units*: nanoseconds since 1970.
pub(super) fn wall_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// Whether this requests a lock without waiting for it.
pub(super) fn is_try_lock(message: &Message) -> bool {
    matches!(message, Message::Lock { waits: false, .. })
}

fn reason(state: &State) -> String {
    state.figures.ended.clone().unwrap_or_else(|| "it is over".to_owned())
}

/// Why calls fail that the server may have had.
pub(super) fn ended(state: &State) -> Error {
    Error::Ended { reason: reason(state), may_be_done: true }
}

/// The error of a call that the server has not had.
pub(super) fn not_done(state: &State) -> Error {
    Error::Ended { reason: reason(state), may_be_done: false }
}

impl Inner {
    /// A session that has not been greeted yet.
    pub fn new(options: ClientOptions, incarnation: [u8; 16], events: mpsc::UnboundedSender<Event>) -> Inner {
        Inner {
            start: since_boot(),
            options,
            incarnation,
            state: Mutex::new(State { next_number: 1, next_request: 1, ..State::default() }),
            nudge: Notify::new(),
            turns: [OPERATIONS_MAX, QUESTIONS_MAX, LOOKS_MAX, TOKENS_MAX, RESTART_MAX, LOCKS_MAX]
                .map(|turns| Arc::new(Semaphore::new(turns))),
            io_until_ns: AtomicU64::new(0),
            lease_until_ns: AtomicU64::new(0),
            renewed: Notify::new(),
            connections: AtomicU64::new(0),
            events,
            ended: watch::Sender::new(false),
        }
    }

    /// What it knows.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why calls fail once the session has ended.
    pub fn why_ended(&self) -> Error {
        ended(&self.state())
    }

    /// The number of the next connection.
    pub fn next_connection(&self) -> u64 {
        self.connections.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// The connection is made, and the server has introduced itself.
    pub fn connected(&self, welcome: &Welcomed, bulk: mpsc::UnboundedSender<Vec<u8>>) {
        let mut state = self.state();
        let is_new = state.epoch != 0 && state.epoch != welcome.epoch;
        if state.epoch != 0 {
            state.figures.reconnections += 1;
        }
        (state.session, state.epoch, state.lease) = (welcome.session, welcome.epoch, welcome.lease);
        state.figures.trouble = None;
        state.clock_offset_ns = welcome.server_ns.saturating_sub(wall_ns());
        if is_new {
            // What the earlier server was told does not hold for this one.
            state.waiting.retain(|_, waiting| {
                let is_lock = waiting.is_restart && is_try_lock(&waiting.message);
                !is_lock && !matches!(waiting.message, Message::Reclaim { .. })
            });
            let _ = self.events.send(Event::Restarted);
        }
        for (request, waiting) in &state.waiting {
            // A new server would mistake it for a lock that is held.
            if is_new && is_try_lock(&waiting.message) {
                continue;
            }
            let _ = bulk.send(waiting.message.encode(*request, state.epoch));
        }
        state.bulk = Some(bulk);
        drop(state);
        self.nudge.notify_one();
    }

    /// The bulk connection is gone.
    pub fn disconnected(&self, trouble: String) {
        let mut state = self.state();
        state.bulk = None;
        state.figures.trouble = Some(trouble);
    }

    /// The control connection is there; `None`: it is gone.
    pub fn controlled(&self, control: Option<mpsc::UnboundedSender<Vec<u8>>>) {
        self.state().control = control;
    }

    /// An answer came.
    pub fn answered(&self, request: u64, answer: Result<Said, Failure>) {
        let mut state = self.state();
        if let Err(failure) = &answer
            && failure.code == Code::Ended
        {
            let refused = state.waiting.remove(&request);
            drop(state);
            self.end(&failure.words);
            // This one was not done; what becomes of the others is not known.
            if let Some(refused) = refused {
                let _ = refused.reply.send(answer);
            }
            return;
        }
        let Some(waiting) = state.waiting.remove(&request) else { return };
        match waiting.number {
            Some(number) => {
                state.open_numbers.remove(&number);
                state.figures.operations += 1;
                if state.acknowledged() >= state.told_acknowledged + ACKNOWLEDGE_AFTER {
                    self.nudge.notify_one();
                }
            }
            None => state.figures.questions += 1,
        }
        // The caller may be gone.
        let _ = waiting.reply.send(answer);
    }

    /// The number that a renewal of this time reports: operations up to it are acknowledged.
    pub fn acknowledge(&self, sent_ns: u64) -> u64 {
        let mut state = self.state();
        state.told_acknowledged = state.acknowledged();
        if state.told.len() >= TOLD_MAX {
            state.told.pop_front();
        }
        let told = (sent_ns, state.told_acknowledged);
        state.told.push_back(told);
        told.1
    }

    /// The server heard what the renewal of this time said.
    pub fn heard(&self, sent_ns: u64) {
        let mut state = self.state();
        while state.told.front().is_some_and(|(sent, _)| *sent <= sent_ns)
            && let Some((_, acknowledged)) = state.told.pop_front()
        {
            state.heard_acknowledged = state.heard_acknowledged.max(acknowledged);
        }
    }

    /// No map here has blocks that appends up to this one freed.
    pub fn drained(&self) -> u64 {
        self.state().drained
    }

    /// The time since `start`.
    pub fn elapsed_ns(&self) -> u64 {
        u64::try_from(since_boot().saturating_sub(self.start).as_nanos()).unwrap_or(u64::MAX)
    }

    /// A renewal that was sent at `sent`, counted from `start`, was answered.
    pub fn renewed(&self, sent: Duration, lease: Duration, server_ns: i64, durable: u64) {
        let mut state = self.state();
        state.lease = lease;
        let _ = self.events.send(Event::Durable(durable));
        let ns = |until: Duration| u64::try_from(until.as_nanos()).unwrap_or(u64::MAX);
        self.io_until_ns.fetch_max(ns(sent + lease * IO_OF_LEASE.0 / IO_OF_LEASE.1), Ordering::AcqRel);
        self.lease_until_ns.fetch_max(ns(sent + lease), Ordering::AcqRel);
        self.renewed.notify_waiters();
        state.clock_offset_ns = server_ns.saturating_sub(wall_ns());
    }

    /// The session is over: every call fails.
    pub fn end(&self, reason: &str) {
        let waiting = {
            let mut state = self.state();
            state.figures.ended.get_or_insert(reason.to_owned());
            (state.bulk, state.control) = (None, None);
            std::mem::take(&mut state.waiting)
        };
        drop(waiting);
        self.turns.iter().for_each(|turns| turns.close());
        let _ = self.ended.send_replace(true);
        self.renewed.notify_waiters();
    }
}
