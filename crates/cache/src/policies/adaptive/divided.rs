//! A cache divided between streams: one policy and one share for each.
//!
//! Owns: who owns which block. Promises: shares sum to at most the capacity. Leaves to others: the shares
//! (`division.rs`).
//!
//! A block belongs to the stream that first accessed it, until it leaves.

use hashbrown::HashTable;

use super::candidate::{Candidate, DIVIDED, Plan, candidate};
use super::live::Live;
use crate::structures::hash::hash;
use crate::{Access, Policy, Stream};

#[derive(Clone)]
/// The cache divided between streams, which are known by their slots.
pub(super) struct Divided {
    capacity: u64,
    parts: Vec<Live>,
    owners: HashTable<(u64, u8)>,
    /// Evicted, and still among the owners.
    lost: Vec<u64>,
    used: u64,
}

impl Divided {
    /// An empty one, without streams.
    pub(super) fn new(capacity: u64) -> Divided {
        Divided { capacity, parts: Vec::new(), owners: HashTable::new(), lost: Vec::new(), used: 0 }
    }

    /// Gives a slot's stream the policy called `name`, and the share as far as the others leave it.
    pub(super) fn give(&mut self, slot: usize, (share, name): (u64, &str), evict: &mut dyn FnMut(u64) -> bool) {
        while self.parts.len() <= slot {
            self.parts.push(Live::new(candidate(name, 0), false));
        }
        let part = &mut self.parts[slot];
        if part.name() != name && !part.is_busy() {
            part.change(candidate(name, part.capacity()));
        }
        let others = self.parts.iter().map(Live::capacity).sum::<u64>() - self.share(slot);
        let share = share.min(self.capacity.saturating_sub(others));
        let Divided { parts, lost, .. } = self;
        if share != parts[slot].capacity() {
            parts[slot].set_capacity(share, &mut |id| evicts(id, lost, evict));
            self.settle();
        }
    }

    /// The share of a slot's stream. *Units*: units of weight.
    pub(super) fn share(&self, slot: usize) -> u64 {
        self.parts.get(slot).map_or(0, Live::capacity)
    }

    /// What a slot's stream uses. *Units*: units of weight.
    pub(super) fn used_of(&self, slot: usize) -> u64 {
        self.parts.get(slot).map_or(0, Live::used)
    }

    /// The slot of the stream that an id belongs to.
    pub(super) fn owner(&self, id: u64) -> Option<usize> {
        self.owners.find(hash(id), |owned| owned.0 == id).map(|owned| usize::from(owned.1))
    }

    fn disown(&mut self, id: u64) {
        if let Ok(found) = self.owners.find_entry(hash(id), |owned| owned.0 == id) {
            found.remove();
        }
    }

    fn settle(&mut self) {
        while let Some(id) = self.lost.pop() {
            self.disown(id);
        }
        self.used = self.parts.iter().map(Live::used).sum();
    }
}

fn evicts(id: u64, lost: &mut Vec<u64>, evict: &mut dyn FnMut(u64) -> bool) -> bool {
    let is_given_up = evict(id);
    if is_given_up {
        lost.push(id);
    }
    is_given_up
}

impl Policy for Divided {
    fn name(&self) -> &'static str {
        DIVIDED
    }

    /// An access by the stream of the slot `stream`.
    fn reference(&mut self, id: u64, weight: u64, stream: Stream, evict: &mut dyn FnMut(u64) -> bool) -> Access {
        let slot = self.owner(id).unwrap_or(stream.0 as usize);
        let Divided { parts, lost, .. } = self;
        let Some(part) = parts.get_mut(slot) else { return Access::Bypassed };
        let access = part.reference(id, weight, stream, &mut |victim| evicts(victim, lost, evict));
        if access == Access::Inserted {
            self.owners.insert_unique(hash(id), (id, slot as u8), |owned| hash(owned.0));
        }
        if access != Access::Hit {
            self.settle();
        }
        access
    }

    fn remove(&mut self, id: u64) -> bool {
        let was_there = self.parts.iter_mut().fold(false, |was, part| was | part.remove(id));
        self.disown(id);
        self.settle();
        was_there
    }

    fn contains(&self, id: u64) -> bool {
        self.owner(id).is_some()
    }

    fn set_capacity(&mut self, capacity: u64, evict: &mut dyn FnMut(u64) -> bool) {
        let before = u128::from(self.capacity.max(1));
        self.capacity = capacity;
        for slot in 0..self.parts.len() {
            let share = (u128::from(self.share(slot)) * u128::from(capacity) / before) as u64;
            let name = self.parts[slot].name();
            self.give(slot, (share, name), evict);
        }
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn used(&self) -> u64 {
        self.used
    }

    fn len(&self) -> usize {
        self.owners.len()
    }
}

impl Candidate for Divided {
    fn copy(&self) -> Box<dyn Candidate> {
        Box::new(self.clone())
    }

    /// Those that shrink come first.
    fn follow(&mut self, plan: &Plan, shift: u32, evict: &mut dyn FnMut(u64) -> bool) {
        for is_growing in [false, true] {
            for (slot, &(share, name)) in plan.iter().enumerate() {
                if (share << shift > self.share(slot)) == is_growing {
                    self.give(slot, (share << shift, name), evict);
                }
            }
        }
    }
}
