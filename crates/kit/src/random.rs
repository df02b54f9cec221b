//! Random numbers from a seed, so that a run can be repeated.
//!
//! Promises: the same values for the same seed on every machine. The values are not fit for secrets.

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// A generator of 64-bit values (SplitMix64).
#[derive(Clone, Debug)]
pub struct SeededRandom(SplitMix64);

impl SeededRandom {
    /// Makes a generator at the start of the sequence of `seed`.
    pub fn new(seed: u64) -> SeededRandom {
        SeededRandom(SplitMix64::seed_from_u64(seed))
    }

    /// Draws 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Draws a value in `0..bound`; 0 for an empty range.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Draws an index of a list of `count` elements.
    pub fn index(&mut self, count: usize) -> usize {
        self.below(count as u64) as usize
    }

    /// Draws an element of a list, which is not empty.
    pub fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.index(list.len())]
    }

    /// Draws a value in `0.0..1.0`.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns `true` with the given probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// Draws bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next_u64() as u8).collect()
    }

    /// Splits off an independent sequence, for a thread or a round.
    pub fn split(&mut self) -> SeededRandom {
        SeededRandom::new(self.next_u64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_same_values_within_bounds() {
        let (mut left, mut right) = (SeededRandom::new(7), SeededRandom::new(7));
        assert!((0..100).all(|_| left.next_u64() == right.next_u64()));
        assert!((0..1000).all(|_| left.below(10) < 10 && left.unit() < 1.0 && left.of(&[1, 2]) < 3));
        assert_eq!((left.below(0), left.bytes(5).len()), (0, 5));
        assert_ne!(left.split().next_u64(), left.split().next_u64());
    }
}
