//! What has been asked for since it was written: one bit for each piece of the segments.
//!
//! Owns: the bits. Whoever finds an object sets the bit of the place where its record begins; when a segment is about to be
//! overwritten, what stands at places with their bit set has proved itself (`reinsert`). Records that begin in the same
//! piece share a bit, so small neighbours of a popular object may be taken for popular too. Bits are in memory alone: after
//! a restart everything has to prove itself anew.
//!
//! *Cost*: a bit for at least [`PIECE_BYTES_MIN`] of a store, and at most 1/64 of the memory budget; setting one that is
//! set already writes nothing.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::format::Location;
use crate::format::UNIT_BYTES;

/// The least that a bit stands for, in bytes.
const PIECE_BYTES_MIN: u64 = 4096;
/// The bits take at most this share of the memory budget.
const MEMORY_SHARE: u64 = 64;

/// The bits of a span.
pub struct Marks {
    words: Box<[AtomicU64]>,
    piece_units: u64,
}

impl Marks {
    /// Makes bits for `segments_bytes` of segments, none of them set. With a memory budget of 0 there are none.
    pub fn new(segments_bytes: u64, memory_bytes: u64) -> Marks {
        if memory_bytes == 0 {
            return Marks { words: Box::default(), piece_units: 1 };
        }
        let bytes = |piece: u64| segments_bytes.div_ceil(piece * 64) * 8;
        let mut piece = PIECE_BYTES_MIN;
        while bytes(piece) > memory_bytes / MEMORY_SHARE && piece < segments_bytes {
            piece *= 2;
        }
        let words = bytes(piece) / 8;
        Marks { words: (0..words).map(|_| AtomicU64::new(0)).collect(), piece_units: piece / UNIT_BYTES }
    }

    /// What the bits take, in bytes.
    pub fn bytes(&self) -> u64 {
        self.words.len() as u64 * 8
    }

    /// Notes that what begins at a location was asked for.
    pub fn set(&self, location: Location) {
        let piece = location.unit / self.piece_units;
        let Some(word) = self.words.get((piece / 64) as usize) else { return };
        let bit = 1 << (piece % 64);
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Whether what begins at a location was asked for, or a neighbour of it.
    pub fn has(&self, location: Location) -> bool {
        let piece = location.unit / self.piece_units;
        let word = self.words.get((piece / 64) as usize);
        word.is_some_and(|word| word.load(Ordering::Relaxed) & 1 << (piece % 64) != 0)
    }

    /// Clears the bits of a range of units: something else will stand there.
    pub fn clear(&self, units: std::ops::Range<u64>) {
        for piece in units.start / self.piece_units..units.end.div_ceil(self.piece_units) {
            if let Some(word) = self.words.get((piece / 64) as usize) {
                word.fetch_and(!(1 << (piece % 64)), Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_stands_for_its_piece_until_that_is_cleared() {
        let marks = Marks::new(1 << 20, 1 << 20);
        assert_eq!(marks.bytes(), 32);
        let (at, beside, behind) = (Location::new(64, 1), Location::new(127, 1), Location::new(128, 1));
        marks.set(at);
        assert!(marks.has(at) && marks.has(beside) && !marks.has(behind));
        marks.set(behind);
        marks.clear(64..128);
        assert!(!marks.has(at) && marks.has(behind));
    }

    #[test]
    fn the_bound_of_memory_holds_and_none_means_none() {
        assert!(Marks::new(1 << 40, 64 << 20).bytes() <= 1 << 20);
        let none = Marks::new(1 << 40, 0);
        none.set(Location::new(5, 1));
        assert!(!none.has(Location::new(5, 1)) && none.bytes() == 0);
        none.clear(0..10);
    }
}
