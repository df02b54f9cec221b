//! Counts the distinct objects of a trace of any length, and their bytes, in bounded memory.
//!
//! Owns: the count. It is exact up to a bound on the objects that are kept. Beyond the bound, only the objects whose hash
//! is below a threshold are kept, and each stands for as many as the threshold leaves out (as in SHARDS). The threshold
//! is halved whenever there are too many again, so at least half as many objects as the bound stand for all.

use hashbrown::HashMap;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The default bound on the objects that are kept; they take up to 220 MiB. The error of the estimate is about 0.05 %
/// (one standard deviation), and more for bytes if few objects have most of them.
pub const KEPT_MAX: usize = 7_000_000;

/// The seed of the hash, so that the sample does not depend on other samples of the same trace.
const SEED: u64 = 0x6f75_746c_696e_6573;

/// The distinct objects of a trace so far.
#[derive(Debug)]
pub struct DistinctCount {
    kept: HashMap<u64, u32>,
    kept_max: usize,
    halvings: u32,
    bytes: u64,
}

impl DistinctCount {
    /// A count that keeps at most `kept_max` objects, which is at least 1.
    pub fn new(kept_max: usize) -> DistinctCount {
        DistinctCount { kept: HashMap::new(), kept_max: kept_max.max(1), halvings: 0, bytes: 0 }
    }

    /// Counts an object of `bytes` bytes at its first reference; later references change nothing.
    pub fn add(&mut self, block: u64, bytes: u32) {
        if !is_kept(block, self.halvings) {
            return;
        }
        let hashbrown::hash_map::Entry::Vacant(entry) = self.kept.entry(block) else { return };
        entry.insert(bytes);
        self.bytes += u64::from(bytes);
        while self.kept.len() > self.kept_max && self.halvings < 63 {
            self.halvings += 1;
            let halvings = self.halvings;
            self.kept.retain(|&block, _| is_kept(block, halvings));
            self.bytes = self.kept.values().map(|&bytes| u64::from(bytes)).sum();
        }
    }

    /// The number of distinct objects.
    pub fn count(&self) -> u64 {
        (self.kept.len() as u64) << self.halvings
    }

    /// The sum of their sizes. *Units*: bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes.saturating_mul(1 << self.halvings)
    }

    /// Whether the figures are estimates.
    pub fn is_estimate(&self) -> bool {
        self.halvings > 0
    }
}

/// Whether an object is in the sample after a number of halvings.
pub fn is_kept(block: u64, halvings: u32) -> bool {
    halvings == 0 || xxh3_64_with_seed(&block.to_le_bytes(), SEED) >> (64 - halvings) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_exact_up_to_bound() {
        let mut small = DistinctCount::new(1000);
        let mut large = DistinctCount::new(1000);
        for number in 0..100_000_u64 {
            if number < 1000 {
                small.add(number, 3);
                small.add(number, 3);
            }
            large.add(number % 50_000, 10);
        }
        assert_eq!((small.count(), small.bytes(), small.is_estimate()), (1000, 3000, false));
        assert!(large.is_estimate() && large.kept.len() <= 1000 && large.kept.len() > 400);
        let off = (large.count() as f64 / 50_000.0 - 1.0).abs();
        assert!(off < 0.15, "{}", large.count());
        assert_eq!(large.bytes(), large.count() * 10);
    }
}
