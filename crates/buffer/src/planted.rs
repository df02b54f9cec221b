//! Deliberate defects, one at a time, by which tests show that their checks catch them.
//!
//! Without the feature `planted` every question is answered `false` at compile time, so that no user's build has them.

/// A defect that can be planted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Bug {
    /// Two write-backs of a block may be under way, so that the older ends over the newer.
    WriteBackUnordered = 1,
    /// A block counts as clean when its write-back begins.
    CleanTooEarly = 2,
    /// A flush does not wait for write-backs that are under way.
    FlushMissesWriteBack = 3,
    /// A forced write does not wait for a write-back of its blocks that is under way.
    ForcedWriteOvertaken = 4,
    /// A discard drops blocks written during it.
    DiscardDropsWrite = 5,
    /// A block read from the source is kept although a write came between.
    ReadKeptOverWrite = 6,
    /// What a failed write-back did not write counts as clean.
    FailureForgotten = 7,
}

impl Bug {
    /// All of them.
    pub const ALL: [Bug; 7] = [
        Bug::WriteBackUnordered,
        Bug::CleanTooEarly,
        Bug::FlushMissesWriteBack,
        Bug::ForcedWriteOvertaken,
        Bug::DiscardDropsWrite,
        Bug::ReadKeptOverWrite,
        Bug::FailureForgotten,
    ];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Bug::WriteBackUnordered => "older write-back over newer data",
            Bug::CleanTooEarly => "clean before the write-back ended",
            Bug::FlushMissesWriteBack => "flush that misses a write-back under way",
            Bug::ForcedWriteOvertaken => "forced write overtaken by a write-back",
            Bug::DiscardDropsWrite => "discard that drops a write",
            Bug::ReadKeptOverWrite => "read that is kept over a write",
            Bug::FailureForgotten => "failed write-back forgotten",
        }
    }
}

#[cfg(feature = "planted")]
static PLANTED: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(0);

/// Plants one bug in this process, or none.
#[cfg(feature = "planted")]
pub fn plant(bug: Option<Bug>) {
    PLANTED.store(bug.map_or(0, |bug| bug as u8), std::sync::atomic::Ordering::SeqCst);
}

/// Whether `bug` is planted.
#[cfg(feature = "planted")]
pub(crate) fn planted(bug: Bug) -> bool {
    PLANTED.load(std::sync::atomic::Ordering::Relaxed) == bug as u8
}

/// Whether `bug` is planted: never, in this build.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub(crate) fn planted(_: Bug) -> bool {
    false
}
