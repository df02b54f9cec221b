//! The lease: granted, kept, lost, and what a join needs.
//!
//! Owns: invariants 3 and 6. Leaves to others: what is applied after a join (`log`).

use std::time::Duration;

use super::event::FleetAction;
use super::{FleetMachine, FleetRules};

/// The first pause after a failure; each further one is twice as long.
const PAUSE_MIN: Duration = Duration::from_millis(250);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// A lease that etcd has granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HeldLease {
    pub lease: i64,
    /// When the last request was sent that etcd has granted or kept it by.
    pub asked: Duration,
}

/// What is known of the lease.
#[derive(Debug, Default)]
pub(super) struct LeasePart {
    pub held: Option<HeldLease>,
    /// Whether the node's key is there, with the lease.
    pub is_joined: bool,
    /// The last request for the lease at which this node was a member that may serve. `serve-when-cut` counts from it.
    pub served_from: Option<Duration>,
    /// Whether a request for a lease, or a join, is under way.
    is_asking: bool,
    is_joining: bool,
    /// When the lease is to be kept.
    keep_at: Duration,
    retry: RetryPause,
    /// Whether the store does not apply what it must.
    pub is_stuck: bool,
    /// Whether the loss of the membership was said.
    was_member: bool,
    /// Why there is no membership.
    pub trouble: Option<String>,
    /// Whether it is because another process has the name of this node.
    pub is_name_taken: bool,
    /// Whether that process seems to have ended.
    pub is_holder_gone: bool,
    /// Another process that would be this node, and when it last said so.
    pub claim: Option<(String, Duration)>,
    /// Whether this node had joined when the request to keep the lease was sent.
    was_joined: bool,
    /// When the host last went on after it had stood still.
    paused_at: Duration,
}

/// A pause that grows.
#[derive(Debug, Default)]
pub(super) struct RetryPause {
    pub at: Duration,
    pause: Duration,
}

impl RetryPause {
    /// Notes a failure.
    pub fn failed(&mut self, now: Duration, rules: &FleetRules) {
        // Some attempts must fit into a lease.
        let most = PAUSE_MAX.min(rules.lease / 4);
        self.pause = (self.pause * 2).max(PAUSE_MIN).min(most);
        self.at = now + self.pause;
    }

    /// Whether nothing has failed since the last success.
    pub fn is_fresh(&self) -> bool {
        self.pause.is_zero()
    }

    /// Notes a success.
    pub fn succeeded(&mut self) {
        *self = RetryPause::default();
    }
}

impl FleetMachine {
    pub(super) fn on_lease_granted(&mut self, lease: i64, asked: Duration) {
        self.lease.is_asking = false;
        if self.is_leaving || self.lease.held.is_some() {
            return self.actions.push_back(FleetAction::RevokeLease { lease });
        }
        let asked = self.counted(asked);
        self.lease.held = Some(HeldLease { lease, asked });
        self.lease.keep_at = asked + self.rules.lease / 4;
    }

    pub(super) fn on_lease_kept(&mut self, lease: i64, asked: Duration) {
        self.lease.is_asking = false;
        let asked = self.counted(asked);
        if let Some(held) = self.lease.held.as_mut().filter(|held| held.lease == lease) {
            held.asked = held.asked.max(asked);
            self.lease.keep_at = held.asked + self.rules.lease / 4;
            if self.lease.is_joined {
                self.lease.retry.succeeded();
                self.lease.trouble = None;
            }
        }
    }

    pub(super) fn on_key_missing(&mut self, lease: i64, asked: Duration) {
        let is_lost = self.lease.was_joined && self.lease.held.is_some_and(|held| held.lease == lease);
        if !is_lost {
            // It was no node of the fleet yet.
            return self.on_lease_kept(lease, asked);
        }
        self.lease.is_asking = false;
        self.lease.trouble = Some("the key of this node is not in etcd".to_owned());
        self.abandon_lease();
    }

    /// The clock of leases stood still while etcd's went on, so the lease counts from so much earlier. What was
    /// requested before does not count.
    pub(super) fn on_paused(&mut self, now: Duration, time: Duration) {
        if let Some(held) = &mut self.lease.held {
            held.asked = held.asked.saturating_sub(time);
        }
        self.lease.served_from = self.lease.served_from.map(|asked| asked.saturating_sub(time));
        (self.lease.paused_at, self.lease.keep_at) = (now, Duration::ZERO);
    }

    /// When a request was sent, as a lease counts from it.
    fn counted(&self, asked: Duration) -> Duration {
        if asked < self.lease.paused_at { Duration::ZERO } else { asked }
    }

    pub(super) fn on_lease_ended(&mut self, lease: i64) {
        self.lease.is_asking = false;
        if self.lease.held.is_some_and(|held| held.lease == lease) {
            self.lease.trouble = Some("etcd has ended the lease".to_owned());
            self.lose_lease();
        }
    }

    pub(super) fn on_lease_failed(&mut self, now: Duration, why: String) {
        self.lease.is_asking = false;
        self.lease.retry.failed(now, &self.rules);
        (self.lease.trouble, self.lease.is_name_taken) = (Some(why), false);
    }

    pub(super) fn on_joined(&mut self, now: Duration, lease: i64, identity: u128) {
        self.lease.is_joining = false;
        if self.is_leaving || self.lease.held.is_none_or(|held| held.lease != lease) {
            return;
        }
        self.lease.is_joined = true;
        (self.lease.trouble, self.lease.is_name_taken) = (None, false);
        self.lease.retry.succeeded();
        if self.identity != identity {
            self.forget_fleet();
        }
        self.identity = identity;
        self.begin_reading(now);
    }

    pub(super) fn on_join_failed(&mut self, now: Duration, why: String) {
        self.lease.is_joining = false;
        self.lease.retry.failed(now, &self.rules);
        (self.lease.trouble, self.lease.is_name_taken) = (Some(why), false);
    }

    pub(super) fn on_name_taken(&mut self, now: Duration, process: &str, is_gone: bool) {
        let (name, seconds) = (&self.own.name, self.rules.lease.as_secs());
        // Purges wait for that process until its lease ends, so this one does not take its place before.
        let why = match is_gone {
            true => format!("the former process of {name} ({process}) has ended: wait up to {seconds} s for its lease"),
            false => format!("another process ({process}) is the node {name}"),
        };
        self.on_join_failed(now, why);
        (self.lease.is_name_taken, self.lease.is_holder_gone) = (true, is_gone);
    }

    /// The lease is no more, so this node is no member until it has joined and caught up again.
    pub(super) fn lose_lease(&mut self) {
        self.lease.held = None;
        self.lease.is_joined = false;
        self.log.is_read = false;
        self.log.must_read = false;
        self.log.is_publishing = false;
    }

    /// Whether the lease holds by this node's own count.
    pub(super) fn is_member(&self, now: Duration) -> bool {
        let until = |asked: Duration| asked + self.rules.lease - self.rules.drift();
        self.lease.is_joined && self.lease.held.is_some_and(|held| now < until(held.asked))
    }

    /// Asks for what the lease needs now.
    pub(super) fn turn_lease(&mut self, now: Duration) {
        if self.is_leaving {
            return;
        }
        self.lease.is_stuck = self.is_stuck(now);
        if self.has_other_rules() || !self.has_fitting_store() || self.lease.is_stuck {
            self.lease.served_from = None;
        } else if self.is_caught_up() {
            self.lease.served_from = self.lease.held.map(|held| held.asked).or(self.lease.served_from);
        }
        if let (Some(held), true) = (self.lease.held, self.stands_still(now))
            && now >= held.asked + self.rules.lease
        {
            let why = match self.lease.is_stuck {
                true => "its store does not apply purges",
                false => "it does not learn of purges",
            };
            self.lease.trouble = Some(why.to_owned());
            self.abandon_lease();
        }
        self.count_cuts(now);
        let is_due = now >= self.lease.retry.at;
        match self.lease.held {
            // A node whose store stands still would make purges wait.
            None if !self.lease.is_asking && is_due && !self.is_stuck(now) => {
                self.lease.is_asking = true;
                self.actions.push_back(FleetAction::GrantLease);
            }
            Some(held) if !self.lease.is_asking && now >= self.lease.keep_at && is_due && !self.stands_still(now) => {
                self.lease.is_asking = true;
                self.lease.was_joined = self.lease.is_joined;
                self.actions.push_back(FleetAction::KeepLease { lease: held.lease });
            }
            _ => {}
        }
        if let (Some(held), false, false, true) =
            (self.lease.held, self.lease.is_joined, self.lease.is_joining, now >= self.lease.retry.at)
        {
            self.lease.is_joining = true;
            let (node, mark) = (self.own.clone(), self.log.mark);
            self.actions.push_back(FleetAction::Join { lease: held.lease, node, mark });
        }
    }

    fn count_cuts(&mut self, now: Duration) {
        let is_member = self.is_member(now);
        if self.lease.was_member && !is_member {
            self.counts.cuts += 1;
            let why = self.lease.trouble.clone().unwrap_or_else(|| "no answer in time".to_owned());
            let served = match (self.lease.is_stuck, self.rules.serve_when_cut.as_secs()) {
                (true, _) => "it serves nothing of its store".to_owned(),
                (false, seconds) => format!("it serves from its store for {seconds} s after the last answer of etcd"),
            };
            self.note(format!("fleet: this node is cut off ({why}); {served}"));
        }
        if !self.lease.was_member && is_member && self.counts.cuts > 0 {
            self.note("fleet: this node is a member again");
        }
        self.lease.was_member = is_member;
    }
}
