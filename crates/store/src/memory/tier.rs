//! The memory tier: entries in memory under a scan-resistant policy.
//!
//! Owns: which entries are in memory. Each entry in memory is on disk, waits to be written, or was not admitted to the
//! disk. An entry that waits to be written cannot be evicted, because the policy does not know it yet. Leaves to
//! others: whether an entry is purged (`purge`), and its location (`index`).
//!
//! Neighbours (objects read together with a requested one) wait for their first hit in a separate queue, of at most
//! 1/[`NEIGHBOURS_SHARE`] of the tier. At the first hit they pass to the policy like any requested object. So
//! neighbours stay long enough to be requested, and evict no requested object. Neighbours, unwritten objects and fills
//! reduce the policy's capacity by the room that they use, as long as they use it.
//!
//! Removed entries are freed when the map is unpinned. So the map is pinned before the lock is taken, and unpinned
//! after the lock is released: no caller waits for the lock while entries are freed.
//!
//! A hit reads a concurrent map without a lock, and notes the entry's id in a small ring; the notes reach the policy in
//! batches, under a lock. A hit tries to take this lock, but never waits for it: if the ring is full, notes are lost.
//!
//! A commit is made under the queue's mutex and must not wait for the policy's lock there. So:
//! 1. A committed object replaces the older version in the map at once and without the lock. When the queue's mutex is
//!    free again, [`MemoryTier::settle`] takes the lock and tells the policy.
//! 2. Entries are removed from the map under the lock, and only if the map still has exactly that entry. An entry that
//!    waits to be written is never evicted: the policy may still know its id from the older version, but evicting that
//!    id removes nothing.
//! 3. An object read from disk is inserted under the lock, and only if the map has no entry of its id.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use nectary_cache::{AccessResult, Policy, StreamId};

use super::entries::MemoryEntries;
use crate::format::RecordLocation;
use crate::memory::entry::{EntryKind, MemoryEntry, NeighbourKind};
use crate::memory::hot::HotPlace;
use crate::names::key::{KeyHash, KeyRef};

const NOTES: usize = 256;
const NOTES_BATCH: usize = 64;
/// Neighbours take at most 1/`NEIGHBOURS_SHARE` of the tier.
const NEIGHBOURS_SHARE: u64 = 8;
/// A neighbour is dropped after the policy has inserted 1/`NEIGHBOURS_AGE_SHARE` of the tier's bytes since the
/// neighbour came.
const NEIGHBOURS_AGE_SHARE: u64 = 2;
/// The room that the policy gives to other uses (neighbours, fills, unwritten entries) changes in steps of
/// 1/`CEDED_STEP_SHARE` of the tier.
const CEDED_STEP_SHARE: u64 = 64;
/// Fills report their memory when it has changed by this many bytes.
const FILL_STEP_BYTES: u64 = 64 << 10;
/// The largest number of entries that are handed over to the policy or removed before the lock is released for other
/// callers.
const LOCKED_AT_ONCE: usize = 16;
/// The policy keeps at least 1/`POLICY_SHARE_MIN` of the tier.
const POLICY_SHARE_MIN: u64 = 4;

struct ReplacementState {
    policy: Box<dyn Policy>,
    /// The number of the next note to read.
    taken: usize,
    /// The total memory for the policy, neighbours, fills and unwritten objects, in bytes.
    capacity: u64,
    /// The part of the capacity that the policy has ceded, in bytes.
    ceded: u64,
    /// Bytes that the policy has inserted so far.
    inserted_bytes: u64,
    neighbours: PendingNeighbours,
}

/// Neighbours that wait for their first hit, each with the number of bytes that the policy had inserted when the
/// neighbour came.
#[derive(Default)]
struct PendingNeighbours {
    queue: VecDeque<(Arc<MemoryEntry>, u64)>,
    bytes: u64,
}

/// The result of putting back an entry that was in memory before the restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WarmOutcome {
    /// The entry is in memory now.
    Taken,
    /// The entry is not valid any more, or memory already has it.
    No,
    /// Memory has no room for the entry.
    Full,
}

/// Entries in memory.
pub struct MemoryTier {
    pub(super) map: MemoryEntries,
    notes: Box<[AtomicU64]>,
    noted: AtomicUsize,
    replacement: Mutex<ReplacementState>,
    pub(super) unwritten_bytes: AtomicU64,
    fill_bytes: AtomicU64,
}

impl MemoryTier {
    /// Makes an empty tier under `policy`, whose capacity is in bytes.
    pub fn new(policy: Box<dyn Policy>) -> MemoryTier {
        let map = MemoryEntries::new(policy.capacity());
        let replacement = ReplacementState {
            taken: 0,
            capacity: policy.capacity(),
            ceded: 0,
            inserted_bytes: 0,
            neighbours: PendingNeighbours::default(),
            policy,
        };
        MemoryTier {
            map,
            notes: (0..NOTES).map(|_| AtomicU64::new(0)).collect(),
            noted: AtomicUsize::new(0),
            replacement: Mutex::new(replacement),
            unwritten_bytes: AtomicU64::new(0),
            fill_bytes: AtomicU64::new(0),
        }
    }

    /// Finds the entry of `key` and notes the reference.
    pub fn get(&self, hash: KeyHash, key: KeyRef<'_>) -> Option<Arc<MemoryEntry>> {
        let id = hash.0 as u64;
        let entry = self.map.pin().get(id).filter(|entry| entry.is(hash, key)).cloned()?;
        self.note(id);
        Some(entry)
    }

    /// Finds the entry of a fragment by its hash, which identifies it without a key.
    pub fn get_hashed(&self, hash: KeyHash) -> Option<Arc<MemoryEntry>> {
        let id = hash.0 as u64;
        let entry = self.map.pin().get(id).filter(|entry| entry.hash == hash).cloned()?;
        self.note(id);
        Some(entry)
    }

    /// The entry of `hash`; does not count as a reference.
    pub fn peek(&self, hash: KeyHash) -> Option<Arc<MemoryEntry>> {
        self.map.pin().get(hash.0 as u64).filter(|entry| entry.hash == hash).cloned()
    }

    /// Returns the whole objects in memory that were requested since they were written, and whose locations `here`
    /// accepts, in the order of the disk. This does not count as a reference. *Cost*: visits every entry.
    pub fn asked_for_at(&self, here: impl Fn(RecordLocation) -> bool) -> Vec<(Arc<MemoryEntry>, RecordLocation)> {
        let mut found: Vec<(Arc<MemoryEntry>, RecordLocation)> = {
            let pinned = self.map.pin();
            let wanted = pinned.values().filter(|entry| entry.kind == EntryKind::Whole && entry.was_asked_for());
            let place = |entry: &Arc<MemoryEntry>| entry.location().map(|location| (Arc::clone(entry), location));
            wanted.filter_map(place).filter(|(_, location)| here(*location)).collect()
        };
        found.sort_unstable_by_key(|(_, location)| location.granule);
        found
    }

    /// The number of entries.
    pub fn count(&self) -> usize {
        self.map.len()
    }

    /// The entry of `hash` at `location`; does not count as a reference.
    pub fn get_at(&self, hash: KeyHash, location: RecordLocation) -> Option<Arc<MemoryEntry>> {
        let here = |entry: &&Arc<MemoryEntry>| {
            entry.hash == hash && entry.location().is_some_and(|at| at.granule == location.granule)
        };
        self.map.pin().get(hash.0 as u64).filter(here).cloned()
    }

    /// Whether memory has, under the id of this entry, the entry of another key or another version.
    pub fn has_other_version(&self, entry: &MemoryEntry) -> bool {
        let other = |current: &Arc<MemoryEntry>| current.hash != entry.hash || current.generation != entry.generation;
        self.map.pin().get(entry.id()).is_some_and(other)
    }

    /// Notes that the entry of `hash` moved on disk, from `from` to `to`.
    pub fn relocate(&self, hash: KeyHash, from: RecordLocation, to: RecordLocation) {
        let _replacement = self.lock();
        if let Some(entry) = self.get_at(hash, from) {
            entry.move_to(to);
        }
    }

    /// Whether a hash is in memory; does not count as a reference.
    pub fn contains(&self, hash: KeyHash) -> bool {
        self.map.pin().get(hash.0 as u64).is_some_and(|entry| entry.hash == hash)
    }

    /// Whether memory has exactly this entry; does not count as a reference.
    pub fn holds(&self, entry: &Arc<MemoryEntry>) -> bool {
        self.map.pin().holds(entry)
    }

    /// Puts an entry that is not written yet; it stays until [`admit`](Self::admit) or removal. Returns the entry that
    /// it replaces.
    ///
    /// Takes no lock. The caller [settles](Self::settle) the entry later.
    pub fn put_unwritten(&self, entry: &Arc<MemoryEntry>) -> Option<Arc<MemoryEntry>> {
        self.unwritten_bytes.fetch_add(entry.weight(), Ordering::Relaxed);
        self.map.pin().insert(entry).cloned()
    }

    /// Tells the policy about an entry that was put without the lock. An object that is only in memory passes to the
    /// policy; an object that waits to be written reduces the policy's capacity.
    ///
    /// The policy is correct afterwards even if the entry was replaced since: the replacement is settled later.
    pub fn settle(&self, entry: &Arc<MemoryEntry>) {
        let pinned = self.map.pin();
        let mut replacement = self.lock();
        if pinned.holds(entry) {
            if entry.is_in_memory_alone() {
                replacement.policy.remove(entry.id());
                self.refer(&mut replacement, entry);
            } else if entry.location().is_none() {
                replacement.policy.remove(entry.id());
            }
        }
        self.cede(&mut replacement);
    }

    /// Hands entries over to the policy after they were written.
    pub fn admit(&self, entries: &[Arc<MemoryEntry>]) {
        let pinned = self.map.pin();
        // The lock is released from time to time, because puts wait for it.
        for some in entries.chunks(LOCKED_AT_ONCE) {
            let mut replacement = self.lock();
            let bytes = some.iter().map(|entry| entry.weight()).sum();
            self.unwritten_bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.cede(&mut replacement);
            for entry in some {
                if pinned.holds(entry) {
                    // The entry may not be settled yet; then the policy still has the entry that it replaced.
                    replacement.policy.remove(entry.id());
                    self.refer(&mut replacement, entry);
                }
            }
        }
    }

    /// Drops an entry that will not be written.
    pub fn drop_unwritten(&self, entry: &Arc<MemoryEntry>) {
        self.unwritten_bytes.fetch_sub(entry.weight(), Ordering::Relaxed);
        self.remove_same(entry);
    }

    /// Puts an entry that was read from disk, if `still_valid` allows it under the lock that orders replacement.
    ///
    /// If memory already has an entry of the id, that entry stays. Returns the entry of this hash that memory has
    /// afterwards, if any.
    pub fn put_read(&self, entry: &Arc<MemoryEntry>, still_valid: impl FnOnce() -> bool) -> Option<Arc<MemoryEntry>> {
        let pinned = self.map.pin();
        let mut replacement = self.lock();
        if let Some(current) = pinned.get(entry.id()) {
            return Some(Arc::clone(current)).filter(|current| current.hash == entry.hash);
        }
        if !still_valid() {
            return None;
        }
        if let Err(current) = pinned.insert_new(entry) {
            return Some(Arc::clone(current)).filter(|current| current.hash == entry.hash);
        }
        self.refer(&mut replacement, entry);
        Some(Arc::clone(entry))
    }

    /// Puts back an entry that was in memory before the restart, if it fits without an eviction and `still_valid`
    /// allows it under the lock that orders replacement.
    pub fn put_warm(
        &self,
        entry: &Arc<MemoryEntry>,
        references: u32,
        still_valid: impl FnOnce() -> bool,
    ) -> WarmOutcome {
        let pinned = self.map.pin();
        let mut replacement = self.lock();
        let used = replacement.policy.used() + replacement.ceded;
        if used + entry.weight() > replacement.capacity {
            return WarmOutcome::Full;
        }
        if pinned.contains(entry.id()) || !still_valid() || pinned.insert_new(entry).is_err() {
            return WarmOutcome::No;
        }
        self.refer(&mut replacement, entry);
        if references > 1 {
            replacement.policy.credit(entry.id(), references);
        }
        WarmOutcome::Taken
    }

    /// Locations of at most `most` whole objects in memory, and how often they were requested. They are sorted by
    /// requests, most first; among equals, objects requested since they were written come first; then in the order of
    /// the disk.
    ///
    /// *Cost*: visits every entry, and holds the lock for a few entries at a time.
    pub fn hot_places(&self, most: usize) -> Vec<HotPlace> {
        let objects: Vec<(u64, bool, RecordLocation)> = {
            let pinned = self.map.pin();
            let is_object = |entry: &&Arc<MemoryEntry>| entry.kind == EntryKind::Whole && !entry.is_neighbour();
            let place = |entry: &Arc<MemoryEntry>| {
                entry.location().map(|location| (entry.id(), !entry.was_asked_for(), location))
            };
            pinned.values().filter(is_object).filter_map(place).collect()
        };
        let mut found = Vec::with_capacity(objects.len());
        for some in objects.chunks(LOCKED_AT_ONCE) {
            let replacement = self.lock();
            let hot = |(id, idle, location): &_| (*idle, HotPlace::new(*location, replacement.policy.references(*id)));
            found.extend(some.iter().map(hot));
        }
        found.sort_unstable_by_key(|(idle, place)| (place.hottest_first(), *idle, place.location().granule));
        found.truncate(most);
        found.into_iter().map(|(_, place)| place).collect()
    }

    /// Puts an entry that was read together with another one, if memory has no entry of its id and `still_valid` allows
    /// it under the lock that orders replacement. Returns whether the entry was put.
    pub fn put_neighbour(&self, entry: &Arc<MemoryEntry>, still_valid: impl FnOnce() -> bool) -> bool {
        let pinned = self.map.pin();
        let mut replacement = self.lock();
        let (weight, most) = (entry.weight(), replacement.capacity / NEIGHBOURS_SHARE);
        if weight > most || pinned.contains(entry.id()) || !still_valid() {
            return false;
        }
        while replacement.neighbours.bytes + weight > most && self.drop_neighbour(&mut replacement) {}
        if pinned.insert_new(entry).is_err() {
            return false;
        }
        let born = replacement.inserted_bytes;
        replacement.neighbours.bytes += weight;
        replacement.neighbours.queue.push_back((Arc::clone(entry), born));
        self.cede(&mut replacement);
        true
    }

    /// Hands a requested neighbour to the policy, and returns its [`NeighbourKind`] value. Does nothing if another thread
    /// has the lock.
    ///
    /// *Cost*: one load if the entry is not a neighbour.
    pub fn promote(&self, entry: &Arc<MemoryEntry>) -> Option<NeighbourKind> {
        if !entry.is_neighbour() {
            return None;
        }
        let mut replacement = self.replacement.try_lock().ok()?;
        let neighbour = entry.take_neighbour()?;
        replacement.neighbours.bytes = replacement.neighbours.bytes.saturating_sub(entry.weight());
        if self.map.pin().holds(entry) {
            self.refer(&mut replacement, entry);
        }
        Some(neighbour)
    }

    /// Drops the neighbour that has waited longest. Returns false if there is none.
    fn drop_neighbour(&self, replacement: &mut ReplacementState) -> bool {
        let Some((entry, _)) = replacement.neighbours.queue.pop_front() else { return false };
        // A promoted entry and its bytes already belong to the policy.
        if entry.take_neighbour().is_some() {
            let bytes = &mut replacement.neighbours.bytes;
            *bytes = bytes.saturating_sub(entry.weight());
            self.map.pin().remove_same(&entry);
        }
        true
    }

    /// Drops neighbours that were not requested in time.
    fn age_neighbours(&self, replacement: &mut ReplacementState) {
        let age = replacement.capacity / NEIGHBOURS_AGE_SHARE;
        let oldest = |replacement: &ReplacementState| replacement.neighbours.queue.front().map(|(_, born)| *born);
        while oldest(replacement).is_some_and(|born| born + age < replacement.inserted_bytes) {
            self.drop_neighbour(replacement);
        }
        self.cede(replacement);
    }

    /// Sets how many bytes fills use; the policy's capacity is adjusted.
    ///
    /// *Cost*: one lock per change of [`FILL_STEP_BYTES`].
    pub fn set_fill_bytes(&self, bytes: u64) {
        let before = self.fill_bytes.swap(bytes, Ordering::Relaxed);
        if before / FILL_STEP_BYTES != bytes / FILL_STEP_BYTES {
            self.cede(&mut self.lock());
        }
    }

    /// Gives the policy the room that neighbours, fills and unwritten entries do not use.
    fn cede(&self, replacement: &mut ReplacementState) {
        let step = (replacement.capacity / CEDED_STEP_SHARE).max(1);
        let apart = self.unwritten_bytes.load(Ordering::Relaxed) + self.fill_bytes.load(Ordering::Relaxed);
        let used = replacement.neighbours.bytes + apart;
        let most = replacement.capacity - replacement.capacity / POLICY_SHARE_MIN;
        let wanted = used.next_multiple_of(step).min(most);
        let ceded = &mut replacement.ceded;
        if wanted > *ceded || wanted + 2 * step <= *ceded {
            *ceded = wanted;
            self.enforce(replacement);
        }
    }

    /// Sets the policy's capacity, and evicts entries until the rest fits.
    fn enforce(&self, replacement: &mut ReplacementState) {
        let map = self.map.pin();
        let bytes = replacement.capacity.saturating_sub(replacement.ceded);
        replacement.policy.set_capacity(bytes, &mut |id| map.evict(id));
    }

    /// Removes entries of these hashes at these locations, which are about to be overwritten.
    pub fn remove_at(&self, records: &[(KeyHash, RecordLocation)]) {
        let pinned = self.map.pin();
        for some in records.chunks(LOCKED_AT_ONCE) {
            let mut replacement = self.lock();
            for (hash, location) in some {
                let id = hash.0 as u64;
                let lies = |entry: &Arc<MemoryEntry>| entry.location().is_some_and(|at| at.granule == location.granule);
                if pinned.remove_if(id, |entry| entry.hash == *hash && lies(entry)) {
                    replacement.policy.remove(id);
                }
            }
        }
    }

    /// Removes exactly this entry.
    pub fn remove_same(&self, entry: &Arc<MemoryEntry>) {
        let pinned = self.map.pin();
        let mut replacement = self.lock();
        if pinned.remove_same(entry) {
            replacement.policy.remove(entry.id());
        }
    }

    /// Removes every entry for which `dead` returns true. *Cost*: visits every entry.
    pub fn sweep(&self, dead: impl Fn(&MemoryEntry) -> bool) {
        let found: Vec<Arc<MemoryEntry>> = {
            let pinned = self.map.pin();
            pinned.values().filter(|entry| dead(entry)).cloned().collect()
        };
        found.iter().for_each(|entry| self.remove_same(entry));
    }

    /// Sets the capacity in bytes, unwritten entries included, and evicts entries until the rest fits.
    pub fn set_capacity(&self, bytes: u64) {
        let mut replacement = self.lock();
        replacement.capacity = bytes;
        while replacement.neighbours.bytes > bytes / NEIGHBOURS_SHARE && self.drop_neighbour(&mut replacement) {}
        self.enforce(&mut replacement);
        self.cede(&mut replacement);
    }

    /// The capacity, the bytes of written entries, the bytes of unwritten entries, and the number of entries.
    pub fn usage(&self) -> (u64, u64, u64, u64) {
        let replacement = self.lock();
        let used = replacement.policy.used() + replacement.neighbours.bytes;
        (replacement.capacity, used, self.unwritten_bytes.load(Ordering::Relaxed), self.map.len() as u64)
    }

    /// Bytes that the policy has inserted so far.
    pub fn inserted_bytes(&self) -> u64 {
        self.lock().inserted_bytes
    }

    /// The capacity in bytes.
    pub fn capacity(&self) -> u64 {
        self.lock().capacity
    }

    /// The policy's name.
    pub fn policy_name(&self) -> &'static str {
        self.lock().policy.name()
    }

    fn note(&self, id: u64) {
        let at = self.noted.fetch_add(1, Ordering::Relaxed);
        self.notes[at % NOTES].store(id, Ordering::Relaxed);
        if at % NOTES_BATCH == NOTES_BATCH - 1
            && let Ok(mut replacement) = self.replacement.try_lock()
        {
            self.take_notes(&mut replacement);
        }
    }

    /// Reports the accesses since the last call to the policy.
    fn take_notes(&self, replacement: &mut ReplacementState) {
        let noted = self.noted.load(Ordering::Relaxed);
        let oldest = noted.saturating_sub(NOTES);
        for at in replacement.taken.max(oldest)..noted {
            let id = self.notes[at % NOTES].load(Ordering::Relaxed);
            if replacement.policy.contains(id) {
                replacement.policy.reference(id, 0, StreamId::default(), &mut |_| true);
            }
        }
        replacement.taken = noted;
    }

    fn refer(&self, replacement: &mut ReplacementState, entry: &Arc<MemoryEntry>) {
        self.take_notes(replacement);
        let map = self.map.pin();
        let mut evict = |id| map.evict(id);
        let access = replacement.policy.reference(entry.id(), entry.weight(), StreamId::default(), &mut evict);
        match access {
            AccessResult::Bypassed => drop(map.remove_same(entry)),
            AccessResult::Inserted => {
                replacement.inserted_bytes += entry.weight();
                self.age_neighbours(replacement);
            }
            AccessResult::Hit => {}
        }
    }

    /// Takes the lock of the policy, for tests.
    #[cfg(any(test, feature = "planted"))]
    pub fn hold(&self) -> impl Drop + '_ {
        self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, ReplacementState> {
        self.replacement.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests;
