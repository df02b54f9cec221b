//! The replacement policy: the interface between a cache and the rule that chooses victims.
//!
//! A policy knows ids, weights and the order of references; it never sees the cached bytes. It is deterministic and
//! single threaded: callers that share one protect it with a lock and may batch their references.

use std::fmt;

/// How many victims may be refused in one call of [`Policy::reference`] before it gives up and bypasses the id.
///
/// A policy offers a refused victim again last, so a few refusals are enough to skip pinned ids. The bound prevents one
/// reference from walking over a whole cache of pinned ids.
pub const REFUSALS_MAX: usize = 32;

/// The stream of a reference; policies that do not detect patterns ignore it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Stream(pub u32);

/// The result of a reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// The id was resident.
    Hit,
    /// The id was not resident and now is; victims were evicted first if room was needed.
    Inserted,
    /// The id was not resident and was not inserted (heavier than the capacity, or no victim was found).
    Bypassed,
}

/// Why a policy follows another one: accesses in its window at which just one of the two missed. These counts are what
/// the change was decided by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reason {
    /// The one that it followed before.
    pub from: &'static str,
    /// The former one alone missed so many.
    pub misses_before: u64,
    /// The new one alone missed so many.
    pub misses_now: u64,
}

/// A change of the policy that is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaderChange {
    /// Accesses of all streams until then.
    pub reference: u64,
    /// The policy from here on.
    pub leader: &'static str,
    /// Why.
    pub reason: Reason,
}

impl fmt::Display for LeaderChange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LeaderChange { reference, leader, reason: Reason { from, misses_before, misses_now } } = self;
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
/// it is resident; a caller that wants to change it removes the id first.
///
/// Invariants: (1) the weights of resident ids never sum to more than the capacity when a call returns, unless every
/// candidate was refused or the capacity was lowered and not yet enforced; (2) an id is resident from `Inserted` until
/// it was given to `evict` and accepted, or removed; (3) the same calls give the same victims.
pub trait Policy: Send {
    /// The policy's name as users write it.
    fn name(&self) -> &'static str;

    /// Refers to `id`; inserts it with `weight` if it is not resident.
    ///
    /// `evict` is offered victims one by one; it answers `true` if the victim is given up (it is then no longer
    /// resident) and `false` if it must stay (pinned, dirty): the policy then offers another, up to [`REFUSALS_MAX`]
    /// refusals. Victims given up before that stay evicted. *Cost*: O(1) amortised, no allocation once the tables have
    /// grown.
    fn reference(&mut self, id: u64, weight: u64, stream: Stream, evict: &mut dyn FnMut(u64) -> bool) -> Access;

    /// Announces a reference to `id`, so that its memory is fetched in time. A caller that knows the next references,
    /// or has a batch of them, announces each about 16 references ahead. Changes nothing; it does no harm if an
    /// announced id is never referenced.
    fn prepare(&self, id: u64) {
        let _ = id;
    }

    /// How often a resident id was referenced since its insertion, as far as the policy counts that; 0 if it is not
    /// resident.
    fn references(&self, id: u64) -> u32 {
        u32::from(self.contains(id))
    }

    /// Inserts an id as if it had been referenced this often, if the policy counts references. So the counts survive a
    /// restart.
    fn credit(&mut self, id: u64, references: u32) {
        let _ = (id, references);
    }

    /// The policy that replaces the blocks of a stream: its own name, unless it follows others.
    fn replacement(&self, stream: Stream) -> &'static str {
        let _ = stream;
        self.name()
    }

    /// For a policy that follows others: the last change of its leader, if it was not returned before.
    fn take_change(&mut self) -> Option<LeaderChange> {
        None
    }

    /// Forgets `id`, even if a ghost remembers it; returns whether it was resident.
    fn remove(&mut self, id: u64) -> bool;

    /// Whether `id` is resident.
    fn contains(&self, id: u64) -> bool;

    /// Sets the capacity and evicts down to it; every resident id is offered before the policy gives up. If refusals
    /// leave it above the capacity, the next references continue to evict.
    fn set_capacity(&mut self, capacity: u64, evict: &mut dyn FnMut(u64) -> bool);

    /// The capacity, in units of weight.
    fn capacity(&self) -> u64;

    /// The sum of the weights of resident ids.
    fn used(&self) -> u64;

    /// How many ids are resident.
    fn len(&self) -> usize;

    /// Whether no id is resident.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
