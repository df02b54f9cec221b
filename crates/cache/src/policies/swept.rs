//! Policies with one queue and a hand that moves over it; hits write one bit.
//!
//! Owns: the ids, their bits, and the execution of a reference. Leaves to others: how the hand moves ([`HandRule`]; each
//! policy has its own file).
//!
//! Cost: a hit is one look-up and one bit; a miss is O(1) amortised, because the hand only passes ids whose bit a hit
//! has set. 43 to 54 bytes per resident id.

use crate::eviction::{EvictionStep, StepwisePolicy, make_room};
use crate::policy::{AccessResult, Policy, REFUSALS_MAX, StreamId};
use crate::structures::arena::{Arena, ArenaQueue};

/// The rules in which the policies with a hand differ.
pub trait HandRule: std::fmt::Debug + Default + Send {
    /// The policy's name as users write it.
    const NAME: &'static str;

    /// Moves on by one id, and offers that id to `evict` unless its bit is set.
    fn step(&mut self, circle: &mut HandCircle, evict: &mut dyn FnMut(u64) -> bool) -> EvictionStep;

    /// Called before an id is removed by [`Policy::remove`], so that the hand can leave the id.
    fn before_removal(&mut self, circle: &HandCircle, index: u32) {
        let _ = (circle, index);
    }
}

/// The resident ids in the order of their insertion. The bit of an id is its `hits`, which is 0 or 1.
#[derive(Debug)]
pub struct HandCircle {
    pub(super) arena: Arena,
    pub(super) queue: ArenaQueue,
}

impl HandCircle {
    pub(super) fn remove(&mut self, index: u32) {
        self.arena.remove(&mut self.queue, index);
    }
}

/// A policy that keeps weighted ids in one queue with a hand.
#[derive(Debug)]
pub struct SweptPolicy<H> {
    capacity: u64,
    circle: HandCircle,
    hand: H,
}

impl<H: HandRule> SweptPolicy<H> {
    /// An empty policy of `capacity` units of weight.
    pub fn new(capacity: u64) -> SweptPolicy<H> {
        SweptPolicy {
            capacity,
            circle: HandCircle { arena: Arena::new(), queue: ArenaQueue::new(0) },
            hand: H::default(),
        }
    }
}

/// The memory of `count` ids. *Units*: bytes.
pub(crate) fn bytes_of(count: usize) -> u64 {
    Arena::bytes_of(count)
}

impl<H: HandRule> StepwisePolicy for SweptPolicy<H> {
    fn step(&mut self, _: u64, _: usize, evict: &mut dyn FnMut(u64) -> bool) -> EvictionStep {
        self.hand.step(&mut self.circle, evict)
    }
}

impl<H: HandRule> Policy for SweptPolicy<H> {
    fn name(&self) -> &'static str {
        H::NAME
    }

    fn reference(&mut self, id: u64, weight: u64, _: StreamId, evict: &mut dyn FnMut(u64) -> bool) -> AccessResult {
        if let Some(index) = self.circle.arena.find(id) {
            self.circle.arena.entry_mut(index).hits = 1;
            return AccessResult::Hit;
        }
        let weight = weight.max(1);
        if weight > self.capacity || !make_room(self, weight, REFUSALS_MAX, evict) {
            return AccessResult::Bypassed;
        }
        if self.circle.arena.insert(&mut self.circle.queue, id, weight) {
            AccessResult::Inserted
        } else {
            AccessResult::Bypassed
        }
    }

    fn prepare(&self, id: u64) {
        self.circle.arena.prepare(id);
    }

    fn remove(&mut self, id: u64) -> bool {
        let Some(index) = self.circle.arena.find(id) else { return false };
        self.hand.before_removal(&self.circle, index);
        self.circle.remove(index);
        true
    }

    fn contains(&self, id: u64) -> bool {
        self.circle.arena.find(id).is_some()
    }

    fn set_capacity(&mut self, capacity: u64, evict: &mut dyn FnMut(u64) -> bool) {
        self.capacity = capacity;
        // An id refused on the hand's first lap is offered once more before the ids whose bit was set, so every id has
        // been offered after twice as many refusals as there are ids.
        let refusals_max = 2 * self.len();
        make_room(self, 0, refusals_max, evict);
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn used(&self) -> u64 {
        self.circle.queue.weight
    }

    fn len(&self) -> usize {
        self.circle.queue.count
    }
}
