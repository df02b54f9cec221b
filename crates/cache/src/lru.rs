//! LRU: the least recently used id leaves first.
//!
//! One queue ordered by the last reference. A hit moves its id to the newest end; a victim is taken from the oldest end.
//! It adapts at once and needs one link of bookkeeping, but a single scan over more ids than fit replaces everything,
//! and each hit writes to the queue, so concurrent readers contend for it. It is here as the yardstick that every other
//! policy is measured against, and for callers whose references have no scans.
//!
//! Invariants: (1) the queue holds exactly the resident ids; (2) an id is newer than every id that was last referenced
//! before it, save that a refused victim counts as referenced when it is refused.
//!
//! Cost: O(1) a reference plus O(1) a victim; 38 bytes a resident id.
//!
//! Source: P. J. Denning, "The working set model for program behavior", CACM 11(5), 1968, and folklore.

use crate::arena::{Arena, Queue};
use crate::eviction::{Evicts, Step, make_room};
use crate::policy::{Access, Policy, REFUSALS_MAX, Stream};

/// Least recently used, over weighted ids.
#[derive(Debug)]
pub struct Lru {
    capacity: u64,
    arena: Arena,
    queue: Queue,
}

impl Lru {
    /// An empty policy of `capacity` units of weight.
    pub fn new(capacity: u64) -> Lru {
        Lru { capacity, arena: Arena::new(), queue: Queue::new(0) }
    }
}

impl Evicts for Lru {
    fn step(&mut self, _: u64, _: usize, evict: &mut dyn FnMut(u64) -> bool) -> Step {
        let Some(victim) = self.queue.oldest() else { return Step::Nothing };
        let is_given_up = evict(self.arena.entry(victim).id);
        if is_given_up {
            self.arena.remove(&mut self.queue, victim);
        } else {
            self.arena.refresh(&mut self.queue, victim);
        }
        Step::answered(is_given_up)
    }
}

impl Policy for Lru {
    fn name(&self) -> &'static str {
        "lru"
    }

    fn reference(&mut self, id: u64, weight: u64, _: Stream, evict: &mut dyn FnMut(u64) -> bool) -> Access {
        if let Some(index) = self.arena.find(id) {
            self.arena.refresh(&mut self.queue, index);
            return Access::Hit;
        }
        let weight = weight.max(1);
        if weight > self.capacity || !make_room(self, weight, REFUSALS_MAX, evict) {
            return Access::Bypassed;
        }
        if self.arena.insert(&mut self.queue, id, weight) { Access::Inserted } else { Access::Bypassed }
    }

    fn remove(&mut self, id: u64) -> bool {
        let Some(index) = self.arena.find(id) else { return false };
        self.arena.remove(&mut self.queue, index);
        true
    }

    fn contains(&self, id: u64) -> bool {
        self.arena.find(id).is_some()
    }

    fn set_capacity(&mut self, capacity: u64, evict: &mut dyn FnMut(u64) -> bool) {
        self.capacity = capacity;
        let refusals_max = self.queue.count;
        make_room(self, 0, refusals_max, evict);
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn used(&self) -> u64 {
        self.queue.weight
    }

    fn len(&self) -> usize {
        self.queue.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refer(policy: &mut Lru, id: u64, weight: u64) -> (Access, Vec<u64>) {
        let mut victims = Vec::new();
        let access = policy.reference(id, weight, Stream::default(), &mut |victim| {
            victims.push(victim);
            true
        });
        (access, victims)
    }

    #[test]
    fn the_least_recently_used_leaves_first() {
        let mut policy = Lru::new(3);
        for id in [1, 2, 3, 1] {
            refer(&mut policy, id, 1);
        }
        assert_eq!(refer(&mut policy, 4, 2), (Access::Inserted, vec![2, 3]));
        assert_eq!((policy.used(), policy.len()), (3, 2));
    }

    #[test]
    fn what_is_heavier_than_the_capacity_evicts_nothing() {
        let mut policy = Lru::new(3);
        refer(&mut policy, 1, 3);
        assert_eq!(refer(&mut policy, 2, 4), (Access::Bypassed, vec![]));
        assert!(policy.contains(1));
    }
}
