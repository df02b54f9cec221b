//! The index: from a key's hash to where its record may lie on disk, in eight bytes an object.
//!
//! # How it works
//! 64 shards, each a power of two of buckets, a bucket being one cache line of eight entries. An entry keeps 20 bits of the
//! hash (the tag), the place of the record and a size class that is at least its length, so that one read fetches it. A
//! key's home bucket is given by the lowest bits of its hash; an entry stands there or in one of the next three buckets
//! and remembers how far from home it is. Because the tag overlaps the bits that choose the bucket as the table grows,
//! a shard doubles without reading anything from disk.
//!
//! The index is a multiset: two keys of equal tag, or two versions of one key, can stand side by side. Who looks up gets
//! all candidates, newest first, and compares the whole key with what is read.
//!
//! # Invariants
//! 1. An entry that was inserted is found until it is removed or counted in `evictions`.
//! 2. No two entries of a shard have both the same tag and the same place.
//! 3. Buckets take at most the bytes given at creation.
//!
//! Cost: a lookup reads at most four neighbouring cache lines under a lock held for some tens of nanoseconds.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::format::{INDEX_SHARDS, UNIT_BYTES};
use crate::key::KeyHash;

const SLOTS: usize = 8;
const REACH: usize = 4;
const TAG_BITS: u32 = 20;
const UNIT_BITS: u32 = 36;
const CLASS_BITS: u32 = 6;
const TAG_SHIFT: u32 = 44;
const DISPLACEMENT_SHIFT: u32 = 42;
const UNIT_MASK: u64 = (1 << UNIT_BITS) - 1;
/// Entries of a shard above this share of its slots make it double.
const LOAD_PERCENT_MAX: usize = 85;

/// Where a record lies and how long it may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Location {
    /// Units from the start of the segments.
    pub unit: u64,
    /// The class of its length.
    pub class: u8,
}

impl Location {
    /// The location of a record of `bytes` at `unit`.
    pub fn new(unit: u64, bytes: u64) -> Location {
        Location { unit, class: size_class(bytes) }
    }

    /// At least the record's length, in bytes; at most a quarter more.
    pub fn bytes_max(self) -> u64 {
        class_units(self.class) * UNIT_BYTES
    }

    /// Packs the location for an atomic; never zero.
    pub fn pack(self) -> u64 {
        u64::from(self.class) << UNIT_BITS | self.unit
    }

    /// The inverse of [`pack`](Self::pack).
    pub fn unpack(packed: u64) -> Location {
        Location { unit: packed & UNIT_MASK, class: (packed >> UNIT_BITS) as u8 & 63 }
    }
}

fn class_units(class: u8) -> u64 {
    (4 + u64::from(class) % 4) << (class / 4)
}

fn size_class(bytes: u64) -> u8 {
    let units = bytes.div_ceil(UNIT_BYTES).max(1);
    (0..64u8).find(|&class| class_units(class) >= units).unwrap_or(63)
}

type Bucket = [u64; SLOTS];

#[derive(Default)]
struct Shard {
    buckets: Vec<Bucket>,
    bits: u32,
    entries: usize,
}

/// The index of a span.
pub struct Index {
    shards: Vec<Mutex<Shard>>,
    bucket_bits_initial: u32,
    shard_bytes_max: usize,
    entries: AtomicU64,
    bytes: AtomicU64,
    record_bytes: AtomicU64,
    evictions: AtomicU64,
}

impl Index {
    /// Makes an empty index whose buckets take at most `bytes_max` (but at least their initial size).
    pub fn new(bucket_bits_initial: u32, bytes_max: u64) -> Index {
        let shards = (0..INDEX_SHARDS).map(|_| Mutex::new(Shard::of(bucket_bits_initial))).collect();
        let bytes = (INDEX_SHARDS * size_of::<Bucket>()) << bucket_bits_initial;
        Index {
            shards,
            bucket_bits_initial,
            shard_bytes_max: (bytes_max as usize / INDEX_SHARDS).max(size_of::<Bucket>() << bucket_bits_initial),
            entries: AtomicU64::new(0),
            bytes: AtomicU64::new(bytes as u64),
            record_bytes: AtomicU64::new(0),
            evictions: AtomicU64::new(0),
        }
    }

    /// How many entries there are.
    pub fn len(&self) -> u64 {
        self.entries.load(Ordering::Relaxed)
    }

    /// How many bytes the buckets take.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The sum of what the entries' records may take on disk, in bytes.
    pub fn record_bytes(&self) -> u64 {
        self.record_bytes.load(Ordering::Relaxed)
    }

    /// Entries that were given up because the index was at its bound.
    pub fn evictions(&self) -> u64 {
        self.evictions.load(Ordering::Relaxed)
    }

    /// The places where a record of this hash may lie, in no order.
    pub fn candidates(&self, hash: KeyHash) -> Vec<Location> {
        let mut found = Vec::new();
        let shard = self.shard(hash);
        shard.scan(hash, self.bucket_bits_initial, |_, _, entry| {
            found.push(location_of(entry));
            false
        });
        found
    }

    /// Whether the index has exactly this entry.
    pub fn contains(&self, hash: KeyHash, location: Location) -> bool {
        let mut found = false;
        self.shard(hash).scan(hash, self.bucket_bits_initial, |_, _, entry| {
            found = entry & UNIT_MASK == location.unit;
            found
        });
        found
    }

    /// Adds an entry; does nothing where it is there already.
    pub fn insert(&self, hash: KeyHash, location: Location) {
        let mut shard = self.shard(hash);
        let initial = self.bucket_bits_initial;
        let mut present = false;
        shard.scan(hash, initial, |_, _, entry| {
            present = entry & UNIT_MASK == location.unit;
            present
        });
        if present {
            return;
        }
        let full = shard.entries * 100 >= shard.buckets.len() * SLOTS * LOAD_PERCENT_MAX;
        if full {
            self.grow(&mut shard);
        }
        let entry = entry_of(tag_of(hash, initial), location);
        loop {
            let home = shard.home(hash);
            if shard.place(home, entry) {
                break;
            }
            if !self.grow(&mut shard) {
                self.make_room(&mut shard, hash);
            }
        }
        self.entries.fetch_add(1, Ordering::Relaxed);
        self.record_bytes.fetch_add(location.bytes_max(), Ordering::Relaxed);
    }

    /// Removes exactly this entry; returns whether it was there.
    pub fn remove(&self, hash: KeyHash, location: Location) -> bool {
        let mut shard = self.shard(hash);
        let mut place = None;
        shard.scan(hash, self.bucket_bits_initial, |bucket, slot, entry| {
            if entry & UNIT_MASK == location.unit {
                place = Some((bucket, slot, entry));
            }
            place.is_some()
        });
        let Some((bucket, slot, entry)) = place else { return false };
        shard.buckets[bucket][slot] = 0;
        shard.entries -= 1;
        self.forget(entry);
        true
    }

    /// Removes every entry for which `dead` says so of its place; returns how many. *Cost*: reads the whole index.
    pub fn sweep(&self, dead: impl Fn(Location) -> bool) -> u64 {
        let mut removed = 0;
        for shard in &self.shards {
            let mut shard = lock(shard);
            let Shard { buckets, entries, .. } = &mut *shard;
            for entry in buckets.iter_mut().flatten().filter(|entry| **entry != 0) {
                if dead(location_of(*entry)) {
                    self.forget(*entry);
                    *entry = 0;
                    *entries -= 1;
                    removed += 1;
                }
            }
        }
        removed
    }

    /// Copies a shard's buckets as a checkpoint keeps them, with the log2 of their count.
    pub fn dump(&self, shard: usize) -> (u8, Vec<u8>) {
        let shard = lock(&self.shards[shard]);
        let mut bytes = Vec::with_capacity(shard.buckets.len() * size_of::<Bucket>());
        for entry in shard.buckets.iter().flatten() {
            bytes.extend_from_slice(&entry.to_le_bytes());
        }
        (shard.bits as u8, bytes)
    }

    /// Fills a shard from a dump, but for entries of which `keep` says no. Returns false where the dump cannot be right.
    pub fn load(&self, shard_index: usize, bits: u8, bytes: &[u8], keep: impl Fn(Location) -> bool) -> bool {
        let bits = u32::from(bits);
        let size = size_of::<Bucket>();
        if bits < self.bucket_bits_initial || bits > self.bucket_bits_initial + TAG_BITS - 4 {
            return false;
        }
        if bytes.len() != size << bits {
            return false;
        }
        let mut shard = Shard::of(bits);
        for (bucket, bytes) in bytes.chunks_exact(size).enumerate() {
            for (slot, bytes) in bytes.chunks_exact(8).enumerate() {
                let entry = u64::from_le_bytes(bytes.try_into().expect("chunks are of eight bytes"));
                if entry == 0 || !keep(location_of(entry)) {
                    continue;
                }
                shard.buckets[bucket][slot] = entry;
                shard.entries += 1;
                self.entries.fetch_add(1, Ordering::Relaxed);
                self.record_bytes.fetch_add(location_of(entry).bytes_max(), Ordering::Relaxed);
            }
        }
        let mut current = lock(&self.shards[shard_index]);
        self.bytes.fetch_add((size << bits) as u64, Ordering::Relaxed);
        self.bytes.fetch_sub((size * current.buckets.len()) as u64, Ordering::Relaxed);
        *current = shard;
        true
    }

    fn shard(&self, hash: KeyHash) -> std::sync::MutexGuard<'_, Shard> {
        lock(&self.shards[(hash.0 as u64 >> 58) as usize])
    }

    fn forget(&self, entry: u64) {
        self.entries.fetch_sub(1, Ordering::Relaxed);
        self.record_bytes.fetch_sub(location_of(entry).bytes_max(), Ordering::Relaxed);
    }

    /// Doubles a shard where the bound allows it.
    fn grow(&self, shard: &mut Shard) -> bool {
        let size = shard.buckets.len() * size_of::<Bucket>();
        if size * 2 > self.shard_bytes_max || shard.bits + 4 >= self.bucket_bits_initial + TAG_BITS {
            return false;
        }
        let mut grown = Shard::of(shard.bits + 1);
        for (position, bucket) in shard.buckets.iter().enumerate() {
            for &entry in bucket.iter().filter(|entry| **entry != 0) {
                let displacement = (entry >> DISPLACEMENT_SHIFT) as usize & (REACH - 1);
                let home = position.wrapping_sub(displacement) & (shard.buckets.len() - 1);
                let next_bit = (entry >> TAG_SHIFT) >> (shard.bits - self.bucket_bits_initial) & 1;
                if !grown.place(home | (next_bit as usize) << shard.bits, entry) {
                    self.forget(entry);
                    self.evictions.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        self.bytes.fetch_add(size as u64, Ordering::Relaxed);
        *shard = grown;
        true
    }

    /// Gives up one entry in the reach of `hash`: a cache may forget, it must not outgrow its budget.
    fn make_room(&self, shard: &mut Shard, hash: KeyHash) {
        let home = shard.home(hash);
        let mask = shard.buckets.len() - 1;
        // Which one is arbitrary but spread: the slot is taken from hash bits that place nothing.
        let bucket = (home + (hash.0 >> 100) as usize % REACH) & mask;
        let slot = (hash.0 >> 90) as usize % SLOTS;
        let entry = std::mem::take(&mut shard.buckets[bucket][slot]);
        if entry != 0 {
            shard.entries -= 1;
            self.forget(entry);
            self.evictions.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Shard {
    fn of(bits: u32) -> Shard {
        Shard { buckets: vec![[0; SLOTS]; 1 << bits], bits, entries: 0 }
    }

    fn home(&self, hash: KeyHash) -> usize {
        hash.0 as usize & (self.buckets.len() - 1)
    }

    /// Visits entries whose tag and home match the hash until `visit` says that it has seen enough.
    fn scan(&self, hash: KeyHash, bits_initial: u32, mut visit: impl FnMut(usize, usize, u64) -> bool) {
        let tag = tag_of(hash, bits_initial);
        let mask = self.buckets.len() - 1;
        let home = self.home(hash);
        for displacement in 0..REACH {
            let bucket = (home + displacement) & mask;
            let wanted = tag << 2 | displacement as u64;
            for (slot, &entry) in self.buckets[bucket].iter().enumerate() {
                if entry >> DISPLACEMENT_SHIFT == wanted && entry != 0 && visit(bucket, slot, entry) {
                    return;
                }
            }
        }
    }

    /// Puts an entry into the first free slot in reach of its home.
    fn place(&mut self, home: usize, entry: u64) -> bool {
        let mask = self.buckets.len() - 1;
        for displacement in 0..REACH {
            if let Some(slot) = self.buckets[(home + displacement) & mask].iter_mut().find(|slot| **slot == 0) {
                let cleared = entry & !(((REACH - 1) as u64) << DISPLACEMENT_SHIFT);
                *slot = cleared | (displacement as u64) << DISPLACEMENT_SHIFT;
                self.entries += 1;
                return true;
            }
        }
        false
    }
}

fn tag_of(hash: KeyHash, bits_initial: u32) -> u64 {
    (hash.0 as u64 >> bits_initial) & ((1 << TAG_BITS) - 1)
}

fn entry_of(tag: u64, location: Location) -> u64 {
    tag << TAG_SHIFT | location.pack()
}

fn location_of(entry: u64) -> Location {
    Location { unit: entry & UNIT_MASK, class: (entry >> UNIT_BITS) as u8 & ((1 << CLASS_BITS) - 1) }
}

fn lock(shard: &Mutex<Shard>) -> std::sync::MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;
    use xxhash_rust::xxh3::xxh3_128;

    fn hash(number: u64) -> KeyHash {
        KeyHash(xxh3_128(&number.to_le_bytes()))
    }

    #[test]
    fn size_class_covers_the_length_by_at_most_a_quarter_more() {
        for bytes in (1..20_000u64).chain([100_000, 1 << 20, (1 << 20) + 200, 2 << 20]) {
            let class = size_class(bytes);
            let covered = class_units(class) * UNIT_BYTES;
            assert!(covered >= bytes, "{bytes}");
            assert!(covered <= 256 || covered * 4 <= bytes * 5 + 4 * UNIT_BYTES, "{bytes} {covered}");
        }
    }

    #[test]
    fn every_entry_is_found_through_all_doublings_and_dumps() {
        let index = Index::new(2, 64 << 20);
        for number in 0..100_000 {
            index.insert(hash(number), Location::new(number + 2, 1000));
        }
        assert_eq!((index.len(), index.evictions()), (100_000, 0));
        let copy = Index::new(2, 64 << 20);
        for shard in 0..INDEX_SHARDS {
            let (bits, bytes) = index.dump(shard);
            assert!(copy.load(shard, bits, &bytes, |_| true));
        }
        assert_eq!((copy.len(), copy.bytes(), copy.record_bytes()), (index.len(), index.bytes(), index.record_bytes()));
        for number in 0..100_000 {
            assert!(copy.contains(hash(number), Location::new(number + 2, 1000)));
            assert!(copy.remove(hash(number), Location::new(number + 2, 1000)));
        }
        assert_eq!((copy.len(), copy.record_bytes()), (0, 0));
    }

    #[test]
    fn two_versions_stand_side_by_side_and_leave_one_by_one() {
        let index = Index::new(4, 1 << 20);
        let (old, new) = (Location::new(10, 100), Location::new(20, 200));
        index.insert(hash(1), old);
        index.insert(hash(1), new);
        index.insert(hash(1), new);
        assert_eq!(index.candidates(hash(1)).len(), 2);
        assert!(index.remove(hash(1), old));
        assert_eq!(index.candidates(hash(1)), vec![new]);
        assert!(!index.remove(hash(1), old));
    }

    #[test]
    fn bound_of_bytes_holds_and_what_was_given_up_is_counted() {
        let index = Index::new(0, 64 * 64 * 4);
        for number in 0..50_000 {
            index.insert(hash(number), Location::new(number + 2, 100));
        }
        assert!(index.bytes() <= 64 * 64 * 4);
        assert_eq!(index.len() + index.evictions(), 50_000);
    }

    #[test]
    fn sweep_removes_what_is_dead_and_nothing_else() {
        let index = Index::new(4, 4 << 20);
        for number in 0..10_000 {
            index.insert(hash(number), Location::new(number + 2, 100));
        }
        assert_eq!(index.sweep(|location| location.unit >= 5002), 5000);
        assert!(index.contains(hash(4999), Location::new(5001, 100)));
        assert!(!index.contains(hash(5000), Location::new(5002, 100)));
    }
}
