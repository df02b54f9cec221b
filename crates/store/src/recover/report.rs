//! The report of a store's recovery.

use serde::{Deserialize, Serialize};

/// The report of the recovery when the store was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveryReport {
    /// Opens of this store so far, this one included.
    pub open_count: u64,
    /// Whether the store had been closed cleanly.
    pub clean: bool,
    /// Whether an index checkpoint was used; if not, every segment was scanned.
    pub checkpoint: bool,
    /// Appends replayed.
    pub appends: u64,
    /// Bytes of the replayed appends.
    pub append_bytes: u64,
    /// Records replayed.
    pub records: u64,
    /// Records found one by one because the header of their append is damaged.
    pub salvaged: u64,
    /// Whether purge records were missing. If so, all objects put before this open count as purged.
    pub purges_lost: bool,
    /// The duration of recovery, in microseconds.
    pub duration_us: u64,
}
