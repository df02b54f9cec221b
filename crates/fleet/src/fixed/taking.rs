//! What a node has learnt, in its file and its store.
//!
//! Owns: batches and their marks, invariant 5, and the size of the log.

use std::collections::VecDeque;
use std::time::Duration;

use nectary_host::fleet::{AppliedMark, FleetPurge, RulesRecord};

use super::known_logs::{FixedStep, LogExtent, LogExtents};
use super::machine::{FixedAction, FixedMachine, PAUSE_MIN};

/// The most steps of a batch, and their bytes, about.
const BATCH_MAX: usize = 64;
const BATCH_BYTES_MAX: u64 = 1 << 20;
/// The time from one look at the size of the log to the next.
const TRIM_INTERVAL: Duration = Duration::from_secs(5);

/// A batch that is being taken.
#[derive(Debug)]
struct StepBatch {
    number: u64,
    steps: Vec<FixedStep>,
    mark: AppliedMark,
}

/// What waits for the file and the store.
#[derive(Debug)]
pub(super) struct TakePart {
    pub pending: VecDeque<FixedStep>,
    pub pending_bytes: u64,
    batch: Option<StepBatch>,
    batches: u64,
    take_at: Duration,
    take_pause: Duration,
    /// When a batch last ended, or was begun while there was none.
    pub moved: Duration,
    pub trouble: Option<String>,
    trim_at: Duration,
    pub is_rewriting: bool,
    /// The place of the last step that the file had at the start.
    loaded: u64,
}

impl TakePart {
    /// Begins with steps of the file that the store has not made. The last one of the file has the place `loaded`.
    pub fn new(now: Duration, pending: VecDeque<FixedStep>, loaded: u64) -> TakePart {
        TakePart {
            pending_bytes: pending.iter().map(FixedStep::bytes).sum(),
            pending,
            batch: None,
            batches: 0,
            take_at: now,
            take_pause: Duration::ZERO,
            moved: now,
            trouble: None,
            trim_at: now,
            is_rewriting: false,
            loaded,
        }
    }
}

impl FixedMachine {
    /// Whether the store has not taken a batch for as long as a lease, although steps wait.
    pub(super) fn is_stuck(&self, now: Duration) -> bool {
        let waits = self.taking.batch.is_some() || !self.taking.pending.is_empty();
        waits && now > self.taking.moved + self.rules.lease
    }

    /// Steps that are known and not taken.
    pub(super) fn behind(&self) -> u64 {
        (self.taking.pending.len() + self.taking.batch.as_ref().map_or(0, |batch| batch.steps.len())) as u64
    }

    /// Queues a step.
    pub(super) fn queue(&mut self, step: FixedStep) {
        match &step {
            FixedStep::Purge(purge) => self.queued.entry(purge.log).or_default().through = purge.number,
            FixedStep::Everything(extents) => {
                for (log, other) in extents {
                    let own = self.queued.entry(*log).or_default();
                    own.through = own.through.max(other.through);
                }
            }
        }
        if self.taking.pending.is_empty() && self.taking.batch.is_none() {
            self.taking.moved = self.last_event;
        }
        self.last_place += 1;
        self.taking.pending_bytes += step.bytes();
        self.taking.pending.push_back(step);
    }

    /// Purges everything in place of what was missed up to these extents.
    pub(super) fn purge_everything(&mut self, mut extents: LogExtents, why: &str) {
        for (log, own) in &self.queued {
            let other = extents.entry(*log).or_default();
            other.through = other.through.max(own.through);
        }
        self.queue(FixedStep::Everything(extents));
        self.counts.everything_purged += 1;
        self.note(format!("fleet: this node purges everything: {why}"));
    }

    /// Begins the next batch.
    pub(super) fn take_next(&mut self, now: Duration) {
        let waits = self.taking.batch.is_some() || self.taking.is_rewriting || self.is_trim_due(now);
        if waits || now < self.taking.take_at || self.is_leaving {
            return;
        }
        let rules = self.begin_rules();
        let first = self.last_place + 1 - self.taking.pending.len() as u64;
        let mut bytes = 0;
        let fitting = self.taking.pending.iter().take(BATCH_MAX).take_while(|step| {
            bytes += step.bytes();
            bytes <= BATCH_BYTES_MAX || bytes == step.bytes()
        });
        let count = fitting.count();
        let steps: Vec<FixedStep> = self.taking.pending.drain(..count).collect();
        self.taking.pending_bytes -= steps.iter().map(FixedStep::bytes).sum::<u64>();
        let rules = steps.iter().fold(rules, |rules, step| match step {
            FixedStep::Purge(logged) => rules.after(&logged.purge),
            FixedStep::Everything(_) => rules.after(&FleetPurge::EVERYTHING),
        });
        let revision = first + steps.len() as u64 - 1;
        let mark = AppliedMark { fleet: self.identity(), revision, rules };
        if steps.is_empty() && mark == self.mark {
            return;
        }
        if steps.is_empty() {
            self.taking.moved = now;
        }
        self.taking.batches += 1;
        let batch = self.taking.batches;
        self.taking.batch = Some(StepBatch { number: batch, steps: steps.clone(), mark });
        self.actions.push(FixedAction::Take { batch, first, steps, mark });
    }

    /// The record of rules with which the next batch begins. When nothing else waits, that is its own rules' record, and
    /// everything is purged if their objects may have missed a purge.
    pub(super) fn begin_rules(&mut self) -> RulesRecord {
        let record = self.mark.rules;
        let former = if record.current == 0 { record.begin(self.own.rules) } else { record };
        if !self.taking.pending.is_empty() || self.has_other_rules() {
            return former;
        }
        let rules = former.begin(self.own.rules);
        if rules.must_purge_all() {
            self.purge_everything(LogExtents::new(), "purges by other rules may have missed what it has stored");
        }
        rules
    }

    pub(super) fn on_taken(&mut self, now: Duration, number: u64) {
        let Some(batch) = self.taking.batch.take_if(|batch| batch.number == number) else { return };
        batch.steps.iter().for_each(|step| self.known.take(step));
        self.counts.applied += batch.steps.len() as u64;
        self.mark = batch.mark;
        (self.taking.moved, self.taking.take_pause, self.taking.trouble) = (now, Duration::ZERO, None);
        self.reply();
        let own = self.own_log();
        if batch.steps.iter().any(|step| matches!(step, FixedStep::Purge(purge) if purge.log == own)) {
            self.ask_all(now);
        }
        if self.taking.pending.is_empty() {
            self.others.iter_mut().filter(|other| other.is_partial).for_each(|other| other.ask_at = now);
        }
    }

    pub(super) fn on_take_failed(&mut self, now: Duration, number: u64, why: String) {
        let Some(batch) = self.taking.batch.take_if(|batch| batch.number == number) else { return };
        self.taking.pending_bytes += batch.steps.iter().map(FixedStep::bytes).sum::<u64>();
        batch.steps.into_iter().rev().for_each(|step| self.taking.pending.push_front(step));
        self.taking.take_pause = (self.taking.take_pause * 2).max(PAUSE_MIN).min(self.rules.lease / 4);
        self.taking.take_at = now + self.taking.take_pause;
        self.taking.trouble = Some(why);
    }

    /// Whether the log is to be made smaller. After a failure, and at the start, the file may have more than the store, so its
    /// places are not known.
    fn is_trim_due(&self, now: Duration) -> bool {
        // Not for each purge that becomes too old.
        let age_s = self.rules.log_age_max.as_secs();
        let too_old_s = self.now_s.saturating_sub(age_s + age_s / 8);
        let is_due = now >= self.taking.trim_at && self.taking.trouble.is_none();
        let is_as_the_file = self.mark.fleet == self.identity() && self.mark.revision >= self.taking.loaded;
        is_due && is_as_the_file && self.known.is_large(self.rules.log_bytes_max, too_old_s)
    }

    /// Makes the log smaller, between two batches.
    pub(super) fn trim(&mut self, now: Duration) {
        if self.taking.batch.is_some() || self.taking.is_rewriting || !self.is_trim_due(now) {
            return;
        }
        (self.taking.trim_at, self.taking.is_rewriting) = (now + TRIM_INTERVAL, true);
        let oldest_s = self.now_s.saturating_sub(self.rules.log_age_max.as_secs());
        self.known.trim(self.rules.log_bytes_max / 4 * 3, oldest_s);
        let steps: Vec<FixedStep> = self.known.kept().cloned().map(FixedStep::Purge).collect();
        let floors = self.known.extents().iter();
        let extents = floors.map(|(log, extent)| (*log, LogExtent { through: extent.floor, ..*extent }));
        self.actions.push(FixedAction::Rewrite { extents: extents.collect(), steps });
    }
}
