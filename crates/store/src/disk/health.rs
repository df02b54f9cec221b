//! The health of the device of a span: whether a flush failed, and why nothing is written at present.
//!
//! Owns: the latch of a failed flush, and the reason for the status. Leaves to others: what is done about it
//! (`write/trouble.rs`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The health of the device of an open span.
#[derive(Default)]
pub(crate) struct Health {
    /// Whether a flush failed, and what was written since the last good flush is not rewritten yet.
    is_latched: AtomicBool,
    /// Why nothing is written at present.
    trouble: Mutex<Option<String>>,
}

impl Health {
    /// Whether a flush failed. Until everything that followed the last good flush is rewritten and flushed, no flush
    /// proves anything.
    pub fn is_latched(&self) -> bool {
        self.is_latched.load(Ordering::Acquire)
    }

    /// Notes that a flush failed.
    pub fn latch(&self) {
        self.is_latched.store(true, Ordering::Release);
    }

    /// Notes that everything that followed the last good flush was rewritten and flushed.
    pub fn unlatch(&self) {
        self.is_latched.store(false, Ordering::Release);
    }

    /// Why nothing is written at present; `None` if the device takes writes.
    pub fn trouble(&self) -> Option<String> {
        self.reason().clone()
    }

    /// Sets or clears the reason why nothing is written.
    pub fn set_trouble(&self, reason: Option<String>) {
        *self.reason() = reason;
    }

    fn reason(&self) -> MutexGuard<'_, Option<String>> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
