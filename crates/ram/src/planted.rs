//! Deliberate defects, one at a time, by which tests show that their checks catch them.
//!
//! Owns: the list, and the one that is planted. Without the feature `planted` every question is answered `false` at
//! compile time, so that no user's build has them.

/// A defect that can be planted in the mirror.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Bug {
    /// A write is acknowledged without a donor before the others have stored that it is left.
    AcknowledgedBeforeLeft = 1,
    /// A donor that was left and returns is believed without a rebuild.
    LeftDonorBelieved = 2,
    /// Overlapping writes are sent at the same time.
    OverlapUnordered = 3,
    /// What a suspect donor missed counts as written when it is back.
    ReplaySkipped = 4,
    /// A stripe is changed before its mark is stored.
    MarkAfterWrite = 5,
    /// The first donor goes on to serve older connections: the donor's side of the tests has this one.
    FencingSkipped = 6,
    /// An attacher that could not fence a donor does not wait for the old client's lease.
    LeaseIgnored = 7,
    /// What a donor answers is not compared with the checksum.
    ChecksumIgnored = 8,
    /// The last dirty stripe is not resynchronised.
    ResyncSkipsOne = 9,
    /// A rebuild copies a stripe while it is written.
    RebuildUnlocked = 10,
    /// A donor that restarted is mistaken for the one it was.
    RestartUnnoticed = 11,
    /// A trim does not mark its stripe.
    TrimUnmarked = 12,
}

impl Bug {
    /// All of them.
    pub const ALL: [Bug; 12] = [
        Bug::AcknowledgedBeforeLeft,
        Bug::LeftDonorBelieved,
        Bug::OverlapUnordered,
        Bug::ReplaySkipped,
        Bug::MarkAfterWrite,
        Bug::FencingSkipped,
        Bug::LeaseIgnored,
        Bug::ChecksumIgnored,
        Bug::ResyncSkipsOne,
        Bug::RebuildUnlocked,
        Bug::RestartUnnoticed,
        Bug::TrimUnmarked,
    ];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Bug::AcknowledgedBeforeLeft => "acknowledged before the left donor is recorded",
            Bug::LeftDonorBelieved => "left donor believed when it returns",
            Bug::OverlapUnordered => "overlapping writes unordered",
            Bug::ReplaySkipped => "replay of a missed write skipped",
            Bug::MarkAfterWrite => "dirty mark after the write",
            Bug::FencingSkipped => "fencing skipped on one donor",
            Bug::LeaseIgnored => "lease of the old client ignored",
            Bug::ChecksumIgnored => "checksum ignored",
            Bug::ResyncSkipsOne => "one dirty stripe not resynchronised",
            Bug::RebuildUnlocked => "rebuild beside a write",
            Bug::RestartUnnoticed => "restarted donor mistaken for the old one",
            Bug::TrimUnmarked => "trim without a dirty mark",
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

/// Whether `bug` is planted, for code of tests.
#[cfg(feature = "planted")]
pub fn is_planted(bug: Bug) -> bool {
    planted(bug)
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
