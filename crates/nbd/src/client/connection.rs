//! One connection of a client after the haggling. It sends requests, and assigns replies to them by their cookies.
//!
//! Owns: the requests in flight with their buffers, the one task that writes and reads, and the end of a connection.
//! When a connection ends, every request in flight fails with the reason. Promises: buffers stay with their request
//! until the server has answered the request, even if its future was dropped; a request without an answer after the
//! device's request time makes the connection fail; a connection that is dropped sends `NBD_CMD_DISC` to the server and
//! ends.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use nectary_block::{Buffer, DeviceErrorKind};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};

use super::handshake::ClientAgreement;
use super::journal::{WriteJournal, WriteToken};
use super::replies::{CommandOutcome, ExpectedReply, ReplyDecoder, ReplyStep};
use crate::limits::{CONNECTION_BYTES_MAX, REQUESTS_MAX};
use crate::transport::{ReadHalf, Transport, WriteHalf, read_all, write_slices};
use crate::wire::command_flag::FAST_ZERO;
use crate::wire::request::{self, HeaderBytes, WireRequestHeader};
use crate::wire::{HeaderFormat, errno};

/// The maximum number of bytes that are read from the stream at once.
const READ_BYTES: usize = 128 << 10;
/// The shortest time between two checks of the pending requests.
const WATCH_TIME_MIN: Duration = Duration::from_millis(1);
/// The part of a range for whose discard or zeroing a server has the time of one request. *Units*: bytes.
pub(super) const RANGE_BYTES: u64 = 1 << 30;
/// The longest range of one discard or zeroing with extended headers. So a silent server is noticed in time. *Units*:
/// bytes.
pub(super) const LONG_RANGE_BYTES: u64 = 16 << 30;
/// The maximum number of requests that a long one counts as.
const PIECES_MAX: u64 = LONG_RANGE_BYTES / RANGE_BYTES;
/// The longest time for one request.
const DUE_MAX: Duration = Duration::from_secs(7 * 24 * 3600);
/// The maximum number of requests that are written at once.
const BATCH_MAX: usize = 64;

/// The reason why a connection has ended.
#[derive(Debug, Clone)]
pub(super) struct ConnectionFailure {
    pub kind: DeviceErrorKind,
    pub reason: Arc<str>,
    /// Whether the server or the network has ended the connection. A request that changes nothing can then be sent
    /// again.
    pub is_cut: bool,
}

impl ConnectionFailure {
    pub fn new(kind: DeviceErrorKind, reason: impl Into<Arc<str>>) -> ConnectionFailure {
        ConnectionFailure { kind, reason: reason.into(), is_cut: false }
    }
}

/// A request whose connection has ended, and the buffers of a read.
pub(super) struct FailedRequest {
    pub failure: ConnectionFailure,
    pub buffers: Vec<Buffer>,
}

impl From<ConnectionFailure> for FailedRequest {
    fn from(failure: ConnectionFailure) -> FailedRequest {
        FailedRequest { failure, buffers: Vec::new() }
    }
}

/// The outcome of a request, and its buffers.
pub(super) type Ended = Result<(CommandOutcome, Vec<Buffer>), FailedRequest>;

/// A request that the caller wants to send.
pub(super) struct ClientCommand {
    pub flags: u16,
    pub command: u16,
    pub offset: u64,
    pub length: u64,
    /// The data of a write, or the buffers for the data of a read.
    pub buffers: Vec<Buffer>,
    /// Whether a write is forced (FUA); `None` for commands that do not write.
    pub write: Option<bool>,
}

impl ClientCommand {
    fn expected(&self) -> ExpectedReply {
        match self.command {
            request::READ => ExpectedReply::Data { offset: self.offset, length: self.length as u32 },
            request::BLOCK_STATUS => ExpectedReply::Status,
            _ => ExpectedReply::Nothing,
        }
    }

    /// The number of bytes for which the command needs permits while it is in flight.
    fn bytes(&self) -> u32 {
        if self.buffers.is_empty() { 0 } else { self.length.min(CONNECTION_BYTES_MAX as u64) as u32 }
    }
}

/// The permits of a request in flight.
pub(super) struct RequestPermits {
    _request: OwnedSemaphorePermit,
    _bytes: OwnedSemaphorePermit,
}

struct RequestInFlight {
    /// The time at which the connection fails if there is no answer.
    due: Instant,
    /// The buffers; `None` while the connection's task writes them or reads into them.
    buffers: Option<Vec<Buffer>>,
    outcome: Option<CommandOutcome>,
    token: Option<WriteToken>,
    is_flush: bool,
    reply: oneshot::Sender<Ended>,
    _permits: RequestPermits,
}

/// A request that waits to be written.
struct OutgoingRequest {
    header: HeaderBytes,
    cookie: u64,
    data: Option<Vec<Buffer>>,
}

struct InFlight {
    replies: ReplyDecoder,
    entries: HashMap<u64, RequestInFlight>,
    cookie: u64,
}

struct ClientConnectionState {
    in_flight: Mutex<InFlight>,
    failure: OnceLock<ConnectionFailure>,
    journal: WriteJournal,
    /// Notified when the connection has ended.
    ended: Arc<Notify>,
}

/// A connection that accepts requests.
pub(super) struct ClientConnection {
    shared: Arc<ClientConnectionState>,
    headers: HeaderFormat,
    request_time: Duration,
    queue: UnboundedSender<OutgoingRequest>,
    requests: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
}

impl ClientConnection {
    /// Begins to send requests and to read replies on a stream, in the tokio runtime of the caller.
    pub fn start(
        stream: Transport,
        agreed: &ClientAgreement,
        journal: WriteJournal,
        request_time: Duration,
        ended: Arc<Notify>,
    ) -> ClientConnection {
        let (queue, outgoing) = unbounded_channel();
        let replies = ReplyDecoder::new(agreed.headers, agreed.allocation);
        let in_flight = Mutex::new(InFlight { replies, entries: HashMap::new(), cookie: 0 });
        let shared = Arc::new(ClientConnectionState { in_flight, failure: OnceLock::new(), journal, ended });
        // The task ends when the connection is dropped or fails.
        tokio::spawn(run(stream, shared.clone(), outgoing, request_time, agreed.headers));
        let requests = Arc::new(Semaphore::new(REQUESTS_MAX));
        let bytes = Arc::new(Semaphore::new(CONNECTION_BYTES_MAX));
        ClientConnection { shared, headers: agreed.headers, request_time, queue, requests, bytes }
    }

    /// The reason why the connection has ended; `None` if it has not ended.
    pub fn failure(&self) -> Option<&ConnectionFailure> {
        self.shared.failure.get()
    }

    /// The permits for a request; `None` if the request must wait for them.
    pub fn try_permits(&self, command: &ClientCommand) -> Option<RequestPermits> {
        let take = |semaphore: &Arc<Semaphore>, count| semaphore.clone().try_acquire_many_owned(count).ok();
        Some(RequestPermits { _request: take(&self.requests, 1)?, _bytes: take(&self.bytes, command.bytes())? })
    }

    /// Waits for the permits for a request.
    pub async fn permits(&self, command: &ClientCommand) -> Result<RequestPermits, ConnectionFailure> {
        let closed = || ConnectionFailure::new(DeviceErrorKind::Io, "the connection is closed");
        let take = async |semaphore: &Arc<Semaphore>, count| {
            semaphore.clone().acquire_many_owned(count).await.map_err(|_| closed())
        };
        Ok(RequestPermits {
            _request: take(&self.requests, 1).await?,
            _bytes: take(&self.bytes, command.bytes()).await?,
        })
    }

    /// Sends a request. The returned receiver gets the result of the request. *Errors*: the connection has ended, or the
    /// device refuses writes; the request was not sent and is returned.
    pub fn submit(
        &self,
        command: ClientCommand,
        permits: RequestPermits,
    ) -> Result<oneshot::Receiver<Ended>, (ConnectionFailure, ClientCommand)> {
        let (reply, receiver) = oneshot::channel();
        let expected = command.expected();
        let mut in_flight = self.shared.lock();
        if let Some(failure) = self.failure() {
            return Err((failure.clone(), command));
        }
        // `fail` takes the same lock. So when the connection fails, a write is either counted as in flight or has not
        // begun.
        let token = match command.write.map(|fua| self.shared.journal.begin(fua)).transpose() {
            Ok(token) => token,
            Err(reason) => return Err((ConnectionFailure::new(DeviceErrorKind::Latched, reason), command)),
        };
        let ClientCommand { flags, command, offset, length, buffers, .. } = command;
        in_flight.cookie += 1;
        let cookie = in_flight.cookie;
        let (data, buffers) = if command == request::WRITE { (Some(buffers), None) } else { (None, Some(buffers)) };
        in_flight.replies.expect(cookie, offset, expected);
        let (due, is_flush) = (self.due(command, flags, length), command == request::FLUSH);
        let entry = RequestInFlight { due, buffers, outcome: None, token, is_flush, reply, _permits: permits };
        in_flight.entries.insert(cookie, entry);
        let header = WireRequestHeader { flags, command, cookie, offset, length }.encode(self.headers);
        // If the task has just ended, `fail` ends this request, too.
        let _ = self.queue.send(OutgoingRequest { header, cookie, data });
        Ok(receiver)
    }
}

impl ClientConnection {
    /// The time at which a request must be answered. A long discard or zeroing has more time, as if it were cut into
    /// several requests, unless it has to be quick.
    fn due(&self, command: u16, flags: u16, length: u64) -> Instant {
        let is_long = matches!(command, request::TRIM | request::WRITE_ZEROES) && flags & FAST_ZERO == 0;
        let pieces = if is_long { (length / RANGE_BYTES).clamp(1, PIECES_MAX) as u32 } else { 1 };
        Instant::now() + self.request_time.saturating_mul(pieces).min(DUE_MAX)
    }
}

impl ClientConnectionState {
    fn lock(&self) -> MutexGuard<'_, InFlight> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the server's answer to a request. A flush that fails latches the device here, also if nobody waits for
    /// the flush any more.
    fn answered(&self, cookie: u64, outcome: CommandOutcome) {
        let mut in_flight = self.lock();
        if let CommandOutcome::Refused(value, message) = &outcome
            && let Some(entry) = in_flight.entries.get(&cookie)
        {
            let is_forced = entry.token.as_ref().is_some_and(WriteToken::is_forced);
            if entry.is_flush {
                self.journal.latch(format!("a flush failed: {}", refusal(*value, message)));
            } else if is_forced && *value == errno::EIO {
                self.journal.force_failed(&refusal(*value, message));
            }
        }
        in_flight.answered(cookie, outcome);
    }

    /// Ends the connection and fails every request in flight.
    fn fail(&self, failure: ConnectionFailure) {
        let mut in_flight = self.lock();
        let _ = self.failure.set(failure.clone());
        self.journal.lost(&failure.reason);
        for (_, entry) in in_flight.entries.drain() {
            let buffers = entry.buffers.unwrap_or_default();
            let _ = entry.reply.send(Err(FailedRequest { failure: failure.clone(), buffers }));
        }
        drop(in_flight);
        self.ended.notify_one();
    }
}

impl InFlight {
    /// Records the server's answer. The request ends as soon as the connection's task has also returned its buffers.
    fn answered(&mut self, cookie: u64, outcome: CommandOutcome) {
        if let Some(entry) = self.entries.get_mut(&cookie) {
            if let Some(token) = entry.token.take() {
                token.answered(outcome == CommandOutcome::Done);
            }
            entry.outcome = Some(outcome);
        }
        self.end(cookie);
    }

    fn give_back(&mut self, cookie: u64, buffers: Vec<Buffer>) {
        if let Some(entry) = self.entries.get_mut(&cookie) {
            entry.buffers = Some(buffers);
        }
        self.end(cookie);
    }

    fn end(&mut self, cookie: u64) {
        let is_over = |entry: &RequestInFlight| entry.outcome.is_some() && entry.buffers.is_some();
        if !self.entries.get(&cookie).is_some_and(is_over) {
            return;
        }
        if let Some(RequestInFlight { outcome: Some(outcome), buffers: Some(buffers), reply, .. }) =
            self.entries.remove(&cookie)
        {
            // The caller may have dropped the request, so a failure to send is ignored.
            let _ = reply.send(Ok((outcome, buffers)));
        }
    }
}

async fn run(
    stream: Transport,
    shared: Arc<ClientConnectionState>,
    outgoing: UnboundedReceiver<OutgoingRequest>,
    request_time: Duration,
    headers: HeaderFormat,
) {
    let (reader, writer) = stream.into_halves();
    let failure = tokio::select! {
        failure = read(BufReader::with_capacity(READ_BYTES, reader), &shared) => failure,
        written = write(writer, outgoing, &shared, headers) => match written {
            // The device was dropped.
            Ok(()) => ConnectionFailure::new(DeviceErrorKind::Io, "the device was closed"),
            Err(error) => lost(&error),
        },
        failure = watch(&shared, request_time) => failure,
    };
    shared.fail(failure);
}

/// The words for an error that the server answers.
pub(super) fn refusal(value: u32, message: &str) -> String {
    let separator = if message.is_empty() { "" } else { ": " };
    format!("the server answers {}{separator}{message}", errno::name(value))
}

fn lost(error: &io::Error) -> ConnectionFailure {
    let kind = if error.kind() == io::ErrorKind::TimedOut { DeviceErrorKind::TimedOut } else { DeviceErrorKind::Io };
    let reason: Arc<str> = match error.kind() {
        io::ErrorKind::UnexpectedEof => "the server has ended the connection".into(),
        _ => format!("the connection failed: {error}").into(),
    };
    ConnectionFailure { kind, reason, is_cut: kind == DeviceErrorKind::Io }
}

/// Writes requests until the device is dropped; then writes `NBD_CMD_DISC`.
async fn write(
    mut writer: WriteHalf,
    mut queue: UnboundedReceiver<OutgoingRequest>,
    shared: &ClientConnectionState,
    headers: HeaderFormat,
) -> io::Result<()> {
    let mut batch = Vec::with_capacity(BATCH_MAX);
    while queue.recv_many(&mut batch, BATCH_MAX).await > 0 {
        let mut slices: Vec<&[u8]> = Vec::with_capacity(2 * batch.len());
        for outgoing in &batch {
            slices.push(&outgoing.header);
            slices.extend(outgoing.data.iter().flatten().filter(|buffer| !buffer.is_empty()).map(|buffer| &buffer[..]));
        }
        write_slices(&mut writer, &slices).await?;
        if batch.iter().any(|outgoing| outgoing.data.is_some()) {
            let mut in_flight = shared.lock();
            for outgoing in &mut batch {
                if let Some(data) = outgoing.data.take() {
                    in_flight.give_back(outgoing.cookie, data);
                }
            }
        }
        batch.clear();
    }
    let goodbye =
        WireRequestHeader { flags: 0, command: request::DISC, cookie: 0, offset: 0, length: 0 }.encode(headers);
    write_slices(&mut writer, &[&goodbye]).await?;
    writer.shutdown().await
}

/// Reads replies until the connection fails.
async fn read(mut reader: BufReader<ReadHalf>, shared: &ClientConnectionState) -> ConnectionFailure {
    match try_read(&mut reader, shared).await {
        Ok(never) => match never {},
        Err(ReadError::Io(error)) => lost(&error),
        Err(ReadError::Rule(rule)) => {
            ConnectionFailure::new(DeviceErrorKind::Io, format!("the server breaks the protocol: {rule}"))
        }
    }
}

enum ReadError {
    Io(io::Error),
    Rule(String),
}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> ReadError {
        ReadError::Io(error)
    }
}

impl From<String> for ReadError {
    fn from(rule: String) -> ReadError {
        ReadError::Rule(rule)
    }
}

async fn try_read(
    reader: &mut BufReader<ReadHalf>,
    shared: &ClientConnectionState,
) -> Result<std::convert::Infallible, ReadError> {
    let mut bytes = Vec::new();
    loop {
        let (wants, is_between) = {
            let in_flight = shared.lock();
            (in_flight.replies.wants(), in_flight.replies.is_between())
        };
        // Between replies a server may be silent for any time; `watch` ends the connection if a request waits too long.
        if is_between && reader.fill_buf().await?.is_empty() {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        bytes.resize(wants, 0);
        read_all(reader, &mut bytes).await?;
        let mut step = shared.lock().replies.take(&bytes)?;
        loop {
            match step {
                ReplyStep::More => break,
                ReplyStep::Done(cookie, outcome) => {
                    shared.answered(cookie, outcome);
                    break;
                }
                ReplyStep::Data { cookie, at, length } => {
                    let mut lent = BufferLoan::take(shared, cookie)?;
                    for slice in range(&mut lent.buffers, at, length) {
                        read_all(reader, slice).await?;
                    }
                    drop(lent);
                    step = shared.lock().replies.data_taken()?;
                }
                ReplyStep::Hole { cookie, at, length } => {
                    let mut lent = BufferLoan::take(shared, cookie)?;
                    range(&mut lent.buffers, at, length).for_each(|slice| slice.fill(0));
                    drop(lent);
                    step = shared.lock().replies.data_taken()?;
                }
            }
        }
    }
}

/// The buffers of a request while data are read into them. They are put back also if reading ends early, so that the
/// request can be sent again.
struct BufferLoan<'a> {
    shared: &'a ClientConnectionState,
    cookie: u64,
    buffers: Vec<Buffer>,
}

impl BufferLoan<'_> {
    fn take(shared: &ClientConnectionState, cookie: u64) -> Result<BufferLoan<'_>, String> {
        let buffers = shared.lock().entries.get_mut(&cookie).and_then(|entry| entry.buffers.take());
        let buffers = buffers.ok_or_else(|| "data for a request that has none".to_owned())?;
        Ok(BufferLoan { shared, cookie, buffers })
    }
}

impl Drop for BufferLoan<'_> {
    fn drop(&mut self) {
        self.shared.lock().give_back(self.cookie, std::mem::take(&mut self.buffers));
    }
}

/// The slices of the buffers that cover `length` bytes from position `at` on.
fn range(buffers: &mut [Buffer], at: u32, length: u32) -> impl Iterator<Item = &mut [u8]> {
    let (mut skip, mut left) = (at as usize, length as usize);
    buffers.iter_mut().filter_map(move |buffer| {
        let start = skip.min(buffer.len());
        skip -= start;
        let count = left.min(buffer.len() - start);
        left -= count;
        (count > 0).then(|| &mut buffer[start..start + count])
    })
}

/// Returns when a request has waited for its answer for longer than `request_time`.
async fn watch(shared: &ClientConnectionState, request_time: Duration) -> ConnectionFailure {
    let mut pause = tokio::time::interval((request_time / 4).max(WATCH_TIME_MIN));
    loop {
        pause.tick().await;
        let due = shared.lock().entries.values().map(|entry| entry.due).min();
        if due.is_some_and(|due| due < Instant::now()) {
            let reason = format!("the server has not answered a request for {request_time:?}");
            return ConnectionFailure::new(DeviceErrorKind::TimedOut, reason);
        }
    }
}
