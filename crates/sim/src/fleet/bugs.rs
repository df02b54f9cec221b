//! Bugs that are planted, one at a time, in the driver of the machine and in the models of the store and of etcd.
//!
//! Owns: the list of bugs, and which one is planted in this thread.

use std::cell::Cell;

/// A bug that can be planted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FleetBug {
    /// A watch leaves out a purge.
    WatchSkips,
    /// A watch whose history was compacted goes on behind the gap.
    CompactionIgnored,
    /// The mark of a batch is durable before its purges.
    MarkBeforePurges,
    /// A batch is reported before its purges are made.
    ReportedBeforeApplied,
    /// What is filled is stored although a purge came after the fill began.
    FillOverPurge,
    /// A lease is counted from its answer.
    LeaseFromAnswer,
    /// A lease is kept by the word of one member of etcd, without a majority.
    KeptAlone,
    /// The clock of a lease stands still while the host is suspended.
    ClockStandsStill,
    /// A node that has joined serves before it caught up.
    ServesBehind,
    /// Purges are read in the order of their keys.
    ReadByKeys,
    /// A further page of the log begins after the next purge.
    PageSkips,
    /// The floor of the log is not looked at.
    FloorIgnored,
    /// All fleets have one identity, so another or older etcd is not noticed.
    OneIdentity,
    /// A purge does not wait for one of the living nodes.
    LivingLeftOut,
    /// A node that is not the owner keeps a copy although the owner had not applied what it has begun to apply.
    CopySurvives,
    /// An owner answers although it has not applied what the asking node has.
    OwnerBehind,
    /// The answer of a slow owner counts as if it had been requested when the origin was asked as well.
    SecondOvertakes,
}

impl FleetBug {
    /// All bugs.
    pub const EVERY: &'static [FleetBug] = &[
        FleetBug::WatchSkips,
        FleetBug::CompactionIgnored,
        FleetBug::MarkBeforePurges,
        FleetBug::ReportedBeforeApplied,
        FleetBug::FillOverPurge,
        FleetBug::LeaseFromAnswer,
        FleetBug::KeptAlone,
        FleetBug::ClockStandsStill,
        FleetBug::ServesBehind,
        FleetBug::ReadByKeys,
        FleetBug::PageSkips,
        FleetBug::FloorIgnored,
        FleetBug::OneIdentity,
        FleetBug::LivingLeftOut,
        FleetBug::CopySurvives,
        FleetBug::OwnerBehind,
        FleetBug::SecondOvertakes,
    ];

    /// The bug's name in reports.
    pub fn name(self) -> &'static str {
        match self {
            FleetBug::WatchSkips => "watch skips a revision",
            FleetBug::CompactionIgnored => "compaction ignored",
            FleetBug::MarkBeforePurges => "revision durable before its purge",
            FleetBug::ReportedBeforeApplied => "batch reported before it is applied",
            FleetBug::FillOverPurge => "fill stored that began before a purge",
            FleetBug::LeaseFromAnswer => "lease counted from the answer",
            FleetBug::KeptAlone => "lease kept by one member of etcd alone",
            FleetBug::ClockStandsStill => "clock stands still while suspended",
            FleetBug::ServesBehind => "returning node serves before it caught up",
            FleetBug::ReadByKeys => "log read in the order of keys",
            FleetBug::PageSkips => "page of the log skips a purge",
            FleetBug::FloorIgnored => "floor of the log ignored",
            FleetBug::OneIdentity => "older etcd not noticed",
            FleetBug::LivingLeftOut => "living node not waited for",
            FleetBug::CopySurvives => "copy survives at a node that is not the owner",
            FleetBug::OwnerBehind => "owner that is behind answers",
            FleetBug::SecondOvertakes => "second request overtakes a purge",
        }
    }
}

thread_local! {
    static PLANTED: Cell<Option<FleetBug>> = const { Cell::new(None) };
}

/// Plants one bug in this thread, or none.
pub fn plant(bug: Option<FleetBug>) {
    PLANTED.set(bug);
}

/// Whether a bug is planted.
pub fn is_planted(bug: FleetBug) -> bool {
    PLANTED.get() == Some(bug)
}
