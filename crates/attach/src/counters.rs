//! The counters of requests between the kernel and a device.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

/// The counters of one attached device since it was attached.
#[derive(Debug, Default)]
pub struct AttachmentCounters {
    /// The number of answered reads.
    pub reads: AtomicU64,
    /// The number of answered writes.
    pub writes: AtomicU64,
    /// The number of answered flushes.
    pub flushes: AtomicU64,
    /// The number of answered discards and zeroings.
    pub zeroes: AtomicU64,
    /// The number of bytes read.
    pub bytes_read: AtomicU64,
    /// The number of bytes written.
    pub bytes_written: AtomicU64,
    /// The number of requests that failed on the device.
    pub failed: AtomicU64,
    /// The number of requests that were answered early, because the waiting process was interrupted.
    pub interrupted: AtomicU64,
}

/// The values of [`AttachmentCounters`] at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[allow(missing_docs)] // The names are those of the counters.
pub struct AttachmentFigures {
    pub reads: u64,
    pub writes: u64,
    pub flushes: u64,
    pub zeroes: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
    pub failed: u64,
    pub interrupted: u64,
}

impl AttachmentCounters {
    /// Returns the values of the counters.
    pub fn read(&self) -> AttachmentFigures {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        AttachmentFigures {
            reads: get(&self.reads),
            writes: get(&self.writes),
            flushes: get(&self.flushes),
            zeroes: get(&self.zeroes),
            bytes_read: get(&self.bytes_read),
            bytes_written: get(&self.bytes_written),
            failed: get(&self.failed),
            interrupted: get(&self.interrupted),
        }
    }
}

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}
