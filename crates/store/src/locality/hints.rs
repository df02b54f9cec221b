//! Hints of locality, which say that objects will be requested together.
//!
//! Owns: a table of pending hints ("this object belongs to that one"), which stay until other hints overwrite them. A
//! hint is used when its object is packed (`arrange`), and when its object is read apart from its page (`regroup`).
//! Hints are advice: a lost or wrong hint only costs locality.
//!
//! The table has a fixed number of slots of one word. For the hint "A belongs to B", the hash of A selects the slot. A
//! newer hint overwrites an older one in the same slot. So a hint takes no lock and allocates nothing, and the table
//! never grows.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::names::key::PrimaryHash;

/// There is one slot per this many bytes of the memory budget.
const BYTES_PER_SLOT: u64 = 4096;
/// The smallest and the largest number of slots.
const SLOTS: (u64, u64) = (1 << 10, 1 << 16);

/// A part of an object's primary hash: enough to distinguish the objects of one append.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HintId(u32);

impl HintId {
    /// The id of a primary key.
    pub fn of(primary: PrimaryHash) -> HintId {
        // Zero marks an empty slot.
        HintId((primary.0 as u32).max(1))
    }
}

/// The pending hints.
pub struct PendingHints {
    /// Per slot: the id of the object in the high half, and the id of the object to which it belongs in the low half;
    /// zero for no hint.
    slots: Box<[AtomicU64]>,
}

impl PendingHints {
    /// Makes an empty table for a memory budget.
    pub fn new(memory_bytes: u64) -> PendingHints {
        let count = (memory_bytes / BYTES_PER_SLOT).clamp(SLOTS.0, SLOTS.1).next_power_of_two();
        PendingHints { slots: (0..count).map(|_| AtomicU64::new(0)).collect() }
    }

    /// The memory of the table, in bytes.
    pub fn bytes(&self) -> u64 {
        self.slots.len() as u64 * 8
    }

    /// Notes that `object` belongs to `seed`. Does nothing if they are the same, or if `seed` already belongs to
    /// `object`.
    pub fn add(&self, object: PrimaryHash, seed: PrimaryHash) {
        let id = HintId::of(seed);
        if id == HintId::of(object) || self.seed_of(seed) == Some(HintId::of(object)) {
            return;
        }
        let hint = u64::from(HintId::of(object).0) << 32 | u64::from(id.0);
        self.slot(object).store(hint, Ordering::Relaxed);
    }

    /// The object to which `object` belongs.
    pub fn seed_of(&self, object: PrimaryHash) -> Option<HintId> {
        let hint = self.slot(object).load(Ordering::Relaxed);
        (hint >> 32 == u64::from(HintId::of(object).0)).then_some(HintId(hint as u32))
    }

    fn slot(&self, object: PrimaryHash) -> &AtomicU64 {
        // Bits of the hash that are not in the id select the slot.
        &self.slots[(object.0 >> 32) as usize & (self.slots.len() - 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(number: u64) -> PrimaryHash {
        PrimaryHash(xxhash_rust::xxh3::xxh3_128(&number.to_le_bytes()))
    }

    /// A hint is found until it is overwritten, and none is invented.
    #[test]
    fn hint_is_found_until_overwritten() {
        let hints = PendingHints::new(256 << 20);
        hints.add(hash(1), hash(100));
        hints.add(hash(2), hash(100));
        assert_eq!(hints.seed_of(hash(1)), Some(HintId::of(hash(100))));
        assert_eq!(hints.seed_of(hash(2)), Some(HintId::of(hash(100))));
        assert_eq!(hints.seed_of(hash(100)), None);
        assert_eq!((3..90_000).filter(|&number| hints.seed_of(hash(number)).is_some()).count(), 0);
        hints.add(hash(1), hash(200));
        assert_eq!(hints.seed_of(hash(1)), Some(HintId::of(hash(200))));
    }

    /// A hint of an object to itself, or in reverse, changes nothing.
    #[test]
    fn useless_hints_change_nothing() {
        let hints = PendingHints::new(0);
        hints.add(hash(1), hash(1));
        assert_eq!(hints.seed_of(hash(1)), None);
        hints.add(hash(1), hash(2));
        hints.add(hash(2), hash(1));
        assert_eq!(hints.seed_of(hash(1)), Some(HintId::of(hash(2))));
        assert_eq!(hints.seed_of(hash(2)), None);
    }

    #[test]
    fn hint_table_keeps_its_size() {
        let hints = PendingHints::new(8 << 20);
        let bytes = hints.bytes();
        (0..100_000).for_each(|number| hints.add(hash(number), hash(number / 4)));
        assert_eq!(hints.bytes(), bytes);
        assert!(bytes <= (8 << 20) / 64, "{bytes}");
    }
}
