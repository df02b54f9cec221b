//! `file:PATH` and `disk:PATH`: regular files and raw disks.
//!
//! Owns: the device, its promises and the latch that refuses writes after a failure. Reads, writes and flushes go
//! through one of two engines: `uring` (a ring of the calling thread, so that an operation costs no thread switch) or
//! `posix` (a pool of threads). All other operations are rare, and go through the pool. Promises: one owner at a time;
//! buffers stay owned until the kernel is done with them; after a failed flush or forced write the device refuses all
//! writes until the caller clears the latch.

mod holder;
mod locks;
mod open;
mod posix;
mod ranges;
mod sys;
mod tail;
mod transfer;
mod uring;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::runtime::Handle;

use self::locks::OwnLocks;
use self::posix::DeviceThreads;
use self::transfer::{DeviceTransfer, SharedFileState, WriteLatch};
use crate::buffer::Buffer;
use crate::device::{
    BlockDevice, CLEAR_LATCH, DeviceExtent, DeviceGeometry, IoContext, IoFuture, SECTOR_BYTES, SurvivalLevel,
    WriteFlags,
};
use crate::error::{DeviceErrorKind, DeviceOperation, Error};
use crate::registry::{FileEngine, OpenOptions};
use crate::request::{DeviceRequest, ready, within};
use crate::spec::quoted;

/// The length above which longer reads are not faster per byte. *Units*: bytes.
const READ_BYTES_PREFERRED: u32 = 128 * 1024;

/// The length above which longer writes are not faster per byte. *Units*: bytes.
const WRITE_BYTES_PREFERRED: u32 = 1024 * 1024;

/// A file or a disk. Either only this process has it open, or several processes share it and agree among themselves
/// which of them writes where.
///
/// *Durability*: a completed write survives the process; on a disk with direct I/O, it also survives a crash of the
/// host's kernel. After a flush, the write also survives a loss of power, except on a file system in memory.
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use nectary_block::{Buffer, IoContext, OpenOptions, open, read, write};
/// let path = std::env::temp_dir().join(format!("nectary-example-{}.img", std::process::id()));
/// let options = OpenOptions { create_bytes: Some(1 << 20), ..OpenOptions::default() };
/// let device = open(path.to_str().unwrap(), &options).await?;
/// write(&*device, 4096, Buffer::copy_of(&[7; 4096])).await?;
/// device.flush(IoContext::default()).await?;
/// assert_eq!(read(&*device, 4096, 4096).await?[0], 7);
/// # std::fs::remove_file(path).unwrap();
/// # Ok::<(), nectary_block::Error>(()) }).unwrap();
/// ```
pub struct FileDevice {
    shared: Arc<SharedFileState>,
    pool: DeviceThreads,
    engine: FileEngine,
    is_disk: bool,
    is_direct: bool,
    in_memory: bool,
    is_shared: bool,
    is_read_only: bool,
    locks: Arc<OwnLocks>,
}

impl FileDevice {
    /// Opens the regular file at `path`; creates it if it is absent and [`OpenOptions::create_bytes`] is set.
    ///
    /// *Errors*: [`DeviceErrorKind::Absent`]; [`DeviceErrorKind::Busy`], which names the holder if it is found; [`DeviceErrorKind::Full`]
    /// if there is no room to create the file; [`DeviceErrorKind::Invalid`] if the path is not a regular file.
    pub async fn open_file(path: impl Into<PathBuf>, options: &OpenOptions) -> Result<FileDevice, Error> {
        FileDevice::open("file", path.into(), options, false).await
    }

    /// Opens the block device at `path`. *Errors*: the same as for files.
    pub async fn open_disk(path: impl Into<PathBuf>, options: &OpenOptions) -> Result<FileDevice, Error> {
        FileDevice::open("disk", path.into(), options, true).await
    }

    async fn open(scheme: &str, path: PathBuf, options: &OpenOptions, is_disk: bool) -> Result<FileDevice, Error> {
        let spec = format!("{scheme}:{}", quoted(&path.to_string_lossy()));
        let engine = choose_engine(&spec, options.engine, uring::available())?;
        if Handle::try_current().is_err() {
            return Err(outside(&spec, DeviceOperation::Open));
        }
        let (options, name) = (options.clone(), spec.clone());
        let (is_shared, is_read_only) = (options.is_shared, options.is_read_only);
        let opened = tokio::task::spawn_blocking(move || match is_disk {
            true => open::open_disk(&name, &path, &options),
            false => open::open_file(&name, &path, &options),
        });
        let opened = opened.await.map_err(|error| {
            Error::new(
                DeviceErrorKind::Io,
                &spec,
                DeviceOperation::Open,
                format!("the runtime ended before it was open: {error}"),
            )
        })??;
        let shared = SharedFileState {
            file: opened.file,
            spec,
            block_bytes: opened.block_bytes,
            size_bytes: AtomicU64::new(opened.size_bytes),
            exact_bytes: AtomicU64::new(opened.exact_bytes),
            latch: WriteLatch::default(),
        };
        Ok(FileDevice {
            shared: Arc::new(shared),
            pool: DeviceThreads::new(posix::THREADS_MAX, posix::WAITING_MAX),
            engine,
            is_disk,
            is_direct: opened.direct,
            in_memory: opened.in_memory,
            is_shared,
            is_read_only,
            locks: Arc::default(),
        })
    }

    /// The engine in use: [`FileEngine::Uring`] or [`FileEngine::Posix`].
    pub fn engine(&self) -> FileEngine {
        self.engine
    }

    /// Whether reads and writes bypass the page cache.
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    fn transfer(&self, request: DeviceRequest, buffers: Vec<Buffer>, fua: bool) -> IoFuture<Vec<Buffer>> {
        let Ok(handle) = Handle::try_current() else {
            return ready(Err(outside(&self.shared.spec, request.operation)));
        };
        let DeviceRequest { operation, offset, length, deadline, .. } = request;
        let shared = self.shared.clone();
        let failures = shared.failures();
        let transfer =
            DeviceTransfer { shared: shared.clone(), operation, offset, length, buffers, fua, done: 0, failures };
        let work = match self.engine {
            FileEngine::Posix => self.pool.transfer(transfer),
            _ => match uring::transfer(&handle, transfer) {
                Ok(work) => work,
                // This thread has no ring: its runtime has several threads, or the kernel refused to make a ring.
                Err(transfer) => self.pool.transfer(transfer),
            },
        };
        within(deadline, work, move || request.error(DeviceErrorKind::TimedOut, || shared.spec.clone(), late()))
    }

    /// Whether a read or write reaches the padding of the last block.
    fn has_padding(&self, request: &DeviceRequest) -> bool {
        request.offset + request.length > self.shared.exact_bytes.load(Ordering::Acquire)
    }

    /// Runs a rare operation on the pool of threads.
    fn rare<T: Send + 'static>(
        &self,
        request: DeviceRequest,
        work: impl FnOnce(&SharedFileState) -> Result<T, Error> + Send + 'static,
    ) -> IoFuture<T> {
        if Handle::try_current().is_err() {
            return ready(Err(outside(&self.shared.spec, request.operation)));
        }
        let (shared, spec) = (self.shared.clone(), self.shared.spec.clone());
        let work = move || work(&shared).inspect_err(|error| shared.latch_after(error, request.fua));
        let name = spec.clone();
        let work = self.pool.run(work, move |kind, detail| request.error(kind, || name.clone(), detail));
        within(request.deadline, work, move || request.error(DeviceErrorKind::TimedOut, || spec, late()))
    }

    /// Runs work on the locks of the file in the blocking pool of the runtime, because it may wait.
    fn on_locks<T: Send + 'static>(
        &self,
        work: impl FnOnce(&SharedFileState, &OwnLocks) -> Result<T, Error> + Send + 'static,
    ) -> IoFuture<T> {
        if Handle::try_current().is_err() {
            return ready(Err(outside(&self.shared.spec, DeviceOperation::Open)));
        }
        let (shared, locks) = (self.shared.clone(), self.locks.clone());
        Box::pin(async move {
            let spec = shared.spec.clone();
            let ended = |error| {
                let detail = format!("the runtime ended during work on its locks: {error}");
                Error::new(DeviceErrorKind::Io, &spec, DeviceOperation::Open, detail)
            };
            tokio::task::spawn_blocking(move || work(&shared, &locks)).await.map_err(ended)?
        })
    }

    fn check(
        &self,
        operation: DeviceOperation,
        offset: u64,
        length: u64,
        context: IoContext,
    ) -> Result<DeviceRequest, Error> {
        let request = DeviceRequest::new(operation, offset, length, context);
        request.check(|| self.spec(), &self.geometry())?;
        if !matches!(operation, DeviceOperation::Allocation) {
            self.check_writable(&request)?;
            self.shared.check_latch(operation, offset, length)?;
        }
        Ok(request)
    }

    /// Refuses a change of a device that is opened only for reading.
    fn check_writable(&self, request: &DeviceRequest) -> Result<(), Error> {
        if !self.is_read_only || request.operation == DeviceOperation::Flush {
            return Ok(());
        }
        Err(request.error(DeviceErrorKind::Unsupported, || self.spec(), "it is opened only for reading".to_owned()))
    }
}

impl BlockDevice for FileDevice {
    fn spec(&self) -> String {
        self.shared.spec.clone()
    }

    fn geometry(&self) -> DeviceGeometry {
        let block_bytes = self.shared.block_bytes;
        DeviceGeometry {
            size_bytes: self.shared.size_bytes.load(Ordering::Acquire),
            block_bytes,
            atomic_bytes: if self.is_disk { block_bytes } else { 512 },
            read_bytes_preferred: READ_BYTES_PREFERRED,
            write_bytes_preferred: WRITE_BYTES_PREFERRED,
            write_survives: if self.is_disk && self.is_direct { SurvivalLevel::Host } else { SurvivalLevel::Process },
            flush_survives: if self.in_memory { SurvivalLevel::Process } else { SurvivalLevel::Power },
        }
    }

    fn exact_bytes(&self) -> u64 {
        self.shared.exact_bytes.load(Ordering::Acquire)
    }

    fn sector_bytes(&self) -> u32 {
        if self.is_disk { self.shared.block_bytes } else { SECTOR_BYTES }
    }

    fn read_at(&self, offset: u64, buffers: Vec<Buffer>, context: IoContext) -> IoFuture<Vec<Buffer>> {
        match DeviceRequest::vectored(
            DeviceOperation::Read,
            offset,
            &buffers,
            context,
            || self.spec(),
            &self.geometry(),
        ) {
            Ok(request) if self.has_padding(&request) => {
                self.rare(request, move |shared| tail::read(shared, offset, buffers))
            }
            Ok(request) if request.length > 0 => self.transfer(request, buffers, false),
            checked => ready(checked.map(|_| buffers)),
        }
    }

    fn write_at(
        &self,
        offset: u64,
        buffers: Vec<Buffer>,
        flags: WriteFlags,
        context: IoContext,
    ) -> IoFuture<Vec<Buffer>> {
        let checked = DeviceRequest::vectored(
            DeviceOperation::Write,
            offset,
            &buffers,
            context,
            || self.spec(),
            &self.geometry(),
        )
        .and_then(|request| {
            self.check_writable(&request)?;
            self.shared.check_latch(DeviceOperation::Write, offset, request.length)?;
            Ok(DeviceRequest { fua: flags.fua, ..request })
        });
        match checked {
            Ok(request) if self.has_padding(&request) => {
                self.rare(request, move |shared| tail::write(shared, offset, buffers, flags.fua))
            }
            Ok(request) if request.length > 0 => self.transfer(request, buffers, flags.fua),
            checked => ready(checked.map(|_| buffers)),
        }
    }

    fn flush(&self, context: IoContext) -> IoFuture<()> {
        match self.check(DeviceOperation::Flush, 0, 0, context) {
            Ok(request) => {
                let flushed = self.transfer(request, Vec::new(), false);
                Box::pin(async move { flushed.await.map(drop) })
            }
            Err(error) => ready(Err(error)),
        }
    }

    fn discard(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<()> {
        match self.check(DeviceOperation::Discard, offset, length, context) {
            Ok(request) if length > 0 => {
                self.rare(request, move |shared| ranges::discard(shared, offset, tail::within(shared, offset, length)))
            }
            checked => ready(checked.map(drop)),
        }
    }

    fn write_zeroes(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<()> {
        match self.check(DeviceOperation::WriteZeroes, offset, length, context) {
            Ok(request) if length > 0 => self.rare(request, move |shared| {
                ranges::write_zeroes(shared, offset, tail::within(shared, offset, length))
            }),
            checked => ready(checked.map(drop)),
        }
    }

    fn zero_quickly(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<()> {
        let is_disk = self.is_disk;
        match self.check(DeviceOperation::WriteZeroes, offset, length, context) {
            Ok(request) if length > 0 => self.rare(request, move |shared| {
                ranges::zero_quickly(shared, is_disk, offset, tail::within(shared, offset, length))
            }),
            checked => ready(checked.map(drop)),
        }
    }

    fn is_shared(&self) -> bool {
        self.is_shared
    }

    fn set_option(&self, name: &str, value: &str) -> IoFuture<()> {
        if (name, value) == CLEAR_LATCH {
            self.shared.clear_latch();
            return ready(Ok(()));
        }
        let detail = format!("nothing here can change \"{name}\" while it runs");
        ready(Err(Error::new(DeviceErrorKind::Unsupported, &self.spec(), DeviceOperation::Open, detail)))
    }

    fn lock(&self, offset: u64, length: u64) -> IoFuture<bool> {
        let is_read_only = self.is_read_only;
        self.on_locks(move |shared, locks| {
            locks.add(offset, length);
            let locked = open::lock_range(&shared.spec, &shared.file, offset, length, is_read_only);
            if locked.is_err() {
                locks.remove(offset, length);
            }
            locked.map(|()| true)
        })
    }

    fn unlock(&self, offset: u64, length: u64) -> IoFuture<()> {
        self.on_locks(move |shared, locks| {
            let unlocked = sys::unlock_range(&shared.file, offset, length);
            unlocked.map_err(|error| Error::from_os(&error, &shared.spec, DeviceOperation::Open))?;
            locks.remove(offset, length);
            Ok(())
        })
    }

    fn is_locked(&self, offset: u64, length: u64) -> IoFuture<bool> {
        self.on_locks(move |shared, locks| {
            let found = locks.is_locked(&shared.file, offset, length);
            found.map_err(|error| Error::from_os(&error, &shared.spec, DeviceOperation::Open))
        })
    }

    fn lock_domain(&self) -> Option<String> {
        locks::domain(&self.shared.file)
    }

    fn allocation(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<Vec<DeviceExtent>> {
        match self.check(DeviceOperation::Allocation, offset, length, context) {
            Ok(request) => self.rare(request, move |shared| ranges::allocation(shared, offset, length)),
            Err(error) => ready(Err(error)),
        }
    }

    fn grow(&self, size_bytes: u64) -> IoFuture<()> {
        let now = self.geometry();
        let request = DeviceRequest::new(DeviceOperation::Grow, 0, size_bytes, IoContext::default());
        if size_bytes < now.size_bytes || !size_bytes.is_multiple_of(u64::from(now.block_bytes)) {
            let detail =
                format!("it has {} bytes and grows only, by blocks of {} bytes", now.size_bytes, now.block_bytes);
            return ready(Err(request.error(DeviceErrorKind::Invalid, || self.spec(), detail)));
        }
        let is_disk = self.is_disk;
        match self.shared.check_latch(DeviceOperation::Grow, 0, size_bytes) {
            Ok(()) => self.rare(request, move |shared| ranges::grow(shared, is_disk, size_bytes)),
            Err(error) => ready(Err(error)),
        }
    }

    fn close(&self) -> IoFuture<()> {
        ready(Ok(()))
    }

    fn release(&self) -> IoFuture<bool> {
        self.on_locks(|shared, _| {
            let released = sys::give_up(&shared.file);
            released.map_err(|error| Error::from_os(&error, &shared.spec, DeviceOperation::Open)).map(|()| true)
        })
    }
}

/// Chooses the engine that the caller wants, if this host supports it.
fn choose_engine(spec: &str, wanted: FileEngine, uring: Result<(), &str>) -> Result<FileEngine, Error> {
    match (wanted, uring) {
        (FileEngine::Posix, _) | (FileEngine::Auto, Err(_)) => Ok(FileEngine::Posix),
        (_, Ok(())) => Ok(FileEngine::Uring),
        (FileEngine::Uring, Err(reason)) => {
            let detail = format!("io_uring is refused on this host ({reason}); use the posix engine");
            Err(Error::new(DeviceErrorKind::Unsupported, spec, DeviceOperation::Open, detail))
        }
    }
}

fn outside(spec: &str, operation: DeviceOperation) -> Error {
    let detail = "it was called outside a tokio runtime";
    Error::new(DeviceErrorKind::Invalid, spec, operation, detail)
}

fn late() -> String {
    "the deadline passed; the operation may still happen".to_owned()
}

/// Whether a path is a block device, for callers that choose between `file:` and `disk:`.
pub fn is_block_device(path: impl AsRef<Path>) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::metadata(path).is_ok_and(|status| status.file_type().is_block_device())
}
