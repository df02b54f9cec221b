//! The purges that are requested of this node.
//!
//! Owns: invariant 4, the limit on their rate, the queue while etcd is away, and how long a caller waits. Leaves to others:
//! applying them (`log`).

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use nectary_host::fleet::{FleetError, FleetPurge, NodeName, PurgeOutcome, PurgeScope, PurgeWish};

use super::event::FleetAction;
use super::{FleetMachine, FleetRules};
use crate::purge_bucket::PurgeBucket;
use crate::records::write_purge;

/// The most queued purges that are appended at a time.
const SENT_MAX: usize = 64;
/// As many bytes of purges as the log may have are accepted in this time, so that etcd is not filled before the log is
/// looked at.
const SIZE_PERIOD: Duration = Duration::from_secs(60);
/// The least log that this counts with: some purges of any size must pass. *Units*: bytes.
const SIZE_MIN: u64 = 1 << 20;
/// The time from one attempt for a queued purge to the next.
const QUEUE_PAUSE: Duration = Duration::from_secs(1);

/// The lost purges that a line in the log names, and the characters of each.
const LOST_SHOWN_MAX: usize = 3;
const LOST_TEXT_MAX: usize = 200;

/// A purge whose caller waits.
#[derive(Debug)]
struct WaitingPurge {
    /// `None` when it is in the log.
    purge: Option<FleetPurge>,
    wish: PurgeWish,
    deadline: Duration,
    /// The last revision that was known when it was sent.
    sent_after: u64,
    /// Its revision and the nodes that were living; `None` until it is in the log.
    logged: Option<(u64, Vec<NodeName>)>,
}

/// A purge that waits for etcd; its caller has an answer.
#[derive(Debug)]
struct QueuedPurge {
    ticket: u64,
    purge: FleetPurge,
    /// *Units*: bytes.
    bytes: u64,
    is_sent: bool,
}

/// The purges of this node.
#[derive(Debug)]
pub(super) struct RequestPart {
    waiting: BTreeMap<u64, WaitingPurge>,
    queue: VecDeque<QueuedPurge>,
    queue_at: Duration,
    /// The last revision of a purge that was queued, and the identity of its fleet.
    queued_through: (u128, u64),
    counted: PurgeBucket,
    sized: PurgeBucket,
    /// Whether something has changed for which purges may wait.
    pub must_settle: bool,
    /// Why the last purge was not appended.
    pub trouble: Option<String>,
}

impl RequestPart {
    pub fn new(rules: &FleetRules) -> RequestPart {
        let (count, period) = rules.purge_rate;
        RequestPart {
            waiting: BTreeMap::new(),
            queue: VecDeque::new(),
            queue_at: Duration::ZERO,
            queued_through: (0, 0),
            counted: PurgeBucket::new(u64::from(count), period),
            sized: PurgeBucket::new(rules.log_bytes_max.max(SIZE_MIN), SIZE_PERIOD),
            must_settle: false,
            trouble: None,
        }
    }

    /// Purges that wait for etcd.
    pub fn queued(&self) -> u64 {
        self.queue.len() as u64
    }
}

impl FleetMachine {
    /// What other nodes must have applied that this one asks for objects, for [`FleetGate::required`]: a queued purge is made
    /// here, and their stores do not have it yet.
    ///
    /// [`FleetGate::required`]: nectary_host::fleet::FleetGate::required
    pub fn required(&self) -> u64 {
        let (identity, revision) = self.requests.queued_through;
        match self.requests.queue.is_empty() {
            false => u64::MAX,
            true if identity == self.identity => revision,
            true => 0,
        }
    }

    pub(super) fn on_purge_requested(&mut self, now: Duration, ticket: u64, purge: FleetPurge, wish: PurgeWish) {
        if let Err(error) = self.admit(now, &purge) {
            return self.answer(ticket, Err(error));
        }
        if !self.is_member(now) {
            let mut why = self.lease.trouble.clone().unwrap_or_else(|| "it has not joined yet".to_owned());
            if self.lease.is_name_taken && !self.lease.is_holder_gone {
                why.push_str(": send it to that one");
            }
            return self.queue_or_fail(ticket, purge, FleetError::Away(why));
        }
        self.actions.push_back(FleetAction::Append { ticket, purge: purge.clone() });
        let deadline = now + self.rules.purge_time;
        self.requests.waiting.insert(
            ticket,
            WaitingPurge { purge: Some(purge), wish, deadline, sent_after: self.log.seen, logged: None },
        );
    }

    /// Whether a purge may come in. *Errors*: why not.
    fn admit(&mut self, now: Duration, purge: &FleetPurge) -> Result<(), FleetError> {
        if self.is_leaving {
            return Err(FleetError::Stopping);
        }
        if self.has_other_rules() {
            return Err(FleetError::RulesDiffer);
        }
        let Some(value) = write_purge(purge) else {
            let texts = purge.scope.texts().len();
            return Err(FleetError::TooLarge(format!("{texts} keys, prefixes or tags")));
        };
        let Some(counted) = self.requests.counted.full_after(now, 1) else {
            let (count, period) = self.rules.purge_rate;
            let seconds = period.as_secs();
            return Err(FleetError::TooMany(format!("{count} purges in {seconds} s (`purge-rate` of [fleet])")));
        };
        let Some(sized) = self.requests.sized.full_after(now, value.len() as u64) else {
            let (bytes, seconds) = (self.requests.sized.count, SIZE_PERIOD.as_secs());
            let most = format!("{bytes} bytes of purges in {seconds} s (`purge-log-size` of [fleet])");
            return Err(FleetError::TooMany(most));
        };
        (self.requests.counted.full_at, self.requests.sized.full_at) = (counted, sized);
        Ok(())
    }

    /// Queues a purge that could not be appended, or refuses it.
    fn queue_or_fail(&mut self, ticket: u64, purge: FleetPurge, error: FleetError) {
        if !self.rules.queues_when_cut {
            return self.answer(ticket, Err(error));
        }
        let bytes = write_purge(&purge).map_or(0, |value| value.len() as u64);
        let queued_bytes: u64 = self.requests.queue.iter().map(|queued| queued.bytes).sum();
        let queued = self.requests.queue.len();
        if queued >= self.rules.queue_max || queued_bytes + bytes > self.requests.sized.count {
            return self.answer(ticket, Err(FleetError::QueueFull(queued)));
        }
        self.actions.push_back(FleetAction::ApplyHere { purge: purge.clone() });
        self.requests.queue.push_back(QueuedPurge { ticket, purge, bytes, is_sent: false });
        let (nodes, missing) = (self.nodes.len(), Vec::new());
        self.answer(ticket, Ok(PurgeOutcome { revision: 0, nodes, missing, is_applied: false, is_queued: true }));
    }

    pub(super) fn on_appended(&mut self, now: Duration, ticket: u64, revision: u64, mut living: Vec<NodeName>) {
        self.requests.trouble = None;
        if self.requests.queue.iter().any(|queued| queued.ticket == ticket) {
            let (identity, known) = self.requests.queued_through;
            let known = if identity == self.identity { known } else { 0 };
            self.requests.queued_through = (self.identity, known.max(revision));
            self.requests.queue.retain(|queued| queued.ticket != ticket);
        }
        if !living.contains(&self.own.name) {
            // It waits for this node nevertheless, which has to join again before it serves.
            living.push(self.own.name.clone());
            if self.lease.is_joined {
                self.lease.trouble = Some("the key of this node is not in etcd".to_owned());
                self.abandon_lease();
            }
        }
        let Some(waiting) = self.requests.waiting.get_mut(&ticket) else { return };
        if revision <= waiting.sent_after {
            self.requests.waiting.remove(&ticket);
            self.lease.trouble = Some("etcd is older than it was: it was restored from a backup".to_owned());
            self.abandon_lease();
            let error = FleetError::Unknown("etcd gives revisions a second time".to_owned());
            return self.answer(ticket, Err(error));
        }
        (waiting.purge, waiting.logged) = (None, Some((revision, living)));
        self.settle(now, ticket);
    }

    pub(super) fn on_append_failed(&mut self, ticket: u64, is_unknown: bool, why: String) {
        self.requests.trouble = Some(why.clone());
        if let Some(queued) = self.requests.queue.iter_mut().find(|queued| queued.ticket == ticket) {
            queued.is_sent = false;
            return;
        }
        let waiting = self.requests.waiting.get_mut(&ticket);
        let Some(purge) = waiting.and_then(|waiting| waiting.purge.take()) else { return };
        self.requests.waiting.remove(&ticket);
        // The key in the log is that of the ticket, so a purge that is in the log already is not there twice.
        let error = if is_unknown { FleetError::Unknown(why) } else { FleetError::Away(why) };
        self.queue_or_fail(ticket, purge, error);
    }

    /// Answers a purge that is settled: it is what its caller waits for, or its time is over.
    fn settle(&mut self, now: Duration, ticket: u64) {
        let Some(waiting) = self.requests.waiting.get(&ticket) else { return };
        let is_late = now >= waiting.deadline;
        let Some((revision, living)) = &waiting.logged else {
            if is_late {
                self.requests.waiting.remove(&ticket);
                let error = FleetError::Unknown("etcd has not answered in time".to_owned());
                self.answer(ticket, Err(error));
            }
            return;
        };
        let (revision, nodes) = (*revision, living.len());
        let missing: Vec<NodeName> =
            living.iter().filter(|name| !self.has_confirmed(name, revision)).cloned().collect();
        let is_applied = missing.is_empty();
        let wants_more = waiting.wish == PurgeWish::Applied && !is_applied;
        if wants_more && !is_late {
            return;
        }
        self.requests.waiting.remove(&ticket);
        let missing = if wants_more { missing } else { Vec::new() };
        self.counts.accepted += 1;
        self.answer(ticket, Ok(PurgeOutcome { revision, nodes, missing, is_applied, is_queued: false }));
    }

    /// Whether a node that was living at a revision cannot serve without the purge of that revision: it has applied it,
    /// or its lease has ended since, or it has joined again since.
    fn has_confirmed(&self, name: &NodeName, revision: u64) -> bool {
        if *name == self.own.name && self.has_applied(revision) {
            return true;
        }
        match self.nodes.get(name) {
            Some(known) => known.applied >= revision || known.node.since > revision,
            None => self.log.seen >= revision,
        }
    }

    fn answer(&mut self, ticket: u64, result: Result<PurgeOutcome, FleetError>) {
        self.counts.refused += u64::from(result.is_err());
        self.actions.push_back(FleetAction::Answer { ticket, result });
    }

    /// Answers all callers, as this node stops.
    pub(super) fn fail_requests(&mut self) {
        for (ticket, waiting) in std::mem::take(&mut self.requests.waiting) {
            let result = match waiting.logged {
                Some((revision, living)) => {
                    let (nodes, is_applied) = (living.len(), false);
                    let missing = living.into_iter().filter(|name| !self.has_confirmed(name, revision)).collect();
                    Ok(PurgeOutcome { revision, nodes, missing, is_applied, is_queued: false })
                }
                None => Err(FleetError::Unknown("this node stops".to_owned())),
            };
            self.answer(ticket, result);
        }
        if !self.requests.queue.is_empty() {
            let queue = &self.requests.queue;
            let count = queue.len();
            let mut lost: Vec<String> = queue.iter().take(LOST_SHOWN_MAX).map(|it| subject_of(&it.purge)).collect();
            if count > LOST_SHOWN_MAX {
                lost.push(format!("and {} more", count - LOST_SHOWN_MAX));
            }
            let lost = lost.join(", ");
            self.note(format!(
                "fleet: {count} purges that waited for etcd are lost, as this node stops; send them again: {lost}"
            ));
        }
    }

    /// Looks after the purges that wait.
    pub(super) fn turn_requests(&mut self, now: Duration) {
        let must_settle = std::mem::take(&mut self.requests.must_settle);
        // All have the same time to wait, so those whose time is over come first.
        let due = self.requests.waiting.iter().take_while(|(_, waiting)| must_settle || now >= waiting.deadline);
        let tickets: Vec<u64> = due.map(|(ticket, _)| *ticket).collect();
        tickets.into_iter().for_each(|ticket| self.settle(now, ticket));
        if self.is_leaving || !self.is_member(now) || now < self.requests.queue_at {
            return;
        }
        let mut sent = Vec::new();
        for queued in self.requests.queue.iter_mut().take(SENT_MAX).filter(|queued| !queued.is_sent) {
            queued.is_sent = true;
            sent.push(FleetAction::Append { ticket: queued.ticket, purge: queued.purge.clone() });
        }
        if !sent.is_empty() {
            self.requests.queue_at = now + QUEUE_PAUSE;
            self.actions.extend(sent);
        }
    }
}

/// What a purge is about, for people: its first key, prefix or tag, and how many more there are.
fn subject_of(purge: &FleetPurge) -> String {
    let (word, texts) = match &purge.scope {
        PurgeScope::Keys(texts) => ("key", texts),
        PurgeScope::Prefixes(texts) => ("prefix", texts),
        PurgeScope::Tags(texts) => ("tag", texts),
        PurgeScope::All => return "everything".to_owned(),
    };
    let first = texts.first().map(|text| String::from_utf8_lossy(text)).unwrap_or_default();
    let first: String = first.escape_debug().take(LOST_TEXT_MAX).collect();
    match texts.len() {
        0 | 1 => format!("{word} \"{first}\""),
        count => format!("{word} \"{first}\" (the first of {count})"),
    }
}
