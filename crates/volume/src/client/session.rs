//! A session: numbered operations that survive lost connections and server restarts.
//!
//! Owns: the calls of a session, and its tasks. Promises: each operation is done exactly once; operations take effect
//! in the order of their calls, except one that waits for space that is being freed: it is a new call each time; a call
//! without an answer is sent again after each reconnection, for as long as the session lives. Leaves to others: calls
//! without an answer (`calls`), connections (`link`).
//!
//! The server delays most answers until the operation is durable. Other operations, and calls without an answer, are sent
//! to a new server again.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::calls::{
    CallAnswer, CallShare, ClientOptions, FileGrant, ListedToKeep, LocalOutcome, LookupAnswer, NUMBERS_WANTED,
    PendingCall, ServerEvent, SessionCalls, SessionFigures, SharedSession, ended, not_done, wall_ns,
};
use super::error::Error;
use super::link;
use super::looks::LookupCache;
use super::wait_kinds::WaitKind;
use crate::origin::ProcessOrigin;
use crate::planted::{Bug, planted};
use crate::protocol::{
    AnswerTerms, FileId, InodeAttributes, MetadataOperation, MetadataQuestion, RefusalCode, ServerAnswer,
    ServerRefusal, Token, TokenGrant, VolumeMessage,
};
use crate::tokens::level;

/// The longest wait for the server when a mount ends.
const END_TIME_MAX: Duration = Duration::from_secs(5);
/// The longest time that a write or an operation waits for space that is being freed.
pub(super) const SPACE_WAIT_MAX: Duration = Duration::from_secs(10);
/// The time between two requests for such space.
pub(super) const SPACE_RETRY: Duration = Duration::from_millis(5);
/// How often a change of names waits that may soon be done without the server.
const LOCAL_ATTEMPTS_MAX: usize = 16;
/// The pauses after refused requests for inode numbers: the first, and the longest. Each is twice the one before.
const NUMBERS_PAUSE: Duration = Duration::from_secs(1);
const NUMBERS_PAUSE_MAX: Duration = Duration::from_secs(16);
/// The answer to a call that was sent.
pub(super) type LaterAnswer = oneshot::Receiver<Result<CallAnswer, ServerRefusal>>;

/// A session.
pub(crate) struct ClientSession {
    inner: Arc<SharedSession>,
    /// The number of requests for file locks that have no turn yet.
    pub(super) lock_queue: AtomicU32,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl ClientSession {
    /// Begins a session; its first connection exists when this returns.
    ///
    /// *Errors*: [`Error::Server`] if the server cannot be reached, or refuses.
    pub async fn begin(
        options: ClientOptions,
        own: ([u8; 16], ProcessOrigin),
    ) -> Result<(ClientSession, mpsc::UnboundedReceiver<ServerEvent>), Error> {
        let (events, received) = mpsc::unbounded_channel();
        let inner = Arc::new(SharedSession::new(options, own, events));
        let stream = link::open_bulk(&inner).await?;
        inner.state().session = stream.1.session;
        inner.want_numbers();
        let (bulk, control) = (inner.clone(), inner.clone());
        let bulk = tokio::spawn(async move { link::keep_bulk(&bulk, stream).await });
        let control = tokio::spawn(async move { link::keep_control(&control).await });
        Ok((ClientSession { inner, lock_queue: AtomicU32::new(0), tasks: Mutex::new(vec![bulk, control]) }, received))
    }

    /// Returns the counters of the session.
    pub fn figures(&self) -> SessionFigures {
        let state = self.inner.state();
        let (session, epoch, waiting) = (state.session, state.epoch, state.waiting.len());
        let trouble = state.figures.trouble.clone().or_else(|| state.control_trouble.clone());
        let (refused, refusal) = (state.refusals.count, state.refusals.recent());
        let unstored = state.unstored.count();
        let local_directories = state.local.held();
        SessionFigures {
            session,
            epoch,
            waiting,
            trouble,
            refused,
            refusal,
            unstored,
            local_directories,
            ..state.figures.clone()
        }
    }

    /// Returns the time of the server's clock. *Units*: nanoseconds since 1970.
    pub fn now_ns(&self) -> i64 {
        wall_ns().saturating_add(self.inner.state().clock_offset_ns)
    }

    /// Returns for how long the lease still holds.
    pub fn lease_left(&self) -> Duration {
        let until_ns = self.inner.lease_until_ns.load(Ordering::Acquire);
        Duration::from_nanos(until_ns.saturating_sub(self.inner.elapsed_ns()))
    }

    /// Waits until the lease allows I/O to begin, which is in the first part of the lease.
    ///
    /// *Errors*: [`Error::Ended`] if the session ends.
    pub async fn leased(&self) -> Result<(), Error> {
        let inner = &self.inner;
        loop {
            let renewed = inner.renewed.notified();
            tokio::pin!(renewed);
            renewed.as_mut().enable();
            if inner.may_begin() {
                return Ok(());
            }
            if *inner.ended.borrow() {
                return Err(inner.why_ended());
            }
            WaitKind::Lease.during(0, renewed).await;
        }
    }

    /// Checks that the lease is still valid: blocks that were read after [`leased`](Self::leased) returned then
    /// belonged to the file during the read.
    ///
    /// *Errors*: [`Error::Ended`] if the session has ended, or after a pause that was longer than the lease.
    pub fn still_leased(&self) -> Result<(), Error> {
        let inner = &self.inner;
        if inner.elapsed_ns() < inner.lease_until_ns.load(Ordering::Acquire) {
            return Ok(());
        }
        Err(self.failure().unwrap_or_else(|| {
            let reason = "this host paused for longer than its lease during I/O".to_owned();
            Error::Ended { reason, may_be_done: true }
        }))
    }

    /// Does an operation. It is durable when this returns, unless it changes names or attributes alone: then it is once
    /// [`stored`](Self::stored) returns.
    pub async fn operate(&self, operation: MetadataOperation) -> Result<ServerAnswer, Error> {
        answered(self.operation(operation).await?)
    }

    /// Does an operation; while space is being freed, it is repeated if it needs more.
    async fn operation(&self, operation: MetadataOperation) -> Result<CallAnswer, Error> {
        let until = Instant::now() + SPACE_WAIT_MAX;
        loop {
            match self.operation_now(operation.clone()).await {
                Err(Error::Refused(failure))
                    if failure.code == RefusalCode::Full && failure.errno == libc::EAGAIN && Instant::now() < until =>
                {
                    self.renew_soon();
                    WaitKind::Space.during(0, sleep(SPACE_RETRY)).await;
                }
                Err(Error::Refused(failure)) if failure.code == RefusalCode::Full => {
                    return Err(Error::Refused(ServerRefusal { errno: libc::ENOSPC, ..failure }));
                }
                said => return said,
            }
        }
    }

    async fn operation_now(&self, operation: MetadataOperation) -> Result<CallAnswer, Error> {
        let said = self.call(CallShare::Operations, |state| {
            let number = state.next_number;
            state.next_number += 1;
            state.open_numbers.insert(number);
            let may_be_early = operation.may_be_early() && !self.inner.options.are_names_synced;
            let terms = if may_be_early { state.unstored.terms() } else { AnswerTerms::Durable };
            (VolumeMessage::Operation { session: state.session, number, terms, operation }, Some(number))
        });
        said.await
    }

    /// Does a change of names without the server, if it may; waits if it may soon. `None`: the server must do it.
    ///
    /// *Errors*: this host paused for longer than its lease: the change may be lost.
    pub async fn locally<T>(&self, attempt: impl Fn(&SharedSession) -> LocalOutcome<T>) -> Option<Result<T, Error>> {
        for _ in 0..LOCAL_ATTEMPTS_MAX {
            let progressed = self.inner.progressed.notified();
            tokio::pin!(progressed);
            progressed.as_mut().enable();
            match attempt(&self.inner) {
                LocalOutcome::Done(done) => return Some(self.still_held().map(|()| done)),
                LocalOutcome::AtServer => return None,
                LocalOutcome::Later => WaitKind::Turn.during(0, progressed).await,
            }
        }
        // Other operations come one after another. At the server this one has a place among them.
        None
    }

    /// Checks that the lease held while an operation was answered without the server.
    fn still_held(&self) -> Result<(), Error> {
        if planted(Bug::LocalUnleased) { Ok(()) } else { self.still_leased() }
    }

    /// Does a change of names without the server, if it may now. Waits for nothing.
    pub fn locally_now<T>(&self, attempt: impl Fn(&SharedSession) -> LocalOutcome<T>) -> Option<Result<T, Error>> {
        match attempt(&self.inner) {
            LocalOutcome::Done(done) => Some(self.still_held().map(|()| done)),
            LocalOutcome::AtServer | LocalOutcome::Later => None,
        }
    }

    /// Notes that a file is closed. Returns whether the server was not told that it was open.
    pub fn close_untold(&self, file: FileId) -> bool {
        self.inner.state().local.close(file)
    }

    /// Tells the server that a file is open, if it was not told.
    pub fn tell_open(&self, of: FileId) {
        self.inner.state().tell_open(|file, _| file == of);
    }

    /// Requests the first inode numbers from a new server.
    pub fn want_numbers(&self) {
        self.inner.want_numbers();
    }

    /// Requests inode numbers, until the server gives some or the session ends: it refuses them while the disk is full.
    pub async fn request_numbers(&self) {
        let mut pause = NUMBERS_PAUSE;
        while self.ask(MetadataQuestion::Numbers { count: NUMBERS_WANTED }).await.is_err() && self.failure().is_none() {
            sleep(pause).await;
            pause = (pause * 2).min(NUMBERS_PAUSE_MAX);
        }
        self.inner.state().local.asked();
    }

    /// Whether changes of names are durable when a call returns.
    pub fn are_names_synced(&self) -> bool {
        self.inner.options.are_names_synced
    }

    /// Waits until every operation that was answered is durable.
    ///
    /// *Errors*: the session has ended.
    pub async fn stored(&self) -> Result<(), Error> {
        let last = self.inner.state().unstored.last();
        let Some(last) = last else { return self.failure().map_or(Ok(()), Err) };
        self.ask(MetadataQuestion::Stored).await?;
        self.inner.state().stored(last);
        Ok(())
    }

    /// Creates a file and opens it; returns its attributes, and its token if the answer contains it.
    pub async fn create_open(
        &self,
        operation: MetadataOperation,
    ) -> Result<(InodeAttributes, Option<FileGrant>), Error> {
        opened(self.operation(operation).await?)
    }

    /// Opens a file; returns its attributes, and its token of this level if no other session's token conflicts.
    pub async fn open(
        &self,
        file: FileId,
        level: u8,
        is_direct: bool,
    ) -> Result<(InodeAttributes, Option<FileGrant>), Error> {
        let question = MetadataQuestion::Open { file, level, is_direct };
        let make = |state: &mut SessionCalls| (VolumeMessage::Question { session: state.session, question }, None);
        opened(self.call(CallShare::Questions, make).await?)
    }

    /// Sends a question that the server answers without other hosts.
    pub async fn ask(&self, question: MetadataQuestion) -> Result<ServerAnswer, Error> {
        self.question(CallShare::Questions, question).await
    }

    /// Requests attributes: other hosts may have to commit first.
    pub async fn look(&self, question: MetadataQuestion) -> Result<ServerAnswer, Error> {
        self.question(CallShare::Looks, question).await
    }

    /// Requests a name or attributes that the session may keep.
    pub async fn look_to_keep(&self, question: MetadataQuestion) -> Result<LookupAnswer, Error> {
        let make = |state: &mut SessionCalls| (VolumeMessage::Question { session: state.session, question }, None);
        match self.call(CallShare::Looks, make).await? {
            CallAnswer::Looked(looked) => Ok(looked),
            CallAnswer::Answer(ServerAnswer::Attributes(found)) => {
                Ok(LookupAnswer { is_name_kept: false, are_attributes_kept: false, found: Some(found) })
            }
            _ => Err(Error::posix(libc::EIO)),
        }
    }

    /// Requests names of a directory that the session may keep.
    pub async fn list_to_keep(&self, question: MetadataQuestion) -> Result<ListedToKeep, Error> {
        let make = |state: &mut SessionCalls| (VolumeMessage::Question { session: state.session, question }, None);
        match self.call(CallShare::Looks, make).await? {
            CallAnswer::Listed(listed) => Ok(listed),
            _ => Err(Error::posix(libc::EIO)),
        }
    }

    /// Returns the names and attributes that the session keeps.
    pub fn looks(&self) -> &LookupCache {
        &self.inner.looks
    }

    /// Tells a restarted server of a file that is open. Other questions may wait for the server to know this, so they
    /// must not take its turn.
    pub async fn open_again(&self, file: FileId, is_direct: bool) -> Result<ServerAnswer, Error> {
        self.question(CallShare::Restart, MetadataQuestion::Open { file, level: level::NONE, is_direct }).await
    }

    async fn question(&self, share: CallShare, question: MetadataQuestion) -> Result<ServerAnswer, Error> {
        let make = |state: &mut SessionCalls| (VolumeMessage::Question { session: state.session, question }, None);
        answered(self.call(share, make).await?)
    }

    /// Waits for a token.
    pub async fn acquire(&self, token: Token, level: u8) -> Result<FileGrant, Error> {
        match self.call(CallShare::Tokens, |_| (VolumeMessage::Acquire { token, level, waits: true }, None)).await? {
            CallAnswer::Granted(grant) => Ok(grant),
            _ => Err(Error::posix(libc::EIO)),
        }
    }

    /// Requests the token of a file's data at level *write*, which may be used from now on: see
    /// [`SharedSession::acquire_ahead`].
    pub fn acquire_ahead(&self, file: FileId) -> Option<LaterAnswer> {
        self.inner.acquire_ahead(file)
    }

    /// Waits for the grant of a token that is used already. If it is refused, the session ends: what was written under it is
    /// lost with everything else that only this host knows.
    pub async fn granted_ahead(&self, answer: LaterAnswer) -> Option<FileGrant> {
        match self.said(answer.await) {
            Ok(CallAnswer::Granted(grant)) => Some(grant),
            Ok(_) | Err(_) => {
                self.inner.end("the server refused a token of what this host had made");
                None
            }
        }
    }

    /// Whether the lease allows I/O to begin, so that this client may show what it alone knows.
    pub fn is_leased(&self) -> bool {
        self.inner.may_begin()
    }

    /// Whether the server has not been told yet what this session holds.
    pub fn is_reclaiming(&self) -> bool {
        self.inner.state().is_reclaiming
    }

    /// Notes that the server of this epoch was told which locks are held, unless there is a newer one.
    pub fn reclaimed(&self, epoch: u64) {
        let mut state = self.inner.state();
        if state.epoch == epoch {
            state.send_held_back();
        }
    }

    /// Gives up a request for a lock. Returns whether it has ended with EINTR; if not, the server must be told.
    pub fn give_up(&self, request: u64) -> bool {
        self.inner.give_up(request)
    }

    /// Does `act` if the server's epoch is this one; no other server is told what is held before that is done. The state
    /// of the session is locked meanwhile.
    pub fn at_epoch(&self, epoch: u64, act: impl FnOnce()) -> bool {
        let state = self.inner.state();
        let is_present = state.epoch == epoch;
        if is_present {
            act();
        }
        is_present
    }

    /// Sends a message on the control connection. If there is no connection, the message is dropped, and the server
    /// asks again on the next one.
    pub fn say(&self, message: &VolumeMessage) {
        let state = self.inner.state();
        if let Some(control) = &state.control {
            let _ = control.send(message.encode(0, state.epoch));
        }
    }

    /// Returns the error of calls after the session has ended.
    pub fn why_ended(&self) -> Error {
        self.inner.why_ended()
    }

    /// Waits until the session has ended; returns the reason.
    pub async fn ended(&self) -> String {
        let mut ended = self.inner.ended.subscribe();
        // The sender exists as long as `self`, so waiting cannot fail.
        let _ = ended.wait_for(|ended| *ended).await;
        self.inner.state().figures.ended.clone().unwrap_or_default()
    }

    /// Closes the connections without a message.
    pub fn abort(&self) {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).drain(..).for_each(|task| task.abort());
    }

    /// Returns the error of calls, if the session has ended.
    pub fn failure(&self) -> Option<Error> {
        let state = self.inner.state();
        state.figures.ended.is_some().then(|| ended(&state))
    }

    /// Returns the server's epoch as far as this client knows it.
    pub fn epoch(&self) -> u64 {
        self.inner.state().epoch
    }

    /// Waits until a server of a newer epoch than this one has answered a greeting.
    pub async fn replaced(&self, epoch: u64) {
        self.inner.replaced(epoch).await;
    }

    /// Tells the server of `epoch` which tokens are held; `is_last` says that all open files have been reported. If the
    /// server was replaced again, the newer one asks for this itself after its start.
    pub async fn reclaim(&self, epoch: u64, held: Vec<TokenGrant>, is_last: bool) {
        let said = self.call(CallShare::Restart, |state| {
            let is_last = is_last && state.epoch == epoch;
            (VolumeMessage::Reclaim { session: state.session, held, is_last }, None)
        });
        // An error means that the session has ended, or that the server was replaced again.
        let _ = said.await;
    }

    pub(super) async fn call(
        &self,
        share: CallShare,
        make: impl FnOnce(&mut SessionCalls) -> (VolumeMessage, Option<u64>),
    ) -> Result<CallAnswer, Error> {
        let wait = if share == CallShare::Looks { WaitKind::Look } else { WaitKind::Server };
        let (_, answer) = self.send(share, make).await?;
        self.said(wait.during(0, answer).await)
    }

    pub(super) fn said(
        &self,
        said: Result<Result<CallAnswer, ServerRefusal>, oneshot::error::RecvError>,
    ) -> Result<CallAnswer, Error> {
        match said {
            Ok(said) => Ok(said?),
            Err(_) => Err(self.failure().unwrap_or_else(|| Error::Server {
                server: self.inner.server(),
                problem: "its answer cannot be read: use the same release of nectary on both hosts".to_owned(),
            })),
        }
    }

    /// Sends a call; returns its number, and the receiver of its answer.
    pub(super) async fn send(
        &self,
        share: CallShare,
        make: impl FnOnce(&mut SessionCalls) -> (VolumeMessage, Option<u64>),
    ) -> Result<(u64, LaterAnswer), Error> {
        let turn = WaitKind::Turn.during(0, self.inner.turns[share as usize].clone().acquire_owned()).await;
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
                if !matches!(share, CallShare::Operations) || state.has_room() {
                    let (message, number) = make(&mut state);
                    if removes_names(&message) {
                        state.tell_open(|_, _| true);
                    }
                    let request = state.next_request;
                    state.next_request += 1;
                    let frame = message.encode(request, state.epoch);
                    if let Some(failure) = refusal_of(&message, &frame) {
                        // The number is used by the next operation.
                        if let Some(number) = number {
                            state.open_numbers.remove(&number);
                            state.next_number = number;
                        }
                        return Err(failure.into());
                    }
                    let changing = match &message {
                        VolumeMessage::Operation { operation, .. } => Some(self.inner.looks.changing(operation)),
                        _ => None,
                    };
                    let waiting = PendingCall { number, changing, ..PendingCall::new(message, share, reply, turn) };
                    if let Some(bulk) = state.bulk.as_ref().filter(|_| state.is_sent_at_once(&waiting)) {
                        let _ = bulk.send(frame);
                    }
                    state.waiting.insert(request, waiting);
                    state.send_next();
                    return Ok((request, answer));
                }
            }
            // The control connection tells the server what is acknowledged, and the server confirms it.
            self.inner.nudge.notify_one();
            WaitKind::Turn.during(0, renewed).await;
        }
    }

    /// Renews the session now instead of when it is due.
    pub fn renew_soon(&self) {
        self.inner.nudge.notify_one();
    }

    /// Notes that no cached map has blocks that this append of the journal, or an earlier one, freed.
    pub fn set_drained(&self, sequence: u64) {
        let mut state = self.inner.state();
        state.drained = state.drained.max(sequence);
    }

    /// Ends the session, after everything is committed and returned.
    ///
    /// *Errors*: the session has already ended, or the server does not confirm the end in time, or answers with an
    /// error. The server may then keep the session until it is released.
    pub async fn end(&self) -> Result<(), Error> {
        let said = tokio::time::timeout(
            END_TIME_MAX,
            self.call(CallShare::Restart, |state| {
                state.is_leaving = true;
                (VolumeMessage::Goodbye { session: state.session }, None)
            }),
        );
        let result = match said.await {
            Ok(Ok(_)) => {
                // The server has stored everything before its answer.
                self.inner.state().stored(u64::MAX);
                Ok(())
            }
            Ok(Err(error)) => Err(error),
            Err(_) => Err(Error::Server {
                server: self.inner.server(),
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

/// Whether an operation may remove names, or give an inode more of them.
fn removes_names(message: &VolumeMessage) -> bool {
    let VolumeMessage::Operation { operation, .. } = message else { return false };
    matches!(
        operation,
        MetadataOperation::Unlink { .. } | MetadataOperation::Rename { .. } | MetadataOperation::Link { .. }
    )
}

/// Refuses a message that the server could not read.
fn refusal_of(message: &VolumeMessage, frame: &[u8]) -> Option<ServerRefusal> {
    let words = match VolumeMessage::decode(frame) {
        Ok((_, read)) if read == *message => return None,
        Ok((_, VolumeMessage::Failure(too_long))) => return Some(ServerRefusal { errno: libc::E2BIG, ..too_long }),
        Ok(_) => "its message would be read as another one".to_owned(),
        Err(error) => error.to_string(),
    };
    Some(ServerRefusal { code: RefusalCode::Malformed, errno: libc::EIO, words })
}

pub(super) fn answered(said: CallAnswer) -> Result<ServerAnswer, Error> {
    match said {
        CallAnswer::Answer(answer) => Ok(answer),
        CallAnswer::Looked(LookupAnswer { found: Some(found), .. }) => Ok(ServerAnswer::Attributes(found)),
        CallAnswer::Looked(_) => Err(Error::posix(libc::ENOENT)),
        _ => Err(Error::posix(libc::EIO)),
    }
}

fn opened(said: CallAnswer) -> Result<(InodeAttributes, Option<FileGrant>), Error> {
    match said {
        CallAnswer::Answer(ServerAnswer::Attributes(attributes)) => Ok((attributes, None)),
        CallAnswer::Granted(FileGrant { shape: Some(shape), held, epoch, is_watched }) => {
            let attributes = shape.attributes.clone();
            Ok((attributes, Some(FileGrant { held, epoch, is_watched, shape: Some(shape) })))
        }
        _ => Err(Error::posix(libc::EIO)),
    }
}
