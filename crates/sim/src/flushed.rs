//! A device that keeps, for each flush, the contents after a loss of power at that moment.
//!
//! Promises: one image per successful flush, in order, taken before the flush returns to its caller.

use std::sync::{Arc, Mutex, PoisonError};

use nectary_block::{DeviceOperation, DeviceRequest, Filter, IoFuture, SharedDevice};

use crate::disk::SimulatedDisk;

/// The images of a [`FlushImageFilter`] device.
#[derive(Clone, Default)]
pub struct FlushImages(Arc<Mutex<Vec<Arc<SimulatedDisk>>>>);

impl FlushImages {
    /// Takes the images out, the oldest first.
    pub fn take(&self) -> Vec<Arc<SimulatedDisk>> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A filter that keeps an image after each flush.
pub struct FlushImageFilter {
    inner: SharedDevice,
    disk: Arc<SimulatedDisk>,
    images: FlushImages,
}

impl FlushImageFilter {
    /// Keeps images of `disk`, which is `inner` or is below it.
    pub fn new(inner: SharedDevice, disk: Arc<SimulatedDisk>, images: &FlushImages) -> FlushImageFilter {
        FlushImageFilter { inner, disk, images: images.clone() }
    }
}

impl Filter for FlushImageFilter {
    fn inner(&self) -> &SharedDevice {
        &self.inner
    }

    fn spec(&self) -> String {
        format!("flushed({})", self.inner.spec())
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
        let (disk, images) = (Arc::clone(&self.disk), self.images.clone());
        Box::pin(async move {
            let result = done.await;
            if result.is_ok() {
                images.0.lock().unwrap_or_else(PoisonError::into_inner).push(disk.crash());
            }
            result
        })
    }
}
