//! The log of purges: read, watched, and applied in order.
//!
//! Owns: invariants 1, 2 and 5, and which nodes live. Leaves to others: purges of this node (`requests`).

use std::collections::VecDeque;
use std::time::Duration;

use nectary_host::fleet::{AppliedMark, FleetNode, FleetPurge, LoggedPurge, RulesRecord};

use super::event::{FleetAction, LogChange, LogSnapshot, LogTotals, WatchEnd};
use super::lease::RetryPause;
use super::{FleetMachine, KnownNode, purge_bytes};

/// The most purges of a batch.
const BATCH_MAX: usize = 64;
/// The largest batch. *Units*: bytes, about.
const BATCH_BYTES_MAX: usize = 1 << 20;
/// The revisions of purges that are remembered, to say how far other nodes are behind.
const RECENT_MAX: usize = 4096;
/// The shortest time from one message to the others to the next.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(50);
/// The time from one look at the size of the log to the next, and the shortest, if it is too large.
const REVIEW_INTERVAL: Duration = Duration::from_secs(60);
const REVIEW_INTERVAL_MIN: Duration = Duration::from_secs(5);
/// The purges that may wait until they are applied; more become one purge of everything. *Units*: bytes, about.
const PENDING_BYTES_MAX: usize = 64 << 20;

/// A batch that is being applied.
#[derive(Debug)]
struct PurgeBatch {
    number: u64,
    purges: Vec<LoggedPurge>,
    mark: AppliedMark,
}

/// What is known of the log, and how far this node is.
#[derive(Debug)]
pub(super) struct LogPart {
    /// What the store has applied.
    pub mark: AppliedMark,
    /// Purges that are to be applied, by revision, and their bytes, about.
    pub pending: VecDeque<LoggedPurge>,
    pending_bytes: usize,
    /// The revision of the newest purge that is known.
    pub newest: u64,
    pub floor: u64,
    /// The revisions of the last purges that are known.
    recent: VecDeque<u64>,
    /// Since when the oldest purge waits that is not applied.
    pub behind_since: Option<Duration>,
    pub totals: LogTotals,
    /// The bytes of purges that were seen since the log was last looked at.
    pub brought_bytes: u64,
    /// Whether the log was read after the last join.
    pub is_read: bool,
    /// Whether it must be read once more, as a watch cannot go on. The node is a member meanwhile: purges wait for it.
    pub must_read: bool,
    /// The revision that must be applied before this node serves.
    pub must_reach: u64,
    /// No change up to this revision is missing.
    pub seen: u64,
    applying: Option<PurgeBatch>,
    batches: u64,
    is_reading: bool,
    /// Whether the read under way was begun before the last join: what it brings says nothing about later purges.
    is_read_outdated: bool,
    /// Whether the last read failed.
    has_read_failed: bool,
    is_watching: bool,
    /// When the watch last said something.
    heard: Duration,
    /// When a batch last ended, or was begun while there was none.
    moved: Duration,
    apply_retry: RetryPause,
    /// Why the last batch is not durable; `None` if it is.
    pub store_trouble: Option<String>,
    read_retry: RetryPause,
    /// The store must be told the identity although there is no purge.
    must_mark: Option<AppliedMark>,
    published: u64,
    pub is_publishing: bool,
    publish_at: Duration,
    publish_retry: RetryPause,
    reviewed_at: Option<Duration>,
    /// When the key of this node is put again, if it has other rules than the node.
    pub rewrite_at: Duration,
    pub trouble: Option<String>,
}

impl LogPart {
    pub fn new(mark: AppliedMark) -> LogPart {
        LogPart {
            mark,
            pending: VecDeque::new(),
            pending_bytes: 0,
            newest: 0,
            floor: 0,
            recent: VecDeque::new(),
            behind_since: None,
            totals: LogTotals::default(),
            brought_bytes: 0,
            is_read: false,
            must_read: false,
            must_reach: 0,
            seen: 0,
            applying: None,
            batches: 0,
            is_reading: false,
            is_read_outdated: false,
            has_read_failed: false,
            is_watching: false,
            heard: Duration::ZERO,
            moved: Duration::ZERO,
            apply_retry: RetryPause::default(),
            store_trouble: None,
            read_retry: RetryPause::default(),
            must_mark: None,
            published: 0,
            is_publishing: false,
            publish_at: Duration::ZERO,
            publish_retry: RetryPause::default(),
            reviewed_at: None,
            rewrite_at: Duration::ZERO,
            trouble: None,
        }
    }

    /// Purges among the last [`RECENT_MAX`] that a node has not applied which has applied a revision.
    pub fn behind_of(&self, applied: u64) -> u64 {
        self.recent.iter().rev().take_while(|revision| **revision > applied).count() as u64
    }

    /// Purges that are known and not applied.
    pub fn behind(&self) -> u64 {
        (self.pending.len() + self.applying.as_ref().map_or(0, |batch| batch.purges.len())) as u64
    }
}

impl FleetMachine {
    /// Reads the log, as this node has joined.
    pub(super) fn begin_reading(&mut self, now: Duration) {
        self.log.is_read = false;
        self.log.must_read = false;
        self.log.is_read_outdated = self.log.is_reading;
        self.log.has_read_failed = false;
        self.log.is_watching = false;
        self.log.heard = now;
        self.log.read_retry.at = now;
        self.log.published = 0;
    }

    /// Forgets what it knows of an earlier fleet: its revisions say nothing about another one.
    pub(super) fn forget_fleet(&mut self) {
        self.nodes.clear();
        self.clear_pending();
        self.log.recent.clear();
        self.log.behind_since = None;
        self.log.must_mark = None;
        (self.log.seen, self.log.newest, self.log.floor) = (0, 0, 0);
        // Its log is to be looked at soon.
        (self.log.totals, self.log.brought_bytes, self.log.reviewed_at) = (LogTotals::default(), 0, None);
    }

    pub(super) fn on_log_read(&mut self, now: Duration, snapshot: LogSnapshot) {
        self.log.is_reading = false;
        self.log.read_retry.succeeded();
        let is_outdated = std::mem::take(&mut self.log.is_read_outdated);
        if is_outdated || !self.lease.is_joined || self.is_leaving {
            return;
        }
        self.log.has_read_failed = false;
        let LogSnapshot { identity, floor, newest, purges, nodes, through } = snapshot;
        if identity != self.identity {
            self.note("fleet: its identity was changed in etcd: this node joins again");
            return self.abandon_lease();
        }
        if !nodes.iter().any(|(node, _)| node.name == self.own.name && node.run == self.own.run) {
            self.lease.trouble = Some("the key of this node is not in etcd".to_owned());
            return self.abandon_lease();
        }
        // A revision of the future is damage: a node that said it has not, and purges below such a floor are gone.
        let known = |(node, applied): (FleetNode, u64)| {
            let applied = if applied > through { 0 } else { applied };
            (node.name.clone(), KnownNode::new(node, applied))
        };
        self.nodes = nodes.into_iter().map(known).collect();
        self.remake_view();
        let floor = floor.min(through);
        self.log.floor = floor;
        self.log.newest = newest.max(floor);
        let is_whole = self.take_purges(now, purges);
        // Purges that came since the join wait for this node, so it may serve before it has applied them.
        if !self.log.is_read || !is_whole {
            self.log.must_reach = self.log.newest;
        }
        if !self.has_applied(self.log.must_reach) {
            // It knows what it must not serve.
            self.lease.served_from = None;
        }
        (self.log.is_read, self.log.must_read) = (true, false);
        self.log.seen = through;
        self.requests.must_settle = true;
        self.log.heard = now;
        self.watch();
    }

    /// Puts what was read into the queue, or a purge of everything if something may be missing; returns whether nothing
    /// is.
    fn take_purges(&mut self, now: Duration, purges: Vec<LoggedPurge>) -> bool {
        let (mark, newest) = (self.log.mark, self.log.newest);
        let here = AppliedMark { fleet: self.identity, revision: newest, rules: self.rules_record() };
        let missed = match mark {
            AppliedMark::NONE if self.log.floor == 0 => None,
            AppliedMark::NONE => Some("its store is new to this fleet, whose log is no longer whole"),
            mark if mark.fleet != self.identity => Some("its store was in another fleet, or etcd was made again"),
            mark if mark.revision < self.log.floor => Some("the log no longer has purges that it missed"),
            mark if mark.revision > newest => Some("etcd is older than its store: it was restored from a backup"),
            _ => None,
        };
        if let Some(why) = missed {
            self.purge_everything(now, newest, why);
            return false;
        }
        if mark == AppliedMark::NONE && purges.is_empty() {
            self.log.must_mark = Some(here);
        }
        purges.into_iter().for_each(|purge| self.queue_purge(now, purge));
        true
    }

    /// Queues a purge of everything in place of those that wait.
    fn purge_everything(&mut self, now: Duration, revision: u64, why: &str) {
        self.clear_pending();
        self.push_pending(LoggedPurge { revision, purge: FleetPurge::EVERYTHING });
        self.log.behind_since = self.log.behind_since.or(Some(now));
        self.counts.everything_purged += 1;
        self.note(format!("fleet: this node purges everything: {why}"));
    }

    fn push_pending(&mut self, purge: LoggedPurge) {
        self.log.pending_bytes += purge_bytes(&purge);
        self.log.pending.push_back(purge);
    }

    fn clear_pending(&mut self) {
        self.log.pending.clear();
        self.log.pending_bytes = 0;
    }

    /// Queues a purge, unless it is there already.
    fn queue_purge(&mut self, now: Duration, purge: LoggedPurge) {
        self.log.newest = self.log.newest.max(purge.revision);
        if self.log.recent.back().is_none_or(|last| *last < purge.revision) {
            self.log.recent.push_back(purge.revision);
            if self.log.recent.len() > RECENT_MAX {
                self.log.recent.pop_front();
            }
        }
        let applied = if self.log.mark.fleet == self.identity { self.log.mark.revision } else { 0 };
        let applying = self.log.applying.as_ref().filter(|batch| batch.mark.fleet == self.identity);
        let known = applied.max(applying.map_or(0, |batch| batch.mark.revision));
        let known = known.max(self.log.pending.back().map_or(0, |last| last.revision));
        if purge.revision <= known {
            return;
        }
        self.log.brought_bytes += purge_bytes(&purge) as u64;
        if self.log.pending_bytes + purge_bytes(&purge) > PENDING_BYTES_MAX {
            return self.purge_everything(now, purge.revision, "more purges wait than it can hold");
        }
        self.push_pending(purge);
        self.log.behind_since = self.log.behind_since.or(Some(now));
    }

    pub(super) fn on_read_failed(&mut self, now: Duration, why: String) {
        self.log.is_reading = false;
        if std::mem::take(&mut self.log.is_read_outdated) {
            return;
        }
        self.log.has_read_failed = true;
        self.log.read_retry.failed(now, &self.rules);
        self.log.trouble = Some(format!("the log cannot be read: {why}"));
    }

    fn watch(&mut self) {
        self.log.is_watching = true;
        self.actions.push_back(FleetAction::Watch { from: self.log.seen + 1 });
    }

    pub(super) fn on_changed(&mut self, now: Duration, changes: Vec<LogChange>, through: u64) {
        if !self.log.is_read || !self.log.is_watching {
            return;
        }
        self.log.heard = now;
        self.log.trouble = None;
        self.log.read_retry.succeeded();
        let is_purge = |change: &LogChange| matches!(change, LogChange::Purge(_) | LogChange::Floor(_));
        // What has been seen counts as well: a node that is not there was not there at a purge's revision.
        self.requests.must_settle |= through > self.log.seen || changes.iter().any(|change| !is_purge(change));
        for change in changes {
            match change {
                LogChange::Purge(purge) => self.queue_purge(now, purge),
                LogChange::Node(node) => {
                    let applied = self.nodes.get(&node.name).filter(|known| known.node.since == node.since);
                    let applied = applied.map_or(0, |known| known.applied);
                    self.nodes.insert(node.name.clone(), KnownNode::new(node, applied));
                }
                LogChange::NodeGone(name) => {
                    self.nodes.remove(&name);
                }
                LogChange::Applied(name, revision) => {
                    if let Some(known) = self.nodes.get_mut(&name) {
                        known.applied = if revision > through { 0 } else { revision };
                    }
                }
                LogChange::Floor(floor) => self.log.floor = floor,
                LogChange::Claimed(process) => self.lease.claim = Some((process, now)),
                LogChange::Identity(identity) if identity == Some(self.identity) => {}
                LogChange::Identity(_) => {
                    self.note("fleet: its identity was changed in etcd: this node joins again");
                    self.abandon_lease();
                }
            }
        }
        self.log.seen = self.log.seen.max(through);
        self.remake_view();
        let own = self.nodes.get(&self.own.name);
        if self.lease.is_joined && own.is_none_or(|known| known.node.run != self.own.run) {
            self.lease.trouble = Some("the key of this node was removed from etcd".to_owned());
            self.abandon_lease();
        }
    }

    /// Gives the lease back, to join with another one.
    pub(super) fn abandon_lease(&mut self) {
        if let Some(held) = self.lease.held {
            self.actions.push_back(FleetAction::RevokeLease { lease: held.lease });
        }
        self.lose_lease();
    }

    pub(super) fn on_watch_ended(&mut self, now: Duration, end: WatchEnd, why: String) {
        self.log.is_watching = false;
        self.log.read_retry.failed(now, &self.rules);
        self.log.trouble = Some(format!("the log cannot be watched: {why}"));
        match end {
            WatchEnd::Broken => {}
            // While the lease is the same, all purges since the join wait for this node.
            WatchEnd::Compacted => self.log.must_read = self.log.is_read,
            WatchEnd::OtherEtcd => self.log.is_read = false,
        }
    }

    pub(super) fn on_batch_applied(&mut self, now: Duration, number: u64) {
        let Some(batch) = self.log.applying.take_if(|batch| batch.number == number) else { return };
        self.log.mark = batch.mark;
        self.requests.must_settle = true;
        self.log.moved = now;
        self.log.apply_retry.succeeded();
        self.log.store_trouble = None;
        self.counts.applied += batch.purges.len() as u64;
        let is_replaced = self.log.pending.front().is_some_and(|first| first.purge.is_everything());
        if self.log.is_read && batch.mark.fleet != self.identity && !is_replaced {
            // The log was read before the store had this mark.
            self.purge_everything(now, self.log.newest, "its store was in another fleet when the log was read");
        }
        if self.log.pending.is_empty() {
            self.log.behind_since = None;
        }
    }

    pub(super) fn on_batch_failed(&mut self, now: Duration, number: u64, why: String) {
        let Some(batch) = self.log.applying.take_if(|batch| batch.number == number) else { return };
        if batch.purges.is_empty() {
            self.log.must_mark = Some(batch.mark);
        }
        self.log.apply_retry.failed(now, &self.rules);
        self.log.store_trouble = Some(why.clone());
        if batch.mark.fleet != self.identity {
            // Everything will be purged instead.
            return;
        }
        let known = self.log.pending.front().map_or(u64::MAX, |first| first.revision);
        let is_replaced = self.log.pending.front().is_some_and(|first| first.purge.is_everything());
        for purge in batch.purges.into_iter().rev().filter(|purge| purge.revision < known && !is_replaced) {
            self.log.pending_bytes += purge_bytes(&purge);
            self.log.pending.push_front(purge);
        }
        self.note(format!("fleet: purges of other nodes are not durable here, and are made again: {why}"));
    }

    pub(super) fn on_published(&mut self, now: Duration, lease: i64, revision: Option<u64>) {
        // The revision may be one of an earlier etcd, and above those that the present one has.
        if self.lease.held.is_none_or(|held| held.lease != lease) {
            return;
        }
        self.log.is_publishing = false;
        self.log.published = revision.unwrap_or(self.log.published);
        match revision {
            Some(_) => self.log.publish_retry.succeeded(),
            None => self.log.publish_retry.failed(now, &self.rules),
        }
    }

    /// Whether the others cannot be told what this node has applied.
    pub(super) fn cannot_publish(&self) -> bool {
        !self.log.publish_retry.is_fresh()
    }

    /// Whether this node does not learn of purges, or does not apply them, for as long as a lease.
    pub(super) fn stands_still(&self, now: Duration) -> bool {
        // A long read is no silence, as each of its requests has a time; one that was tried again is.
        let is_reading = self.log.is_reading && !self.log.has_read_failed;
        let is_deaf = self.lease.is_joined && !is_reading && now > self.log.heard + self.rules.lease;
        is_deaf || self.is_stuck(now)
    }

    /// Whether the store has not finished a batch for as long as a lease, although purges wait.
    pub(super) fn is_stuck(&self, now: Duration) -> bool {
        let waits = self.log.applying.is_some() || !self.log.pending.is_empty();
        waits && now > self.log.moved.max(self.log.behind_since.unwrap_or_default()) + self.rules.lease
    }

    /// Begins what the log needs now.
    pub(super) fn turn_log(&mut self, now: Duration) {
        self.apply_next(now);
        if self.is_leaving || !self.lease.is_joined {
            return;
        }
        let is_due = now >= self.log.read_retry.at;
        let must_read = !self.log.is_read || self.log.must_read;
        if must_read && !self.log.is_reading && is_due {
            self.log.is_reading = true;
            self.actions.push_back(FleetAction::Read { above: self.log.mark });
        } else if !must_read && is_due {
            // A watch that says nothing may stand on a dead connection.
            let is_silent = now > self.log.heard + self.rules.lease / 2;
            if !self.log.is_watching || is_silent {
                self.log.read_retry.at = now + self.rules.lease / 4;
                self.watch();
            }
        }
        let newest = self.log.newest;
        for known in self.nodes.values_mut() {
            known.behind_since = if known.applied < newest { known.behind_since.or(Some(now)) } else { None };
        }
        self.publish(now);
        self.rewrite(now);
        self.review(now);
    }

    /// Looks at the size of the log, sooner if this node may remove what is too much, and there is.
    fn review(&mut self, now: Duration) {
        let is_large = self.log.totals.bytes + self.log.brought_bytes > self.rules.log_bytes_max;
        let may_be_due = |interval| self.log.reviewed_at.is_none_or(|reviewed| now >= reviewed + interval);
        if !self.log.is_read || !may_be_due(REVIEW_INTERVAL_MIN) || !(is_large || may_be_due(REVIEW_INTERVAL)) {
            return;
        }
        let oldest = self.view.nodes.iter().min_by_key(|node| (node.since, node.name.clone()));
        let may_trim = oldest.is_some_and(|node| node.name == self.own.name) && self.is_member(now);
        if may_trim || may_be_due(REVIEW_INTERVAL) {
            self.log.reviewed_at = Some(now);
            self.actions.push_back(FleetAction::ReviewLog { may_trim });
        }
    }

    fn apply_next(&mut self, now: Duration) {
        if self.log.applying.is_some() || now < self.log.apply_retry.at || self.identity == 0 {
            return;
        }
        let rules = self.begin_rules();
        let mut bytes = 0;
        let count = self.log.pending.iter().take(BATCH_MAX).take_while(|purge| {
            bytes += purge_bytes(purge);
            bytes <= BATCH_BYTES_MAX || bytes == purge_bytes(purge)
        });
        let count = count.count();
        let purges: Vec<LoggedPurge> = self.log.pending.drain(..count).collect();
        self.log.pending_bytes -= purges.iter().map(purge_bytes).sum::<usize>();
        let mark = match purges.last() {
            Some(last) => {
                let rules = purges.iter().fold(rules, |rules, logged| rules.after(&logged.purge));
                AppliedMark { fleet: self.identity, revision: last.revision, rules }
            }
            None if self.has_fleet() && rules != self.log.mark.rules => AppliedMark { rules, ..self.log.mark },
            None => match self.log.must_mark.take() {
                Some(mark) if mark.fleet == self.identity && self.log.mark == AppliedMark::NONE => mark,
                _ => return,
            },
        };
        if self.log.apply_retry.is_fresh() {
            self.log.moved = now;
        }
        self.log.batches += 1;
        let batch = self.log.batches;
        self.log.applying = Some(PurgeBatch { number: batch, purges: purges.clone(), mark });
        self.actions.push_back(FleetAction::Apply { batch, purges, mark });
    }

    /// The record of rules with which the next batch begins. When nothing else is left to do before this node serves, that
    /// is its own rules' record, and everything is purged if their objects may have missed a purge.
    fn begin_rules(&mut self) -> RulesRecord {
        let former = self.rules_record();
        let is_next = self.log.is_read && self.log.pending.is_empty() && self.has_fleet() && !self.has_other_rules();
        if !is_next {
            return former;
        }
        let rules = former.begin(self.own.rules);
        if rules.must_purge_all() {
            let revision = self.log.mark.revision;
            self.push_pending(LoggedPurge { revision, purge: FleetPurge::EVERYTHING });
            self.counts.everything_purged += 1;
            self.note("fleet: this node purges everything: purges by other rules may have missed what it has stored");
        }
        rules
    }

    /// Puts the key of this node again while it has other rules: the first attempt may be lost.
    fn rewrite(&mut self, now: Duration) {
        let Some(held) = self.lease.held else { return };
        let known = self.nodes.get(&self.own.name).filter(|known| known.node.run == self.own.run);
        if self.log.is_read && now >= self.log.rewrite_at && known.is_some_and(|it| it.node.rules != self.own.rules) {
            self.log.rewrite_at = now + self.rules.lease / 4;
            self.actions.push_back(FleetAction::Rewrite { lease: held.lease, node: self.own.clone() });
        }
    }

    fn publish(&mut self, now: Duration) {
        let Some(held) = self.lease.held.filter(|_| self.is_member(now)) else { return };
        let revision = self.applied();
        let said = self.nodes.get(&self.own.name).map_or(0, |known| known.applied).max(self.log.published);
        if revision > said && !self.log.is_publishing && now >= self.log.publish_at.max(self.log.publish_retry.at) {
            self.log.is_publishing = true;
            self.log.publish_at = now + PUBLISH_INTERVAL;
            self.actions.push_back(FleetAction::Publish { lease: held.lease, revision });
        }
    }
}
