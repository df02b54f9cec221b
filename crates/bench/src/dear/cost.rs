//! The cost of the cache without I/O: the time of a hit in the library and through FUSE, and the additional time of
//! policies that detect access patterns, compared with LRU.
//!
//! Owns: the references, and the order of batches. The caches alternate (A B B A …) batch by batch within one thread.
//! Time is the processor time of the thread, so other load on the machine only adds misses in the processor's caches.
//! There are two sets of references. *Hits* are uniform over blocks that all fit in the cache. *Half misses* are
//! uniform over twice as many blocks as fit, so every policy has the same hit rate. The cost of detection is the
//! difference from LRU within a round.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nectary_block::{AccessStream, IoContext, MemoryDevice};
use nectary_buffer::{BufferCache, DeviceSource, FileId};
use serde::Serialize;

use super::mounted;
use super::through_fuse::{ThroughFuse, WHOLE, through_fuse};
use crate::random::SeededRandom;
use crate::statistics::{IntervalEstimate, estimate, order};
use crate::{Error, sys};

/// The number of blocks that fit in the cache, and their size in bytes. No cache under `adaptive` has exactly 4,096 blocks:
/// with more it has samples in place of shadow caches, and needs less memory.
pub(super) const BLOCKS: u64 = 8192;
const BLOCK_BYTES: u64 = 8192;
/// The number of references in a batch.
const BATCH: u64 = 20_000;
/// The number of rounds, at least ten; each round gives one pair.
const ROUNDS: usize = 21;
/// The policies, LRU first.
const POLICIES: [&str; 3] = ["lru", "dear", "adaptive"];

/// The results. *Units*: microseconds of thread time per reference.
#[derive(Debug, Clone, Serialize)]
pub struct CacheCosts {
    /// The time of a hit under each policy: the median over the rounds with its interval.
    pub hit_us: Vec<(&'static str, IntervalEstimate)>,
    /// The additional time per hit of each other policy, compared with LRU.
    pub above_hits_us: Vec<(&'static str, IntervalEstimate)>,
    /// The additional time per reference of each other policy, compared with LRU, if half of the references miss.
    pub above_misses_us: Vec<(&'static str, IntervalEstimate)>,
    /// The number of pairs of each figure.
    pub pairs: usize,
    /// The time of a hit through FUSE, compared with a FUSE file that answers from a buffer.
    pub through_fuse: Vec<ThroughFuse>,
}

struct CostContender {
    cache: BufferCache,
    file: FileId,
    random: SeededRandom,
}

/// Measures all costs; makes its files and mounts in `folder`.
pub fn cost(folder: &Path) -> Result<CacheCosts, Error> {
    let through_fuse = through_fuse(folder, &WHOLE)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Error::failed("a runtime", error))?;
    runtime.block_on(async {
        let hits = times(BLOCKS, BATCH).await?;
        let misses = times(2 * BLOCKS, BATCH / 4).await?;
        let of = |times: &[Vec<f64>], index: usize| (POLICIES[index], estimate(&times[index]));
        let above = |times: &[Vec<f64>], index: usize| {
            let differences: Vec<f64> = times[index].iter().zip(&times[0]).map(|(us, lru)| us - lru).collect();
            (POLICIES[index], estimate(&differences))
        };
        Ok(CacheCosts {
            hit_us: (0..POLICIES.len()).map(|index| of(&hits, index)).collect(),
            above_hits_us: (1..POLICIES.len()).map(|index| above(&hits, index)).collect(),
            above_misses_us: (1..POLICIES.len()).map(|index| above(&misses, index)).collect(),
            pairs: ROUNDS,
            through_fuse,
        })
    })
}

/// Measures the microseconds per reference for each policy and round; references are uniform over `blocks`.
async fn times(blocks: u64, batch: u64) -> Result<Vec<Vec<f64>>, Error> {
    let mut contenders = Vec::new();
    for policy in POLICIES {
        let options = nectary_buffer::CacheOptions {
            memory_bytes: mounted::memory_for(policy, BLOCKS)?,
            policy: policy.to_owned(),
            readahead_bytes: 0,
            ..nectary_buffer::CacheOptions::default()
        };
        let cache = BufferCache::new(options)?;
        let file = cache.add(Arc::new(DeviceSource::new(Arc::new(MemoryDevice::new(blocks * BLOCK_BYTES)))))?;
        let mut contender = CostContender { cache, file, random: SeededRandom::new(blocks) };
        // Before the measurement, the cache gets all blocks once in order, and then one batch like the measured ones.
        for block in 0..blocks {
            contender.refer(block, AccessStream(1)).await?;
        }
        contender.batch(blocks, batch).await?;
        contenders.push(contender);
    }
    let mut times = vec![Vec::new(); POLICIES.len()];
    for round in 0..ROUNDS {
        for index in order(POLICIES.len(), round) {
            let took = contenders[index].batch(blocks, batch).await?;
            times[index].push(took.as_secs_f64() * 1e6 / batch as f64);
        }
    }
    Ok(times)
}

impl CostContender {
    async fn batch(&mut self, blocks: u64, count: u64) -> Result<Duration, Error> {
        let began = sys::thread_time();
        for _ in 0..count {
            let drawn = self.random.next_u64();
            self.refer((drawn >> 32) % blocks, AccessStream(1 + (drawn & 3) as u32)).await?;
        }
        Ok(sys::thread_time().saturating_sub(began))
    }

    async fn refer(&self, block: u64, stream: AccessStream) -> Result<(), Error> {
        let context = IoContext { stream, ..IoContext::default() };
        let offset = block * BLOCK_BYTES;
        match self.cache.try_read(self.file, offset, BLOCK_BYTES, context) {
            Some(pins) => drop(std::hint::black_box(pins)),
            None => drop(std::hint::black_box(self.cache.read(self.file, offset, BLOCK_BYTES, context).await?)),
        }
        Ok(())
    }
}
