//! The event loop of an attached device: one thread waits for requests of the kernel and for operations of the device,
//! and handles both.
//!
//! Owns: the memory of requests, all allocated before the first request, and the wait for the next request. Promises:
//! no request waits for memory or a thread that only a later request could free. Reads and writes have separate memory,
//! which is freed when the device completes them; a flush needs no memory. Requests are received even when all memory
//! for reads is in use, so interrupts arrive.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

use nectary_block::SharedDevice;
use nectary_fuse::{
    BufferPool, ConnectionWorker, FuseChannel, FuseConnection, FuseLimits, FuseMount, MountOptions, WorkerStep,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::file::DeviceFile;
use crate::counters::AttachmentCounters;
use crate::error::Error;

/// The unit of memory: the size of a small read or write. *Units*: bytes.
const UNIT_BYTES: usize = 64 << 10;

/// The number of units for reads, and also that for writes. The request that is being received has its own memory.
pub(super) const UNITS: usize = 128;

/// The largest request, if the kernel allows it. *Units*: bytes.
pub(super) const REQUEST_BYTES: usize = 1 << 20;

/// The largest number of requests in flight, including those that wait for memory. It is far more than the kernel sends
/// to one disk.
const REQUESTS_MAX: usize = 4096;

/// The events to wait for: a request, or the end of the connection, which the kernel reports as an error.
const READY: Interest = Interest::READABLE.add(Interest::ERROR);

/// Serves a device to the kernel.
pub struct KernelDeviceServer {
    file: Arc<DeviceFile>,
    connection: Arc<FuseConnection>,
    worker: ConnectionWorker,
    readiness: AsyncFd<RawFd>,
}

impl KernelDeviceServer {
    /// Makes a server of `device` on `channel`, in the current runtime.
    pub fn new(
        channel: FuseChannel,
        device: SharedDevice,
        read_only: bool,
        counters: Arc<AttachmentCounters>,
    ) -> io::Result<KernelDeviceServer> {
        let memory = BufferPool::new(UNITS, UNIT_BYTES);
        let file = Arc::new(DeviceFile::new(device, read_only, counters, memory));
        let limits = FuseLimits {
            request_bytes: REQUEST_BYTES,
            unit_bytes: UNIT_BYTES,
            write_bytes: UNITS * UNIT_BYTES,
            requests: REQUESTS_MAX,
            workers: 1,
        };
        let connection = FuseConnection::new(file.clone(), limits);
        let worker = ConnectionWorker::new(&connection, channel);
        // SAFETY: the worker owns the descriptor and keeps it open; `run` drops `readiness` before the worker.
        let readiness = unsafe { AsyncFd::register_with_interest(worker.channel().as_raw_fd(), READY)? };
        Ok(KernelDeviceServer { file, connection, worker, readiness })
    }

    /// The connection to the kernel, which knows the requests in progress.
    pub fn connection(&self) -> Arc<FuseConnection> {
        self.connection.clone()
    }

    /// Serves until the file has no user left, so that the kernel ends the connection; then waits until the device has
    /// completed all operations.
    ///
    /// *Errors*: those that the kernel reports on the FUSE connection; its regular end is no error.
    pub async fn run(self) -> io::Result<()> {
        let KernelDeviceServer { file, mut worker, readiness, connection: _ } = self;
        let result = loop {
            worker.prepare().await;
            let mut ready = match readiness.ready(READY).await {
                Ok(ready) => ready,
                Err(error) => break Err(error),
            };
            match ready.try_io(|_| worker.step()) {
                Err(_would_block) => {}
                Ok(Ok(WorkerStep::Went)) => {}
                Ok(Ok(WorkerStep::Ended)) => break Ok(()),
                Ok(Err(error)) => break Err(error),
            }
        };
        drop(readiness);
        file.finish().await;
        result
    }
}

/// Mounts the file system that `channel` serves without a mount point: no other process can reach it, and nothing of it
/// remains when this process dies. The mount exists as long as its file is open, and the loop device keeps the file
/// open.
///
/// *Errors*: [`Error::NotPermitted`] without the right to mount.
pub fn mount(channel: &FuseChannel) -> Result<FuseMount, Error> {
    let options = MountOptions {
        source: "nectary-attach".to_owned(),
        root_mode: libc::S_IFDIR | 0o500,
        ..MountOptions::default()
    };
    Ok(FuseMount::new(channel, &options)?)
}

/// Opens the file of a mount; another thread must serve the channel during the call. The name must be unique, because
/// tools mistake loop devices on files with the same path for one device.
pub fn open(mount: &FuseMount, name: &str, read_only: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(!read_only).custom_flags(libc::O_DIRECT);
    let file = options.open(mount.path(name))?;
    // Makes the kernel request the file's size now, because the loop device may use a cached size.
    file.metadata()?;
    Ok(file)
}
