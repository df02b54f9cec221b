//! A live cache has exactly the same misses, saved and lost reads, and verdicts as a simulation of the same references.

use std::sync::{Arc, Mutex};

use nectary_block::{AccessStream, Buffer, IoContext, MemoryDevice, WriteFlags};
use nectary_buffer::{BufferCache, CacheOptions, DeviceSource, WriteMode};
use nectary_cache::detect::{PatternVerdict, PeriodReport};
use nectary_sim::late::in_virtual_time;
use nectary_sim::random::SimulationRandom;
use nectary_trace::simulate::{TraceWorkload, misses, policies};

use crate::support::unplanted;

/// Blocks of the device.
const BLOCKS: u64 = 4096;

type Periods = Arc<Mutex<Vec<(u32, PeriodReport)>>>;

/// Makes the references of several programs at once: of a loop, of a scan, to a few hot blocks, and to random blocks.
async fn programs(cache: &BufferCache, file: nectary_buffer::FileId, seed: u64) {
    let mut random = SimulationRandom::new(seed);
    let (mut at_loop, mut at_scan) = (0, 0);
    for _ in 0..40_000 {
        let (stream, block) = match random.below(10) {
            0..=3 => (1, {
                at_loop = (at_loop + 1) % 900;
                at_loop
            }),
            4..=5 => (2, {
                at_scan = (at_scan + 1) % BLOCKS;
                at_scan
            }),
            6..=8 => (3, 1000 + random.below(200) * random.below(200) / 200),
            _ => (4, random.below(BLOCKS)),
        };
        let context = IoContext { stream: AccessStream(stream), deadline: None };
        if random.chance(15) {
            let buffers = vec![Buffer::zeroed(8192)];
            cache.write(file, block * 8192, buffers, WriteFlags::default(), context).await.expect("it writes");
        } else {
            cache.read(file, block * 8192, 8192, context).await.expect("it reads");
        }
    }
}

/// Misses, the ledger and the verdicts of a live cache equal those of a replay of its references.
#[test]
fn live_cache_matches_replay() {
    let _unplanted = unplanted();
    for (policy, mode) in [
        ("lru", WriteMode::WriteThrough),
        ("s3fifo", WriteMode::WriteBack),
        ("lirs", WriteMode::WriteBack),
        ("dear", WriteMode::WriteThrough),
        ("dear", WriteMode::WriteBack),
        ("adaptive", WriteMode::WriteBack),
    ] {
        let references: Arc<Mutex<Vec<(u64, u32)>>> = Arc::default();
        let to = references.clone();
        let (stats, streams, capacity_lru) = in_virtual_time(async {
            let options =
                CacheOptions { memory_bytes: 12 << 20, policy: policy.to_owned(), mode, ..CacheOptions::default() };
            let of_lru = CacheOptions { policy: "lru".to_owned(), ..options.clone() };
            let of_lru = BufferCache::new(of_lru).expect("a cache is made");
            let cache = BufferCache::new(options).expect("a cache is made");
            let device = Arc::new(MemoryDevice::new(BLOCKS * 8192));
            let file = cache.add(Arc::new(DeviceSource::new(device))).expect("a file is added");
            cache.record(Some(Box::new(move |reference| {
                to.lock().expect("no test panicked").push((reference.id, reference.stream.0));
            })));
            programs(&cache, file, 7).await;
            (cache.stats(), cache.streams(), of_lru.stats().capacity_blocks)
        });
        let references = references.lock().expect("no test panicked");
        assert_eq!(references.len(), 40_000, "each call refers once");
        let of = |&(id, stream): &(u64, u32)| (id, nectary_cache::StreamId(stream));
        let workload = TraceWorkload::new("recorded", references.iter().map(of));
        let replayed =
            misses(&mut *policies::make(policy, stats.capacity_blocks, &workload).expect("known"), &workload);
        assert_eq!(stats.misses, replayed, "{policy}, {mode}");
        let lru = misses(&mut *policies::make("lru", capacity_lru, &workload).expect("known"), &workload);
        assert_eq!(stats.misses + stats.saved - stats.lost, lru, "{policy}, {mode}: the ledger");
        assert_eq!(stats.hits + stats.misses, 40_000);
        verdicts(policy, stats.capacity_blocks, &workload, &streams);
    }
}

/// Compares the last verdict of each stream with that of a replay.
fn verdicts(policy: &str, capacity: u64, workload: &TraceWorkload, streams: &[nectary_buffer::StreamStats]) {
    let periods: Periods = Arc::default();
    let to = periods.clone();
    let sink = Box::new(move |event: nectary_cache::detect::PeriodEvent<'_>| {
        to.lock().expect("no test panicked").push((event.stream.0, *event.report));
    });
    let mut explained = nectary_cache::explaining(policy, capacity, sink).expect("known");
    misses(&mut *explained, workload);
    let periods = periods.lock().expect("no test panicked");
    let last = |stream: u32| periods.iter().rev().find(|(of, _)| *of == stream).map(|(_, report)| report);
    for stats in streams.iter().filter(|stats| stats.stream.is_some()) {
        let stream = stats.stream.expect("filtered").0;
        let expected = last(stream).map(|report| (report.verdict, report.number));
        assert_eq!(stats.verdict.map(|verdict| (verdict, stats.period)), expected, "{policy}: stream {stream}");
    }
    if policy == "dear" {
        assert!(periods.iter().any(|(stream, report)| *stream == 1 && report.verdict == PatternVerdict::Looping));
    }
}
