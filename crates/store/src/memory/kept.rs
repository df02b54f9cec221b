//! Entries that are only in memory: adding them to the tier, and turning them into waiting entries.
//!
//! Owns: the changes to the map and the policy. Leaves to others: when these happen (`intake/admission`).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::tier::MemoryTier;
use crate::memory::entry::MemoryEntry;

impl MemoryTier {
    /// Puts an entry that will not be written; it replaces an older entry of the same id.
    ///
    /// Takes no lock. The caller [settles](Self::settle) the entry later; after that, the policy manages it.
    pub fn put_kept(&self, entry: &Arc<MemoryEntry>) {
        self.map.pin().insert(entry);
    }

    /// Turns an entry that is only in memory into one that waits to be written. Returns false if it has left memory.
    ///
    /// Takes no lock. The caller [settles](Self::settle) the entry later.
    pub fn pin_kept(&self, entry: &Arc<MemoryEntry>) -> bool {
        let pinned = self.map.pin();
        if !pinned.holds(entry) || !entry.set_to_be_written() {
            return false;
        }
        self.unwritten_bytes.fetch_add(entry.weight(), Ordering::Relaxed);
        // The entry is inserted again: a concurrent eviction that decided before can remove only the earlier insertion,
        // not this one.
        pinned.insert(entry);
        true
    }

    /// Bytes of unwritten entries.
    pub fn unwritten_bytes(&self) -> u64 {
        self.unwritten_bytes.load(Ordering::Relaxed)
    }
}
