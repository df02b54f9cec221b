//! The decision whether the index of a span is loaded before anything is served, and whether a separate thread reads
//! it.
//!
//! Owns: the size limits that decide this.

use crate::background::BackgroundRuntime;

/// The way in which the index is read when a store is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IndexLoading {
    /// The size of the index decides: a small index is loaded completely before anything is served; a larger one is
    /// loaded shard by shard while gets are answered; a still larger one is also read on a separate thread.
    #[default]
    BySize,
    /// The index is always loaded shard by shard, even if it is small.
    Shards,
    /// The index is always loaded shard by shard and read on a separate thread, even if it is small.
    Apart,
}

/// An index of at most this many bytes is loaded before anything is served; this takes almost no time.
const WHOLE_BYTES_MAX: u64 = 256 << 10;
/// An index of at least this many bytes is read on another thread.
const APART_BYTES_MIN: u64 = 4 << 20;

/// The size limits that decide how an index is read when a store is opened.
#[derive(Debug, Clone, Copy)]
pub struct IndexReadLimits {
    /// An index of at most this many bytes is loaded before anything is served.
    pub whole_bytes_max: u64,
    /// An index of at least this many bytes is read on another thread.
    pub apart_bytes_min: u64,
    /// Whether other threads may read.
    pub has_threads: bool,
}

impl IndexReadLimits {
    /// Makes the limits from the caller's options.
    pub fn of(background: BackgroundRuntime, index_loading: IndexLoading) -> IndexReadLimits {
        let has_threads = background == BackgroundRuntime::Threads;
        let (whole_bytes_max, apart_bytes_min) = match index_loading {
            IndexLoading::BySize => (WHOLE_BYTES_MAX, APART_BYTES_MIN),
            IndexLoading::Shards => (0, u64::MAX),
            IndexLoading::Apart => (0, 0),
        };
        IndexReadLimits {
            whole_bytes_max,
            apart_bytes_min: if has_threads { apart_bytes_min } else { u64::MAX },
            has_threads,
        }
    }

    /// The limits for an index that is rebuilt while the store serves: the index is loaded completely.
    pub fn whole(self) -> IndexReadLimits {
        IndexReadLimits { whole_bytes_max: u64::MAX, ..self }
    }
}
