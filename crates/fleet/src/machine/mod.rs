//! The rules of a fleet that etcd connects: a state machine without I/O, clock or randomness.
//!
//! Owns: membership by a lease, the order of purges, when this node may serve, and what a purge waits for. Events and the
//! time go in, actions come out ([`FleetMachine::on_event`]); a driver does them and reports each of them with an event,
//! also if it fails, and also if it takes too long. A simulator drives the same code. All times are of one clock that also
//! counts while the host is suspended.
//!
//! # Invariants
//! 1. **Order.** Purges are applied by revision. A batch ends before the next one begins, and the mark of a batch is
//!    the revision of its last purge.
//! 2. **Catching up.** After each join, what the log has above the store's mark is applied before the gate opens. If
//!    the log may lack such a purge (the mark is of another fleet, below the floor, or above the newest purge),
//!    everything is purged instead.
//! 3. **The lease is counted from the request** that etcd granted or kept it by, and a tenth less. So the node knows
//!    that it is no member before etcd can. Before a lease is kept, the node's key is read, for which etcd needs a
//!    majority: one of its members that leads no longer, and does not know it, would keep leases alone.
//! 4. **Applied.** A purge is applied when each node that was living at its revision has said so, is gone, or has
//!    joined again after it.
//! 5. **Keys have rules.** The gate is open only while the store's record of rules ([`RulesRecord`]), which is durable
//!    with the mark, has the node's own rules and says that no object of these may have missed a purge; else everything
//!    is purged first.
//! 6. **A node that does not apply is no member for long.** If its watch or its store stands still for a lease, it
//!    stops keeping its lease.

mod event;
mod figures;
mod lease;
mod log;
mod requests;
mod trim;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use nectary_host::fleet::{AppliedMark, FleetNode, FleetView, LoggedPurge, NodeName, RulesHash, RulesRecord};

pub use event::{FleetAction, FleetEvent, LogChange, LogSnapshot, LogTotals, WatchEnd};
pub use trim::{LogEntry, trim_through};

use figures::MachineCounts;
use lease::LeasePart;
use log::LogPart;
use requests::RequestPart;

/// The rules of a fleet, from the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FleetRules {
    /// How long a node that is cut off counts as living. Whole seconds.
    pub lease: Duration,
    /// How long a node without a word from etcd serves from its store.
    pub serve_when_cut: Duration,
    /// Whether purges wait for etcd instead of failing.
    pub queues_when_cut: bool,
    /// Purges that may wait for etcd.
    pub queue_max: usize,
    /// How long a purge waits until it is applied.
    pub purge_time: Duration,
    /// Purges that this node accepts in a period.
    pub purge_rate: (u32, Duration),
    /// The size of the log. *Units*: bytes.
    pub log_bytes_max: u64,
    /// How long purges stay in the log.
    pub log_age_max: Duration,
}

impl Default for FleetRules {
    fn default() -> FleetRules {
        FleetRules {
            lease: Duration::from_secs(10),
            serve_when_cut: Duration::from_secs(60),
            queues_when_cut: false,
            queue_max: 1000,
            purge_time: Duration::from_secs(20),
            purge_rate: (1000, Duration::from_secs(1)),
            log_bytes_max: 64 << 20,
            log_age_max: Duration::from_secs(86_400),
        }
    }
}

impl FleetRules {
    /// How much earlier than etcd a node gives its lease up: clocks may differ by this much in a lease.
    pub fn drift(&self) -> Duration {
        self.lease / 10
    }
}

/// Until when this node is a member, and until when it serves from its store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GateTimes {
    /// Until when it is a member; zero if it is none.
    pub member_until: Duration,
    /// Until when it serves from its store.
    pub serve_until: Duration,
}

/// A living node, and what it has said it has applied.
#[derive(Debug, Clone, PartialEq, Eq)]
struct KnownNode {
    node: FleetNode,
    applied: u64,
    /// Since when there are purges that it has not said it has applied.
    behind_since: Option<Duration>,
}

impl KnownNode {
    fn new(node: FleetNode, applied: u64) -> KnownNode {
        KnownNode { node, applied, behind_since: None }
    }
}

/// The state of one node of a fleet.
#[derive(Debug)]
pub struct FleetMachine {
    rules: FleetRules,
    own: FleetNode,
    /// The identity of the fleet; 0 if it is not known.
    identity: u128,
    nodes: BTreeMap<NodeName, KnownNode>,
    view: Arc<FleetView>,
    lease: LeasePart,
    log: LogPart,
    requests: RequestPart,
    counts: MachineCounts,
    actions: VecDeque<FleetAction>,
    is_leaving: bool,
}

impl FleetMachine {
    /// Begins with what the store of this node has applied. The first event makes it join.
    pub fn new(rules: FleetRules, own: FleetNode, mark: AppliedMark) -> FleetMachine {
        FleetMachine {
            requests: RequestPart::new(&rules),
            rules,
            own,
            identity: 0,
            nodes: BTreeMap::new(),
            view: Arc::new(FleetView::default()),
            lease: LeasePart::default(),
            log: LogPart::new(mark),
            counts: MachineCounts::default(),
            actions: VecDeque::new(),
            is_leaving: false,
        }
    }

    /// Takes an event. Times never go back. The actions are to be begun in their order.
    pub fn on_event(&mut self, now: Duration, event: FleetEvent) -> Vec<FleetAction> {
        match event {
            FleetEvent::Tick => {}
            FleetEvent::LeaseGranted { lease, asked } => self.on_lease_granted(lease, asked),
            FleetEvent::LeaseKept { lease, asked } => self.on_lease_kept(lease, asked),
            FleetEvent::LeaseEnded { lease } => self.on_lease_ended(lease),
            FleetEvent::KeyMissing { lease, asked } => self.on_key_missing(lease, asked),
            FleetEvent::LeaseFailed { why } => self.on_lease_failed(now, why),
            FleetEvent::Paused { time } => self.on_paused(now, time),
            FleetEvent::Joined { lease, identity } => self.on_joined(now, lease, identity),
            FleetEvent::JoinFailed { why } => self.on_join_failed(now, why),
            FleetEvent::NameTaken { process, is_gone } => self.on_name_taken(now, &process, is_gone),
            FleetEvent::LogRead(snapshot) => self.on_log_read(now, snapshot),
            FleetEvent::ReadFailed { why } => self.on_read_failed(now, why),
            FleetEvent::Changed { changes, through } => self.on_changed(now, changes, through),
            FleetEvent::WatchEnded { end, why } => self.on_watch_ended(now, end, why),
            FleetEvent::BatchApplied { batch } => self.on_batch_applied(now, batch),
            FleetEvent::BatchFailed { batch, why } => self.on_batch_failed(now, batch, why),
            FleetEvent::Published { lease, revision } => self.on_published(now, lease, Some(revision)),
            FleetEvent::PublishFailed { lease } => self.on_published(now, lease, None),
            FleetEvent::LogReviewed(totals) => (self.log.totals, self.log.brought_bytes) = (totals, 0),
            FleetEvent::PurgeRequested { ticket, purge, wish } => self.on_purge_requested(now, ticket, purge, wish),
            FleetEvent::Appended { ticket, revision, living } => self.on_appended(now, ticket, revision, living),
            FleetEvent::AppendFailed { ticket, is_unknown, why } => self.on_append_failed(ticket, is_unknown, why),
            FleetEvent::RulesChanged(rules) => self.on_rules_changed(rules),
            FleetEvent::Leave => self.on_leave(),
        }
        self.turn_lease(now);
        self.turn_log(now);
        self.turn_requests(now);
        self.actions.drain(..).collect()
    }

    /// Until when this node may serve, after the last event. The driver sets the gate before it does an action.
    pub fn gate(&self) -> GateTimes {
        if self.is_leaving || self.has_other_rules() || !self.has_fitting_store() || self.lease.is_stuck {
            return GateTimes::default();
        }
        let served_from = self.lease.served_from;
        let serve_until = served_from.map_or(Duration::ZERO, |asked| asked + self.rules.serve_when_cut);
        let member_until = match self.lease.held {
            Some(held) if self.is_caught_up() => held.asked + self.rules.lease - self.rules.drift(),
            _ => Duration::ZERO,
        };
        GateTimes { member_until, serve_until: serve_until.max(member_until) }
    }

    /// The last revision that this node has applied; 0 if its store is of another fleet.
    pub fn applied(&self) -> u64 {
        if self.has_fleet() { self.log.mark.revision } else { 0 }
    }

    /// Whether the store is of the fleet that this node knows.
    pub fn has_fleet(&self) -> bool {
        self.identity != 0 && self.log.mark.fleet == self.identity
    }

    /// What the store has applied.
    pub fn mark(&self) -> AppliedMark {
        self.log.mark
    }

    /// The living nodes.
    pub fn view(&self) -> &Arc<FleetView> {
        &self.view
    }

    /// Whether this node has joined and applied all that it missed, and its store has nothing that its rules may not show.
    pub fn is_caught_up(&self) -> bool {
        self.has_applied_all() && self.has_fitting_store()
    }

    /// Whether this node has joined and applied all that it missed, by whatever rules.
    pub fn has_applied_all(&self) -> bool {
        self.lease.is_joined && self.log.is_read && self.has_applied(self.log.must_reach)
    }

    /// Whether the store has applied a revision of this fleet.
    fn has_applied(&self, revision: u64) -> bool {
        self.has_fleet() && self.log.mark.revision >= revision
    }

    /// The rules of this node, by which the gate counts.
    pub fn rules(&self) -> RulesHash {
        self.own.rules
    }

    /// Whether objects of the store may be served, and stored, by the rules of this node.
    fn has_fitting_store(&self) -> bool {
        self.log.mark.rules.fits(self.own.rules)
    }

    /// The store's record of rules. What it had before its first mark counts as stored by the rules of this node.
    fn rules_record(&self) -> RulesRecord {
        let record = self.log.mark.rules;
        if record.current == 0 { record.begin(self.own.rules) } else { record }
    }

    /// Whether the rules of this node are not those of most nodes.
    fn has_other_rules(&self) -> bool {
        self.view.node(&self.own.name).is_some() && self.view.rules != self.own.rules
    }

    /// Makes the view again after a change of the nodes.
    fn remake_view(&mut self) {
        let mut nodes: Vec<FleetNode> = self.nodes.values().map(|known| known.node.clone()).collect();
        // What etcd has may be older.
        nodes.iter_mut().filter(|node| node.name == self.own.name).for_each(|node| node.rules = self.own.rules);
        if self.view.nodes != nodes {
            let next = Arc::new(FleetView::new(self.view.number + 1, nodes));
            let before = std::mem::replace(&mut self.view, next);
            self.tell_nodes(&before);
        }
    }

    /// Writes a line for each other node that is gone or has joined since a view; none if that one is the first.
    fn tell_nodes(&mut self, before: &FleetView) {
        if before.nodes.is_empty() {
            return;
        }
        let (view, own) = (self.view.clone(), self.own.name.clone());
        let count = view.nodes.len();
        for node in before.nodes.iter().filter(|node| node.name != own && view.node(&node.name).is_none()) {
            let name = &node.name;
            self.note(format!("fleet: node {name} is gone: it left, or its lease has ended; nodes now: {count}"));
        }
        let is_new = |node: &&FleetNode| before.node(&node.name).is_none_or(|known| known.run != node.run);
        for node in view.nodes.iter().filter(|node| node.name != own).filter(is_new) {
            self.note(format!("fleet: node {} has joined; nodes now: {count}", node.name));
        }
    }

    fn on_rules_changed(&mut self, rules: RulesHash) {
        if self.own.rules == rules {
            return;
        }
        self.own.rules = rules;
        self.remake_view();
        self.log.rewrite_at = Duration::ZERO;
    }

    fn on_leave(&mut self) {
        self.is_leaving = true;
        self.fail_requests();
        if let Some(held) = self.lease.held.take() {
            self.actions.push_back(FleetAction::RevokeLease { lease: held.lease });
        }
        self.lease.is_joined = false;
    }

    fn note(&mut self, text: impl Into<String>) {
        self.actions.push_back(FleetAction::Note(text.into()));
    }
}

/// The bytes of a purge in memory, about.
fn purge_bytes(purge: &LoggedPurge) -> usize {
    64 + purge.purge.scope.texts().iter().map(|text| text.len() + 24).sum::<usize>()
}
