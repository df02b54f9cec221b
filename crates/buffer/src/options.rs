//! The options of a cache, and the division of its memory.
//!
//! Owns: [`CacheOptions`], their limits, and the budget. Memory is divided into blocks (*frames*) and the tables about them:
//! there are as many frames as fit with their tables, whose memory is known before they grow
//! ([`nectary_cache::table_bytes`]). The policy gets most frames, which are its *capacity*. The rest is the buffer's own
//! budget, for blocks that are being read or written, blocks that are read ahead or held by readers, and blocks that the
//! policy evicted before they were written back. So the policy can evict any victim, and decides exactly as in a
//! simulation.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use nectary_block::{DeviceErrorKind, DeviceOperation, Error, format_size};
use nectary_cache::table_bytes;

use crate::entries;
use crate::users::history::REFERENCE_BYTES;

/// The default block size. *Units*: bytes.
pub const BLOCK_BYTES: u32 = 8192;
/// The smallest and the largest block size. *Units*: bytes.
const BLOCK_BYTES_RANGE: (u32, u32) = (4096, 64 << 10);
/// The maximum number of blocks that one call of `read` returns, and that one write brings into the cache.
pub const READ_BLOCKS_MAX: usize = 64;
/// The smallest number of blocks for which a cache must have memory.
pub const MEMORY_BLOCKS_MIN: u64 = 512;
/// The maximum number of write-backs in flight.
pub(crate) const WRITE_BACKS_MAX: usize = 4;
/// The largest write-back. *Units*: bytes.
const WRITE_BACK_BYTES_MAX: u64 = 1 << 20;
/// Remembered references take the memory of the cache divided by `HISTORY_DIVISOR`, but at most `HISTORY_BYTES_MAX`
/// bytes.
const HISTORY_DIVISOR: u64 = 64;
const HISTORY_BYTES_MAX: u64 = 4 << 20;
/// The memory of the state of a dirty block, and of its places in the two orders of dirty blocks. *Units*: bytes.
const DIRTY_BYTES: u64 = 128;
/// The memory of the counts and verdicts of streams and of requests in progress; in a small cache, its memory divided by
/// `STREAMS_DIVISOR`. *Units*: bytes.
const STREAMS_BYTES: u64 = 2 << 20;
const STREAMS_DIVISOR: u64 = 32;
/// A policy is charged at most the memory of the cache divided by `POLICY_DIVISOR`. Otherwise caches below 32 MiB would
/// be refused under policies that need some MiB for many streams.
const POLICY_DIVISOR: u64 = 4;
/// The name of the policy with which saved and lost reads are counted.
const LRU: &str = "lru";

/// The handling of writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WriteMode {
    /// A write completes when the source has it.
    WriteThrough,
    /// A write completes when memory has it. The source gets it later, at the latest at a flush.
    WriteBack,
    /// Writes are refused.
    ReadOnly,
}

impl WriteMode {
    /// The mode's name in a SPEC.
    pub fn name(self) -> &'static str {
        match self {
            WriteMode::WriteThrough => "writethrough",
            WriteMode::WriteBack => "writeback",
            WriteMode::ReadOnly => "readonly",
        }
    }
}

impl fmt::Display for WriteMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for WriteMode {
    type Err = String;
    fn from_str(text: &str) -> Result<WriteMode, String> {
        let all = [WriteMode::WriteThrough, WriteMode::WriteBack, WriteMode::ReadOnly];
        let found = all.into_iter().find(|mode| mode.name() == text);
        found.ok_or_else(|| format!("\"{text}\" is no mode; write writethrough, writeback or readonly"))
    }
}

/// The options of a cache.
#[derive(Debug, Clone, PartialEq)]
pub struct CacheOptions {
    /// The memory for blocks and for the tables about them. *Units*: bytes.
    pub memory_bytes: u64,
    /// The policy, by the name that `nectary_cache::NAMES` lists.
    pub policy: String,
    /// The unit of caching: a power of two from 4 KiB to 64 KiB. *Units*: bytes.
    pub block_bytes: u32,
    /// The handling of writes.
    pub mode: WriteMode,
    /// The share of memory that may be dirty, from 0.01 to 0.5; at this limit writers wait.
    pub dirty_share: f64,
    /// The age at which a dirty block is written back.
    pub dirty_age: Duration,
    /// The distance to which a sequential stream is read ahead; 0 turns readahead off. *Units*: bytes.
    pub readahead_bytes: u64,
    /// A number of frames that replaces `memory_bytes`, for caches that are so small that simulations reach every
    /// limit.
    #[cfg(feature = "planted")]
    pub frames: Option<u64>,
}

impl Default for CacheOptions {
    fn default() -> CacheOptions {
        CacheOptions {
            memory_bytes: 256 << 20,
            policy: "adaptive".to_owned(),
            block_bytes: BLOCK_BYTES,
            mode: WriteMode::WriteThrough,
            dirty_share: 0.2,
            dirty_age: Duration::from_secs(5),
            readahead_bytes: 128 << 10,
            #[cfg(feature = "planted")]
            frames: None,
        }
    }
}

impl CacheOptions {
    /// Refuses invalid options.
    ///
    /// *Errors*: [`DeviceErrorKind::Invalid`]; the message names the mistake and shows the right form.
    pub fn check(&self) -> Result<(), Error> {
        let invalid =
            |detail: String| Err(Error::new(DeviceErrorKind::Invalid, "cache", DeviceOperation::Open, detail));
        let (least, most) = BLOCK_BYTES_RANGE;
        if !self.block_bytes.is_power_of_two() || !(least..=most).contains(&self.block_bytes) {
            return invalid(format!("a block of {} bytes; write a power of two from 4K to 64K", self.block_bytes));
        }
        if !nectary_cache::NAMES.contains(&self.policy.as_str()) {
            let known = nectary_cache::NAMES.join(", ");
            return invalid(format!("no policy is called \"{}\"; known are {known}", self.policy));
        }
        if self.small_frames().is_none() && self.all_frames() < MEMORY_BLOCKS_MIN {
            let sizes = (1..).map(|mega: u64| CacheOptions { memory_bytes: mega << 20, ..self.clone() });
            let least = sizes.map_while(|options| (options.all_frames() < MEMORY_BLOCKS_MIN).then_some(options)).last();
            let least = least.map_or(0, |options| options.memory_bytes) + (1 << 20);
            let (given, least) = (format_size(self.memory_bytes), format_size(least));
            return invalid(format!("{given} of memory are too little for blocks of this size; give at least {least}"));
        }
        if !(0.01..=0.5).contains(&self.dirty_share) {
            return invalid(format!("a dirty share of {}; write one from 1% to 50%", self.dirty_share));
        }
        Ok(())
    }

    /// Refuses more memory than the machine has or a memory group allows: otherwise the kernel would kill the process
    /// long after its start.
    ///
    /// *Errors*: [`DeviceErrorKind::Invalid`]; the message has both sizes.
    pub fn check_machine(&self) -> Result<(), Error> {
        match nectary_host::memory::limit() {
            Some(limit) if self.memory_bytes > limit.bytes => {
                let (wanted, all) = (format_size(self.memory_bytes), format_size(limit.bytes));
                let detail = format!("{wanted} of memory are more than {}, which is {all}", limit.source());
                Err(Error::new(DeviceErrorKind::Invalid, "cache", DeviceOperation::Open, detail))
            }
            _ => Ok(()),
        }
    }

    /// The number of frames that fit in memory together with all tables.
    fn all_frames(&self) -> u64 {
        let lru = if self.policy == LRU { None } else { Some(self.as_lru().budget().capacity) };
        let (mut least, mut most) = (0, self.memory_bytes / u64::from(self.block_bytes) + 1);
        while least + 1 < most {
            let frames = least + (most - least) / 2;
            if self.used_bytes(frames, lru) <= self.memory_bytes { least = frames } else { most = frames }
        }
        least
    }

    /// The same cache with LRU as its policy.
    fn as_lru(&self) -> CacheOptions {
        CacheOptions { policy: LRU.to_owned(), ..self.clone() }
    }

    /// The memory of this many frames and of all tables; `lru` is the capacity of the LRU that runs beside another
    /// policy. *Units*: bytes.
    fn used_bytes(&self, frames: u64, lru: Option<u64>) -> u64 {
        let BlockBudget { capacity, dirty_max, .. } = self.divide(frames);
        let shadow = table_bytes(LRU, lru.unwrap_or(capacity));
        let policy = table_bytes(&self.policy, capacity).min(self.memory_bytes / POLICY_DIVISOR);
        let tables = policy + shadow + entries::bytes_of(frames) + dirty_max * DIRTY_BYTES;
        let streams = (self.memory_bytes / STREAMS_DIVISOR).min(STREAMS_BYTES);
        frames * u64::from(self.block_bytes) + tables + streams + self.history_bytes()
    }

    /// The memory for remembered references. *Units*: bytes.
    fn history_bytes(&self) -> u64 {
        (self.memory_bytes / HISTORY_DIVISOR).min(HISTORY_BYTES_MAX)
    }

    #[cfg(feature = "planted")]
    fn small_frames(&self) -> Option<u64> {
        self.frames
    }

    #[cfg(not(feature = "planted"))]
    fn small_frames(&self) -> Option<u64> {
        None
    }

    pub(crate) fn budget(&self) -> BlockBudget {
        if let Some(frames) = self.small_frames() {
            let dirty = if self.mode == WriteMode::WriteBack { frames / 4 } else { 0 };
            let (capacity, ahead) = (frames - dirty - frames / 2, self.readahead_bytes / u64::from(self.block_bytes));
            let (capacity_lru, dirty_max) = (capacity, dirty);
            return BlockBudget {
                frames,
                capacity,
                capacity_lru,
                dirty_max,
                ahead_max: 2,
                run_max: 3,
                ahead,
                history: 64,
            };
        }
        let budget = self.divide(self.all_frames());
        let capacity_lru = if self.policy == LRU { budget.capacity } else { self.as_lru().budget().capacity };
        BlockBudget { capacity_lru, ..budget }
    }

    /// Divides this many frames.
    fn divide(&self, all: u64) -> BlockBudget {
        let run = (WRITE_BACK_BYTES_MAX / u64::from(self.block_bytes)).min(all / 64).max(1);
        // A write-back copies its blocks, and these copies take memory too.
        let is_back = self.mode == WriteMode::WriteBack;
        let frames = if is_back { all.saturating_sub(run * WRITE_BACKS_MAX as u64) } else { all };
        let dirty = if is_back { (frames as f64 * self.dirty_share) as u64 } else { 0 };
        let dirty = if is_back { dirty.max(READ_BLOCKS_MAX as u64) } else { 0 };
        let flight = (frames / 16).max(2 * READ_BLOCKS_MAX as u64);
        let capacity = frames.saturating_sub(dirty + flight);
        BlockBudget {
            frames,
            capacity,
            capacity_lru: capacity,
            dirty_max: dirty,
            ahead_max: flight / 2 - 2,
            run_max: run,
            ahead: self.readahead_bytes / u64::from(self.block_bytes),
            history: self.history_bytes() / REFERENCE_BYTES,
        }
    }
}

/// The division of memory. *Units*: blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockBudget {
    /// The number of all frames.
    pub frames: u64,
    /// The capacity of the policy while nothing is pinned.
    pub capacity: u64,
    /// The capacity of LRU in a cache of the same memory, with which saved and lost reads are counted.
    pub capacity_lru: u64,
    /// The maximum number of dirty blocks.
    pub dirty_max: u64,
    /// The maximum number of blocks that are read ahead and not referenced yet.
    pub ahead_max: u64,
    /// The maximum number of blocks of one write-back.
    pub run_max: u64,
    /// The distance to which streams are read ahead.
    pub ahead: u64,
    /// The number of references that are remembered; this is not a number of blocks.
    pub history: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The memory is divided at the least size and at any larger size.
    #[test]
    fn memory_divides_at_every_size() {
        for mode in [WriteMode::WriteThrough, WriteMode::WriteBack, WriteMode::ReadOnly] {
            for memory_bytes in [5 << 20, 6 << 20, 64 << 20, 1 << 40] {
                let policy = "lru".to_owned();
                let options = CacheOptions { memory_bytes, mode, policy, ..CacheOptions::default() };
                options.check().unwrap();
                let budget = options.budget();
                assert!(budget.capacity > 128, "{budget:?}");
                let rest = budget.frames - budget.capacity - budget.dirty_max;
                assert!(rest >= 2 * READ_BLOCKS_MAX as u64 && budget.ahead_max <= rest / 2, "{budget:?}");
                assert!(mode != WriteMode::WriteBack || budget.dirty_max >= READ_BLOCKS_MAX as u64, "{budget:?}");
            }
        }
    }

    #[test]
    fn memory_minus_tables_gives_blocks() {
        let blocks = |policy: &str, memory_bytes| {
            let options = CacheOptions { memory_bytes, policy: policy.to_owned(), ..CacheOptions::default() };
            let all = options.all_frames();
            let lru = options.as_lru().budget().capacity;
            let lru = (policy != LRU).then_some(lru);
            let (used, more) = (options.used_bytes(all, lru), options.used_bytes(all + 1, lru));
            assert!(used <= memory_bytes && more > memory_bytes, "{policy}: {used} and {more} of {memory_bytes}");
            options.budget().capacity as f64
        };
        for memory_bytes in [256 << 20, 1 << 30, 64 << 30] {
            for policy in nectary_cache::NAMES {
                let share = blocks(policy, memory_bytes) / blocks(LRU, memory_bytes);
                let least = if *policy == "dear" { 0.93 } else { 0.96 };
                assert!((least..=1.002).contains(&share), "{policy} holds {share} of what LRU holds");
            }
        }
    }

    #[test]
    fn impossible_options_are_refused() {
        let good = CacheOptions::default();
        for (options, words) in [
            (CacheOptions { block_bytes: 5000, ..good.clone() }, "power of two"),
            (CacheOptions { block_bytes: 128 << 10, ..good.clone() }, "4K to 64K"),
            (CacheOptions { policy: "best".to_owned(), ..good.clone() }, "known are"),
            (CacheOptions { memory_bytes: 1 << 20, ..good.clone() }, "at least "),
            (CacheOptions { dirty_share: 0.9, ..good.clone() }, "1% to 50%"),
        ] {
            let error = options.check().unwrap_err();
            assert!(error.kind == DeviceErrorKind::Invalid && error.detail.contains(words), "{error}");
        }
        let large = CacheOptions { memory_bytes: 1 << 60, ..good.clone() };
        assert!(large.check().is_ok() && good.check_machine().is_ok());
        let error = large.check_machine().unwrap_err();
        assert!(error.kind == DeviceErrorKind::Invalid && error.detail.contains("more than"), "{error}");
        assert_eq!("writeback".parse(), Ok(WriteMode::WriteBack));
        assert!("wb".parse::<WriteMode>().unwrap_err().contains("writethrough"));
    }
}
