//! The candidates in smaller caches: who is better there shows sooner.
//!
//! Owns: ghosts of a half and of a quarter of the size, and their misses lately. Promises: what it says of a ghost is never
//! below zero, and zero for one of them at least. Leaves to others: what that is worth against misses of the full size
//! (`guard.rs`).
//!
//! # Idea
//! A cache of a quarter of the size is full four times as soon, and has replaced four times as much by any moment: policies differ
//! there when those of the full size still agree, as all is there that was ever referred to. Most references tell the same of a policy at
//! half of the size as at all of it; where they do not, misses of the full size come to tell, and this is bounded.
//!
//! The partition has no smaller self. It is taken for the best of the candidates here, so that the misses of the full size
//! alone decide on it.

use super::ghosts::{CANDIDATES, Each, GHOSTS_MAX, candidates};
use crate::{Access, Policy, Stream};

/// The sizes, as powers of two by which the capacity is divided, and what a miss there is worth.
const SIZES: [(u32, f64); 2] = [(1, 1.0), (2, 0.5)];

/// The candidates at the sizes of [`SIZES`].
pub(super) struct Smaller {
    sets: [Vec<Box<dyn Policy>>; SIZES.len()],
    /// Misses in the window, by what they are worth.
    misses: Each<f64>,
}

impl Smaller {
    /// Empty caches; `capacity` is that of the full size.
    pub(super) fn new(capacity: u64) -> Smaller {
        Smaller { sets: SIZES.map(|(shift, _)| candidates(part(capacity, shift))), misses: [0.0; GHOSTS_MAX] }
    }

    /// Lets all of them refer to `id`; what was counted before is worth `decay` times as much.
    pub(super) fn reference(&mut self, id: u64, weight: u64, stream: Stream, decay: f64) {
        self.misses.iter_mut().for_each(|misses| *misses *= decay);
        for (set, (_, worth)) in self.sets.iter_mut().zip(SIZES) {
            for (policy, misses) in set.iter_mut().zip(&mut self.misses) {
                if policy.reference(id, weight, stream, &mut |_| true) != Access::Hit {
                    *misses += worth;
                }
            }
        }
    }

    /// By how many misses each ghost is behind the best one.
    pub(super) fn behind(&self) -> Each<f64> {
        let candidates = &self.misses[..CANDIDATES.len()];
        let least = candidates.iter().copied().fold(f64::INFINITY, f64::min);
        let mut behind = [0.0; GHOSTS_MAX];
        for (behind, misses) in behind.iter_mut().zip(candidates) {
            *behind = misses - least;
        }
        behind
    }

    /// Sets the capacity of the full size.
    pub(super) fn set_capacity(&mut self, capacity: u64) {
        for (set, (shift, _)) in self.sets.iter_mut().zip(SIZES) {
            for policy in set {
                policy.set_capacity(part(capacity, shift), &mut |_| true);
            }
        }
    }

    /// Lets all of them forget `id`.
    pub(super) fn remove(&mut self, id: u64) {
        self.sets.iter_mut().flatten().for_each(|policy| {
            policy.remove(id);
        });
    }
}

/// A part of a capacity, no smaller than 1, so that what fits into the whole may have a place.
fn part(capacity: u64, shift: u32) -> u64 {
    (capacity >> shift).max(1)
}

#[cfg(test)]
mod tests {
    use super::super::ghosts::{FIRST, LRU};
    use super::*;

    #[test]
    fn a_loop_that_still_fits_tells_who_keeps_loops() {
        let mut smaller = Smaller::new(100);
        assert_eq!(smaller.behind(), [0.0; GHOSTS_MAX]);
        for step in 0..400 {
            smaller.reference(step % 80, 1, Stream(0), 1.0);
        }
        let behind = smaller.behind();
        // LRU misses always in 50 and in 25; what keeps a part of the loop hits it.
        assert!(behind[LRU] - behind[FIRST] > 150.0, "{behind:?}");
        assert_eq!(behind[CANDIDATES.len()], 0.0, "the partition is never behind");
        assert!(behind.contains(&0.0) && behind.iter().all(|behind| *behind >= 0.0), "{behind:?}");
    }

    #[test]
    fn what_is_long_ago_counts_no_more() {
        let mut smaller = Smaller::new(100);
        for step in 0..400 {
            smaller.reference(step % 80, 1, Stream(0), 1.0);
        }
        for _ in 0..1000 {
            smaller.reference(1, 1, Stream(0), 0.9);
        }
        assert!(smaller.behind().iter().all(|behind| *behind < 1e-6));
    }

    #[test]
    fn what_is_removed_is_missed_at_every_size() {
        let mut smaller = Smaller::new(16);
        smaller.reference(1, 1, Stream(0), 1.0);
        smaller.reference(1, 1, Stream(0), 1.0);
        smaller.remove(1);
        smaller.reference(1, 1, Stream(0), 1.0);
        smaller.set_capacity(0);
        smaller.reference(2, 1, Stream(0), 1.0);
        smaller.reference(2, 1, Stream(0), 1.0);
        let misses = &smaller.misses[..CANDIDATES.len()];
        assert!(misses.iter().all(|misses| *misses >= 1.5 * 3.0), "{misses:?}");
    }
}
