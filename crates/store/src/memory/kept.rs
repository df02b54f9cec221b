//! Entries in memory alone: into the tier, and on to what waits to be written.
//!
//! Owns: what the policy and the map are told of them. Leaves to others: when (`admission`).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::MemoryTier;
use crate::entry::Entry;

impl MemoryTier {
    /// Puts an entry that will not be written: the policy's at once, in the place of what was there.
    pub fn put_kept(&self, entry: &Arc<Entry>) {
        let mut replacement = self.lock();
        replacement.policy.remove(entry.id());
        self.map.pin().insert(entry);
        self.refer(&mut replacement, entry);
    }

    /// Takes an entry in memory alone from the policy, as it will be written; false where it has left memory.
    pub fn pin_kept(&self, entry: &Arc<Entry>) -> bool {
        let mut replacement = self.lock();
        let is_here = self.map.pin().holds(entry);
        if !is_here || !entry.is_in_memory_alone() {
            return false;
        }
        entry.set_to_be_written();
        replacement.policy.remove(entry.id());
        self.unwritten_bytes.fetch_add(entry.weight(), Ordering::Relaxed);
        self.cede(&mut replacement);
        true
    }

    /// Bytes of unwritten entries.
    pub fn unwritten_bytes(&self) -> u64 {
        self.unwritten_bytes.load(Ordering::Relaxed)
    }
}
