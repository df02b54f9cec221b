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
//! The *favourite* of a verdict has a bonus: its misses are taken to be fewer by a tenth of the capacity, and at most by a
//! hundred. A *confirmed* loop, one that was found again and again, has a bonus of half of the capacity: each policy keeps
//! another part of a loop, and what one of them gains in one round the other gains in the next. LIRS, which is rarely far
//! from the best, has a bonus to begin with that fades with the window. Who is best at smaller sizes (`smaller.rs`) has the
//! misses by which it is so there as a bonus, at most a fifth of the capacity and a hundred.
//!
//! The leader stays where another is ahead by no more than chance: of the references at which just one of the two missed,
//! n in the window, each is taken for the toss of a coin, so the difference must be above the root of n (the sign test). So
//! where two policies nearly agree a small difference counts, and where they differ at every turn, as in loops, a large one
//! is needed.

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
/// The most that misses of smaller sizes count, as a share of the capacity.
const SMALLER_BONUS: f64 = 0.2;
/// The bonus of a confirmed loop's favourite, as a share of the capacity.
const CONFIRMED_BONUS: f64 = 0.5;
/// No other bonus is more than this. *Units*: misses.
const BONUS_MAX: f64 = 100.0;
/// Another ghost must be ahead of the leader by so many roots of the references at which just one of the two missed.
const EVIDENCE_ROOTS: f64 = 1.0;
/// To be clearly behind, a ghost has more misses than the leader by this share of them, and by so many times what chance
/// may do.
const CLEAR: f64 = 0.01;
const CLEAR_CHANCES: f64 = 2.0;
/// What counts is written larger and larger in place of letting the past fade; from here on it is written anew.
const SCALE_MAX: f64 = 1e12;

/// Why a ghost leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Nothing was known yet.
    Start,
    /// A verdict of the detector chose it.
    Verdict,
    /// In the window it missed no less than what led before, but it did in caches of a half and of a quarter of the size.
    Smaller {
        /// What led before.
        from: &'static str,
    },
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

/// What a verdict expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Favourite {
    /// Who is expected to be the best.
    pub(super) ghost: usize,
    /// Whether it is that of a loop that was found again and again.
    pub(super) is_confirmed: bool,
}

/// What the guard knows of a follower's ghosts.
pub(super) struct Guard {
    /// Misses in the window.
    misses: Each<f64>,
    favourite: Option<Favourite>,
    /// The bonus of the ghost to begin with. *Units*: misses.
    prior: f64,
    leader: usize,
    /// For each two ghosts the references in the window at which the first one missed and the second did not, times `scale`.
    differing: Each<Each<f64>>,
    /// What a reference counts now, where the first one counted 1.
    scale: f64,
    decay: f64,
    capacity: f64,
}

impl Guard {
    /// A guard of ghosts of which nothing is known.
    pub(super) fn new(capacity: u64) -> Guard {
        let mut guard = Guard {
            misses: [0.0; GHOSTS_MAX],
            favourite: None,
            prior: 0.0,
            leader: FIRST,
            differing: [[0.0; GHOSTS_MAX]; GHOSTS_MAX],
            scale: 1.0,
            decay: 1.0,
            capacity: 0.0,
        };
        guard.set_capacity(capacity);
        guard.prior = guard.bonus(PRIOR);
        guard
    }

    /// What was counted is worth so much after one reference more.
    pub(super) fn decay(&self) -> f64 {
        self.decay
    }

    /// Says how large the ghosts are.
    pub(super) fn set_capacity(&mut self, capacity: u64) {
        self.capacity = capacity as f64;
        self.decay = 1.0 - 1.0 / (WINDOW * self.capacity).max(WINDOW_MIN);
    }

    /// Begins to count for a ghost that came later: as if it had missed a little more than the leader.
    pub(super) fn admit(&mut self, ghost: usize) {
        self.misses[ghost] = self.misses[self.leader] + self.bonus(PRIOR);
    }

    fn bonus(&self, share: f64) -> f64 {
        (share * self.capacity).min(BONUS_MAX)
    }

    /// Counts who missed.
    pub(super) fn count(&mut self, missed: Mask) {
        self.prior *= self.decay;
        self.scale /= self.decay;
        for (ghost, misses) in self.misses.iter_mut().enumerate() {
            *misses = *misses * self.decay + f64::from(missed >> ghost & 1);
        }
        let mut left = missed;
        while left != 0 {
            let ghost = left.trailing_zeros() as usize;
            left &= left - 1;
            for (other, differing) in self.differing[ghost].iter_mut().enumerate() {
                *differing += self.scale * f64::from(!missed >> other & 1);
            }
        }
        if self.scale > SCALE_MAX {
            self.differing.iter_mut().flatten().for_each(|differing| *differing /= self.scale);
            self.scale = 1.0;
        }
    }

    /// Whether a ghost is behind the leader by a share of its misses and by more than chance.
    pub(super) fn is_clearly_behind(&self, ghost: usize) -> bool {
        let misses = self.misses[ghost];
        misses - self.misses[self.leader] > CLEAR * misses + CLEAR_CHANCES * self.chance(ghost, self.leader)
    }

    /// By how many misses one ghost may be ahead of another by chance.
    fn chance(&self, one: usize, other: usize) -> f64 {
        EVIDENCE_ROOTS * ((self.differing[one][other] + self.differing[other][one]) / self.scale).sqrt()
    }

    /// Says what a verdict expects.
    pub(super) fn set_favourite(&mut self, favourite: Option<Favourite>) {
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

    /// The votes of the first `count` ghosts, of which `smaller` says by how much each is behind at smaller sizes; returns who led before, where
    /// the leader changes.
    pub(super) fn vote(&mut self, count: usize, smaller: &Each<f64>, votes: &mut Each<f64>) -> Option<usize> {
        let mut behind = self.misses;
        let most = self.bonus(SMALLER_BONUS);
        for (behind, smaller) in behind.iter_mut().zip(smaller) {
            *behind += smaller.min(most);
        }
        behind[FIRST] -= self.prior;
        if let Some(Favourite { ghost, is_confirmed }) = self.favourite {
            behind[ghost] -= if is_confirmed { CONFIRMED_BONUS * self.capacity } else { self.bonus(VERDICT_BONUS) };
        }
        for (ghost, behind) in behind[..count].iter_mut().enumerate().filter(|(ghost, _)| *ghost != self.leader) {
            *behind += self.chance(ghost, self.leader);
        }
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
        self.favourite.is_some_and(|favourite| favourite.ghost == self.leader)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Each<f64> = [0.0; GHOSTS_MAX];

    fn count(guard: &mut Guard, times: u32, missed: Mask) {
        (0..times).for_each(|_| guard.count(missed));
    }

    #[test]
    fn a_leader_that_loses_is_replaced_by_the_best() {
        let mut guard = Guard::new(100);
        let mut votes = [0.0; GHOSTS_MAX];
        assert_eq!(guard.vote(3, &NONE, &mut votes), None);
        assert_eq!((guard.leader(), votes[FIRST], votes[3]), (FIRST, 1.0, 0.0));
        count(&mut guard, 100, 0b001);
        assert_eq!(guard.vote(3, &NONE, &mut votes), Some(FIRST));
        assert_eq!(guard.leader(), 1);
        assert!(votes[FIRST] < 0.1 && votes[1] == 1.0);
    }

    #[test]
    fn a_favourite_leads_until_it_loses_by_more_than_its_bonus() {
        let mut guard = Guard::new(1000);
        let mut votes = [0.0; GHOSTS_MAX];
        guard.set_favourite(Some(Favourite { ghost: 1, is_confirmed: false }));
        guard.vote(3, &NONE, &mut votes);
        assert_eq!(guard.leader(), FIRST, "the prior is no less than a verdict's bonus");
        count(&mut guard, 50, 0b001);
        guard.vote(3, &NONE, &mut votes);
        assert_eq!((guard.leader(), guard.leads_by_verdict()), (1, true));
        count(&mut guard, 400, 0b011);
        assert_eq!(guard.vote(3, &NONE, &mut votes), Some(1));
        assert_eq!((guard.leader(), guard.leads_by_verdict()), (2, false));
    }

    #[test]
    fn what_smaller_sizes_say_is_bounded() {
        let mut votes = [0.0; GHOSTS_MAX];
        let mut leader_after = |vain: u32| {
            let mut guard = Guard::new(100);
            guard.prior = 0.0;
            count(&mut guard, vain, 0b10);
            guard.vote(2, &[1e6, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], &mut votes);
            guard.leader()
        };
        assert_eq!((leader_after(10), leader_after(40)), (1, FIRST));
    }

    #[test]
    fn a_confirmed_loop_is_believed_for_longer() {
        let mut votes = [0.0; GHOSTS_MAX];
        let mut leader_after = |is_confirmed| {
            let mut guard = Guard::new(1000);
            guard.set_favourite(Some(Favourite { ghost: FIRST, is_confirmed }));
            count(&mut guard, 400, 0b001);
            guard.vote(2, &NONE, &mut votes);
            guard.leader()
        };
        assert_eq!((leader_after(false), leader_after(true)), (1, FIRST));
    }

    #[test]
    fn what_is_behind_by_chance_or_by_little_is_not_clearly_behind() {
        for (agreed, behind, is_clear) in [(0, 3, false), (0, 100, true), (20_000, 100, false), (20_000, 500, true)] {
            let mut guard = Guard::new(1_000_000);
            count(&mut guard, agreed, 0b11);
            count(&mut guard, behind, 0b10);
            assert_eq!(guard.is_clearly_behind(1), is_clear, "{behind} of {agreed}");
        }
    }

    #[test]
    fn a_lead_by_chance_is_no_lead() {
        // Both times 30 misses ahead; once the two differed at 30 references, once at 5000.
        let leader_after = |vain: u32| {
            let mut guard = Guard::new(10_000);
            guard.prior = 0.0;
            count(&mut guard, vain, 0b01);
            count(&mut guard, vain, 0b10);
            guard.misses = [0.0; GHOSTS_MAX];
            count(&mut guard, 30, 0b01);
            guard.vote(2, &NONE, &mut [0.0; GHOSTS_MAX]);
            guard.leader()
        };
        assert_eq!((leader_after(0), leader_after(2485)), (1, FIRST));
    }
}
