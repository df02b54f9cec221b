//! Deliberate defects of the placement, one at a time, by which tests show that their checks catch them.
//!
//! Without the feature `planted` every question is answered `false` at compile time, so that no user's build has them.

/// A defect that can be planted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Bug {
    /// A dead slot is left out of its group's parity.
    DeadSlotLeftOut = 1,
    /// An old copy dies when its successor is only in the client's memory.
    SuccessorInMemory = 2,
    /// Two members of a group are on one donor.
    MembersOnOneDonor = 3,
    /// A group is free while one of its members is live.
    FreeWithLiveMember = 4,
    /// Cleaning replaces newer data in memory by an old copy.
    CleaningDropsNewest = 5,
    /// Old copies die when their successors are sent, before the parity is stored.
    DeadBeforeParity = 6,
    /// A trim leaves no record, so that older copies come back.
    TrimNotRecorded = 7,
    /// A flush leaves out the blocks that stale streams left behind.
    FlushMissesVictims = 8,
}

impl Bug {
    /// All of them.
    pub const ALL: [Bug; 8] = [
        Bug::DeadSlotLeftOut,
        Bug::SuccessorInMemory,
        Bug::MembersOnOneDonor,
        Bug::FreeWithLiveMember,
        Bug::CleaningDropsNewest,
        Bug::DeadBeforeParity,
        Bug::TrimNotRecorded,
        Bug::FlushMissesVictims,
    ];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Bug::DeadSlotLeftOut => "dead slot left out of the XOR",
            Bug::SuccessorInMemory => "group freed while its successor is only in the client's memory",
            Bug::MembersOnOneDonor => "members on one donor",
            Bug::FreeWithLiveMember => "slot reused while a member is live",
            Bug::CleaningDropsNewest => "cleaning drops the newest copy",
            Bug::DeadBeforeParity => "old copy dead before the parity of the new one is stored",
            Bug::TrimNotRecorded => "trim without a record",
            Bug::FlushMissesVictims => "flush that misses the victim cache",
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
