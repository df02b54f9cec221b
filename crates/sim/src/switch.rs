//! A device that can be switched off, as by pulling a cable, for good or for a number of operations.
//!
//! Promises: while it is off, every operation fails and none reaches the device below.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nectary_block::{DeviceErrorKind, DeviceRequest, Error, Filter, IoFuture, SharedDevice};

/// The number of operations to fail of a device that is switched off for good.
const FOR_GOOD: u64 = u64::MAX;

/// The handle that switches a [`SwitchFilter`] off and on: the number of operations that will fail.
#[derive(Debug, Clone, Default)]
pub struct SwitchHandle(Arc<AtomicU64>);

impl SwitchHandle {
    /// Switches the device off, or on again.
    pub fn set(&self, is_off: bool) {
        self.0.store(if is_off { FOR_GOOD } else { 0 }, Ordering::SeqCst);
    }

    /// Switches the device off for the next `operations` operations.
    pub fn fail(&self, operations: u64) {
        self.0.store(operations, Ordering::SeqCst);
    }

    /// Whether the next operation fails; counts it.
    fn fails_one(&self) -> bool {
        let count = |left: u64| match left {
            FOR_GOOD => Some(FOR_GOOD),
            left => left.checked_sub(1),
        };
        self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, count).is_ok()
    }
}

/// A filter that fails all operations while it is off.
pub struct SwitchFilter {
    inner: SharedDevice,
    off: SwitchHandle,
}

impl SwitchFilter {
    /// Puts a switch in front of a device.
    pub fn new(inner: SharedDevice, off: &SwitchHandle) -> SwitchFilter {
        SwitchFilter { inner, off: off.clone() }
    }
}

impl Filter for SwitchFilter {
    fn inner(&self) -> &SharedDevice {
        &self.inner
    }

    fn spec(&self) -> String {
        format!("switch({})", self.inner.spec())
    }

    fn around<T: Send + 'static>(
        &self,
        request: DeviceRequest,
        operation: impl FnOnce(&SharedDevice) -> IoFuture<T> + Send + 'static,
    ) -> IoFuture<T> {
        if self.off.fails_one() {
            let error = Error::new(DeviceErrorKind::Io, &self.spec(), request.operation, "it is switched off");
            return Box::pin(std::future::ready(Err(error)));
        }
        operation(&self.inner)
    }
}

#[cfg(test)]
mod tests {
    use nectary_block::{MemoryDevice, read};

    use super::*;

    #[tokio::test]
    async fn switched_off_device_fails_operations() {
        let off = SwitchHandle::default();
        let device = SwitchFilter::new(Arc::new(MemoryDevice::new(1 << 20)), &off);
        let passes = async || read(&device, 0, 4096).await.is_ok();
        assert!(passes().await);
        off.fail(2);
        assert_eq!([passes().await, passes().await, passes().await], [false, false, true]);
        off.set(true);
        assert_eq!([passes().await, passes().await], [false, false]);
        off.set(false);
        assert!(passes().await);
    }
}
