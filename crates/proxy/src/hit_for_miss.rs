//! Keys whose responses were recently found not to be storable.
//!
//! Owns: a limited memory of these keys. Later requests for these keys go to the origin in parallel instead of waiting
//! for each other. Forgetting a key, or mistaking it for another with the same hash, costs only a little speed.

use std::hash::{BuildHasher, RandomState};

/// The maximum number of keys that are remembered at the same time.
const SLOTS: usize = 4096;
/// The time for which a key is remembered, in milliseconds.
const REMEMBERED_MS: u64 = 30_000;

/// The keys that one worker remembers.
#[derive(Debug)]
pub(crate) struct HitForMiss {
    hasher: RandomState,
    /// The hash of a key, and the time until which the key is remembered, in Unix milliseconds.
    slots: Box<[(u64, u64)]>,
}

impl HitForMiss {
    /// Starts without keys.
    pub fn new() -> HitForMiss {
        HitForMiss { hasher: RandomState::new(), slots: vec![(0, 0); SLOTS].into() }
    }

    /// Remembers that the key's response could not be stored.
    pub fn insert(&mut self, key: &[u8], now_ms: u64) {
        let hash = self.hasher.hash_one(key);
        self.slots[hash as usize % SLOTS] = (hash, now_ms + REMEMBERED_MS);
    }

    /// Forgets a key: its response was storable.
    pub fn remove(&mut self, key: &[u8]) {
        let hash = self.hasher.hash_one(key);
        let slot = &mut self.slots[hash as usize % SLOTS];
        if slot.0 == hash {
            slot.1 = 0;
        }
    }

    /// Whether the key is remembered.
    pub fn contains(&self, key: &[u8], now_ms: u64) -> bool {
        let hash = self.hasher.hash_one(key);
        let (found, until_ms) = self.slots[hash as usize % SLOTS];
        found == hash && now_ms < until_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_remembered_for_a_while() {
        let mut keys = HitForMiss::new();
        assert!(!keys.contains(b"a", 0));
        keys.insert(b"a", 1000);
        assert!(keys.contains(b"a", 1000 + REMEMBERED_MS - 1));
        assert!(!keys.contains(b"a", 1000 + REMEMBERED_MS));
        keys.insert(b"a", 1000);
        keys.remove(b"a");
        assert!(!keys.contains(b"a", 1000));
    }

    #[test]
    fn any_number_of_keys_takes_the_same_room() {
        let mut keys = HitForMiss::new();
        (0..10 * SLOTS).for_each(|key| keys.insert(&key.to_le_bytes(), 0));
        let remembered = (0..10 * SLOTS).filter(|key| keys.contains(&key.to_le_bytes(), 1)).count();
        assert!(remembered <= SLOTS && remembered > SLOTS / 2);
    }
}
