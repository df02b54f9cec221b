//! FIFO: the id that came first leaves first.
//!
//! One queue ordered by insertion; a hit changes nothing. So hits need no lock and no write, and what is written by
//! insertion order (a log, a ring of segments) can be cut off at its end; but an id that is referenced all the time
//! leaves as soon as one that is never referenced again. It is here as the plainest yardstick, and because S3-FIFO,
//! CLOCK and SIEVE are this queue with a second chance.
//!
//! # Invariants
//! 1. The queue holds exactly the resident ids.
//! 2. An id is newer than every id that was inserted before it, save that a refused victim counts as inserted again.
//!
//! # Cost
//! A hit: one look-up. A miss: O(1) and O(1) for each victim. 38 bytes a resident id.
//!
//! # Source
//! L. A. Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 5(2), 1966.

use crate::arena::{Arena, Queue};
use crate::eviction::{Evicts, Step, make_room};
use crate::policy::{Access, Policy, REFUSALS_MAX, Stream};

/// First in, first out, over weighted ids.
#[derive(Debug)]
pub struct Fifo {
    capacity: u64,
    arena: Arena,
    queue: Queue,
}

impl Fifo {
    /// An empty policy of `capacity` units of weight.
    pub fn new(capacity: u64) -> Fifo {
        Fifo { capacity, arena: Arena::new(), queue: Queue::new(0) }
    }
}

impl Evicts for Fifo {
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

impl Policy for Fifo {
    fn name(&self) -> &'static str {
        "fifo"
    }

    fn reference(&mut self, id: u64, weight: u64, _: Stream, evict: &mut dyn FnMut(u64) -> bool) -> Access {
        if self.contains(id) {
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
        let refusals_max = self.len();
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
