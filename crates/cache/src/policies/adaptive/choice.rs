//! The choice: which shadow cache missed least lately, told from chance by a sign test.
//!
//! Owns: for each two shadow caches the accesses at which just one of them missed. Promises: the leader changes only on
//! a difference that is beyond chance, and the figures of that difference are the reason that is shown. Leaves to
//! others: the shadow caches, and what is done with a new leader.
//!
//! Counts fade, so that they are those of the last [`Tuning::window`] capacities. Of the `n` accesses in them at which
//! just one of two caches missed, each is the toss of a coin where the two are equally good, so a difference of one
//! root of `n` is chance. Where two policies nearly agree a small difference counts; where they differ at every turn,
//! as in loops, a large one is needed.

use super::tuning::Tuning;

/// A set of candidates, one bit each.
pub(super) type Mask = u8;

/// Why a policy leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Nothing was known yet.
    Start,
    /// Of the accesses in the window at which just one of the two missed, it missed fewer, beyond chance.
    Evidence {
        /// What led before.
        from: &'static str,
        /// At how many of them the former leader missed.
        misses: u64,
        /// At how many of them the new leader missed.
        misses_best: u64,
    },
}

/// What is known of the shadow caches.
pub(super) struct Choice {
    tuning: Tuning,
    capacity: u64,
    leader: usize,
    /// How far the first candidate is ahead without evidence. *Units*: misses.
    prior: f64,
    /// The accesses in the window at which the first one missed and the second did not.
    only: Vec<Vec<f64>>,
}

impl Choice {
    /// Nothing is known of `count` candidates: that of `leader` leads.
    pub(super) fn new(capacity: u64, count: usize, leader: usize, tuning: Tuning) -> Choice {
        let only = vec![vec![0.0; count]; count];
        Choice { tuning, capacity, leader, prior: tuning.prior * capacity as f64, only }
    }

    /// Who leads.
    pub(super) fn leader(&self) -> usize {
        self.leader
    }

    /// The capacity is another from here on.
    pub(super) fn set_capacity(&mut self, capacity: u64) {
        self.capacity = capacity;
    }

    /// Counts an access at which the caches of `missed` missed, of the first `count`.
    pub(super) fn count(&mut self, missed: Mask, count: usize) {
        if missed == 0 || missed == (1 << count) - 1 {
            return;
        }
        for one in (0..count).filter(|one| missed >> one & 1 == 1) {
            for (other, only) in self.only[one][..count].iter_mut().enumerate() {
                *only += f64::from(!missed >> other & 1);
            }
        }
    }

    /// Chooses after an interval; what led before and its misses, and the new leader's, where it changed.
    pub(super) fn choose(&mut self) -> Option<(usize, u64, u64)> {
        let before = self.leader;
        let held = self.tuning.change * self.capacity as f64 + if before == 0 { self.prior } else { 0.0 };
        let mut best = (before, 0.0);
        for other in (0..self.only.len()).filter(|other| *other != before) {
            let (misses, own) = (self.only[before][other], self.only[other][before]);
            let lead = misses - own - self.tuning.roots * (misses + own).sqrt() - held;
            if lead > best.1 {
                best = (other, lead);
            }
        }
        self.leader = best.0;
        let change = (before, self.only[before][best.0] as u64, self.only[best.0][before] as u64);
        let fade = self.tuning.fade(self.capacity);
        self.only.iter_mut().flatten().for_each(|only| *only *= fade);
        self.prior *= fade;
        (before != best.0).then_some(change)
    }
}
