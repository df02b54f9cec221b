//! The counters of a machine.
//!
//! Owns: the names and meanings of the counters.

/// Counters since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ParityLogFigures {
    /// Requests of the user that succeeded.
    pub completed: u64,
    /// Requests of the user that failed.
    pub failed: u64,
    /// Failed requests of the user that were given up because they took too long.
    pub impatient: u64,
    /// Blocks sent to slots.
    pub sent: u64,
    /// Blocks in `sent` that cleaning moved.
    pub cleaned: u64,
    /// Parities of full groups that were stored.
    pub sealed: u64,
    /// Parities of open groups that were stored.
    pub covered: u64,
    /// Groups that became free.
    pub freed: u64,
    /// Blocks read through parity.
    pub reconstructed: u64,
    /// Blocks in `reconstructed` whose donor was late, but not lost.
    pub hedged: u64,
    /// Open groups that recovery found and sealed.
    pub recovered_open: u64,
    /// Slots that recovery computed from the parity of an open group.
    pub recovered_lost: u64,
    /// Trims that recovery found on a single donor.
    pub recovered_trims: u64,
    /// Recoveries that were repeated because a donor was left during them.
    pub recoveries_repeated: u64,
    /// Groups whose part on a donor was written again.
    pub refilled: u64,
    /// Groups that could not be reused at once because they were being read.
    pub pinned: u64,
    /// Groups that could not be reused at once because their successors were not stored.
    pub reuse_waits: u64,
    /// Answers that waited for a proof that no other client has the device.
    pub held: u64,
    /// Writes that waited for a free group.
    pub without_room: u64,
}
