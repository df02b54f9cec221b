//! The replacement policy: the interface between a cache and the rule that chooses victims.
//!
//! A policy knows ids, weights and the order of references; it never sees the cached bytes. It is deterministic and
//! single threaded: callers that share one protect it with a lock and may batch their references.

use std::fmt;

/// The number of refusals after which one call of [`Policy::reference`] gives up and bypasses the id.
///
/// A policy offers a refused victim again only after all others, so a few refusals are enough to skip pinned ids. The
/// bound prevents one reference from walking over a whole cache of pinned ids.
pub const REFUSALS_MAX: usize = 32;

/// The stream of a reference, which is its origin: a process, a file, a connection. Policies that do not distinguish
/// streams ignore it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct StreamId(pub u32);

/// The result of a reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessResult {
    /// The id was resident.
    Hit,
    /// The id was not resident and now is; victims were evicted first if room was needed.
    Inserted,
    /// The id was not resident and was not inserted (heavier than the capacity, or no victim was found).
    Bypassed,
}

/// The reason why an adaptive policy changed its leader: the number of recent accesses that only the former leader
/// missed, and the number that only the new leader missed. The comparison of these two counts decided the change.
/// *Units*: accesses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaderReason {
    /// The policy that led before the change.
    pub from: &'static str,
    /// The number of recent accesses that only the former leader missed.
    pub misses_before: u64,
    /// The number of recent accesses that only the new leader missed.
    pub misses_now: u64,
}

/// A change of the leader, which is the policy that an adaptive policy follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaderChange {
    /// The number of accesses of all streams up to the change.
    pub reference: u64,
    /// The policy that leads after the change.
    pub leader: &'static str,
    /// The reason for the change.
    pub reason: LeaderReason,
}

impl fmt::Display for LeaderChange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LeaderChange { reference, leader, reason: LeaderReason { from, misses_before, misses_now } } = self;
        write!(
            formatter,
            "at {reference} {leader} leads ({from} missed {misses_before} that it did not, it {misses_now} that {from} \
             did not)"
        )
    }
}

/// A replacement policy over weighted ids with a capacity.
///
/// A weight of 0 counts as 1, so that a capacity bounds the number of ids as well. The weight of an id is fixed while
/// it is resident; a caller that wants to change the weight removes the id first.
///
/// Invariants: (1) the weights of resident ids never sum to more than the capacity when a call returns, unless every
/// candidate was refused or the capacity was lowered and not yet enforced; (2) an id is resident from the call that
/// returns `Inserted` until `evict` accepts it as a victim or the caller removes it; (3) the same calls give the same
/// victims.
pub trait Policy: Send {
    /// The policy's name as users write it.
    fn name(&self) -> &'static str;

    /// Refers to `id`; inserts it with `weight` if it is not resident.
    ///
    /// The policy offers victims to `evict` one by one. `evict` returns `true` to accept the victim, which is then no
    /// longer resident, and `false` if the victim must stay (pinned, dirty). After a refusal the policy offers another
    /// victim; after [`REFUSALS_MAX`] refusals it gives up and bypasses `id`. Victims accepted before that stay
    /// evicted. *Cost*: O(1) amortised, no allocation once the tables have grown.
    fn reference(&mut self, id: u64, weight: u64, stream: StreamId, evict: &mut dyn FnMut(u64) -> bool)
    -> AccessResult;

    /// Announces a coming reference to `id`, so that the policy prefetches the memory that the reference needs. A
    /// caller that knows the next references, or has a batch of them, announces each about 16 references ahead. The
    /// call changes no state; an announced id need not be referenced.
    fn prepare(&self, id: u64) {
        let _ = id;
    }

    /// The number of references to a resident id since its insertion, as far as the policy counts them; 0 if the id is
    /// not resident.
    fn references(&self, id: u64) -> u32 {
        u32::from(self.contains(id))
    }

    /// Sets the number of references to a resident id, if the policy counts references. So a caller can restore the
    /// counts after a restart.
    fn credit(&mut self, id: u64, references: u32) {
        let _ = (id, references);
    }

    /// The name of the policy that replaces the blocks of a stream. It is this policy's own name, unless this policy
    /// follows other policies.
    fn replacement(&self, stream: StreamId) -> &'static str {
        let _ = stream;
        self.name()
    }

    /// Takes the last change of leader; `None` if there was none since the last call, or if the policy has no leader.
    fn take_change(&mut self) -> Option<LeaderChange> {
        None
    }

    /// Forgets `id`, even if a ghost remembers it; returns whether it was resident.
    fn remove(&mut self, id: u64) -> bool;

    /// Whether `id` is resident.
    fn contains(&self, id: u64) -> bool;

    /// Sets the capacity and evicts down to it; every resident id is offered before the policy gives up. If refusals
    /// leave the policy above the capacity, the next references continue to evict.
    fn set_capacity(&mut self, capacity: u64, evict: &mut dyn FnMut(u64) -> bool);

    /// The capacity, in units of weight.
    fn capacity(&self) -> u64;

    /// The sum of the weights of resident ids.
    fn used(&self) -> u64;

    /// The number of resident ids.
    fn len(&self) -> usize;

    /// Whether no id is resident.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
