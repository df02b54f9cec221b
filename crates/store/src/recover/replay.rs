//! The changes to the index that the log contains after a checkpoint, sorted by shard.
//!
//! Owns: the order of changes within a shard: first the records are applied in the order of the log, then the versions
//! that damage made invalid are removed. Leaves to others: which records the log has (`roll_forward`), and when a shard
//! can be changed (`loading`).
//!
//! *Cost*: 32 bytes per record until the records of its shard are applied, then 32 bytes per key. Changes are applied
//! shard by shard and in the order of the slots, so that they stay in the processor's cache. They are sorted, not put
//! into a hash table: page faults of new memory cost more than sorting.

use std::collections::{HashMap, HashSet};
use std::hash::BuildHasherDefault;

use crate::format::{INDEX_SHARDS, RecordLocation};
use crate::index::{ObjectIndex, shard_of};
use crate::names::key::{KeyHash, KeyHasher};

/// Room is reserved for at most this many records.
const RESERVED_MAX: u64 = 1 << 22;

/// The largest number of suspects that are kept. Each further suspect is forgotten, which costs at most one wasted
/// read.
pub const SUSPECTS_MAX: usize = 100_000;

/// An older location in the index under the hash of a newer replayed record. The keys of both records are compared
/// later; if they are equal, the older location is removed.
#[derive(Debug, Clone, Copy)]
pub struct SuspectLocation {
    pub hash: KeyHash,
    pub newer: RecordLocation,
    pub older: RecordLocation,
}

type ByKey<T> = HashMap<KeyHash, T, BuildHasherDefault<KeyHasher>>;

/// A record that becomes an entry of the index.
#[derive(Debug, Clone, Copy)]
struct ReplayedRecord {
    hash: KeyHash,
    sequence: u64,
    /// The packed location of the record.
    place: u64,
}

/// The changes to one shard.
#[derive(Default)]
struct ShardReplay {
    records: Vec<ReplayedRecord>,
    fragments: HashSet<KeyHash, BuildHasherDefault<KeyHasher>>,
    /// The newest applied record of each key: its packed location, and its sequence.
    applied: ByKey<(u64, u64)>,
    /// The records applied last, sorted by [`order`].
    settled: Vec<ReplayedRecord>,
    /// Damaged or incomplete versions, with their sequences.
    lost: Vec<(KeyHash, u64)>,
}

/// The changes to the index.
pub struct IndexReplay {
    shards: Vec<ShardReplay>,
    /// Older locations that the index has under the hashes of replayed records; at most [`SUSPECTS_MAX`].
    pub suspects: Vec<SuspectLocation>,
}

impl IndexReplay {
    pub fn new() -> IndexReplay {
        IndexReplay { shards: (0..INDEX_SHARDS).map(|_| ShardReplay::default()).collect(), suspects: Vec::new() }
    }

    /// Reserves room for this many records in total: a growing list would be copied again and again.
    pub fn reserve(&mut self, records: u64) {
        let each = (records.min(RESERVED_MAX) / INDEX_SHARDS as u64) as usize;
        for ShardReplay { records, .. } in &mut self.shards {
            // The shards differ a little in size.
            records.reserve((each + each / 8).saturating_sub(records.len()));
        }
    }

    /// Adds a record. It must be newer than all records added before.
    pub fn add(&mut self, hash: KeyHash, location: RecordLocation, sequence: u64, is_fragment: bool) {
        let shard = &mut self.shards[shard_of(hash)];
        shard.records.push(ReplayedRecord { hash, sequence, place: location.pack() });
        if is_fragment {
            shard.fragments.insert(hash);
        }
    }

    /// Adds a damaged or incomplete version.
    pub fn add_lost(&mut self, hash: KeyHash, sequence: u64) {
        self.shards[shard_of(hash)].lost.push((hash, sequence));
    }

    /// Forgets damaged or incomplete versions with a higher sequence than this: a crash lost them, and the next open
    /// used the versions that they had replaced.
    pub fn forget_lost_after(&mut self, sequence: u64) {
        self.shards.iter_mut().for_each(|shard| shard.lost.retain(|&(_, lost)| lost <= sequence));
    }

    /// Whether a fragment with this hash was added.
    pub fn has_fragment(&self, hash: KeyHash) -> bool {
        self.shards[shard_of(hash)].fragments.contains(&hash)
    }

    /// Applies to a shard of the index the records that were added since the last call. More records may be added
    /// later.
    pub fn apply(&mut self, shard: usize, index: &ObjectIndex) {
        self.settle(shard, index);
        self.shards[shard].keep_settled();
    }

    /// Applies to a shard of the index the records that were added since the last call. No records may be added
    /// afterwards.
    pub fn settle(&mut self, shard: usize, index: &ObjectIndex) {
        let IndexReplay { shards, suspects } = self;
        let replay = &mut shards[shard];
        if replay.records.is_empty() {
            return;
        }
        replay.keep_settled();
        let mut newest = std::mem::take(&mut replay.records);
        newest.sort_by_key(|record| order(record.hash));
        newest.dedup_by(|later, kept| {
            let same = later.hash == kept.hash;
            if same {
                *kept = *later;
            }
            same
        });
        let before = newest.iter().filter_map(|record| Some((record.hash, replay.applied.remove(&record.hash)?)));
        for (hash, (older, _)) in before {
            index.remove(hash, RecordLocation::unpack(older));
        }
        let mut at = 0;
        let entries = newest.iter().map(|record| (record.hash, RecordLocation::unpack(record.place)));
        index.insert_all(shard, entries, |hash, older| {
            if suspects.len() >= SUSPECTS_MAX {
                return;
            }
            while newest[at].hash != hash {
                at += 1;
            }
            suspects.push(SuspectLocation { hash, newer: RecordLocation::unpack(newest[at].place), older });
        });
        replay.settled = newest;
    }

    /// Removes the versions of each key whose newest version was lost to damage (not to a crash), because no older
    /// version may be returned then.
    pub fn forget_replaced(&mut self, shard: usize, index: &ObjectIndex, recovered_sequence: u64) {
        let replay = &mut self.shards[shard];
        for (hash, sequence) in std::mem::take(&mut replay.lost) {
            let newer = replay.sequence_of(hash).is_some_and(|at| at > sequence);
            if sequence <= recovered_sequence && !newer {
                index.candidates(hash).into_iter().for_each(|older| {
                    index.remove(hash, older);
                });
            }
        }
    }

    /// The locations of replayed records, newest first, at most `most`.
    pub fn newest(&self, most: usize) -> Vec<RecordLocation> {
        let mut newest: Vec<(u64, u64)> = Vec::new();
        for ShardReplay { settled, applied, .. } in &self.shards {
            newest.extend(settled.iter().map(|record| (record.sequence, record.place)));
            newest.extend(applied.values().map(|&(place, sequence)| (sequence, place)));
        }
        newest.sort_unstable_by_key(|&(sequence, _)| std::cmp::Reverse(sequence));
        newest.truncate(most);
        newest.into_iter().map(|(_, place)| RecordLocation::unpack(place)).collect()
    }
}

impl ShardReplay {
    /// Moves the settled records into the map of applied records, so that records that are read later are compared with
    /// them.
    fn keep_settled(&mut self) {
        let settled = std::mem::take(&mut self.settled);
        self.applied.extend(settled.into_iter().map(|record| (record.hash, (record.place, record.sequence))));
    }

    /// The sequence of the newest record of a key.
    fn sequence_of(&self, hash: KeyHash) -> Option<u64> {
        let settled = self.settled.binary_search_by_key(&order(hash), |record| order(record.hash));
        settled
            .map(|at| self.settled[at].sequence)
            .ok()
            .or_else(|| self.applied.get(&hash).map(|&(_, sequence)| sequence))
    }
}

/// The sort key for the order of entries in a shard of the index.
fn order(hash: KeyHash) -> u128 {
    hash.0.rotate_left(64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_locations_are_bounded() {
        let index = ObjectIndex::new(4, 64 << 20);
        let mut replay = IndexReplay::new();
        let hash = |number: u64| KeyHash(u128::from(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        let count = SUSPECTS_MAX as u64 + 1000;
        for number in 0..count {
            index.insert(hash(number), RecordLocation::new(2 * number, 100));
            replay.add(hash(number), RecordLocation::new(2 * number + 1, 100), number + 1, false);
        }
        (0..INDEX_SHARDS).for_each(|shard| replay.settle(shard, &index));
        assert_eq!((replay.suspects.len(), index.len()), (SUSPECTS_MAX, 2 * count));
        let suspect = replay.suspects[0];
        assert_eq!((suspect.newer.granule, index.candidates(suspect.hash).len()), (suspect.older.granule + 1, 2));
    }
}
