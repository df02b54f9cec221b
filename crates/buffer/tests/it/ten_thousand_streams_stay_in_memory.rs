//! Tests ten thousand sequential streams: the memory of the process stays within the budget, and the last stream gets
//! its own verdict. `cargo xtask test` runs it alone in a process, because it measures memory.

use std::sync::Arc;

use nectary_block::{AccessStream, IoContext, MemoryDevice};
use nectary_buffer::{BufferCache, CacheOptions, DeviceSource};
use nectary_cache::detect::PatternVerdict;

const MEMORY_BYTES: u64 = 64 << 20;
const STREAMS: u64 = 10_000;
/// The number of blocks that each stream reads, except the last stream.
const BLOCKS: u64 = 20;
/// The number of blocks that the last stream reads, which is enough for two periods.
const BLOCKS_LAST: u64 = 1200;

/// The current memory of the process. *Units*: bytes.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// Ten thousand sequential streams fit the budget, and the last one gets its verdict.
#[tokio::test]
async fn ten_thousand_streams_fit_budget() {
    let before = resident_bytes();
    let options = CacheOptions { memory_bytes: MEMORY_BYTES, policy: "dear".to_owned(), ..CacheOptions::default() };
    let cache = BufferCache::new(options).unwrap();
    let device = Arc::new(MemoryDevice::new(STREAMS * BLOCKS_LAST * 8192));
    let file = cache.add(Arc::new(DeviceSource::new(device))).unwrap();
    let read = async |stream: u64, block: u64| {
        let context = IoContext { stream: AccessStream(stream as u32), deadline: None };
        cache.read(file, (stream * BLOCKS_LAST + block) * 8192, 8192, context).await.unwrap();
    };
    let mut most = 0;
    for block in 0..BLOCKS {
        for stream in 0..STREAMS {
            read(stream, block).await;
        }
        most = most.max(resident_bytes());
    }
    for block in BLOCKS..BLOCKS_LAST {
        read(STREAMS - 1, block).await;
    }
    most = most.max(resident_bytes());
    let taken = most - before;
    println!("{} MiB of {} MiB, {:?}", taken >> 20, MEMORY_BYTES >> 20, cache.stats());
    assert!(taken <= MEMORY_BYTES, "{taken} bytes are taken");
    assert!(taken >= MEMORY_BYTES / 2, "{taken} bytes are taken: it proves nothing");
    let streams = cache.streams();
    let last = streams.iter().find(|stats| stats.stream == Some(AccessStream(STREAMS as u32 - 1))).unwrap();
    assert_eq!(last.verdict, Some(PatternVerdict::Sequential));
    // There are more streams than rows, so a stream may lose its row, and its counts then begin again.
    assert!(last.hits + last.misses >= BLOCKS_LAST - BLOCKS, "{last:?}");
}
