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

use crate::policies::ranked::{Ranked, Ranking};
use crate::structures::arena::Arena;
use crate::structures::heap::Heap;

/// One reference to an id of weight 1.
const WORTH_UNIT: u64 = 1 << 28;

const IN_HEAP: u8 = 0;

/// An id's worth, and the time when it was computed: of equal ones the earlier is the lower.
type Worth = Reverse<(u64, u64)>;

/// Greedy dual size frequency, over weighted ids.
pub type Gdsf = Ranked<ByWorth>;

impl Gdsf {
    /// An empty policy of `capacity` units of weight.
    pub fn new(capacity: u64) -> Gdsf {
        Ranked::of(capacity, ByWorth { age: 0, now: 0, heap: Heap::new() })
    }
}

/// Ids by their worth.
#[derive(Debug)]
pub struct ByWorth {
    /// The worth of the last victim.
    age: u64,
    now: u64,
    heap: Heap<Worth>,
}

impl ByWorth {
    /// The worth of an entry that is referenced now.
    fn worth(&mut self, arena: &Arena, index: u32) -> Worth {
        self.now += 1;
        let entry = arena.entry(index);
        let own = (u64::from(entry.hits) * WORTH_UNIT / entry.weight).max(1);
        Reverse((self.age.saturating_add(own), self.now))
    }

    fn push(&mut self, arena: &mut Arena, index: u32) {
        let worth = self.worth(arena, index);
        arena.entry_mut(index).queue = IN_HEAP;
        self.heap.push(arena, index, worth);
    }
}

/// Counts one more reference.
fn count(arena: &mut Arena, index: u32) {
    let entry = arena.entry_mut(index);
    entry.hits = entry.hits.saturating_add(1);
}

impl Ranking for ByWorth {
    fn name(&self) -> &'static str {
        "gdsf"
    }

    fn lowest(&self) -> Option<u32> {
        self.heap.highest().map(|(_, index)| index)
    }

    fn add(&mut self, arena: &mut Arena, index: u32) {
        arena.entry_mut(index).hits = 1;
        self.push(arena, index);
    }

    fn put_back(&mut self, arena: &mut Arena, index: u32, is_hit: bool) {
        if is_hit {
            count(arena, index);
        }
        self.push(arena, index);
    }

    fn raise(&mut self, arena: &mut Arena, index: u32) {
        count(arena, index);
        let worth = self.worth(arena, index);
        self.heap.change(arena, index, worth);
    }

    fn take(&mut self, arena: &mut Arena, index: u32) {
        self.heap.remove(arena, index);
    }

    fn take_victim(&mut self, arena: &mut Arena, index: u32) {
        if let Some((Reverse((worth, _)), _)) = self.heap.highest() {
            self.age = worth;
        }
        self.take(arena, index);
    }

    fn take_to_park(&mut self, arena: &mut Arena, index: u32) {
        self.take(arena, index);
    }

    fn references(&self, arena: &Arena, index: u32) -> u32 {
        u32::from(arena.entry(index).hits)
    }

    fn credit(&mut self, arena: &mut Arena, index: u32, references: u32) -> bool {
        let entry = arena.entry_mut(index);
        entry.hits = entry.hits.max(references.min(u32::from(u8::MAX)) as u8);
        true
    }
}
