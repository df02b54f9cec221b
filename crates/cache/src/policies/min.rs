//! MIN: evicts the id whose next reference is farthest away, which gives the fewest possible misses.
//!
//! # Idea
//! The whole trace is known ([`NextReferences`]), and the victim is the id whose next access is furthest away. No policy that
//! admits every miss has fewer misses over ids of equal weight. A policy that may bypass newcomers has slightly fewer:
//! [`Min::bypassing`] does not insert an id whose next reference is farther away than those of all residents. With
//! different weights both are good but not optimal, because the optimum is as hard as the knapsack problem.
//!
//! The n-th call of `reference` counts as the n-th reference of the trace, so MIN is only for simulations and is
//! created by its own constructors, not by name. Ids referenced after the end of the trace count as never referenced
//! again.
//!
//! # What happens
//! | event | |
//! |---|---|
//! | hit | the id's key becomes its next reference |
//! | miss | inserted with its next reference as key; if bypassing, bypassed unless that key is below the highest of the residents |
//! | room is needed | evicts the id with the highest key |
//! | victim refused | it is *parked* with its key; after the next eviction, or when all others are parked too, it returns |
//!
//! # Invariants
//! 1. A resident id is in the heap, keyed by its next reference, or it is parked because its eviction was refused; then
//!    that key is in its `place`.
//! 2. The keys of resident ids are later positions in the trace, as long as the calls follow the trace.
//!
//! # Cost
//! O(log n) per reference. 51 to 61 bytes per resident id, and 4 bytes per reference of the trace for the [`NextReferences`],
//! which all simulations of the trace share.
//!
//! # Source
//! L. A. Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 5(2), 1966;
//! with bypassing: R. L. Mattson et al., "Evaluation techniques for storage hierarchies", IBM Systems Journal 9(2),
//! 1970.

use std::sync;

use hashbrown::HashMap;

use crate::policies::ranked::{RankedPolicy, RankingRule};
use crate::structures::arena::Arena;
use crate::structures::heap::Heap;

/// The value which means that an id is never referenced again. It is also the largest number of references in a trace.
const NEVER: u32 = u32::MAX;

const IN_HEAP: u8 = 0;

/// For each reference of a trace, the position of the next reference to the same id. A `NextReferences` is cheap to clone.
#[derive(Debug, Clone)]
pub struct NextReferences(sync::Arc<[u32]>);

impl NextReferences {
    /// Computes the future of a trace of ids; `None` if it has more than 2^32 - 1 references.
    pub fn of(ids: &[u64]) -> Option<NextReferences> {
        if ids.len() > NEVER as usize {
            return None;
        }
        let mut last: HashMap<u64, u32> = HashMap::new();
        let mut next_references = vec![NEVER; ids.len()];
        for (position, &id) in ids.iter().enumerate() {
            if let Some(previous) = last.insert(id, position as u32) {
                next_references[previous as usize] = position as u32;
            }
        }
        Some(NextReferences(next_references.into()))
    }
}

/// Belady's MIN, over weighted ids.
///
/// ```
/// use nectary_cache::{AccessResult, NextReferences, Min, Policy, StreamId};
///
/// let ids = [1, 2, 3, 1, 2, 4, 1, 2];
/// let mut policy = Min::new(2, &NextReferences::of(&ids).expect("short"));
/// let misses = ids.iter().filter(|&&id| policy.reference(id, 1, StreamId(0), &mut |_| true) != AccessResult::Hit).count();
/// assert_eq!(misses, 6);
/// ```
pub type Min = RankedPolicy<ByNextReference>;

impl Min {
    /// An empty policy of `capacity` units of weight that inserts every missed id.
    pub fn new(capacity: u64, future: &NextReferences) -> Min {
        RankedPolicy::of(capacity, ByNextReference::of(future, false))
    }

    /// An empty policy of `capacity` units of weight that bypasses an id if it would be the next victim.
    pub fn bypassing(capacity: u64, future: &NextReferences) -> Min {
        RankedPolicy::of(capacity, ByNextReference::of(future, true))
    }
}

/// Ids ordered by their next reference.
#[derive(Debug)]
pub struct ByNextReference {
    is_bypassing: bool,
    future: NextReferences,
    now: usize,
    /// The position of the next reference to the id that is referenced now.
    next: u32,
    heap: Heap,
}

impl ByNextReference {
    fn of(future: &NextReferences, is_bypassing: bool) -> ByNextReference {
        ByNextReference { is_bypassing, future: future.clone(), now: 0, next: NEVER, heap: Heap::new() }
    }

    fn push(&mut self, arena: &mut Arena, index: u32, key: u32) {
        arena.entry_mut(index).queue = IN_HEAP;
        self.heap.push(arena, index, key);
    }
}

impl RankingRule for ByNextReference {
    fn name(&self) -> &'static str {
        "min"
    }

    fn begin(&mut self, _: &mut Arena, _: usize) {
        self.next = self.future.0.get(self.now).copied().unwrap_or(NEVER);
        self.now += 1;
    }

    fn lowest(&mut self, _: &Arena) -> Option<u32> {
        self.heap.highest().map(|(_, index)| index)
    }

    fn may_leave(&self, room: u64) -> bool {
        let is_newcomer_last = || self.heap.highest().is_some_and(|(key, _)| self.next >= key);
        room == 0 || !self.is_bypassing || !is_newcomer_last()
    }

    fn add(&mut self, arena: &mut Arena, index: u32) {
        self.push(arena, index, self.next);
    }

    fn put_back(&mut self, arena: &mut Arena, index: u32, is_hit: bool) {
        let key = if is_hit { self.next } else { arena.entry(index).place };
        self.push(arena, index, key);
    }

    fn raise(&mut self, arena: &mut Arena, index: u32) {
        self.heap.change(arena, index, self.next);
    }

    fn take(&mut self, arena: &mut Arena, index: u32) {
        self.heap.remove(arena, index);
    }

    fn take_to_park(&mut self, arena: &mut Arena, index: u32) {
        let key = self.heap.highest().map_or(NEVER, |(key, _)| key);
        self.take(arena, index);
        arena.entry_mut(index).place = key;
    }
}
