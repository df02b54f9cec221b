//! LIRS: what comes back after few other ids stays, judged by the last distance between references and not by recency.
//!
//! # Idea
//! The distance between an id's last two references (how many other ids came between them, its *inter-reference recency*)
//! foretells the next one better than how long ago the last was: of a loop larger than the cache every id is "old" when it
//! comes again, but all have the same distance, so any part of the loop may stay and hit, as long as it is not replaced
//! by the rest. LIRS gives nearly all of the capacity to ids of low distance (*LIR*) and about 1 % to the others (*HIR*),
//! among them all newcomers, which pass through that 1 % first in, first out.
//!
//! Distances are never computed. A *stack* holds ids by recency, and its oldest is always LIR (it is *pruned* to be so).
//! Whatever is referenced while it is in the stack has come back sooner than the oldest LIR id has, so it takes over the
//! place of that one. Hence evicted ids stay in the stack as *ghosts* until pruning drops them.
//!
//! # What happens
//! | event | LIR | HIR in the stack | HIR not in the stack | ghost | unknown |
//! |---|---|---|---|---|---|
//! | reference | newest of the stack | becomes LIR, newest of the stack | newest of stack and queue | becomes LIR, newest of the stack | HIR, newest of stack and queue; LIR while the LIR share is not filled for the first time |
//! | oldest of the queue when room is needed | | out, stays in the stack as ghost | out, forgotten | | |
//! | oldest of the stack while LIR outweighs its share | becomes HIR, newest of the queue | forgotten in the stack | | forgotten | |
//! | victim refused | | newest of the queue again, and the oldest of the stack joins the queue before it | as before | | |
//!
//! A reference to the id that was referenced just before changes nothing: it says nothing about distances, but would turn
//! every newcomer that is read in two pieces into LIR. The authors' program does the same. The queue is first in, first
//! out among those that have fallen out of the stack, save that a hit makes its id the newest.
//!
//! # How many ghosts
//! The authors' program bounds the stack by nothing near the cache's size, so ghosts could be as many as the ids of a
//! trace. Here they weigh at most three times the capacity; beyond that the one evicted first is forgotten. A loop is
//! seen while it is at most four times as long as the cache. Two times is too few for the published counts (multi1 at 500
//! blocks), three and more give them all; [`Lirs::with_ghost_factor`] takes any other number.
//!
//! # Weights
//! Shares are shares of weight. An id heavier than the whole LIR share never becomes LIR.
//!
//! # Invariants
//! 1. The oldest of the stack is LIR; so with no LIR id the stack is empty.
//! 2. LIR ids are in the stack only, resident HIR ids in the queue and perhaps in the stack, ghosts in the stack and in
//!    the order of ghosts.
//! 3. LIR weighs at most its share, capacity - max(capacity / 100, 2), after each call.
//! 4. The ghosts weigh at most the ghost factor times the capacity.
//!
//! # Cost
//! O(1) amortised a reference: each id is pruned once for each time that it was put into the stack. 51 to 61 bytes a resident
//! id and a ghost, so 184 bytes for each id that fits.
//!
//! # Source
//! S. Jiang, X. Zhang, "LIRS: an efficient low inter-reference recency set replacement policy to improve buffer cache
//! performance", SIGMETRICS 2002. Refusals, weights and the bound on ghosts are not in the paper.

use crate::arena::{Arena, Queue};
use crate::eviction::{Evicts, Step, make_room};
use crate::policy::{Access, Policy, REFUSALS_MAX, Stream};

/// The HIR share is the capacity divided by this.
const HIR_DIVISOR: u64 = 100;
/// The HIR share is at least so much.
const HIR_MIN: u64 = 2;
/// Ghosts weigh at most so many times the capacity, unless told otherwise.
const GHOST_FACTOR: u64 = 3;

/// What an id is; kept in the entry's `place`.
const LIR: u32 = 0;
const HIR: u32 = 1;
const GHOST: u32 = 2;

/// What is in the stack has this in the entry's `hits`.
const IN_STACK: u8 = 1;

/// The low inter-reference recency set, over weighted ids.
#[derive(Debug)]
pub struct Lirs {
    capacity: u64,
    arena: Arena<2>,
    /// By recency: LIR ids, ghosts, and those HIR ids that came after the oldest LIR.
    stack: Queue,
    /// The resident HIR ids, victims first.
    queue: Queue,
    /// The ghosts by eviction.
    ghosts: Queue,
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

    /// An empty policy of `capacity` units of weight that remembers so many times that weight of evicted ids.
    pub fn with_ghost_factor(capacity: u64, ghost_factor: u64) -> Lirs {
        Lirs {
            capacity,
            ghost_factor,
            arena: Arena::with_two_chains(),
            stack: Queue::new(0),
            queue: Queue::over_second_chain(),
            ghosts: Queue::over_second_chain(),
            lir_weight: 0,
            lir_count: 0,
            last: None,
        }
    }

    fn lir_share(&self) -> u64 {
        self.capacity - (self.capacity / HIR_DIVISOR).max(HIR_MIN).min(self.capacity)
    }

    fn is_in_stack(&self, index: u32) -> bool {
        self.arena.entry(index).hits == IN_STACK
    }

    /// Makes an id the newest of the stack, whether it was in it or not.
    fn push(&mut self, index: u32) {
        if self.is_in_stack(index) {
            self.arena.refresh(&mut self.stack, index);
        } else {
            self.arena.link(&mut self.stack, index);
            self.arena.entry_mut(index).hits = IN_STACK;
        }
    }

    /// Drops what is older than the oldest LIR id from the stack.
    fn prune(&mut self) {
        while let Some(oldest) = self.stack.oldest() {
            match self.arena.entry(oldest).place {
                LIR => return,
                HIR => self.drop_from_stack(oldest),
                _ => self.forget_ghost(oldest),
            }
        }
    }

    fn drop_from_stack(&mut self, index: u32) {
        self.arena.unlink(&mut self.stack, index);
        self.arena.entry_mut(index).hits = 0;
    }

    fn forget_ghost(&mut self, index: u32) {
        self.arena.unlink(&mut self.ghosts, index);
        self.arena.remove(&mut self.stack, index);
    }

    fn trim_ghosts(&mut self) {
        while self.ghosts.weight > self.capacity.saturating_mul(self.ghost_factor) {
            let Some(oldest) = self.ghosts.oldest() else { return };
            self.forget_ghost(oldest);
        }
    }

    /// Makes an id that is in neither queue nor ghosts LIR.
    fn make_lir(&mut self, index: u32) {
        let entry = self.arena.entry_mut(index);
        entry.place = LIR;
        self.lir_weight += entry.weight;
        self.lir_count += 1;
        self.push(index);
        self.enforce_share();
    }

    /// Makes the oldest LIR id HIR; `false` where there is none.
    fn demote(&mut self) -> bool {
        let Some(oldest) = self.stack.oldest() else { return false };
        self.drop_from_stack(oldest);
        self.stop_lir(oldest);
        self.arena.entry_mut(oldest).place = HIR;
        self.arena.link(&mut self.queue, oldest);
        self.prune();
        true
    }

    fn stop_lir(&mut self, index: u32) {
        self.lir_weight -= self.arena.entry(index).weight;
        self.lir_count -= 1;
    }

    fn enforce_share(&mut self) {
        while self.lir_weight > self.lir_share() && self.demote() {}
    }

    /// A reference to a resident id.
    fn hit(&mut self, index: u32) {
        let entry = self.arena.entry(index);
        if entry.place == LIR {
            self.push(index);
            self.prune();
        } else if self.is_in_stack(index) && entry.weight <= self.lir_share() {
            self.arena.unlink(&mut self.queue, index);
            self.make_lir(index);
        } else {
            self.push_hir(index);
            self.arena.refresh(&mut self.queue, index);
        }
    }

    /// Puts a HIR id onto the stack, unless that is empty: its oldest has to be LIR.
    fn push_hir(&mut self, index: u32) {
        if self.lir_count > 0 {
            self.push(index);
        }
    }
}

impl Evicts for Lirs {
    fn step(&mut self, _: u64, _: usize, evict: &mut dyn FnMut(u64) -> bool) -> Step {
        let Some(victim) = self.queue.oldest() else {
            return if self.demote() { Step::Done } else { Step::Nothing };
        };
        if !evict(self.arena.entry(victim).id) {
            self.demote();
            self.arena.refresh(&mut self.queue, victim);
            return Step::Refused;
        }
        if self.is_in_stack(victim) {
            self.arena.unlink(&mut self.queue, victim);
            self.arena.link(&mut self.ghosts, victim);
            self.arena.entry_mut(victim).place = GHOST;
            self.trim_ghosts();
        } else {
            self.arena.remove(&mut self.queue, victim);
        }
        Step::Done
    }
}

impl Policy for Lirs {
    fn name(&self) -> &'static str {
        "lirs"
    }

    fn reference(&mut self, id: u64, weight: u64, _: Stream, evict: &mut dyn FnMut(u64) -> bool) -> Access {
        let is_repeated = self.last.replace(id) == Some(id);
        let known = self.arena.find(id);
        if let Some(index) = known.filter(|&index| self.arena.entry(index).place != GHOST) {
            if !is_repeated {
                self.hit(index);
            }
            return Access::Hit;
        }
        let weight = weight.max(1);
        if weight > self.capacity || !make_room(self, weight, REFUSALS_MAX, evict) {
            return Access::Bypassed;
        }
        // Making room may have forgotten the ghost.
        let ghost = known.and_then(|_| self.arena.find(id));
        if let Some(index) = ghost {
            self.arena.unlink(&mut self.ghosts, index);
        }
        let (index, is_close) = match ghost {
            Some(index) if self.arena.entry(index).weight == weight => (index, true),
            Some(index) => {
                // It has another weight now.
                self.arena.remove(&mut self.stack, index);
                let Some(index) = self.arena.add(id, weight) else { return Access::Bypassed };
                (index, true)
            }
            None => {
                let Some(index) = self.arena.add(id, weight) else { return Access::Bypassed };
                (index, false)
            }
        };
        let is_filling = self.used() + weight <= self.lir_share();
        if is_filling || is_close && weight <= self.lir_share() {
            self.make_lir(index);
        } else {
            self.arena.entry_mut(index).place = HIR;
            self.arena.link(&mut self.queue, index);
            self.push_hir(index);
        }
        Access::Inserted
    }

    fn prepare(&self, id: u64) {
        self.arena.prepare(id);
    }

    fn remove(&mut self, id: u64) -> bool {
        let Some(index) = self.arena.find(id) else { return false };
        let kind = self.arena.entry(index).place;
        match kind {
            LIR => self.stop_lir(index),
            HIR => self.arena.unlink(&mut self.queue, index),
            _ => self.arena.unlink(&mut self.ghosts, index),
        }
        if self.is_in_stack(index) {
            self.arena.unlink(&mut self.stack, index);
        }
        self.arena.forget(index);
        self.prune();
        kind != GHOST
    }

    fn contains(&self, id: u64) -> bool {
        self.arena.find(id).is_some_and(|index| self.arena.entry(index).place != GHOST)
    }

    fn set_capacity(&mut self, capacity: u64, evict: &mut dyn FnMut(u64) -> bool) {
        self.capacity = capacity;
        self.enforce_share();
        // Each refusal puts one more id into the queue, before the refused one, so twice the count offers every id.
        let refusals_max = 2 * self.len();
        make_room(self, 0, refusals_max, evict);
        self.trim_ghosts();
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn used(&self) -> u64 {
        self.lir_weight + self.queue.weight
    }

    fn len(&self) -> usize {
        self.lir_count + self.queue.count
    }
}
