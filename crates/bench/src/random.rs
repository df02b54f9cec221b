//! Seeded random numbers, and the distributions of workloads.
//!
//! Promises: the same seed gives the same values on every machine. The values are not fit for secrets.

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

    /// Draws a value in `0.0..1.0`.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns `true` with the given probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// Draws from a log-normal law, by Box and Muller's transform.
    pub fn log_normal(&mut self, median: f64, sigma: f64) -> f64 {
        let normal = (-2.0 * (1.0 - self.unit()).ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos();
        median * (sigma * normal).exp()
    }

    /// Draws from a Pareto law between two bounds, by inversion.
    pub fn pareto(&mut self, low: f64, high: f64, exponent: f64) -> f64 {
        let share = 1.0 - (low / high).powf(exponent);
        low / (1.0 - self.unit() * share).powf(1.0 / exponent)
    }

    /// Draws from a geometric law with the given mean; the probability of 0 is `1 / (1 + mean)`.
    pub fn geometric(&mut self, mean: f64) -> u64 {
        if mean <= 0.0 {
            return 0;
        }
        ((1.0 - self.unit()).ln() / (mean / (1.0 + mean)).ln()) as u64
    }
}

/// Scrambles 64 bits (the finalizer of SplitMix64).
pub fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_same_values_within_bounds() {
        let (mut left, mut right) = (SeededRandom::new(7), SeededRandom::new(7));
        assert!((0..100).all(|_| left.next_u64() == right.next_u64()));
        assert!((0..1000).all(|_| left.below(10) < 10 && left.unit() < 1.0));
        assert!((0..1000).all(|_| (40.0..=90.0).contains(&left.pareto(40.0, 90.0, 1.1))));
    }

    #[test]
    fn laws_have_their_medians_and_means() {
        let mut random = SeededRandom::new(1);
        let mut sizes: Vec<f64> = (0..40_001).map(|_| random.log_normal(2500.0, 1.0)).collect();
        sizes.sort_by(f64::total_cmp);
        assert!((2430.0..2570.0).contains(&sizes[20_000]), "{}", sizes[20_000]);
        let mean = (0..40_000).map(|_| random.geometric(4.0)).sum::<u64>() as f64 / 40_000.0;
        assert!((3.85..4.15).contains(&mean), "{mean}");
        let below = (0..40_000).filter(|_| random.pareto(1.0, 1e9, 1.0) < 2.0).count();
        assert!((19_500..20_500).contains(&below), "{below}");
        assert_eq!(random.geometric(0.0), 0);
    }
}
