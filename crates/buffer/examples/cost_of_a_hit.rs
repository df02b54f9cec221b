//! Measures the cost of a hit in the library, without I/O, as the median over batches of hits in a cache that holds all
//! blocks.
//!
//! `cargo run --release -p nectary-buffer --example cost_of_a_hit`

use std::sync::Arc;
use std::time::Instant;

use nectary_block::{AccessStream, IoContext, MemoryDevice};
use nectary_buffer::{BufferCache, CacheOptions, DeviceSource};

/// The number of blocks that are accessed.
const BLOCKS: u64 = 8192;
/// The number of accesses per batch, and the number of batches.
const BATCH: u64 = 1000;
const BATCHES: usize = 2001;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), nectary_block::Error> {
    println!("{BLOCKS} blocks of 8 KiB, 4 streams, {BATCHES} batches of {BATCH} hits; nanoseconds a hit");
    println!("{:>10} {:>8} {:>8} {:>8}", "policy", "median", "p90", "least");
    for policy in ["lru", "dear", "adaptive"] {
        let options = CacheOptions { memory_bytes: 256 << 20, policy: policy.to_owned(), ..CacheOptions::default() };
        let cache = BufferCache::new(options)?;
        let file = cache.add(Arc::new(DeviceSource::new(Arc::new(MemoryDevice::new(BLOCKS * 8192)))))?;
        for block in 0..BLOCKS {
            cache.read(file, block * 8192, 8192, IoContext::default()).await?;
        }
        let mut state = 1_u64;
        let mut costs = Vec::with_capacity(BATCHES);
        for _ in 0..BATCHES {
            let begun = Instant::now();
            for _ in 0..BATCH {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let (block, stream) = ((state >> 33) % BLOCKS, AccessStream(1 + (state >> 20) as u32 % 4));
                let context = IoContext { stream, deadline: None };
                let pins = cache.try_read(file, block * 8192, 8192, context);
                assert!(std::hint::black_box(pins).is_some(), "everything is in memory");
            }
            costs.push(begun.elapsed().as_nanos() as u64 / BATCH);
        }
        costs.sort_unstable();
        println!("{policy:>10} {:>8} {:>8} {:>8}", costs[BATCHES / 2], costs[BATCHES * 9 / 10], costs[0]);
    }
    Ok(())
}
