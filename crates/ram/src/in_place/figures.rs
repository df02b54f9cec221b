//! The counters of a machine.
//!
//! Owns: the names and meanings of the counters.

/// Counters since the start: of requests and copies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InPlaceFigures {
    /// Requests of the user that succeeded.
    pub completed: u64,
    /// Requests of the user that failed.
    pub failed: u64,
    /// Failed requests of the user that were given up because they took too long.
    pub impatient: u64,
    /// Writes that such donors had missed and that were sent again.
    pub replayed: u64,
    /// Stripes whose copies were made equal after attaching.
    pub resynchronised: u64,
    /// Wrong copies that were overwritten with the right bytes.
    pub repaired: u64,
    /// Reads that were also sent to the other copy.
    pub hedged: u64,
    /// Reads that were answered from the other members of a stripe and its parity.
    pub reconstructed: u64,
    /// Blocks that were lost because their donor was missing after a crash of the client that was changing their
    /// stripe, or because no donor had their right bytes when another one was filled.
    pub lost_blocks: u64,
    /// Reads that waited for a proof that no other client has the device.
    pub held_reads: u64,
    /// Operations that waited for an overlapping operation.
    pub overlapping: u64,
}
