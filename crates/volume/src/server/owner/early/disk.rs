//! A disk in memory on which a volume may be.
//!
//! Owns: what the disk says of itself. Leaves to others: its contents (`MemoryDevice`).

use nectary_block::{
    BlockDevice, Buffer, DeviceExtent, DeviceGeometry, IoContext, IoFuture, MemoryDevice, SurvivalLevel, WriteFlags,
};

/// A disk in memory. It says that it outlives this process: here only servers are lost.
pub(super) struct SurvivingDisk(pub MemoryDevice);

impl BlockDevice for SurvivingDisk {
    fn spec(&self) -> String {
        self.0.spec()
    }

    fn geometry(&self) -> DeviceGeometry {
        let flush_survives = SurvivalLevel::Power;
        DeviceGeometry { flush_survives, write_survives: SurvivalLevel::Process, ..self.0.geometry() }
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

    fn allocation(&self, offset: u64, length: u64, context: IoContext) -> IoFuture<Vec<DeviceExtent>> {
        self.0.allocation(offset, length, context)
    }

    fn grow(&self, size_bytes: u64) -> IoFuture<()> {
        self.0.grow(size_bytes)
    }

    fn close(&self) -> IoFuture<()> {
        self.0.close()
    }
}
