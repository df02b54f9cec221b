//! Seeded randomness: a small generator and a Zipf law, so that a run can be repeated from one number, its seed.
//!
//! Promises the same values for the same seed on every machine. The values are not fit for secrets.

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng};

/// A generator of 64-bit values (SplitMix64): tiny, fast, good enough to choose workloads.
#[derive(Clone, Debug)]
pub struct SeededRng(SplitMix64);

impl SeededRng {
    /// Makes a generator at the start of the stream of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(SplitMix64::seed_from_u64(seed))
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

    /// Draws a value in `0.0..1.0`.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns `true` with the given probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// Splits off an independent stream, for a thread or a round.
    pub fn split(&mut self) -> Self {
        Self::new(self.next_u64())
    }
}

impl Default for SeededRng {
    fn default() -> Self {
        Self::new(0)
    }
}

/// The step of SplitMix64: the golden ratio in 64 bits.
pub(crate) const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Scrambles 64 bits (the finalizer of SplitMix64).
pub(crate) fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// Draws ranks `0..count` where rank `r` has a weight of `1 / (r + 1)^exponent`.
#[derive(Clone, Debug)]
pub struct Zipf {
    cumulative: Vec<f64>,
}

impl Zipf {
    /// Precomputes the law. *Cost*: 8 bytes per rank; a draw is one binary search.
    pub fn new(count: usize, exponent: f64) -> Self {
        let mut sum = 0.0;
        let cumulative = (0..count.max(1))
            .map(|rank| {
                sum += ((rank + 1) as f64).powf(-exponent);
                sum
            })
            .collect();
        Self { cumulative }
    }

    /// Draws a rank.
    pub fn sample(&self, rng: &mut SeededRng) -> usize {
        let total = self.cumulative.last().copied().unwrap_or(1.0);
        let point = rng.unit() * total;
        self.cumulative.partition_point(|&sum| sum <= point).min(self.cumulative.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_same_values() {
        let mut left = SeededRng::new(7);
        let mut right = SeededRng::new(7);
        assert!((0..100).all(|_| left.next_u64() == right.next_u64()));
        assert!((0..1000).all(|_| left.below(10) < 10));
    }

    #[test]
    fn zipf_prefers_low_ranks() {
        let zipf = Zipf::new(1000, 1.0);
        let mut rng = SeededRng::new(1);
        let first = (0..100_000).filter(|_| zipf.sample(&mut rng) == 0).count();
        // The first rank has a probability of 1 / H(1000) = 13.4 %, where H is the harmonic number.
        assert!((12_500..14_300).contains(&first), "{first}");
    }
}
