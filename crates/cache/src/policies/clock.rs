//! CLOCK: first in, first out, with a second chance for what was referenced since.
//!
//! # Idea
//! An approximation of LRU whose hits write one bit. Ids stand in a circle in the order of their insertion; a hand goes
//! round it. An id under the hand whose bit is set loses the bit and stays for another lap; the first without a bit is
//! the victim. The circle is a queue here: what the hand passes becomes the newest, so newcomers stand behind the hand.
//! It misses about as often as LRU on most traces, and shares LRU's weakness for scans and loops.
//!
//! # Invariants
//! 1. The queue holds exactly the resident ids; the hand stands at its oldest.
//! 2. `hits` is 1 if the id was referenced since it was inserted or passed by the hand, else 0.
//!
//! # Cost
//! A hit: one look-up and one bit. A miss: O(1) amortised, as each id passed pays with a bit that a hit has set.
//! 43 to 53 bytes a resident id.
//!
//! # Source
//! F. J. Corbató, "A paging experiment with the Multics system", MIT Project MAC Report MAC-M-384, 1968.

use crate::eviction::{Evicts, Step, make_room};
use crate::policy::{Access, Policy, REFUSALS_MAX, Stream};
use crate::structures::arena::{Arena, Queue};

/// CLOCK with one bit, over weighted ids.
#[derive(Debug)]
pub struct Clock {
    capacity: u64,
    arena: Arena,
    queue: Queue,
}

impl Clock {
    /// An empty policy of `capacity` units of weight.
    pub fn new(capacity: u64) -> Clock {
        Clock { capacity, arena: Arena::new(), queue: Queue::new(0) }
    }
}

impl Evicts for Clock {
    fn step(&mut self, _: u64, _: usize, evict: &mut dyn FnMut(u64) -> bool) -> Step {
        let Some(victim) = self.queue.oldest() else { return Step::Nothing };
        let entry = self.arena.entry_mut(victim);
        let has_second_chance = entry.hits > 0;
        entry.hits = 0;
        if !has_second_chance && evict(entry.id) {
            self.arena.remove(&mut self.queue, victim);
            return Step::Done;
        }
        self.arena.refresh(&mut self.queue, victim);
        Step::answered(has_second_chance)
    }
}

impl Policy for Clock {
    fn name(&self) -> &'static str {
        "clock"
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
