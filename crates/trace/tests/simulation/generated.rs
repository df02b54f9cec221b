//! Traces made from a seed by integers alone, so that any program can make the same ones: SplitMix64, half of the references
//! skewed to few blocks, a loop, a uniform part, and blocks that come once.

use nectary_cache::Stream;
use nectary_trace::simulate::Workload;

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// A trace of 20,000 references.
pub fn generated(name: &str, seed: u64) -> Workload {
    let mut random = Random(seed);
    let (mut looped, mut once) = (0, 0);
    let blocks: Vec<u64> = (0..20_000)
        .map(|_| {
            let (kind, any) = (random.next() % 10, random.next() % 1000);
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
    Workload::new(name, blocks.into_iter().map(|block| (block, Stream(0))))
}
