//! Whether a node may serve from its store.
//!
//! Owns: [`FleetGate`], which each request reads: the rules, two times and a revision, without a lock. The times are absolute, so a
//! process that was stopped and goes on finds them over, without anybody having told it. Leaves to others: when they are
//! set (`nectary-fleet`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::node::RulesHash;
use crate::clock::since_boot;

/// What a node may do with what its store has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeStanding {
    /// Serve it: this node is a member, and learns of every purge before a purge counts as applied.
    Member,
    /// Serve it, and say so: this node is cut off, for a shorter time than `serve-when-cut`.
    Cut,
    /// Serve only what the origin has validated after the request came.
    ValidateOnly,
}

/// Until when a node may serve from its store, and what it has applied.
#[derive(Debug, Default)]
pub struct FleetGate {
    member_until_ms: AtomicU64,
    serve_until_ms: AtomicU64,
    applied: AtomicU64,
    begun: AtomicU64,
    required: AtomicU64,
    fleet: AtomicU64,
    rules: AtomicU64,
}

impl FleetGate {
    /// A gate that is shut.
    pub fn new() -> FleetGate {
        FleetGate::default()
    }

    /// What may be done now. *Cost*: a clock and at most two loads.
    pub fn standing(&self) -> NodeStanding {
        self.standing_at(since_boot())
    }

    /// What may be done now by these rules. A request whose table of sites is not the one that the fleet knows may use
    /// nothing: purges might miss what it stores, and what it finds. *Cost*: that of [`standing`](FleetGate::standing),
    /// and two loads.
    pub fn standing_by(&self, rules: RulesHash) -> NodeStanding {
        // The times may be those of the next rules, so they count only if the rules are the same after them.
        let is_known = || matches!(self.rules(), known if known == 0 || known == rules.half());
        if !is_known() {
            return NodeStanding::ValidateOnly;
        }
        let standing = self.standing();
        if is_known() { standing } else { NodeStanding::ValidateOnly }
    }

    /// What may be done at a time of [`since_boot`].
    pub fn standing_at(&self, now: Duration) -> NodeStanding {
        let now_ms = milliseconds(now);
        if now_ms < self.member_until_ms.load(Ordering::Acquire) {
            NodeStanding::Member
        } else if now_ms < self.serve_until_ms.load(Ordering::Acquire) {
            NodeStanding::Cut
        } else {
            NodeStanding::ValidateOnly
        }
    }

    /// The last revision that this node has applied. Read it before the store is asked.
    pub fn applied(&self) -> u64 {
        self.applied.load(Ordering::Acquire)
    }

    /// The last revision that this node has begun to apply: the store may have it already. Read it after a fill began: what
    /// another node answers, which has applied less, is not to be stored.
    pub fn begun(&self) -> u64 {
        self.begun.load(Ordering::Acquire)
    }

    /// Sets the last revision that is being applied. Call it before the store is told.
    pub fn set_begun(&self, revision: u64) {
        self.begun.store(revision, Ordering::Release);
    }

    /// What another node must have applied besides, so that its answer is used: a purge that was made at this node before it
    /// was in the log. `u64::MAX` while it is not, so that nobody is asked.
    pub fn required(&self) -> u64 {
        self.required.load(Ordering::Acquire)
    }

    /// Sets what other nodes must have applied besides. Call it before the purge is made here.
    pub fn set_required(&self, revision: u64) {
        self.required.store(revision, Ordering::Release);
    }

    /// Sets until when this node is a member, and until when it may serve, as times of [`since_boot`]. Zero shuts it.
    pub fn set_times(&self, member_until: Duration, serve_until: Duration) {
        self.member_until_ms.store(milliseconds(member_until), Ordering::Release);
        self.serve_until_ms.store(milliseconds(serve_until.max(member_until)), Ordering::Release);
    }

    /// The rules by which the times count, as [`RulesHash::half`]; 0 if they count for all.
    pub fn rules(&self) -> u64 {
        self.rules.load(Ordering::Acquire)
    }

    /// Sets the rules by which the times count; until this is called, they count for all. Shut the gate before.
    pub fn set_rules(&self, rules: RulesHash) {
        self.rules.store(rules.half(), Ordering::Release);
    }

    /// The fleet that the revision belongs to: the lower half of its identity, or 0. A request of a node of another
    /// identity is not answered, as their revisions cannot be compared.
    pub fn fleet(&self) -> u64 {
        self.fleet.load(Ordering::Acquire)
    }

    /// Sets the fleet. Set it before its first revision.
    pub fn set_fleet(&self, identity: u128) {
        self.fleet.store(identity as u64, Ordering::Release);
    }

    /// Sets the last revision that was applied. With another fleet it may be a lower one.
    pub fn set_applied(&self, revision: u64) {
        self.applied.store(revision, Ordering::Release);
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gate_shuts_by_time_alone() {
        let at = Duration::from_millis;
        let gate = FleetGate::new();
        assert_eq!(gate.standing_at(at(0)), NodeStanding::ValidateOnly);
        gate.set_times(at(100), at(300));
        let standings = [99, 100, 299, 300].map(|ms| gate.standing_at(at(ms)));
        assert_eq!(standings, [NodeStanding::Member, NodeStanding::Cut, NodeStanding::Cut, NodeStanding::ValidateOnly]);
        gate.set_times(at(500), at(0));
        assert_eq!(
            (gate.standing_at(at(499)), gate.standing_at(at(500))),
            (NodeStanding::Member, NodeStanding::ValidateOnly)
        );
        gate.set_times(Duration::ZERO, Duration::ZERO);
        assert_eq!(gate.standing(), NodeStanding::ValidateOnly);
        gate.set_times(Duration::MAX, Duration::MAX);
        assert_eq!(gate.standing_by(RulesHash(1)), NodeStanding::Member);
        gate.set_rules(RulesHash(2));
        let by = [1, 2].map(|rules| gate.standing_by(RulesHash(rules)));
        assert_eq!(by, [NodeStanding::ValidateOnly, NodeStanding::Member]);
        gate.set_applied(7);
        gate.set_fleet(1 << 64 | 5);
        assert_eq!((gate.standing(), gate.applied(), gate.fleet()), (NodeStanding::Member, 7, 5));
    }
}
