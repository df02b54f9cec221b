//! What the log says happened to the index since a checkpoint, sorted by the shards that it happened to.
//!
//! Owns: the order of things within a shard: records in the order of the log, then what damage took. Leaves to others: which
//! records the log has (`recovery`), and when a shard is there to be changed (`loading`).
//!
//! *Cost*: 32 bytes a record until it is applied, then as much for each key; shard by shard, so that what is changed stays in
//! the processor's cache.

use std::collections::{HashMap, HashSet};
use std::hash::BuildHasherDefault;

use crate::format::INDEX_SHARDS;
use crate::index::{Index, Location, shard_of};
use crate::key::{Hashed, KeyHash};

/// An older place of a key whose newer record was replayed: to be compared and removed when there is time.
#[derive(Debug, Clone, Copy)]
pub struct Suspect {
    pub hash: KeyHash,
    pub newer: Location,
    pub older: Location,
}

type ByKey<T> = HashMap<KeyHash, T, BuildHasherDefault<Hashed>>;

/// A record that becomes an entry.
#[derive(Debug, Clone, Copy)]
struct Logged {
    hash: KeyHash,
    sequence: u64,
    /// Its place, packed.
    place: u64,
}

/// What is to be done to one shard.
#[derive(Default)]
struct ShardReplay {
    records: Vec<Logged>,
    fragments: HashSet<KeyHash, BuildHasherDefault<Hashed>>,
    /// The newest record of each key: its place, packed, and its sequence.
    replayed: ByKey<(u64, u64)>,
    /// Versions that are not whole, with their sequences.
    lost: Vec<(KeyHash, u64)>,
}

/// What is to be done to the index.
pub struct Replay {
    shards: Vec<ShardReplay>,
    /// Older places of keys, as far as they were found.
    pub suspects: Vec<Suspect>,
}

impl Replay {
    pub fn new() -> Replay {
        Replay { shards: (0..INDEX_SHARDS).map(|_| ShardReplay::default()).collect(), suspects: Vec::new() }
    }

    /// Adds a record, newer than all before it.
    pub fn add(&mut self, hash: KeyHash, location: Location, sequence: u64, is_fragment: bool) {
        let shard = &mut self.shards[shard_of(hash)];
        shard.records.push(Logged { hash, sequence, place: location.pack() });
        if is_fragment {
            shard.fragments.insert(hash);
        }
    }

    /// Adds a version that is not whole.
    pub fn add_lost(&mut self, hash: KeyHash, sequence: u64) {
        self.shards[shard_of(hash)].lost.push((hash, sequence));
    }

    /// Whether a fragment was added.
    pub fn has_fragment(&self, hash: KeyHash) -> bool {
        self.shards[shard_of(hash)].fragments.contains(&hash)
    }

    /// Makes the entries of what was added since the last time to a shard of the index.
    pub fn apply(&mut self, shard: usize, index: &Index) {
        let ShardReplay { records, replayed, .. } = &mut self.shards[shard];
        replayed.reserve(records.len());
        for record in std::mem::take(records) {
            let location = Location::unpack(record.place);
            if let Some((older, _)) = replayed.insert(record.hash, (record.place, record.sequence)) {
                index.remove(record.hash, Location::unpack(older));
            } else {
                let older = index.candidates(record.hash).into_iter().filter(|older| *older != location);
                self.suspects.extend(older.map(|older| Suspect { hash: record.hash, newer: location, older }));
            }
            index.insert(record.hash, location);
        }
    }

    /// Forgets versions that were replaced by one that damage, and no crash, has taken: nothing older may be believed.
    pub fn forget_replaced(&mut self, shard: usize, index: &Index, recovered_sequence: u64) {
        let ShardReplay { replayed, lost, .. } = &mut self.shards[shard];
        for (hash, sequence) in std::mem::take(lost) {
            let newer = replayed.get(&hash).is_some_and(|&(_, at)| at > sequence);
            if sequence <= recovered_sequence && !newer {
                index.candidates(hash).into_iter().for_each(|older| {
                    index.remove(hash, older);
                });
            }
        }
    }

    /// The places of what was replayed, newest first, at most `most`.
    pub fn newest(&self, most: usize) -> Vec<Location> {
        let records = self.shards.iter().flat_map(|shard| shard.replayed.values());
        let mut newest: Vec<(u64, u64)> = records.map(|&(place, sequence)| (sequence, place)).collect();
        newest.sort_unstable_by_key(|&(sequence, _)| std::cmp::Reverse(sequence));
        newest.truncate(most);
        newest.into_iter().map(|(_, place)| Location::unpack(place)).collect()
    }
}
