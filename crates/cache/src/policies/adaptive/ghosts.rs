//! Ghosts: the candidates' policies run on every reference with nothing behind them, to see who would have missed.
//!
//! Owns: the candidates and what each of them did with the last reference. Promises: a ghost holds exactly what its policy
//! would hold in a cache of its own of the same capacity. Leaves to others: what is concluded from the misses (`guard.rs`)
//! and which blocks are really there (`live.rs`).
//!
//! A ghost is the policy itself, told by an `evict` that accepts everything: policies know ids and weights only, so it
//! costs their metadata and no cached data.

use super::partition::Partition;
use crate::{Access, Policy, Stream, by_name};

/// The candidates by name; the order is that of the bits of a mask.
pub(super) const CANDIDATES: &[&str] = &["lirs", "lru", "wtinylfu", "s3fifo", "arc", "lfu-aged"];
/// Where the first of [`CANDIDATES`], the one to begin with, stands.
pub(super) const FIRST: usize = 0;
/// Where LRU stands, against which the ledger is kept.
pub(super) const LRU: usize = 1;
/// The most ghosts of one follower: the candidates and a partition between streams.
pub(super) const GHOSTS_MAX: usize = CANDIDATES.len() + 1;

/// A set of ghosts, one bit each.
pub(super) type Mask = u8;

/// One value for each ghost.
pub(super) type Each<T> = [T; GHOSTS_MAX];

/// The ghosts of one follower.
pub(super) struct Ghosts {
    policies: Vec<Box<dyn Policy>>,
    /// The last ghost, where the cache could be divided between streams.
    partition: Option<Box<Partition>>,
    /// What the last reference made ghosts evict: who, and what.
    losses: Vec<(usize, u64)>,
    /// Who missed at the last reference.
    missed: Mask,
}

impl Ghosts {
    /// Empty ghosts of the candidates.
    pub(super) fn new(capacity: u64) -> Ghosts {
        Ghosts { policies: candidates(capacity), partition: None, losses: Vec::new(), missed: 0 }
    }

    /// Adds a partition as the last ghost.
    pub(super) fn divide(&mut self, partition: Partition) {
        self.partition = Some(Box::new(partition));
    }

    /// The partition.
    pub(super) fn partition(&self) -> Option<&Partition> {
        self.partition.as_deref()
    }

    /// The partition, to change its favourites.
    pub(super) fn partition_mut(&mut self) -> Option<&mut Partition> {
        self.partition.as_deref_mut()
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.policies.len() + usize::from(self.partition.is_some())
    }

    /// The name of one.
    pub(super) fn name(&self, ghost: usize) -> &'static str {
        match self.policies.get(ghost) {
            Some(policy) => policy.name(),
            None => "partition",
        }
    }

    /// Lets every ghost refer to `id`; returns who holds it now.
    pub(super) fn reference(&mut self, id: u64, weight: u64, stream: Stream) -> Mask {
        let Ghosts { policies, partition, losses, missed } = self;
        losses.clear();
        *missed = 0;
        let mut holders = 0;
        for (ghost, policy) in all(policies, partition) {
            let mut is_held = true;
            let access = policy.reference(id, weight, stream, &mut |victim| {
                is_held &= victim != id;
                losses.push((ghost, victim));
                true
            });
            if access != Access::Hit {
                *missed |= 1 << ghost;
            }
            if is_held && access != Access::Bypassed {
                holders |= 1 << ghost;
            }
        }
        holders
    }

    /// Who missed at the last reference.
    pub(super) fn missed(&self) -> Mask {
        self.missed
    }

    /// What the last call made ghosts evict.
    pub(super) fn losses(&self) -> &[(usize, u64)] {
        &self.losses
    }

    /// Sets every ghost's capacity.
    pub(super) fn set_capacity(&mut self, capacity: u64) {
        let Ghosts { policies, partition, losses, .. } = self;
        losses.clear();
        for (ghost, policy) in all(policies, partition) {
            policy.set_capacity(capacity, &mut |victim| {
                losses.push((ghost, victim));
                true
            });
        }
    }

    /// Lets every ghost forget `id`.
    pub(super) fn remove(&mut self, id: u64) {
        for (_, policy) in all(&mut self.policies, &mut self.partition) {
            policy.remove(id);
        }
    }
}

/// Empty caches of all candidates, in their order.
pub(super) fn candidates(capacity: u64) -> Vec<Box<dyn Policy>> {
    CANDIDATES.iter().filter_map(|name| by_name(name, capacity)).collect()
}

/// The policies and the partition, with their bits.
fn all<'a>(
    policies: &'a mut [Box<dyn Policy>],
    partition: &'a mut Option<Box<Partition>>,
) -> impl Iterator<Item = (usize, &'a mut dyn Policy)> {
    let partition = partition.as_deref_mut().map(|partition| partition as &mut dyn Policy);
    policies.iter_mut().map(|policy| &mut **policy as &mut dyn Policy).chain(partition).enumerate()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_candidate_is_registered_and_stands_where_it_is_said_to() {
        let ghosts = Ghosts::new(10);
        assert_eq!(ghosts.count(), CANDIDATES.len());
        assert_eq!((ghosts.name(FIRST), ghosts.name(LRU)), ("lirs", "lru"));
    }

    #[test]
    fn a_ghost_holds_what_its_policy_would_hold() {
        let mut ghosts = Ghosts::new(2);
        for id in [1, 2, 3, 2, 1] {
            let mut lru = by_name("lru", 2).expect("registered");
            lru.reference(id, 1, Stream(0), &mut |_| true);
            assert!(ghosts.reference(id, 1, Stream(0)) >> LRU & 1 == 1);
        }
        assert!(ghosts.missed() >> LRU & 1 == 1, "1 was evicted for 3");
        assert!(ghosts.losses().contains(&(LRU, 3)));
    }
}
