//! The referenced bits: which records were requested since they were written. There is one bit per *stretch*, an
//! aligned range of bytes in the segments.
//!
//! Owns: the bits. A hit sets the bit of the stretch where its record begins. When a segment is about to be
//! overwritten, records whose bit is set are rewritten (`reinsert`). Records that begin in the same stretch share a
//! bit, so small records next to a popular object may also count as popular. The bits are only in memory: after a
//! restart, all are clear.
//!
//! *Cost*: at most one bit per [`STRETCH_BYTES_MIN`] bytes of the store, and at most 1/64 of the memory budget; setting
//! a bit that is already set writes nothing.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::format::{GRANULE_BYTES, RecordLocation};

/// The smallest stretch, in bytes.
const STRETCH_BYTES_MIN: u64 = 4096;
/// The bits take at most 1/`MEMORY_SHARE` of the memory budget.
const MEMORY_SHARE: u64 = 64;

/// The bits of a span.
pub struct ReferencedBits {
    words: Box<[AtomicU64]>,
    stretch_granules: u64,
}

impl ReferencedBits {
    /// Makes bits for `segments_bytes` of segments, none of them set. With a memory budget of 0 there are no bits.
    pub fn new(segments_bytes: u64, memory_bytes: u64) -> ReferencedBits {
        if memory_bytes == 0 {
            return ReferencedBits { words: Box::default(), stretch_granules: 1 };
        }
        let bytes = |stretch: u64| segments_bytes.div_ceil(stretch * 64) * 8;
        let mut stretch = STRETCH_BYTES_MIN;
        while bytes(stretch) > memory_bytes / MEMORY_SHARE && stretch < segments_bytes {
            stretch *= 2;
        }
        let words = bytes(stretch) / 8;
        ReferencedBits {
            words: (0..words).map(|_| AtomicU64::new(0)).collect(),
            stretch_granules: stretch / GRANULE_BYTES,
        }
    }

    /// The memory of the bits, in bytes.
    pub fn bytes(&self) -> u64 {
        self.words.len() as u64 * 8
    }

    /// Notes that the record at a location was requested.
    pub fn set(&self, location: RecordLocation) {
        let stretch = location.granule / self.stretch_granules;
        let Some(word) = self.words.get((stretch / 64) as usize) else { return };
        let bit = 1 << (stretch % 64);
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Whether the record at a location, or another one in its stretch, was requested.
    pub fn has(&self, location: RecordLocation) -> bool {
        let stretch = location.granule / self.stretch_granules;
        let word = self.words.get((stretch / 64) as usize);
        word.is_some_and(|word| word.load(Ordering::Relaxed) & 1 << (stretch % 64) != 0)
    }

    /// Clears the bits of a range of granules that is overwritten.
    pub fn clear(&self, granules: std::ops::Range<u64>) {
        for stretch in granules.start / self.stretch_granules..granules.end.div_ceil(self.stretch_granules) {
            if let Some(word) = self.words.get((stretch / 64) as usize) {
                word.fetch_and(!(1 << (stretch % 64)), Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn referenced_bit_stays_until_cleared() {
        let referenced = ReferencedBits::new(1 << 20, 1 << 20);
        assert_eq!(referenced.bytes(), 32);
        let (at, beside, behind) =
            (RecordLocation::new(64, 1), RecordLocation::new(127, 1), RecordLocation::new(128, 1));
        referenced.set(at);
        assert!(referenced.has(at) && referenced.has(beside) && !referenced.has(behind));
        referenced.set(behind);
        referenced.clear(64..128);
        assert!(!referenced.has(at) && referenced.has(behind));
    }

    /// The bound of memory holds, and a bound of 0 turns the bits off.
    #[test]
    fn memory_bound_holds() {
        assert!(ReferencedBits::new(1 << 40, 64 << 20).bytes() <= 1 << 20);
        let none = ReferencedBits::new(1 << 40, 0);
        none.set(RecordLocation::new(5, 1));
        assert!(!none.has(RecordLocation::new(5, 1)) && none.bytes() == 0);
        none.clear(0..10);
    }
}
