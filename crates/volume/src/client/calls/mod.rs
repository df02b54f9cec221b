//! The calls of a session that have no answer yet, and what the session knows of its server.
//!
//! Owns: the numbers of operations, their acknowledgements, the newest epoch, and the time until which the lease is
//! valid. Promises: calls without an answer are sent again on the next connection, in their original order. Leaves to others: making the
//! calls (`session`), and connections (`link`).

mod figures;
mod held_back;
mod keeping;
mod local;
mod options;
mod pending;
mod refusals;
mod renewals;
mod unstored;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::{Notify, Semaphore, mpsc, watch};

use super::error::Error;
use super::looks::LookupCache;
use crate::net::ServerAddress;
use crate::origin::ProcessOrigin;
use crate::protocol::{
    FileId, FileLockRange, FileShape, InodeAttributes, ListedName, RefusalCode, ServerAnswer, ServerRefusal,
    TokenGrant, VolumeMessage,
};
use crate::simulated::since_boot;
use crate::tokens::RecallReason;
pub use figures::{ConnectionTrouble, SessionFigures};
use held_back::is_try_lock;
use local::LocalNames;
pub(super) use local::{LocalOutcome, NUMBERS_WANTED, is_of_write};
pub use options::ClientOptions;
pub(super) use pending::PendingCall;
use refusals::CallRefusals;
use renewals::ToldRenewals;
use unstored::UnstoredOperations;

/// The maximum number of calls of each kind without an answer; the sum is below the protocol's bound for a connection.
/// Each kind has its own share, because some calls wait for other hosts, and these hosts may wait for calls of another
/// kind from this host. Questions during a change of a file wait for no other host. Operations wait for names and
/// attributes that other hosts keep, which these give back without a call. Questions that show attributes wait for
/// commits of other hosts, requests for tokens wait for tokens of other hosts, questions to a restarted server wait for
/// the calls that tell it what sessions hold, lock requests wait for the programs that hold the locks, and those that do
/// not wait for programs still wait for what all hosts hold to be known again.
const OPERATIONS_MAX: usize = 64;
const QUESTIONS_MAX: usize = 48;
const LOOKS_MAX: usize = 48;
const TOKENS_MAX: usize = 48;
const RESTART_MAX: usize = 8;
const LOCKS_MAX: usize = 28;
const TRY_LOCKS_MAX: usize = 12;
/// The part of a lease in which I/O may begin, counted from when the last answered renewal was sent.
const IO_OF_LEASE: (u32, u32) = (6, 10);
/// The maximum number of operations whose acknowledgement the server has not confirmed: the protocol's bound.
const UNACKNOWLEDGED_MAX: u64 = 1024;

/// The server's answer to the greeting.
#[derive(Debug, Clone, Copy)]
pub(super) struct WelcomeAnswer {
    pub session: u64,
    pub epoch: u64,
    pub lease: Duration,
    pub server_ns: i64,
}

/// A message of the server that the client must act on.
#[derive(Debug)]
pub(crate) enum ServerEvent {
    /// Appends up to this one are durable at the server.
    Durable(u64),
    /// Another process is the server now: it does not know what this session holds.
    Restarted,
    /// The server wants a token back, or wants a commit.
    Recalled(TokenGrant, RecallReason),
    /// The kernel must learn that a file has at least this size; the last field is the number that the answer repeats.
    Push(FileId, u64, u64),
    /// The lease was over before it was renewed: the server may have forgotten what the session keeps.
    Lapsed,
    /// The session needs more inode numbers.
    NumbersWanted,
    /// A name of a directory changes; the last field is the number that the answer repeats.
    NameChange(FileId, Vec<u8>, u64),
}

/// A granted token, with the attributes and extents of its file.
#[derive(Debug)]
pub(super) struct FileGrant {
    pub held: TokenGrant,
    /// The epoch of the server that granted it.
    pub epoch: u64,
    /// Whether new ends of the file must be pushed to other hosts.
    pub is_watched: bool,
    pub shape: Option<FileShape>,
}

/// The answer to a call.
#[derive(Debug)]
pub(super) enum CallAnswer {
    Answer(ServerAnswer),
    Granted(FileGrant),
    Found(Option<FileLockRange>),
    /// A name, or attributes, that the session may keep.
    Looked(LookupAnswer),
    /// Names of a directory that the session may keep.
    Listed(ListedToKeep),
}

/// The answer to a question about a name or attributes.
#[derive(Debug)]
pub(super) struct LookupAnswer {
    /// Whether the session may keep the name.
    pub is_name_kept: bool,
    /// Whether the session may keep the attributes.
    pub are_attributes_kept: bool,
    /// `None`: there is no such name.
    pub found: Option<InodeAttributes>,
}

/// The answer to a question for names of a directory.
#[derive(Debug)]
pub(super) struct ListedToKeep {
    /// Whether the session may keep the names.
    pub are_names_kept: bool,
    pub names: Vec<ListedName>,
    /// For each name, whether the session may keep the attributes.
    pub are_kept: Vec<bool>,
    pub is_end: bool,
}

/// The kind of a call; each kind has its own share of the bound on calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallShare {
    Operations,
    Questions,
    Looks,
    Tokens,
    /// The calls that tell a restarted server what the session holds, and the last call of a session.
    Restart,
    /// Requests that wait for file locks.
    Locks,
    /// Requests for file locks, and questions about them, that wait for no program.
    TryLocks,
}

/// The state of a session.
#[derive(Default)]
pub(super) struct SessionCalls {
    pub session: u64,
    /// The epoch of the server on the bulk connection: it knows what the session holds, or is being told.
    pub epoch: u64,
    /// The server that answered the last greeting.
    pub server: Option<ServerAddress>,
    pub lease: Duration,
    /// The server's clock minus this host's clock. *Units*: nanoseconds.
    pub clock_offset_ns: i64,
    pub next_number: u64,
    pub next_request: u64,
    pub waiting: BTreeMap<u64, PendingCall>,
    /// Operations that are answered and not known to be durable.
    pub unstored: UnstoredOperations,
    /// What the session may do itself.
    pub local: LocalNames,
    /// The numbers of operations without an answer, or not known to be durable.
    pub open_numbers: BTreeSet<u64>,
    renewals: ToldRenewals,
    pub drained: u64,
    /// The queue of frames to the bulk connection, while there is one.
    pub bulk: Option<mpsc::UnboundedSender<Vec<u8>>>,
    /// The queue of frames to the control connection, while there is one.
    pub control: Option<mpsc::UnboundedSender<Vec<u8>>>,
    /// What is wrong with the control connection.
    pub control_trouble: Option<ConnectionTrouble>,
    pub refusals: CallRefusals,
    /// Whether the server of this epoch is still being told which locks are held: it takes a request for a lock that does
    /// not wait for the claim of one.
    pub is_reclaiming: bool,
    /// Whether the session ends by itself: then its bulk connection alone says how that went.
    pub is_leaving: bool,
    pub figures: SessionFigures,
}

impl SessionCalls {
    fn acknowledged(&self) -> u64 {
        self.open_numbers.first().map_or(self.next_number, |first| *first).saturating_sub(1)
    }

    /// Whether the server can store the reply of one more operation.
    pub fn has_room(&self) -> bool {
        self.next_number <= self.renewals.heard_acknowledged() + UNACKNOWLEDGED_MAX
    }
}

/// The state that all tasks of a session share.
pub(super) struct SharedSession {
    /// The zero of the times in this struct and in renewals, on a clock that also runs while the host is suspended.
    pub start: Duration,
    pub options: ClientOptions,
    pub incarnation: [u8; 16],
    /// Where this client runs.
    pub origin: ProcessOrigin,
    state: Mutex<SessionCalls>,
    /// Wakes the control connection when it should send something.
    pub nudge: Notify,
    /// Names and attributes that the session keeps.
    pub looks: Arc<LookupCache>,
    /// The bounds on calls, one for each `CallShare`.
    pub turns: [Arc<Semaphore>; 7],
    /// I/O may begin until this time, counted from `start`. *Units*: nanoseconds.
    pub io_until_ns: AtomicU64,
    /// The lease ends at this time, counted from `start`. *Units*: nanoseconds.
    pub lease_until_ns: AtomicU64,
    pub renewed: Notify,
    /// Notified when an operation is answered, or known to be durable, and when a directory is returned.
    pub progressed: Notify,
    /// The newest epoch of a server that answered a greeting: messages of older ones are refused.
    newest_epoch: watch::Sender<u64>,
    /// The number of connections so far.
    connections: AtomicU64,
    pub events: mpsc::UnboundedSender<ServerEvent>,
    pub ended: watch::Sender<bool>,
}

/// Reads this host's clock. *Units*: nanoseconds since 1970.
pub(super) fn wall_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

fn reason(state: &SessionCalls) -> String {
    state.figures.ended.clone().unwrap_or_else(|| "it is over".to_owned())
}

/// Whether an answer is the result of an operation, which the server has stored; other failures use up no number.
fn is_result(answer: &Result<CallAnswer, ServerRefusal>) -> bool {
    let is_result =
        |code| matches!(code, RefusalCode::Posix | RefusalCode::Stale | RefusalCode::Full | RefusalCode::Damaged);
    answer.as_ref().err().is_none_or(|failure| is_result(failure.code))
}

/// The error of calls that the server may have received and done.
pub(super) fn ended(state: &SessionCalls) -> Error {
    Error::Ended { reason: reason(state), may_be_done: true }
}

/// The error of a call that the server has not done.
pub(super) fn not_done(state: &SessionCalls) -> Error {
    Error::Ended { reason: reason(state), may_be_done: false }
}

impl SharedSession {
    /// Makes a session that has not sent a greeting yet.
    pub fn new(
        options: ClientOptions,
        (incarnation, origin): ([u8; 16], ProcessOrigin),
        events: mpsc::UnboundedSender<ServerEvent>,
    ) -> SharedSession {
        SharedSession {
            start: since_boot(),
            options,
            incarnation,
            origin,
            state: Mutex::new(SessionCalls { next_number: 1, next_request: 1, ..SessionCalls::default() }),
            nudge: Notify::new(),
            looks: Arc::new(LookupCache::new()),
            turns: [OPERATIONS_MAX, QUESTIONS_MAX, LOOKS_MAX, TOKENS_MAX, RESTART_MAX, LOCKS_MAX, TRY_LOCKS_MAX]
                .map(|turns| Arc::new(Semaphore::new(turns))),
            io_until_ns: AtomicU64::new(0),
            lease_until_ns: AtomicU64::new(0),
            renewed: Notify::new(),
            progressed: Notify::new(),
            newest_epoch: watch::Sender::new(0),
            connections: AtomicU64::new(0),
            events,
            ended: watch::Sender::new(false),
        }
    }

    /// Locks and returns the state.
    pub fn state(&self) -> MutexGuard<'_, SessionCalls> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the error of calls after the session has ended.
    pub fn why_ended(&self) -> Error {
        ended(&self.state())
    }

    /// Notes the epoch of a server that answered a greeting. Returns `false` if a newer server has answered one before.
    pub fn welcomed(&self, epoch: u64, server: &ServerAddress) -> bool {
        let mut is_newest = true;
        self.newest_epoch.send_if_modified(|newest| {
            is_newest = epoch >= *newest;
            let is_newer = epoch > *newest;
            if is_newer {
                // The new server does not know what the session keeps. It assumes that this is dropped before the first *Reclaim*.
                self.looks.clear();
            }
            *newest = epoch.max(*newest);
            is_newer
        });
        if is_newest {
            self.state().server = Some(server.clone());
        }
        is_newest
    }

    /// Whether no server of a newer epoch has answered a greeting.
    pub fn is_newest(&self, epoch: u64) -> bool {
        *self.newest_epoch.borrow() <= epoch
    }

    /// Waits until a server of a newer epoch has answered a greeting.
    pub async fn replaced(&self, epoch: u64) {
        // The sender exists as long as `self`, so waiting cannot fail.
        let _ = self.newest_epoch.subscribe().wait_for(|newest| *newest > epoch).await;
    }

    /// Returns the servers, for messages.
    pub fn servers(&self) -> String {
        let shown: Vec<String> = self.options.servers.iter().map(ServerAddress::to_string).collect();
        shown.join(",")
    }

    /// Returns the server that answered last, or all, for messages.
    pub fn server(&self) -> String {
        self.state().server.as_ref().map_or_else(|| self.servers(), ServerAddress::to_string)
    }

    /// Returns how long the oldest renewal without an answer has waited. *Units*: nanoseconds.
    pub fn unanswered_ns(&self) -> u64 {
        let oldest = self.state().renewals.oldest_sent_ns();
        oldest.map_or(0, |sent_ns| self.elapsed_ns().saturating_sub(sent_ns))
    }

    /// Notes that the server answers no renewals, if the lease allows no I/O any more.
    pub fn unanswered(&self, what: String) {
        if !self.may_begin() {
            let what = format!("{what}: it is stopped, or its disk does not answer and another server may take over");
            self.state().control_trouble = Some(ConnectionTrouble { what, is_reachable: true });
        }
    }

    /// Forgets renewals that were sent on a connection that is lost.
    pub fn forget_renewals(&self) {
        self.state().renewals.forget_unanswered();
    }

    /// Whether the lease allows I/O to begin.
    pub fn may_begin(&self) -> bool {
        self.elapsed_ns() < self.io_until_ns.load(Ordering::Acquire)
    }

    /// Returns the number of the next connection.
    pub fn next_connection(&self) -> u64 {
        self.connections.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Handles a new bulk connection on which the server has answered the greeting. Returns whether a call is refused
    /// because it broke the earlier ones.
    pub fn connected(&self, welcome: &WelcomeAnswer, bulk: mpsc::UnboundedSender<Vec<u8>>) -> bool {
        let mut state = self.state();
        let is_new = state.epoch != 0 && state.epoch != welcome.epoch;
        if state.epoch != 0 {
            state.figures.reconnections += 1;
        }
        let refused = state.after_break(!is_new);
        let is_refused = refused.is_some();
        if let Some((request, failure)) = refused {
            drop(state);
            self.refuse(request, failure);
            state = self.state();
        }
        (state.session, state.epoch, state.lease) = (welcome.session, welcome.epoch, welcome.lease);
        state.clock_offset_ns = welcome.server_ns.saturating_sub(wall_ns());
        if is_new {
            // Messages that told the earlier server what the session holds are dropped: the new server is told again.
            state.waiting.retain(|_, waiting| {
                waiting.retry();
                let is_lock = waiting.share == CallShare::Restart && is_try_lock(&waiting.message);
                !is_lock && !matches!(waiting.message, VolumeMessage::Reclaim { .. })
            });
            state.local.clear();
            state.is_reclaiming = true;
            state.end_given_up();
            let _ = self.events.send(ServerEvent::Restarted);
        }
        // They came before all calls without an answer. A server may have been lost, or a connection to a new one, before
        // it did them; one that has them gives its stored replies.
        for (request, message) in state.first_again() {
            let _ = bulk.send(message.encode(request, state.epoch));
        }
        let is_careful = state.refusals.is_careful();
        for (request, waiting) in &state.waiting {
            if waiting.is_ahead || state.is_held_back(waiting) || (is_careful && waiting.share != CallShare::Restart) {
                continue;
            }
            let _ = bulk.send(waiting.message.encode(*request, state.epoch));
        }
        state.bulk = Some(bulk);
        match is_careful {
            true => state.send_next(),
            false => state.figures.trouble = None,
        }
        drop(state);
        self.nudge.notify_one();
        self.progressed.notify_waiters();
        is_refused
    }

    /// Handles the loss of the bulk connection; `is_broken`: the server gave no reason.
    pub fn disconnected(&self, trouble: ConnectionTrouble, is_broken: bool) {
        let mut state = self.state();
        state.bulk = None;
        self.progressed.notify_waiters();
        state.refusals.is_broken |= is_broken;
        state.figures.trouble = Some(trouble);
    }

    /// Handles a new control connection, or its loss (`None`).
    pub fn controlled(&self, control: Option<mpsc::UnboundedSender<Vec<u8>>>) {
        self.state().control = control;
    }

    /// Handles an answer.
    pub fn answered(&self, request: u64, answer: Result<CallAnswer, ServerRefusal>) {
        let mut state = self.state();
        if let Err(failure) = &answer
            && failure.code == RefusalCode::Ended
        {
            let refused = state.waiting.remove(&request);
            drop(state);
            self.end(&failure.words);
            // The refused call was not done; for the other calls this is unknown.
            if let Some(refused) = refused {
                refused.answer(answer);
            }
            return;
        }
        let is_numbered = state.waiting.get(&request).is_some_and(|waiting| waiting.number.is_some());
        if (is_numbered || state.unstored.has(request))
            && let Err(failure) = &answer
            && failure.code == RefusalCode::OutOfOrder
        {
            drop(state);
            return self.end(&format!("the server lacks an operation ({})", failure.words));
        }
        if state.local.has_ended(request) {
            drop(state);
            return self.progressed.notify_waiters();
        }
        if state.unstored.has(request)
            && let Err(failure) = &answer
        {
            drop(state);
            return self.end(&format!("the server refused what this host had done: {failure}"));
        }
        if let Ok(CallAnswer::Answer(ServerAnswer::Numbers { first, count })) = &answer {
            state.local.add_numbers(*first, *count);
        }
        let Some(mut waiting) = state.waiting.remove(&request) else {
            state.repeated(request);
            if state.renewals.is_due(state.acknowledged()) {
                self.nudge.notify_one();
            }
            drop(state);
            return self.progressed.notify_waiters();
        };
        waiting.end_change(&answer);
        match (waiting.number, waiting.done_at_ns) {
            (Some(_), Some(now_ns)) => {
                state.keep_unstored(request, waiting.message.clone(), now_ns, &answer);
                state.figures.operations += 1;
            }
            (Some(number), None) => {
                // What came before an operation that is durable is durable, too.
                if is_result(&answer) {
                    state.stored(number);
                }
                state.open_numbers.remove(&number);
                state.figures.operations += 1;
                if state.renewals.is_due(state.acknowledged()) {
                    self.nudge.notify_one();
                }
            }
            (None, _) => state.figures.questions += 1,
        }
        waiting.answer(answer);
        state.send_next();
        drop(state);
        self.progressed.notify_waiters();
    }

    /// Returns the number for the renewal sent at this time: operations up to it are acknowledged.
    pub fn acknowledge(&self, sent_ns: u64) -> u64 {
        let mut state = self.state();
        let acknowledged = state.acknowledged();
        state.renewals.tell(sent_ns, acknowledged);
        acknowledged
    }

    /// Notes that the server received the renewal that was sent at this time.
    pub fn heard(&self, sent_ns: u64) {
        self.state().renewals.hear(sent_ns);
    }

    /// Returns the sequence of an append of the journal. Blocks that it or an earlier append freed are in no cached map.
    pub fn drained(&self) -> u64 {
        self.state().drained
    }

    /// Returns the time since `start`.
    pub fn elapsed_ns(&self) -> u64 {
        u64::try_from(since_boot().saturating_sub(self.start).as_nanos()).unwrap_or(u64::MAX)
    }

    /// Extends the lease: a renewal that was sent at `sent`, counted from `start`, was answered.
    pub fn renewed(&self, sent: Duration, lease: Duration, server_ns: i64, (durable, stored): (u64, u64)) {
        let mut state = self.state();
        if state.figures.ended.is_some() {
            return;
        }
        state.stored(stored);
        state.lease = lease;
        state.control_trouble = None;
        let _ = self.events.send(ServerEvent::Durable(durable));
        let ns = |until: Duration| u64::try_from(until.as_nanos()).unwrap_or(u64::MAX);
        if !self.may_begin() {
            // The server may have forgotten what the session keeps.
            self.looks.clear();
            let _ = self.events.send(ServerEvent::Lapsed);
        }
        self.io_until_ns.fetch_max(ns(sent + lease * IO_OF_LEASE.0 / IO_OF_LEASE.1), Ordering::AcqRel);
        self.lease_until_ns.fetch_max(ns(sent + lease), Ordering::AcqRel);
        self.renewed.notify_waiters();
        self.progressed.notify_waiters();
        state.clock_offset_ns = server_ns.saturating_sub(wall_ns());
    }

    /// Ends the session, and with it the lease: every call fails.
    pub fn end(&self, reason: &str) {
        let waiting = {
            let mut state = self.state();
            state.figures.ended.get_or_insert(reason.to_owned());
            self.io_until_ns.store(0, Ordering::Release);
            self.lease_until_ns.store(0, Ordering::Release);
            (state.bulk, state.control) = (None, None);
            state.local.clear();
            state.lose_unstored();
            std::mem::take(&mut state.waiting)
        };
        drop(waiting);
        self.looks.clear();
        self.turns.iter().for_each(|turns| turns.close());
        let _ = self.ended.send_replace(true);
        self.renewed.notify_waiters();
        self.progressed.notify_waiters();
    }
}
