//! Remembers past references, to compute the misses that another cache would have had on them.
//!
//! Owns: a bounded list of the last references to a sample of the blocks. For a small cache, every block is in the
//! sample. For a large cache, a hash of the block selects a share of the blocks, such that the same share of the
//! capacity is [`SAMPLED_BLOCKS_MAX`]. A cache of that size has about the same hit rate on the sample as the whole
//! cache has on all blocks [1].
//!
//! *Cost*: two multiplications per reference, and a write if the block is in the sample; 16 bytes per remembered
//! reference.
//!
//! [1] C. Waldspurger et al., "Efficient MRC construction with SHARDS", FAST 2015.

use std::collections::VecDeque;

use nectary_block::AccessStream;

/// The memory of one remembered reference. *Units*: bytes.
pub(crate) const REFERENCE_BYTES: u64 = 16;
/// The largest capacity with which the sample is replayed to simulate the cache at its real size. *Units*: blocks.
const SAMPLED_BLOCKS_MAX: u64 = 8192;

/// A past reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PastReference {
    pub id: u64,
    pub stream: AccessStream,
    pub is_hit: bool,
}

const _: () = assert!(size_of::<PastReference>() as u64 == REFERENCE_BYTES);

/// The last references to the blocks of the sample.
#[derive(Debug, Clone)]
pub(crate) struct ReferenceHistory {
    past: VecDeque<PastReference>,
    past_max: usize,
    /// Blocks whose hash is at most this value are in the sample.
    hash_max: u64,
    has_lost: bool,
}

impl ReferenceHistory {
    /// An empty history for a cache of this capacity; it remembers at most `past_max` references.
    pub fn new(capacity: u64, past_max: u64) -> ReferenceHistory {
        let hash_max = match capacity <= SAMPLED_BLOCKS_MAX {
            true => u64::MAX,
            false => u64::MAX / capacity * SAMPLED_BLOCKS_MAX,
        };
        ReferenceHistory { past: VecDeque::new(), past_max: past_max.max(1) as usize, hash_max, has_lost: false }
    }

    /// An empty history for a cache that already has blocks.
    pub fn begun_late(capacity: u64, past_max: u64) -> ReferenceHistory {
        ReferenceHistory { has_lost: true, ..ReferenceHistory::new(capacity, past_max) }
    }

    /// Remembers a reference if its block is in the sample.
    pub fn refer(&mut self, id: u64, stream: AccessStream, is_hit: bool) {
        if hash(id) > self.hash_max {
            return;
        }
        if self.past.len() == self.past_max {
            self.past.pop_front();
            self.has_lost = true;
        }
        if self.past.len() == self.past.capacity() {
            // The list grows by doubling, but not beyond the bound.
            let count = self.past.len();
            self.past.reserve_exact(count.max(64).min(self.past_max - count));
        }
        self.past.push_back(PastReference { id, stream, is_hit });
    }

    /// All remembered references, the oldest first.
    pub fn past(&self) -> Vec<PastReference> {
        self.past.iter().copied().collect()
    }

    /// Whether the list lacks references to the sample since the cache was empty.
    pub fn has_lost(&self) -> bool {
        self.has_lost
    }

    /// The share of the blocks that are in the sample, from 0 to 1.
    pub fn share(&self) -> f64 {
        if self.hash_max == u64::MAX { 1.0 } else { self.hash_max as f64 / u64::MAX as f64 }
    }
}

/// Spreads ids evenly over all values, even if they are adjacent.
fn hash(id: u64) -> u64 {
    let mixed = (id ^ id >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The memory of references is bounded, and the sample has the size that it reports.
    #[test]
    fn reference_sample_is_bounded() {
        let mut small = ReferenceHistory::new(512, 1000);
        (0..1500).for_each(|id| small.refer(id, AccessStream(1), false));
        assert_eq!((small.past().len(), small.has_lost(), small.share()), (1000, true, 1.0));
        assert_eq!(small.past()[0].id, 500);
        let mut large = ReferenceHistory::new(1 << 20, 1 << 20);
        (0..1 << 20).for_each(|id| large.refer(id, AccessStream(1), false));
        let (share, found) = (large.share(), large.past().len() as f64 / f64::from(1 << 20));
        assert!((share - 1.0 / 128.0).abs() < 1e-9 && (found / share - 1.0).abs() < 0.1, "{share} {found}");
        assert!(!large.has_lost());
    }
}
