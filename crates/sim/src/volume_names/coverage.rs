//! How often what must happen in runs has happened.

/// A thing that must happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequiredEvent {
    /// A server is lost.
    ServerLost,
    /// A server is stopped, and another one starts.
    ServerStopped,
    /// A host is lost.
    HostLost,
    /// A host and the server are lost.
    BothLost,
    /// A host is cut off for less than its lease.
    ShortCut,
    /// A host is cut off for longer than its lease.
    LongCut,
    /// Connections break.
    ConnectionLost,
    /// A session is ended.
    SessionEnded,
    /// The scenes of `scenes`, in their order there.
    CrossingMoves,
    ChangesBehindMove,
    DirectoryEmptied,
    RenamedNameRemoved,
    LateRename,
    SameRename,
}

/// All events, with their names.
const EVENTS: [(RequiredEvent, &str); 14] = [
    (RequiredEvent::ServerLost, "servers lost"),
    (RequiredEvent::ServerStopped, "servers stopped"),
    (RequiredEvent::HostLost, "hosts lost"),
    (RequiredEvent::BothLost, "hosts and servers lost together"),
    (RequiredEvent::ShortCut, "hosts cut off for less than a lease"),
    (RequiredEvent::LongCut, "hosts cut off for longer than a lease"),
    (RequiredEvent::ConnectionLost, "connections broken"),
    (RequiredEvent::SessionEnded, "sessions ended"),
    (RequiredEvent::CrossingMoves, "scenes: two moves that depend on each other"),
    (RequiredEvent::ChangesBehindMove, "scenes: changes behind a move"),
    (RequiredEvent::DirectoryEmptied, "scenes: directory emptied by another host"),
    (RequiredEvent::RenamedNameRemoved, "scenes: renamed name removed by another host"),
    (RequiredEvent::LateRename, "scenes: rename whose request is late"),
    (RequiredEvent::SameRename, "scenes: the same rename by two hosts"),
];

/// The counts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VolumeNamesCoverage {
    counts: [u64; EVENTS.len()],
    /// Names and attributes that kernels showed without a request.
    hits: u64,
    /// Names that kernels were made to forget.
    forgotten: u64,
    /// Calls that were lost with their session, and might be.
    lost: u64,
    /// Changes of names that hosts made themselves, and all calls of programs in the runs in which they may.
    local: (u64, u64),
}

impl VolumeNamesCoverage {
    /// Counts an event.
    pub fn met(&mut self, event: RequiredEvent) {
        self.counts[event as usize] += 1;
    }

    /// Counts what kernels showed and forgot.
    pub fn add(&mut self, hits: u64, forgotten: u64) {
        (self.hits, self.forgotten) = (self.hits + hits, self.forgotten + forgotten);
    }

    /// Counts calls that may be lost with their sessions.
    pub fn add_lost(&mut self, lost: u64) {
        self.lost += lost;
    }

    /// Counts changes of names that hosts made themselves.
    pub fn add_local(&mut self, local: u64) {
        self.local.0 += local;
    }

    /// Counts the calls of programs of a run in which hosts make and remove names themselves.
    pub fn add_local_calls(&mut self, calls: u64) {
        self.local.1 += calls;
    }

    /// Whether a third of the calls, where hosts may make and remove names themselves, are such changes; in a sample of
    /// few runs, three tenths.
    pub fn is_local_enough(&self, is_sample: bool) -> bool {
        let (part, whole) = if is_sample { (3, 10) } else { (1, 3) };
        whole * self.local.0 >= part * self.local.1
    }

    /// Adds the counts of another run.
    pub fn merge(&mut self, other: &VolumeNamesCoverage) {
        self.counts.iter_mut().zip(other.counts).for_each(|(count, other)| *count += other);
        self.add(other.hits, other.forgotten);
        self.lost += other.lost;
        self.local = (self.local.0 + other.local.0, self.local.1 + other.local.1);
    }

    /// All counts, with their names.
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        let events = EVENTS.iter().map(|(event, name)| (*name, self.counts[*event as usize]));
        let others = [
            ("names and attributes shown without a request", self.hits),
            ("names forgotten for other hosts", self.forgotten),
            ("changes that a lost session may take along", self.lost),
            ("changes that hosts made themselves", self.local.0),
            ("calls where hosts may do that", self.local.1),
        ];
        events.chain(others).collect()
    }
}
