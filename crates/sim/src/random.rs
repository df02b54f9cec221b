//! A seeded source of numbers, so that every run can be repeated.

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// SplitMix64: small, fast, and the same on every machine.
#[derive(Debug, Clone)]
pub struct SimulationRandom(SplitMix64);

impl SimulationRandom {
    /// Starts from a seed.
    pub fn new(seed: u64) -> SimulationRandom {
        SimulationRandom(SplitMix64::seed_from_u64(seed ^ 0x6a09_e667_f3bc_c908))
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `bound`; 0 if the bound is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.bits() % bound }
    }

    /// Returns true with a probability of `percent` percent.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}
