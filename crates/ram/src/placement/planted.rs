//! Planted bugs of the placement, switched on one at a time, so that tests can show that their checks catch them.
//!
//! Without the feature `planted`, `planted` returns `false` as a compile-time constant, so that no user's build
//! contains the bugs.

/// A bug that can be planted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum PlacementBug {
    /// A dead slot is left out of its group's parity.
    DeadSlotLeftOut = 1,
    /// An old copy becomes dead when its successor is only in the client's memory.
    SuccessorInMemory = 2,
    /// Two members of a group are on one donor.
    MembersOnOneDonor = 3,
    /// A group becomes free while one of its members is live.
    FreeWithLiveMember = 4,
    /// Cleaning replaces newer data in memory by an old copy.
    CleaningDropsNewest = 5,
    /// Old copies become dead when their successors are sent, before the parity is stored.
    DeadBeforeParity = 6,
    /// A trim stores no record, so that older copies become valid again.
    TrimNotRecorded = 7,
    /// A flush omits the blocks in the victim cache, which stale streams left behind.
    FlushMissesVictims = 8,
}

impl PlacementBug {
    /// All bugs.
    pub const ALL: [PlacementBug; 8] = [
        PlacementBug::DeadSlotLeftOut,
        PlacementBug::SuccessorInMemory,
        PlacementBug::MembersOnOneDonor,
        PlacementBug::FreeWithLiveMember,
        PlacementBug::CleaningDropsNewest,
        PlacementBug::DeadBeforeParity,
        PlacementBug::TrimNotRecorded,
        PlacementBug::FlushMissesVictims,
    ];

    /// Returns the name of the bug in reports.
    pub fn name(self) -> &'static str {
        match self {
            PlacementBug::DeadSlotLeftOut => "dead slot left out of the XOR",
            PlacementBug::SuccessorInMemory => "group freed while its successor is only in the client's memory",
            PlacementBug::MembersOnOneDonor => "members on one donor",
            PlacementBug::FreeWithLiveMember => "slot reused while a member is live",
            PlacementBug::CleaningDropsNewest => "cleaning drops the newest copy",
            PlacementBug::DeadBeforeParity => "old copy dead before the parity of the new one is stored",
            PlacementBug::TrimNotRecorded => "trim without a record",
            PlacementBug::FlushMissesVictims => "flush that misses the victim cache",
        }
    }
}

#[cfg(feature = "planted")]
static PLANTED: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(0);

/// Plants a bug in this process, or removes it.
#[cfg(feature = "planted")]
pub fn plant(bug: Option<PlacementBug>) {
    PLANTED.store(bug.map_or(0, |bug| bug as u8), std::sync::atomic::Ordering::SeqCst);
}

/// Whether `bug` is planted.
#[cfg(feature = "planted")]
pub(crate) fn planted(bug: PlacementBug) -> bool {
    PLANTED.load(std::sync::atomic::Ordering::Relaxed) == bug as u8
}

/// Whether `bug` is planted: never, in this build.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub(crate) fn planted(_: PlacementBug) -> bool {
    false
}
