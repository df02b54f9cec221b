//! Planted bugs of the mirror, switched on one at a time, so that tests can show that their checks catch them.
//!
//! Owns: the list of bugs, and which one is planted. Without the feature `planted`, `planted` returns `false` as a
//! compile-time constant, so that no user's build contains the bugs.

/// A bug that can be planted in the mirror.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum MirrorBug {
    /// A write is acknowledged without a donor before the other donors have stored that it is left.
    AcknowledgedBeforeLeft = 1,
    /// A donor that was left and returns is trusted without a rebuild.
    LeftDonorBelieved = 2,
    /// Overlapping writes are sent at the same time.
    OverlapUnordered = 3,
    /// Writes that a suspect donor missed count as done when it returns.
    ReplaySkipped = 4,
    /// A stripe is changed before its mark is stored.
    MarkAfterWrite = 5,
    /// The first donor continues to serve older connections; the tests' own donor implements this bug.
    FencingSkipped = 6,
    /// A client that attaches and could not fence a donor does not wait for the old client's lease.
    LeaseIgnored = 7,
    /// The data that a donor returns is not compared with the checksum.
    ChecksumIgnored = 8,
    /// The last dirty stripe is not resynchronised.
    ResyncSkipsOne = 9,
    /// A rebuild copies a stripe while it is being written.
    RebuildUnlocked = 10,
    /// A restarted donor is mistaken for its earlier incarnation.
    RestartUnnoticed = 11,
    /// A trim does not mark its stripe.
    TrimUnmarked = 12,
    /// The scrub overwrites the right copy with the damaged one.
    ScrubFromDamaged = 13,
    /// The scrub compares blocks while they are being written.
    ScrubUnlocked = 14,
    /// The scrub skips a stripe after each step.
    ScrubSkips = 15,
    /// A donor that takes the place of another one lacks a block; the simulator's own move implements this bug.
    DrainForgets = 16,
    /// With parity: the parity is changed before the mark of its stripe is stored.
    ParityUnmarked = 17,
    /// The mark of a stripe is removed while a change is in progress.
    MarkClearedEarly = 18,
    /// With parity: a change of what a left donor had believes that it had zeroes.
    StaleDataUsed = 19,
    /// With parity: after a crash, what a missing donor had of unfinished stripes is believed.
    UnfinishedBelieved = 20,
    /// With parity: changes of different blocks with the same parity are made at the same time.
    ColumnsUnlocked = 21,
    /// A donor takes a place although another one is down, and stays there when the others cannot be told.
    MoveNotReverted = 23,
    /// A move of a living donor goes on although another one was lost meanwhile.
    MoveHoldsSpare = 24,
    /// A part that changes while it is copied to another donor is not copied again.
    MoveForgets = 25,
    /// A switch that was cut short by the end of the client is not finished when the device is attached.
    SwitchUnfinished = 27,
    /// The range of a write does not count as changed when the write is answered.
    AnswerForgotten = 28,
    /// The range of a write does not count as changed when the connection is lost.
    LossForgotten = 29,
    /// Another donor takes the place although writes to the former one are not answered.
    SwitchBeforeAnswer = 30,
    /// A part that could not be copied is not copied again.
    FailureForgotten = 31,
    /// A part counts as copied although it was changed meanwhile.
    ChangedWhileCopied = 32,
    /// Requests that were kept in a pause are not sent after it.
    KeptForgotten = 33,
    /// A spare counts as filled, or the former donor is emptied, before all were told.
    DoneUntold = 34,
    /// What an earlier move was answered counts for the present one.
    EarlierMoveAnswered = 35,
    /// A move is done although the donor that took the place was lost before the others were told.
    TakerLossIgnored = 36,
    /// A switch that was cut short is finished with a copy of an earlier donor of the place.
    EarlierCopyUsed = 37,
    /// A switch that was cut short is finished although the former donor has gone on.
    FormerHasGoneOn = 38,
    /// A view that gives a place back has the number of the one that gave it away.
    RevertUnnumbered = 39,
    /// Without redundancy: what a restarted donor had is zeroes.
    LostAsZeroes = 40,
    /// Without redundancy: a flush succeeds although a donor has lost what was written.
    FlushForgetsLoss = 41,
    /// Without redundancy: a device is attached although a donor is missing.
    MissingBelieved = 42,
}

impl MirrorBug {
    /// The bugs that a mirror can have.
    pub const ALL: [MirrorBug; 16] = [
        MirrorBug::AcknowledgedBeforeLeft,
        MirrorBug::LeftDonorBelieved,
        MirrorBug::OverlapUnordered,
        MirrorBug::ReplaySkipped,
        MirrorBug::MarkAfterWrite,
        MirrorBug::FencingSkipped,
        MirrorBug::LeaseIgnored,
        MirrorBug::ChecksumIgnored,
        MirrorBug::ResyncSkipsOne,
        MirrorBug::RebuildUnlocked,
        MirrorBug::RestartUnnoticed,
        MirrorBug::TrimUnmarked,
        MirrorBug::ScrubFromDamaged,
        MirrorBug::ScrubUnlocked,
        MirrorBug::ScrubSkips,
        MirrorBug::DrainForgets,
    ];

    /// The bugs that a device with parity in place can have.
    pub const PARITY: [MirrorBug; 21] = [
        MirrorBug::ParityUnmarked,
        MirrorBug::MarkClearedEarly,
        MirrorBug::StaleDataUsed,
        MirrorBug::UnfinishedBelieved,
        MirrorBug::ColumnsUnlocked,
        MirrorBug::AcknowledgedBeforeLeft,
        MirrorBug::LeftDonorBelieved,
        MirrorBug::OverlapUnordered,
        MirrorBug::ReplaySkipped,
        MirrorBug::MarkAfterWrite,
        MirrorBug::FencingSkipped,
        MirrorBug::LeaseIgnored,
        MirrorBug::ChecksumIgnored,
        MirrorBug::ResyncSkipsOne,
        MirrorBug::RebuildUnlocked,
        MirrorBug::RestartUnnoticed,
        MirrorBug::TrimUnmarked,
        MirrorBug::ScrubFromDamaged,
        MirrorBug::ScrubUnlocked,
        MirrorBug::ScrubSkips,
        MirrorBug::DrainForgets,
    ];

    /// The bugs that a device without redundancy can have.
    pub const PLAIN: [MirrorBug; 11] = [
        MirrorBug::LostAsZeroes,
        MirrorBug::FlushForgetsLoss,
        MirrorBug::MissingBelieved,
        MirrorBug::LeftDonorBelieved,
        MirrorBug::OverlapUnordered,
        MirrorBug::ReplaySkipped,
        MirrorBug::FencingSkipped,
        MirrorBug::ChecksumIgnored,
        MirrorBug::RestartUnnoticed,
        MirrorBug::ScrubUnlocked,
        MirrorBug::DrainForgets,
    ];

    /// The bugs of moves, which every policy can have. Those that need two moves in a row are not among them: their tests
    /// are directed (`moves_planted`).
    pub const MOVES: [MirrorBug; 13] = [
        MirrorBug::MoveNotReverted,
        MirrorBug::MoveHoldsSpare,
        MirrorBug::MoveForgets,
        MirrorBug::SwitchUnfinished,
        MirrorBug::AnswerForgotten,
        MirrorBug::LossForgotten,
        MirrorBug::SwitchBeforeAnswer,
        MirrorBug::FailureForgotten,
        MirrorBug::ChangedWhileCopied,
        MirrorBug::KeptForgotten,
        MirrorBug::DoneUntold,
        MirrorBug::TakerLossIgnored,
        MirrorBug::RevertUnnumbered,
    ];

    /// Returns the name of the bug in reports.
    pub fn name(self) -> &'static str {
        match self {
            MirrorBug::AcknowledgedBeforeLeft => "acknowledged before the left donor is recorded",
            MirrorBug::LeftDonorBelieved => "left donor believed when it returns",
            MirrorBug::OverlapUnordered => "overlapping writes unordered",
            MirrorBug::ReplaySkipped => "replay of a missed write skipped",
            MirrorBug::MarkAfterWrite => "dirty mark after the write",
            MirrorBug::FencingSkipped => "fencing skipped on one donor",
            MirrorBug::LeaseIgnored => "lease of the old client ignored",
            MirrorBug::ChecksumIgnored => "checksum ignored",
            MirrorBug::ResyncSkipsOne => "one dirty stripe not resynchronised",
            MirrorBug::RebuildUnlocked => "rebuild beside a write",
            MirrorBug::RestartUnnoticed => "restarted donor mistaken for the old one",
            MirrorBug::TrimUnmarked => "trim without a dirty mark",
            MirrorBug::ScrubFromDamaged => "scrub repairs from the damaged copy",
            MirrorBug::ScrubUnlocked => "scrub beside a write",
            MirrorBug::ScrubSkips => "scrub skips stripes",
            MirrorBug::DrainForgets => "drain forgets a block",
            MirrorBug::ParityUnmarked => "parity changed before the dirty mark",
            MirrorBug::MarkClearedEarly => "dirty mark removed before the change ends",
            MirrorBug::StaleDataUsed => "stale data of a left donor used",
            MirrorBug::UnfinishedBelieved => "unfinished stripe of a missing donor believed",
            MirrorBug::ColumnsUnlocked => "changes with the same parity unordered",
            MirrorBug::MoveNotReverted => "move not reverted",
            MirrorBug::MoveHoldsSpare => "move holds the spare of a lost donor",
            MirrorBug::MoveForgets => "move forgets what changes meanwhile",
            MirrorBug::SwitchUnfinished => "switch left unfinished by a lost client",
            MirrorBug::AnswerForgotten => "answered write not copied again",
            MirrorBug::LossForgotten => "write on a lost connection not copied again",
            MirrorBug::SwitchBeforeAnswer => "switch before the last write is answered",
            MirrorBug::FailureForgotten => "failed copy of a part not repeated",
            MirrorBug::ChangedWhileCopied => "part changed during its copy not copied again",
            MirrorBug::KeptForgotten => "request kept in a pause not sent",
            MirrorBug::DoneUntold => "move done before all are told",
            MirrorBug::EarlierMoveAnswered => "answer to an earlier move counted",
            MirrorBug::TakerLossIgnored => "loss after the switch taken for success",
            MirrorBug::EarlierCopyUsed => "switch finished with a copy of an earlier donor",
            MirrorBug::FormerHasGoneOn => "switch finished although the former donor has gone on",
            MirrorBug::RevertUnnumbered => "view that reverts a switch not numbered",
            MirrorBug::LostAsZeroes => "blocks of a restarted donor read as zeroes",
            MirrorBug::FlushForgetsLoss => "flush after a loss succeeds",
            MirrorBug::MissingBelieved => "attached without a donor that has the only copy",
        }
    }
}

#[cfg(feature = "planted")]
static PLANTED: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(0);

/// Plants a bug in this process, or removes it.
#[cfg(feature = "planted")]
pub fn plant(bug: Option<MirrorBug>) {
    PLANTED.store(bug.map_or(0, |bug| bug as u8), std::sync::atomic::Ordering::SeqCst);
}

/// Whether `bug` is planted, for code in tests.
#[cfg(feature = "planted")]
pub fn is_planted(bug: MirrorBug) -> bool {
    planted(bug)
}

/// Whether `bug` is planted.
#[cfg(feature = "planted")]
pub(crate) fn planted(bug: MirrorBug) -> bool {
    PLANTED.load(std::sync::atomic::Ordering::Relaxed) == bug as u8
}

/// Whether `bug` is planted: never, in this build.
#[cfg(not(feature = "planted"))]
#[inline(always)]
pub(crate) fn planted(_: MirrorBug) -> bool {
    false
}
