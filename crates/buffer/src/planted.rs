//! Deliberate defects, one at a time, by which tests show that their checks catch them.
//!
//! Without the feature `planted` this module is private and every question is answered `false` at compile time, so that
//! no user's build has them.

nectary_block::planted_bugs! {
    /// Two write-backs of a block may be under way, so that the older ends over the newer.
    WriteBackUnordered = 1 => "older write-back over newer data",
    /// A block counts as clean when its write-back begins.
    CleanTooEarly = 2 => "clean before the write-back ended",
    /// A flush does not wait for write-backs that are under way.
    FlushMissesWriteBack = 3 => "flush that misses a write-back under way",
    /// A forced write does not wait for a write-back of its blocks that is under way.
    ForcedWriteOvertaken = 4 => "forced write overtaken by a write-back",
    /// A discard drops blocks written during it.
    DiscardDropsWrite = 5 => "discard that drops a write",
    /// A block read from the source is kept although a write came between.
    ReadKeptOverWrite = 6 => "read that is kept over a write",
    /// What a failed write-back did not write counts as clean.
    FailureForgotten = 7 => "failed write-back forgotten",
}
