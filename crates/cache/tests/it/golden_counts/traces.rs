//! Traces made from a seed. The program `research policies-outside` makes the same traces for its seed 1.

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

pub type Next = fn(&mut GoldenRandom, u64) -> u64;

const REFERENCES: u64 = 20_000;

pub struct GoldenRandom(SplitMix64);

impl GoldenRandom {
    fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    fn skewed(&mut self, bound: u64, power: u32) -> u64 {
        let uniform = (self.next() >> 11) as f64 / (1_u64 << 53) as f64;
        (bound as f64 * (0..power).fold(1.0, |product, _| product * uniform)) as u64
    }
}

/// The references of a trace of one kind.
pub fn references(next: Next, seed: u64) -> Vec<u64> {
    let mut random = GoldenRandom(SplitMix64::seed_from_u64(seed));
    (0..REFERENCES).map(|time| next(&mut random, time)).collect()
}

pub fn uniform(random: &mut GoldenRandom, _: u64) -> u64 {
    random.next() % 3000
}

pub fn skewed(random: &mut GoldenRandom, _: u64) -> u64 {
    random.skewed(4000, 4)
}

pub fn drifting(random: &mut GoldenRandom, time: u64) -> u64 {
    time / 8 + random.skewed(1500, 3)
}

/// A loop, then a longer loop, with some random references in between.
pub fn loops(random: &mut GoldenRandom, time: u64) -> u64 {
    match random.next() % 20 {
        0 => 10_000 + random.next() % 500,
        _ if time < REFERENCES / 2 => time % 900,
        _ => 2000 + time % 1300,
    }
}

/// The first thousand of every three thousand references is a scan.
pub fn scanned(random: &mut GoldenRandom, time: u64) -> u64 {
    match time / 1000 % 3 {
        0 => 100_000 + time,
        _ => random.skewed(2000, 3),
    }
}

pub fn mixed(random: &mut GoldenRandom, time: u64) -> u64 {
    match random.next() % 10 {
        0..5 => random.skewed(1000, 3),
        5..8 => 2000 + time % 700,
        8 => 4000 + random.next() % 1000,
        _ => 100_000 + time,
    }
}
