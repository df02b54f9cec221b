//! A device that can be switched off, as by pulling a cable.
//!
//! Promises: while it is off, every operation fails and none reaches the device below.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nectary_block::{Error, ErrorKind, Filter, IoFuture, Request, SharedDevice};

/// The handle that switches a [`Switch`] off and on.
#[derive(Debug, Clone, Default)]
pub struct Off(Arc<AtomicBool>);

impl Off {
    /// Switches the device off, or on again.
    pub fn set(&self, is_off: bool) {
        self.0.store(is_off, Ordering::SeqCst);
    }
}

/// A filter that fails all operations while it is off.
pub struct Switch {
    inner: SharedDevice,
    off: Off,
}

impl Switch {
    /// Puts a switch in front of a device.
    pub fn new(inner: SharedDevice, off: &Off) -> Switch {
        Switch { inner, off: off.clone() }
    }
}

impl Filter for Switch {
    fn inner(&self) -> &SharedDevice {
        &self.inner
    }

    fn spec(&self) -> String {
        format!("switch({})", self.inner.spec())
    }

    fn around<T: Send + 'static>(
        &self,
        request: Request,
        operation: impl FnOnce(&SharedDevice) -> IoFuture<T> + Send + 'static,
    ) -> IoFuture<T> {
        if self.off.0.load(Ordering::SeqCst) {
            let error = Error::new(ErrorKind::Io, &self.spec(), request.operation, "it is switched off");
            return Box::pin(std::future::ready(Err(error)));
        }
        operation(&self.inner)
    }
}
