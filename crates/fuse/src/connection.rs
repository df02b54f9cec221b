//! One connection to the kernel, and the loop of its requests.
//!
//! Owns: the order in which a request is read, registered, decoded and handed over, and the messages that need no file
//! system: `INIT`, `INTERRUPT`, `FORGET`, and malformed requests. Promises:
//! 1. No request is served before `INIT`.
//! 2. The memory of requests is allocated before the first request. No more requests than [`FuseLimits`] allow are in
//!    flight at a time; further requests wait in the kernel.
//! 3. A worker waits only for memory and permits, which become free when a request is answered. A file system must not
//!    wait in the methods of its calls for another request. So every wait ends, and every request is answered.
//! 4. Receiving a request needs none of the memory for answers to reads, so interrupts are received even when all of
//!    that memory is in use.

use std::io::{self, IoSlice, IoSliceMut};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use nectary_host::clock::since_boot;
use nectary_host::log::{LogLevel, LogThrottle};
use nectary_host::progress::CallProgress;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use zerocopy::{FromBytes, IntoBytes};

use crate::channel::{FuseChannel, ReceiveOutcome};
use crate::decode::{WireFormat, decode};
use crate::file_system::FuseFileSystem;
use crate::flights::{FlightTable, InterruptOutcome, LongCalls, RequestSubject};
use crate::negotiate::{self, NegotiationResult, RequestedFeatures, answer};
use crate::pool::{BufferPool, PooledData, block_on};
use crate::protocol::arguments::{BatchForgetIn, ForgetIn, ForgetOne, HEAD_BYTES, InHeader, InterruptIn};
use crate::protocol::{ARGUMENT_BYTES_MAX, PAGE_BYTES, opcode};
use crate::reply::ReplyHandle;
use crate::request::{FuseRequest, RequestCaller};

/// The lowest possible limit on the data of a request. Without negotiation, the kernel sends up to this number of
/// bytes. *Units*: bytes.
const REQUEST_BYTES_MIN: usize = 128 << 10;
/// The highest possible limit on the data of a request. *Units*: bytes.
const REQUEST_BYTES_MAX: usize = 256 << 20;

/// The limits of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FuseLimits {
    /// The maximum length of the data of one request. It is rounded to pages, and reduced to what the kernel allows.
    /// *Units*: bytes.
    pub request_bytes: usize,
    /// The size of one memory buffer. A small write uses one buffer. *Units*: bytes.
    pub unit_bytes: usize,
    /// The size of the memory for writes in flight, in addition to the memory of one request per worker. *Units*:
    /// bytes.
    pub write_bytes: usize,
    /// The maximum number of requests in flight.
    pub requests: usize,
    /// The maximum number of workers that receive requests.
    pub workers: usize,
}

impl Default for FuseLimits {
    fn default() -> FuseLimits {
        FuseLimits { request_bytes: 1 << 20, unit_bytes: 64 << 10, write_bytes: 8 << 20, requests: 1024, workers: 16 }
    }
}

/// The state that all workers of a connection share.
pub struct FuseConnection {
    file_system: Arc<dyn FuseFileSystem>,
    wishes: RequestedFeatures,
    agreed: OnceLock<NegotiationResult>,
    flights: Arc<FlightTable>,
    pool: BufferPool,
    turns: Arc<Semaphore>,
    limits: FuseLimits,
}

impl FuseConnection {
    /// Makes a connection that serves `file_system`. The connection's [workers](Worker) read the requests.
    pub fn new(file_system: Arc<dyn FuseFileSystem>, limits: FuseLimits) -> Arc<FuseConnection> {
        let mut limits = limits;
        let allowed = negotiate::request_bytes_allowed().min(REQUEST_BYTES_MAX);
        let request_bytes = limits.request_bytes.clamp(REQUEST_BYTES_MIN, allowed.max(REQUEST_BYTES_MIN));
        limits.request_bytes = request_bytes / PAGE_BYTES * PAGE_BYTES;
        limits.unit_bytes = limits.unit_bytes.clamp(PAGE_BYTES, limits.request_bytes).next_multiple_of(PAGE_BYTES);
        limits.workers = limits.workers.max(1);
        limits.requests = limits.requests.clamp(1, Semaphore::MAX_PERMITS);
        let units = |bytes: usize| bytes.div_ceil(limits.unit_bytes);
        let pool = BufferPool::new(
            units(limits.request_bytes) * limits.workers + units(limits.write_bytes),
            limits.unit_bytes,
        );
        Arc::new(FuseConnection {
            wishes: file_system.wishes(),
            file_system,
            agreed: OnceLock::new(),
            flights: Arc::default(),
            pool,
            turns: Arc::new(Semaphore::new(limits.requests)),
            limits,
        })
    }

    /// The limits in use, after rounding.
    pub fn limits(&self) -> FuseLimits {
        self.limits
    }

    /// Returns the requests that have been in progress for longer than `longer_than`, and the details of at most `most`.
    /// Requests that the kernel has not sent yet, because as many as [`FuseLimits`] allow are in flight, are not among them.
    pub fn long_calls(&self, longer_than: Duration, most: usize) -> LongCalls {
        self.flights.long_calls(since_boot(), longer_than, most)
    }

    /// The negotiated features; `None` before the first request.
    pub fn agreed(&self) -> Option<NegotiationResult> {
        self.agreed.get().copied()
    }
}

/// The outcome of one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerStep {
    /// A request was served, or a wait ended without a request.
    Went,
    /// The connection has ended.
    Ended,
}

/// One descriptor of a connection, with the memory into which requests are read.
pub struct ConnectionWorker {
    connection: Arc<FuseConnection>,
    channel: Arc<FuseChannel>,
    head: [u8; HEAD_BYTES],
    data: PooledData,
    /// The arguments of a request whose arguments do not fit into `head`.
    arguments: Vec<u8>,
    turn: Option<OwnedSemaphorePermit>,
}

impl ConnectionWorker {
    /// Makes a worker of a connection. Waits until there is memory for the worker, so that no more workers exist than
    /// the limits allow.
    pub fn new(connection: &Arc<FuseConnection>, channel: FuseChannel) -> ConnectionWorker {
        let data = connection.pool.take_blocking(connection.limits.request_bytes);
        ConnectionWorker {
            connection: connection.clone(),
            channel: Arc::new(channel),
            head: [0; HEAD_BYTES],
            data: data.expect("the pool has the memory of one request for each worker"),
            arguments: Vec::with_capacity(PAGE_BYTES),
            turn: None,
        }
    }

    /// The descriptor.
    pub fn channel(&self) -> &FuseChannel {
        &self.channel
    }

    /// Waits for the memory and the permit of the next request. This method must be called before each
    /// [`step`](Self::step).
    ///
    /// *Cancel safety*: the future can be dropped, and the method called again.
    pub async fn prepare(&mut self) {
        self.data.refill(self.connection.limits.request_bytes).await;
        if self.turn.is_none() {
            self.turn = self.connection.turns.clone().acquire_owned().await.ok();
        }
    }

    /// Like [`prepare`](Self::prepare), but blocks the calling thread.
    pub fn prepare_blocking(&mut self) {
        block_on(self.prepare());
    }

    /// Reads a request and passes it to the file system. On a blocking descriptor, this method waits for a request.
    ///
    /// *Errors*: `WouldBlock` if there is no request on a descriptor that does not block; otherwise the errors of the
    /// kernel.
    pub fn step(&mut self) -> io::Result<WorkerStep> {
        match self.receive()? {
            ReceiveOutcome::Bytes(bytes) => {
                self.dispatch(bytes);
                Ok(WorkerStep::Went)
            }
            ReceiveOutcome::Nothing => Ok(WorkerStep::Went),
            ReceiveOutcome::End => Ok(WorkerStep::Ended),
        }
    }

    /// Reads a request, without serving it.
    pub(crate) fn receive(&mut self) -> io::Result<ReceiveOutcome> {
        /// The number of parts of a request up to which the list of parts needs no allocation. By default a request has
        /// 17 parts: the head, and 16 units of 64 KiB for 1 MiB of data.
        const PARTS: usize = 33;
        let ConnectionWorker { channel, head, data, .. } = self;
        let mut slices = std::iter::once(&mut head[..]).chain(data.slices_mut());
        let mut parts: [IoSliceMut<'_>; PARTS] =
            std::array::from_fn(|_| IoSliceMut::new(slices.next().unwrap_or_default()));
        match slices.next() {
            None => channel.receive(&mut parts),
            Some(next) => {
                let further = std::iter::once(next).chain(slices).map(IoSliceMut::new);
                channel.receive(&mut parts.into_iter().chain(further).collect::<Vec<_>>())
            }
        }
    }

    /// Serves the request that [`receive`](Self::receive) has read.
    pub(crate) fn dispatch(&mut self, bytes: usize) {
        let Ok((header, _)) = InHeader::read_from_prefix(&self.head[..bytes.min(HEAD_BYTES)]) else {
            return malformed(bytes, None);
        };
        if header.length as usize != bytes {
            self.channel.send(header.unique, -libc::EINVAL, &[]);
            return malformed(bytes, Some(header.opcode));
        }
        let head_end = bytes.min(HEAD_BYTES);
        let of_head = size_of::<InHeader>()..head_end;
        match header.opcode {
            opcode::INIT => self.init(&header, bytes),
            opcode::FORGET => {
                if let Ok((ForgetIn { lookups }, _)) = ForgetIn::read_from_prefix(&self.head[of_head]) {
                    self.connection.file_system.forget(header.node, lookups);
                }
            }
            opcode::BATCH_FORGET => self.batch_forget(bytes),
            opcode::INTERRUPT => {
                if let Ok((InterruptIn { unique }, _)) = InterruptIn::read_from_prefix(&self.head[of_head]) {
                    let interrupted = self.connection.flights.interrupt(unique);
                    if interrupted != InterruptOutcome::Unknown {
                        let is_answered = interrupted == InterruptOutcome::Answered;
                        self.connection.file_system.interrupted(unique, is_answered);
                    }
                }
            }
            opcode::NOTIFY_REPLY => {}
            opcode::DESTROY => {
                self.connection.file_system.destroyed();
                self.channel.send(header.unique, 0, &[]);
            }
            _ => self.request(&header, bytes),
        }
    }

    fn request(&mut self, header: &InHeader, bytes: usize) {
        let connection = &self.connection;
        let Some(agreed) = connection.agreed.get() else {
            return self.channel.send(header.unique, -libc::EIO, &[]);
        };
        // The request is registered before it is decoded, so that an interrupt finds it.
        let subject = RequestSubject { operation: header.opcode, node: header.node, thread: header.process };
        let progress = CallProgress::begin(since_boot());
        connection.flights.begin(header.unique, self.channel.clone(), subject, progress.clone());
        let is_write = header.opcode == opcode::WRITE;
        let head = &self.head[size_of::<InHeader>()..bytes.min(HEAD_BYTES)];
        let data_bytes = bytes.saturating_sub(HEAD_BYTES);
        let arguments = if is_write || data_bytes == 0 {
            Some(head)
        } else if data_bytes <= ARGUMENT_BYTES_MAX {
            self.arguments.clear();
            self.arguments.extend_from_slice(head);
            append(&mut self.arguments, &self.data, data_bytes);
            Some(&self.arguments[..])
        } else {
            None
        };
        let form: WireFormat = agreed.form();
        let call = arguments.and_then(|arguments| decode(header, arguments, data_bytes, form));
        let Some(call) = call else {
            if let Some(channel) = connection.flights.end(header.unique) {
                channel.send(header.unique, -libc::EINVAL, &[]);
            }
            return malformed(bytes, Some(header.opcode));
        };
        let turn = self.turn.take().or_else(|| block_on(connection.turns.clone().acquire_owned()).ok());
        let Some(turn) = turn else { return };
        call.name().into_iter().for_each(|name| progress.set_name(name.to_bytes()));
        let reply = ReplyHandle::new(connection.flights.clone(), header.unique, &call, turn, progress);
        let caller = RequestCaller { user: header.user, group: header.group, thread: header.process };
        let data = is_write.then(|| self.data.split_to(data_bytes));
        let request = FuseRequest { unique: header.unique, node: header.node, caller, call, data };
        connection.file_system.serve(request, reply);
    }

    fn init(&mut self, header: &InHeader, bytes: usize) {
        let mut arguments = self.head[size_of::<InHeader>()..bytes.min(HEAD_BYTES)].to_vec();
        append(&mut arguments, &self.data, bytes.saturating_sub(HEAD_BYTES).min(PAGE_BYTES));
        let connection = &self.connection;
        match answer(&arguments, connection.wishes, connection.limits.request_bytes) {
            negotiate::InitAnswer::Agreed(agreed, out) => {
                if connection.agreed.set(agreed).is_err() {
                    return self.channel.send(header.unique, -libc::EIO, &[]);
                }
                connection.file_system.started(&agreed);
                self.channel.send(header.unique, 0, &[IoSlice::new(out.as_bytes())]);
            }
            negotiate::InitAnswer::Again(out) => self.channel.send(header.unique, 0, &[IoSlice::new(out.as_bytes())]),
            negotiate::InitAnswer::Refused => {
                let message = "the kernel's FUSE is older than 7.31; Linux 5.4 is the oldest that is served";
                nectary_host::log::write(LogLevel::Error, "fuse", format_args!("{message}"));
                self.channel.send(header.unique, -libc::EPROTO, &[]);
            }
        }
    }

    /// Passes to the file system the look-ups of many nodes that the kernel ends in one message. Only records that were
    /// received count, even if the message states a higher number.
    fn batch_forget(&mut self, bytes: usize) {
        let of_head = &self.head[size_of::<InHeader>()..bytes.min(HEAD_BYTES)];
        let Ok((BatchForgetIn { count, .. }, first)) = BatchForgetIn::read_from_prefix(of_head) else { return };
        let mut left = count;
        let mut data_bytes = bytes.saturating_sub(HEAD_BYTES);
        // Neither the head nor a memory unit ends inside a record.
        const RECORDS_BYTES: usize = HEAD_BYTES - size_of::<InHeader>() - size_of::<BatchForgetIn>();
        const { assert!(RECORDS_BYTES.is_multiple_of(size_of::<ForgetOne>())) };
        let parts = std::iter::once(first).chain(self.data.slices().map(|unit| {
            let part = &unit[..unit.len().min(data_bytes)];
            data_bytes -= part.len();
            part
        }));
        for mut part in parts {
            while let Ok((ForgetOne { node, lookups }, rest)) = ForgetOne::read_from_prefix(part) {
                if left == 0 {
                    return;
                }
                left -= 1;
                self.connection.file_system.forget(node, lookups);
                part = rest;
            }
        }
    }
}

/// Appends the first `bytes` bytes of `data` to the arguments.
fn append(arguments: &mut Vec<u8>, data: &PooledData, bytes: usize) {
    let mut left = bytes;
    for unit in data.slices() {
        let part = &unit[..unit.len().min(left)];
        arguments.extend_from_slice(part);
        left -= part.len();
        if left == 0 {
            break;
        }
    }
}

fn malformed(bytes: usize, opcode: Option<u32>) {
    static MALFORMED: LogThrottle = LogThrottle::every(Duration::from_secs(60));
    let what = opcode.map_or_else(|| "no whole head".to_owned(), |opcode| format!("operation {opcode}"));
    MALFORMED.write(
        LogLevel::Warning,
        "fuse",
        format_args!("a request of {bytes} bytes ({what}) is malformed; refused"),
    );
}
