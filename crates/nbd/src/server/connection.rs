//! One connection of a server: negotiates the options, reads requests, executes them concurrently, and replies.
//!
//! Owns: the order of steps, the limits on requests in flight, and how a connection ends. One task reads requests and
//! begins them, and another one writes replies. A request that does not end at once gets its own task. Promises: a
//! request that has begun is never cancelled, because it may hold a range lock while the device works on it. So a
//! connection ends only after all of its requests have ended.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use nectary_block::{AccessStream, Buffer, IoContext};
use nectary_host::{Newcomer, Shutdown};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

use super::NbdServerState;
use super::command::{AlignedRange, CheckedCommand, RequestRefusal, check};
use super::execute::{CommandAnswer, CommandExecutor, WritePayload};
use super::handshake::{ALLOCATION_ID, ServerAgreement, ServerHandshake, ServerHandshakeAction};
use crate::limits::{CONNECTION_BYTES_MAX, HANDSHAKE_TIME_MAX, PAYLOAD_BYTES_MAX, REQUESTS_MAX};
use crate::planted::{Bug, planted};
use crate::transport::{ReadHalf, Transport, WriteHalf, read_all, write_slices};
use crate::wire::HeaderFormat;
use crate::wire::command_flag::PAYLOAD_LEN;
use crate::wire::reply::{self, ChunkTarget};
use crate::wire::request::{self, WireRequestHeader};

/// The maximum number of bytes that are read from the stream at once.
const READ_BYTES: usize = 128 << 10;

/// The maximum number of replies that are written at once.
const BATCH_MAX: usize = 64;

/// Serves the client `peer` until the connection ends. *Errors*: if the client or the network has ended the connection,
/// the reason.
pub(super) async fn converse(
    stream: Transport,
    peer: &str,
    newcomer: Newcomer,
    shared: &Arc<NbdServerState>,
) -> Result<(), String> {
    let agreed = tokio::select! {
        () = shared.stop.requested() => return Ok(()),
        () = newcomer.displaced() => return Ok(()),
        agreed = tokio::time::timeout(HANDSHAKE_TIME_MAX, haggle(stream, shared)) => agreed,
    };
    let late = || format!("the client has not chosen an export within {HANDSHAKE_TIME_MAX:?}");
    let Some((stream, agreed)) = agreed.map_err(|_| late())?? else { return Ok(()) };
    transmit(stream, agreed, peer, newcomer, shared).await
}

/// Negotiates options with the client; returns `None` if the client leaves without requesting an export.
async fn haggle(
    mut stream: Transport,
    shared: &Arc<NbdServerState>,
) -> Result<Option<(Transport, ServerAgreement)>, String> {
    let mut machine = ServerHandshake::new(shared.exports.clone(), shared.options.tls.is_some());
    let failed = |error: io::Error| format!("the connection failed in the handshake: {error}");
    stream.write_all(&machine.greeting()).await.map_err(failed)?;
    let mut bytes = Vec::new();
    // Whether any byte was received. It is no error if a client connects and leaves without sending a byte: such a
    // client has only checked that a server listens.
    let mut has_spoken = false;
    loop {
        bytes.resize(machine.wants(), 0);
        // Reading is not buffered, because the bytes after STARTTLS must be read by TLS and not here.
        match read_all(&mut stream, &mut bytes).await {
            Err(_) if !has_spoken => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read.map_err(failed)?,
        }
        has_spoken = true;
        let mut out = Vec::new();
        for action in machine.take(&bytes) {
            match action {
                ServerHandshakeAction::Send(bytes) => out.extend(bytes),
                ServerHandshakeAction::Begin(agreed) => {
                    stream.write_all(&out).await.map_err(failed)?;
                    stream.flush().await.map_err(failed)?;
                    return Ok(Some((stream, agreed)));
                }
                ServerHandshakeAction::End(reason) => {
                    let _ = stream.write_all(&out).await;
                    let _ = stream.shutdown().await;
                    let is_wish = reason.starts_with("the client has ended");
                    return if is_wish { Ok(None) } else { Err(reason) };
                }
                ServerHandshakeAction::StartTls => {
                    stream.write_all(&std::mem::take(&mut out)).await.map_err(failed)?;
                    let Some(tls) = &shared.options.tls else { return Err("TLS without a certificate".to_owned()) };
                    let encrypted = tls.accept(stream).await.map_err(|error| format!("TLS: {error}"))?;
                    stream = Box::new(encrypted);
                    machine.encrypted();
                }
            }
        }
        stream.write_all(&out).await.map_err(failed)?;
        stream.flush().await.map_err(failed)?;
    }
}

/// The permits that a request holds until its reply is written.
struct ReplyPermits {
    _request: OwnedSemaphorePermit,
    _connection: OwnedSemaphorePermit,
    _server: OwnedSemaphorePermit,
}

/// A reply that waits to be written.
struct QueuedReply {
    head: Vec<u8>,
    buffers: Vec<Buffer>,
    shift: usize,
    length: usize,
    _permits: ReplyPermits,
}

impl QueuedReply {
    fn new(
        to: ChunkTarget,
        command: Option<CheckedCommand>,
        answer: Result<CommandAnswer, RequestRefusal>,
        permits: ReplyPermits,
    ) -> QueuedReply {
        let cookie = if planted(Bug::WrongCookie) { to.cookie ^ (1 << 32) } else { to.cookie };
        let to = ChunkTarget { cookie, ..to };
        let mut head = Vec::with_capacity(48);
        let (mut buffers, mut skip, mut data) = (Vec::new(), 0, 0);
        match answer {
            Err(RequestRefusal { error, message }) if to.headers.is_structured() => {
                reply::error(&mut head, to, error, &message);
            }
            Err(RequestRefusal { error, .. }) => reply::simple(&mut head, error, cookie),
            Ok(CommandAnswer::Data { length: 0, .. }) if to.headers.is_structured() => {
                reply::chunk(&mut head, to, reply::DONE, reply::NONE, 0);
            }
            Ok(CommandAnswer::Data { buffers: found, shift, length }) => {
                (buffers, skip, data) = (found, shift, length as usize);
                let Some(CheckedCommand::Read { offset, .. }) = command.filter(|_| to.headers.is_structured()) else {
                    reply::simple(&mut head, 0, cookie);
                    return QueuedReply { head, buffers, shift: skip, length: data, _permits: permits };
                };
                if planted(Bug::DataTwice) {
                    reply::chunk(&mut head, to, 0, reply::OFFSET_DATA, 8 + 1);
                    head.extend(offset.to_be_bytes());
                    head.push(0xdd);
                }
                reply::chunk(&mut head, to, reply::DONE, reply::OFFSET_DATA, 8 + length);
                head.extend(offset.to_be_bytes());
            }
            Ok(CommandAnswer::Status(list)) if to.headers.is_extended() => {
                let count = list.len() as u32;
                reply::chunk(&mut head, to, reply::DONE, reply::BLOCK_STATUS_EXT, 8 + 16 * count);
                head.extend(ALLOCATION_ID.to_be_bytes());
                head.extend(count.to_be_bytes());
                for (length, flags) in list {
                    head.extend(length.to_be_bytes());
                    head.extend(u64::from(flags).to_be_bytes());
                }
            }
            Ok(CommandAnswer::Status(list)) => {
                reply::chunk(&mut head, to, reply::DONE, reply::BLOCK_STATUS, 4 + 8 * list.len() as u32);
                head.extend(ALLOCATION_ID.to_be_bytes());
                for (length, flags) in list {
                    // Without extended headers, no request and so no extent is longer.
                    head.extend((length as u32).to_be_bytes());
                    head.extend(flags.to_be_bytes());
                }
            }
            Ok(CommandAnswer::Done) if to.headers.is_extended() => {
                reply::chunk(&mut head, to, reply::DONE, reply::NONE, 0);
            }
            Ok(CommandAnswer::Done) => reply::simple(&mut head, 0, cookie),
        }
        QueuedReply { head, buffers, shift: skip, length: data, _permits: permits }
    }

    /// Appends all bytes of the reply to `list`, the slices that will be written.
    fn slices<'a>(&'a self, list: &mut Vec<&'a [u8]>) {
        list.push(&self.head);
        let (mut shift, mut left) = (self.shift, self.length);
        for buffer in &self.buffers {
            let slice = &buffer[shift.min(buffer.len())..];
            let slice = &slice[..left.min(slice.len())];
            shift = shift.saturating_sub(buffer.len());
            left -= slice.len();
            if !slice.is_empty() {
                list.push(slice);
            }
        }
    }
}

/// A request that was read completely.
struct DecodedRequest {
    header: WireRequestHeader,
    command: Result<CheckedCommand, RequestRefusal>,
    payload: Option<WritePayload>,
    permits: ReplyPermits,
}

/// The reading side of a connection.
struct RequestReader<'a> {
    reader: BufReader<ReadHalf>,
    agreed: &'a ServerAgreement,
    requests: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
    server_bytes: Arc<Semaphore>,
}

impl RequestReader<'_> {
    /// Reads the next request; `None` if the client has ended the connection.
    async fn next(&mut self) -> Result<Option<DecodedRequest>, String> {
        let failed = |error: io::Error| format!("the connection failed: {error}");
        // A client may be silent for any time between requests.
        if self.reader.fill_buf().await.map_err(failed)?.is_empty() {
            return Ok(None);
        }
        let headers = self.agreed.headers;
        let mut bytes = [0; request::EXTENDED_BYTES];
        let bytes = &mut bytes[..request::header_bytes(headers)];
        read_all(&mut self.reader, bytes).await.map_err(failed)?;
        let header = WireRequestHeader::decode(bytes, headers)
            .map_err(|magic| format!("a request begins with {magic:#010x} in place of its magic number"))?;
        if header.command == request::DISC {
            return Ok(None);
        }
        let is_write = header.command == request::WRITE;
        let has_payload = match headers.is_extended() {
            true => header.flags & PAYLOAD_LEN != 0,
            false => is_write,
        };
        if has_payload && header.length > u64::from(PAYLOAD_BYTES_MAX) {
            return Err(format!("data of {} bytes, at most {PAYLOAD_BYTES_MAX} are taken", header.length));
        }
        if is_write && !has_payload {
            return Err("a write whose flags say that it has no data".to_owned());
        }
        let command = check(&header, self.agreed);
        let block_bytes = self.agreed.export.device().geometry().block_bytes;
        let permits = self.permits(&command, &header, block_bytes).await?;
        let mut payload = None;
        match &command {
            Ok(CheckedCommand::Write { offset, length, .. }) => {
                let mut data = WritePayload::new(*offset, *length, block_bytes);
                for slice in data.slices() {
                    read_all(&mut self.reader, slice).await.map_err(failed)?;
                }
                payload = Some(data);
            }
            Err(_) if has_payload => self.skip(header.length as usize).await.map_err(failed)?,
            _ => {}
        }
        Ok(Some(DecodedRequest { header, command, payload, permits }))
    }

    /// Waits until the limits allow another request.
    async fn permits(
        &mut self,
        command: &Result<CheckedCommand, RequestRefusal>,
        header: &WireRequestHeader,
        block_bytes: u32,
    ) -> Result<ReplyPermits, String> {
        let bytes = match command {
            Ok(CheckedCommand::Read { offset, length } | CheckedCommand::Write { offset, length, .. }) => {
                AlignedRange::of(*offset, u64::from(*length), block_bytes).length as u32
            }
            Ok(CheckedCommand::Zero { .. } | CheckedCommand::Cache { .. } | CheckedCommand::Status { .. }) => {
                header.length.min(1 << 20) as u32
            }
            _ => 0,
        };
        let take = async |semaphore: &Arc<Semaphore>, count: u32| {
            semaphore.clone().acquire_many_owned(count).await.map_err(|_| "the server has stopped".to_owned())
        };
        Ok(ReplyPermits {
            _request: take(&self.requests, 1).await?,
            _connection: take(&self.bytes, bytes).await?,
            _server: take(&self.server_bytes, bytes).await?,
        })
    }

    /// Skips the data of a refused write.
    async fn skip(&mut self, mut left: usize) -> io::Result<()> {
        let mut waste = [0; 4096];
        while left > 0 {
            let length = left.min(waste.len());
            read_all(&mut self.reader, &mut waste[..length]).await?;
            left -= length;
        }
        Ok(())
    }
}

async fn transmit(
    stream: Transport,
    agreed: ServerAgreement,
    peer: &str,
    newcomer: Newcomer,
    shared: &Arc<NbdServerState>,
) -> Result<(), String> {
    let _joined = agreed.export.joined(peer);
    let (reader, writer) = stream.into_halves();
    let (replies, queue) = unbounded_channel();
    let broken = Shutdown::new();
    let mut writing = tokio::spawn(write_replies(writer, queue, broken.clone()));
    let mut reading = RequestReader {
        reader: BufReader::with_capacity(READ_BYTES, reader),
        agreed: &agreed,
        requests: Arc::new(Semaphore::new(REQUESTS_MAX)),
        bytes: Arc::new(Semaphore::new(CONNECTION_BYTES_MAX)),
        server_bytes: shared.bytes.clone(),
    };
    let stream = AccessStream(shared.next.fetch_add(1, Ordering::Relaxed));
    let executor = Arc::new(CommandExecutor {
        export: agreed.export.clone(),
        context: IoContext { stream, deadline: None },
        has_written: AtomicBool::new(false),
    });
    let mut running = JoinSet::new();
    let ended = {
        let (mut stop, mut broken) = (std::pin::pin!(shared.stop.requested()), std::pin::pin!(broken.requested()));
        let mut taken = std::pin::pin!(agreed.export.ended().requested());
        let mut newcomer = Some(newcomer);
        loop {
            let next = tokio::select! {
                biased;
                () = displaced(newcomer.as_ref()), if newcomer.is_some() => break Ok(()),
                () = &mut stop => break Ok(()),
                () = &mut broken => break Ok(()),
                () = &mut taken => break Ok(()),
                next = reading.next() => next,
            };
            match next {
                Ok(Some(request)) => {
                    // Dropping it records that the connection is used.
                    newcomer = None;
                    begin(request, &executor, agreed.headers, &replies, &mut running).await;
                }
                Ok(None) => break Ok(()),
                Err(reason) => break Err(reason),
            }
            while running.try_join_next().is_some() {}
        }
    };
    while running.join_next().await.is_some() {}
    drop(replies);
    let written = tokio::select! {
        biased;
        written = &mut writing => written.unwrap_or_else(|error| Err(error.to_string())),
        // The export is ending. The client may have disconnected or stopped reading, so the remaining replies are
        // dropped.
        () = agreed.export.ended().requested() => {
            writing.abort();
            let _ = writing.await;
            Ok(())
        }
    };
    ended.and(written)
}

/// Waits until the connection has to give its place to another one.
async fn displaced(newcomer: Option<&Newcomer>) {
    match newcomer {
        Some(newcomer) => newcomer.displaced().await,
        None => std::future::pending().await,
    }
}

/// Begins a request. If the device completes the request immediately, no separate task is started for it.
async fn begin(
    request: DecodedRequest,
    executor: &Arc<CommandExecutor>,
    headers: HeaderFormat,
    replies: &UnboundedSender<QueuedReply>,
    running: &mut JoinSet<()>,
) {
    let DecodedRequest { header, command, payload, permits } = request;
    let counters = &executor.export.counters;
    let to = ChunkTarget { headers, cookie: header.cookie, offset: header.offset };
    let command = match command {
        Ok(command) => command,
        Err(refusal) => {
            counters.refused.fetch_add(1, Ordering::Relaxed);
            let _ = replies.send(QueuedReply::new(to, None, Err(refusal), permits));
            return;
        }
    };
    counters.begun(header.command);
    let mut work = {
        let (executor, replies) = (executor.clone(), replies.clone());
        Box::pin(async move {
            let answer = executor.run(command, payload).await;
            // If the writer of replies has ended, the connection has ended, too.
            let _ = replies.send(QueuedReply::new(to, Some(command), answer, permits));
        })
    };
    if std::future::poll_fn(|context| Poll::Ready(work.as_mut().poll(context))).await.is_pending() {
        running.spawn(work);
    }
}

/// Writes replies until all senders are dropped. Reports a failure to the reading side through `broken`.
async fn write_replies(
    mut writer: WriteHalf,
    mut queue: UnboundedReceiver<QueuedReply>,
    broken: Shutdown,
) -> Result<(), String> {
    let mut batch = Vec::with_capacity(BATCH_MAX);
    let mut written = Ok(());
    while queue.recv_many(&mut batch, BATCH_MAX).await > 0 {
        if written.is_ok() {
            let mut slices = Vec::with_capacity(2 * batch.len());
            batch.iter().for_each(|reply| reply.slices(&mut slices));
            written = write_slices(&mut writer, &slices).await;
            if written.is_err() {
                broken.request();
            }
        }
        batch.clear();
    }
    let _ = writer.shutdown().await;
    written.map_err(|error| format!("the client takes no replies: {error}"))
}
