//! A device whose writes to a range take long, while it is slow.
//!
//! Promises: a slow write reaches the device below after [`DELAY`] on the runtime's clock; if its future is dropped
//! before, it never does.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nectary_block::{DeviceOperation, DeviceRequest, Filter, IoFuture, SharedDevice};

/// How long a slow write takes.
pub const DELAY: Duration = Duration::from_millis(500);

/// A filter that delays writes.
#[derive(Clone)]
pub struct SlowWriteFilter {
    inner: SharedDevice,
    /// The offsets of the writes that are slow, in bytes.
    range: Range<u64>,
    is_slow: Arc<AtomicBool>,
}

impl SlowWriteFilter {
    /// Delays the writes to `range`, once it is [set](Self::set).
    pub fn over(inner: SharedDevice, range: Range<u64>) -> SlowWriteFilter {
        SlowWriteFilter { inner, range, is_slow: Arc::default() }
    }

    /// Makes writes slow, or fast again.
    pub fn set(&self, is_slow: bool) {
        self.is_slow.store(is_slow, Ordering::SeqCst);
    }
}

impl Filter for SlowWriteFilter {
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
        let is_write = request.operation == DeviceOperation::Write && self.range.contains(&request.offset);
        if !is_write || !self.is_slow.load(Ordering::SeqCst) {
            return operation(&self.inner);
        }
        let inner = self.inner.clone();
        Box::pin(async move {
            tokio::time::sleep(DELAY).await;
            operation(&inner).await
        })
    }
}
