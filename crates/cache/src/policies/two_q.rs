//! 2Q: a first-in-first-out queue for newcomers, and an LRU queue for ids that are referenced again after they left the
//! first.
//!
//! # Idea
//! LRU inserts every id as the newest. 2Q treats references in quick succession as one (they are *correlated*: a
//! record's fields, a file's lines) and promotes an id only when it is referenced after it has passed through *A1in*, a
//! queue of a quarter of the capacity, while its id is still remembered in *A1out*. So a scan never reaches the main
//! queue *Am*. The shares are fixed, and the length of A1out limits how far back 2Q remembers: loops longer than that
//! never hit.
//!
//! # What happens
//! | event | in A1in | in Am | in A1out | unknown |
//! |---|---|---|---|---|
//! | reference | nothing | newest of Am | to Am | to A1in |
//! | oldest when room is needed | evicted, id to A1out | evicted | forgotten when A1out outweighs its share | |
//! | victim refused | newest of A1in again | newest of Am again | | |
//!
//! A1out is first in, first out too, by the time of eviction: a reference to an id in it moves the id into Am, and
//! nothing else renews an id's place there. An id evicted from Am is forgotten immediately, without an entry in A1out,
//! as in the paper: it had its second chance.
//!
//! A1in gives victims while it outweighs its share, Am otherwise; after a refusal the other queue gives the next
//! victim.
//!
//! # Weights
//! Shares are measured in weight; ids in A1out keep their weight.
//!
//! # Invariants
//! 1. An id is in at most one of the three queues; it is resident if it is in A1in or Am.
//! 2. a1in.weight + am.weight is at most the capacity after each call, except after refusals in `set_capacity`.
//! 3. a1out.weight is at most capacity / 2.
//!
//! # Cost
//! O(1) per reference plus O(1) per victim. 43 to 53 bytes per resident id or ghost; ghosts weigh at most half the
//! capacity.
//!
//! # Source
//! T. Johnson, D. Shasha, "2Q: a low overhead high performance buffer management replacement algorithm", VLDB 1994, the
//! full version with Kin = 25 % and Kout = 50 %. Refusals and weights are not in the paper.

use crate::eviction::{EvictionStep, StepwisePolicy, make_room};
use crate::policy::{AccessResult, Policy, REFUSALS_MAX, StreamId};
use crate::structures::arena::{Arena, ArenaQueue};

/// A1in's share is the capacity divided by `A1IN_DIVISOR`.
const A1IN_DIVISOR: u64 = 4;
/// The ids in A1out weigh at most the capacity divided by `A1OUT_DIVISOR`.
const A1OUT_DIVISOR: u64 = 2;

const A1IN: u8 = 0;
const AM: u8 = 1;
const A1OUT: u8 = 2;

/// 2Q, over weighted ids.
#[derive(Debug)]
pub struct TwoQ {
    capacity: u64,
    arena: Arena,
    a1in: ArenaQueue,
    am: ArenaQueue,
    a1out: ArenaQueue,
}

impl TwoQ {
    /// An empty policy of `capacity` units of weight.
    pub fn new(capacity: u64) -> TwoQ {
        TwoQ {
            capacity,
            arena: Arena::new(),
            a1in: ArenaQueue::new(A1IN),
            am: ArenaQueue::new(AM),
            a1out: ArenaQueue::new(A1OUT),
        }
    }

    fn trim_a1out(&mut self) {
        while self.a1out.weight > self.capacity / A1OUT_DIVISOR {
            let Some(oldest) = self.a1out.oldest() else { return };
            self.arena.remove(&mut self.a1out, oldest);
        }
    }
}

/// The memory of a policy of `count` units of weight 1. *Units*: bytes.
pub(crate) fn bytes_of(count: usize) -> u64 {
    Arena::bytes_of(count + count / A1OUT_DIVISOR as usize)
}

impl StepwisePolicy for TwoQ {
    fn step(&mut self, _: u64, refusals: usize, evict: &mut dyn FnMut(u64) -> bool) -> EvictionStep {
        let is_a1in_turn = (self.a1in.weight > self.capacity / A1IN_DIVISOR) != (refusals % 2 == 1);
        match (self.a1in.oldest(), self.am.oldest()) {
            (Some(oldest), am) if is_a1in_turn || am.is_none() => {
                if !evict(self.arena.entry(oldest).id) {
                    self.arena.refresh(&mut self.a1in, oldest);
                    return EvictionStep::Refused;
                }
                self.arena.transfer(&mut self.a1in, &mut self.a1out, oldest);
                self.trim_a1out();
            }
            (_, Some(oldest)) => {
                if !evict(self.arena.entry(oldest).id) {
                    self.arena.refresh(&mut self.am, oldest);
                    return EvictionStep::Refused;
                }
                self.arena.remove(&mut self.am, oldest);
            }
            (_, None) => return EvictionStep::Nothing,
        }
        EvictionStep::Done
    }
}

impl Policy for TwoQ {
    fn name(&self) -> &'static str {
        "2q"
    }

    fn reference(&mut self, id: u64, weight: u64, _: StreamId, evict: &mut dyn FnMut(u64) -> bool) -> AccessResult {
        let weight = weight.max(1);
        let known = self.arena.find(id);
        if let Some(index) = known {
            match self.arena.entry(index).queue {
                A1IN => return AccessResult::Hit,
                AM => {
                    self.arena.refresh(&mut self.am, index);
                    return AccessResult::Hit;
                }
                _ => {}
            }
        }
        if weight > self.capacity {
            return AccessResult::Bypassed;
        }
        // The ghost is removed first, because making room may forget it and reuse its entry.
        if let Some(index) = known {
            self.arena.remove(&mut self.a1out, index);
        }
        if !make_room(self, weight, REFUSALS_MAX, evict) {
            return AccessResult::Bypassed;
        }
        let queue = if known.is_some() { &mut self.am } else { &mut self.a1in };
        if self.arena.insert(queue, id, weight) { AccessResult::Inserted } else { AccessResult::Bypassed }
    }

    fn prepare(&self, id: u64) {
        self.arena.prepare(id);
    }

    fn remove(&mut self, id: u64) -> bool {
        let Some(index) = self.arena.find(id) else { return false };
        let number = self.arena.entry(index).queue;
        let queue = match number {
            A1IN => &mut self.a1in,
            AM => &mut self.am,
            _ => &mut self.a1out,
        };
        self.arena.remove(queue, index);
        number != A1OUT
    }

    fn contains(&self, id: u64) -> bool {
        self.arena.find(id).is_some_and(|index| self.arena.entry(index).queue != A1OUT)
    }

    fn set_capacity(&mut self, capacity: u64, evict: &mut dyn FnMut(u64) -> bool) {
        self.capacity = capacity;
        // The queues give victims in turn, so every id has been offered after twice as many refusals as there are ids.
        let refusals_max = 2 * self.len();
        make_room(self, 0, refusals_max, evict);
        self.trim_a1out();
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn used(&self) -> u64 {
        self.a1in.weight + self.am.weight
    }

    fn len(&self) -> usize {
        self.a1in.count + self.am.count
    }
}
