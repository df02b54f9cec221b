//! A device that keeps, for each flush, the contents after a loss of power at that moment.
//!
//! Promises: one image per successful flush, in order, taken before the flush returns to its caller.

use std::sync::{Arc, Mutex, PoisonError};

use nectary_block::{Filter, IoFuture, Operation, Request, SharedDevice};

use crate::disk::Disk;

/// The images of a [`Flushed`] device.
#[derive(Clone, Default)]
pub struct Images(Arc<Mutex<Vec<Arc<Disk>>>>);

impl Images {
    /// Takes the images out, the oldest first.
    pub fn take(&self) -> Vec<Arc<Disk>> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A filter that keeps an image after each flush.
pub struct Flushed {
    inner: SharedDevice,
    disk: Arc<Disk>,
    images: Images,
}

impl Flushed {
    /// Keeps images of `disk`, which is `inner` or is below it.
    pub fn new(inner: SharedDevice, disk: Arc<Disk>, images: &Images) -> Flushed {
        Flushed { inner, disk, images: images.clone() }
    }
}

impl Filter for Flushed {
    fn inner(&self) -> &SharedDevice {
        &self.inner
    }

    fn spec(&self) -> String {
        format!("flushed({})", self.inner.spec())
    }

    fn around<T: Send + 'static>(
        &self,
        request: Request,
        operation: impl FnOnce(&SharedDevice) -> IoFuture<T> + Send + 'static,
    ) -> IoFuture<T> {
        let done = operation(&self.inner);
        if request.operation != Operation::Flush {
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
