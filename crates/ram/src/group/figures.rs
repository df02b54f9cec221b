//! The counters of a machine.
//!
//! Owns: the names and meanings of the counters.

/// Counters since the start: of the donors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GroupFigures {
    /// Times that a donor was left.
    pub left: u64,
    /// Times that a late donor answered again while it was still trusted.
    pub taken_back: u64,
    /// Donors that were left and are being filled again.
    pub rejoined: u64,
    /// Donors whose filling was completed.
    pub rebuilt: u64,
    /// Wrong answers of donors.
    pub lies: u64,
    /// Answers to requests that no operation waited for any more.
    pub late_replies: u64,
    /// Attachments that waited for the lease of a former client.
    pub lease_waits: u64,
    /// Donors that took the place of others.
    pub replaced: u64,
    /// Such donors that gave the place back, because another donor failed before all were told.
    pub reverted: u64,
    /// Records sent to donors.
    pub records: u64,
}
