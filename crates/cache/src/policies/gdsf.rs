//! GDSF (greedy dual size frequency): evicts the id with the fewest accesses per unit of size; ids that are no longer
//! accessed lose value.
//!
//! # Idea
//! A miss costs the same for any size, so memory is best used for the ids that avoid most misses per byte. The worth of
//! an id is the number of its references since its insertion, divided by its weight, plus the *age*: the worth of the
//! last victim. So every new or recently accessed id has a higher worth than all evicted ones, and newcomers overtake
//! ids that are no longer accessed, even if those were very popular.
//!
//! With equal weights GDSF is the same as LFU that ages by the frequency of its victims (LFU-DA). It raises the hit
//! rate of requests and lowers the hit rate of bytes, because it prefers small ids.
//!
//! # What happens
//! | event | |
//! |---|---|
//! | hit | references + 1, up to 65,535; worth recomputed with the current age |
//! | miss | references 1 |
//! | room is needed | evicts the id of the lowest worth, among equals the one whose worth was computed first; its worth becomes the age |
//! | victim refused | it is *parked* with its references; after the next eviction, or when all others are parked too, it returns with a newly computed worth |
//!
//! # Invariants
//! 1. A resident id is in the heap, or it is parked because its eviction was refused.
//! 2. The age never falls, and no worth in the heap is below the age.
//!
//! # Cost
//! O(log n) per reference and per victim; 67 to 77 bytes per resident id. Worth is a floating-point number of 64 bits: if
//! the age is 2^53 times the worth of a reference, which takes as many victims, the order is that of the last references.
//!
//! # Source
//! L. Cherkasova, "Improving WWW proxies performance with greedy-dual-size-frequency caching policy", HP Laboratories
//! report HPL-98-69R1, 1998; after P. Cao, S. Irani, "Cost-aware WWW proxy caching algorithms", USITS 1997.

use std::cmp::Reverse;

use crate::policies::ranked::{RankedPolicy, RankingRule};
use crate::structures::arena::Arena;
use crate::structures::heap::Heap;

/// The worth of one reference to an id of weight 1. Any unit gives the same order; this one also rounds as other
/// programs do.
const WORTH_UNIT: f64 = 1e6;

const IN_HEAP: u8 = 0;

/// The bits of an id's worth, which is not negative, so that they are in the order of the worths; and the time of its computation: among equal worths, the one computed earlier is lower.
type Worth = Reverse<(u64, u64)>;

/// Greedy dual size frequency, over weighted ids.
pub type Gdsf = RankedPolicy<ByWorth>;

impl Gdsf {
    /// An empty policy of `capacity` units of weight.
    pub fn new(capacity: u64) -> Gdsf {
        RankedPolicy::of(capacity, ByWorth { age: 0.0, now: 0, heap: Heap::new() })
    }
}

/// Ids ordered by worth.
#[derive(Debug)]
pub struct ByWorth {
    /// The worth of the last victim.
    age: f64,
    now: u64,
    heap: Heap<Worth>,
}

impl ByWorth {
    /// Computes the worth of an entry that is referenced now.
    fn worth(&mut self, arena: &Arena, index: u32) -> Worth {
        self.now += 1;
        let entry = arena.entry(index);
        let own = f64::from(entry.hits) * WORTH_UNIT / entry.weight as f64;
        Reverse(((self.age + own).to_bits(), self.now))
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

/// The memory of `count` ids. *Units*: bytes.
pub(crate) fn bytes_of(count: usize) -> u64 {
    Arena::bytes_of(count) + Heap::<Worth>::bytes_of(count)
}

impl RankingRule for ByWorth {
    fn name(&self) -> &'static str {
        "gdsf"
    }

    fn lowest(&mut self, _: &Arena) -> Option<u32> {
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
            self.age = f64::from_bits(worth);
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
        entry.hits = entry.hits.max(u16::try_from(references).unwrap_or(u16::MAX));
        true
    }
}
