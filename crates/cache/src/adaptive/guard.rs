//! The guard: what each ghost's word is worth, who leads, and when a choice is taken back.
//!
//! Owns: the ghosts' misses lately, their votes, and the reasons for a change of leader. Promises: a choice that loses to
//! another ghost by more than its bonus loses the lead, and the change says so. Leaves to others: what is done with votes.
//!
//! # Idea
//! Misses are summed over a window that forgets exponentially. A vote falls exponentially with the misses by which a ghost
//! is behind the best one, in units of a twentieth of the capacity: a ghost that is behind by some percent of the capacity
//! is as good as silent, two that are close share the cache. A change of leader costs reads, as its contents are not there;
//! that is why the unit is a share of the capacity and not of the misses.
//!
//! The *favourite* has a bonus: its misses are taken to be fewer by a part of the capacity, and at most by a hundred. Before
//! anything is known that is LIRS, which is rarely far from the best, and its bonus fades with the window; a verdict of the
//! detector makes another the favourite for as long as the verdict holds.
//!
//! What changes cost is measured and not guessed: it is the misses that the cache itself had in the window and the best
//! ghost had not. Half of that is the leader's bonus. So where contents agree (recency, popularity) the lead changes freely,
//! and where each policy keeps another part of a loop, one vain change makes the next one harder.

use super::ghosts::{Each, FIRST, GHOSTS_MAX, Mask};

/// The window in which misses count, in references for each unit of capacity.
const WINDOW: f64 = 10.0;
/// The shortest window. *Units*: references.
const WINDOW_MIN: f64 = 200.0;
/// By this share of the capacity a ghost must be behind for its vote to fall by a factor of e.
const TEMPERATURE: f64 = 0.05;
/// The least unit of what a ghost is behind. *Units*: misses.
const TEMPERATURE_MIN: f64 = 5.0;
/// The bonus of what a follower begins with, as a share of the capacity.
const PRIOR: f64 = 0.2;
/// The bonus of a verdict's favourite, as a share of the capacity.
const VERDICT_BONUS: f64 = 0.1;

/// No bonus is more than this. *Units*: misses.
const BONUS_MAX: f64 = 100.0;
/// The leader's bonus, as a share of what changes cost in the window.
const STICKINESS: f64 = 0.5;
/// What changes cost counts up to this share of the capacity.
const CHANGES_MAX: f64 = 0.5;

/// Why a ghost leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Nothing was known yet.
    Start,
    /// A verdict of the detector chose it.
    Verdict,
    /// The guard: the choice before lost to it in the window.
    Guard {
        /// What led before.
        from: &'static str,
        /// Misses of the former leader in the window.
        misses: u64,
        /// Misses of the new leader in the window.
        misses_best: u64,
    },
}

/// What the guard knows of a follower's ghosts.
pub(super) struct Guard {
    /// Misses in the window; for what it begins with reduced by its bonus.
    misses: Each<f64>,
    /// The bonus of the favourite of a verdict.
    favourite: Option<usize>,
    leader: usize,
    /// Misses of the cache itself in the window.
    misses_live: f64,
    decay: f64,
    capacity: f64,
}

impl Guard {
    /// A guard of ghosts of which nothing is known.
    pub(super) fn new(capacity: u64) -> Guard {
        let mut guard = Guard {
            misses: [0.0; GHOSTS_MAX],
            favourite: None,
            leader: FIRST,
            misses_live: 0.0,
            decay: 1.0,
            capacity: 0.0,
        };
        guard.set_capacity(capacity);
        for ghost in 0..GHOSTS_MAX {
            if ghost != FIRST {
                guard.misses[ghost] = guard.bonus(PRIOR);
            }
        }
        guard
    }

    /// Says how large the ghosts are.
    pub(super) fn set_capacity(&mut self, capacity: u64) {
        self.capacity = capacity as f64;
        self.decay = 1.0 - 1.0 / (WINDOW * self.capacity).max(WINDOW_MIN);
    }

    /// Begins to count for a ghost that came later: as if it had missed what the leader missed, and the prior.
    pub(super) fn admit(&mut self, ghost: usize) {
        self.misses[ghost] = self.misses[self.leader] + self.bonus(PRIOR);
    }

    fn bonus(&self, share: f64) -> f64 {
        (share * self.capacity).min(BONUS_MAX)
    }

    /// Counts whether the cache itself missed.
    pub(super) fn count_live(&mut self, is_miss: bool) {
        self.misses_live = self.misses_live * self.decay + f64::from(u8::from(is_miss));
    }

    /// Counts who missed.
    pub(super) fn count(&mut self, missed: Mask) {
        for (ghost, misses) in self.misses.iter_mut().enumerate() {
            *misses = *misses * self.decay + f64::from(missed >> ghost & 1);
        }
    }

    /// Makes a ghost the favourite of a verdict, or none.
    pub(super) fn set_favourite(&mut self, favourite: Option<usize>) {
        self.favourite = favourite;
    }

    /// Who leads.
    pub(super) fn leader(&self) -> usize {
        self.leader
    }

    /// The misses of a ghost in the window.
    pub(super) fn misses(&self, ghost: usize) -> u64 {
        self.misses[ghost].max(0.0) as u64
    }

    /// The votes of the first `count` ghosts; returns who led before, where the leader changes.
    pub(super) fn vote(&mut self, count: usize, votes: &mut Each<f64>) -> Option<usize> {
        let mut behind = self.misses;
        if let Some(favourite) = self.favourite {
            behind[favourite] -= self.bonus(VERDICT_BONUS);
        }
        let least = behind[..count].iter().fold(f64::MAX, |least, misses| least.min(*misses));
        let changes = (self.misses_live - least).clamp(0.0, CHANGES_MAX * self.capacity);
        behind[self.leader] -= STICKINESS * changes;
        let mut best = self.leader;
        for ghost in 0..count {
            if behind[ghost] < behind[best] {
                best = ghost;
            }
        }
        let unit = (TEMPERATURE * self.capacity).max(TEMPERATURE_MIN);
        for (ghost, vote) in votes.iter_mut().enumerate() {
            *vote = if ghost < count { (-(behind[ghost] - behind[best]) / unit).exp() } else { 0.0 };
        }
        let before = std::mem::replace(&mut self.leader, best);
        (before != best).then_some(before)
    }

    /// Whether the leader is the favourite of a verdict.
    pub(super) fn leads_by_verdict(&self) -> bool {
        self.favourite == Some(self.leader)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leader_that_loses_is_replaced_by_the_best() {
        let mut guard = Guard::new(100);
        let mut votes = [0.0; GHOSTS_MAX];
        assert_eq!(guard.vote(3, &mut votes), None);
        assert_eq!((guard.leader(), votes[FIRST], votes[3]), (FIRST, 1.0, 0.0));
        for _ in 0..40 {
            guard.count(0b001);
        }
        assert_eq!(guard.vote(3, &mut votes), Some(FIRST));
        assert_eq!(guard.leader(), 1);
        assert!(votes[FIRST] < 0.1 && votes[1] == 1.0);
    }

    #[test]
    fn a_favourite_leads_until_it_loses_by_more_than_its_bonus() {
        let mut guard = Guard::new(1000);
        let mut votes = [0.0; GHOSTS_MAX];
        for _ in 0..250 {
            guard.count(0b011);
        }
        guard.set_favourite(Some(1));
        guard.vote(3, &mut votes);
        assert_eq!(guard.leader(), 2);
        for _ in 0..170 {
            guard.count(0b101);
        }
        guard.vote(3, &mut votes);
        assert_eq!((guard.leader(), guard.leads_by_verdict()), (1, true));
    }
}
