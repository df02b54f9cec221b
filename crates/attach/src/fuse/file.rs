//! A device as a file system with one file.
//!
//! Owns: the translation of the kernel's requests to operations of the device, and the tasks that wait for these.
//! Promises:
//! 1. A write passes to the device the buffers that the kernel filled; a read returns to the kernel the buffers that
//!    the device filled. No data are copied between them.
//! 2. A request is answered once, after the device has completed it. If the process that waits for a read or a flush is
//!    interrupted, the request is answered at once with `EINTR`; its memory stays in use until the device returns it. A
//!    write is never answered early, because it could then take effect after a later one.
//! 3. A flush covers every write that was answered before it.
//! 4. A discarded range reads as zeroes, whatever the device below does on a discard, because the kernel assumes that a
//!    hole reads as zeroes.

use std::ffi::CStr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context as TaskContext, Waker};
use std::time::Duration;

use nectary_block::{Error, IoContext, SharedDevice, WriteFlags};
use nectary_fuse::protocol::open_flags;
use nectary_fuse::{
    BufferPool, Errno, FuseFileSystem, LookupEntry, NodeAttributes, PooledData, ReadCall, ReplyHandle, RequestContext,
    RequestedFeatures, StatFs, WriteCall,
};
use nectary_host::log::{LogLevel, LogThrottle};
use tokio::task::JoinSet;

use crate::counters::{AttachmentCounters, add};
use crate::error::errno;

/// The node number of the file; its directory has number 1.
const FILE: u64 = 2;

/// The number of background requests that the kernel may have in flight; its block layer sends no more.
const BACKGROUND_MAX: u16 = 128;

/// How long the kernel may cache the file's size.
const VALID: Duration = Duration::from_secs(3600);

/// The flags of the open file: the kernel caches nothing, sends writes in parallel, and sends no request when the file
/// is closed.
const OPEN_FLAGS: u32 = open_flags::DIRECT_IO | open_flags::NO_FLUSH | open_flags::PARALLEL_DIRECT_WRITES;

/// A device as a file.
pub struct DeviceFile {
    shared: Arc<DeviceFileState>,
    tasks: Mutex<JoinSet<()>>,
}

/// The state that the tasks share.
struct DeviceFileState {
    device: SharedDevice,
    read_only: bool,
    counters: Arc<AttachmentCounters>,
    /// Memory for the data of reads. Data of writes stay in the buffers that the kernel filled.
    memory: BufferPool,
}

impl DeviceFile {
    /// Makes the file of `device`; the data of its reads are in `memory`.
    pub fn new(
        device: SharedDevice,
        read_only: bool,
        counters: Arc<AttachmentCounters>,
        memory: BufferPool,
    ) -> DeviceFile {
        let shared = Arc::new(DeviceFileState { device, read_only, counters, memory });
        DeviceFile { shared, tasks: Mutex::new(JoinSet::new()) }
    }

    fn tasks(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins an operation of the device; if it does not complete at once, a task waits for it.
    fn begin(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut work: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(work);
        if work.as_mut().poll(&mut TaskContext::from_waker(Waker::noop())).is_pending() {
            // The task polls it again, with a real waker.
            let mut tasks = self.tasks();
            tasks.spawn(work);
            while tasks.try_join_next().is_some() {}
        }
    }

    /// Waits for all operations that have begun.
    pub async fn finish(&self) {
        let mut tasks = std::mem::take(&mut *self.tasks());
        while tasks.join_next().await.is_some() {}
    }
}

impl FuseFileSystem for DeviceFile {
    fn wishes(&self) -> RequestedFeatures {
        RequestedFeatures { background_max: BACKGROUND_MAX, ..RequestedFeatures::default() }
    }

    // The mount is not part of any directory tree, so only this process looks up names, and every name means the file.
    fn look_up(&self, _of: RequestContext, _name: &CStr, reply: ReplyHandle) {
        let attributes = self.shared.attributes(FILE);
        reply.entry(&LookupEntry {
            node: FILE,
            generation: 0,
            attributes,
            entry_valid: VALID,
            attributes_valid: VALID,
        });
    }

    fn get_attributes(&self, of: RequestContext, reply: ReplyHandle) {
        reply.attributes(&self.shared.attributes(of.node), VALID);
    }

    fn open(&self, _of: RequestContext, _flags: i32, reply: ReplyHandle) {
        reply.opened(1, OPEN_FLAGS);
    }

    fn release(&self, _of: RequestContext, _handle: u64, _owner: u64, _unlock: bool, reply: ReplyHandle) {
        reply.ok();
    }

    fn stat_fs(&self, _of: RequestContext, reply: ReplyHandle) {
        let geometry = self.shared.device.geometry();
        reply.statfs(&StatFs {
            blocks: geometry.size_bytes / u64::from(geometry.block_bytes),
            block_bytes: geometry.block_bytes,
            fragment_bytes: geometry.block_bytes,
            name_bytes_max: 255,
            ..StatFs::default()
        });
    }

    fn read(&self, _of: RequestContext, read: ReadCall, reply: ReplyHandle) {
        let shared = self.shared.clone();
        reply.can_be_cut_short();
        self.begin(async move { shared.read(read, reply).await });
    }

    fn write(&self, _of: RequestContext, write: WriteCall, data: PooledData, reply: ReplyHandle) {
        let shared = self.shared.clone();
        self.begin(async move { shared.write(write.offset, data, reply).await });
    }

    fn sync(&self, _of: RequestContext, _handle: u64, reply: ReplyHandle) {
        let shared = self.shared.clone();
        reply.can_be_cut_short();
        self.begin(async move {
            let flushed = shared.device.flush(IoContext::default()).await;
            add(&shared.counters.flushes, 1);
            reply.done(flushed.map_err(|error| shared.failed(&error)));
        });
    }

    fn allocate(&self, _of: RequestContext, _handle: u64, offset: u64, length: u64, mode: i32, reply: ReplyHandle) {
        let shared = self.shared.clone();
        self.begin(async move {
            let done = shared.allocate(offset, length, mode).await;
            add(&shared.counters.zeroes, 1);
            reply.done(done);
        });
    }

    fn interrupted(&self, _unique: u64, is_answered: bool) {
        if is_answered {
            add(&self.shared.counters.interrupted, 1);
        }
    }
}

impl DeviceFileState {
    /// The attributes of the file, or of its directory.
    fn attributes(&self, node: u64) -> NodeAttributes {
        if node != FILE {
            return NodeAttributes { number: node, mode: libc::S_IFDIR | 0o500, links: 2, ..NodeAttributes::default() };
        }
        let geometry = self.device.geometry();
        NodeAttributes {
            number: node,
            size: geometry.size_bytes,
            blocks: geometry.size_bytes / 512,
            mode: libc::S_IFREG | if self.read_only { 0o400 } else { 0o600 },
            links: 1,
            block_bytes: geometry.block_bytes,
            ..NodeAttributes::default()
        }
    }

    async fn read(&self, read: ReadCall, reply: ReplyHandle) {
        let size = self.device.geometry().size_bytes;
        let length = u64::from(read.size).min(size.saturating_sub(read.offset));
        let Some(mut data) = self.memory.take(length as usize).await else { return reply.errno(libc::EINVAL) };
        if length == 0 {
            return reply.bytes(&[]);
        }
        let result = self.device.read_at(read.offset, data.take(), IoContext::default()).await;
        add(&self.counters.reads, 1);
        match result {
            Ok(buffers) => {
                data.put(buffers);
                add(&self.counters.bytes_read, length);
                reply.parts(&data.parts());
            }
            Err(error) => reply.error(self.failed(&error)),
        }
    }

    async fn write(&self, offset: u64, mut data: PooledData, reply: ReplyHandle) {
        if self.read_only {
            return reply.errno(libc::EROFS);
        }
        let length = data.len();
        let written = self.device.write_at(offset, data.take(), WriteFlags::default(), IoContext::default()).await;
        add(&self.counters.writes, 1);
        match written {
            Ok(buffers) => {
                data.put(buffers);
                add(&self.counters.bytes_written, length as u64);
                reply.written(length as u32);
            }
            Err(error) => reply.error(self.failed(&error)),
        }
    }

    /// Punches a hole or writes zeroes.
    async fn allocate(&self, offset: u64, length: u64, mode: i32) -> Result<(), Errno> {
        if self.read_only {
            return Err(Errno::new(libc::EROFS));
        }
        let failed = |error: Error| self.failed(&error);
        match mode & !libc::FALLOC_FL_KEEP_SIZE {
            libc::FALLOC_FL_ZERO_RANGE => {
                self.device.write_zeroes(offset, length, IoContext::default()).await.map_err(failed)
            }
            libc::FALLOC_FL_PUNCH_HOLE => {
                self.device.discard(offset, length, IoContext::default()).await.map_err(failed)?;
                let left = self.device.allocation(offset, length, IoContext::default()).await.map_err(failed)?;
                for extent in left.into_iter().filter(|extent| extent.mapped) {
                    let zeroed = self.device.write_zeroes(extent.offset, extent.length, IoContext::default());
                    zeroed.await.map_err(failed)?;
                }
                Ok(())
            }
            _ => Err(Errno::new(libc::EOPNOTSUPP)),
        }
    }

    /// Counts and logs an error of the device; returns the kernel's error number for it.
    fn failed(&self, error: &Error) -> Errno {
        static FAILED: LogThrottle = LogThrottle::every(Duration::from_secs(10));
        add(&self.counters.failed, 1);
        FAILED.write(LogLevel::Error, "attach", format_args!("{error}"));
        errno(error.kind)
    }
}
