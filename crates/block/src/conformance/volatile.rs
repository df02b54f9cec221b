//! A device that, when it crashes, loses all writes that were not flushed. The contract does not allow it to lose more.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::buffer::Buffer;
use crate::device::{DeviceGeometry, IoContext, IoFuture, SharedDevice, SurvivalLevel, WriteFlags};
use crate::filter::Filter;
use crate::memory::MemoryDevice;
use crate::snapshot::DeviceSnapshot;

/// Memory behind a write cache that a crash empties.
pub struct VolatileDevice {
    memory: Arc<MemoryDevice>,
    inner: SharedDevice,
    durable: Arc<Mutex<DeviceSnapshot>>,
}

impl VolatileDevice {
    /// Makes a device of zeroes.
    pub fn new(size_bytes: u64) -> Arc<VolatileDevice> {
        VolatileDevice::from_snapshot(&DeviceSnapshot::zeroed(size_bytes))
    }

    fn from_snapshot(snapshot: &DeviceSnapshot) -> Arc<VolatileDevice> {
        let memory = Arc::new(MemoryDevice::from_snapshot(snapshot));
        Arc::new(VolatileDevice { inner: memory.clone(), memory, durable: Arc::new(Mutex::new(snapshot.clone())) })
    }

    /// The device as it would be after a loss of power at this moment.
    pub fn crash(&self) -> Arc<VolatileDevice> {
        VolatileDevice::from_snapshot(&lock(&self.durable))
    }
}

impl Filter for VolatileDevice {
    fn inner(&self) -> &SharedDevice {
        &self.inner
    }

    fn spec(&self) -> String {
        self.inner.spec()
    }

    fn geometry(&self) -> DeviceGeometry {
        DeviceGeometry { flush_survives: SurvivalLevel::Power, ..self.inner.geometry() }
    }

    fn write_at(
        &self,
        offset: u64,
        buffers: Vec<Buffer>,
        flags: WriteFlags,
        context: IoContext,
    ) -> IoFuture<Vec<Buffer>> {
        let (written, durable) = (self.inner.write_at(offset, buffers, flags, context), self.durable.clone());
        Box::pin(async move {
            let buffers = written.await?;
            if flags.fua {
                let mut position = offset;
                for buffer in &buffers {
                    lock(&durable).write(position, buffer);
                    position += buffer.len() as u64;
                }
            }
            Ok(buffers)
        })
    }

    fn flush(&self, context: IoContext) -> IoFuture<()> {
        let (memory, durable) = (self.memory.clone(), self.durable.clone());
        let flushed = self.inner.flush(context);
        Box::pin(async move {
            flushed.await?;
            *lock(&durable) = memory.snapshot();
            Ok(())
        })
    }

    fn grow(&self, size_bytes: u64) -> IoFuture<()> {
        let (grown, durable) = (self.inner.grow(size_bytes), self.durable.clone());
        Box::pin(async move {
            grown.await?;
            lock(&durable).grow(size_bytes);
            Ok(())
        })
    }
}

fn lock(durable: &Mutex<DeviceSnapshot>) -> MutexGuard<'_, DeviceSnapshot> {
    durable.lock().unwrap_or_else(PoisonError::into_inner)
}
