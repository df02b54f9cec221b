//! Reads and writes of files, through the cache.
//!
//! Owns: the serving of reads and writes. A hit is answered on the thread that received the request, from the cache's
//! own memory, without a copy. A request that must wait does so in a task of the tree's runtime, so no thread of the
//! crew waits for a disk. Promises: a read whose process is interrupted is answered at once; an answered write is in
//! the source.

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nectary_block::{Buffer, Error, IoContext, WriteFlags};
use nectary_buffer::{BufferCache, FileId, PinnedBytes, READ_BLOCKS_MAX, stream_of};
use nectary_fuse::{BufferPool, Errno, PooledData, ReadCall, ReplyHandle, RequestCaller, WriteCall};

use super::handles::{OpenFile, is_synced};
use super::names::StreamNames;
use super::nodes::TreeNodes;
use super::processes::ThreadProcesses;
use super::source::errno;

/// How many times a read is tried if others change the file meanwhile.
const TRIES_MAX: u32 = 8;

/// The cache, and the other parts that reads and writes need.
pub struct DataPath {
    /// The cache.
    pub cache: BufferCache,
    /// Memory for reads of more blocks than the cache can pin at once.
    pub memory: BufferPool,
    /// The process of each thread that reads or writes.
    pub processes: ThreadProcesses,
    /// The names of streams.
    pub names: StreamNames,
    nodes: Arc<TreeNodes>,
    block_bytes: u64,
}

impl DataPath {
    /// Makes a value that reads and writes through the cache of `nodes`; large reads use `memory`.
    pub fn new(nodes: Arc<TreeNodes>, memory: BufferPool) -> DataPath {
        let cache = nodes.cache.clone();
        let block_bytes = u64::from(cache.options().block_bytes);
        DataPath {
            cache,
            memory,
            processes: ThreadProcesses::default(),
            names: StreamNames::default(),
            nodes,
            block_bytes,
        }
    }

    fn context(&self, caller: RequestCaller, file: &OpenFile) -> IoContext {
        let owner = self.processes.of(caller.thread);
        let part = if self.processes.is_by_session() { 0 } else { file.node.number };
        let stream = stream_of(owner.into(), part);
        if file.named.swap(owner, Ordering::Relaxed) != owner {
            self.names.learn(stream, owner, &self.nodes, &file.node);
        }
        IoContext { stream, ..IoContext::default() }
    }

    /// The number of bytes that a read returns, given the current size of the file.
    fn length(file: &OpenFile, read: ReadCall) -> u64 {
        u64::from(read.size).min(file.file.source.sight.size().saturating_sub(read.offset))
    }

    /// Examines a file whose end a read has reached, because others may have appended to it. A failure is left to the
    /// read of what they have appended.
    fn look_behind_end(&self, file: &OpenFile, read: ReadCall) -> u64 {
        if !self.nodes.is_exclusive && read.size > 0 {
            let _ = file.file.source.look(None);
        }
        DataPath::length(file, read)
    }

    fn blocks(&self, offset: u64, length: u64) -> u64 {
        (offset + length).div_ceil(self.block_bytes) - offset / self.block_bytes
    }

    /// Serves a read; `spawn` starts the task of a read that must wait.
    pub fn read(
        self: &Arc<DataPath>,
        file: &Arc<OpenFile>,
        read: ReadCall,
        caller: RequestCaller,
        reply: ReplyHandle,
        spawn: impl FnOnce(std::pin::Pin<Box<dyn Future<Output = ()> + Send>>),
    ) {
        let sight = &file.file.source.sight;
        let mut epoch = sight.epoch();
        let mut length = DataPath::length(file, read);
        if length == 0 {
            length = self.look_behind_end(file, read);
            if length == 0 {
                return reply.bytes(&[]);
            }
            epoch = sight.epoch();
        }
        let context = self.context(caller, file);
        if self.blocks(read.offset, length) <= READ_BLOCKS_MAX as u64
            && let Some(pins) = self.cache.try_read(file.file.id, read.offset, length, context)
            && sight.is_since(epoch)
        {
            return answer(reply, &pins);
        }
        reply.can_be_cut_short();
        let (bytes, file) = (self.clone(), file.clone());
        spawn(Box::pin(async move { bytes.read_slowly(&file, read, context, reply).await }));
    }

    async fn read_slowly(&self, file: &OpenFile, read: ReadCall, context: IoContext, reply: ReplyHandle) {
        for tries in 1.. {
            let sight = &file.file.source.sight;
            let epoch = sight.epoch();
            let length = DataPath::length(file, read);
            if length == 0 {
                return reply.bytes(&[]);
            }
            // A file that others change all the time is returned as it was at some of these moments.
            let is_current = || sight.is_since(epoch) || tries == TRIES_MAX;
            let error = if self.blocks(read.offset, length) <= READ_BLOCKS_MAX as u64 {
                match self.cache.read(file.file.id, read.offset, length, context).await {
                    Ok(pins) if is_current() => return answer(reply, &pins),
                    Ok(_) => None,
                    Err(error) => Some(error),
                }
            } else {
                match self.read_in_pieces(file.file.id, read.offset, length, context).await {
                    Ok(Some(data)) if is_current() => return reply.parts(&data.parts()),
                    Ok(Some(_)) => None,
                    Ok(None) => return reply.errno(libc::ENOMEM),
                    Err(error) => Some(error),
                }
            };
            let Some(error) = error else {
                tokio::task::yield_now().await;
                continue;
            };
            if tries == TRIES_MAX || DataPath::length(file, read) >= length {
                return reply.error(failed(&error));
            }
        }
    }

    /// Serves a read of many blocks by copying, so that no block stays pinned while the read waits for the next ones.
    async fn read_in_pieces(
        &self,
        file: FileId,
        offset: u64,
        length: u64,
        context: IoContext,
    ) -> Result<Option<PooledData>, Error> {
        let Some(mut data) = self.memory.take(length as usize).await else { return Ok(None) };
        let end = offset + length;
        let mut at = offset;
        let mut buffers = data.take();
        let mut place = CopyCursor { buffer: 0, offset: 0 };
        while at < end {
            let piece_end = (at / self.block_bytes + READ_BLOCKS_MAX as u64) * self.block_bytes;
            let piece = piece_end.min(end) - at;
            for pin in self.cache.read(file, at, piece, context).await? {
                place.copy(&mut buffers, &pin);
            }
            at += piece;
        }
        data.put(buffers);
        Ok(Some(data))
    }

    /// Serves a write.
    pub async fn write(
        &self,
        file: Arc<OpenFile>,
        write: WriteCall,
        caller: RequestCaller,
        mut data: PooledData,
        reply: ReplyHandle,
    ) {
        let context = match write.from_page_cache {
            // The kernel writes back a mapped page; the process that changed the page is unknown.
            true => IoContext::default(),
            false => self.context(caller, &file),
        };
        let length = data.len() as u32;
        let written = self.cache.write(file.file.id, write.offset, data.take(), WriteFlags::default(), context).await;
        let result = match written {
            Ok(buffers) => {
                data.put(buffers);
                if is_synced(write.flags) { self.cache.flush(file.file.id, IoContext::default()).await } else { Ok(()) }
            }
            Err(error) => Err(error),
        };
        match result {
            Ok(()) => reply.written(length),
            Err(error) => reply.error(failed(&error)),
        }
    }
}

/// The position to which the next byte is copied.
struct CopyCursor {
    buffer: usize,
    offset: usize,
}

impl CopyCursor {
    fn copy(&mut self, buffers: &mut [Buffer], bytes: &[u8]) {
        let mut bytes = bytes;
        while let Some(buffer) = buffers.get_mut(self.buffer).filter(|_| !bytes.is_empty()) {
            let count = (buffer.len() - self.offset).min(bytes.len());
            buffer[self.offset..self.offset + count].copy_from_slice(&bytes[..count]);
            (bytes, self.offset) = (&bytes[count..], self.offset + count);
            if self.offset == buffer.len() {
                (self.buffer, self.offset) = (self.buffer + 1, 0);
            }
        }
    }
}

/// Answers a read from the cache's own memory, without a copy.
fn answer(reply: ReplyHandle, pins: &[PinnedBytes]) {
    let parts: Vec<IoSlice<'_>> = pins.iter().map(|pin| IoSlice::new(pin)).collect();
    reply.parts(&parts);
}

fn failed(error: &Error) -> Errno {
    use nectary_host::log::{LogLevel, LogThrottle};
    static FAILED: LogThrottle = LogThrottle::every(std::time::Duration::from_secs(10));
    FAILED.write(LogLevel::Error, "cache", format_args!("{error}"));
    errno(error)
}
