//! Entries only in memory: into the tier, and on to the waiting ones.
//!
//! Owns: the messages to the policy and the map. Leaves to others: when (`admission`).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::tier::MemoryTier;
use crate::memory::entry::Entry;

impl MemoryTier {
    /// Puts an entry that will not be written; it replaces an older one.
    ///
    /// Takes no lock. The caller [settles](Self::settle) it later; from then on it is the policy's.
    pub fn put_kept(&self, entry: &Arc<Entry>) {
        self.map.pin().insert(entry);
    }

    /// Makes an entry that is only in memory wait to be written; false if it has left memory.
    ///
    /// Takes no lock. The caller [settles](Self::settle) it later.
    pub fn pin_kept(&self, entry: &Arc<Entry>) -> bool {
        let pinned = self.map.pin();
        if !pinned.holds(entry) || !entry.set_to_be_written() {
            return false;
        }
        self.unwritten_bytes.fetch_add(entry.weight(), Ordering::Relaxed);
        // Inserted once more: an eviction that looked at it before removes what it saw, and not this insertion.
        pinned.insert(entry);
        true
    }

    /// Bytes of unwritten entries.
    pub fn unwritten_bytes(&self) -> u64 {
        self.unwritten_bytes.load(Ordering::Relaxed)
    }
}
