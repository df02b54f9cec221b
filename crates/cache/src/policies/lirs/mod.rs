//! LIRS: keeps ids that are referenced again after few other ids; it judges by the last distance between references,
//! not by recency.
//!
//! # Idea
//! The distance between an id's last two references (the number of other ids between them, its *inter-reference
//! recency*) predicts its next reference better than the time since the last one. In a loop larger than the cache every
//! id is "old" when it is referenced again, but all ids have the same distance. So any part of the loop can stay in the
//! cache and hit, as long as the rest does not replace it. LIRS gives nearly all of the capacity to ids of low distance
//! (*LIR*) and about 1 % to the others (*HIR*). All newcomers are HIR and pass through that 1 % first in, first out.
//!
//! Distances are never computed. A *stack* holds ids by recency, and its oldest id is always LIR, because older ids are
//! *pruned*. An id that is referenced while it is in the stack has a lower distance than the oldest LIR id, so it
//! becomes LIR in the place of that id. Therefore evicted ids stay in the stack as *ghosts* until pruning drops them.
//!
//! # What happens
//! | event | LIR | HIR in the stack | HIR not in the stack | ghost | unknown |
//! |---|---|---|---|---|---|
//! | reference | newest of the stack | becomes LIR, newest of the stack | newest of stack and queue | becomes LIR, newest of the stack | HIR, newest of stack and queue; LIR while the LIR share is not filled for the first time |
//! | oldest of the queue when room is needed | | out, stays in the stack as ghost | out, forgotten | | |
//! | oldest of the stack while LIR outweighs its share | becomes HIR, newest of the queue | forgotten in the stack | | forgotten | |
//! | victim refused | | newest of the queue again; the oldest of the stack has joined the queue just before | as before | | |
//!
//! A second reference to the same id in a row changes nothing: it says nothing about distances, but would turn every
//! newcomer that is read in two pieces into LIR. The authors' program does the same. For ids that have left the stack,
//! the queue is first in, first out, except that a hit makes its id the newest.
//!
//! # How many ghosts
//! In the authors' program the bound on the stack is far above the size of the cache, so all ids of a trace could be
//! ghosts. Here ghosts weigh at most three times the capacity; beyond that, the ghost evicted first is forgotten. So a
//! loop is detected if it is at most four times as long as the cache. With a factor of two one of the published hit
//! counts is not reached (multi1 at 500 blocks); with a factor of three or more all of them are.
//! [`Lirs::with_ghost_factor`] takes any other factor.
//!
//! # Weights
//! Shares are measured in weight. An id heavier than the whole LIR share never becomes LIR.
//!
//! # Invariants
//! 1. The oldest of the stack is LIR; so without LIR ids the stack is empty.
//! 2. LIR ids are in the stack only, resident HIR ids in the queue and perhaps in the stack, ghosts in the stack and in
//!    the order of ghosts.
//! 3. LIR weighs at most its share, capacity - max(capacity / 100, 2), after each call.
//! 4. The ghosts weigh at most the ghost factor times the capacity.
//!
//! # Cost
//! O(1) amortised per reference: an id is pruned at most once per insertion into the stack. A hit touches one random
//! cache line, that of the id's record. 21 to 27 bytes per resident id or ghost, and 8 to 21 more per order that
//! contains it (`ids.rs`).
//!
//! # Source
//! S. Jiang, X. Zhang, "LIRS: an efficient low inter-reference recency set replacement policy to improve buffer cache
//! performance", SIGMETRICS 2002. Refusals, weights and the bound on ghosts are not in the paper.

mod ids;

use crate::eviction::{EvictionStep, StepwisePolicy, make_room};
use crate::policy::{AccessResult, Policy, REFUSALS_MAX, StreamId};
use ids::{LirsIds, LirsState};

/// The HIR share is the capacity divided by `HIR_DIVISOR`.
const HIR_DIVISOR: u64 = 100;
/// The smallest HIR share. *Units*: units of weight.
const HIR_MIN: u64 = 2;
/// The default bound on the weight of ghosts, as a multiple of the capacity.
const GHOST_FACTOR: u64 = 3;

/// The low inter-reference recency set, over weighted ids.
#[derive(Debug, Clone)]
pub struct Lirs {
    capacity: u64,
    ids: LirsIds,
    lir_weight: u64,
    lir_count: usize,
    last: Option<u64>,
    ghost_factor: u64,
}

impl Lirs {
    /// An empty policy of `capacity` units of weight.
    pub fn new(capacity: u64) -> Lirs {
        Lirs::with_ghost_factor(capacity, GHOST_FACTOR)
    }

    /// An empty policy of `capacity` units of weight that remembers evicted ids of up to `ghost_factor` times that
    /// weight.
    pub fn with_ghost_factor(capacity: u64, ghost_factor: u64) -> Lirs {
        Lirs { capacity, ghost_factor, ids: LirsIds::new(), lir_weight: 0, lir_count: 0, last: None }
    }

    fn lir_share(&self) -> u64 {
        self.capacity - (self.capacity / HIR_DIVISOR).max(HIR_MIN).min(self.capacity)
    }

    /// Drops ids older than the oldest LIR id from the stack.
    fn prune(&mut self) {
        while let Some(oldest) = self.ids.oldest_of_stack() {
            match self.ids.kind(oldest) {
                LirsState::Lir => return,
                LirsState::Hir => self.ids.drop_from_stack(oldest),
                LirsState::Ghost => self.ids.forget(oldest),
            }
        }
    }

    fn trim_ghosts(&mut self) {
        while self.ids.ghosts_weight() > self.capacity.saturating_mul(self.ghost_factor) {
            let Some(oldest) = self.ids.oldest_of_ghosts() else { return };
            self.ids.forget(oldest);
        }
    }

    /// Counts an id that became LIR, and demotes the oldest LIR ids while LIR outweighs its share.
    fn count_lir(&mut self, weight: u64) {
        self.lir_weight += weight;
        self.lir_count += 1;
        while self.lir_weight > self.lir_share() && self.demote() {}
    }

    /// Makes the oldest LIR id HIR; `false` if there is none.
    fn demote(&mut self) -> bool {
        let Some(oldest) = self.ids.oldest_of_stack() else { return false };
        let weight = self.ids.weight(oldest);
        self.stop_lir(weight);
        self.ids.enqueue(oldest, weight);
        self.ids.drop_from_stack(oldest);
        self.prune();
        true
    }

    fn stop_lir(&mut self, weight: u64) {
        self.lir_weight -= weight;
        self.lir_count -= 1;
    }

    /// Handles a reference to a resident id.
    #[inline]
    fn hit(&mut self, at: usize) {
        let weight = self.ids.weight(at);
        if self.ids.kind(at) == LirsState::Lir {
            let was_oldest = self.ids.is_oldest_of_stack(at);
            self.ids.push(at, weight);
            if was_oldest {
                self.prune();
            }
        } else if self.ids.is_in_stack(at) && weight <= self.lir_share() {
            self.ids.push(at, weight);
            self.ids.make_lir(at);
            self.count_lir(weight);
        } else {
            self.push_hir(at, weight);
            self.ids.enqueue(at, weight);
        }
    }

    /// Puts a HIR id onto the stack, unless the stack is empty, because its oldest id has to be LIR.
    fn push_hir(&mut self, at: usize, weight: u64) {
        if self.lir_count > 0 {
            self.ids.push(at, weight);
        }
    }
}

/// The memory of a policy of `count` units of weight 1. *Units*: bytes.
pub(crate) fn bytes_of(count: usize) -> u64 {
    let hir = count - Lirs::new(count as u64).lir_share() as usize;
    LirsIds::bytes_of(count, hir, count * GHOST_FACTOR as usize)
}

impl StepwisePolicy for Lirs {
    fn step(&mut self, _: u64, _: usize, evict: &mut dyn FnMut(u64) -> bool) -> EvictionStep {
        let Some(victim) = self.ids.oldest_of_queue() else {
            return if self.demote() { EvictionStep::Done } else { EvictionStep::Nothing };
        };
        let id = self.ids.id(victim);
        if !evict(id) {
            self.demote();
            // The demotion may have forgotten ghosts and moved the victim in the table.
            if let Some(victim) = self.ids.find(id) {
                self.ids.enqueue(victim, self.ids.weight(victim));
            }
            return EvictionStep::Refused;
        }
        if self.ids.is_in_stack(victim) {
            self.ids.make_ghost(victim);
            self.trim_ghosts();
        } else {
            self.ids.forget(victim);
        }
        EvictionStep::Done
    }
}

impl Policy for Lirs {
    fn name(&self) -> &'static str {
        "lirs"
    }

    fn reference(&mut self, id: u64, weight: u64, _: StreamId, evict: &mut dyn FnMut(u64) -> bool) -> AccessResult {
        let is_repeated = self.last.replace(id) == Some(id);
        let known = self.ids.find(id);
        if let Some(at) = known.filter(|&at| self.ids.kind(at) != LirsState::Ghost) {
            if !is_repeated {
                self.hit(at);
            }
            return AccessResult::Hit;
        }
        let weight = weight.max(1);
        if weight > self.capacity || !make_room(self, weight, REFUSALS_MAX, evict) {
            return AccessResult::Bypassed;
        }
        // Making room may have forgotten the ghost, or moved it in the table.
        let ghost = known.and_then(|_| self.ids.find(id));
        let is_filling = self.used() + weight <= self.lir_share();
        let is_lir = is_filling || ghost.is_some() && weight <= self.lir_share();
        let at = match ghost {
            Some(at) => {
                // The weight of the id may have changed.
                self.ids.push(at, weight);
                if is_lir {
                    self.ids.make_lir(at);
                } else {
                    self.ids.enqueue(at, weight);
                }
                at
            }
            None => {
                let Some(at) = self.ids.insert(id, weight, is_lir) else { return AccessResult::Bypassed };
                at
            }
        };
        if is_lir {
            self.count_lir(weight);
        } else if ghost.is_none() {
            self.push_hir(at, weight);
        }
        AccessResult::Inserted
    }

    fn prepare(&self, id: u64) {
        self.ids.prepare(id);
    }

    fn remove(&mut self, id: u64) -> bool {
        let Some(at) = self.ids.find(id) else { return false };
        let (kind, weight) = (self.ids.kind(at), self.ids.weight(at));
        if kind == LirsState::Lir {
            self.stop_lir(weight);
        }
        self.ids.forget(at);
        self.prune();
        kind != LirsState::Ghost
    }

    fn contains(&self, id: u64) -> bool {
        self.ids.find(id).is_some_and(|at| self.ids.kind(at) != LirsState::Ghost)
    }

    fn set_capacity(&mut self, capacity: u64, evict: &mut dyn FnMut(u64) -> bool) {
        self.capacity = capacity;
        while self.lir_weight > self.lir_share() && self.demote() {}
        // Each refusal moves one more LIR id into the queue, before the refused id. So every id has been offered after
        // twice as many refusals as there are ids.
        let refusals_max = 2 * self.len();
        make_room(self, 0, refusals_max, evict);
        self.trim_ghosts();
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn used(&self) -> u64 {
        self.lir_weight + self.ids.queue_weight()
    }

    fn len(&self) -> usize {
        self.lir_count + self.ids.queue_count()
    }
}
