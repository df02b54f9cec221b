//! The live buffer cache: blocks of files and devices in memory, replaced by the policies of `nectary-cache`.
//!
//! Owns: the blocks in memory, the sharing of one read by concurrent misses, write-back and its order, readahead,
//! counters per stream, and the device `cache(SPEC,…)`. Promises: those in `docs/cache.md` and `docs/semantics.md`.
//! Leaves to others: the choice of the block to evict (`nectary-cache`), the files and devices below ([`ByteSource`]), and
//! mounts (`nectary-attach`).
//!
//! # Reading order
//! `source` (the files and devices that are cached), `options` (how memory is divided), `cache` (the calls), `state`
//! (the contents of memory), `locks` (the order of I/O on a block), `read`, `write`, `zero`, `writeback` (the
//! operations), `streams` (counters per stream), `users` (calls for users of a running cache), `device` (the device
//! `cache(SPEC,…)`).
//!
//! # Invariants
//! 1. A block has at most one entry; a block that the policy holds always has an entry.
//! 2. All I/O on a block is done under its range lock, so at most one read, write, write-back, discard or zeroing of a
//!    block is in flight. A hit and a write into memory take no range lock; they are atomic, because they are done
//!    under the state's mutex.
//! 3. A dirty block stays in memory until a write of its newest version has succeeded.
//! 4. No task waits for memory while it holds a pin, a lock or memory, so every wait for memory ends.
//!
//! # Examples
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! use std::sync::Arc;
//! use nectary_block::{IoContext, MemoryDevice};
//! use nectary_buffer::{BufferCache, CacheOptions, DeviceSource};
//! let cache = BufferCache::new(CacheOptions { memory_bytes: 16 << 20, ..CacheOptions::default() })?;
//! let file = cache.add(Arc::new(DeviceSource::new(Arc::new(MemoryDevice::new(1 << 20)))))?;
//! let pieces = cache.read(file, 8000, 1000, IoContext::default()).await?;
//! assert_eq!(pieces.iter().map(|piece| piece.len()).collect::<Vec<_>>(), [192, 808]);
//! assert_eq!((cache.stats().hits, cache.stats().misses), (0, 2));
//! # Ok::<(), nectary_block::Error>(()) }).unwrap();
//! ```
#![forbid(unsafe_code)]

mod cache;
mod device;
mod entries;
mod frame;
mod locks;
mod names;
mod options;
#[cfg(not(feature = "planted"))]
mod planted;
#[cfg(feature = "planted")]
pub mod planted;
mod read;
mod readahead;
mod shared;
mod source;
mod state;
mod stats;
mod streams;
mod users;
mod wait;
mod write;
mod writeback;
mod zero;

pub use cache::BufferCache;
pub use device::CacheDevice;
pub use frame::PinnedBytes;
pub use names::{BlockReference, FileId};
pub use options::{BLOCK_BYTES, CacheOptions, MEMORY_BLOCKS_MIN, READ_BLOCKS_MAX, WriteMode};
pub use source::{ByteSource, DeviceSource};
pub use stats::CacheStats;
pub use streams::{STREAMS_MAX, StreamStats, region_of, region_stream, stream_of};
pub use users::advise::{AdviceRow, CacheAdvice, MissCount, ReferenceWindow};
pub use users::caches::{CacheList, OpenCache, register};
pub use users::look::{HeldRange, RangeResidency};
pub use users::pins::{DropReport, PIN_PERCENT_MAX};
