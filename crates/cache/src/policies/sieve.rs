//! SIEVE: a hand that finds unreferenced ids in a queue that never moves.
//!
//! # Idea
//! As CLOCK, but survivors keep their place and newcomers join at the head, far from the hand. So what the hand has
//! spared is old and proven and lies together at the tail, and newcomers that are not referenced leave on the hand's
//! next lap without having pushed anything proven out (*quick demotion*, in a single queue). Hits write one bit. It is
//! as simple as FIFO, good on skewed web traces, and weak against scans after the hand has come round, as every
//! newcomer has a whole lap, and against loops, like LRU.
//!
//! # What happens
//! | event | |
//! |---|---|
//! | hit | the id's bit is set |
//! | miss | the newcomer becomes the newest, its bit clear |
//! | room is needed | from its position the hand goes towards the newest, clears set bits, and takes the first id without one; past the newest it begins again at the oldest |
//! | victim refused | it stays; the hand goes on |
//!
//! # Invariants
//! 1. The queue holds exactly the resident ids, in the order of their insertion.
//! 2. The hand is none (it then begins at the oldest) or a resident id.
//!
//! # Cost
//! A hit: one look-up and one bit. A miss: O(1) amortised, as each id passed pays with a bit that a hit has set.
//! 43 to 53 bytes a resident id.
//!
//! # Source
//! Y. Zhang, J. Yang, Y. Yue, Y. Vigfusson, K. V. Rashmi, "SIEVE is simpler than LRU", NSDI 2024.

use crate::eviction::{Evicts, Step, make_room};
use crate::policy::{Access, Policy, REFUSALS_MAX, Stream};
use crate::structures::arena::{Arena, Queue};

/// SIEVE, over weighted ids.
#[derive(Debug)]
pub struct Sieve {
    capacity: u64,
    arena: Arena,
    queue: Queue,
    /// The position of the hand; none before the oldest.
    hand: Option<u32>,
}

impl Sieve {
    /// An empty policy of `capacity` units of weight.
    pub fn new(capacity: u64) -> Sieve {
        Sieve { capacity, arena: Arena::new(), queue: Queue::new(0), hand: None }
    }
}

impl Evicts for Sieve {
    fn step(&mut self, _: u64, _: usize, evict: &mut dyn FnMut(u64) -> bool) -> Step {
        let Some(victim) = self.hand.or(self.queue.oldest()) else { return Step::Nothing };
        self.hand = self.arena.newer(victim);
        let entry = self.arena.entry_mut(victim);
        if entry.hits > 0 {
            entry.hits = 0;
            return Step::Done;
        }
        let is_given_up = evict(entry.id);
        if is_given_up {
            self.arena.remove(&mut self.queue, victim);
        }
        Step::answered(is_given_up)
    }
}

impl Policy for Sieve {
    fn name(&self) -> &'static str {
        "sieve"
    }

    fn reference(&mut self, id: u64, weight: u64, _: Stream, evict: &mut dyn FnMut(u64) -> bool) -> Access {
        if let Some(index) = self.arena.find(id) {
            self.arena.entry_mut(index).hits = 1;
            return Access::Hit;
        }
        let weight = weight.max(1);
        if weight > self.capacity || !make_room(self, weight, REFUSALS_MAX, evict) {
            return Access::Bypassed;
        }
        if self.arena.insert(&mut self.queue, id, weight) { Access::Inserted } else { Access::Bypassed }
    }

    fn prepare(&self, id: u64) {
        self.arena.prepare(id);
    }

    fn remove(&mut self, id: u64) -> bool {
        let Some(index) = self.arena.find(id) else { return false };
        if self.hand == Some(index) {
            self.hand = self.arena.newer(index);
        }
        self.arena.remove(&mut self.queue, index);
        true
    }

    fn contains(&self, id: u64) -> bool {
        self.arena.find(id).is_some()
    }

    fn set_capacity(&mut self, capacity: u64, evict: &mut dyn FnMut(u64) -> bool) {
        self.capacity = capacity;
        // An id refused on the hand's first round is offered once more before ids that had their bit set.
        let refusals_max = 2 * self.len();
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
