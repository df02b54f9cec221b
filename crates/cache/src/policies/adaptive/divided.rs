//! A large cache divided between streams as its scout says.
//!
//! Owns: one migrating policy a stream and who owns which block. Promises: shares sum to at most the capacity, which grows
//! or shrinks towards what the scout's partition has by small steps. Leaves to others: the division, which a partition of a
//! sample worked out.

use hashbrown::HashTable;

use super::migrating::{Lead, Migrating};
use super::streams::SLOTS_MAX;
use crate::structures::hash::hash;
use crate::{Access, Policy, Stream, by_name};

/// A stream's cache.
struct Part {
    cache: Migrating,
    name: &'static str,
}

/// The cache divided between streams.
pub(super) struct Divided {
    capacity: u64,
    parts: Vec<Part>,
    owners: HashTable<(u64, u8)>,
    lost: Vec<u64>,
    used: u64,
}

impl Divided {
    /// An empty one, without streams.
    pub(super) fn new(capacity: u64) -> Divided {
        Divided { capacity, parts: Vec::new(), owners: HashTable::new(), lost: Vec::new(), used: 0 }
    }

    /// Gives the stream of a slot the policy called `name`, and the share.
    pub(super) fn set_share(
        &mut self,
        slot: usize,
        name: &'static str,
        share: u64,
        evict: &mut dyn FnMut(u64) -> bool,
    ) {
        while self.parts.len() <= slot {
            let Some(policy) = by_name("lirs", 0) else { return };
            self.parts.push(Part { cache: Migrating::new(Lead::Whole(policy)), name: "lirs" });
        }
        let part = &mut self.parts[slot];
        if part.name != name
            && !part.cache.is_busy()
            && let Some(policy) = by_name(name, part.cache.capacity())
        {
            part.cache.change(Lead::Whole(policy));
            part.name = name;
        }
        let others = self.parts.iter().map(|part| part.cache.capacity()).sum::<u64>() - self.share(slot);
        let part = &mut self.parts[slot];
        let share = share.min(self.capacity.saturating_sub(others));
        if share != part.cache.capacity() {
            let lost = &mut self.lost;
            part.cache.set_capacity(share, &mut |id| {
                let is_given_up = evict(id);
                if is_given_up {
                    lost.push(id);
                }
                is_given_up
            });
            self.settle();
        }
    }

    /// The share of a slot's stream; 0 where it has none. *Units*: units of weight.
    pub(super) fn share(&self, slot: usize) -> u64 {
        self.parts.get(slot).map_or(0, |part| part.cache.capacity())
    }

    fn owner(&self, id: u64) -> Option<usize> {
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
        self.used = self.parts.iter().map(|part| part.cache.used()).sum();
    }
}

impl Policy for Divided {
    fn name(&self) -> &'static str {
        "partition"
    }

    /// Refers to `id` by the stream of the slot `stream`.
    fn reference(&mut self, id: u64, weight: u64, stream: Stream, evict: &mut dyn FnMut(u64) -> bool) -> Access {
        let asked = (stream.0 as usize).min(SLOTS_MAX - 1);
        if let Some(part) = self.parts.get_mut(asked)
            && part.cache.contains(id)
        {
            return part.cache.reference(id, weight, stream, &mut |_| false);
        }
        let slot = self.owner(id).unwrap_or(asked);
        let Divided { parts, lost, .. } = self;
        let Some(part) = parts.get_mut(slot) else { return Access::Bypassed };
        let access = part.cache.reference(id, weight, stream, &mut |victim| {
            let is_given_up = evict(victim);
            if is_given_up {
                lost.push(victim);
            }
            is_given_up
        });
        if access == Access::Inserted {
            self.owners.insert_unique(hash(id), (id, slot as u8), |owned| hash(owned.0));
        }
        self.settle();
        access
    }

    fn remove(&mut self, id: u64) -> bool {
        let mut was_there = false;
        for part in &mut self.parts {
            was_there |= part.cache.remove(id);
        }
        self.disown(id);
        self.settle();
        was_there
    }

    fn contains(&self, id: u64) -> bool {
        self.owner(id).is_some()
    }

    fn set_capacity(&mut self, capacity: u64, evict: &mut dyn FnMut(u64) -> bool) {
        let before = self.capacity.max(1);
        self.capacity = capacity;
        for slot in 0..self.parts.len() {
            let Part { cache, name } = &self.parts[slot];
            let share = u128::from(cache.capacity()) * u128::from(capacity) / u128::from(before);
            self.set_share(slot, name, share as u64, evict);
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
