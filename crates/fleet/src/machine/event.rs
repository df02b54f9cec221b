//! What goes into the machine and what comes out.
//!
//! Owns: the events and the actions. Each action that begins something has the events that end it in its comment.

use std::time::Duration;

use nectary_host::fleet::{
    AppliedMark, FleetError, FleetNode, FleetPurge, LoggedPurge, NodeName, PurgeOutcome, PurgeWish, RulesHash,
};

/// Something that happened.
#[derive(Debug, Clone, PartialEq)]
pub enum FleetEvent {
    /// Time has passed. Comes at least every tenth of a lease, and at most every 50 ms.
    Tick,
    /// etcd has granted a lease.
    LeaseGranted {
        /// Its number.
        lease: i64,
        /// When the request was sent.
        asked: Duration,
    },
    /// etcd has kept a lease, and had the key of this node with it just before.
    LeaseKept {
        /// Its number.
        lease: i64,
        /// When the request was sent.
        asked: Duration,
    },
    /// etcd does not know the lease: it has ended.
    LeaseEnded {
        /// Its number.
        lease: i64,
    },
    /// etcd has kept a lease, but has no key of this node with it.
    KeyMissing {
        /// Its number.
        lease: i64,
        /// When the request was sent.
        asked: Duration,
    },
    /// The host stood still for this time, by the clock of the day alone: the other clock does not know of it.
    Paused {
        /// How long.
        time: Duration,
    },
    /// A lease was not granted or kept, or there was no answer in time.
    LeaseFailed {
        /// Why.
        why: String,
    },
    /// The node's key is there, with this lease.
    Joined {
        /// The lease.
        lease: i64,
        /// The identity of the fleet.
        identity: u128,
    },
    /// The node's key is not there, or that is not known.
    JoinFailed {
        /// Why.
        why: String,
    },
    /// Another process is the node of this name.
    NameTaken {
        /// Which one, for people.
        process: String,
        /// Whether it ran on this host, and runs no longer, as far as this process can see.
        is_gone: bool,
    },
    /// The log was read.
    LogRead(LogSnapshot),
    /// The log could not be read.
    ReadFailed {
        /// Why.
        why: String,
    },
    /// A watch brought changes, or only says how far it is.
    Changed {
        /// The changes, in order.
        changes: Vec<LogChange>,
        /// No change up to this revision is missing.
        through: u64,
    },
    /// The watch has ended.
    WatchEnded {
        /// What this node has missed.
        end: WatchEnd,
        /// Why.
        why: String,
    },
    /// A batch is durable.
    BatchApplied {
        /// Its number.
        batch: u64,
    },
    /// A batch is not durable.
    BatchFailed {
        /// Its number.
        batch: u64,
        /// Why.
        why: String,
    },
    /// The other nodes can read what this node has applied.
    Published {
        /// The lease of this node when it published.
        lease: i64,
        /// The revision.
        revision: u64,
    },
    /// They cannot, or that is not known.
    PublishFailed {
        /// The lease of this node when it tried.
        lease: i64,
    },
    /// What the log has, and what was removed from it.
    LogReviewed(LogTotals),
    /// Somebody wants to purge.
    PurgeRequested {
        /// Tells the request from others; the driver has given it.
        ticket: u64,
        /// The purge.
        purge: FleetPurge,
        /// What its caller waits for.
        wish: PurgeWish,
    },
    /// A purge is in the log.
    Appended {
        /// The request.
        ticket: u64,
        /// Its revision.
        revision: u64,
        /// The nodes that were living at this revision.
        living: Vec<NodeName>,
    },
    /// A purge is not in the log.
    AppendFailed {
        /// The request.
        ticket: u64,
        /// Whether it may be in the log nevertheless.
        is_unknown: bool,
        /// Why.
        why: String,
    },
    /// The rules of this node are others now.
    RulesChanged(RulesHash),
    /// The node stops.
    Leave,
}

/// Something to do.
#[derive(Debug, Clone, PartialEq)]
pub enum FleetAction {
    /// Ask for a lease. Ends with `LeaseGranted` or `LeaseFailed`.
    GrantLease,
    /// Read whether the key of this node is there with a lease, and then keep it, at the same member of etcd: that one
    /// may not know that it leads no longer, and answer alone, but not to the read. Ends with `LeaseKept`,
    /// `LeaseEnded`, `KeyMissing` or `LeaseFailed`.
    KeepLease {
        /// Its number.
        lease: i64,
    },
    /// End a lease. Ends with nothing.
    RevokeLease {
        /// Its number.
        lease: i64,
    },
    /// Put the keys of the node. Ends with `Joined`, `NameTaken` or `JoinFailed`.
    Join {
        /// The lease of the keys.
        lease: i64,
        /// The node.
        node: FleetNode,
        /// What it has applied, if its store is of the same fleet; else it is 0.
        mark: AppliedMark,
    },
    /// Put the key of the node again, as it has other rules than the node. Ends with nothing: the watch brings it, or it is
    /// wanted again.
    Rewrite {
        /// The lease of the key.
        lease: i64,
        /// The node.
        node: FleetNode,
    },
    /// Read the log above a mark: all of it if the mark is of another fleet. Ends with `LogRead` or `ReadFailed`.
    Read {
        /// What the node has, or has in its queue.
        above: AppliedMark,
    },
    /// Watch the fleet. A watch under way ends. Brings `Changed`, at least every quarter of a lease, and ends with
    /// `WatchEnded`, also if nothing can be watched; not if it ends because another one begins.
    Watch {
        /// The first revision that is not known yet.
        from: u64,
    },
    /// Apply purges, and then note the mark. Ends with `BatchApplied` or `BatchFailed`.
    Apply {
        /// Its number.
        batch: u64,
        /// The purges, in order; perhaps none.
        purges: Vec<LoggedPurge>,
        /// What the store has applied afterwards.
        mark: AppliedMark,
    },
    /// Apply a purge here that is in no log yet. Ends with nothing.
    ApplyHere {
        /// The purge.
        purge: FleetPurge,
    },
    /// Append a purge to the log, always under the same key for a ticket. Ends with `Appended` or `AppendFailed`.
    Append {
        /// The request.
        ticket: u64,
        /// The purge.
        purge: FleetPurge,
    },
    /// Tell the other nodes what this node has applied. Ends with `Published` or `PublishFailed`.
    Publish {
        /// The lease of the key.
        lease: i64,
        /// The revision.
        revision: u64,
    },
    /// Look what the log has, and remove what is too much ([`trim_through`](super::trim_through)). Ends with `LogReviewed`,
    /// or with nothing if it fails.
    ReviewLog {
        /// Whether this node may remove: the oldest living node does.
        may_trim: bool,
    },
    /// Answer a request.
    Answer {
        /// The request.
        ticket: u64,
        /// The answer.
        result: Result<PurgeOutcome, FleetError>,
    },
    /// Write a line for the operator.
    Note(String),
}

/// Why a watch has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchEnd {
    /// It was broken: another one can go on.
    Broken,
    /// etcd no longer has the changes that come next.
    Compacted,
    /// etcd is another one, or older than what was seen.
    OtherEtcd,
}

/// A change, as a watch brings it.
#[derive(Debug, Clone, PartialEq)]
pub enum LogChange {
    /// A purge. One that cannot be understood is a purge of everything.
    Purge(LoggedPurge),
    /// A node has joined, or has other rules.
    Node(FleetNode),
    /// A node is gone.
    NodeGone(NodeName),
    /// A node has applied a revision.
    Applied(NodeName, u64),
    /// Purges up to this revision may be missing from the log.
    Floor(u64),
    /// The fleet has another identity, or none.
    Identity(Option<u128>),
    /// Another process, which people can find by this, would be the node of this name.
    Claimed(String),
}

/// The fleet at one revision.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LogSnapshot {
    /// The identity of the fleet.
    pub identity: u128,
    /// Purges up to this revision may be missing.
    pub floor: u64,
    /// The revision of the newest purge in the log; 0 if there is none.
    pub newest: u64,
    /// The purges above the mark of the read, by revision.
    pub purges: Vec<LoggedPurge>,
    /// The living nodes, and what they have applied.
    pub nodes: Vec<(FleetNode, u64)>,
    /// The revision of all this.
    pub through: u64,
}

/// What the log has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogTotals {
    /// Its purges.
    pub purges: u64,
    /// Their bytes.
    pub bytes: u64,
}
