//! Measures the memory that foyer uses per object in addition to the object's bytes, for several numbers of objects. A
//! counting allocator measures it.
//!
//! `cargo run --release -p nectary-foyer --example foyer-memory-per-object -- [N ...]`
//!
//! Owns: the same measurement for foyer as the store's example `memory-per-object` makes for the store. Objects are
//! inserted into a hybrid cache with almost no memory, on foyer's own device that discards everything, so that millions
//! of objects need no disk. The live memory afterwards, minus that of the same cache without objects, is the cost of
//! the index. Leaves to others: the conclusions.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use foyer::{
    BlockEngineConfig, DeviceBuilder, HybridCache, HybridCacheBuilder, HybridCachePolicy, IoEngineConfig,
    NoopDeviceBuilder, NoopIoEngineConfig, RecoverMode,
};

type Failure = Box<dyn std::error::Error>;

const BODY_BYTES: usize = 200;
/// The size of an object on foyer's disk, in bytes.
const PAGE_BYTES: usize = 4096;
/// The number of objects that are inserted before the program waits until they are written. foyer's buffer has room for
/// more.
const OBJECTS_AT_ONCE: usize = 1000;
/// The size of foyer's memory, in bytes. It is so small that it holds almost no objects.
const MEMORY_BYTES: usize = 64 << 10;

static LIVE: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, which also counts the live bytes.
struct LiveByteAllocator;

#[global_allocator]
static ALLOCATOR: LiveByteAllocator = LiveByteAllocator;

// SAFETY: every call is passed unchanged to the system's allocator.
unsafe impl GlobalAlloc for LiveByteAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

fn main() -> Result<(), Failure> {
    let words: Vec<usize> = std::env::args().skip(1).map(|word| word.parse()).collect::<Result<_, _>>()?;
    let counts = if words.is_empty() { vec![1_000_000, 10_000_000] } else { words };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    for objects in counts {
        // The disk has the same size with and without objects, and has room for all of them.
        let (empty, _) = runtime.block_on(taken(objects, 0))?;
        let (live, found) = runtime.block_on(taken(objects, objects))?;
        let each = live.saturating_sub(empty) as f64 / found.max(1) as f64;
        println!(
            "{objects} objects, {found} indexed: {live} bytes live, {empty} without them, {each:.2} bytes an object"
        );
    }
    Ok(())
}

/// The live bytes of a cache that has room for `room` objects and gets `objects` objects, and the number of objects in
/// its index.
async fn taken(room: usize, objects: usize) -> Result<(usize, usize), Failure> {
    let before = LIVE.load(Ordering::Relaxed);
    let device = NoopDeviceBuilder::new((room * PAGE_BYTES * 5 / 4).next_multiple_of(64 << 20)).build()?;
    let cache: HybridCache<u64, Bytes> = HybridCacheBuilder::new()
        .with_policy(HybridCachePolicy::WriteOnInsertion)
        .with_flush_on_close(false)
        .memory(MEMORY_BYTES)
        .with_weighter(|_: &u64, body: &Bytes| 8 + body.len())
        .storage()
        .with_engine_config(BlockEngineConfig::new(device))
        .with_io_engine_config(Box::new(NoopIoEngineConfig) as Box<dyn IoEngineConfig>)
        .with_recover_mode(RecoverMode::None)
        .build()
        .await?;
    let body = Bytes::from(vec![7u8; BODY_BYTES]);
    for object in 0..objects {
        cache.insert(object as u64, body.clone());
        if object % OBJECTS_AT_ONCE == 0 {
            cache.storage().wait().await;
        }
    }
    cache.storage().wait().await;
    let live = LIVE.load(Ordering::Relaxed).saturating_sub(before);
    let found = (0..objects as u64).filter(|object| cache.storage().may_contains(object)).count();
    Ok((live, found))
}
