//! Shadow caches: the candidates run on a sample of the accesses with nothing behind them, to see who would miss.
//!
//! Owns: the candidates, and the division between streams as one of them. Promises: a shadow cache does what its policy
//! would do in a cache of the sample's capacity. Leaves to others: what is concluded (`choice.rs`), and the contents
//! (`live.rs`).

use super::candidate::{DIVIDED, candidate};
use super::choice::{Choice, Mask};
use super::division::Division;
use super::tuning::Tuning;
use crate::{Access, Policy, Stream};

/// A change of leader: what led before, what leads, and at how many accesses of the window just the former missed and
/// just the latter.
pub(super) type Change = (&'static str, &'static str, u64, u64);

/// The shadow caches.
pub(super) struct Shadows {
    tuning: Tuning,
    capacity: u64,
    is_exact: bool,
    policies: Vec<Box<dyn Policy>>,
    pub(super) division: Option<Box<Division>>,
    choice: Choice,
    missed: Mask,
    /// What the leader gave up for the last access, where it is no division.
    lost: Vec<u64>,
    misses_of_leaders: u64,
    left: u64,
}

impl Shadows {
    /// Empty ones, of which that called `leader` leads, or the first; `is_exact` says that they see every access.
    pub(super) fn new(capacity: u64, is_exact: bool, leader: &str, tuning: Tuning) -> Shadows {
        let policies: Vec<_> = tuning.candidates.iter().map(|name| candidate(name, capacity)).collect();
        let leader = policies.iter().position(|policy| policy.name() == leader).unwrap_or(0);
        let (choice, left) = (Choice::new(capacity, policies.len() + 1, leader, tuning), tuning.interval(capacity));
        Shadows {
            tuning,
            capacity,
            is_exact,
            policies,
            division: None,
            choice,
            missed: 0,
            lost: Vec::new(),
            misses_of_leaders: 0,
            left,
        }
    }

    /// An access by the stream of a slot; the change of leader that it made. From the second stream on there is a
    /// division.
    pub(super) fn access(&mut self, id: u64, weight: u64, slot: usize) -> Option<Change> {
        if slot > 0 && self.is_exact && self.division.is_none() && self.tuning.is_divided {
            self.division = Some(Box::new(Division::new(self.capacity, self.tuning)));
        }
        self.missed = 0;
        self.lost.clear();
        let Shadows { policies, choice, lost, .. } = self;
        for (bit, policy) in policies.iter_mut().enumerate() {
            let access = policy.reference(id, weight, Stream(0), &mut |victim| {
                if bit == choice.leader() {
                    lost.push(victim);
                }
                true
            });
            let is_miss = access != Access::Hit;
            self.missed |= Mask::from(is_miss) << bit;
        }
        let mut count = self.policies.len();
        if let Some(division) = &mut self.division {
            self.missed |= Mask::from(division.access(id, weight, slot)) << count;
            count += 1;
        }
        self.misses_of_leaders += u64::from(self.missed >> self.choice.leader() & 1);
        self.choice.count(self.missed, count);
        self.left -= 1;
        if self.left > 0 {
            return None;
        }
        self.left = self.tuning.interval(self.capacity);
        let (from, misses, misses_best) = self.choice.choose()?;
        Some((self.name(from), self.leader(), misses, misses_best))
    }

    fn name(&self, candidate: usize) -> &'static str {
        self.policies.get(candidate).map_or(DIVIDED, |policy| policy.name())
    }

    /// Who leads.
    pub(super) fn leader(&self) -> &'static str {
        self.name(self.choice.leader())
    }

    /// Whether the last access was a hit of LRU's, against which the ledger is kept.
    pub(super) fn is_lru_hit(&self) -> bool {
        let lru = self.tuning.candidates.iter().position(|name| *name == "lru");
        lru.is_none_or(|lru| self.missed >> lru & 1 == 0)
    }

    /// What those missed that led: the misses if contents came along with a change.
    pub(super) fn misses_of_leaders(&self) -> u64 {
        self.misses_of_leaders
    }

    fn led(&self) -> Result<&dyn Policy, Option<&Division>> {
        self.policies.get(self.choice.leader()).map(|policy| &**policy).ok_or(self.division.as_deref())
    }

    /// Whether the leader holds an id.
    pub(super) fn holds(&self, id: u64) -> bool {
        self.led().map_or_else(
            |division| division.is_some_and(|division| division.contains(id)),
            |policy| policy.contains(id),
        )
    }

    /// What the leader gave up for the last access; `None` where it is too much to say.
    pub(super) fn lost(&self) -> Option<&[u64]> {
        match self.led() {
            Err(Some(division)) => (!division.is_regrouped).then_some(&division.lost),
            _ => Some(&self.lost),
        }
    }

    /// Forgets an id.
    pub(super) fn remove(&mut self, id: u64) {
        self.policies.iter_mut().for_each(|policy| _ = policy.remove(id));
        self.division.iter_mut().for_each(|division| _ = division.remove(id));
    }

    /// Grows or shrinks.
    pub(super) fn set_capacity(&mut self, capacity: u64) {
        self.capacity = capacity;
        self.choice.set_capacity(capacity);
        self.policies.iter_mut().for_each(|policy| policy.set_capacity(capacity, &mut |_| true));
        // Curves and shares of another size say nothing.
        if self.division.take().is_some() {
            let leader = Some(self.choice.leader()).filter(|leader| *leader < self.policies.len());
            self.choice = Choice::new(capacity, self.policies.len() + 1, leader.unwrap_or(0), self.tuning);
        }
    }
}
