//! How much of a span is read before anything is served, and what is read on other threads.
//!
//! Owns: this choice.

use crate::background::Background;

/// How the index is read when a store is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IndexLoading {
    /// By its size: a small index completely, before anything is served; a larger one shard by shard while gets are
    /// answered; a still larger one on a separate thread.
    #[default]
    BySize,
    /// Always shard by shard, even if the index is small.
    Shards,
    /// Always shard by shard on a separate thread, even if the index is small.
    Apart,
}

/// An index up to this size is loaded before anything is served, in bytes; this takes almost no time.
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
    /// The opening by the caller's options.
    pub fn of(background: Background, index_loading: IndexLoading) -> Opening {
        let has_threads = background == Background::Threads;
        let (whole_bytes_max, apart_bytes_min) = match index_loading {
            IndexLoading::BySize => (WHOLE_BYTES_MAX, APART_BYTES_MIN),
            IndexLoading::Shards => (0, u64::MAX),
            IndexLoading::Apart => (0, 0),
        };
        Opening { whole_bytes_max, apart_bytes_min: if has_threads { apart_bytes_min } else { u64::MAX }, has_threads }
    }

    /// The opening of an index that is rebuilt while the store serves: it is loaded completely.
    pub fn whole(self) -> Opening {
        Opening { whole_bytes_max: u64::MAX, ..self }
    }
}
