//! The traffic between the kernel and the device.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

/// Counters of one attached device, since it was attached.
#[derive(Debug, Default)]
pub struct Counters {
    /// Reads answered.
    pub reads: AtomicU64,
    /// Writes answered.
    pub writes: AtomicU64,
    /// Flushes answered.
    pub flushes: AtomicU64,
    /// Discards and zeroings answered.
    pub zeroes: AtomicU64,
    /// Bytes read.
    pub bytes_read: AtomicU64,
    /// Bytes written.
    pub bytes_written: AtomicU64,
    /// Requests that the device failed.
    pub failed: AtomicU64,
    /// Requests that were answered early because the process that waited was interrupted.
    pub interrupted: AtomicU64,
}

/// A reading of [`Counters`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[allow(missing_docs)] // The names are those of the counters.
pub struct Figures {
    pub reads: u64,
    pub writes: u64,
    pub flushes: u64,
    pub zeroes: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
    pub failed: u64,
    pub interrupted: u64,
}

impl Counters {
    /// The counters so far.
    pub fn read(&self) -> Figures {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Figures {
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
