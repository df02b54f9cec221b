//! A tiny, deterministic part of the experiment: a loop over blocks in the live cache, above a modelled disk with a
//! virtual clock.

use std::sync::{Arc, Mutex};

use nectary_block::{AccessStream, DiskKind, IoContext, MemoryDevice, ModelClock, ModelFilter, ModelOptions};
use nectary_buffer::{BufferCache, CacheOptions, DeviceSource};

use super::{BLOCKS, mounted, replay};

/// The number of blocks of the loop, and how often it repeats.
const LOOP: u64 = 1000;
const ROUNDS: u64 = 5;
const BLOCK_BYTES: u64 = 8192;

/// A loop on the live cache has the counts of its replay, and uses the disk less under `dear`.
#[tokio::test]
async fn live_loop_matches_replay() {
    let ids: Vec<u64> = (0..ROUNDS).flat_map(|_| 0..LOOP).collect();
    let read = |id: &u64| replay::RecordStep::Refer(replay::RecordedReference { id: *id, stream: 1, is_write: false });
    let record = replay::ReferenceRecord::new(ids.iter().map(read).collect());
    let mut busy = Vec::new();
    for policy in ["lru", "dear"] {
        let options =
            ModelOptions { clock: ModelClock::Virtual, queue_depth: 1, ..ModelOptions::new(DiskKind::Hdd1999) };
        let disk = Arc::new(ModelFilter::new(Arc::new(MemoryDevice::new(LOOP * BLOCK_BYTES)), options));
        let memory_bytes = mounted::memory_for(policy, BLOCKS).unwrap();
        let options =
            CacheOptions { memory_bytes, policy: policy.to_owned(), readahead_bytes: 0, ..CacheOptions::default() };
        let cache = BufferCache::new(options).unwrap();
        let file = cache.add(Arc::new(DeviceSource::new(disk.clone()))).unwrap();
        for id in &ids {
            let context = IoContext { stream: AccessStream(1), ..IoContext::default() };
            cache.read(file, id * BLOCK_BYTES, BLOCK_BYTES, context).await.unwrap();
        }
        let mut simulated = nectary_cache::by_name(policy, BLOCKS).unwrap();
        let expected = replay::replay(&mut *simulated, &record);
        let stats = cache.stats();
        assert_eq!((stats.capacity_blocks, stats.misses), (BLOCKS, expected.misses), "{policy}");
        assert_eq!(stats.source_read_blocks, expected.reads, "{policy}");
        busy.push(disk.snapshot().busy);
    }
    assert!(busy[1] * 4 < busy[0] * 3, "under LRU and dear the disk is busy for {busy:?}");
}

/// Blocks that the live cache drops, as those of a deleted temporary file, are dropped by the replay, too: without the
/// drops it would have other counts.
#[tokio::test]
async fn replay_with_drops_matches_live() {
    for policy in ["lru", "mru", "dear", "s3fifo"] {
        let memory_bytes = mounted::memory_for(policy, BLOCKS).unwrap();
        let cache = BufferCache::new(mounted::options(policy, memory_bytes)).unwrap();
        let add = || cache.add(Arc::new(DeviceSource::new(Arc::new(MemoryDevice::new(LOOP * BLOCK_BYTES))))).unwrap();
        let (kept, temporary) = (add(), add());
        let steps = Arc::new(Mutex::new(Vec::new()));
        let (of_references, of_drops) = (steps.clone(), steps.clone());
        cache.record(Some(Box::new(move |reference| {
            let (id, stream) = (reference.id, reference.stream.0);
            let step = replay::RecordedReference { id, stream, is_write: reference.is_write };
            of_references.lock().unwrap().push(replay::RecordStep::Refer(step));
        })));
        cache.record_drops(Some(Box::new(move |ids| {
            of_drops.lock().unwrap().push(replay::RecordStep::Drop { first: ids.start, end: ids.end });
        })));
        let context = IoContext { stream: AccessStream(1), ..IoContext::default() };
        for round in 0..ROUNDS {
            for block in 0..BLOCKS / 2 {
                cache.read(kept, block * BLOCK_BYTES, BLOCK_BYTES, context).await.unwrap();
                cache.read(temporary, block * BLOCK_BYTES, BLOCK_BYTES, context).await.unwrap();
            }
            cache.invalidate(temporary, 0, LOOP * BLOCK_BYTES);
            for block in BLOCKS / 2..BLOCKS / 2 + 50 * round {
                cache.read(temporary, block * BLOCK_BYTES, BLOCK_BYTES, context).await.unwrap();
            }
        }
        let steps = std::mem::take(&mut *steps.lock().unwrap());
        let undropped: Vec<replay::RecordStep> =
            steps.iter().copied().filter(|step| matches!(step, replay::RecordStep::Refer(_))).collect();
        let replayed = |steps| {
            let mut simulated = nectary_cache::by_name(policy, BLOCKS).unwrap();
            replay::replay(&mut *simulated, &replay::ReferenceRecord::new(steps))
        };
        let (stats, found) = (cache.stats(), replayed(steps));
        assert_eq!((stats.misses, stats.source_read_blocks), (found.misses, found.reads), "{policy}");
        assert_ne!(replayed(undropped).misses, found.misses, "{policy}");
    }
}
