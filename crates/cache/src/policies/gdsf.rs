//! GDSF (greedy dual size frequency): the id with the fewest accesses for its size leaves first, and ids that
//! were not accessed lately are worth less and less.
//!
//! # Idea
//! A miss costs the same for any size, so memory is best spent on the ids that save most misses for each byte. An id is
//! worth the number of its references since it came, over its weight. To this the *age* is added: the worth of the last
//! victim. So every new or recently accessed id starts above all evicted ones, and newcomers overtake ids that are no
//! longer accessed, however popular they were.
//!
//! With equal weights it is LFU that ages by its victims (LFU-DA). It raises the share of requests that hit, and lowers
//! that of bytes, as it keeps small ids first.
//!
//! # What happens
//! | event | |
//! |---|---|
//! | hit | references + 1, up to 255; worth computed again, with the current age |
//! | miss | references 1 |
//! | room is needed | the id of the lowest worth leaves, among equals the one that has had its worth for longest; its worth is the age |
//! | victim refused | it is *parked* with its references; after the next victim that is given up, or when all others are parked too, it returns with a worth of now |
//!
//! # Invariants
//! 1. A resident id is in the heap or parked.
//! 2. Age never falls, and no worth in the heap is below it.
//!
//! # Cost
//! O(log n) a reference and a victim; 67 to 77 bytes a resident id. Worth is counted in 2^-28 of a reference a unit of
//! weight, in 64 bits: with unit weights they last for 2^36 times the capacity in victims; then all are equal, and the order that
//! of the last references.
//!
//! # Source
//! L. Cherkasova, "Improving WWW proxies performance with greedy-dual-size-frequency caching policy", HP Laboratories report
//! HPL-98-69R1, 1998; after P. Cao, S. Irani, "Cost-aware WWW proxy caching algorithms", USITS 1997.

use std::cmp::Reverse;

use crate::eviction::{Evicts, Step, make_room};
use crate::policy::{Access, Policy, REFUSALS_MAX, Stream};
use crate::structures::arena::{Arena, Queue};
use crate::structures::heap::Heap;

/// One reference to an id of weight 1.
const WORTH_UNIT: u64 = 1 << 28;

const IN_HEAP: u8 = 0;
const PARKED: u8 = 1;

/// An id's worth, and the time when it was computed: of equal ones the earlier is the lower.
type Worth = Reverse<(u64, u64)>;

/// Greedy dual size frequency, over weighted ids.
#[derive(Debug)]
pub struct Gdsf {
    capacity: u64,
    used: u64,
    count: usize,
    /// The worth of the last victim.
    age: u64,
    now: u64,
    arena: Arena,
    heap: Heap<Worth>,
    parked: Queue,
}

impl Gdsf {
    /// An empty policy of `capacity` units of weight.
    pub fn new(capacity: u64) -> Gdsf {
        Gdsf {
            capacity,
            used: 0,
            count: 0,
            age: 0,
            now: 0,
            arena: Arena::new(),
            heap: Heap::new(),
            parked: Queue::new(PARKED),
        }
    }

    /// The worth of an entry that is referenced now.
    fn worth(&mut self, index: u32) -> Worth {
        self.now += 1;
        let entry = self.arena.entry(index);
        let own = (u64::from(entry.hits) * WORTH_UNIT / entry.weight).max(1);
        Reverse((self.age.saturating_add(own), self.now))
    }

    fn push(&mut self, index: u32) {
        let worth = self.worth(index);
        self.arena.entry_mut(index).queue = IN_HEAP;
        self.heap.push(&mut self.arena, index, worth);
    }

    /// One more reference to a resident id.
    fn promote(&mut self, index: u32) {
        let hits = self.arena.entry(index).hits.saturating_add(1);
        self.set_hits(index, hits);
    }

    fn set_hits(&mut self, index: u32, hits: u8) {
        let entry = self.arena.entry_mut(index);
        entry.hits = hits;
        if entry.queue == PARKED {
            self.arena.unlink(&mut self.parked, index);
            self.push(index);
        } else {
            let worth = self.worth(index);
            self.heap.change(&mut self.arena, index, worth);
        }
    }

    fn unpark_oldest(&mut self) -> bool {
        let Some(oldest) = self.parked.oldest() else { return false };
        self.arena.unlink(&mut self.parked, oldest);
        self.push(oldest);
        true
    }

    /// Forgets an id that is neither in the heap nor parked.
    fn forget(&mut self, index: u32) {
        self.used -= self.arena.entry(index).weight;
        self.count -= 1;
        self.arena.forget(index);
    }
}

impl Evicts for Gdsf {
    fn step(&mut self, _: u64, _: usize, evict: &mut dyn FnMut(u64) -> bool) -> Step {
        let highest = match self.heap.highest() {
            None if self.unpark_oldest() => self.heap.highest(),
            highest => highest,
        };
        let Some((Reverse((worth, _)), victim)) = highest else { return Step::Nothing };
        let is_given_up = evict(self.arena.entry(victim).id);
        self.heap.remove(&mut self.arena, victim);
        if is_given_up {
            self.age = worth;
            self.forget(victim);
            self.unpark_oldest();
        } else {
            self.arena.link(&mut self.parked, victim);
        }
        Step::answered(is_given_up)
    }
}

impl Policy for Gdsf {
    fn name(&self) -> &'static str {
        "gdsf"
    }

    fn reference(&mut self, id: u64, weight: u64, _: Stream, evict: &mut dyn FnMut(u64) -> bool) -> Access {
        if let Some(index) = self.arena.find(id) {
            self.promote(index);
            return Access::Hit;
        }
        let weight = weight.max(1);
        if weight > self.capacity || !make_room(self, weight, REFUSALS_MAX, evict) {
            return Access::Bypassed;
        }
        let Some(index) = self.arena.add(id, weight) else { return Access::Bypassed };
        self.arena.entry_mut(index).hits = 1;
        self.push(index);
        self.used += weight;
        self.count += 1;
        Access::Inserted
    }

    fn prepare(&self, id: u64) {
        self.arena.prepare(id);
    }

    fn references(&self, id: u64) -> u32 {
        self.arena.find(id).map_or(0, |index| u32::from(self.arena.entry(index).hits))
    }

    fn credit(&mut self, id: u64, references: u32) {
        if let Some(index) = self.arena.find(id) {
            let hits = self.arena.entry(index).hits.max(references.min(u32::from(u8::MAX)) as u8);
            self.set_hits(index, hits);
        }
    }

    fn remove(&mut self, id: u64) -> bool {
        let Some(index) = self.arena.find(id) else { return false };
        if self.arena.entry(index).queue == PARKED {
            self.arena.unlink(&mut self.parked, index);
        } else {
            self.heap.remove(&mut self.arena, index);
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
