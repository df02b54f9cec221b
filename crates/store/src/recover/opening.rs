//! How much of a span is read before anything is served, and what on other threads.
//!
//! Owns: that choice.

use crate::background::Background;

/// How the index is read when a store is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IndexLoading {
    /// By its size: a small one whole, before anything is served; a larger one shard by shard while gets are answered,
    /// and a large one on its own thread.
    #[default]
    BySize,
    /// Load shard by shard, also a small index.
    Shards,
    /// Load shard by shard on a separate thread, also a small index.
    Apart,
}

/// An index up to this size is loaded before anything is served, in bytes: that takes no time.
const WHOLE_BYTES_MAX: u64 = 256 << 10;
/// An index from this size on is read on another thread, in bytes.
const APART_BYTES_MIN: u64 = 4 << 20;

/// How much is read before anything is served, and which parts on other threads.
#[derive(Debug, Clone, Copy)]
pub struct Opening {
    /// An index up to this size is loaded before anything is served, in bytes.
    pub whole_bytes_max: u64,
    /// An index from this size on is read on another thread, in bytes.
    pub apart_bytes_min: u64,
    /// Whether threads are allowed.
    pub has_threads: bool,
}

impl Opening {
    /// As a caller wants it.
    pub fn of(background: Background, index_loading: IndexLoading) -> Opening {
        let has_threads = background == Background::Threads;
        let (whole_bytes_max, apart_bytes_min) = match index_loading {
            IndexLoading::BySize => (WHOLE_BYTES_MAX, APART_BYTES_MIN),
            IndexLoading::Shards => (0, u64::MAX),
            IndexLoading::Apart => (0, 0),
        };
        Opening { whole_bytes_max, apart_bytes_min: if has_threads { apart_bytes_min } else { u64::MAX }, has_threads }
    }

    /// An index that is made again while the store serves is loaded whole.
    pub fn whole(self) -> Opening {
        Opening { whole_bytes_max: u64::MAX, ..self }
    }
}
