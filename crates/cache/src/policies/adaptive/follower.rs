//! A follower: a cache whose contents follow the best of its ghosts.
//!
//! Owns: the steps of one reference: ghosts of all sizes, residents, guard. Promises: the invariants of [`Policy`]. Leaves to others:
//! streams and their verdicts, and the one ghost that divides the cache between streams (it is given to it like any other).

use super::ghosts::{Each, GHOSTS_MAX, Ghosts};
use super::guard::{Favourite, Guard};
use super::live::Live;
use super::partition::Partition;
use super::smaller::Smaller;
use crate::{Access, Policy, Stream};

/// Votes are counted every so many references, or this share of the capacity.
const VOTE_REFERENCES_MIN: u64 = 16;
const VOTE_DIVISOR: u64 = 64;

/// A cache that follows the best of its ghosts.
pub(super) struct Follower {
    capacity: u64,
    ghosts: Ghosts,
    smaller: Option<Smaller>,
    live: Live,
    guard: Guard,
    votes: Each<f64>,
    /// References until votes are counted.
    left: u64,
    /// Who led before, where the last reference changed the leader.
    deposed: Option<usize>,
    misses_of_leaders: u64,
}

impl Follower {
    /// An empty follower; `looks_smaller` says whether it looks at its candidates in smaller caches too.
    pub(super) fn new(capacity: u64, looks_smaller: bool) -> Follower {
        let ghosts = Ghosts::new(capacity);
        let mut follower = Follower {
            capacity,
            live: Live::new(ghosts.count()),
            ghosts,
            smaller: looks_smaller.then(|| Smaller::new(capacity)),
            guard: Guard::new(capacity),
            votes: [0.0; GHOSTS_MAX],
            left: 0,
            deposed: None,
            misses_of_leaders: 0,
        };
        follower.vote();
        follower
    }

    /// Adds a partition between streams to its ghosts.
    pub(super) fn divide(&mut self) {
        self.guard.admit(self.ghosts.count());
        self.ghosts.divide(Partition::new(self.capacity, self.smaller.is_some()));
        self.live.make_classes(self.ghosts.count());
        self.vote();
    }

    /// Says what a verdict expects of the stream of a slot.
    pub(super) fn set_favourite_of(&mut self, slot: usize, favourite: Option<Favourite>) {
        if let Some(partition) = self.ghosts.partition_mut() {
            partition.set_favourite(slot, favourite);
        }
    }

    /// Its ghosts.
    pub(super) fn ghosts(&self) -> &Ghosts {
        &self.ghosts
    }

    /// By how many misses of smaller sizes each ghost is behind the best one.
    pub(super) fn behind_when_smaller(&self) -> Each<f64> {
        self.smaller.as_ref().map_or([0.0; GHOSTS_MAX], Smaller::behind)
    }

    /// Its guard.
    pub(super) fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Says what the verdicts expect of all streams together.
    pub(super) fn set_favourite(&mut self, favourite: Option<Favourite>) {
        self.guard.set_favourite(favourite);
    }

    /// Who led before, where the last reference changed the leader.
    pub(super) fn deposed(&self) -> Option<usize> {
        self.deposed
    }

    /// What the ghosts missed that led: the misses if contents came along with a change of leader.
    pub(super) fn misses_of_leaders(&self) -> u64 {
        self.misses_of_leaders
    }

    /// The residents with their weights, those worth least first.
    pub(super) fn residents(&self) -> Vec<(u64, u64)> {
        self.live.residents()
    }

    fn vote(&mut self) {
        self.deposed = self.guard.vote(self.ghosts.count(), &self.behind_when_smaller(), &mut self.votes);
        self.live.set_votes(&self.votes);
        self.left = (self.capacity / VOTE_DIVISOR).max(VOTE_REFERENCES_MIN);
    }

    fn tell_losses(&mut self, except: Option<u64>) {
        for &(ghost, id) in self.ghosts.losses() {
            if except != Some(id) {
                self.live.lose(ghost, id);
            }
        }
    }
}

impl Policy for Follower {
    fn name(&self) -> &'static str {
        self.ghosts.name(self.guard.leader())
    }

    fn reference(&mut self, id: u64, weight: u64, stream: Stream, evict: &mut dyn FnMut(u64) -> bool) -> Access {
        let weight = weight.max(1);
        let holders = self.ghosts.reference(id, weight, stream);
        self.misses_of_leaders += u64::from(self.ghosts.missed() >> self.guard.leader() & 1);
        self.guard.count(self.ghosts.missed());
        if let Some(smaller) = &mut self.smaller {
            smaller.reference(id, weight, stream, self.guard.decay());
        }
        self.tell_losses(Some(id));
        self.deposed = None;
        self.left -= 1;
        if self.left == 0 {
            self.vote();
        }
        if self.live.refer(id, holders) {
            return Access::Hit;
        }
        if weight > self.capacity
            || !self.live.make_room(weight, self.capacity, holders, evict)
            || !self.live.insert(id, weight, holders)
        {
            return Access::Bypassed;
        }
        Access::Inserted
    }

    fn remove(&mut self, id: u64) -> bool {
        self.ghosts.remove(id);
        if let Some(smaller) = &mut self.smaller {
            smaller.remove(id);
        }
        self.live.remove(id)
    }

    fn contains(&self, id: u64) -> bool {
        self.live.contains(id)
    }

    fn set_capacity(&mut self, capacity: u64, evict: &mut dyn FnMut(u64) -> bool) {
        self.capacity = capacity;
        self.guard.set_capacity(capacity);
        self.ghosts.set_capacity(capacity);
        if let Some(smaller) = &mut self.smaller {
            smaller.set_capacity(capacity);
        }
        self.tell_losses(None);
        self.live.shrink(capacity, evict);
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn used(&self) -> u64 {
        self.live.weight()
    }

    fn len(&self) -> usize {
        self.live.count()
    }
}
