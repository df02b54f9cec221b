//! The source of a cache: an open file or a device.
//!
//! Owns: the [`ByteSource`] trait, and the adapter that makes a device a source.

use nectary_block::{Buffer, IoContext, IoFuture, SharedDevice, WriteFlags};

/// Bytes of a known size that can be read and written at any offset.
///
/// Operations are called inside a tokio runtime, and each operation owns its buffers until it ends. The cache's ranges
/// begin at a multiple of its block size, and end at a multiple or at the end of the source; only a write may have
/// the range of a user of the cache, which need not be aligned. Except for flushes, the cache never has two operations
/// in flight on the same block.
pub trait ByteSource: Send + Sync + 'static {
    /// The name of the source in messages.
    fn name(&self) -> String;

    /// The current size of the source, which may change. *Units*: bytes.
    fn size_bytes(&self) -> u64;

    /// Whether others may write to the source while it is cached; write-back is then refused.
    fn is_shared(&self) -> bool {
        false
    }

    /// Fills `buffers` in order, from `offset` on, and returns them. Bytes beyond the end read as zeroes.
    fn read_at(&self, offset: u64, buffers: Vec<Buffer>, context: IoContext) -> IoFuture<Vec<Buffer>>;

    /// Writes `buffers` in order, from `offset` on, and returns them.
    fn write_at(
        &self,
        offset: u64,
        buffers: Vec<Buffer>,
        flags: WriteFlags,
        context: IoContext,
    ) -> IoFuture<Vec<Buffer>>;

    /// Makes every completed write as durable as the source can make it.
    fn flush(&self, context: IoContext) -> IoFuture<()>;

    /// Tells the source that a range is no longer needed. Afterwards the range reads as before or as zeroes.
    fn discard(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<()>;

    /// Makes a range read as zeroes.
    fn write_zeroes(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<()>;
}

/// A source over a device.
pub struct DeviceSource(SharedDevice);

impl DeviceSource {
    /// Makes a device a source. Offsets and lengths of writes, discards and zeroings must be multiples of the device's
    /// block size.
    pub fn new(device: SharedDevice) -> DeviceSource {
        DeviceSource(device)
    }
}

impl ByteSource for DeviceSource {
    fn name(&self) -> String {
        self.0.spec()
    }

    fn size_bytes(&self) -> u64 {
        self.0.geometry().size_bytes
    }

    fn is_shared(&self) -> bool {
        self.0.is_shared()
    }

    fn read_at(&self, offset: u64, buffers: Vec<Buffer>, context: IoContext) -> IoFuture<Vec<Buffer>> {
        self.0.read_at(offset, buffers, context)
    }

    fn write_at(
        &self,
        offset: u64,
        buffers: Vec<Buffer>,
        flags: WriteFlags,
        context: IoContext,
    ) -> IoFuture<Vec<Buffer>> {
        self.0.write_at(offset, buffers, flags, context)
    }

    fn flush(&self, context: IoContext) -> IoFuture<()> {
        self.0.flush(context)
    }

    fn discard(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<()> {
        self.0.discard(offset, length, context)
    }

    fn write_zeroes(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<()> {
        self.0.write_zeroes(offset, length, context)
    }
}
