//! The state that handles and tasks share, and the checks of a request.
//!
//! Owns: the mutex over the state, the semaphore of free frames, ranges of files, and tickets for I/O on blocks. Leaves
//! to others: the calls (`cache`), and the work that they start.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use nectary_block::{DeviceErrorKind, DeviceOperation, Error, IoContext};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::names::{BLOCK_BITS, FileId, id_of};
use crate::options::{CacheOptions, WRITE_BACKS_MAX};
use crate::source::ByteSource;
use crate::state::CacheState;

/// The maximum number of writes to the source, discards and zeroings in flight; further operations wait.
const OPERATIONS_MAX: usize = 1024;

/// The state that handles and tasks share.
pub(crate) struct SharedCache {
    state: Mutex<CacheState>,
    options: Mutex<CacheOptions>,
    pub block_bytes: usize,
    /// Has one permit for each free frame.
    pub memory: Arc<Semaphore>,
    pub operations: Arc<Semaphore>,
    pub write_backs: Arc<Semaphore>,
    /// Notified when an operation on the source has ended, when reserved room is freed, and when the options have
    /// changed.
    pub changed: Notify,
    /// Wakes the background task.
    pub nudge: Notify,
    pub tasks: TaskTracker,
    pub stop: CancellationToken,
    /// Held while the options change.
    pub changes: tokio::sync::Mutex<()>,
}

/// A checked range of a file.
#[derive(Clone)]
pub(crate) struct FileRange {
    pub file: u32,
    pub source: Arc<dyn ByteSource>,
    pub offset: u64,
    pub length: u64,
    /// The blocks that the range touches.
    pub blocks: Range<u64>,
}

impl FileRange {
    /// The part of a block that is in the range. *Units*: bytes from the start of the block.
    pub fn part(&self, block: u64, block_bytes: usize) -> Range<usize> {
        let base = block * block_bytes as u64;
        let start = self.offset.max(base) - base;
        let end = (self.offset + self.length - base).min(block_bytes as u64);
        start as usize..end as usize
    }

    /// The ids of the range's blocks.
    pub fn ids(&self) -> Range<u64> {
        id_of(self.file, self.blocks.start)..id_of(self.file, self.blocks.start) + (self.blocks.end - self.blocks.start)
    }

    /// Whether `part` covers the whole block, or all bytes of the block that the source has.
    pub fn is_whole(&self, block: u64, part: &Range<usize>, block_bytes: usize) -> bool {
        let base = block * block_bytes as u64;
        part.start == 0 && (part.end == block_bytes || base + part.end as u64 >= self.source.size_bytes())
    }
}

/// A place in the queue for the I/O of some blocks. The drop of a ticket grants the next place. It locks the state's
/// mutex, so do not drop a ticket while you hold that mutex.
pub(crate) struct IoTicket {
    shared: Arc<SharedCache>,
    number: u64,
    grant: oneshot::Receiver<()>,
}

impl IoTicket {
    pub fn draw(shared: &Arc<SharedCache>, state: &mut CacheState, ids: Range<u64>) -> IoTicket {
        let (number, grant) = state.locks.draw(ids);
        IoTicket { shared: shared.clone(), number, grant }
    }

    /// Waits until the ticket is granted.
    pub async fn granted(&mut self) {
        let _ = (&mut self.grant).await;
    }
}

impl Drop for IoTicket {
    fn drop(&mut self) {
        self.shared.lock().locks.release(self.number);
    }
}

impl SharedCache {
    /// Makes the shared part of a new cache.
    pub fn new(state: CacheState, options: CacheOptions, stop: CancellationToken) -> SharedCache {
        SharedCache {
            block_bytes: options.block_bytes as usize,
            memory: Arc::new(Semaphore::new(state.budget.frames as usize)),
            state: Mutex::new(state),
            options: Mutex::new(options),
            operations: Arc::new(Semaphore::new(OPERATIONS_MAX)),
            write_backs: Arc::new(Semaphore::new(WRITE_BACKS_MAX)),
            changed: Notify::new(),
            nudge: Notify::new(),
            tasks: TaskTracker::new(),
            stop,
            changes: tokio::sync::Mutex::new(()),
        }
    }

    /// Locks the state, even after another thread panicked, because every transition leaves the state consistent.
    pub fn lock(&self) -> MutexGuard<'_, CacheState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn options(&self) -> MutexGuard<'_, CacheOptions> {
        self.options.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for `count` free frames. The caller must hold no pin, no ticket and no frames.
    pub async fn places(self: &Arc<SharedCache>, count: usize) -> OwnedSemaphorePermit {
        match self.memory.clone().acquire_many_owned(count as u32).await {
            Ok(places) => places,
            Err(_) => unreachable!("the semaphore of frames is never closed"),
        }
    }

    /// Checks a request, and finds the blocks of its range.
    pub fn span(
        &self,
        state: &CacheState,
        file: FileId,
        operation: DeviceOperation,
        offset: u64,
        length: u64,
        context: IoContext,
    ) -> Result<FileRange, Error> {
        let invalid = |name: &str, detail: String| {
            Err(Error::new(DeviceErrorKind::Invalid, name, operation, detail).at(offset, length))
        };
        let Some(found) = state.files.get(&file.0) else {
            return invalid("cache", format!("file {} is not in the cache", file.0));
        };
        let source = found.source.clone();
        let block = self.block_bytes as u64;
        let end = offset.checked_add(length).filter(|end| end.div_ceil(block) < 1 << BLOCK_BITS);
        let Some(end) = end else {
            return invalid(&source.name(), format!("a file may have 2^{BLOCK_BITS} blocks of {block} bytes"));
        };
        if operation != DeviceOperation::Write && end > source.size_bytes() {
            return invalid(&source.name(), format!("it leaves the file, which has {} bytes", source.size_bytes()));
        }
        if context.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            let error = Error::new(DeviceErrorKind::TimedOut, &source.name(), operation, "the deadline had passed");
            return Err(error.at(offset, length));
        }
        let blocks = offset / block..if length == 0 { offset / block } else { end.div_ceil(block) };
        Ok(FileRange { file: file.0, source, offset, length, blocks })
    }
}
