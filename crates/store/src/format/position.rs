//! Positions: in the log of segments, in the purge log, and in the order of sequences.
//!
//! Owns: their parts and their order.

/// A position in the log: everything before it is in the checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct LogPosition {
    /// The segment epoch.
    pub epoch: u64,
    /// Bytes from that segment's start.
    pub offset: u64,
}

/// How far the purge log goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct LogEnd {
    /// The cycle.
    pub cycle: u64,
    /// Durable blocks of it.
    pub blocks: u32,
}

/// The clock starts at an open at the open count times two to the power of this.
pub const OPEN_COUNT_SHIFT: u32 = 40;

/// The open count under which a sequence was drawn.
pub fn open_count_of(sequence: u64) -> u64 {
    sequence >> OPEN_COUNT_SHIFT
}
