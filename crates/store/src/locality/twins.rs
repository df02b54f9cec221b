//! Copies: which records on disk hold the very version to which the index leads elsewhere.
//!
//! Owns: a table of versions that were written more than once in this life, so that a read may take any copy that lies in
//! its way. It is advice in one direction only: what is missing here costs locality; what is here must be true.
//!
//! A slot holds one word: a keyed hash of a key's hash, the version's generation, and the place to which the index leads. A
//! record is a copy of what the index leads to where the three give the word that stands in the key's slot. A new version
//! has another generation and another place, so the word is void the moment the index leads to it; and a place that is
//! overwritten belongs to another epoch, which is part of the word. Two triples give the same word once in 2^64 pairs.
//!
//! The table has a fixed number of slots; a newer version overwrites what stands there. It takes no lock and starts empty.

use std::sync::atomic::{AtomicU64, Ordering};

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::format::Location;
use crate::names::key::KeyHash;

/// A slot for so many bytes of the memory budget.
const BYTES_PER_SLOT: u64 = 1024;
/// The fewest and the most slots.
const SLOTS: (u64, u64) = (1 << 10, 1 << 20);

/// A version, and where the index leads to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Version {
    pub hash: KeyHash,
    pub generation: u64,
    pub location: Location,
    /// The epoch of its segment.
    pub epoch: u64,
}

/// The versions that have copies.
pub struct Twins {
    slots: Box<[AtomicU64]>,
    seed: u64,
}

impl Twins {
    /// Knows of no copies; none at all where `enabled` is not set.
    pub fn new(memory_bytes: u64, seed: u64, enabled: bool) -> Twins {
        let count = (memory_bytes / BYTES_PER_SLOT).clamp(SLOTS.0, SLOTS.1).next_power_of_two();
        let count = if enabled { count } else { 0 };
        Twins { slots: (0..count).map(|_| AtomicU64::new(0)).collect(), seed }
    }

    /// What the table takes, in bytes.
    pub fn bytes(&self) -> u64 {
        self.slots.len() as u64 * 8
    }

    /// Notes that a version, to which the index leads from now on, has copies elsewhere.
    pub fn note(&self, version: &Version) {
        if let Some(slot) = self.slot(version.hash) {
            slot.store(self.word(version), Ordering::Release);
        }
    }

    /// Whether a record of this version is a copy of what the index leads to.
    pub fn has(&self, version: &Version) -> bool {
        self.slot(version.hash).is_some_and(|slot| slot.load(Ordering::Acquire) == self.word(version))
    }

    fn word(&self, version: &Version) -> u64 {
        let mut bytes = [0; 40];
        bytes[..16].copy_from_slice(&version.hash.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&version.generation.to_le_bytes());
        bytes[24..32].copy_from_slice(&version.location.granule.to_le_bytes());
        bytes[32..].copy_from_slice(&version.epoch.to_le_bytes());
        // Zero is an empty slot.
        xxh3_64_with_seed(&bytes, self.seed).max(1)
    }

    fn slot(&self, hash: KeyHash) -> Option<&AtomicU64> {
        self.slots.get((hash.0 >> 32) as usize & self.slots.len().wrapping_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(number: u64) -> Version {
        let hash = KeyHash(xxhash_rust::xxh3::xxh3_128(&number.to_le_bytes()));
        Version { hash, generation: number, location: Location::new(number, 64), epoch: 3 }
    }

    #[test]
    fn a_copy_is_known_until_the_index_leads_elsewhere_or_to_another_version() {
        let twins = Twins::new(8 << 20, 7, true);
        let known = version(1);
        assert!(!twins.has(&known));
        twins.note(&known);
        assert!(twins.has(&known));
        assert!(!twins.has(&Version { generation: 2, ..known }));
        assert!(!twins.has(&Version { location: Location::new(2, 64), ..known }));
        assert!(!twins.has(&Version { epoch: 4, ..known }));
        assert!(!twins.has(&Version { hash: version(2).hash, ..known }));
        twins.note(&Version { location: Location::new(9, 64), ..known });
        assert!(!twins.has(&known));
    }

    #[test]
    fn the_table_is_as_large_as_it_was_made_and_nothing_is_known_where_it_is_not_wanted() {
        let twins = Twins::new(8 << 20, 7, true);
        (0..100_000).for_each(|number| twins.note(&version(number)));
        assert_eq!(twins.bytes(), 64 << 10);
        assert!(twins.has(&version(99_999)));
        let none = Twins::new(8 << 20, 7, false);
        none.note(&version(1));
        assert!(!none.has(&version(1)) && none.bytes() == 0);
    }
}
