//! Positions: in the log of segments, in the purge log, and in the order of sequences.
//!
//! Owns: the parts and the order of positions.

/// A position in the log of segments. A checkpoint contains everything before its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct LogPosition {
    /// The segment epoch.
    pub epoch: u64,
    /// The offset in the segment, in bytes.
    pub offset: u64,
}

/// The end of the purge log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct LogEnd {
    /// The cycle of the purge log.
    pub cycle: u64,
    /// The number of durable blocks in this cycle.
    pub blocks: u32,
}

/// One clock numbers sequences and generations. An open sets it to `open_count << OPEN_COUNT_SHIFT`, which is above all
/// numbers that earlier opens drew.
pub const OPEN_COUNT_SHIFT: u32 = 40;

/// The value of the open count when a sequence was drawn.
pub fn open_count_of(sequence: u64) -> u64 {
    sequence >> OPEN_COUNT_SHIFT
}
