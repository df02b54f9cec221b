//! What a machine has counted.
//!
//! Owns: the names and meanings of the counts.

/// Counts since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Figures {
    /// User's requests that succeeded.
    pub completed: u64,
    /// User's requests that failed.
    pub failed: u64,
    /// Of these, for lack of patience.
    pub impatient: u64,
    /// Blocks sent to slots.
    pub sent: u64,
    /// Of these, moved by cleaning.
    pub cleaned: u64,
    /// Parities of full groups.
    pub sealed: u64,
    /// Parities of open groups.
    pub covered: u64,
    /// Groups that were freed.
    pub freed: u64,
    /// Blocks read through parity.
    pub reconstructed: u64,
    /// Of these, while the donor was only late.
    pub hedged: u64,
    /// Groups that recovery found open and sealed.
    pub recovered_open: u64,
    /// Slots that recovery computed from the parity of an open group.
    pub recovered_lost: u64,
    /// Trims that recovery found on one donor alone.
    pub recovered_trims: u64,
    /// Recoveries that began again, since a donor was left meanwhile.
    pub recoveries_repeated: u64,
    /// Groups of which a donor's part was written again.
    pub refilled: u64,
    /// Groups that waited to be used again, since they were read.
    pub pinned: u64,
    /// Groups that waited to be used again, since their successors were not stored.
    pub reuse_waits: u64,
    /// Answers that waited for a proof that no other client has the device.
    pub held: u64,
    /// Writes that waited for a free group.
    pub without_room: u64,
}
