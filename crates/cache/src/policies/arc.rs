//! ARC: two LRU queues, and ghosts of both that move the border between them.
//!
//! # Idea
//! Blocks accessed once (T1) and more often (T2) are kept apart, so a scan evicts only from T1. The best size of T1
//! differs between traces and changes over time; ARC adapts it. It remembers the last ids that each queue evicted (B1,
//! B2). A reference to an id in B1 is a miss that a longer T1 would have avoided, so T1's target grows; a reference to
//! an id in B2 shrinks the target. There is no parameter to choose. Its ghosts cover about one capacity of evictions,
//! so on longer loops it misses as often as LRU.
//!
//! # What happens
//! | event | in T1 | in T2 | in B1 | in B2 | unknown |
//! |---|---|---|---|---|---|
//! | reference | to T2 | newest of T2 | target + max(1, B2/B1), to T2 | target - max(1, B1/B2), to T2 | to T1 |
//! | oldest when room is needed | out, id to B1 | out, id to B2 | forgotten when T1 and B1 outweigh the capacity | forgotten when all four outweigh twice the capacity | |
//! | victim refused | newest of T1 again | newest of T2 again | | | |
//!
//! T1 gives victims while it outweighs its target, or if it equals its target and the reference was to a ghost of B2;
//! otherwise T2 gives victims. After a refusal the other queue gives the next victim.
//!
//! # Weights
//! All sizes are weights, and the target moves by the referenced id's weight times the ratio. For weights of 1 this is
//! the paper's algorithm reference by reference. The paper trims the ghosts before it chooses a victim, this code
//! afterwards. The result is the same, because the oldest ghost is removed and the newest is added.
//!
//! # Invariants
//! 1. An id is in at most one of the four queues; it is resident if it is in T1 or T2.
//! 2. T1 + T2 weigh at most the capacity after each call, except after refusals in `set_capacity`.
//! 3. After a miss T1 + B1 weigh at most the capacity, and all four at most twice the capacity, unless the residents
//!    weigh more.
//! 4. The target is between 0 and the capacity.
//!
//! # Cost
//! O(1) per reference plus O(1) per victim. 43 to 53 bytes per resident id or ghost; there are about as many ghosts as
//! resident ids.
//!
//! # Source
//! N. Megiddo, D. S. Modha, "ARC: a self-tuning, low overhead replacement cache", FAST 2003, figure 4. Refusals and
//! weights are not in the paper.

use crate::eviction::{EvictionStep, StepwisePolicy, make_room};
use crate::policy::{AccessResult, Policy, REFUSALS_MAX, StreamId};
use crate::structures::arena::{Arena, ArenaQueue};

const T1: u8 = 0;
const T2: u8 = 1;
const B1: u8 = 2;
const B2: u8 = 3;

/// The adaptive replacement cache, over weighted ids.
#[derive(Debug)]
pub struct ArcPolicy {
    capacity: u64,
    arena: Arena,
    t1: ArenaQueue,
    t2: ArenaQueue,
    b1: ArenaQueue,
    b2: ArenaQueue,
    /// The target weight of T1. It is a fraction, because it changes by ratios.
    target: f64,
    /// Whether room is currently made for an id that was in B2.
    is_for_b2: bool,
}

impl ArcPolicy {
    /// An empty policy of `capacity` units of weight.
    pub fn new(capacity: u64) -> ArcPolicy {
        ArcPolicy {
            capacity,
            arena: Arena::new(),
            t1: ArenaQueue::new(T1),
            t2: ArenaQueue::new(T2),
            b1: ArenaQueue::new(B1),
            b2: ArenaQueue::new(B2),
            target: 0.0,
            is_for_b2: false,
        }
    }

    /// Moves the target after a reference to a ghost and forgets the ghost.
    fn learn(&mut self, ghost: u32, weight: u64) {
        let (b1, b2) = (self.b1.weight as f64, self.b2.weight as f64);
        if self.arena.entry(ghost).queue == B1 {
            self.target = (self.target + (b2 / b1).max(1.0) * weight as f64).min(self.capacity as f64);
            self.arena.remove(&mut self.b1, ghost);
        } else {
            self.target = (self.target - (b1 / b2).max(1.0) * weight as f64).max(0.0);
            self.arena.remove(&mut self.b2, ghost);
        }
    }

    /// Forgets ghosts until a newcomer of weight `room` fits the bounds. `is_for_t1` tells whether the newcomer will
    /// enter T1.
    fn trim_ghosts(&mut self, room: u64, is_for_t1: bool) {
        let in_t1 = if is_for_t1 { room } else { 0 };
        while self.t1.weight.saturating_add(self.b1.weight).saturating_add(in_t1) > self.capacity {
            let Some(oldest) = self.b1.oldest() else { break };
            self.arena.remove(&mut self.b1, oldest);
        }
        let residents = self.used().saturating_add(room);
        let bound = self.capacity.saturating_mul(2);
        while residents.saturating_add(self.b1.weight).saturating_add(self.b2.weight) > bound {
            if let Some(oldest) = self.b2.oldest() {
                self.arena.remove(&mut self.b2, oldest);
            } else if let Some(oldest) = self.b1.oldest() {
                self.arena.remove(&mut self.b1, oldest);
            } else {
                break;
            }
        }
    }
}

/// The memory of a policy of `count` units of weight 1: as many ghosts as ids. *Units*: bytes.
pub(crate) fn bytes_of(count: usize) -> u64 {
    Arena::bytes_of(2 * count)
}

impl StepwisePolicy for ArcPolicy {
    fn step(&mut self, _: u64, refusals: usize, evict: &mut dyn FnMut(u64) -> bool) -> EvictionStep {
        let t1 = self.t1.weight as f64;
        let is_t1_turn = (t1 > self.target || (self.is_for_b2 && t1 == self.target)) != (refusals % 2 == 1);
        let (from, to, victim) = match (self.t1.oldest(), self.t2.oldest()) {
            (Some(oldest), t2) if is_t1_turn || t2.is_none() => (&mut self.t1, &mut self.b1, oldest),
            (_, Some(oldest)) => (&mut self.t2, &mut self.b2, oldest),
            (_, None) => return EvictionStep::Nothing,
        };
        let is_given_up = evict(self.arena.entry(victim).id);
        if is_given_up {
            self.arena.transfer(from, to, victim);
        } else {
            self.arena.refresh(from, victim);
        }
        EvictionStep::answered(is_given_up)
    }
}

impl Policy for ArcPolicy {
    fn name(&self) -> &'static str {
        "arc"
    }

    fn reference(&mut self, id: u64, weight: u64, _: StreamId, evict: &mut dyn FnMut(u64) -> bool) -> AccessResult {
        let weight = weight.max(1);
        let known = self.arena.find(id);
        let queue = known.map(|index| (index, self.arena.entry(index).queue));
        match queue {
            Some((index, T1)) => {
                self.arena.transfer(&mut self.t1, &mut self.t2, index);
                return AccessResult::Hit;
            }
            Some((index, T2)) => {
                self.arena.refresh(&mut self.t2, index);
                return AccessResult::Hit;
            }
            _ if weight > self.capacity => return AccessResult::Bypassed,
            // The ghost is removed before room is made, because making room may forget it and reuse its entry.
            Some((index, _)) => self.learn(index, weight),
            None => {}
        }
        self.is_for_b2 = queue.is_some_and(|(_, queue)| queue == B2);
        let is_for_t1 = queue.is_none();
        let has_room = make_room(self, weight, REFUSALS_MAX, evict);
        self.trim_ghosts(if has_room { weight } else { 0 }, is_for_t1);
        if !has_room {
            return AccessResult::Bypassed;
        }
        let queue = if is_for_t1 { &mut self.t1 } else { &mut self.t2 };
        if self.arena.insert(queue, id, weight) { AccessResult::Inserted } else { AccessResult::Bypassed }
    }

    fn prepare(&self, id: u64) {
        self.arena.prepare(id);
    }

    fn remove(&mut self, id: u64) -> bool {
        let Some(index) = self.arena.find(id) else { return false };
        let number = self.arena.entry(index).queue;
        let queue = match number {
            T1 => &mut self.t1,
            T2 => &mut self.t2,
            B1 => &mut self.b1,
            _ => &mut self.b2,
        };
        self.arena.remove(queue, index);
        matches!(number, T1 | T2)
    }

    fn contains(&self, id: u64) -> bool {
        self.arena.find(id).is_some_and(|index| matches!(self.arena.entry(index).queue, T1 | T2))
    }

    fn set_capacity(&mut self, capacity: u64, evict: &mut dyn FnMut(u64) -> bool) {
        self.capacity = capacity;
        self.target = self.target.min(capacity as f64);
        self.is_for_b2 = false;
        // The queues give victims in turn, so every id has been offered after twice as many refusals as there are ids.
        let refusals_max = 2 * self.len();
        make_room(self, 0, refusals_max, evict);
        self.trim_ghosts(0, true);
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn used(&self) -> u64 {
        self.t1.weight + self.t2.weight
    }

    fn len(&self) -> usize {
        self.t1.count + self.t2.count
    }
}
