//! The location of a record: its granule and a class of its length, in 42 bits.
//!
//! Owns: the packed form of both, which the index, its checkpoints and hot lists use.

use super::GRANULE_BYTES;

/// The number of bits of a granule's number.
pub const GRANULE_BITS: u32 = 36;
/// The number of bits of a class. In a packed location, these bits are above the bits of the granule.
pub const CLASS_BITS: u32 = 6;
/// The mask of the granule's bits in a packed location.
pub const GRANULE_MASK: u64 = (1 << GRANULE_BITS) - 1;

/// The location of a record, and a class that bounds the record's length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RecordLocation {
    /// Granules from the start of the segments.
    pub granule: u64,
    /// The class of the record's length.
    pub class: u8,
}

impl RecordLocation {
    /// Makes the location of a record of `bytes` bytes at `granule`.
    pub fn new(granule: u64, bytes: u64) -> RecordLocation {
        RecordLocation { granule, class: size_class(bytes) }
    }

    /// An upper bound of the record's length, in bytes. The bound is at least 256 bytes; above that, it exceeds the
    /// length by at most a quarter of the length plus one granule.
    pub fn bytes_max(self) -> u64 {
        class_granules(self.class) * GRANULE_BYTES
    }

    /// A lower bound of the record's length, in bytes.
    pub fn bytes_min(self) -> u64 {
        self.class.checked_sub(1).map_or(1, |below| class_granules(below) * GRANULE_BYTES + 1)
    }

    /// Packs the location into one word, for an atomic variable. The word is never zero, because no record is at
    /// granule 0.
    pub fn pack(self) -> u64 {
        u64::from(self.class) << GRANULE_BITS | self.granule
    }

    /// The inverse of [`pack`](Self::pack).
    pub fn unpack(packed: u64) -> RecordLocation {
        RecordLocation { granule: packed & GRANULE_MASK, class: (packed >> GRANULE_BITS) as u8 & 63 }
    }
}

/// The largest number of granules that a record of a class takes.
pub fn class_granules(class: u8) -> u64 {
    (4 + u64::from(class) % 4) << (class / 4)
}

fn size_class(bytes: u64) -> u8 {
    // From 4 granules on, there are four classes for each doubling of the length.
    let Some(above) = bytes.div_ceil(GRANULE_BYTES).checked_sub(5) else { return 0 };
    let doublings = (above + 4).ilog2() - 2;
    let class = u64::from(4 * doublings) + ((above + 4) >> doublings) - 3;
    class.min(63) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A size class covers the length, and at most a quarter more.
    #[test]
    fn size_class_covers_length() {
        for bytes in (1..20_000u64).chain([100_000, 1 << 20, (1 << 20) + 200, 2 << 20]) {
            let class = size_class(bytes);
            let covered = class_granules(class) * GRANULE_BYTES;
            assert!(covered >= bytes, "{bytes}");
            let location = RecordLocation::new(1, bytes);
            assert!((location.bytes_min()..=location.bytes_max()).contains(&bytes), "{bytes}");
            assert!(
                class == 0 || class_granules(class - 1) * GRANULE_BYTES < bytes,
                "{bytes}: class {class} is not the least"
            );
            assert!(covered <= 256 || covered * 4 <= bytes * 5 + 4 * GRANULE_BYTES, "{bytes} {covered}");
        }
    }
}
