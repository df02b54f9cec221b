//! A cache too large for exact ghosts: one policy in force, chosen by the scout.
//!
//! Owns: the cache and when it takes over what the scout found. Promises: the invariants of [`Policy`]. Leaves to others: the
//! choice.
//!
//! It begins with LRU: at this size a reference costs what it touches of memory, and LRU touches least. Another policy is
//! taken over when it is ahead of the one in force by more than chance and by enough to be worth the change. So where all
//! do about as well nothing is paid for, and whatever is in force has beaten LRU.

use super::divided::Divided;
use super::migrating::{Lead, Migrating};
use super::scout::Scout;
use super::{TAKE_OVER_REFERENCES, is_sampled};
use crate::{Access, Policy, Stream, by_name};

/// What a large cache begins with.
const FIRST: &str = "lru";
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
    /// An empty one; `None` where what it begins with is not registered.
    pub(super) fn new(capacity: u64) -> Option<Large> {
        let cache = Migrating::new(Lead::Whole(by_name(FIRST, capacity)?));
        Some(Large { cache, name: FIRST, left: TAKE_OVER_REFERENCES })
    }

    /// One of `residents`, ids and weights that fit, those worth least first.
    pub(super) fn with_residents(capacity: u64, residents: &[(u64, u64)]) -> Option<Large> {
        let mut large = Large::new(capacity)?;
        for &(id, weight) in residents {
            large.cache.reference(id, weight, Stream(0), &mut |_| false);
        }
        Some(large)
    }

    /// A reference that the scout does not see.
    #[inline]
    pub(super) fn reference(
        &mut self,
        id: u64,
        weight: u64,
        stream: Stream,
        scout: &mut Scout,
        evict: &mut dyn FnMut(u64) -> bool,
    ) -> Access {
        // Little stands between two references here, so that the processor waits for the memory of several at once.
        if let Some(policy) = self.cache.sole() {
            return policy.reference(id, weight, stream, evict);
        }
        let slot = scout.slot(stream);
        self.cache.reference(id, weight, Stream(slot as u32), evict)
    }

    /// A reference that the scout, of a sample of one in 2^`shift`, sees too.
    #[inline(never)]
    pub(super) fn reference_sampled(
        &mut self,
        id: u64,
        weight: u64,
        stream: Stream,
        scout: &mut Scout,
        shift: u32,
        evict: &mut dyn FnMut(u64) -> bool,
    ) -> Access {
        let slot = scout.slot(stream);
        scout.refer(id, weight, slot);
        self.left -= 1;
        if self.left == 0 {
            self.left = TAKE_OVER_REFERENCES;
            self.take_over(scout, shift, evict);
        }
        let access = self.cache.reference(id, weight, Stream(slot as u32), &mut |victim| {
            let is_given_up = evict(victim);
            if is_given_up && is_sampled(victim, shift) {
                scout.evicted(victim);
            }
            is_given_up
        });
        scout.settle(slot, id, weight, access == Access::Hit);
        access
    }

    /// The policy in force.
    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// Takes over the scout's leader, and its division.
    fn take_over(&mut self, scout: &Scout, shift: u32, evict: &mut dyn FnMut(u64) -> bool) {
        let leader = scout.leader();
        let capacity = self.cache.capacity();
        if leader != self.name && scout.is_ahead_of(self.name) && !self.cache.is_busy() {
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

    /// Says that `id` is about to be referred to.
    #[inline]
    pub(super) fn prepare(&self, id: u64) {
        self.cache.prepare(id);
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

    /// The weight of all residents.
    pub(super) fn used(&self) -> u64 {
        self.cache.used()
    }

    /// How many residents there are.
    pub(super) fn len(&self) -> usize {
        self.cache.len()
    }
}
