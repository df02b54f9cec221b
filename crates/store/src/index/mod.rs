//! The index maps the hash of a key to the possible locations of the key's record on disk. An entry has eight bytes.
//!
//! # How it works
//! The index has 64 shards. Each is an open-addressed table with robin-hood linear probing: an entry is in its home
//! slot or one of the next 63, and of two entries that compete for a slot, the one further from its home gets it. The
//! home is `H x slots / 2^w`, where `H` is w bits of the key's hash. An entry has the lowest 16 bits of `H` (the tag),
//! its distance from home, the location of the record, and a size class that is at least the record's length, so that
//! one read fetches the record. `H` can be computed from the home and the tag (at most 2^16 values of `H` have the same
//! home). So a shard grows, by a quarter at a time, without reading anything from disk.
//!
//! The index is a multiset: two keys of equal `H`, or two versions of one key, can both have entries. A lookup gets all
//! candidates, reads them, and compares the whole key.
//!
//! # Invariants
//! 1. An entry that was inserted is found until it is removed or counted in `evictions`.
//! 2. No two entries of a shard have both the same `H` and the same location.
//! 3. The slots take at most the bytes given at creation, or their initial size if that is larger.
//!
//! Cost: 9.1 to 11.4 bytes per object while shards fill to 88 % and grow by a quarter; at their memory bound, shards
//! are up to 94 % full. A lookup reads one or two cache lines, under a lock that is held for some tens of nanoseconds.
//!
//! *Circle*: `slots` and `load` are parts of this one table, and `presence` asks it which shard a hash is in.
//!
//! Source: P. Celis, "Robin Hood Hashing", 1986; the range reduction is Lemire's, 2019.

pub mod held_names;
mod load;
pub mod presence;
pub mod referenced;
mod slots;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use crate::format::location::{CLASS_BITS, GRANULE_BITS, GRANULE_MASK};
use crate::format::{INDEX_SHARDS, RecordLocation};
use crate::names::key::KeyHash;

pub use load::ValidLocations;
pub use presence::ShardPresence;
pub use slots::SlotTable;

const TAG_BITS: u32 = 16;
const TAG_SHIFT: u32 = 48;
const DISTANCE_SHIFT: u32 = 42;
const DISTANCE_MASK: u64 = 63 << DISTANCE_SHIFT;
/// An entry is in one of this many slots, counted from its home slot on. So this many further slots follow the last
/// home slot.
const REACH: usize = 64;
/// A shard grows when it is fuller than this, in percent. If its memory bound does not allow that, the shard drops
/// entries when it is fuller than `LOAD_PERCENT_AT_BOUND`.
const LOAD_PERCENT_MAX: usize = 88;
const LOAD_PERCENT_AT_BOUND: usize = 94;
const SLOT_BYTES: usize = 8;

/// The size of the slots of a shard with `homes` home slots, in bytes.
pub fn slots_bytes(homes: u32) -> usize {
    (homes as usize + REACH) * SLOT_BYTES
}

/// The number of the shard that has the entries of a hash.
pub fn shard_of(hash: KeyHash) -> usize {
    (hash.0 as u64 >> 58) as usize
}

/// The table of one shard.
struct IndexShard {
    /// The home slots, and after them the further slots that entries of the last homes may use.
    slots: SlotTable,
    homes: usize,
    entries: usize,
}

/// The index of a span.
pub struct ObjectIndex {
    shards: Vec<Mutex<IndexShard>>,
    /// The number of bits of a key's hash that can be computed from an entry's home and tag.
    width: u32,
    homes_initial: usize,
    homes_max: usize,
    entries: AtomicU64,
    bytes: AtomicU64,
    record_bytes: AtomicU64,
    evictions: AtomicU64,
}

impl ObjectIndex {
    /// Makes an empty index with `2^bits_initial` homes per shard, whose slots take at most `bytes_max`.
    pub fn new(bits_initial: u32, bytes_max: u64) -> ObjectIndex {
        let homes_initial = 1 << bits_initial;
        let shards: Vec<_> = (0..INDEX_SHARDS).map(|_| Mutex::new(IndexShard::of(homes_initial))).collect();
        let homes_max = (bytes_max as usize / INDEX_SHARDS / SLOT_BYTES).saturating_sub(REACH).max(homes_initial);
        ObjectIndex {
            shards,
            width: TAG_BITS + bits_initial,
            homes_initial,
            homes_max,
            entries: AtomicU64::new(0),
            bytes: AtomicU64::new((INDEX_SHARDS * (homes_initial + REACH) * SLOT_BYTES) as u64),
            record_bytes: AtomicU64::new(0),
            evictions: AtomicU64::new(0),
        }
    }

    /// The number of entries.
    pub fn len(&self) -> u64 {
        self.entries.load(Ordering::Relaxed)
    }

    /// The size of the slots of all shards, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The sum of the largest possible lengths of the entries' records, in bytes.
    pub fn record_bytes(&self) -> u64 {
        self.record_bytes.load(Ordering::Relaxed)
    }

    /// The number of entries that were dropped because the index was at its memory bound.
    pub fn evictions(&self) -> u64 {
        self.evictions.load(Ordering::Relaxed)
    }

    /// The possible locations of a record of this hash, in no order.
    pub fn candidates(&self, hash: KeyHash) -> Vec<RecordLocation> {
        let mut found = Vec::new();
        let (shard, known) = self.locate(hash);
        self.shard(shard).scan(self.width, known, |_, entry| {
            found.push(location_of(entry));
            false
        });
        found
    }

    /// Whether the index has exactly this entry.
    pub fn contains(&self, hash: KeyHash, location: RecordLocation) -> bool {
        let (shard, known) = self.locate(hash);
        self.shard(shard).find(self.width, known, location).is_some()
    }

    /// Whether the index has exactly this entry, and no newer entry of the same hash. Of two locations, the one with
    /// the greater `age` is newer.
    pub fn leads_last_to<T: Ord>(
        &self,
        hash: KeyHash,
        location: RecordLocation,
        age: impl Fn(RecordLocation) -> T,
    ) -> bool {
        let (shard, known) = self.locate(hash);
        let (own, mut is_there, mut is_last) = (age(location), false, true);
        self.shard(shard).scan(self.width, known, |_, entry| {
            let other = location_of(entry);
            is_there |= other.granule == location.granule;
            is_last &= age(other) <= own;
            !is_last
        });
        is_there && is_last
    }

    /// Whether the index has exactly this entry, and no other entry of the same hash.
    pub fn leads_only_to(&self, hash: KeyHash, location: RecordLocation) -> bool {
        let (shard, known) = self.locate(hash);
        let (mut is_there, mut is_only) = (false, true);
        self.shard(shard).scan(self.width, known, |_, entry| {
            is_only = !is_there && location_of(entry) == location;
            is_there = true;
            !is_only
        });
        is_there && is_only
    }

    /// Adds an entry; does nothing if the index already has it.
    pub fn insert(&self, hash: KeyHash, location: RecordLocation) {
        let (shard, known) = self.locate(hash);
        self.insert_into(&mut self.shard(shard), known, location);
    }

    /// Adds entries of a single shard. Before each is added, `older` receives the other entries of the same hash.
    pub fn insert_all(
        &self,
        shard: usize,
        entries: impl Iterator<Item = (KeyHash, RecordLocation)>,
        mut older: impl FnMut(KeyHash, RecordLocation),
    ) {
        let mut locked = self.shard(shard);
        for (hash, location) in entries {
            let (of, known) = self.locate(hash);
            debug_assert_eq!(of, shard);
            locked.scan(self.width, known, |_, entry| {
                Some(location_of(entry))
                    .filter(|other| *other != location)
                    .into_iter()
                    .for_each(|other| older(hash, other));
                false
            });
            self.insert_into(&mut locked, known, location);
        }
    }

    fn insert_into(&self, shard: &mut IndexShard, known: u64, location: RecordLocation) {
        if shard.find(self.width, known, location).is_some() {
            return;
        }
        if shard.entries * 100 >= shard.homes * LOAD_PERCENT_MAX {
            self.grow(shard);
        }
        if shard.entries * 100 >= shard.homes * LOAD_PERCENT_AT_BOUND {
            self.give_up_one(shard, known);
        }
        self.entries.fetch_add(1, Ordering::Relaxed);
        self.record_bytes.fetch_add(location.bytes_max(), Ordering::Relaxed);
        let mut homeless = shard.place(self.width, known, location.pack());
        while let Some((known, entry)) = homeless {
            if !self.grow(shard) {
                self.forget(entry);
                self.evictions.fetch_add(1, Ordering::Relaxed);
                self.give_up_all(shard, known);
                break;
            }
            homeless = shard.place(self.width, known, entry);
        }
    }

    /// Removes exactly this entry; returns whether the index had it.
    pub fn remove(&self, hash: KeyHash, location: RecordLocation) -> bool {
        let (shard, known) = self.locate(hash);
        let mut shard = self.shard(shard);
        let Some(slot) = shard.find(self.width, known, location) else { return false };
        self.forget(shard.slots[slot]);
        shard.take(slot);
        true
    }

    /// Removes every entry whose location `dead` accepts; returns the number of removed entries. *Cost*: visits the
    /// whole index.
    pub fn sweep(&self, dead: impl Fn(RecordLocation) -> bool) -> u64 {
        let mut removed = 0;
        for shard in 0..INDEX_SHARDS {
            let mut shard = self.shard(shard);
            let mut slot = 0;
            while slot < shard.slots.len() {
                let entry = shard.slots[slot];
                if entry != 0 && dead(location_of(entry)) {
                    // The following entries move up, so this slot is checked again.
                    shard.take(slot);
                    self.forget(entry);
                    removed += 1;
                } else {
                    slot += 1;
                }
            }
        }
        removed
    }

    /// All locations in the index, in no order.
    pub fn locations(&self) -> Vec<RecordLocation> {
        let mut found = Vec::with_capacity(self.len() as usize);
        for shard in 0..INDEX_SHARDS {
            let shard = self.shard(shard);
            found.extend(shard.slots.iter().filter(|entry| **entry != 0).map(|entry| location_of(*entry)));
        }
        found
    }

    /// The shard of a hash, and the bits of the hash that can be computed from an entry's home and tag.
    fn locate(&self, hash: KeyHash) -> (usize, u64) {
        let bits = hash.0 as u64;
        (shard_of(hash), bits << 6 >> (64 - self.width))
    }

    fn shard(&self, shard: usize) -> MutexGuard<'_, IndexShard> {
        self.shards[shard].lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn forget(&self, entry: u64) {
        self.entries.fetch_sub(1, Ordering::Relaxed);
        self.record_bytes.fetch_sub(location_of(entry).bytes_max(), Ordering::Relaxed);
    }

    /// Grows a shard by a quarter if the memory bound allows it. Returns whether the shard grew.
    fn grow(&self, shard: &mut IndexShard) -> bool {
        let homes = (shard.homes + shard.homes / 4 + 1).min(self.homes_max);
        if homes <= shard.homes {
            return false;
        }
        let mut grown = IndexShard::of(homes);
        for (slot, &entry) in shard.slots.iter().enumerate().filter(|(_, entry)| **entry != 0) {
            let known = shard.known(self.width, slot, entry);
            if let Some((_, homeless)) = grown.place(self.width, known, entry) {
                self.forget(homeless);
                self.evictions.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.bytes.fetch_add(((grown.slots.len() - shard.slots.len()) * SLOT_BYTES) as u64, Ordering::Relaxed);
        *shard = grown;
        true
    }

    /// Drops an entry near the home of `known`: a cache may forget, but must not exceed its budget.
    fn give_up_one(&self, shard: &mut IndexShard, known: u64) {
        let home = shard.home(self.width, known);
        let Some(slot) = (home..home + REACH).find(|&slot| shard.slots[slot] != 0) else { return };
        let known = shard.known(self.width, slot, shard.slots[slot]);
        self.give_up_all(shard, known);
    }

    /// Drops all entries of one hash, because no older version may be found instead of the newest one.
    fn give_up_all(&self, shard: &mut IndexShard, known: u64) {
        loop {
            let mut found = None;
            shard.scan(self.width, known, |slot, _| {
                found = Some(slot);
                true
            });
            let Some(slot) = found else { break };
            self.forget(shard.slots[slot]);
            self.evictions.fetch_add(1, Ordering::Relaxed);
            shard.take(slot);
        }
    }
}

impl IndexShard {
    fn of(homes: usize) -> IndexShard {
        IndexShard { slots: SlotTable::empty(homes + REACH), homes, entries: 0 }
    }

    fn home(&self, width: u32, known: u64) -> usize {
        ((u128::from(known) * self.homes as u128) >> width) as usize
    }

    /// Computes the bits of the hash of the entry in a slot, from the entry's home and tag.
    fn known(&self, width: u32, slot: usize, entry: u64) -> u64 {
        let home = (slot - distance_of(entry)) as u128;
        // This is the smallest hash with this home. The entry's hash is the first hash from there on that ends in the
        // entry's tag.
        let least = ((home << width).div_ceil(self.homes as u128)) as u64;
        let tag = entry >> TAG_SHIFT;
        least + (tag.wrapping_sub(least) & ((1 << TAG_BITS) - 1))
    }

    /// Visits the entries that may be of this hash, until `visit` returns true because it needs no more.
    fn scan(&self, width: u32, known: u64, mut visit: impl FnMut(usize, u64) -> bool) {
        let home = self.home(width, known);
        let tag = known & ((1 << TAG_BITS) - 1);
        for (distance, &entry) in self.slots[home..home + REACH].iter().enumerate() {
            if entry == 0 || distance_of(entry) < distance {
                return;
            }
            if entry >> TAG_SHIFT == tag && distance_of(entry) == distance && visit(home + distance, entry) {
                return;
            }
        }
    }

    /// Finds the slot of exactly this entry.
    fn find(&self, width: u32, known: u64, location: RecordLocation) -> Option<usize> {
        let mut found = None;
        self.scan(width, known, |slot, entry| {
            if entry & GRANULE_MASK == location.granule {
                found = Some(slot);
            }
            found.is_some()
        });
        found
    }

    /// Puts an entry. Returns the entry that got no slot within its reach, if there is one: the new entry, or an entry
    /// that was displaced.
    fn place(&mut self, width: u32, known: u64, entry: u64) -> Option<(u64, u64)> {
        let home = self.home(width, known);
        let tag = known & ((1 << TAG_BITS) - 1);
        let mut carried = entry & ((1 << DISTANCE_SHIFT) - 1) | tag << TAG_SHIFT;
        let slots = &mut *self.slots;
        let (mut slot, mut distance) = (home, 0);
        while distance < REACH {
            let present = slots[slot];
            if present == 0 {
                slots[slot] = carried | (distance as u64) << DISTANCE_SHIFT;
                self.entries += 1;
                return None;
            }
            if distance_of(present) < distance {
                slots[slot] = carried | (distance as u64) << DISTANCE_SHIFT;
                distance = distance_of(present);
                carried = present & !DISTANCE_MASK;
            }
            slot += 1;
            distance += 1;
        }
        // The table has as many entries as before, so the count is unchanged. The hash of the entry without a slot
        // follows from its home.
        let at_home = carried;
        Some((self.known(width, slot - distance, at_home), carried))
    }

    /// Empties a slot. The entries after it that are not in their home slots move up by one slot.
    fn take(&mut self, slot: usize) {
        let slots = &mut *self.slots;
        let mut hole = slot;
        while hole + 1 < slots.len() {
            let next = slots[hole + 1];
            if next == 0 || distance_of(next) == 0 {
                break;
            }
            slots[hole] = next - (1 << DISTANCE_SHIFT);
            hole += 1;
        }
        slots[hole] = 0;
        self.entries -= 1;
    }
}

fn distance_of(entry: u64) -> usize {
    (entry >> DISTANCE_SHIFT & 63) as usize
}

fn location_of(entry: u64) -> RecordLocation {
    RecordLocation { granule: entry & GRANULE_MASK, class: (entry >> GRANULE_BITS) as u8 & ((1 << CLASS_BITS) - 1) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xxhash_rust::xxh3::xxh3_128;

    fn hash(number: u64) -> KeyHash {
        KeyHash(xxh3_128(&number.to_le_bytes()))
    }

    /// The index points to a location only while its hash has no other location.
    #[test]
    fn index_points_only_without_rivals() {
        let index = ObjectIndex::new(4, 64 << 20);
        let (one, two) = (RecordLocation::new(2, 1000), RecordLocation::new(9, 1000));
        assert!(!index.leads_only_to(hash(1), one));
        index.insert(hash(1), one);
        index.insert(hash(2), two);
        assert!(index.leads_only_to(hash(1), one) && !index.leads_only_to(hash(1), two));
        index.insert(hash(1), two);
        assert!(!index.leads_only_to(hash(1), one) && !index.leads_only_to(hash(1), two));
        index.remove(hash(1), one);
        assert!(index.leads_only_to(hash(1), two));
    }

    #[test]
    fn batch_insert_reports_other_entries() {
        let index = ObjectIndex::new(4, 64 << 20);
        let one = (1..).map(hash).find(|hash| shard_of(*hash) == 5).unwrap();
        let (old, new) = (RecordLocation::new(2, 1000), RecordLocation::new(9, 1000));
        index.insert(one, old);
        let mut older = Vec::new();
        for _ in 0..2 {
            index.insert_all(5, [(one, new)].into_iter(), |hash, location| older.push((hash, location)));
        }
        assert_eq!(older, [(one, old); 2]);
        assert_eq!((index.len(), index.candidates(one).len()), (2, 2));
    }

    #[test]
    fn entries_survive_growth_and_dump() {
        let index = ObjectIndex::new(4, 64 << 20);
        for number in 0..100_000 {
            index.insert(hash(number), RecordLocation::new(number + 2, 1000));
        }
        assert_eq!((index.len(), index.evictions()), (100_000, 0));
        let copy = ObjectIndex::new(4, 64 << 20);
        for shard in 0..INDEX_SHARDS {
            let (homes, bytes) = index.dump(shard);
            let mut slots = SlotTable::rooms(&[bytes.len()]).remove(0);
            assert!(slots.add(&bytes));
            assert!(copy.load(shard, homes, slots, &ValidLocations::below(200_000)));
        }
        assert_eq!((copy.len(), copy.bytes(), copy.record_bytes()), (index.len(), index.bytes(), index.record_bytes()));
        for number in 0..100_000 {
            assert!(copy.contains(hash(number), RecordLocation::new(number + 2, 1000)));
            assert!(copy.remove(hash(number), RecordLocation::new(number + 2, 1000)));
        }
        assert_eq!((copy.len(), copy.record_bytes()), (0, 0));
    }

    #[test]
    fn two_versions_leave_one_by_one() {
        let index = ObjectIndex::new(4, 1 << 20);
        let (old, new) = (RecordLocation::new(10, 100), RecordLocation::new(20, 200));
        index.insert(hash(1), old);
        index.insert(hash(1), new);
        index.insert(hash(1), new);
        assert_eq!(index.candidates(hash(1)).len(), 2);
        assert!(index.remove(hash(1), old));
        assert_eq!(index.candidates(hash(1)), vec![new]);
        assert!(!index.remove(hash(1), old));
    }

    /// The byte limit holds, and entries that were given up are counted.
    #[test]
    fn byte_limit_counts_losses() {
        let bound = 64 * 8 * (300 + REACH) as u64;
        let index = ObjectIndex::new(4, bound);
        for number in 0..50_000 {
            index.insert(hash(number), RecordLocation::new(number + 2, 100));
        }
        assert!(index.bytes() <= bound);
        assert_eq!(index.len() + index.evictions(), 50_000);
        assert!(index.len() > 64 * 300 * 9 / 10, "{} entries at the bound", index.len());
        let found =
            (0..50_000).filter(|&number| index.contains(hash(number), RecordLocation::new(number + 2, 100))).count();
        assert_eq!(found as u64, index.len());
    }

    /// A growing index stays near ten bytes an entry.
    #[test]
    fn growing_index_stays_small() {
        let index = ObjectIndex::new(6, 1 << 30);
        for number in 0..1_000_000u64 {
            index.insert(hash(number), RecordLocation::new(number + 2, 1000));
            if number >= 100_000 && number % 50_000 == 0 {
                let bytes = index.bytes() as f64 / index.len() as f64;
                assert!(bytes < 12.5, "{bytes:.1} bytes an entry at {number}");
            }
        }
        assert_eq!(index.evictions(), 0);
    }

    #[test]
    fn sweep_removes_only_dead_entries() {
        let index = ObjectIndex::new(4, 4 << 20);
        for number in 0..10_000 {
            index.insert(hash(number), RecordLocation::new(number + 2, 100));
        }
        assert_eq!(index.sweep(|location| location.granule >= 5002), 5000);
        assert!(index.contains(hash(4999), RecordLocation::new(5001, 100)));
        assert!(!index.contains(hash(5000), RecordLocation::new(5002, 100)));
    }
}
