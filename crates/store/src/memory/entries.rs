//! The map of entries in memory, which is read without a lock.
//!
//! Owns: when removed entries are freed. An entry may be freed only after no thread can still read it. To ensure that,
//! every processor must be interrupted. That is expensive, so each thread frees removed entries in batches. The batches
//! are as large as the memory budget allows.

use std::hash::BuildHasherDefault;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use papaya::{Guard, LocalGuard};

use crate::memory::entry::MemoryEntry;
use crate::names::key::KeyHasher;

type Map = papaya::HashMap<u64, Arc<MemoryEntry>, BuildHasherDefault<KeyHasher>>;

/// A batch has at most this many entries.
const BATCH_MAX: usize = 256;
/// A batch ends at 1/`BATCH_SHARE` of the tier's bytes.
const BATCH_SHARE: u64 = 64;
/// The number of counters of removed bytes. If there are more threads, some of them share a counter.
const THREADS: usize = 64;

/// Entries, by the lowest 64 bits of their hashes.
pub(super) struct MemoryEntries {
    map: Map,
    /// For each thread: the bytes of the entries removed since the thread last freed entries.
    left: [AtomicU64; THREADS],
    batch_bytes_max: u64,
}

impl MemoryEntries {
    /// Makes an empty map for a tier of this many bytes.
    pub fn new(tier_bytes: u64) -> MemoryEntries {
        let collector = seize::Collector::new().batch_size(BATCH_MAX);
        let map = papaya::HashMap::builder().hasher(BuildHasherDefault::default()).collector(collector).build();
        MemoryEntries {
            map,
            left: std::array::from_fn(|_| AtomicU64::new(0)),
            batch_bytes_max: tier_bytes / BATCH_SHARE,
        }
    }

    /// Pins the map: entries read through the result are not freed before the result is dropped.
    pub fn pin(&self) -> PinnedMap<'_> {
        PinnedMap { entries: self, guard: self.map.guard() }
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.map.len()
    }
}

/// The pinned map: entries read through it are not freed while it exists.
pub(super) struct PinnedMap<'a> {
    entries: &'a MemoryEntries,
    guard: LocalGuard<'a>,
}

impl PinnedMap<'_> {
    /// The entry of an id.
    pub fn get(&self, id: u64) -> Option<&Arc<MemoryEntry>> {
        self.entries.map.get(&id, &self.guard)
    }

    /// Whether the map has an entry of this id.
    pub fn contains(&self, id: u64) -> bool {
        self.entries.map.contains_key(&id, &self.guard)
    }

    /// Whether the map has exactly this entry under its id.
    pub fn holds(&self, entry: &Arc<MemoryEntry>) -> bool {
        self.get(entry.id()).is_some_and(|current| Arc::ptr_eq(current, entry))
    }

    /// All entries.
    pub fn values(&self) -> impl Iterator<Item = &Arc<MemoryEntry>> {
        self.entries.map.values(&self.guard)
    }

    /// Puts an entry; returns the entry that it replaces.
    pub fn insert(&self, entry: &Arc<MemoryEntry>) -> Option<&Arc<MemoryEntry>> {
        let replaced = self.entries.map.insert(entry.id(), Arc::clone(entry), &self.guard);
        self.leave(replaced);
        replaced
    }

    /// Puts an entry if there is none of its id; otherwise returns the present one.
    pub fn insert_new(&self, entry: &Arc<MemoryEntry>) -> Result<(), &Arc<MemoryEntry>> {
        let inserted = self.entries.map.try_insert(entry.id(), Arc::clone(entry), &self.guard);
        inserted.map(|_| ()).map_err(|occupied| occupied.current)
    }

    /// Removes the entry of an id if `should` returns true for it. Returns whether it was removed.
    pub fn remove_if(&self, id: u64, should: impl Fn(&Arc<MemoryEntry>) -> bool) -> bool {
        let removed = self.entries.map.remove_if(&id, |_, entry| should(entry), &self.guard);
        let entry = removed.ok().flatten().map(|(_, entry)| entry);
        self.leave(entry);
        entry.is_some()
    }

    /// Removes exactly this entry. Returns whether the map had it.
    pub fn remove_same(&self, entry: &Arc<MemoryEntry>) -> bool {
        self.remove_if(entry.id(), |current| Arc::ptr_eq(current, entry))
    }

    /// Removes the entry of an id, except if it waits to be written. Always returns true, so that the policy forgets
    /// the id: the policy does not decide about waiting entries.
    pub fn evict(&self, id: u64) -> bool {
        self.remove_if(id, |entry| entry.location().is_some() || entry.is_in_memory_alone());
        true
    }

    /// Counts a removed entry. If this thread has removed enough bytes, the removed entries are freed as soon as no
    /// thread has the map pinned any more.
    fn leave(&self, entry: Option<&Arc<MemoryEntry>>) {
        let Some(entry) = entry else { return };
        let left = &self.entries.left[self.guard.thread_id() % THREADS];
        let bytes = left.fetch_add(entry.weight(), Ordering::Relaxed) + entry.weight();
        if bytes >= self.entries.batch_bytes_max {
            left.store(0, Ordering::Relaxed);
            self.guard.flush();
        }
    }
}
