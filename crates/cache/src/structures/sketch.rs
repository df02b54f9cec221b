//! A sketch that estimates how often ids were recently referenced. It counts very many ids in few bytes; a count is
//! never too low and seldom too high.
//!
//! # Idea
//! A count-min sketch: an id has one counter in each of four rows, found by its hash; every reference raises the lowest
//! of the four (*conservative update*), and the lowest is the estimate. Counters have 4 bits, because counts above 15
//! need not be distinguished. To forget, all counters are halved from time to time.
//!
//! The four counters of an id are in one cache line: the hash selects a block of 128 counters, in which each row has 32
//! counters. When there are more ids than the table was made for, the table doubles; both halves start as copies of the
//! old table, so that no count is lost.
//!
//! # Invariants
//! 1. An estimate is at least the number of references since the last halving, up to 15.
//! 2. There are at least 16 counters per id, for the number of ids given to `fit`.
//!
//! # Cost
//! One cache line per reference; 8 to 16 bytes per id. Halving is one pass over the table.
//!
//! # Source
//! G. Cormode, S. Muthukrishnan, "An improved data stream summary: the count-min sketch and its applications", Journal
//! of Algorithms 55(1), 2005; conservative update: C. Estan, G. Varghese, SIGCOMM 2002.

use crate::structures::memory::{prefetch, with_capacity};

/// The number of words in a block. A word has 16 counters.
const BLOCK_WORDS: usize = 8;
/// The number of ids per block.
const BLOCK_IDS: usize = 8;
/// The number of rows, which is the number of counters per id.
const ROWS: usize = 4;
/// The highest count.
const COUNTER_MAX: u64 = 15;

/// The reference counts of ids. An id is given by its hash.
#[derive(Debug, Clone)]
pub(crate) struct FrequencySketch {
    blocks: Vec<[u64; BLOCK_WORDS]>,
}

impl FrequencySketch {
    /// An empty sketch; call [`FrequencySketch::fit`] before counting.
    pub(crate) fn new() -> FrequencySketch {
        FrequencySketch { blocks: vec![[0; BLOCK_WORDS]] }
    }

    /// Grows the sketch until it is large enough for `ids` ids.
    pub(crate) fn fit(&mut self, ids: usize) {
        while self.blocks.len() * BLOCK_IDS < ids {
            let mut doubled = with_capacity(2 * self.blocks.len());
            doubled.extend_from_slice(&self.blocks);
            doubled.extend_from_slice(&self.blocks);
            self.blocks = doubled;
        }
    }

    /// The memory of a sketch that grew to fit `ids` ids. *Units*: bytes.
    pub(crate) fn bytes_of(ids: usize) -> u64 {
        (ids.div_ceil(BLOCK_IDS).next_power_of_two() * size_of::<[u64; BLOCK_WORDS]>()) as u64
    }

    /// Counts one reference and returns the new estimate.
    pub(crate) fn count(&mut self, hash: u64) -> u64 {
        let block = self.block(hash);
        let block = &mut self.blocks[block];
        let places = places(hash);
        let lowest = lowest(block, &places);
        if lowest == COUNTER_MAX {
            return lowest;
        }
        for (word, shift) in places {
            if (block[word] >> shift) & COUNTER_MAX == lowest {
                block[word] += 1 << shift;
            }
        }
        lowest + 1
    }

    /// The estimate of how often an id was counted recently.
    pub(crate) fn estimate(&self, hash: u64) -> u64 {
        lowest(&self.blocks[self.block(hash)], &places(hash))
    }

    /// Prefetches the memory that counting or estimating needs.
    #[inline]
    pub(crate) fn prepare(&self, hash: u64) {
        prefetch(&self.blocks[self.block(hash)]);
    }

    /// Halves all counts.
    pub(crate) fn halve(&mut self) {
        for word in self.blocks.as_flattened_mut() {
            *word = (*word >> 1) & 0x7777_7777_7777_7777;
        }
    }

    /// The block of a hash; the number of blocks is a power of two.
    fn block(&self, hash: u64) -> usize {
        hash as usize & (self.blocks.len() - 1)
    }
}

/// The positions of the counters of a hash: the word in its block and the shift in that word, one for each row.
fn places(hash: u64) -> [(usize, u32); ROWS] {
    let bits = hash.rotate_right(32) ^ hash.wrapping_mul(0x9fb2_1c65_1e98_df25) >> 40;
    std::array::from_fn(|row| {
        let place = (bits >> (5 * row)) as usize & 31;
        (2 * row + place / 16, 4 * (place % 16) as u32)
    })
}

fn lowest(block: &[u64; BLOCK_WORDS], places: &[(usize, u32); ROWS]) -> u64 {
    places.iter().map(|&(word, shift)| (block[word] >> shift) & COUNTER_MAX).min().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::structures::hash::hash;

    /// Estimates are never too low and seldom too high.
    #[test]
    fn sketch_estimates_are_close() {
        let mut sketch = FrequencySketch::new();
        sketch.fit(1000);
        for id in 0..1000_u64 {
            for _ in 0..id % 20 {
                sketch.count(hash(id));
            }
        }
        let mut too_high = 0;
        for id in 0..1000_u64 {
            let (estimate, truth) = (sketch.estimate(hash(id)), (id % 20).min(COUNTER_MAX));
            assert!(estimate >= truth, "{id}: {estimate} for {truth}");
            too_high += u64::from(estimate > truth);
        }
        assert!(too_high < 50, "{too_high} of 1000");
    }

    #[test]
    fn halving_and_growing_keep_the_estimates() {
        let mut sketch = FrequencySketch::new();
        sketch.fit(100);
        for _ in 0..8 {
            sketch.count(hash(7));
        }
        sketch.fit(10_000);
        assert_eq!(sketch.estimate(hash(7)), 8);
        sketch.halve();
        assert_eq!(sketch.estimate(hash(7)), 4);
    }
}
