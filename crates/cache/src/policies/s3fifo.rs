//! S3-FIFO: three first-in-first-out queues; ids referenced once are evicted soon, ids referenced again stay.
//!
//! # Idea
//! In web and block traces most inserted ids are not referenced again before their eviction. LRU moves each of them
//! through the whole cache. S3-FIFO lets a newcomer pass through a *small* queue of a tenth of the capacity and moves
//! it into the *main* queue only if it was hit there; the others are evicted early, but their ids stay in a *ghost*
//! queue, and a referenced ghost goes directly into main. A scan therefore replaces only a tenth of the cache. A hit
//! only raises a counter of two bits: nothing moves, so hits are cheap and could be batched or made concurrent.
//!
//! # What happens
//! | event | in small | in main | in ghost | unknown |
//! |---|---|---|---|---|
//! | reference | hits + 1, at most 3 | hits + 1, at most 3 | to main, hits 0 | to small, hits 0 [1] |
//! | oldest when room is needed | hits > 1: to main, hits 0; else evicted, id to ghost | hits > 0: newest again, hits - 1; else evicted | forgotten when the ghosts outweigh main's share | |
//! | victim refused | to main | newest of main again | | |
//!
//! [1] A newcomer goes to main while the cache fills for the first time and small has reached its share. Otherwise a
//! cache that is filled by one pass of a loop would have everything in small, evict all of it in the next pass and
//! never hit. The authors' programs do the same; the paper does not mention it.
//!
//! The small queue gives victims while it weighs at least its tenth, the main queue otherwise. A refused victim is in
//! use, so it moves as if it had been hit. After every refusal the other queue gives the next victim, so that pinned
//! ids in one queue do not block the other.
//!
//! # Weights
//! Shares are measured in weight. Ghosts keep their former weight and together have at most main's share (90 %), so
//! there are about as many of them as resident ids. An id heavier than the small share passes through small too and
//! evicts everything else from it.
//!
//! # Invariants
//! 1. An id is in at most one of the three queues; it is resident if it is in small or main.
//! 2. small.weight + main.weight is at most the capacity after each call, except after refusals in `set_capacity`.
//! 3. ghost.weight is at most nine tenths of the capacity.
//!
//! # Cost
//! O(1) amortised per reference: a hit causes at most one later second chance, an insertion at most one move to main
//! and one to the ghosts. 43 to 54 bytes per resident id or ghost.
//!
//! # Source
//! J. Yang, Y. Zhang, Z. Qiu, Y. Yue, K. V. Rashmi, "FIFO queues are all you need for cache eviction", SOSP 2023,
//! algorithm 1. Refusals and weights are not in the paper.

use crate::eviction::{EvictionStep, StepwisePolicy, make_room};
use crate::policy::{AccessResult, Policy, REFUSALS_MAX, StreamId};
use crate::structures::arena::{Arena, ArenaQueue};

/// The small queue's share is the capacity divided by `SMALL_DIVISOR`.
const SMALL_DIVISOR: u64 = 10;
/// The highest count of hits.
const HITS_MAX: u16 = 3;
/// An id in small moves to main if it has more hits than `HITS_TO_MAIN`.
const HITS_TO_MAIN: u16 = 1;

const SMALL: u8 = 0;
const MAIN: u8 = 1;
const GHOST: u8 = 2;

/// S3-FIFO, over weighted ids.
#[derive(Debug, Clone)]
pub struct S3Fifo {
    capacity: u64,
    arena: Arena,
    small: ArenaQueue,
    main: ArenaQueue,
    ghost: ArenaQueue,
    /// Whether an id was ever offered as a victim.
    was_full: bool,
}

impl S3Fifo {
    /// An empty policy of `capacity` units of weight.
    pub fn new(capacity: u64) -> S3Fifo {
        S3Fifo {
            capacity,
            arena: Arena::new(),
            small: ArenaQueue::new(SMALL),
            main: ArenaQueue::new(MAIN),
            ghost: ArenaQueue::new(GHOST),
            was_full: false,
        }
    }

    /// The number of evicted ids that are remembered. *Units*: ids.
    pub fn ghost_count(&self) -> usize {
        self.ghost.count
    }

    fn small_share(&self) -> u64 {
        self.capacity / SMALL_DIVISOR
    }

    /// The largest weight of all ghosts: nine tenths of the capacity, rounded down as in the authors' programs.
    fn ghost_share(&self) -> u64 {
        self.capacity - self.capacity.div_ceil(SMALL_DIVISOR)
    }

    /// Walks through the small queue until it has offered an id or moved all ids to main.
    fn evict_from_small(&mut self, evict: &mut dyn FnMut(u64) -> bool) -> EvictionStep {
        while let Some(oldest) = self.small.oldest() {
            let entry = self.arena.entry_mut(oldest);
            let to_main = entry.hits > HITS_TO_MAIN;
            if to_main || !evict(entry.id) {
                entry.hits = 0;
                self.arena.transfer(&mut self.small, &mut self.main, oldest);
                if to_main {
                    continue;
                }
                return EvictionStep::Refused;
            }
            self.arena.transfer(&mut self.small, &mut self.ghost, oldest);
            self.trim_ghost();
            break;
        }
        EvictionStep::Done
    }

    /// Makes one step of the main queue: gives its oldest id a second chance, or offers it to `evict`.
    fn evict_from_main(&mut self, oldest: u32, evict: &mut dyn FnMut(u64) -> bool) -> EvictionStep {
        let entry = *self.arena.entry(oldest);
        if entry.hits > 0 {
            self.arena.entry_mut(oldest).hits -= 1;
        } else if evict(entry.id) {
            self.arena.remove(&mut self.main, oldest);
            return EvictionStep::Done;
        }
        self.arena.refresh(&mut self.main, oldest);
        EvictionStep::answered(entry.hits > 0)
    }

    fn trim_ghost(&mut self) {
        while self.ghost.weight > self.ghost_share() {
            let Some(oldest) = self.ghost.oldest() else { return };
            self.arena.remove(&mut self.ghost, oldest);
        }
    }
}

/// The memory of a policy of `count` units of weight 1. *Units*: bytes.
pub(crate) fn bytes_of(count: usize) -> u64 {
    Arena::bytes_of(count + S3Fifo::new(count as u64).ghost_share() as usize)
}

impl StepwisePolicy for S3Fifo {
    fn step(&mut self, _: u64, refusals: usize, evict: &mut dyn FnMut(u64) -> bool) -> EvictionStep {
        self.was_full = true;
        // After a refusal the other queue gives the next victim, so that pinned ids in one queue do not block the
        // other.
        let is_small_turn = (self.small.weight >= self.small_share()) != (refusals % 2 == 1);
        match (self.small.oldest(), self.main.oldest()) {
            (Some(_), main) if is_small_turn || main.is_none() => self.evict_from_small(evict),
            (_, Some(oldest)) => self.evict_from_main(oldest, evict),
            (_, None) => EvictionStep::Nothing,
        }
    }
}

impl Policy for S3Fifo {
    fn name(&self) -> &'static str {
        "s3fifo"
    }

    fn reference(&mut self, id: u64, weight: u64, _: StreamId, evict: &mut dyn FnMut(u64) -> bool) -> AccessResult {
        let weight = weight.max(1);
        let known = self.arena.find(id);
        let was_ghost = known.is_some_and(|index| self.arena.entry(index).queue == GHOST);
        if let Some(index) = known.filter(|_| !was_ghost) {
            let entry = self.arena.entry_mut(index);
            entry.hits = (entry.hits + 1).min(HITS_MAX);
            return AccessResult::Hit;
        }
        if weight > self.capacity {
            return AccessResult::Bypassed;
        }
        // The ghost is removed first, because making room may forget it and reuse its entry.
        if let Some(index) = known {
            self.arena.remove(&mut self.ghost, index);
        }
        if !make_room(self, weight, REFUSALS_MAX, evict) {
            return AccessResult::Bypassed;
        }
        let is_filling = !self.was_full && self.small.weight >= self.small_share();
        let queue = if was_ghost || is_filling { &mut self.main } else { &mut self.small };
        if self.arena.insert(queue, id, weight) { AccessResult::Inserted } else { AccessResult::Bypassed }
    }

    fn prepare(&self, id: u64) {
        self.arena.prepare(id);
    }

    fn remove(&mut self, id: u64) -> bool {
        let Some(index) = self.arena.find(id) else { return false };
        let queue = match self.arena.entry(index).queue {
            SMALL => &mut self.small,
            MAIN => &mut self.main,
            _ => {
                self.arena.remove(&mut self.ghost, index);
                return false;
            }
        };
        self.arena.remove(queue, index);
        true
    }

    fn contains(&self, id: u64) -> bool {
        self.arena.find(id).is_some_and(|index| self.arena.entry(index).queue != GHOST)
    }

    fn set_capacity(&mut self, capacity: u64, evict: &mut dyn FnMut(u64) -> bool) {
        self.capacity = capacity;
        // The queues give victims in turn, and an id of main may be offered four times before the hits of another id
        // are used up; so every id has been offered after eight times as many refusals as there are ids.
        let refusals_max = 8 * self.len();
        make_room(self, 0, refusals_max, evict);
        self.trim_ghost();
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn used(&self) -> u64 {
        self.small.weight + self.main.weight
    }

    fn len(&self) -> usize {
        self.small.count + self.main.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refer(policy: &mut S3Fifo, id: u64) -> AccessResult {
        policy.reference(id, 1, StreamId::default(), &mut |_| true)
    }

    #[test]
    fn scan_spares_ids_hit_twice() {
        let mut policy = S3Fifo::new(100);
        for round in 0..3 {
            for id in 0..50 {
                assert_eq!(refer(&mut policy, id) == AccessResult::Hit, round > 0);
            }
        }
        for id in 1000..2000 {
            refer(&mut policy, id);
        }
        assert!((0..50).all(|id| policy.contains(id)));
    }

    #[test]
    fn returning_ghost_goes_to_main() {
        let mut policy = S3Fifo::new(10);
        for id in 0..11 {
            refer(&mut policy, id);
        }
        assert!(!policy.contains(0));
        assert_eq!(policy.ghost_count(), 1);
        assert_eq!(refer(&mut policy, 0), AccessResult::Inserted);
        assert_eq!((policy.main.count, policy.small.count), (10, 0), "all but the first filled main");
        assert!(policy.remove(0));
        assert!(!policy.contains(0));
    }

    #[test]
    fn a_removed_ghost_is_forgotten() {
        let mut policy = S3Fifo::new(10);
        for id in 0..11 {
            refer(&mut policy, id);
        }
        assert!(!policy.remove(0), "a ghost is not resident");
        assert_eq!(policy.ghost_count(), 0);
        refer(&mut policy, 0);
        assert_eq!((policy.main.count, policy.small.count), (9, 1));
    }

    #[test]
    fn pinned_newcomers_spare_main() {
        let mut policy = S3Fifo::new(100);
        for id in [0, 0, 0].into_iter().flat_map(|first| first..80).chain(100..120) {
            refer(&mut policy, id);
        }
        let access = policy.reference(200, 1, StreamId::default(), &mut |id| id < 100);
        assert_eq!(access, AccessResult::Inserted);
    }
}
