//! Traces generated from a seed with integers only, so that any program can generate the same traces. The generator is
//! SplitMix64. Half of the references are skewed to few blocks; the others are a loop, uniform references, and blocks
//! that are referenced once.

use nectary_cache::StreamId;
use nectary_trace::simulate::TraceWorkload;
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// A trace of 20,000 references.
pub fn generated(name: &str, seed: u64) -> TraceWorkload {
    let mut random = SplitMix64::seed_from_u64(seed);
    let (mut looped, mut once) = (0, 0);
    let blocks: Vec<u64> = (0..20_000)
        .map(|_| {
            let (kind, any) = (random.next_u64() % 10, random.next_u64() % 1000);
            match kind {
                0..5 => any * any * any / 2_000_000,
                5..8 => {
                    looped += 1;
                    1000 + (looped - 1) % 700
                }
                8 => 5000 + any,
                _ => {
                    once += 1;
                    10_000 + once - 1
                }
            }
        })
        .collect();
    TraceWorkload::new(name, blocks.into_iter().map(|block| (block, StreamId(0))))
}
