//! MIN: the id whose next reference is farthest away leaves; the best that any policy could have done.
//!
//! # Idea
//! With the whole trace at hand ([`Future`]) the victim is the id whose next access is furthest away. No policy that
//! admits every miss has fewer misses over ids of equal weight. A policy that may bypass newcomers does better by a
//! few: [`Min::bypassing`] inserts no id whose next reference is farther away than those of all residents. With
//! different weights both are good, but not optimal: that is as hard as packing a knapsack.
//!
//! The n-th call of `reference` counts as the n-th reference of the trace, so MIN is for simulations only and is made
//! by its own function, not by name. References after the trace's end count as never to come again.
//!
//! # What happens
//! | event | |
//! |---|---|
//! | hit | the id's key becomes its next reference |
//! | miss | taken in with its next reference as key; if bypassing and that is not before all residents' keys, let pass |
//! | room is needed | the id with the highest key leaves |
//! | victim refused | it is *parked* with its key; after the next victim that is given up, or when all others are parked too, it returns |
//!
//! # Invariants
//! 1. A resident id is in the heap, keyed by its next reference, or parked with that key in its `place`.
//! 2. The keys of resident ids are positions that are still to come, if the calls are those of the trace.
//!
//! # Cost
//! O(log n) a reference. 51 to 61 bytes a resident id, and 4 bytes a reference for the future, shared by all runs over it.
//!
//! # Source
//! L. A. Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 5(2), 1966; with
//! bypassing: R. L. Mattson et al., "Evaluation techniques for storage hierarchies", IBM Systems Journal 9(2), 1970.

use std::sync;

use hashbrown::HashMap;

use crate::eviction::{Evicts, Step, make_room};
use crate::policy::{Access, Policy, REFUSALS_MAX, Stream};
use crate::structures::arena::{Arena, Queue};
use crate::structures::heap::Heap;

/// The next reference of an id that never comes again; so a trace has at most this many references.
const NEVER: u32 = u32::MAX;

const IN_HEAP: u8 = 0;
const PARKED: u8 = 1;

/// For each reference of a trace the position of the next one to the same id. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Future(sync::Arc<[u32]>);

impl Future {
    /// Looks into the future of a trace of ids; `None` if it has more than 2^32 - 1 references.
    pub fn of(ids: &[u64]) -> Option<Future> {
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
        Some(Future(next_references.into()))
    }
}

/// Belady's MIN, over weighted ids.
///
/// ```
/// use nectary_cache::{Access, Future, Min, Policy, Stream};
///
/// let ids = [1, 2, 3, 1, 2, 4, 1, 2];
/// let mut policy = Min::new(2, &Future::of(&ids).expect("short"));
/// let misses = ids.iter().filter(|&&id| policy.reference(id, 1, Stream(0), &mut |_| true) != Access::Hit).count();
/// assert_eq!(misses, 6);
/// ```
#[derive(Debug)]
pub struct Min {
    is_bypassing: bool,
    capacity: u64,
    used: u64,
    count: usize,
    future: Future,
    now: usize,
    /// The next reference of the newcomer for which room is made, if it may be bypassed.
    newcomer: Option<u32>,
    arena: Arena,
    heap: Heap,
    parked: Queue,
}

impl Min {
    /// An empty policy of `capacity` units of weight that takes every miss in.
    pub fn new(capacity: u64, future: &Future) -> Min {
        Min {
            is_bypassing: false,
            capacity,
            used: 0,
            count: 0,
            future: future.clone(),
            now: 0,
            newcomer: None,
            arena: Arena::new(),
            heap: Heap::new(),
            parked: Queue::new(PARKED),
        }
    }

    /// An empty policy of `capacity` units of weight that bypasses an id which would be the next victim.
    pub fn bypassing(capacity: u64, future: &Future) -> Min {
        Min { is_bypassing: true, ..Min::new(capacity, future) }
    }

    fn unpark_oldest(&mut self) {
        if let Some(oldest) = self.parked.oldest() {
            let key = self.arena.entry(oldest).place;
            self.unpark(oldest, key);
        }
    }

    fn unpark(&mut self, index: u32, key: u32) {
        self.arena.unlink(&mut self.parked, index);
        self.arena.entry_mut(index).queue = IN_HEAP;
        self.heap.push(&mut self.arena, index, key);
    }

    /// Forgets an id that is neither in the heap nor parked any more.
    fn forget(&mut self, index: u32) {
        self.used -= self.arena.entry(index).weight;
        self.count -= 1;
        self.arena.forget(index);
    }
}

impl Evicts for Min {
    fn step(&mut self, _: u64, _: usize, evict: &mut dyn FnMut(u64) -> bool) -> Step {
        if self.heap.highest().is_none() {
            self.unpark_oldest();
        }
        let Some((key, victim)) = self.heap.highest() else { return Step::Nothing };
        if self.newcomer.is_some_and(|newcomer| newcomer >= key) {
            return Step::Nothing;
        }
        let is_given_up = evict(self.arena.entry(victim).id);
        self.heap.remove(&mut self.arena, victim);
        if is_given_up {
            self.forget(victim);
            self.unpark_oldest();
        } else {
            self.arena.link(&mut self.parked, victim);
            self.arena.entry_mut(victim).place = key;
        }
        Step::answered(is_given_up)
    }
}

impl Policy for Min {
    fn name(&self) -> &'static str {
        "min"
    }

    fn reference(&mut self, id: u64, weight: u64, _: Stream, evict: &mut dyn FnMut(u64) -> bool) -> Access {
        let next = self.future.0.get(self.now).copied().unwrap_or(NEVER);
        self.now += 1;
        if let Some(index) = self.arena.find(id) {
            if self.arena.entry(index).queue == PARKED {
                self.unpark(index, next);
            } else {
                self.heap.change(&mut self.arena, index, next);
            }
            return Access::Hit;
        }
        let weight = weight.max(1);
        if weight > self.capacity {
            return Access::Bypassed;
        }
        self.newcomer = self.is_bypassing.then_some(next);
        let has_room = make_room(self, weight, REFUSALS_MAX, evict);
        self.newcomer = None;
        if !has_room {
            return Access::Bypassed;
        }
        let Some(index) = self.arena.add(id, weight) else { return Access::Bypassed };
        self.heap.push(&mut self.arena, index, next);
        self.used += weight;
        self.count += 1;
        Access::Inserted
    }

    fn prepare(&self, id: u64) {
        self.arena.prepare(id);
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
