//! Contents of files in this mount's memory, by the live buffer cache.
//!
//! Owns: the cached blocks of each file, and when they are valid. Promises: a cached read returns what the session's
//! client would return at the same moment. Blocks are used only while the session holds the file's token. When it
//! gives the token back they stay, with the version of the inode; if the file has another version when it is read next,
//! they are dropped. A change by this host drops the changed blocks; what it writes replaces them. Leaves to others:
//! which blocks stay in memory (`nectary-buffer`), tokens and the disk (`nectary-volume`).
//!
//! A read that misses ends with a comparison: if the file was changed or its token was given back since the read began,
//! the bytes are not used.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use nectary_block::{
    AccessStream, Buffer, DeviceErrorKind, DeviceOperation, Error as BlockError, IoContext, IoFuture, WriteFlags,
};
use nectary_buffer::{
    BufferCache, ByteSource, CacheOptions, CacheStats, FileId as CacheId, PinnedBytes, READ_BLOCKS_MAX, stream_of,
};
use nectary_volume::client::{Error, FileView, HostKernel, OpenFile, ReadContents, WaitKind};
use nectary_volume::protocol::FileId;
use tokio::sync::oneshot;

use super::pages::PageQueues;
use super::shown::KernelCache;

/// The most files with cached blocks; beyond it, those of the files that were first read longest ago are dropped.
const FILES_MAX: usize = 1 << 16;
/// The number of times that a cached read is tried while others change the file; then the disk is read.
const TRIES_MAX: usize = 3;
/// A version that no inode has.
const NO_VERSION: u64 = u64::MAX;

/// The cached contents of a mount's files.
pub struct CachedContents {
    cache: BufferCache,
    files: Mutex<CachedFileTable>,
}

#[derive(Default)]
struct CachedFileTable {
    by_id: HashMap<FileId, Arc<CachedFile>>,
    /// In the order of their first read.
    order: VecDeque<FileId>,
}

/// A file with cached blocks.
struct CachedFile {
    id: CacheId,
    source: Arc<FileSource>,
    /// Counts what may have made cached blocks wrong. It changes only while no [`FileView`] of the file exists.
    changes: AtomicU64,
    /// The version of the inode that the cached blocks belong to, if the token was given back since the last read.
    kept: Mutex<Option<u64>>,
    /// No block behind this is cached; the file may have become shorter since. *Units*: bytes.
    reach: AtomicU64,
}

/// A file as the cache's source.
#[derive(Default)]
struct FileSource {
    /// The handle by which the file was last read.
    opened: Mutex<Weak<OpenFile>>,
    size: AtomicU64,
}

/// The bytes of a read.
pub enum ReadBytes {
    /// From the disk.
    Read(ReadContents),
    /// From memory.
    Cached(Vec<PinnedBytes>),
}

impl ReadBytes {
    /// Returns the bytes as a list of slices.
    pub fn slices(&self) -> Vec<&[u8]> {
        match self {
            ReadBytes::Read(contents) => contents.slices(),
            ReadBytes::Cached(pins) => pins.iter().map(|pin| &**pin).collect(),
        }
    }
}

/// What a look at the cache found.
enum CacheLookup {
    /// The file ends before the offset, or all bytes are in memory.
    All(Vec<PinnedBytes>),
    /// The read ends at `end`, and not all of its bytes are in memory.
    Some { end: u64, changes: u64 },
    /// The read is too large for the cache.
    TooLarge,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CachedContents {
    /// Makes an empty cache.
    ///
    /// *Errors*: those of [`BufferCache::new`].
    pub fn new(options: CacheOptions) -> Result<CachedContents, BlockError> {
        Ok(CachedContents { cache: BufferCache::new(options)?, files: Mutex::default() })
    }

    /// Returns the counters of the cache.
    pub fn stats(&self) -> CacheStats {
        self.cache.stats()
    }

    /// Reads from a file; fewer than `length` bytes mean that the file ends there. Must be called inside a tokio
    /// runtime.
    ///
    /// *Errors*: those of [`OpenFile::read`].
    pub async fn read(
        &self,
        file: &Arc<OpenFile>,
        offset: u64,
        length: usize,
        stream: AccessStream,
    ) -> Result<ReadBytes, Error> {
        if let Some(cached) = self.file(file) {
            let context = IoContext { stream, ..IoContext::default() };
            for _ in 0..TRIES_MAX {
                let (end, before) = match file.view(|view| self.look(&cached, view, offset, length, context)).await? {
                    CacheLookup::All(pins) => return Ok(ReadBytes::Cached(pins)),
                    CacheLookup::Some { end, changes } => (end, changes),
                    CacheLookup::TooLarge => break,
                };
                // After an error the disk is read without the cache, which reports the error of the client.
                let read = self.cache.read(cached.id, offset, end - offset, context);
                let Ok(pins) = WaitKind::Disk.during(0, read).await else { break };
                if cached.changes.load(Ordering::Acquire) == before {
                    return Ok(ReadBytes::Cached(pins));
                }
            }
        }
        Ok(ReadBytes::Read(file.read(offset, length).await?))
    }

    /// Notes that a program is about to write to a file, so that what it writes is kept.
    pub fn begin_write(&self, file: &Arc<OpenFile>) {
        self.file(file);
    }

    /// Looks for a range in memory, while the view of the file stays as it is.
    fn look(&self, cached: &CachedFile, view: FileView, offset: u64, length: usize, context: IoContext) -> CacheLookup {
        let end = offset.saturating_add(length as u64).min(view.size);
        cached.source.size.store(view.size, Ordering::Release);
        let reach = cached.reach.fetch_max(view.size, Ordering::AcqRel).max(view.size);
        if let Some(version) = lock(&cached.kept).take()
            && version != view.version
        {
            self.cache.invalidate(cached.id, 0, reach);
            cached.reach.store(view.size, Ordering::Release);
        }
        if offset >= end {
            return CacheLookup::All(Vec::new());
        }
        let block = self.cache.block_bytes() as u64;
        if end.div_ceil(block) - offset / block > READ_BLOCKS_MAX as u64 {
            return CacheLookup::TooLarge;
        }
        match self.cache.try_read(cached.id, offset, end - offset, context) {
            Some(pins) => CacheLookup::All(pins),
            None => CacheLookup::Some { end, changes: cached.changes.load(Ordering::Acquire) },
        }
    }

    /// Returns the cached state of a file, which is made if there is none; `None` if the cache is full of files.
    fn file(&self, file: &Arc<OpenFile>) -> Option<Arc<CachedFile>> {
        let id = file.id();
        let mut files = lock(&self.files);
        let cached = match files.by_id.get(&id) {
            Some(cached) => cached.clone(),
            None => {
                self.make_room(&mut files);
                let source = Arc::new(FileSource::default());
                let cache_id = self.cache.add(source.clone()).ok()?;
                let (changes, kept, reach) = (AtomicU64::new(0), Mutex::new(None), AtomicU64::new(0));
                let cached = Arc::new(CachedFile { id: cache_id, source, changes, kept, reach });
                files.by_id.insert(id, cached.clone());
                files.order.push_back(id);
                cached
            }
        };
        let mut opened = lock(&cached.source.opened);
        if !std::ptr::eq(opened.as_ptr(), Arc::as_ptr(file)) {
            *opened = Arc::downgrade(file);
        }
        drop(opened);
        Some(cached)
    }

    /// Drops the files that were first read longest ago, if there are too many. Reads of them in progress fail, and go
    /// to the disk.
    fn make_room(&self, files: &mut CachedFileTable) {
        while files.by_id.len() >= FILES_MAX {
            let Some(id) = files.order.pop_front() else { return };
            if let Some(cached) = files.by_id.remove(&id) {
                let cache = self.cache.clone();
                tokio::spawn(async move {
                    // Nothing is dirty, so there is nothing to flush that could fail.
                    let _ = cache.remove(cached.id).await;
                });
            }
        }
    }

    fn changed(&self, file: FileId, range: Range<u64>) {
        if let Some(cached) = lock(&self.files).by_id.get(&file) {
            cached.changes.fetch_add(1, Ordering::AcqRel);
            let reach = cached.reach.load(Ordering::Acquire);
            let end = range.end.min(reach.max(range.start));
            self.cache.invalidate(cached.id, range.start, end - range.start);
        }
    }

    fn written(&self, file: FileId, offset: u64, data: &[Buffer], size: u64) {
        if let Some(cached) = lock(&self.files).by_id.get(&file) {
            cached.source.size.store(size, Ordering::Release);
            cached.reach.fetch_max(size, Ordering::AcqRel);
            let context = IoContext { stream: stream_of(0, file.inode), ..IoContext::default() };
            self.cache.put(cached.id, offset, data, context);
        }
    }

    fn released(&self, file: FileId, version: u64) {
        if let Some(cached) = lock(&self.files).by_id.get(&file) {
            cached.release(version);
        }
    }

    fn session_began(&self) {
        lock(&self.files).by_id.values().for_each(|cached| cached.release(NO_VERSION));
    }
}

impl CachedFile {
    fn release(&self, version: u64) {
        self.changes.fetch_add(1, Ordering::AcqRel);
        let mut kept = lock(&self.kept);
        // Blocks that an earlier release left to be dropped are not of the version of this one.
        *kept = Some(if kept.is_some_and(|before| before != version) { NO_VERSION } else { version });
    }
}

impl FileSource {
    fn error(&self, detail: String) -> BlockError {
        BlockError::new(DeviceErrorKind::Io, &self.name(), DeviceOperation::Read, detail)
    }

    fn unsupported<T: Send + 'static>(&self, operation: DeviceOperation) -> IoFuture<T> {
        let error = BlockError::new(DeviceErrorKind::Unsupported, &self.name(), operation, "this cache only reads");
        Box::pin(std::future::ready(Err(error)))
    }
}

impl ByteSource for FileSource {
    fn name(&self) -> String {
        "a file of a volume".to_owned()
    }

    fn size_bytes(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn read_at(&self, offset: u64, mut buffers: Vec<Buffer>, _context: IoContext) -> IoFuture<Vec<Buffer>> {
        let Some(file) = lock(&self.opened).upgrade() else {
            return Box::pin(std::future::ready(Err(self.error("it is not open".to_owned()))));
        };
        let failed = |error: Error| {
            BlockError::new(DeviceErrorKind::Io, "a file of a volume", DeviceOperation::Read, error.to_string())
        };
        Box::pin(async move {
            let length = buffers.iter().map(|buffer| buffer.len()).sum();
            let contents = file.read_held(offset, length).await.map_err(failed)?;
            copy(&contents.slices(), &mut buffers);
            Ok(buffers)
        })
    }

    fn write_at(&self, _: u64, _: Vec<Buffer>, _: WriteFlags, _: IoContext) -> IoFuture<Vec<Buffer>> {
        self.unsupported(DeviceOperation::Write)
    }

    fn flush(&self, _context: IoContext) -> IoFuture<()> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn discard(&self, _: u64, _: u64, _: IoContext) -> IoFuture<()> {
        self.unsupported(DeviceOperation::Discard)
    }

    fn write_zeroes(&self, _: u64, _: u64, _: IoContext) -> IoFuture<()> {
        self.unsupported(DeviceOperation::WriteZeroes)
    }
}

/// Copies the slices into the buffers; the rest of the buffers becomes zeroes.
fn copy(from: &[&[u8]], to: &mut [Buffer]) {
    let mut slices = from.iter().copied();
    let mut slice: &[u8] = &[];
    for buffer in to {
        let mut at = 0;
        while at < buffer.len() {
            if slice.is_empty() {
                match slices.next() {
                    Some(next) => slice = next,
                    None => {
                        buffer[at..].fill(0);
                        break;
                    }
                }
            }
            let count = slice.len().min(buffer.len() - at);
            buffer[at..at + count].copy_from_slice(&slice[..count]);
            (slice, at) = (&slice[count..], at + count);
        }
    }
}

/// The caches above the client: the kernel's pages, and this mount's cached contents.
pub struct CachesAbove {
    /// The kernel's pages.
    pub pages: Arc<PageQueues>,
    /// The cached contents, if the mount has memory for them.
    pub contents: Option<Arc<CachedContents>>,
    /// The names and attributes that the kernel shows.
    pub shown: Arc<KernelCache>,
}

impl HostKernel for CachesAbove {
    fn invalidate(&self, inode: u64, range: Range<u64>) -> oneshot::Receiver<()> {
        self.pages.invalidate(inode, range)
    }

    fn grow(&self, inode: u64, size: u64) -> oneshot::Receiver<()> {
        self.pages.grow(inode, size)
    }

    fn forget_attributes(&self, file: FileId) -> Option<oneshot::Receiver<()>> {
        self.shown.recall(file)
    }

    fn forget_name(&self, directory: FileId, name: &[u8]) -> Option<(oneshot::Receiver<()>, Duration)> {
        self.shown.forget_name(directory, name)
    }

    fn names_end(&self, directory: FileId) -> Option<Duration> {
        self.shown.names_end(directory)
    }

    fn forget_lists(&self) -> Option<oneshot::Receiver<()>> {
        self.shown.forget_lists()
    }

    fn all_ends(&self) -> Option<Duration> {
        self.shown.all_ends()
    }

    fn changed(&self, file: FileId, range: Range<u64>) {
        self.contents.iter().for_each(|contents| contents.changed(file, range.clone()));
    }

    fn written(&self, file: FileId, offset: u64, data: &[Buffer], size: u64) {
        self.contents.iter().for_each(|contents| contents.written(file, offset, data, size));
    }

    fn released(&self, file: FileId, version: u64) {
        self.contents.iter().for_each(|contents| contents.released(file, version));
    }

    fn session_began(&self) {
        self.contents.iter().for_each(|contents| contents.session_began());
    }
}

#[cfg(test)]
#[path = "contents_tests.rs"]
mod tests;
