//! The counters of the cache.
//!
//! Owns: the counters, their names, and reading them. Leaves to others: counters per stream (`streams`).

use std::time::Duration;

/// The counters, which are a part of the state under the mutex.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CacheCounts {
    pub hits: u64,
    pub misses: u64,
    pub pinned_hits: u64,
    pub saved: u64,
    pub lost: u64,
    pub source_reads: u64,
    pub source_read_blocks: u64,
    pub read_errors: u64,
    pub joined: u64,
    pub ahead_blocks: u64,
    pub ahead_used: u64,
    pub written_through: u64,
    pub written_back: u64,
    pub write_back_errors: u64,
}

impl CacheCounts {
    pub fn refer(&mut self, is_hit: bool, is_lru_hit: bool) {
        self.hits += u64::from(is_hit);
        self.misses += u64::from(!is_hit);
        self.saved += u64::from(is_hit && !is_lru_hit);
        self.lost += u64::from(!is_hit && is_lru_hit);
    }
}

/// The counters and sizes of a cache at one moment.
///
/// A reference is one block of one read or write. Hits and misses are those of the policy, so a simulation of the same
/// references has the same numbers. A reference to a pinned block in memory counts as a hit, and the policy does not
/// see it. A miss does not always read from the source: the block may have been read ahead, or may still wait to be
/// written back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheStats {
    /// The number of references that hit.
    pub hits: u64,
    /// The number of references that missed.
    pub misses: u64,
    /// The number of hits that an LRU of the same memory would have missed.
    pub saved: u64,
    /// The number of misses that such an LRU would have hit.
    pub lost: u64,
    /// The number of reads from the source.
    pub source_reads: u64,
    /// The number of blocks in these reads.
    pub source_read_blocks: u64,
    /// The number of blocks whose read failed.
    pub read_errors: u64,
    /// The number of references that waited for a read that was already in flight.
    pub joined: u64,
    /// The number of blocks that were read ahead.
    pub ahead_blocks: u64,
    /// The number of these blocks that were referenced later.
    pub ahead_used: u64,
    /// The number of blocks in writes that went to the source at once.
    pub written_through: u64,
    /// The number of blocks that were written back.
    pub written_back: u64,
    /// The number of write-backs that failed.
    pub write_back_errors: u64,
    /// The number of hits on pinned blocks, which are included in `hits`.
    pub pinned_hits: u64,
    /// The number of blocks that the policy can hold, without pinned blocks.
    pub capacity_blocks: u64,
    /// The number of blocks that the policy holds.
    pub resident_blocks: u64,
    /// The size of the pinned blocks. *Units*: bytes.
    pub pinned_bytes: u64,
    /// The largest allowed size of the pinned blocks. *Units*: bytes.
    pub pinned_bytes_max: u64,
    /// The whole budget for blocks, without tables. *Units*: bytes.
    pub memory_bytes: u64,
    /// The used part of the budget, without tables. *Units*: bytes.
    pub used_bytes: u64,
    /// The size of the dirty blocks. *Units*: bytes.
    pub dirty_bytes: u64,
    /// The size of the dirty blocks whose last write-back failed. *Units*: bytes.
    pub unwritten_bytes: u64,
    /// The time for which the oldest dirty block has been dirty.
    pub dirty_age: Duration,
}

impl CacheStats {
    /// The name and the value of each number. A name ends with its unit and never changes.
    pub fn values(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("hits", self.hits),
            ("misses", self.misses),
            ("reads_saved", self.saved),
            ("reads_lost", self.lost),
            ("source_reads", self.source_reads),
            ("source_read_blocks", self.source_read_blocks),
            ("read_errors", self.read_errors),
            ("reads_joined", self.joined),
            ("ahead_blocks", self.ahead_blocks),
            ("ahead_used_blocks", self.ahead_used),
            ("written_through_blocks", self.written_through),
            ("written_back_blocks", self.written_back),
            ("write_back_errors", self.write_back_errors),
            ("pinned_hits", self.pinned_hits),
            ("capacity_blocks", self.capacity_blocks),
            ("resident_blocks", self.resident_blocks),
            ("pinned_bytes", self.pinned_bytes),
            ("pinned_bytes_max", self.pinned_bytes_max),
            ("memory_bytes", self.memory_bytes),
            ("used_bytes", self.used_bytes),
            ("dirty_bytes", self.dirty_bytes),
            ("unwritten_bytes", self.unwritten_bytes),
            ("dirty_age_ms", u64::try_from(self.dirty_age.as_millis()).unwrap_or(u64::MAX)),
        ]
    }
}
