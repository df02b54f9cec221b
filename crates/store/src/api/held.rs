//! A moment between two steps of a get, for tests with threads.
//!
//! Owns: keeping objects that were read from the disk out of memory for a while. Only builds with planted bugs have
//! this.

use std::sync::atomic::Ordering;

use crate::api::store::Store;

impl Store {
    /// Keeps objects that were read from the disk from entering memory, until the returned value is dropped. Meanwhile,
    /// puts wait too, and so does [`stat`](Store::stat).
    pub fn hold_memory(&self) -> impl Drop + '_ {
        self.state().memory.hold()
    }

    /// The number of gets that have found an object on the disk and may return it. These objects enter memory next.
    pub fn hits_disk(&self) -> u64 {
        self.span().counters.hits_disk.load(Ordering::Relaxed)
    }
}
