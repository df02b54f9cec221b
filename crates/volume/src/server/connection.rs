//! One connection of a client: greeting, requests, answers.
//!
//! Owns: which messages a connection may send, and how many. Promises: at most [`CALLS_MAX`] requests of a connection,
//! and [`RETURNS_MAX`] returns, are in progress at a time; a malformed message changes nothing, is refused with the reason, and ends the connection;
//! every message to a client leaves only if the leader's lease holds when it is sent. Leaves to others: doing the requests (`owner`).
//!
//! *Circle*: a connection sends requests, which contain the replies of this file.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nectary_host::descriptors;
use nectary_host::log::{LogLevel, LogThrottle};
use nectary_host::tls::ServerTls;
use nectary_host::{Newcomer, Newcomers};
use tokio::io::{BufReader, split};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::{Instant, timeout};

use super::locking::LockRequest;
use super::places::{ServerSeats, SessionSeat};
use super::request::{OwnerRequest, wall_ns};
use crate::format::{SessionRecord, SessionState, VolumeLabel};
use crate::journal::LeaderLease;
use crate::net::{self, Stream};
use crate::protocol::{
    AnswerTerms, HelloMessage, MayKeep, MetadataOperation, RefusalCode, ServerAnswer, ServerRefusal, TokenAspect,
    VERSIONS, VolumeMessage, versions_differ,
};
use crate::wire::{FrameReader, MessageReadError, read_message, write_all};

/// The maximum number of connections of a server.
pub(super) const CONNECTIONS_MAX: usize = 2048;
/// The maximum number of unanswered requests of a connection, as the protocol says.
const CALLS_MAX: usize = 1024;
/// The maximum number of unanswered returns of directories, which are counted apart: a session sends one for each
/// directory that is recalled, however many that are. It is above the number of directories that a session holds.
const RETURNS_MAX: usize = 2048;
pub(super) const ROLE_CONTROL: u8 = 1;
pub(super) const ROLE_BULK: u8 = 2;

/// The state that all connections share.
pub(super) struct ConnectionsState {
    pub label: VolumeLabel,
    pub epoch: u64,
    /// The leader's lease.
    pub lease: LeaderLease,
    /// The length of a client's session lease.
    pub lease_ms: u32,
    /// The number of an append: a map that a client requests from now on has no block that appends up to this one
    /// freed. A client sends this number back once none of its maps has such a block.
    pub drained_to: AtomicU64,
    /// Sessions whose renewals are not answered, because others wait for them too long.
    pub barred: Mutex<BTreeSet<u64>>,
    /// The number of the last durable operation of each session.
    pub stored: Mutex<HashMap<u64, u64>>,
}

impl ConnectionsState {
    /// Locks and returns the sessions whose renewals are not answered.
    pub fn barred(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.barred.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks and returns the numbers of the last durable operations.
    pub fn stored(&self) -> MutexGuard<'_, HashMap<u64, u64>> {
        self.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the task of a connection needs.
pub(super) struct ConnectionContext {
    pub requests: mpsc::Sender<OwnerRequest>,
    pub shared: Arc<ConnectionsState>,
    pub tls: Option<ServerTls>,
    pub places: Arc<ServerSeats>,
    /// The connections that have not greeted, at all addresses.
    pub newcomers: Newcomers,
}

pub(super) type Frames = mpsc::UnboundedSender<Vec<u8>>;

/// Returns an answer to the client. If it is dropped without an answer because the server ends, the client repeats the
/// request to the next server.
pub(super) struct ReplySender {
    frames: Frames,
    request: u64,
    epoch: u64,
    session: u64,
    connection: u64,
    since: Instant,
    /// A frame that precedes the answer.
    before: Option<Vec<u8>>,
    /// The request's share of [`CALLS_MAX`] or [`RETURNS_MAX`], returned when it is answered.
    _turn: OwnedSemaphorePermit,
}

impl ReplySender {
    /// For a test: a reply to a request on the connection with this number.
    #[cfg(test)]
    pub fn for_test(frames: &Frames, connection: u64) -> ReplySender {
        let turn = Arc::new(Semaphore::new(1)).try_acquire_owned().expect("it is free");
        ReplySender {
            frames: frames.clone(),
            request: 1,
            epoch: 1,
            session: 1,
            connection,
            since: Instant::now(),
            before: None,
            _turn: turn,
        }
    }

    /// For a test: a reply to this request of a session.
    #[cfg(test)]
    pub fn of_request(frames: &Frames, (session, connection, request): (u64, u64, u64)) -> ReplySender {
        ReplySender { request, session, ..ReplySender::for_test(frames, connection) }
    }

    /// Sends the answer.
    pub fn send(self, answer: Result<ServerAnswer, ServerRefusal>) {
        let message = match answer {
            Ok(answer) => VolumeMessage::Answer(answer),
            Err(failure) => VolumeMessage::Failure(failure),
        };
        self.say(&message);
    }

    /// Says that the answer, which must follow at once, is not durable yet.
    pub fn is_early(&self, now_ns: i64, stored: u64) {
        let _ = self.frames.send(VolumeMessage::Early { now_ns, stored }.encode(self.request, self.epoch));
    }

    /// Says what the session may keep, when the answer leaves.
    pub fn may_keep(&mut self, may_keep: MayKeep) {
        self.before = Some(VolumeMessage::MayKeep(may_keep).encode(self.request, self.epoch));
    }

    /// Returns the number of the request.
    pub fn request(&self) -> u64 {
        self.request
    }

    /// Returns the session of the request, and when the request came.
    pub fn asked(&self) -> (u64, Instant) {
        (self.session, self.since)
    }

    /// Returns the number of the connection that the request came on.
    pub fn connection(&self) -> u64 {
        self.connection
    }

    /// Sends a message other than the answer to an operation or a question.
    pub fn say(self, message: &VolumeMessage) {
        // The connection may have ended.
        if let Some(before) = self.before {
            let _ = self.frames.send(before);
        }
        let _ = self.frames.send(message.encode(self.request, self.epoch));
    }
}

fn refusal(code: RefusalCode, words: impl Into<String>) -> ServerRefusal {
    ServerRefusal { code, errno: 0, words: words.into() }
}

/// Serves a connection until it ends.
pub(super) async fn serve(context: &ConnectionContext, stream: Stream, peer: &str, mut newcomer: Newcomer) {
    static ENDED: LogThrottle = LogThrottle::every(std::time::Duration::from_secs(10));
    let served = async {
        let stream = tokio::select! {
            secured = net::secure(stream, context.tls.as_ref()) => secured?,
            () = newcomer.displaced() => return Ok(()),
        };
        let (reader, writer) = split(stream);
        let mut reader = BufReader::new(reader);
        let (frames, to_write) = mpsc::unbounded_channel();
        let talk = async {
            let greeted = tokio::select! {
                greeted = timeout(net::HELLO_TIME_MAX, greet(context, &mut reader, &frames)) => greeted,
                () = newcomer.displaced() => return Ok(()),
            };
            let greeted = greeted.map_err(|_| std::io::Error::other("no greeting within 10 s"))??;
            newcomer.is_used();
            // The seat is kept as long as the connection.
            match greeted {
                Some((greeted, _seat)) if greeted.role == ROLE_CONTROL => {
                    control(context, greeted, &mut reader, &frames).await
                }
                Some((greeted, _seat)) => bulk(context, greeted, &mut reader, &frames).await,
                None => Ok(()),
            }
        };
        // A message may still leave late, if the process stops just here. Clients count what they keep from the time at
        // which their request left.
        let writing = write_all(writer, to_write, Some(&context.shared.lease));
        tokio::pin!(writing);
        let result = tokio::select! {
            result = talk => result,
            () = &mut writing => return Ok(()),
        };
        let Err(MessageReadError::Message { request, problem }) = result else {
            // The last message, such as a refusal, is still sent.
            drop(frames);
            let _ = timeout(net::HELLO_TIME_MAX, writing).await;
            return result.map_err(std::io::Error::from);
        };
        let words = format!("request {request} is refused: {problem}");
        let failure = ServerRefusal { code: RefusalCode::Malformed, errno: libc::EIO, words: problem };
        let _ = frames.send(VolumeMessage::Failure(failure).encode(request, context.shared.epoch));
        drop(frames);
        // The client closes the connection once it has the refusal. What it sent before that is thrown away: a
        // connection that is closed with bytes unread may lose the refusal.
        let mut nowhere = tokio::io::sink();
        let thrown_away = tokio::io::copy(&mut reader, &mut nowhere);
        let written = async {
            writing.await;
            std::future::pending::<()>().await;
        };
        let ending = async { tokio::select!(_ = thrown_away => {}, () = written => {}) };
        let _ = timeout(net::HELLO_TIME_MAX, ending).await;
        Err(std::io::Error::other(words))
    };
    if let Err(error) = served.await {
        let error: std::io::Error = error;
        ENDED.write(LogLevel::Warning, "volume", format_args!("{peer}: {error}"));
    }
}

/// The session and role of a connection.
#[derive(Clone, Copy)]
struct GreetedConnection {
    session: u64,
    role: u8,
    /// The number of the connection.
    connection: u64,
}

/// Tells the owner of the end of a connection.
struct LeaveNotifier<'a> {
    requests: &'a mpsc::Sender<OwnerRequest>,
    greeted: GreetedConnection,
}

impl Drop for LeaveNotifier<'_> {
    fn drop(&mut self) {
        let GreetedConnection { session, role, connection } = self.greeted;
        // If the queue is full, the owner finds out later, because the session is silent.
        let _ = self.requests.try_send(OwnerRequest::Left { session, role, connection });
    }
}

/// Reads the first message and answers it. `None`: the client is refused.
async fn greet(
    context: &ConnectionContext,
    reader: &mut FrameReader,
    frames: &Frames,
) -> Result<Option<(GreetedConnection, SessionSeat)>, MessageReadError> {
    let Some((header, message)) = read_message(reader).await? else { return Ok(None) };
    let shared = &context.shared;
    let answer = match message {
        VolumeMessage::Hello(hello) => begin(context, hello).await,
        VolumeMessage::OtherVersion { least, most } => {
            Err(refusal(RefusalCode::Version, versions_differ(&VERSIONS, &(least..=most))))
        }
        _ => Err(refusal(RefusalCode::Malformed, "the first message must be Hello")),
    };
    let (message, greeted) = match answer {
        Ok(greeted) => (welcome(shared, greeted.0.session), Ok(Some(greeted))),
        // The failure is logged too, so that the operator of the server sees it.
        Err(failure) if failure.code == RefusalCode::Version => {
            let words = failure.words.clone();
            (VolumeMessage::Failure(failure), Err(std::io::Error::other(words).into()))
        }
        Err(failure) => (VolumeMessage::Failure(failure), Ok(None)),
    };
    let _ = frames.send(message.encode(header.request, shared.epoch));
    greeted
}

/// Begins a session, or adds a connection to the session that the client names.
async fn begin(
    context: &ConnectionContext,
    hello: HelloMessage,
) -> Result<(GreetedConnection, SessionSeat), ServerRefusal> {
    if hello.volume != context.shared.label.volume.0 {
        return Err(refusal(
            RefusalCode::WrongVolume,
            "this server serves another volume than the one on the disk there",
        ));
    }
    if !matches!(hello.role, ROLE_CONTROL | ROLE_BULK) {
        return Err(refusal(RefusalCode::Malformed, "the role of a connection is 1 or 2"));
    }
    let (reply, answer) = oneshot::channel();
    let seat = if hello.session == 0 { context.places.begin() } else { context.places.resume(hello.session) };
    let seat = seat.map_err(|why| {
        descriptors::note_refused(why.clone());
        refusal(RefusalCode::Limit, why)
    })?;
    let request = if hello.session != 0 {
        let (incarnation, link) = (hello.incarnation, (hello.role, hello.connection));
        OwnerRequest::Resume { session: hello.session, incarnation, link, reply }
    } else if hello.role == ROLE_CONTROL {
        return Err(refusal(RefusalCode::OutOfOrder, "a session begins with its bulk connection"));
    } else {
        let session = SessionRecord {
            incarnation: hello.incarnation,
            state: SessionState::Active,
            kind: hello.kind,
            flags: 0,
            lease_ms: context.shared.lease_ms,
            acknowledged: 0,
            machine: hello.machine,
            boot: hello.boot,
            created_ns: wall_ns(),
            ended_ns: 0,
            reason: 0,
            host: hello.host,
        };
        OwnerRequest::Begin { session, connection: hello.connection, reply }
    };
    let session = ask(context, request, answer).await?;
    let seat = if hello.session == 0 { seat.of_session(session) } else { seat };
    Ok((GreetedConnection { session, role: hello.role, connection: hello.connection }, seat))
}

/// Sends a request to the owner, and waits for its answer.
async fn ask<T>(
    context: &ConnectionContext,
    request: OwnerRequest,
    answer: oneshot::Receiver<Result<T, ServerRefusal>>,
) -> Result<T, ServerRefusal> {
    // Both fail if the server is ending.
    let _ = context.requests.send(request).await;
    answer.await.unwrap_or_else(|_| Err(super::gone()))
}

fn welcome(shared: &ConnectionsState, session: u64) -> VolumeMessage {
    VolumeMessage::Welcome { session, lease_ms: shared.lease_ms, server_ns: wall_ns() }
}

/// Ends a connection whose client knows a newer server than this one.
fn check_epoch(context: &ConnectionContext, epoch: u64) -> Result<(), MessageReadError> {
    match epoch > context.shared.epoch {
        true => Err(std::io::Error::other(format!("its client knows epoch {epoch}, another server leads")).into()),
        false => Ok(()),
    }
}

/// Whether an operation names the inode that it makes only if its client has made it before.
fn may_name_its_inode(operation: &MetadataOperation, terms: AnswerTerms) -> bool {
    let is_named = matches!(operation, MetadataOperation::Create { inode: 1.., .. });
    !is_named || matches!(terms, AnswerTerms::Repeated { .. } | AnswerTerms::Local { .. })
}

fn misplaced(request: u64) -> MessageReadError {
    MessageReadError::Message { request, problem: "a message that does not belong here".to_owned() }
}

/// The bounds on the requests of a connection without an answer.
struct RequestBounds {
    calls: Arc<Semaphore>,
    returns: Arc<Semaphore>,
}

impl RequestBounds {
    fn new() -> RequestBounds {
        let [calls, returns] = [CALLS_MAX, RETURNS_MAX].map(|turns| Arc::new(Semaphore::new(turns)));
        RequestBounds { calls, returns }
    }

    /// Takes the share of a request. *Errors*: there are too many, in words.
    fn take(&self, message: &VolumeMessage) -> Result<OwnedSemaphorePermit, String> {
        let (turns, most, what) = match message {
            VolumeMessage::Return { .. } => (&self.returns, RETURNS_MAX, "returns"),
            _ => (&self.calls, CALLS_MAX, "requests"),
        };
        turns.clone().try_acquire_owned().map_err(|_| format!("more than {most} {what} without an answer"))
    }
}

/// Serves a bulk connection: operations and questions.
async fn bulk(
    context: &ConnectionContext,
    greeted: GreetedConnection,
    reader: &mut FrameReader,
    frames: &Frames,
) -> Result<(), MessageReadError> {
    let _leaving = LeaveNotifier { requests: &context.requests, greeted };
    let (session, epoch, connection) = (greeted.session, context.shared.epoch, greeted.connection);
    let turns = RequestBounds::new();
    while let Some((header, message)) = read_message(reader).await? {
        check_epoch(context, header.epoch)?;
        let turn = turns.take(&message).map_err(std::io::Error::other)?;
        let (frames, since) = (frames.clone(), Instant::now());
        let (request, before) = (header.request, None);
        let reply = ReplySender { frames, request, epoch, session, connection, since, before, _turn: turn };
        let request = match message {
            VolumeMessage::Operation { session: named, number, terms, operation }
                if named == session && may_name_its_inode(&operation, terms) =>
            {
                OwnerRequest::Operate { session, number, terms, operation, reply }
            }
            VolumeMessage::Question { session: named, question } if named == session => {
                OwnerRequest::Ask { session, question, reply }
            }
            VolumeMessage::Acquire { token, level, waits } if token.what == TokenAspect::Data => {
                OwnerRequest::Acquire { session, wanted: (token, level, waits), reply }
            }
            VolumeMessage::Lock { lock, waits } => {
                OwnerRequest::Wish { session, wish: LockRequest::Lock(lock, waits), reply }
            }
            VolumeMessage::Unlock { lock } => OwnerRequest::Wish { session, wish: LockRequest::Unlock(lock), reply },
            VolumeMessage::TestLock { lock } => OwnerRequest::Wish { session, wish: LockRequest::Test(lock), reply },
            VolumeMessage::CancelLock { request } => {
                OwnerRequest::Wish { session, wish: LockRequest::Cancel(request), reply }
            }
            VolumeMessage::Reclaim { session: named, held, is_last } if named == session => {
                OwnerRequest::Reclaim { session, held, is_last, reply }
            }
            VolumeMessage::Return { held, .. } if held.token.what == TokenAspect::Directory => {
                OwnerRequest::ReturnInOrder { session, held, reply }
            }
            VolumeMessage::Goodbye { session: named } if named == session => OwnerRequest::Goodbye { session, reply },
            _ => return Err(misplaced(header.request)),
        };
        // Requests are sent in the order of their arrival, and the owner's queue keeps that order.
        if context.requests.send(request).await.is_err() {
            return Ok(());
        }
    }
    Ok(())
}

/// Serves a control connection: lease renewals and messages about tokens.
async fn control(
    context: &ConnectionContext,
    greeted: GreetedConnection,
    reader: &mut FrameReader,
    frames: &Frames,
) -> Result<(), MessageReadError> {
    let _leaving = LeaveNotifier { requests: &context.requests, greeted };
    let (shared, session, connection) = (&context.shared, greeted.session, greeted.connection);
    let _ = context.requests.send(OwnerRequest::Controlled { session, connection, frames: frames.clone() }).await;
    while let Some((header, message)) = read_message(reader).await? {
        check_epoch(context, header.epoch)?;
        match message {
            VolumeMessage::Return { held, .. } => {
                let _ = context.requests.send(OwnerRequest::Return { session, held }).await;
            }
            VolumeMessage::NameDropped { number } => {
                let _ = context.requests.send(OwnerRequest::NameDropped { session, number }).await;
            }
            VolumeMessage::Pushed { number } => {
                let _ = context.requests.send(OwnerRequest::Pushed { session, number }).await;
            }
            VolumeMessage::Renew { session: named, sent_ns, acknowledged, drained } if named == session => {
                let sequence = shared.drained_to.load(Ordering::Acquire);
                // The check comes before the owner learns of the renewal, so that the owner counts a renewal as
                // answered only if it may be answered.
                let is_answered = !shared.barred().contains(&session);
                let request = OwnerRequest::Acknowledge { session, acknowledged, drained, is_answered };
                let _ = context.requests.send(request).await;
                if !is_answered {
                    continue;
                }
                let stored = shared.stored().get(&session).copied().unwrap_or(0);
                let (lease_ms, server_ns) = (shared.lease_ms, wall_ns());
                let renewed = VolumeMessage::Renewed { sent_ns, lease_ms, server_ns, sequence, stored };
                let _ = frames.send(renewed.encode(header.request, shared.epoch));
            }
            _ => return Err(misplaced(header.request)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{FileId, MetadataQuestion, Token, TokenGrant};

    #[test]
    fn returns_take_no_share_of_calls() {
        let turns = RequestBounds::new();
        let object = FileId { inode: 7, generation: 1 };
        let held = TokenGrant { token: Token { object, what: TokenAspect::Directory }, level: 1, sequence: 1 };
        let back = VolumeMessage::Return { held, is_lost: false };
        let question = VolumeMessage::Question { session: 1, question: MetadataQuestion::Stored };
        let all_returns: Vec<_> = (0..RETURNS_MAX).map(|_| turns.take(&back).expect("there is room")).collect();
        let refused = turns.take(&back).map(drop);
        assert_eq!(refused, Err("more than 2048 returns without an answer".to_owned()));
        let all_calls: Vec<_> = (0..CALLS_MAX).map(|_| turns.take(&question).expect("returns take none")).collect();
        assert!(turns.take(&question).is_err());
        drop(all_returns);
        assert!(turns.take(&back).is_ok() && turns.take(&question).is_err());
        drop(all_calls);
        assert!(turns.take(&question).is_ok());
    }
}
