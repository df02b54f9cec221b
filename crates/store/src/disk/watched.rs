//! The device of a span with the deadline of its operations: reads that take longer fail, and all other operations count
//! as overdue.
//!
//! Owns: which operations have which deadline. Leaves to others: what a silent device means (`health`).

use std::sync::Arc;

use nectary_block::{
    Buffer, DeviceErrorKind, DeviceOperation, DeviceRequest, Error, Filter, IoContext, IoFuture, SharedDevice,
};

use super::health::DeviceHealth;

/// A device whose operations are watched.
pub(crate) struct MonitoredDevice {
    inner: SharedDevice,
    health: Arc<DeviceHealth>,
}

impl MonitoredDevice {
    /// Watches the operations on a device.
    pub fn over(inner: SharedDevice, health: &Arc<DeviceHealth>) -> SharedDevice {
        Arc::new(MonitoredDevice { inner, health: Arc::clone(health) })
    }
}

impl Filter for MonitoredDevice {
    fn inner(&self) -> &SharedDevice {
        &self.inner
    }

    fn spec(&self) -> String {
        self.inner.spec()
    }

    fn around<T: Send + 'static>(
        &self,
        _: DeviceRequest,
        operation: impl FnOnce(&SharedDevice) -> IoFuture<T> + Send + 'static,
    ) -> IoFuture<T> {
        let (running, health) = (operation(&self.inner), Arc::clone(&self.health));
        Box::pin(async move { health.watch(running).await })
    }

    fn read_at(&self, offset: u64, buffers: Vec<Buffer>, context: IoContext) -> IoFuture<Vec<Buffer>> {
        let health = Arc::clone(&self.health);
        if self.health.limit().is_none() {
            // A part of the store that cannot be read now would count as damaged, so the open waits for it.
            let read = self.inner.read_at(offset, buffers, context);
            return Box::pin(async move { health.watch(read).await });
        }
        let length = buffers.iter().map(|buffer| buffer.len() as u64).sum();
        let spec = self.inner.spec();
        let late = move |detail| {
            Error::new(DeviceErrorKind::TimedOut, &spec, DeviceOperation::Read, detail).at(offset, length)
        };
        let Ok(Some(deadline)) = self.health.read_deadline() else {
            // A scan of a segment block by block does not wait for each of them.
            let error = late("the device does not answer; it was not tried");
            return Box::pin(std::future::ready(Err(error)));
        };
        let read = self.inner.read_at(offset, buffers, context);
        Box::pin(async move {
            let result = match tokio::time::timeout_at(deadline, read).await {
                Ok(result) => result,
                // The device keeps the buffers of a read whose future is dropped.
                Err(_) => Err(late("the deadline passed; the device has not answered")),
            };
            health.note_read(&result);
            result
        })
    }
}
