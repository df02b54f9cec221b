//! Deliberate defects, with which tests show that their checks catch errors.
//!
//! Without the feature `planted` this module is private and `planted` is `false` at compile time, so that no user's
//! build has the defects.

nectary_block::planted_bugs! {
    /// Two write-backs of a block may be in flight, so that the older one can overwrite the newer one.
    WriteBackUnordered = 1 => "older write-back over newer data",
    /// A block counts as clean when its write-back begins.
    CleanTooEarly = 2 => "clean before the write-back ended",
    /// A flush does not wait for write-backs in flight.
    FlushMissesWriteBack = 3 => "flush that misses a write-back under way",
    /// A forced write does not wait for a write-back of its blocks that is in flight.
    ForcedWriteOvertaken = 4 => "forced write overtaken by a write-back",
    /// A discard drops blocks that are written while it runs.
    DiscardDropsWrite = 5 => "discard that drops a write",
    /// A block read from the source is kept although the block was written in the meantime.
    ReadKeptOverWrite = 6 => "read that is kept over a write",
    /// Blocks that a failed write-back did not write count as clean.
    FailureForgotten = 7 => "failed write-back forgotten",
}
