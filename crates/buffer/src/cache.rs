//! The cache's handle and the calls that users make.
//!
//! Owns: the handle, the checks of a request, and closing the cache. Promises: an operation continues when its future
//! is dropped, and no call blocks the thread. Leaves to others: reading, writing and evicting blocks.

use std::ops::Range;
use std::sync::Arc;

use nectary_block::{Buffer, DeviceErrorKind, DeviceOperation, Error, IoContext, IoFuture, WriteFlags};
use nectary_cache::explaining;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::frame::PinnedBytes;
use crate::names::{BLOCK_BITS, BlockReference, FileId, id_of, ids_of};
use crate::options::{CacheOptions, READ_BLOCKS_MAX, WriteMode};
use crate::read::collect;
use crate::shared::SharedCache;
use crate::source::ByteSource;
use crate::state::{CacheState, SourceFile};
use crate::stats::CacheStats;
use crate::streams::{StreamStats, VerdictCollector};
use crate::wait::{ended, late, ready, within};

/// A handle of a buffer cache over any number of files. Clones of the handle share the cache.
///
/// All calls must be made inside a tokio runtime whose timers are enabled. *Errors* of every operation: those of the
/// source; [`DeviceErrorKind::Invalid`] for a file that is not in the cache or a range outside the file;
/// [`DeviceErrorKind::TimedOut`] when the deadline passes before the operation ends; the operation may still take effect.
#[derive(Clone)]
pub struct BufferCache {
    pub(crate) shared: Arc<SharedCache>,
    _owner: Arc<BackgroundStop>,
}

/// Stops the background task when the last handle is dropped.
struct BackgroundStop(CancellationToken);

impl Drop for BackgroundStop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl BufferCache {
    /// Makes an empty cache.
    ///
    /// *Errors*: [`DeviceErrorKind::Invalid`] for invalid options.
    pub fn new(options: CacheOptions) -> Result<BufferCache, Error> {
        options.check()?;
        let budget = options.budget();
        let verdicts = VerdictCollector::default();
        let Some(policy) = explaining(&options.policy, budget.capacity, verdicts.sink()) else {
            let detail = format!("no policy is called \"{}\"", options.policy);
            return Err(Error::new(DeviceErrorKind::Invalid, "cache", DeviceOperation::Open, detail));
        };
        let stop = CancellationToken::new();
        let state = CacheState::new(policy, verdicts, budget, options.mode);
        let shared = SharedCache::new(state, options, stop.clone());
        Ok(BufferCache { shared: Arc::new(shared), _owner: Arc::new(BackgroundStop(stop)) })
    }

    /// Whether the two handles belong to the same cache.
    pub fn is_same(&self, other: &BufferCache) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// The current options.
    pub fn options(&self) -> CacheOptions {
        self.shared.options().clone()
    }

    /// The current mode.
    pub fn mode(&self) -> WriteMode {
        self.shared.options().mode
    }

    /// The unit of caching. *Units*: bytes.
    pub fn block_bytes(&self) -> usize {
        self.shared.block_bytes
    }

    /// Adds a file to the cache. The file stays in the cache until it is removed. The policy decides which blocks of
    /// the file stay in memory.
    ///
    /// *Errors*: [`DeviceErrorKind::Unsupported`] in write-back mode for a shared source.
    pub fn add(&self, source: Arc<dyn ByteSource>) -> Result<FileId, Error> {
        let mut state = self.shared.lock();
        if state.mode == WriteMode::WriteBack && source.is_shared() {
            return Err(refused_shared(&*source));
        }
        let files_max = 1 << (64 - BLOCK_BITS);
        let free = (0..files_max)
            .map(|step| (state.file_next + step) % files_max)
            .find(|number| !state.files.contains_key(number));
        let Some(number) = free else {
            let detail = format!("the cache has {files_max} files; remove some");
            return Err(Error::new(DeviceErrorKind::Full, &source.name(), DeviceOperation::Open, detail));
        };
        state.file_next = (number + 1) % files_max;
        state.files.insert(number, SourceFile { source, failed: None, pinning: Arc::default() });
        Ok(FileId(number))
    }

    /// Writes back the dirty blocks of a file, flushes the file, and drops all its blocks from memory.
    ///
    /// *Errors*: those of the flush; the file and its dirty blocks then stay.
    pub async fn remove(&self, file: FileId) -> Result<(), Error> {
        self.flush(file, IoContext::default()).await?;
        let mut state = self.shared.lock();
        state.files.remove(&file.0);
        let ids = id_of(file.0, 0)..id_of(file.0, 0) + (1 << BLOCK_BITS);
        state.forget_pins(ids.clone());
        forget_clean(&mut state, ids, true);
        Ok(())
    }

    /// Drops a range of a file from memory, because others have changed the range in the source. The next read of the
    /// range goes to the source. Dirty blocks stay.
    pub fn invalidate(&self, file: FileId, offset: u64, length: u64) {
        let ids = ids_of(file.0, offset, length, self.shared.block_bytes as u64);
        forget_clean(&mut self.shared.lock(), ids, false);
    }

    /// Stores bytes that the caller has written to the source itself, and whose blocks nobody reads or writes at the
    /// same time through this cache. Blocks that the range covers in part stay only if they are in memory. A range of
    /// more than [`READ_BLOCKS_MAX`] blocks, or one for which no memory is free, is dropped like in
    /// [`invalidate`](Self::invalidate). Not for write-back.
    ///
    /// *Cost*: one mutex, and a copy of the bytes.
    pub fn put(&self, file: FileId, offset: u64, buffers: &[Buffer], context: IoContext) {
        let length = buffers.iter().fold(0_u64, |sum, buffer| sum.saturating_add(buffer.len() as u64));
        let mut state = self.shared.lock();
        if let Ok(span) = self.shared.span(&state, file, DeviceOperation::Write, offset, length, context) {
            self.shared.put_written(&mut state, &span, buffers, context.stream);
        }
    }

    /// Drops all blocks behind the new end of a truncated file, including dirty ones. If the file grows again, the
    /// range behind that end reads as zeroes. Call this after the source was truncated, while no write behind the new
    /// end is in flight.
    pub fn cut(&self, file: FileId, size_bytes: u64) {
        let block = self.shared.block_bytes as u64;
        let (last, part) = (size_bytes / block, (size_bytes % block) as usize);
        let mut state = self.shared.lock();
        let (start, end) = (id_of(file.0, last), id_of(file.0, 0) + (1 << BLOCK_BITS));
        let is_ready = state.entries.get(&start).is_some_and(|entry| entry.frame().is_some());
        if part > 0 && is_ready {
            let block_bytes = self.shared.block_bytes;
            state.change(start, part..block_bytes, block_bytes, || None, |into| into.fill(0));
        }
        let gone = start + u64::from(part > 0)..end;
        state.forget_pins(gone.clone());
        forget_clean(&mut state, gone, true);
    }

    /// Returns the bytes of a range without waiting, if all of them are in memory. Otherwise returns `None` and counts
    /// no reference; the caller then calls [`read`](Self::read).
    ///
    /// *Cost*: one mutex; look-ups of each block in two tables and in the policy; no copy.
    pub fn try_read(&self, file: FileId, offset: u64, length: u64, context: IoContext) -> Option<Vec<PinnedBytes>> {
        let mut state = self.shared.lock();
        let span = self.shared.span(&state, file, DeviceOperation::Read, offset, length, context).ok()?;
        let pins = self.shared.hit(&mut state, &span, context.stream)?;
        self.shared.begin_ahead(&mut state, &span, context.stream);
        Some(pins)
    }

    /// Returns the bytes of a range in order, one piece per block. A range that ends beyond the file is an error.
    ///
    /// *Errors*: those of every operation ([`BufferCache`]); [`DeviceErrorKind::Invalid`] for more than [`READ_BLOCKS_MAX`]
    /// blocks.
    pub fn read(&self, file: FileId, offset: u64, length: u64, context: IoContext) -> IoFuture<Vec<PinnedBytes>> {
        let shared = self.shared.clone();
        let mut state = shared.lock();
        let span = match shared.span(&state, file, DeviceOperation::Read, offset, length, context) {
            Ok(span) => span,
            Err(error) => return ready(Err(error)),
        };
        let count = (span.blocks.end - span.blocks.start) as usize;
        if count > READ_BLOCKS_MAX {
            let detail = format!("{count} blocks in one read; {READ_BLOCKS_MAX} are the most");
            let error = Error::new(DeviceErrorKind::Invalid, &span.source.name(), DeviceOperation::Read, detail);
            return ready(Err(error.at(offset, length)));
        }
        if let Some(pins) = shared.hit(&mut state, &span, context.stream) {
            shared.begin_ahead(&mut state, &span, context.stream);
            return ready(Ok(pins));
        }
        let late = late(&*span.source, DeviceOperation::Read, offset, length);
        if let Ok(places) = shared.memory.clone().try_acquire_many_owned(count as u32) {
            let slots = shared.begin_read(&mut state, &span, context.stream, places);
            shared.begin_ahead(&mut state, &span, context.stream);
            return within(context.deadline, late, collect(slots, span, shared.block_bytes));
        }
        drop(state);
        within(context.deadline, late, async move {
            let places = shared.places(count).await;
            let slots = {
                let mut state = shared.lock();
                let slots = shared.begin_read(&mut state, &span, context.stream, places);
                shared.begin_ahead(&mut state, &span, context.stream);
                slots
            };
            collect(slots, span, shared.block_bytes).await
        })
    }

    /// Writes `buffers` in order, from `offset` on, and returns them. A write beyond the end of the file goes to the
    /// source at once; the source may grow.
    ///
    /// *Errors*: those of every operation ([`BufferCache`]); [`DeviceErrorKind::Unsupported`] in read-only mode.
    /// *Durability*: in write-through mode, that of the source. In write-back mode a completed write survives no
    /// failure until a flush, but a write with [`WriteFlags::fua`] goes to the source at once.
    pub fn write(
        &self,
        file: FileId,
        offset: u64,
        buffers: Vec<Buffer>,
        flags: WriteFlags,
        context: IoContext,
    ) -> IoFuture<Vec<Buffer>> {
        let length = buffers.iter().fold(0_u64, |sum, buffer| sum.saturating_add(buffer.len() as u64));
        let shared = self.shared.clone();
        let mut state = shared.lock();
        let span = match shared.span(&state, file, DeviceOperation::Write, offset, length, context) {
            Ok(span) => span,
            Err(error) => return ready(Err(error)),
        };
        let late = late(&*span.source, DeviceOperation::Write, offset, length);
        if state.mode == WriteMode::ReadOnly {
            return ready(Err(refused_read_only(&*span.source, DeviceOperation::Write).at(offset, length)));
        }
        if length == 0 {
            return ready(Ok(buffers));
        }
        let is_inside = offset + length <= span.source.size_bytes();
        let task = if state.mode == WriteMode::WriteBack && !flags.fua && is_inside {
            if shared.write_now(&mut state, &span, &buffers, context.stream) {
                return ready(Ok(buffers));
            }
            drop(state);
            self.spawn(shared.write_back(span, buffers, context.stream))
        } else {
            drop(state);
            self.spawn(shared.write_through(span, buffers, flags, context.stream))
        };
        within(context.deadline, late, ended(task))
    }

    /// Makes every completed write to a file as durable as a flush of the source makes it; dirty blocks are written
    /// back first.
    ///
    /// *Errors*: the error of the first write-back that fails now or has failed since the last flush, even if a retry
    /// has succeeded; the errors of flushing the source. Blocks that could not be written stay dirty and readable until
    /// a write-back of them succeeds.
    pub fn flush(&self, file: FileId, context: IoContext) -> IoFuture<()> {
        let shared = self.shared.clone();
        let source = {
            let state = shared.lock();
            match shared.span(&state, file, DeviceOperation::Flush, 0, 0, context) {
                Ok(span) => span.source,
                Err(error) => return ready(Err(error)),
            }
        };
        let late = late(&*source, DeviceOperation::Flush, 0, 0);
        let task = self.spawn(shared.flush(file.0, source));
        within(context.deadline, late, ended(task))
    }

    /// Tells the source that a range is no longer needed. Afterwards the range reads as before or as zeroes.
    pub fn discard(&self, file: FileId, offset: u64, length: u64, context: IoContext) -> IoFuture<()> {
        self.zero(file, DeviceOperation::Discard, offset, length, context)
    }

    /// Makes a range read as zeroes.
    pub fn write_zeroes(&self, file: FileId, offset: u64, length: u64, context: IoContext) -> IoFuture<()> {
        self.zero(file, DeviceOperation::WriteZeroes, offset, length, context)
    }

    fn zero(
        &self,
        file: FileId,
        operation: DeviceOperation,
        offset: u64,
        length: u64,
        context: IoContext,
    ) -> IoFuture<()> {
        let shared = self.shared.clone();
        let span = {
            let state = shared.lock();
            match shared.span(&state, file, operation, offset, length, context) {
                Ok(span) if state.mode == WriteMode::ReadOnly => {
                    return ready(Err(refused_read_only(&*span.source, operation).at(offset, length)));
                }
                Ok(span) => span,
                Err(error) => return ready(Err(error)),
            }
        };
        if length == 0 {
            return ready(Ok(()));
        }
        let late = late(&*span.source, operation, offset, length);
        let task = self.spawn(shared.zero(span, operation));
        within(context.deadline, late, ended(task))
    }

    /// Writes back the dirty blocks of a range, without making them durable.
    pub fn write_back(&self, file: FileId, offset: u64, length: u64, context: IoContext) -> IoFuture<()> {
        let shared = self.shared.clone();
        let span = match shared.span(&shared.lock(), file, DeviceOperation::Flush, offset, length, context) {
            Ok(span) => span,
            Err(error) => return ready(Err(error)),
        };
        let late = late(&*span.source, DeviceOperation::Flush, offset, length);
        let task = self.spawn(async move { shared.write_back_range(span.ids()).await });
        within(context.deadline, late, ended(task))
    }

    /// Makes the cache call `recorder` with every later reference, in the order in which the policy sees the
    /// references. The cache's mutex is held during the call, so `recorder` must not wait or call the cache.
    pub fn record(&self, recorder: Option<Box<dyn FnMut(BlockReference) + Send>>) {
        self.shared.lock().recorder = recorder;
    }

    /// Makes the cache call `recorder` with every range of block ids that it drops later because the file was removed,
    /// was cut, or was changed by others. The order with the calls of [`record`](Self::record) is that of the events,
    /// and the same rule applies to `recorder`. Dirty blocks of a file that others changed are not dropped.
    pub fn record_drops(&self, recorder: Option<Box<dyn FnMut(Range<u64>) + Send>>) {
        self.shared.lock().drop_recorder = recorder;
    }

    /// The counters and the current contents of the cache.
    pub fn stats(&self) -> CacheStats {
        let state = self.shared.lock();
        let block = self.shared.block_bytes as u64;
        let free = self.shared.memory.available_permits() as u64;
        let dirty = |id: &u64| state.entries.get(id).and_then(|entry| entry.dirty.as_deref());
        let unwritten = state.dirty.iter().filter(|id| dirty(id).is_some_and(|dirty| dirty.failed.is_some())).count();
        let oldest = state.dirty_by_age.values().next().and_then(dirty);
        let counts = &state.counts;
        CacheStats {
            hits: counts.hits,
            misses: counts.misses,
            saved: counts.saved,
            lost: counts.lost,
            source_reads: counts.source_reads,
            source_read_blocks: counts.source_read_blocks,
            read_errors: counts.read_errors,
            joined: counts.joined,
            ahead_blocks: counts.ahead_blocks,
            ahead_used: counts.ahead_used,
            written_through: counts.written_through,
            written_back: counts.written_back,
            write_back_errors: counts.write_back_errors,
            pinned_hits: counts.pinned_hits,
            capacity_blocks: state.policy.capacity(),
            resident_blocks: state.policy.len() as u64,
            pinned_bytes: state.pins.len() as u64 * block,
            pinned_bytes_max: CacheState::pins_max(state.budget.capacity) * block,
            memory_bytes: state.budget.frames * block,
            used_bytes: state.budget.frames.saturating_sub(free) * block,
            dirty_bytes: state.dirty.len() as u64 * block,
            unwritten_bytes: unwritten as u64 * block,
            dirty_age: oldest.map(|dirty| dirty.since.elapsed()).unwrap_or_default(),
        }
    }

    /// The counters of each stream that has a row, sorted by stream; the last entry is for all other streams.
    pub fn streams(&self) -> Vec<StreamStats> {
        let state = self.shared.lock();
        let block = self.shared.block_bytes as u64;
        let mut all = state.streams.stats();
        let mut places = hashbrown::HashMap::new();
        for (place, stats) in all.iter().enumerate() {
            places.insert(stats.stream, place);
        }
        let others = all.len() - 1;
        for dirty in state.dirty.iter().filter_map(|id| state.entries.get(id)?.dirty.as_deref()) {
            let place = places.get(&Some(dirty.stream)).copied().unwrap_or(others);
            all[place].dirty_bytes += block;
        }
        all
    }

    /// The files that are in the cache.
    pub fn files(&self) -> Vec<FileId> {
        let mut files: Vec<FileId> = self.shared.lock().files.keys().map(|&number| FileId(number)).collect();
        files.sort_unstable();
        files
    }

    /// Flushes all files, and returns the files that could not be flushed; see [`flush`](Self::flush).
    pub async fn flush_all(&self) -> Vec<(FileId, Error)> {
        let mut failed = Vec::new();
        for file in self.files() {
            let flushed = self.flush(file, IoContext::default()).await;
            // A file that was removed in the meantime was flushed by its removal.
            if let Err(error) = flushed
                && self.shared.lock().files.contains_key(&file.0)
            {
                failed.push((file, error));
            }
        }
        failed
    }

    /// Flushes all files, and waits for operations that are still in flight although their callers no longer wait.
    ///
    /// *Errors*: the first error of a flush. Even after an error all files are flushed, but then the call does not wait
    /// for operations in flight.
    pub async fn close(&self) -> Result<(), Error> {
        if let Some((_, error)) = self.flush_all().await.into_iter().next() {
            return Err(error);
        }
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
        self.shared.tasks.reopen();
        Ok(())
    }

    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        operation: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> JoinHandle<Result<T, Error>> {
        self.shared.tasks.spawn(operation)
    }
}

/// Drops from memory the blocks of a range that are not dirty, or all its blocks if `is_all`.
fn forget_clean(state: &mut CacheState, ids: Range<u64>, is_all: bool) {
    for id in state.present(&ids) {
        let is_dirty = state.entries.get(&id).is_some_and(|entry| entry.dirty.is_some());
        if is_all || !is_dirty {
            state.forget(id);
        }
    }
    if let Some(recorder) = &mut state.drop_recorder {
        recorder(ids);
    }
}

pub(crate) fn refused_shared(source: &dyn ByteSource) -> Error {
    let detail = "others may write to it, so write-back would lose what they write; use writethrough or readonly";
    Error::new(DeviceErrorKind::Unsupported, &source.name(), DeviceOperation::Open, detail)
}

fn refused_read_only(source: &dyn ByteSource, operation: DeviceOperation) -> Error {
    Error::new(DeviceErrorKind::Unsupported, &source.name(), operation, "the cache over it is read-only")
}
