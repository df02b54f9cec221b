//! The block device: the interface of all devices and filters.
//!
//! # Contract
//! 1. *Ownership*: an operation owns its buffers from the call until it completes, even if its future is dropped.
//!    Dropping the future of a read or a write cancels the wait; the operation may still happen.
//! 2. *Alignment*: `offset` and every buffer's length are multiples of [`DeviceGeometry::block_bytes`]. An operation that is
//!    misaligned or extends beyond the device fails with [`DeviceErrorKind::Invalid`](crate::DeviceErrorKind::Invalid) and changes
//!    nothing. So does an operation with more than [`BUFFERS_MAX`](crate::BUFFERS_MAX) buffers or
//!    [`OPERATION_BYTES_MAX`](crate::OPERATION_BYTES_MAX) bytes.
//! 3. *Atomicity*: only units of [`DeviceGeometry::atomic_bytes`] are atomic. After a failed or interrupted write, each unit
//!    is old or new, in any mix.
//! 4. *Order*: operations in flight at the same time may take effect in any order. An operation that begins after
//!    another one completed sees the effect of the completed one, on every handle.
//! 5. *Durability*: a completed write survives [`DeviceGeometry::write_survives`]. A completed flush covers every write that
//!    had completed, on any handle, before the flush was called: these writes survive [`DeviceGeometry::flush_survives`]. A
//!    write with [`WriteFlags::fua`] completes only when it survives the same events without a flush.
//! 6. *Failure*: after a failed write, only its own range is undefined, and the device goes on. After a failed flush
//!    or forced write the device may latch: further writes and flushes then fail with
//!    [`DeviceErrorKind::Latched`](crate::DeviceErrorKind::Latched), while reads still work. A caller that can rewrite everything
//!    that it wrote since the last flush that succeeded clears the latch with the option [`CLEAR_LATCH`].
//! 7. *Zeroes*: zeroed and never-written ranges read as zeroes; discarded ranges read as either their old contents or
//!    zeroes. A quick zeroing either zeroes its whole range or changes nothing.
//! 8. *Deadline*: if the deadline has passed at the call, the operation fails with
//!    [`DeviceErrorKind::TimedOut`](crate::DeviceErrorKind::TimedOut) and changes nothing. If the deadline passes later, only the
//!    wait ends, and the operation may still happen.
//!
//! 9. *End*: the user calls [`BlockDevice::close`] after its last flush. What was flushed stays.
//!
//! A conformance test (`nectary_block::conformance`) checks this contract on every device and filter.
//!
//! *Circle*: `request` uses this file's types, and `zero_quickly` in this file checks a [`DeviceRequest`].

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use crate::buffer::Buffer;
use crate::error::{DeviceErrorKind, DeviceOperation, Error};
use crate::figures::DeviceCounters;
use crate::request::{DeviceRequest, ready};

/// The sector of most disks. *Units*: bytes.
pub(crate) const SECTOR_BYTES: u32 = 512;

/// The size of the largest device: offsets of the kernel have 63 bits. *Units*: bytes.
pub const DEVICE_BYTES_MAX: u64 = i64::MAX as u64;

/// The error text of a device that cannot zero ranges quickly.
pub(crate) const SLOW_ZEROES: &str = "zeroes may take as long here as data: write them";

/// The name and value of the [option](BlockDevice::set_option) that clears the latch of a failed flush. Who sets it
/// must rewrite everything that was written since the last flush that succeeded, and flush again.
pub const CLEAR_LATCH: (&str, &str) = ("latched", "no");

/// The result of an operation: a future that may be sent between threads and does not borrow the device.
pub type IoFuture<T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'static>>;

/// A device shared by all its users.
pub type SharedDevice = Arc<dyn BlockDevice>;

/// The events that data survives, from the least to the most severe. A stripe has the minimum of its devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SurvivalLevel {
    /// Data survives no event, not even the end of this process.
    Nothing,
    /// The end of this process, however it ends.
    Process,
    /// A crash of this host's kernel.
    Host,
    /// A crash of this host's kernel, or the loss of one donor (a machine that lends memory), but not both at once.
    Donor,
    /// A crash of this host's kernel together with the loss of one donor (a machine that lends memory).
    HostAndDonor,
    /// A loss of power.
    Power,
}

/// The size, units and promises of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceGeometry {
    /// The size of the device; a multiple of `block_bytes`. *Units*: bytes.
    pub size_bytes: u64,
    /// The unit of offsets and lengths; a power of two from 512 to 4096. *Units*: bytes.
    pub block_bytes: u32,
    /// The unit that a crash never tears (512 for most disks). *Units*: bytes.
    pub atomic_bytes: u32,
    /// The length above which longer reads are not faster per byte. *Units*: bytes.
    pub read_bytes_preferred: u32,
    /// The length above which longer writes are not faster per byte. *Units*: bytes.
    pub write_bytes_preferred: u32,
    /// The event that a completed write survives.
    pub write_survives: SurvivalLevel,
    /// The event that a write survives after a completed flush.
    pub flush_survives: SurvivalLevel,
}

/// The origin of an access to a block: a process and file, a connection, a region, or a tag of the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct AccessStream(pub u32);

/// The parameters that every call has.
#[derive(Debug, Clone, Copy, Default)]
pub struct IoContext {
    /// The origin of this access.
    pub stream: AccessStream,
    /// The time at which the caller gives up; the operation then fails with
    /// [`DeviceErrorKind::TimedOut`](crate::DeviceErrorKind::TimedOut).
    pub deadline: Option<Instant>,
}

/// The options of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WriteFlags {
    /// Whether the write is forced (force unit access): it then completes only when it survives the events that it
    /// would otherwise survive after a flush.
    pub fua: bool,
}

/// A range of a device, and whether blocks are mapped in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceExtent {
    /// The start of the range. *Units*: bytes.
    pub offset: u64,
    /// The length of the range. *Units*: bytes.
    pub length: u64,
    /// Whether blocks are mapped; an unmapped range reads as zeroes.
    pub mapped: bool,
}

/// A random-access store of blocks. The contract is in the module's documentation.
///
/// Operations must be called inside a tokio runtime whose timers and I/O are enabled.
pub trait BlockDevice: Send + Sync + 'static {
    /// The SPEC that names this device.
    fn spec(&self) -> String;

    /// The current size, units and promises of the device; a device can grow.
    fn geometry(&self) -> DeviceGeometry;

    /// The number of bytes that the device has without the padding of its last block, see
    /// [`OpenOptions::pads_tail`](crate::OpenOptions::pads_tail); otherwise the size of its geometry. *Units*: bytes.
    fn exact_bytes(&self) -> u64 {
        self.geometry().size_bytes
    }

    /// The sector in which partition tables on the device count: 512, or more if a disk below has larger sectors. It
    /// differs from [`DeviceGeometry::block_bytes`] if only the requests must be larger. *Units*: bytes.
    fn sector_bytes(&self) -> u32 {
        SECTOR_BYTES
    }

    /// Reads from `offset` on into `buffers`, in their order, and returns them.
    fn read_at(&self, offset: u64, buffers: Vec<Buffer>, context: IoContext) -> IoFuture<Vec<Buffer>>;

    /// Writes `buffers` in order, from `offset` on, and returns them.
    fn write_at(
        &self,
        offset: u64,
        buffers: Vec<Buffer>,
        flags: WriteFlags,
        context: IoContext,
    ) -> IoFuture<Vec<Buffer>>;

    /// Makes every write completed before this call survive [`DeviceGeometry::flush_survives`].
    fn flush(&self, context: IoContext) -> IoFuture<()>;

    /// Tells the device that a range is not needed; the device may ignore it.
    fn discard(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<()>;

    /// Makes a range read as zeroes.
    fn write_zeroes(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<()>;

    /// Makes a range read as zeroes, if that takes much less time than writing the range; otherwise changes nothing.
    ///
    /// *Errors*: [`DeviceErrorKind::Unsupported`](crate::DeviceErrorKind::Unsupported), at once, if the device cannot zero quickly,
    /// or does not know whether it can. The caller must then write the zeroes.
    fn zero_quickly(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<()> {
        let request = DeviceRequest::new(DeviceOperation::WriteZeroes, offset, length, context);
        let checked = request.check(|| self.spec(), &self.geometry());
        let cannot = || request.error(DeviceErrorKind::Unsupported, || self.spec(), SLOW_ZEROES.to_owned());
        ready(checked.and_then(|()| if length == 0 { Ok(()) } else { Err(cannot()) }))
    }

    /// Lists the mapped parts of a range, in order and without gaps.
    fn allocation(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<Vec<DeviceExtent>>;

    /// Grows the device to `size_bytes`; never shrinks it.
    fn grow(&self, size_bytes: u64) -> IoFuture<()>;

    /// Ends this use of the device, after the last flush and before the device is dropped. Devices that keep a record
    /// of their user learn that it is gone: the donors of a network RAM disk, for example, which otherwise find what a
    /// crash leaves. Most devices do nothing. A device on top of others closes each of them, even if one of them fails.
    /// After this, other operations may fail with [`DeviceErrorKind::Latched`](crate::DeviceErrorKind::Latched); a second call does
    /// nothing. There is no default, so that no device on top of another one forgets this.
    ///
    /// *Errors*: those who keep the record cannot be told. What was flushed is safe nevertheless.
    fn close(&self) -> IoFuture<()>;

    /// Ends this use of the device as [`close`](Self::close) does, and gives the device up at once, so that another
    /// process can own it although this one still holds it. *Returns* whether reads still work; they then see what the
    /// next owner writes. Writes fail.
    ///
    /// *Errors*: those of `close`; or the device could not be given up.
    fn release(&self) -> IoFuture<bool> {
        let closed = self.close();
        Box::pin(async move { closed.await.map(|()| false) })
    }

    /// Whether others may write to the device below, so that its bytes may change without a write here.
    fn is_shared(&self) -> bool {
        false
    }

    /// Locks a range of the device. The lock excludes all other users on this host that have the same file or disk open
    /// and lock the same range through this method. It is held until the device is dropped and its last request has
    /// ended. The lock does not stop programs that never take it. *Returns* `false` if the device has no descriptor
    /// that can hold a lock. A device that is opened only for reading shares the lock with others of its kind.
    ///
    /// *Errors*: [`DeviceErrorKind::Busy`](crate::DeviceErrorKind::Busy) if another user has the lock. Before this method fails, it
    /// waits for a short time, because a killed process holds its lock until its last request has ended.
    fn lock(&self, _offset: u64, _length: u64) -> IoFuture<bool> {
        Box::pin(std::future::ready(Ok(false)))
    }

    /// Removes a lock that this device took by [`lock`](Self::lock), with the same range.
    fn unlock(&self, _offset: u64, _length: u64) -> IoFuture<()> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Whether a user on this host, also through this device, holds a lock in the range that it took by
    /// [`lock`](Self::lock) in the same [`lock_domain`](Self::lock_domain).
    ///
    /// *Errors*: [`DeviceErrorKind::Unsupported`](crate::DeviceErrorKind::Unsupported) if the device cannot tell.
    fn is_locked(&self, _offset: u64, _length: u64) -> IoFuture<bool> {
        let detail = "it has no descriptor that can hold a lock".to_owned();
        let error = Error::new(DeviceErrorKind::Unsupported, &self.spec(), DeviceOperation::Open, detail);
        Box::pin(std::future::ready(Err(error)))
    }

    /// Names what [`lock`](Self::lock) locks. Two devices on one host see each other's locks if their names are equal.
    /// Two paths of one disk may have different names, for example two device nodes, or a loop device and its file.
    /// `None`: the device cannot lock, or the kernel of this host does not keep its locks itself.
    fn lock_domain(&self) -> Option<String> {
        None
    }

    /// Changes an option of this device, or of the nearest device below that has it, while it runs, for example
    /// `memory` or `mode` of a cache.
    ///
    /// *Errors*: [`DeviceErrorKind::Unsupported`](crate::DeviceErrorKind::Unsupported) if no device of the stack can change the
    /// option.
    fn set_option(&self, name: &str, _value: &str) -> IoFuture<()> {
        let detail = format!("nothing here can change \"{name}\" while it runs");
        let error = Error::new(DeviceErrorKind::Unsupported, &self.spec(), DeviceOperation::Open, detail);
        Box::pin(std::future::ready(Err(error)))
    }

    /// The counters of this device and of the devices below it; those of this device come first.
    fn figures(&self) -> Vec<DeviceCounters> {
        Vec::new()
    }
}

/// Reads `length` bytes at `offset` into one new buffer.
pub async fn read(device: &dyn BlockDevice, offset: u64, length: usize) -> Result<Buffer, Error> {
    let mut buffers = device.read_at(offset, vec![Buffer::recycled(length)], IoContext::default()).await?;
    Ok(buffers.pop().expect("a read gives its buffers back"))
}

/// Writes one buffer at `offset` and returns it.
pub async fn write(device: &dyn BlockDevice, offset: u64, buffer: Buffer) -> Result<Buffer, Error> {
    let mut buffers = device.write_at(offset, vec![buffer], WriteFlags::default(), IoContext::default()).await?;
    Ok(buffers.pop().expect("a write gives its buffers back"))
}
