//! Defects of the model, planted one at a time, which a run has to find.

use std::cell::Cell;

/// A defect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// A recall is answered before reads and writes in work have ended.
    RecallBeforeIo,
    /// What was read is answered after the lease.
    ReadAfterLease,
    /// A session that is over commits.
    DeadCommit,
    /// A size is merged whatever was truncated meanwhile.
    SizeWithoutGeneration,
    /// Names are kept when the token goes.
    NameKept,
    /// Freed blocks are used again at once.
    ExtentUsedAgain,
    /// A session that was ended for another one is resumed.
    ResumedAfterConflict,
    /// A page that is read during an invalidation stays.
    PageOfPassKept,
    /// Pages are not invalidated.
    PagesKept,
    /// A write is acknowledged after the lease.
    WriteAfterLease,
    /// Blocks of a lost session are used again before its writes have ended.
    NoQuarantine,
    /// Pages stay mapped when the lease ends.
    PagesPastLease,
    /// Dirty pages are not written back before the token goes.
    DirtyPagesDropped,
    /// An operation that comes again is done again.
    DoneTwice,
    /// A grant of a server that is gone counts.
    OldEpoch,
    /// A stat shows what was committed before what was seen already.
    OldStat,
    /// Requests of a connection that another one replaced are served.
    StaleConnection,
    /// What an ended session held is granted before its end is durable.
    GrantBeforeEnd,
    /// A stat shows what was not committed after the lease.
    StatAfterLease,
    /// A new server grants before it heard what is held.
    NoGrace,
}

impl Bug {
    /// All of them.
    pub const EVERY: &'static [Bug] = &[
        Bug::RecallBeforeIo,
        Bug::ReadAfterLease,
        Bug::DeadCommit,
        Bug::SizeWithoutGeneration,
        Bug::NameKept,
        Bug::ExtentUsedAgain,
        Bug::ResumedAfterConflict,
        Bug::PageOfPassKept,
        Bug::PagesKept,
        Bug::WriteAfterLease,
        Bug::NoQuarantine,
        Bug::PagesPastLease,
        Bug::DirtyPagesDropped,
        Bug::DoneTwice,
        Bug::OldEpoch,
        Bug::OldStat,
        Bug::StaleConnection,
        Bug::GrantBeforeEnd,
        Bug::StatAfterLease,
        Bug::NoGrace,
    ];

    /// The printed name.
    pub fn name(self) -> &'static str {
        match self {
            Bug::RecallBeforeIo => "recall answered before I/O in work ended",
            Bug::ReadAfterLease => "read returned after the lease",
            Bug::DeadCommit => "commit by a dead session",
            Bug::SizeWithoutGeneration => "size merged without its truncate generation",
            Bug::NameKept => "name cached past its token",
            Bug::ExtentUsedAgain => "extent used again under a cached map",
            Bug::ResumedAfterConflict => "suspended session resumed after a conflict",
            Bug::PageOfPassKept => "page read during a pass not invalidated again",
            Bug::PagesKept => "pages not invalidated",
            Bug::WriteAfterLease => "write acknowledged after the lease",
            Bug::NoQuarantine => "blocks of a lost session used again at once",
            Bug::PagesPastLease => "pages mapped past the lease",
            Bug::DirtyPagesDropped => "dirty pages dropped",
            Bug::DoneTwice => "operation done twice",
            Bug::OldEpoch => "grant of an older epoch",
            Bug::OldStat => "stat older than what was committed here",
            Bug::StaleConnection => "request of a replaced connection served",
            Bug::GrantBeforeEnd => "grant before the end of a session is durable",
            Bug::StatAfterLease => "stat of what is not committed after the lease",
            Bug::NoGrace => "token granted in grace",
        }
    }
}

thread_local! {
    static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
}

/// Plants one defect in runs of this thread, or none.
pub fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}

/// Whether it is planted.
pub fn planted(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}
