//! A cache too large for exact ghosts: one policy in force, chosen by the scout.
//!
//! Owns: the cache and when it takes over what the scout found. Promises: the invariants of [`Policy`]. Leaves to others: the
//! choice.

use super::TAKE_OVER_REFERENCES;
use super::divided::Divided;
use super::migrating::{Lead, Migrating};
use super::scout::Scout;
use crate::arena::hash;
use crate::{Access, Policy, Stream, by_name};

/// What a cache divided between streams is called.
const DIVIDED: &str = "partition";

/// The cache itself.
pub(super) struct Large {
    cache: Migrating,
    /// The policy in force.
    name: &'static str,
    /// References of the sample until the scout is asked again.
    left: u64,
}

impl Large {
    /// An empty one with the policy with which a scout begins; `None` where that is not registered.
    pub(super) fn new(capacity: u64) -> Option<Large> {
        let name = super::ghosts::CANDIDATES[super::ghosts::FIRST];
        let cache = Migrating::new(Lead::Whole(by_name(name, capacity)?));
        Some(Large { cache, name, left: TAKE_OVER_REFERENCES })
    }

    /// A reference; `shift` is there where the scout sees it too.
    pub(super) fn reference(
        &mut self,
        id: u64,
        weight: u64,
        stream: Stream,
        scout: &mut Scout,
        shift: Option<u32>,
        evict: &mut dyn FnMut(u64) -> bool,
    ) -> Access {
        let slot = scout.slot(stream);
        let Some(shift) = shift else {
            return self.cache.reference(id, weight, Stream(slot as u32), evict);
        };
        scout.refer(id, weight, slot);
        self.left -= 1;
        if self.left == 0 {
            self.left = TAKE_OVER_REFERENCES;
            self.take_over(scout, shift, evict);
        }
        let access = self.cache.reference(id, weight, Stream(slot as u32), &mut |victim| {
            let is_given_up = evict(victim);
            if is_given_up && (hash(victim) >> 40) & ((1 << shift) - 1) == 0 {
                scout.evicted(victim);
            }
            is_given_up
        });
        scout.settle(slot, id, weight, access == Access::Hit);
        access
    }

    /// Takes over the scout's leader, and its division.
    fn take_over(&mut self, scout: &Scout, shift: u32, evict: &mut dyn FnMut(u64) -> bool) {
        let leader = scout.leader();
        let capacity = self.cache.capacity();
        if leader != self.name && !self.cache.is_busy() {
            let lead = match by_name(leader, capacity) {
                Some(policy) => Lead::Whole(policy),
                None if leader == DIVIDED => Lead::Divided(Box::new(Divided::new(capacity))),
                None => return,
            };
            self.name = leader;
            self.cache.change(lead);
        }
        if let Lead::Divided(divided) = self.cache.current_mut() {
            for is_growing in [false, true] {
                for (slot, (share, name)) in scout.division().enumerate() {
                    let share = share << shift;
                    if (share > divided.share(slot)) == is_growing {
                        divided.set_share(slot, name, share, evict);
                    }
                }
            }
        }
    }

    /// Forgets `id`; returns whether it was resident.
    pub(super) fn remove(&mut self, id: u64) -> bool {
        self.cache.remove(id)
    }

    /// Whether `id` is resident.
    pub(super) fn contains(&self, id: u64) -> bool {
        self.cache.contains(id)
    }

    /// Sets the capacity and evicts down to it.
    pub(super) fn set_capacity(&mut self, capacity: u64, evict: &mut dyn FnMut(u64) -> bool) {
        self.cache.set_capacity(capacity, evict);
    }

    /// The capacity.
    pub(super) fn used(&self) -> u64 {
        self.cache.used()
    }

    /// How many residents there are.
    pub(super) fn len(&self) -> usize {
        self.cache.len()
    }
}
