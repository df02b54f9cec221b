//! Policies that rank their ids: the lowest is evicted, and a refused victim is *parked*.
//!
//! Owns: the ids, the parked ids, and the execution of a reference. A parked id returns to its rank after the next
//! eviction, or when all others are parked too, or when it is referenced. Leaves to others: the ranks ([`RankingRule`];
//! each policy has its own file).

use crate::eviction::{EvictionStep, StepwisePolicy, make_room};
use crate::policy::{AccessResult, Policy, REFUSALS_MAX, StreamId};
use crate::structures::arena::{Arena, ArenaQueue};

/// The number of the queue of parked ids; ids with a rank have another queue number.
pub(super) const PARKED: u8 = 1;

/// The rules in which the policies with ranks differ. The methods take the index of an id in the arena.
pub trait RankingRule: std::fmt::Debug + Send {
    /// The policy's name as users write it.
    fn name(&self) -> &'static str;

    /// Notes the start of a reference, whether or not its id is resident; `count` ids are resident.
    fn begin(&mut self, arena: &mut Arena, count: usize) {
        let _ = (arena, count);
    }

    /// The next victim.
    fn lowest(&mut self, arena: &Arena) -> Option<u32>;

    /// Whether the lowest id may be evicted to make `room`; `room` is 0 if the room is not for a newcomer.
    fn may_leave(&self, room: u64) -> bool {
        let _ = room;
        true
    }

    /// Ranks a newcomer.
    fn add(&mut self, arena: &mut Arena, index: u32);

    /// Ranks a resident id that is neither ranked nor parked now. `is_hit` says whether a reference to this id is the
    /// cause.
    fn put_back(&mut self, arena: &mut Arena, index: u32, is_hit: bool);

    /// Ranks a referenced id higher.
    fn raise(&mut self, arena: &mut Arena, index: u32);

    /// Removes an id from the ranks.
    fn take(&mut self, arena: &mut Arena, index: u32);

    /// Removes the lowest id from the ranks, because it was evicted.
    fn take_victim(&mut self, arena: &mut Arena, index: u32) {
        self.take(arena, index);
    }

    /// Removes the lowest id from the ranks and stores in its entry the state that [`RankingRule::put_back`] needs.
    fn take_to_park(&mut self, arena: &mut Arena, index: u32);

    /// The number of references to a resident id, if the policy counts them.
    fn references(&self, arena: &Arena, index: u32) -> u32 {
        let _ = (arena, index);
        1
    }

    /// Sets the number of references of an id; `false` if the policy does not count them. The caller ranks the id
    /// afterwards.
    fn credit(&mut self, arena: &mut Arena, index: u32, references: u32) -> bool {
        let _ = (arena, index, references);
        false
    }
}

/// A policy that ranks weighted ids.
#[derive(Debug)]
pub struct RankedPolicy<R> {
    capacity: u64,
    used: u64,
    count: usize,
    arena: Arena,
    parked: ArenaQueue,
    ranking: R,
}

impl<R: RankingRule> RankedPolicy<R> {
    /// An empty policy of `capacity` units of weight.
    pub(super) fn of(capacity: u64, ranking: R) -> RankedPolicy<R> {
        RankedPolicy { capacity, used: 0, count: 0, arena: Arena::new(), parked: ArenaQueue::new(PARKED), ranking }
    }

    fn is_parked(&self, index: u32) -> bool {
        self.arena.entry(index).queue == PARKED
    }

    fn unpark(&mut self, index: u32, is_hit: bool) {
        self.arena.unlink(&mut self.parked, index);
        self.ranking.put_back(&mut self.arena, index, is_hit);
    }

    fn unpark_oldest(&mut self) {
        if let Some(oldest) = self.parked.oldest() {
            self.unpark(oldest, false);
        }
    }

    /// Forgets an id that is neither ranked nor parked.
    fn forget(&mut self, index: u32) {
        let entry = self.arena.entry_mut(index);
        // A walk over all entries also visits forgotten ones, so a forgotten entry must not refer to a place that no
        // longer exists.
        (entry.queue, entry.place) = (PARKED, 0);
        self.used -= entry.weight;
        self.count -= 1;
        self.arena.forget(index);
    }
}

impl<R: RankingRule> StepwisePolicy for RankedPolicy<R> {
    fn step(&mut self, room: u64, _: usize, evict: &mut dyn FnMut(u64) -> bool) -> EvictionStep {
        let mut lowest = self.ranking.lowest(&self.arena);
        if lowest.is_none() {
            self.unpark_oldest();
            lowest = self.ranking.lowest(&self.arena);
        }
        let Some(victim) = lowest else { return EvictionStep::Nothing };
        if !self.ranking.may_leave(room) {
            return EvictionStep::Nothing;
        }
        let is_given_up = evict(self.arena.entry(victim).id);
        if is_given_up {
            self.ranking.take_victim(&mut self.arena, victim);
            self.forget(victim);
            self.unpark_oldest();
        } else {
            self.ranking.take_to_park(&mut self.arena, victim);
            self.arena.link(&mut self.parked, victim);
        }
        EvictionStep::answered(is_given_up)
    }
}

impl<R: RankingRule> Policy for RankedPolicy<R> {
    fn name(&self) -> &'static str {
        self.ranking.name()
    }

    fn reference(&mut self, id: u64, weight: u64, _: StreamId, evict: &mut dyn FnMut(u64) -> bool) -> AccessResult {
        self.ranking.begin(&mut self.arena, self.count);
        if let Some(index) = self.arena.find(id) {
            if self.is_parked(index) {
                self.unpark(index, true);
            } else {
                self.ranking.raise(&mut self.arena, index);
            }
            return AccessResult::Hit;
        }
        let weight = weight.max(1);
        if weight > self.capacity || !make_room(self, weight, REFUSALS_MAX, evict) {
            return AccessResult::Bypassed;
        }
        let Some(index) = self.arena.add(id, weight) else { return AccessResult::Bypassed };
        self.ranking.add(&mut self.arena, index);
        self.used += weight;
        self.count += 1;
        AccessResult::Inserted
    }

    fn prepare(&self, id: u64) {
        self.arena.prepare(id);
    }

    fn references(&self, id: u64) -> u32 {
        self.arena.find(id).map_or(0, |index| self.ranking.references(&self.arena, index))
    }

    fn credit(&mut self, id: u64, references: u32) {
        let Some(index) = self.arena.find(id) else { return };
        if !self.ranking.credit(&mut self.arena, index, references) {
            return;
        }
        if self.is_parked(index) {
            self.arena.unlink(&mut self.parked, index);
        } else {
            self.ranking.take(&mut self.arena, index);
        }
        self.ranking.put_back(&mut self.arena, index, false);
    }

    fn remove(&mut self, id: u64) -> bool {
        let Some(index) = self.arena.find(id) else { return false };
        if self.is_parked(index) {
            self.arena.unlink(&mut self.parked, index);
        } else {
            self.ranking.take(&mut self.arena, index);
        }
        self.forget(index);
        true
    }

    fn contains(&self, id: u64) -> bool {
        self.arena.find(id).is_some()
    }

    fn set_capacity(&mut self, capacity: u64, evict: &mut dyn FnMut(u64) -> bool) {
        self.capacity = capacity;
        let refusals_max = self.count;
        make_room(self, 0, refusals_max, evict);
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn used(&self) -> u64 {
        self.used
    }

    fn len(&self) -> usize {
        self.count
    }
}
