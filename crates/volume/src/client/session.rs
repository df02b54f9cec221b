//! A session: operations with numbers, which survive lost connections and a restarted server.
//!
//! Owns: the numbers, calls without an answer, acknowledgements, and the lease. Promises: each operation is done
//! exactly once; operations take effect in the order of their calls; a call without an answer is sent again after each
//! reconnection, for as long as the session lives. Leaves to others: connections (`link`).
//!
//! An answer means that the operation is durable, because the server delays answers until then. So only calls without
//! an answer must be sent again.
//!
//! *Circle*: the loops of `link` report to the session that starts them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nectary_host::clock::since_boot;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use super::error::Error;
use super::link::{self, ClientOptions};
use crate::protocol::{
    Answer, Attributes, Code, Failure, FileId, Held, Locked, Message, Operation, Question, Shape, Token,
};
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
/// How long a mount that ends waits for its server.
const END_TIME_MAX: Duration = Duration::from_secs(5);

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
enum Share {
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
struct Waiting {
    message: Message,
    number: Option<u64>,
    is_restart: bool,
    reply: oneshot::Sender<Result<Said, Failure>>,
    _turn: OwnedSemaphorePermit,
}

/// What a session knows.
#[derive(Default)]
pub(super) struct State {
    pub session: u64,
    pub epoch: u64,
    pub lease: Duration,
    /// The server's clock minus ours. *Units*: nanoseconds.
    pub clock_offset_ns: i64,
    next_number: u64,
    next_request: u64,
    waiting: BTreeMap<u64, Waiting>,
    /// Numbers without an answer.
    open_numbers: BTreeSet<u64>,
    told_acknowledged: u64,
    /// Renewals without an answer: when they were sent, and what they said.
    told: VecDeque<(u64, u64)>,
    heard_acknowledged: u64,
    drained: u64,
    /// Where frames of the bulk connection go while there is one.
    bulk: Option<mpsc::UnboundedSender<Vec<u8>>>,
    /// Those of the control connection.
    control: Option<mpsc::UnboundedSender<Vec<u8>>>,
    figures: SessionFigures,
}

impl State {
    fn acknowledged(&self) -> u64 {
        self.open_numbers.first().map_or(self.next_number, |first| *first).saturating_sub(1)
    }

    /// Whether the server keeps the reply of one more operation.
    fn has_room(&self) -> bool {
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
    turns: [Arc<Semaphore>; 6],
    /// I/O may begin until then, counted from `start`. *Units*: nanoseconds.
    io_until_ns: AtomicU64,
    /// The lease ends then, counted in the same way.
    lease_until_ns: AtomicU64,
    renewed: Notify,
    /// Connections so far.
    connections: AtomicU64,
    pub events: mpsc::UnboundedSender<Event>,
    pub ended: watch::Sender<bool>,
}

/// A session.
pub(crate) struct Session {
    inner: Arc<Inner>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

fn wall_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

impl Session {
    /// Begins a session: the first connection is made before this returns.
    ///
    /// *Errors*: [`Error::Server`].
    pub async fn begin(options: ClientOptions) -> Result<(Session, mpsc::UnboundedReceiver<Event>), Error> {
        let (events, received) = mpsc::unbounded_channel();
        let inner = Arc::new(Inner {
            start: since_boot(),
            options,
            incarnation: link::random_id()?,
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
        });
        let stream = link::open_bulk(&inner).await?;
        inner.state().session = stream.1.session;
        let (bulk, control) = (inner.clone(), inner.clone());
        let bulk = tokio::spawn(async move { link::keep_bulk(&bulk, stream).await });
        let control = tokio::spawn(async move { link::keep_control(&control).await });
        Ok((Session { inner, tasks: Mutex::new(vec![bulk, control]) }, received))
    }

    /// What it does.
    pub fn figures(&self) -> SessionFigures {
        let state = self.inner.state();
        let (session, epoch, waiting) = (state.session, state.epoch, state.waiting.len());
        SessionFigures { session, epoch, waiting, ..state.figures.clone() }
    }

    /// The server's clock. *Units*: nanoseconds since 1970.
    pub fn now_ns(&self) -> i64 {
        wall_ns().saturating_add(self.inner.state().clock_offset_ns)
    }

    /// Waits until the lease allows device I/O: not long after the last renewal.
    ///
    /// *Errors*: [`Error::Ended`].
    pub async fn leased(&self) -> Result<(), Error> {
        let inner = &self.inner;
        loop {
            let renewed = inner.renewed.notified();
            tokio::pin!(renewed);
            renewed.as_mut().enable();
            if inner.elapsed_ns() < inner.io_until_ns.load(Ordering::Acquire) {
                return Ok(());
            }
            if *inner.ended.borrow() {
                return Err(inner.why_ended());
            }
            renewed.await;
        }
    }

    /// Checks that the lease still holds: blocks that were read since [`leased`](Self::leased) returned then still
    /// belonged to the file.
    ///
    /// *Errors*: [`Error::Ended`], after a pause that was longer than the lease.
    pub fn still_leased(&self) -> Result<(), Error> {
        let inner = &self.inner;
        match inner.elapsed_ns() < inner.lease_until_ns.load(Ordering::Acquire) {
            true => Ok(()),
            false => {
                let reason = "this host paused for longer than its lease during I/O".to_owned();
                Err(Error::Ended { reason, may_be_done: true })
            }
        }
    }

    /// Does an operation: it is durable when this returns.
    pub async fn operate(&self, operation: Operation) -> Result<Answer, Error> {
        answered(self.operation(operation).await?)
    }

    async fn operation(&self, operation: Operation) -> Result<Said, Error> {
        let said = self.call(Share::Operations, |state| {
            let number = state.next_number;
            state.next_number += 1;
            state.open_numbers.insert(number);
            (Message::Operation { session: state.session, number, operation }, Some(number))
        });
        said.await
    }

    /// Makes a file that is open at once: its attributes, and its token if it came with it.
    pub async fn create_open(&self, operation: Operation) -> Result<(Attributes, Option<Grant>), Error> {
        opened(self.operation(operation).await?)
    }

    /// Opens a file: its attributes, and its token where nobody is in the way of this level.
    pub async fn open(&self, file: FileId, level: u8, is_direct: bool) -> Result<(Attributes, Option<Grant>), Error> {
        let question = Question::Open { file, level, is_direct };
        let make = |state: &mut State| (Message::Question { session: state.session, question }, None);
        opened(self.call(Share::Questions, make).await?)
    }

    /// Asks a question that the server answers without other hosts.
    pub async fn ask(&self, question: Question) -> Result<Answer, Error> {
        self.question(Share::Questions, question).await
    }

    /// Asks for attributes: other hosts may have to commit first.
    pub async fn look(&self, question: Question) -> Result<Answer, Error> {
        self.question(Share::Looks, question).await
    }

    async fn question(&self, share: Share, question: Question) -> Result<Answer, Error> {
        let make = |state: &mut State| (Message::Question { session: state.session, question }, None);
        answered(self.call(share, make).await?)
    }

    /// Waits for a token.
    pub async fn acquire(&self, token: Token, level: u8) -> Result<Grant, Error> {
        match self.call(Share::Tokens, |_| (Message::Acquire { token, level, waits: true }, None)).await? {
            Said::Granted(grant) => Ok(grant),
            _ => Err(Error::posix(libc::EIO)),
        }
    }

    /// Requests a lock without waiting for it.
    pub async fn try_lock(&self, lock: Locked) -> Result<(), Error> {
        answered(self.call(Share::Questions, |_| (Message::Lock { lock, waits: false }, None)).await?).map(drop)
    }

    /// Waits for a lock, until `given_up`.
    ///
    /// *Errors*: EINTR, if it was given up before it was granted.
    pub async fn lock(&self, lock: Locked, given_up: impl Future<Output = ()>) -> Result<(), Error> {
        tokio::pin!(given_up);
        let begin = self.send(Share::Locks, |_| (Message::Lock { lock, waits: true }, None));
        let (request, answer) = tokio::select! {
            begun = begin => begun?,
            () = &mut given_up => return Err(Error::posix(libc::EINTR)),
        };
        tokio::pin!(answer);
        tokio::select! {
            biased;
            said = &mut answer => return answered(self.said(said)?).map(drop),
            () = given_up => {}
        }
        // The lock may have been granted meanwhile: then it is held.
        self.call(Share::Questions, |_| (Message::CancelLock { request }, None)).await?;
        answered(self.said(answer.await)?).map(drop)
    }

    /// Gives a lock up.
    pub async fn unlock(&self, lock: Locked) -> Result<(), Error> {
        answered(self.call(Share::Operations, |_| (Message::Unlock { lock }, None)).await?).map(drop)
    }

    /// What is in the way of a lock.
    pub async fn test_lock(&self, lock: Locked) -> Result<Option<Locked>, Error> {
        match self.call(Share::Questions, |_| (Message::TestLock { lock }, None)).await? {
            Said::Found(found) => Ok(found),
            _ => Err(Error::posix(libc::EIO)),
        }
    }

    /// Tells a server that was started of a lock that is held.
    pub async fn reclaim_lock(&self, lock: Locked) -> Result<(), Error> {
        answered(self.call(Share::Restart, |_| (Message::Lock { lock, waits: false }, None)).await?).map(drop)
    }

    /// Sends requests for locks that were held back while the server was told which ones are held.
    pub fn send_held_back(&self) {
        let state = self.inner.state();
        let Some(bulk) = &state.bulk else { return };
        let held_back = state.waiting.iter().filter(|(_, waiting)| is_try_lock(&waiting.message));
        held_back.for_each(|(request, waiting)| drop(bulk.send(waiting.message.encode(*request, state.epoch))));
    }

    /// Says something on the control connection. If there is none, the server asks again once there is.
    pub fn say(&self, message: &Message) {
        let state = self.inner.state();
        if let Some(control) = &state.control {
            let _ = control.send(message.encode(0, state.epoch));
        }
    }

    /// Why calls fail once the session has ended.
    pub fn why_ended(&self) -> Error {
        self.inner.why_ended()
    }

    /// Waits until the session has ended; says why.
    pub async fn ended(&self) -> String {
        let mut ended = self.inner.ended.subscribe();
        // It cannot go before this does.
        let _ = ended.wait_for(|ended| *ended).await;
        self.inner.state().figures.ended.clone().unwrap_or_default()
    }

    /// Ends the connections without a word.
    pub fn abort(&self) {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).drain(..).for_each(|task| task.abort());
    }

    /// Why calls fail, if the session has ended.
    pub fn failure(&self) -> Option<Error> {
        let state = self.inner.state();
        state.figures.ended.is_some().then(|| ended(&state))
    }

    /// The epoch of the server, as far as it is known.
    pub fn epoch(&self) -> u64 {
        self.inner.state().epoch
    }

    /// Tells the server of `epoch` which tokens are held, and that all open files have been reported. A newer server
    /// asks for this itself after its start.
    pub async fn reclaim(&self, epoch: u64, held: Vec<Held>, is_last: bool) {
        let said = self.call(Share::Restart, |state| {
            let is_last = is_last && state.epoch == epoch;
            (Message::Reclaim { session: state.session, held, is_last }, None)
        });
        // An error means that the session has ended, or that the server was replaced again.
        let _ = said.await;
    }

    async fn call(&self, share: Share, make: impl FnOnce(&mut State) -> (Message, Option<u64>)) -> Result<Said, Error> {
        let (_, answer) = self.send(share, make).await?;
        self.said(answer.await)
    }

    fn said(&self, said: Result<Result<Said, Failure>, oneshot::error::RecvError>) -> Result<Said, Error> {
        match said {
            Ok(said) => Ok(said?),
            Err(_) => Err(self.inner.why_ended()),
        }
    }

    /// Sends a call; returns its number, and where its answer arrives.
    async fn send(
        &self,
        share: Share,
        make: impl FnOnce(&mut State) -> (Message, Option<u64>),
    ) -> Result<(u64, oneshot::Receiver<Result<Said, Failure>>), Error> {
        let turn = self.inner.turns[share as usize].clone().acquire_owned().await;
        let turn = turn.map_err(|_| not_done(&self.inner.state()))?;
        let (reply, answer) = oneshot::channel();
        loop {
            let renewed = self.inner.renewed.notified();
            tokio::pin!(renewed);
            renewed.as_mut().enable();
            {
                let mut state = self.inner.state();
                if state.figures.ended.is_some() {
                    return Err(not_done(&state));
                }
                if !matches!(share, Share::Operations) || state.has_room() {
                    let (message, number) = make(&mut state);
                    let request = state.next_request;
                    state.next_request += 1;
                    if let Some(bulk) = &state.bulk {
                        let _ = bulk.send(message.encode(request, state.epoch));
                    }
                    let is_restart = matches!(share, Share::Restart);
                    state.waiting.insert(request, Waiting { message, number, is_restart, reply, _turn: turn });
                    return Ok((request, answer));
                }
            }
            // The server is told what is acknowledged, and confirms it.
            self.inner.nudge.notify_one();
            renewed.await;
        }
    }

    /// No map here has blocks that appends up to this one freed.
    pub fn set_drained(&self, sequence: u64) {
        let mut state = self.inner.state();
        state.drained = state.drained.max(sequence);
    }

    /// Ends the session: everything is committed and returned.
    ///
    /// *Errors*: the server could not be told in time; it keeps the session until it is released.
    pub async fn end(&self) -> Result<(), Error> {
        let said = tokio::time::timeout(
            END_TIME_MAX,
            self.call(Share::Restart, |state| (Message::Goodbye { session: state.session }, None)),
        );
        let result = match said.await {
            Ok(result) => result.map(drop),
            Err(_) => Err(Error::Server {
                server: self.inner.options.server.to_string(),
                problem: format!(
                    "it was not told that session {} ends; `nectary volume release` says so once it is back",
                    self.inner.state().session
                ),
            }),
        };
        self.inner.end("unmounted");
        self.abort();
        result
    }
}

fn is_try_lock(message: &Message) -> bool {
    matches!(message, Message::Lock { waits: false, .. })
}

fn answered(said: Said) -> Result<Answer, Error> {
    match said {
        Said::Answer(answer) => Ok(answer),
        _ => Err(Error::posix(libc::EIO)),
    }
}

fn opened(said: Said) -> Result<(Attributes, Option<Grant>), Error> {
    match said {
        Said::Answer(Answer::Attributes(attributes)) => Ok((attributes, None)),
        Said::Granted(Grant { held, is_watched, shape: Some(shape) }) => {
            Ok((shape.attributes.clone(), Some(Grant { held, is_watched, shape: Some(shape) })))
        }
        _ => Err(Error::posix(libc::EIO)),
    }
}

fn reason(state: &State) -> String {
    state.figures.ended.clone().unwrap_or_else(|| "it is over".to_owned())
}

fn ended(state: &State) -> Error {
    Error::Ended { reason: reason(state), may_be_done: true }
}

/// The error of a call that the server has not had.
fn not_done(state: &State) -> Error {
    Error::Ended { reason: reason(state), may_be_done: false }
}

impl Inner {
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn why_ended(&self) -> Error {
        ended(&self.state())
    }

    /// The number of the next connection.
    pub fn next_connection(&self) -> u64 {
        self.connections.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// The connection is made, and the server has introduced itself.
    pub fn connected(&self, welcome: &link::Welcomed, bulk: mpsc::UnboundedSender<Vec<u8>>) {
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
