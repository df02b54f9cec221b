//! What is really there: the residents, in classes by which ghosts hold them, and who leaves first.
//!
//! Owns: the residents and the order of eviction. Promises: a resident is in the class of exactly those ghosts that hold
//! it; a victim is the oldest of the class that is worth least. Leaves to others: what a ghost's word is worth.
//!
//! # Idea
//! Each ghost votes for what it holds, and its vote has a weight. A resident is worth the sum of the votes for it. Where one
//! ghost has all the weight, the contents become that ghost's, block by block, without one read more than its own misses;
//! where several ghosts are about as good, what all of them hold stays, and the rest is shared out. So learning who is best
//! never throws the contents away.

use super::ghosts::{Each, Mask};
use crate::REFUSALS_MAX;
use crate::structures::arena::{Arena, Queue};

/// The residents of one follower.
pub(super) struct Live {
    arena: Arena,
    /// One class for each set of ghosts.
    classes: Vec<Queue>,
    /// The classes, least worth first.
    order: Vec<Mask>,
    worth: Vec<f64>,
    weight: u64,
    count: usize,
}

impl Live {
    /// No residents; classes for `ghosts` ghosts.
    pub(super) fn new(ghosts: usize) -> Live {
        let mut live = Live {
            arena: Arena::new(),
            classes: Vec::new(),
            order: Vec::new(),
            worth: Vec::new(),
            weight: 0,
            count: 0,
        };
        live.make_classes(ghosts);
        live
    }

    /// Makes classes for `ghosts` ghosts; residents keep theirs.
    pub(super) fn make_classes(&mut self, ghosts: usize) {
        for mask in self.classes.len()..1 << ghosts {
            self.classes.push(Queue::new(mask as Mask));
            self.order.push(mask as Mask);
            self.worth.push(0.0);
        }
    }

    /// Orders the classes by the votes of those who are in them.
    pub(super) fn set_votes(&mut self, votes: &Each<f64>) {
        for mask in 1..self.classes.len() {
            let lowest = mask & mask.wrapping_neg();
            self.worth[mask] = self.worth[mask ^ lowest] + votes[lowest.trailing_zeros() as usize];
        }
        let worth = &self.worth;
        self.order.sort_unstable_by(|left, right| {
            worth[usize::from(*left)].total_cmp(&worth[usize::from(*right)]).then(left.cmp(right))
        });
    }

    /// Puts a resident into the class of `holders`, as its newest; `false` where it is not resident.
    pub(super) fn refer(&mut self, id: u64, holders: Mask) -> bool {
        let Some(index) = self.arena.find(id) else { return false };
        self.transfer(index, holders);
        true
    }

    /// A ghost no longer holds `id`.
    pub(super) fn lose(&mut self, ghost: usize, id: u64) {
        if let Some(index) = self.arena.find(id) {
            let holders = self.arena.entry(index).queue;
            if holders >> ghost & 1 == 1 {
                self.transfer(index, holders & !(1 << ghost));
            }
        }
    }

    /// Adds a resident, which must not be there; `false` where there is no place in the tables.
    pub(super) fn insert(&mut self, id: u64, weight: u64, holders: Mask) -> bool {
        let is_in = self.arena.insert(&mut self.classes[usize::from(holders)], id, weight);
        if is_in {
            self.weight += weight;
            self.count += 1;
        }
        is_in
    }

    /// Forgets a resident; `false` where it is not resident.
    pub(super) fn remove(&mut self, id: u64) -> bool {
        let Some(index) = self.arena.find(id) else { return false };
        self.forget(index);
        true
    }

    /// Evicts until `room` more units fit into `capacity`; `false` where that did not come about. A newcomer of the class
    /// `newcomer` evicts nobody who is worth more than it is.
    pub(super) fn make_room(
        &mut self,
        room: u64,
        capacity: u64,
        newcomer: Mask,
        evict: &mut dyn FnMut(u64) -> bool,
    ) -> bool {
        let mut refusals = 0;
        while self.weight.saturating_add(room) > capacity {
            let Some(victim) = self.victim(newcomer, refusals) else { return false };
            let entry = *self.arena.entry(victim);
            if evict(entry.id) {
                self.forget(victim);
                continue;
            }
            self.arena.refresh(&mut self.classes[usize::from(entry.queue)], victim);
            refusals += 1;
            if refusals >= REFUSALS_MAX {
                return false;
            }
        }
        true
    }

    /// Evicts down to `capacity`, and offers every resident once before it gives up.
    pub(super) fn shrink(&mut self, capacity: u64, evict: &mut dyn FnMut(u64) -> bool) {
        for position in 0..self.order.len() {
            let class = usize::from(self.order[position]);
            for _ in 0..self.classes[class].count {
                if self.weight <= capacity {
                    return;
                }
                let Some(victim) = self.classes[class].oldest() else { break };
                if evict(self.arena.entry(victim).id) {
                    self.forget(victim);
                } else {
                    self.arena.refresh(&mut self.classes[class], victim);
                }
            }
        }
    }

    /// The residents with their weights, those worth least first.
    pub(super) fn residents(&self) -> Vec<(u64, u64)> {
        let mut residents = Vec::with_capacity(self.count);
        for &mask in &self.order {
            let class = &self.classes[usize::from(mask)];
            let mut next = class.oldest();
            while let Some(index) = next {
                let entry = self.arena.entry(index);
                residents.push((entry.id, entry.weight));
                next = self.arena.newer(index);
            }
        }
        residents
    }

    /// Whether `id` is resident.
    pub(super) fn contains(&self, id: u64) -> bool {
        self.arena.find(id).is_some()
    }

    /// The weight of all residents.
    pub(super) fn weight(&self) -> u64 {
        self.weight
    }

    /// How many residents there are.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// The oldest of the class that is worth least; after refusals one of the classes in turn, so that a class of pinned
    /// ids does not hide the others.
    fn victim(&self, newcomer: Mask, refusals: usize) -> Option<u32> {
        let mut first = None;
        let mut left = refusals;
        for &mask in &self.order {
            if let Some(oldest) = self.classes[usize::from(mask)].oldest() {
                if left == 0 {
                    return Some(oldest);
                }
                left -= 1;
                first = first.or(Some(oldest));
            }
            if newcomer == mask {
                break;
            }
        }
        first
    }

    fn transfer(&mut self, index: u32, holders: Mask) {
        let from = usize::from(self.arena.entry(index).queue);
        let to = usize::from(holders);
        match self.classes.get_disjoint_mut([from, to]) {
            Ok([from, to]) => self.arena.transfer(from, to, index),
            Err(_) => self.arena.refresh(&mut self.classes[to], index),
        }
    }

    fn forget(&mut self, index: u32) {
        let entry = *self.arena.entry(index);
        self.arena.remove(&mut self.classes[usize::from(entry.queue)], index);
        self.weight -= entry.weight;
        self.count -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: u64 = 3;

    fn full() -> Live {
        let mut live = Live::new(2);
        for (id, holders) in [(1, 0b01), (2, 0b10), (3, 0b11)] {
            assert!(live.insert(id, 1, holders));
        }
        live
    }

    fn victims(live: &mut Live, capacity: u64) -> Vec<u64> {
        let mut victims = Vec::new();
        live.shrink(capacity, &mut |victim| {
            victims.push(victim);
            true
        });
        victims
    }

    #[test]
    fn what_the_heavier_vote_holds_stays_longer() {
        let mut live = full();
        live.set_votes(&[1.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!(victims(&mut live, 0), [2, 1, 3]);
        let mut live = full();
        live.set_votes(&[0.5, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!(victims(&mut live, 0), [1, 2, 3]);
    }

    #[test]
    fn what_a_ghost_lost_is_worth_less() {
        let mut live = full();
        live.set_votes(&[1.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0]);
        live.lose(0, 3);
        live.lose(0, 1);
        assert_eq!(victims(&mut live, 1), [1, 2]);
        assert_eq!((live.weight(), live.count()), (1, 1));
    }

    #[test]
    fn a_newcomer_does_not_evict_who_is_worth_more() {
        let mut live = full();
        live.set_votes(&[1.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0]);
        assert!(live.make_room(1, ALL, 0b10, &mut |victim| victim == 2));
        assert!(!live.make_room(2, ALL, 0b10, &mut |_| true));
        assert_eq!(live.count(), 2);
    }

    #[test]
    fn shrinking_offers_every_resident_before_it_gives_up() {
        let mut live = full();
        live.set_votes(&[1.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0]);
        for id in 4..60 {
            assert!(live.insert(id, 1, 0b10) && live.insert(100 + id, 1, 0b01));
        }
        let mut offered = Vec::new();
        live.shrink(1, &mut |victim| {
            offered.push(victim);
            victim == 159
        });
        offered.sort_unstable();
        let residents: Vec<u64> = (1..60).chain(104..160).collect();
        assert_eq!((offered, live.count()), (residents, 114));
        assert!(!live.contains(159) && live.residents().len() == 114);
    }

    #[test]
    fn a_refused_victim_does_not_hide_the_other_classes() {
        let mut live = full();
        live.set_votes(&[1.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0]);
        assert!(live.make_room(1, ALL, 0b11, &mut |victim| victim == 3));
    }
}
