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
    /// Donors left.
    pub left: u64,
    /// Donors that were late and came back before they were left.
    pub taken_back: u64,
    /// Writes that such donors had missed and got again.
    pub replayed: u64,
    /// Donors that were left and are filled again.
    pub rejoined: u64,
    /// Donors that were filled.
    pub rebuilt: u64,
    /// Stripes made equal after attaching.
    pub resynchronised: u64,
    /// Wrong answers of donors.
    pub lies: u64,
    /// Wrong copies that were overwritten with the right bytes.
    pub repaired: u64,
    /// Reads that were also sent to the other copy.
    pub hedged: u64,
    /// Answers to requests that nobody waited for any more.
    pub late_replies: u64,
    /// Reads that waited for a proof that no other client has the device.
    pub held_reads: u64,
    /// Attachments that waited for the lease of a former client.
    pub lease_waits: u64,
    /// Operations that waited for an overlapping one.
    pub overlapping: u64,
    /// Donors that took the place of others.
    pub replaced: u64,
    /// Records sent to donors.
    pub records: u64,
}
