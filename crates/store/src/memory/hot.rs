//! The places in a hot list: the locations of objects in memory, and the number of requests for each.

use std::cmp::Reverse;

use crate::format::RecordLocation;

/// The number of references is stored above the location's bits, see `docs/formats/store.md`.
const REFERENCES_SHIFT: u32 = 42;
const REFERENCES_LOG_MAX: u32 = 15;

/// The location of an object, and how often it was requested (rounded down to a power of two), packed into 8 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HotPlace(u64);

impl HotPlace {
    /// Packs a location and how often its object was requested.
    pub fn new(location: RecordLocation, references: u32) -> HotPlace {
        let log = references.max(1).ilog2().min(REFERENCES_LOG_MAX);
        HotPlace(location.pack() | u64::from(log) << REFERENCES_SHIFT)
    }

    /// The form on disk.
    pub fn packed(self) -> u64 {
        self.0
    }

    /// The inverse of [`packed`](Self::packed); every number is valid.
    pub fn unpack(packed: u64) -> HotPlace {
        HotPlace(packed)
    }

    /// The location of the object.
    pub fn location(self) -> RecordLocation {
        RecordLocation::unpack(self.0)
    }

    /// The number of requests for the object, rounded down to a power of two.
    pub fn references(self) -> u32 {
        1 << (self.0 >> REFERENCES_SHIFT & u64::from(REFERENCES_LOG_MAX))
    }

    /// A sort key: the most requested objects come first.
    pub fn hottest_first(&self) -> Reverse<u32> {
        Reverse(self.references())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A place keeps its location and, rounded, how often it was requested.
    #[test]
    fn hot_place_round_trips() {
        let location = RecordLocation { granule: (1 << 36) - 1, class: 63 };
        for (references, kept) in [(0, 1), (1, 1), (3, 2), (4, 4), (255, 128), (u32::MAX, 1 << 15)] {
            let place = HotPlace::unpack(HotPlace::new(location, references).packed());
            assert_eq!((place.location(), place.references()), (location, kept));
        }
        assert_eq!(HotPlace::unpack(location.pack()).references(), 1, "earlier programs wrote none");
    }
}
