//! Bugs that are planted in the model one at a time; a run has to find each of them.

use std::cell::Cell;

/// A bug that can be planted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VolumeModelBug {
    /// A client answers a recall before its reads and writes in flight have ended.
    RecallBeforeIo,
    /// A client returns the result of a read after its lease has ended.
    ReadAfterLease,
    /// The server accepts operations of a session that was ended.
    DeadCommit,
    /// The server merges the size of a commit although the file was truncated since then.
    SizeWithoutGeneration,
    /// A client keeps cached names when it gives the directory's token back.
    NameKept,
    /// The server grants freed blocks again at once, although clients may still have them in their maps.
    ExtentUsedAgain,
    /// The server resumes a session that it had ended because another session waited.
    ResumedAfterConflict,
    /// A page that is read during an invalidation is not invalidated again.
    PageOfPassKept,
    /// A client gives a token back without invalidating the kernel's pages.
    PagesKept,
    /// A client acknowledges a write after its lease has ended.
    WriteAfterLease,
    /// The blocks of an ended session are granted again before its writes in flight have ended.
    NoQuarantine,
    /// The kernel's pages stay mapped after the lease has ended.
    PagesPastLease,
    /// Dirty pages are forgotten without a write-back.
    DirtyPagesDropped,
    /// The server does an operation again when the client sends it again.
    DoneTwice,
    /// A client uses the grant of a former server after it has told the next one what it holds.
    OldEpoch,
    /// A stat shows an older size than the client already knows.
    OldStat,
    /// The server serves requests of a connection that another one has replaced.
    StaleConnection,
    /// The server grants the tokens of an ended session before the end of the session is durable.
    GrantBeforeEnd,
    /// A stat shows an uncommitted size after the lease has ended.
    StatAfterLease,
    /// A new server grants tokens before the clients have told it which tokens they hold.
    NoGrace,
    /// Messages of a leader leave without its lease, clients are content with any server, and a leader whose disk is silent
    /// goes on: the rules of before.
    NoGate,
    /// A leader answers renewals without its lease.
    RenewedWithoutLeadership,
    /// A leader answers questions that need no append without its lease.
    AnswerAfterLease,
    /// A leader acknowledges an append after its lease has ended.
    AppendAfterLease,
    /// A leader answers requests for file locks without its lease, and clients believe it without theirs.
    LockWithoutLease,
    /// A client accepts a server of a lower epoch than one before.
    LowerEpoch,
    /// A new leader ends sessions that it has never heard before their leases have ended.
    ShortGrace,
    /// A client counts its lease from the answer to a renewal, not from its own message.
    CountedFromAnswer,
    /// An append of an old leader counts although it reaches the disk after the seal.
    SealIgnored,
    /// A client sends a request for a lock that does not wait before it has told a new server what it holds; the server
    /// takes it as a claim.
    TryLockInGrace,
    /// A leader whose clock stood still acknowledges an append because its clock says that it leads.
    AppendByClock,
}

impl VolumeModelBug {
    /// All bugs.
    pub const EVERY: &'static [VolumeModelBug] = &[
        VolumeModelBug::RecallBeforeIo,
        VolumeModelBug::ReadAfterLease,
        VolumeModelBug::DeadCommit,
        VolumeModelBug::SizeWithoutGeneration,
        VolumeModelBug::NameKept,
        VolumeModelBug::ExtentUsedAgain,
        VolumeModelBug::ResumedAfterConflict,
        VolumeModelBug::PageOfPassKept,
        VolumeModelBug::PagesKept,
        VolumeModelBug::WriteAfterLease,
        VolumeModelBug::NoQuarantine,
        VolumeModelBug::PagesPastLease,
        VolumeModelBug::DirtyPagesDropped,
        VolumeModelBug::DoneTwice,
        VolumeModelBug::OldEpoch,
        VolumeModelBug::OldStat,
        VolumeModelBug::StaleConnection,
        VolumeModelBug::GrantBeforeEnd,
        VolumeModelBug::StatAfterLease,
        VolumeModelBug::NoGrace,
        VolumeModelBug::NoGate,
        VolumeModelBug::RenewedWithoutLeadership,
        VolumeModelBug::AnswerAfterLease,
        VolumeModelBug::AppendAfterLease,
        VolumeModelBug::LockWithoutLease,
        VolumeModelBug::LowerEpoch,
        VolumeModelBug::ShortGrace,
        VolumeModelBug::CountedFromAnswer,
        VolumeModelBug::SealIgnored,
        VolumeModelBug::TryLockInGrace,
        VolumeModelBug::AppendByClock,
    ];

    /// The bug's name in reports.
    pub fn name(self) -> &'static str {
        match self {
            VolumeModelBug::RecallBeforeIo => "recall answered before I/O in work ended",
            VolumeModelBug::ReadAfterLease => "read returned after the lease",
            VolumeModelBug::DeadCommit => "commit by a dead session",
            VolumeModelBug::SizeWithoutGeneration => "size merged without its truncate generation",
            VolumeModelBug::NameKept => "name cached past its token",
            VolumeModelBug::ExtentUsedAgain => "extent used again under a cached map",
            VolumeModelBug::ResumedAfterConflict => "suspended session resumed after a conflict",
            VolumeModelBug::PageOfPassKept => "page read during a pass not invalidated again",
            VolumeModelBug::PagesKept => "pages not invalidated",
            VolumeModelBug::WriteAfterLease => "write acknowledged after the lease",
            VolumeModelBug::NoQuarantine => "blocks of a lost session used again at once",
            VolumeModelBug::PagesPastLease => "pages mapped past the lease",
            VolumeModelBug::DirtyPagesDropped => "dirty pages dropped",
            VolumeModelBug::DoneTwice => "operation done twice",
            VolumeModelBug::OldEpoch => "grant of an older epoch",
            VolumeModelBug::OldStat => "stat older than what was committed here",
            VolumeModelBug::StaleConnection => "request of a replaced connection served",
            VolumeModelBug::GrantBeforeEnd => "grant before the end of a session is durable",
            VolumeModelBug::StatAfterLease => "stat of what is not committed after the lease",
            VolumeModelBug::NoGrace => "token granted in grace",
            VolumeModelBug::NoGate => "leader without its lease",
            VolumeModelBug::RenewedWithoutLeadership => "renewed without leadership",
            VolumeModelBug::AnswerAfterLease => "answer without an append after the lease",
            VolumeModelBug::AppendAfterLease => "append acknowledged after the lease",
            VolumeModelBug::LockWithoutLease => "lock without the lease",
            VolumeModelBug::LowerEpoch => "lower epoch accepted",
            VolumeModelBug::ShortGrace => "grace shorter than a session's lease",
            VolumeModelBug::CountedFromAnswer => "cache counted from the answer",
            VolumeModelBug::SealIgnored => "seal ignored",
            VolumeModelBug::AppendByClock => "append acknowledged by a clock that stood still",
            VolumeModelBug::TryLockInGrace => "lock requested in grace is taken as a claim",
        }
    }
}

thread_local! {
    static PLANTED: Cell<Option<VolumeModelBug>> = const { Cell::new(None) };
}

/// Plants one bug, or none, for the runs of this thread.
pub fn plant(bug: Option<VolumeModelBug>) {
    PLANTED.set(bug);
}

/// Whether a bug is planted.
pub fn planted(bug: VolumeModelBug) -> bool {
    PLANTED.get() == Some(bug)
}
