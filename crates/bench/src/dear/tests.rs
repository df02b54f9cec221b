//! A tiny, deterministic part of the experiment: a loop over blocks in the live cache, above a modelled disk with a
//! virtual clock.

use std::sync::Arc;

use nectary_block::{Clock, Context, Disk, MemoryDevice, ModelFilter, ModelOptions, Stream};
use nectary_buffer::{BufferCache, DeviceSource, Options};

use super::{BLOCKS, mounted, replay};

/// The number of blocks of the loop, and how often it repeats.
const LOOP: u64 = 1000;
const ROUNDS: u64 = 5;
const BLOCK_BYTES: u64 = 8192;

#[tokio::test]
async fn a_loop_on_the_live_cache_is_what_its_replay_says_and_under_dear_the_disk_rests() {
    let references: Vec<replay::Reference> =
        (0..ROUNDS).flat_map(|_| 0..LOOP).map(|id| replay::Reference { id, stream: 1, is_write: false }).collect();
    let mut busy = Vec::new();
    for policy in ["lru", "dear"] {
        let options = ModelOptions { clock: Clock::Virtual, queue_depth: 1, ..ModelOptions::new(Disk::Hdd1999) };
        let disk = Arc::new(ModelFilter::new(Arc::new(MemoryDevice::new(LOOP * BLOCK_BYTES)), options));
        let memory_bytes = mounted::memory_for(policy, BLOCKS).unwrap();
        let options = Options { memory_bytes, policy: policy.to_owned(), readahead_bytes: 0, ..Options::default() };
        let cache = BufferCache::new(options).unwrap();
        let file = cache.add(Arc::new(DeviceSource::new(disk.clone()))).unwrap();
        for reference in &references {
            let context = Context { stream: Stream(reference.stream), ..Context::default() };
            cache.read(file, reference.id * BLOCK_BYTES, BLOCK_BYTES, context).await.unwrap();
        }
        let mut simulated = nectary_cache::by_name(policy, BLOCKS).unwrap();
        let expected = replay::replay(&mut *simulated, &references);
        let stats = cache.stats();
        assert_eq!((stats.capacity_blocks, stats.misses), (BLOCKS, expected.misses), "{policy}");
        assert_eq!(stats.source_read_blocks, expected.reads, "{policy}");
        busy.push(disk.snapshot().busy);
    }
    assert!(busy[1] * 4 < busy[0] * 3, "under LRU and dear the disk is busy for {busy:?}");
}
