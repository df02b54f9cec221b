//! MRU: the id that was referenced last leaves first.
//!
//! One queue ordered by the last reference, and the victim is its newest. For a loop over more ids than fit this is the
//! best that can be done without knowing the future: it keeps a part of the loop and lets the rest pass, where LRU and
//! FIFO evict each id just before it comes again and never hit. For everything else it is ruinous, as what it keeps is
//! what came first, however long ago. So it is a building stone for policies that detect loops, not a default.
//!
//! # Invariants
//! 1. The queue holds exactly the resident ids.
//! 2. An id is newer than every id that was last referenced before it, save that a refused victim becomes the oldest: it
//!    is offered again only when all others are gone or refused.
//!
//! # Cost
//! O(1) a reference plus O(1) a victim; 38 bytes a resident id.
//!
//! # Source
//! H.-T. Chou, D. J. DeWitt, "An evaluation of buffer management strategies for relational database systems", VLDB 1985.

use crate::arena::{Arena, Queue};
use crate::eviction::{Evicts, Step, make_room};
use crate::policy::{Access, Policy, REFUSALS_MAX, Stream};

/// Most recently used, over weighted ids.
#[derive(Debug)]
pub struct Mru {
    capacity: u64,
    arena: Arena,
    queue: Queue,
}

impl Mru {
    /// An empty policy of `capacity` units of weight.
    pub fn new(capacity: u64) -> Mru {
        Mru { capacity, arena: Arena::new(), queue: Queue::new(0) }
    }
}

impl Evicts for Mru {
    fn step(&mut self, _: u64, _: usize, evict: &mut dyn FnMut(u64) -> bool) -> Step {
        let Some(victim) = self.queue.newest() else { return Step::Nothing };
        let is_given_up = evict(self.arena.entry(victim).id);
        if is_given_up {
            self.arena.remove(&mut self.queue, victim);
        } else {
            self.arena.unlink(&mut self.queue, victim);
            self.arena.link_oldest(&mut self.queue, victim);
        }
        Step::answered(is_given_up)
    }
}

impl Policy for Mru {
    fn name(&self) -> &'static str {
        "mru"
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
