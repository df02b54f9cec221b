//! A device that counts the flushes in flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nectary_block::{DeviceOperation, DeviceRequest, Filter, IoFuture, SharedDevice};

/// The number of flushes of a device that were called and have not ended.
#[derive(Clone, Default)]
pub struct FlushesInFlight(Arc<AtomicU64>);

impl FlushesInFlight {
    /// Whether the device is being flushed.
    pub fn any(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

/// One flush in flight, until it is dropped.
struct InFlight(FlushesInFlight);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A filter that counts flushes.
pub struct FlushCountFilter {
    inner: SharedDevice,
    flushes: FlushesInFlight,
}

impl FlushCountFilter {
    /// Counts the flushes of a device in `flushes`.
    pub fn new(inner: SharedDevice, flushes: &FlushesInFlight) -> FlushCountFilter {
        FlushCountFilter { inner, flushes: flushes.clone() }
    }
}

impl Filter for FlushCountFilter {
    fn inner(&self) -> &SharedDevice {
        &self.inner
    }

    fn spec(&self) -> String {
        self.inner.spec()
    }

    fn around<T: Send + 'static>(
        &self,
        request: DeviceRequest,
        operation: impl FnOnce(&SharedDevice) -> IoFuture<T> + Send + 'static,
    ) -> IoFuture<T> {
        let done = operation(&self.inner);
        if request.operation != DeviceOperation::Flush {
            return done;
        }
        self.flushes.0.fetch_add(1, Ordering::Relaxed);
        let in_flight = InFlight(self.flushes.clone());
        Box::pin(async move {
            let _in_flight = in_flight;
            done.await
        })
    }
}
