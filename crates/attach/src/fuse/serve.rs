//! The loop of requests: a fixed number of slots, each with its own memory, take turns to read a request and then serve it
//! side by side.
//!
//! Owns: the slots, what is under way, and the answers. Promises:
//! 1. A slot's memory is allocated before the first request and used again for each: data of a write land in an aligned
//!    buffer and go to the device from there; data of a read go back from the buffer that the device filled.
//! 2. A request is answered once, after the device has ended it, except
//! 3. a read or a flush whose waiter is interrupted, which is answered at once with `EINTR`; its slot stays busy until
//!    the device gives the buffer back. A write is never answered early: it could land after a later one.
//! 4. A flush covers every write that was answered before it came.
//! 5. A discarded range reads as zeroes, whatever the device below makes of a discard: the kernel takes a hole for zeroes.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nectary_block::{Buffer, Context, Error, ErrorKind, SharedDevice, WriteFlags};
use nectary_host::log::{Level, Throttle};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::JoinSet;
use zerocopy::IntoBytes;

use super::protocol::{
    AllocateIn, Attributes, AttributesOut, Call, EntryOut, FILE, HEAD_BYTES, INIT_FLAGS, InHeader, InitIn, InitOut,
    MAJOR, MINOR, OPEN_FLAGS, OpenOut, OutHeader, ReadIn, StatFsOut, WriteIn, WriteOut, parse,
};
use crate::counters::{Counters, add};

/// How many requests are served side by side.
pub(super) const SLOTS: u16 = 64;

/// The most bytes of one read or write; a slot's buffer has as many.
const REQUEST_BYTES_MAX: usize = 256 << 10;

/// The unit in which the protocol limits reads.
const PAGE_BYTES: usize = 4096;

/// For how long the kernel may believe what it was told of the file's size.
const VALID_SECONDS: u64 = 3600;

/// What is waited for: a request, or the end of the connection, which the kernel shows as an error.
const READY: Interest = Interest::READABLE.add(Interest::ERROR);

const FALLOC_KEEP_SIZE: u32 = libc::FALLOC_FL_KEEP_SIZE as u32;
const FALLOC_PUNCH_HOLE: u32 = libc::FALLOC_FL_PUNCH_HOLE as u32;
const FALLOC_ZERO_RANGE: u32 = libc::FALLOC_FL_ZERO_RANGE as u32;

/// What the slots share.
pub struct Server {
    channel: AsyncFd<File>,
    device: SharedDevice,
    read_only: bool,
    counters: Arc<Counters>,
    /// Held by the slot whose turn it is to read.
    turn: tokio::sync::Mutex<()>,
    flights: Vec<Mutex<Flight>>,
    /// Of the slots that do not run yet; allocated with the server, not when memory may be short.
    memories: Mutex<Vec<Memory>>,
}

/// What a slot is at.
#[derive(Debug, Clone, Copy, Default)]
struct Flight {
    /// The request's number; 0 where there is none.
    unique: u64,
    can_be_interrupted: bool,
    is_answered: bool,
}

/// A slot's own memory.
struct Memory {
    head: [u8; HEAD_BYTES],
    /// One buffer, or none while the device has it.
    buffers: Vec<Buffer>,
}

impl Memory {
    fn new() -> Memory {
        Memory { head: [0; HEAD_BYTES], buffers: vec![Buffer::zeroed(REQUEST_BYTES_MAX)] }
    }

    /// The buffer at its full length; a new one where a failed operation kept the last.
    fn buffer(&mut self) -> &mut Buffer {
        if self.buffers.is_empty() {
            self.buffers.push(Buffer::zeroed(REQUEST_BYTES_MAX));
        }
        let buffer = &mut self.buffers[0];
        buffer.set_len(REQUEST_BYTES_MAX);
        buffer
    }
}

/// Data of an answer.
enum Answer<'a> {
    Bytes(&'a [u8]),
    Error(i32),
}

impl Server {
    /// Makes a server of `device` on `channel`, in the runtime that it is called in.
    pub fn new(channel: File, device: SharedDevice, read_only: bool, counters: Arc<Counters>) -> io::Result<Server> {
        // SAFETY: the file owns its descriptor, which stays open and the same until the `AsyncFd` is dropped with it.
        let channel = unsafe { AsyncFd::register_with_interest(channel, READY)? };
        Ok(Server {
            channel,
            device,
            read_only,
            counters,
            turn: tokio::sync::Mutex::new(()),
            flights: (0..SLOTS).map(|_| Mutex::default()).collect(),
            memories: Mutex::new((0..SLOTS).map(|_| Memory::new()).collect()),
        })
    }

    /// Serves, once, until the kernel ends the connection, which it does when the last user of the file is gone.
    ///
    /// *Errors*: what the kernel's end of the protocol reports, other than its regular end.
    pub async fn run(self: Arc<Server>) -> io::Result<()> {
        let mut slots = JoinSet::new();
        let memories = std::mem::take(&mut *self.memories.lock().unwrap_or_else(PoisonError::into_inner));
        for (index, memory) in memories.into_iter().enumerate() {
            let server = self.clone();
            slots.spawn(async move { server.slot(index, memory).await });
        }
        let mut result = Ok(());
        while let Some(ended) = slots.join_next().await {
            let ended = ended.unwrap_or_else(|panic| Err(io::Error::other(format!("a slot panicked: {panic}"))));
            result = result.and(ended);
        }
        result
    }

    async fn slot(&self, index: usize, mut memory: Memory) -> io::Result<()> {
        loop {
            let turn = self.turn.lock().await;
            let Some(bytes) = self.receive(&mut memory).await? else { return Ok(()) };
            let data_bytes = bytes.saturating_sub(HEAD_BYTES);
            let head = &memory.head[..bytes.min(HEAD_BYTES)];
            let Some((header, call)) = parse(head, &memory.buffers[0][..data_bytes]) else {
                static MALFORMED: Throttle = Throttle::every(Duration::from_secs(60));
                MALFORMED.write(Level::Warning, "attach", format_args!("a request of {bytes} bytes is malformed"));
                if let Some(unique) = head.get(8..16).and_then(|bytes| bytes.try_into().ok()).map(u64::from_ne_bytes) {
                    self.send(unique, Answer::Error(libc::EINVAL));
                }
                continue;
            };
            // Before the next slot reads, so that an interrupt finds it.
            *self.flight(index) = Flight {
                unique: header.unique,
                can_be_interrupted: matches!(call, Call::Read(_) | Call::Sync),
                is_answered: false,
            };
            drop(turn);
            self.serve(index, header, call, &mut memory).await;
            *self.flight(index) = Flight::default();
        }
    }

    /// Reads the next request; `None` at the end of the connection.
    async fn receive(&self, memory: &mut Memory) -> io::Result<Option<usize>> {
        memory.buffer();
        loop {
            let mut ready = self.channel.ready(READY).await?;
            let Memory { head, buffers } = memory;
            let read = ready.try_io(|channel| {
                let mut parts = [IoSliceMut::new(head), IoSliceMut::new(&mut buffers[0])];
                channel.get_ref().read_vectored(&mut parts)
            });
            match read {
                Err(_would_block) => {}
                Ok(Ok(bytes)) => return Ok(Some(bytes)),
                Ok(Err(error)) => match error.raw_os_error() {
                    // It was taken back before it was read.
                    Some(libc::ENOENT | libc::EINTR | libc::EAGAIN) => {}
                    Some(libc::ENODEV | libc::ECONNABORTED) => return Ok(None),
                    _ => return Err(error),
                },
            }
        }
    }

    async fn serve(&self, index: usize, header: InHeader, call: Call, memory: &mut Memory) {
        let unique = header.unique;
        match call {
            Call::Read(arguments) => self.read(index, arguments, memory).await,
            Call::Write(arguments) => self.write(index, arguments, memory).await,
            Call::Sync => {
                let flushed = self.device.flush(Context::default()).await;
                add(&self.counters.flushes, 1);
                self.finish(index, flushed.as_ref().map(|()| &[][..]));
            }
            Call::Allocate(arguments) => {
                let done = self.allocate(arguments).await;
                add(&self.counters.zeroes, 1);
                match done {
                    Ok(()) => self.send(unique, Answer::Bytes(&[])),
                    Err(number) => self.send(unique, Answer::Error(number)),
                }
            }
            Call::Interrupt(target) => self.interrupt(target),
            Call::Init(arguments) => self.init(unique, arguments),
            // The mount has no place, so only its maker asks, and any name that it asks for is that of the file.
            Call::LookUp => {
                let entry = EntryOut {
                    node: FILE,
                    entry_valid_seconds: VALID_SECONDS,
                    attributes_valid_seconds: VALID_SECONDS,
                    attributes: self.attributes(FILE),
                    ..EntryOut::default()
                };
                self.send(unique, Answer::Bytes(entry.as_bytes()));
            }
            Call::GetAttributes => {
                let attributes = self.attributes(header.node);
                let answer = AttributesOut { valid_seconds: VALID_SECONDS, attributes, ..AttributesOut::default() };
                self.send(unique, Answer::Bytes(answer.as_bytes()));
            }
            Call::Open => {
                let open = OpenOut { handle: 1, flags: OPEN_FLAGS, padding: 0 };
                self.send(unique, Answer::Bytes(open.as_bytes()));
            }
            Call::StatFs => {
                let geometry = self.device.geometry();
                let sizes = StatFsOut {
                    blocks: geometry.size_bytes / u64::from(geometry.block_bytes),
                    block_bytes: geometry.block_bytes,
                    fragment_bytes: geometry.block_bytes,
                    name_bytes_max: 255,
                    ..StatFsOut::default()
                };
                self.send(unique, Answer::Bytes(sizes.as_bytes()));
            }
            Call::Release => self.send(unique, Answer::Bytes(&[])),
            Call::Forget => {}
            Call::Other => self.send(unique, Answer::Error(libc::ENOSYS)),
        }
    }

    /// The attributes of the file, or of the directory that it is in.
    fn attributes(&self, node: u64) -> Attributes {
        if node != FILE {
            return Attributes { node, mode: libc::S_IFDIR | 0o500, links: 2, ..Attributes::default() };
        }
        let geometry = self.device.geometry();
        Attributes {
            node,
            size: geometry.size_bytes,
            blocks: geometry.size_bytes / 512,
            mode: libc::S_IFREG | if self.read_only { 0o400 } else { 0o600 },
            links: 1,
            block_bytes: geometry.block_bytes,
            ..Attributes::default()
        }
    }

    fn init(&self, unique: u64, asked: InitIn) {
        if asked.major < MAJOR {
            return self.send(unique, Answer::Error(libc::EPROTO));
        }
        let answer = InitOut {
            major: MAJOR,
            minor: MINOR,
            read_ahead_bytes_max: asked.read_ahead_bytes_max,
            flags: asked.flags & INIT_FLAGS,
            background_max: SLOTS,
            congestion_threshold: SLOTS,
            write_bytes_max: REQUEST_BYTES_MAX as u32,
            time_granularity_ns: 1,
            pages_max: (REQUEST_BYTES_MAX / PAGE_BYTES) as u16,
            ..InitOut::default()
        };
        self.send(unique, Answer::Bytes(answer.as_bytes()));
    }

    async fn read(&self, index: usize, arguments: ReadIn, memory: &mut Memory) {
        let size = self.device.geometry().size_bytes;
        let length = u64::from(arguments.size).min(size.saturating_sub(arguments.offset));
        if length > REQUEST_BYTES_MAX as u64 {
            return self.finish_with(index, Answer::Error(libc::EINVAL));
        }
        memory.buffers[0].set_len(length as usize);
        let buffers = std::mem::take(&mut memory.buffers);
        let result = self.device.read_at(arguments.offset, buffers, Context::default()).await;
        add(&self.counters.reads, 1);
        self.finish(index, result.as_ref().map(|buffers| &buffers[0][..]));
        if let Ok(buffers) = result {
            add(&self.counters.bytes_read, length);
            memory.buffers = buffers;
        }
    }

    async fn write(&self, index: usize, arguments: WriteIn, memory: &mut Memory) {
        if self.read_only {
            return self.finish_with(index, Answer::Error(libc::EROFS));
        }
        memory.buffers[0].set_len(arguments.size as usize);
        let buffers = std::mem::take(&mut memory.buffers);
        let written = self.device.write_at(arguments.offset, buffers, WriteFlags::default(), Context::default()).await;
        add(&self.counters.writes, 1);
        let answer = WriteOut { size: arguments.size, padding: 0 };
        self.finish(index, written.as_ref().map(|_| answer.as_bytes()));
        if let Ok(buffers) = written {
            add(&self.counters.bytes_written, u64::from(arguments.size));
            memory.buffers = buffers;
        }
    }

    /// Makes a hole or zeroes; gives the number of the error.
    async fn allocate(&self, arguments: AllocateIn) -> Result<(), i32> {
        if self.read_only {
            return Err(libc::EROFS);
        }
        let AllocateIn { offset, length, mode, .. } = arguments;
        let failed = |error: Error| self.failed(&error);
        match mode & !FALLOC_KEEP_SIZE {
            FALLOC_ZERO_RANGE => self.device.write_zeroes(offset, length, Context::default()).await.map_err(failed),
            FALLOC_PUNCH_HOLE => {
                self.device.discard(offset, length, Context::default()).await.map_err(failed)?;
                let left = self.device.allocation(offset, length, Context::default()).await.map_err(failed)?;
                for extent in left.into_iter().filter(|extent| extent.mapped) {
                    let zeroed = self.device.write_zeroes(extent.offset, extent.length, Context::default());
                    zeroed.await.map_err(failed)?;
                }
                Ok(())
            }
            _ => Err(libc::EOPNOTSUPP),
        }
    }

    /// Answers a read or a flush at once whose waiter does not wait any more.
    fn interrupt(&self, target: u64) {
        for flight in &self.flights {
            let mut flight = lock(flight);
            if flight.unique == target && flight.can_be_interrupted && !flight.is_answered {
                flight.is_answered = true;
                add(&self.counters.interrupted, 1);
                self.send(target, Answer::Error(libc::EINTR));
            }
        }
    }

    /// Answers with what the device gave.
    fn finish(&self, index: usize, result: Result<&[u8], &Error>) {
        match result {
            Ok(bytes) => self.finish_with(index, Answer::Bytes(bytes)),
            Err(error) => self.finish_with(index, Answer::Error(self.failed(error))),
        }
    }

    fn finish_with(&self, index: usize, answer: Answer) {
        let mut flight = self.flight(index);
        if !std::mem::replace(&mut flight.is_answered, true) {
            self.send(flight.unique, answer);
        }
    }

    fn flight(&self, index: usize) -> MutexGuard<'_, Flight> {
        lock(&self.flights[index])
    }

    /// Counts and names a failure of the device; gives the number that the kernel understands.
    fn failed(&self, error: &Error) -> i32 {
        static FAILED: Throttle = Throttle::every(Duration::from_secs(10));
        add(&self.counters.failed, 1);
        FAILED.write(Level::Error, "attach", format_args!("{error}"));
        number(error.kind)
    }

    /// Writes an answer; it never waits.
    fn send(&self, unique: u64, answer: Answer) {
        let (error, bytes) = match answer {
            Answer::Bytes(bytes) => (0, bytes),
            Answer::Error(number) => (-number, &[][..]),
        };
        let header = OutHeader { length: (size_of::<OutHeader>() + bytes.len()) as u32, error, unique };
        let parts = [IoSlice::new(header.as_bytes()), IoSlice::new(bytes)];
        let Err(error) = self.channel.get_ref().write_vectored(&parts) else { return };
        // Nobody waits any more, or the connection has ended: nothing is lost.
        if !matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV | libc::ECONNABORTED | libc::EPERM)) {
            static LOST: Throttle = Throttle::every(Duration::from_secs(60));
            LOST.write(Level::Error, "attach", format_args!("the kernel did not take an answer: {error}"));
        }
    }
}

/// The number by which the kernel knows a kind of failure.
fn number(kind: ErrorKind) -> i32 {
    match kind {
        ErrorKind::Absent => libc::ENXIO,
        ErrorKind::Busy => libc::EBUSY,
        ErrorKind::Invalid => libc::EINVAL,
        ErrorKind::Unsupported => libc::EOPNOTSUPP,
        ErrorKind::Full => libc::ENOSPC,
        ErrorKind::TimedOut => libc::ETIMEDOUT,
        ErrorKind::Io | ErrorKind::Latched => libc::EIO,
    }
}

fn lock(flight: &Mutex<Flight>) -> MutexGuard<'_, Flight> {
    flight.lock().unwrap_or_else(PoisonError::into_inner)
}
