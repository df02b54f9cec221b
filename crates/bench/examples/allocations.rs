//! Measures how often the store allocates: the calls of the allocator and the allocated bytes per operation, for each
//! kind of operation.
//!
//! `cargo run --release -p nectary-bench --example allocations -- [--device SPEC] [--json FILE]`
//!
//! One thread calls a store on `memory:512M`, or on another device of that size. A missing file is created; the
//! contents of the device are lost. Allocations of the store's own threads also count, so the measurement of most kinds
//! ends with a sync. Only the store's identity is random, so two runs differ by less than 1 %, and two builds can be
//! compared. To compare with an older build, copy this file into its source tree. The program exits with 1 if gets were
//! not answered from the expected place, or if an object was not stored.

use std::alloc::{GlobalAlloc, Layout, System};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use nectary_block::{Buffer, SharedDevice};
use nectary_store::{ClusterRead, CreateOptions, FillRole, KeyRef, OpenOptions, Store};

type Failure = Box<dyn std::error::Error>;

const DEVICE_BYTES: u64 = 512 << 20;
const MEMORY_BYTES: u64 = 384 << 20;
/// The number of objects of one record, their length in bytes, and the number of puts between two syncs.
const SMALL: u64 = 10_000;
const SMALL_BYTES: usize = 4000;
const SYNC_EVERY: u64 = 100;
/// The number of puts that are each followed by a sync.
const SYNCS: u64 = 1000;
/// The number of objects of several fragments, and their length in bytes.
const LARGE: u64 = 64;
const LARGE_BYTES: usize = 1 << 20;
/// The number of fills, and the number of chunks per fill.
const FILLS: u64 = 5000;
const CHUNKS: usize = 4;
/// The number of times that each small object is requested from memory.
const ROUNDS: u64 = 5;
const PURGES: u64 = 2000;
const TAGS: u64 = 200;
/// An open counts as completed after this time without an allocation.
const QUIET: Duration = Duration::from_millis(300);
/// Objects are visited in steps of this size, modulo their number. The step has no factor in common with the numbers of
/// objects, so each object is visited once, in another order than on disk.
const STEP: u64 = 6151;

static CALLS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);

/// The system's allocator, which also counts calls and bytes.
struct CallCountingAllocator;

#[global_allocator]
static ALLOCATOR: CallCountingAllocator = CallCountingAllocator;

fn count(bytes: usize) {
    CALLS.fetch_add(1, Ordering::Relaxed);
    BYTES.fetch_add(bytes as u64, Ordering::Relaxed);
}

// SAFETY: every call is passed unchanged to the system's allocator.
unsafe impl GlobalAlloc for CallCountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // Only the added bytes count.
        count(bytes.saturating_sub(layout.size()));
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(pointer, layout, bytes) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// The cost per operation of one kind.
#[derive(serde::Serialize)]
struct OperationCost {
    kind: &'static str,
    operations: u64,
    allocations: f64,
    allocated_bytes: f64,
}

/// The allocator's counts before the operations of one kind; [`end`](AllocatorSnapshot::end) returns the cost per operation since
/// then.
struct AllocatorSnapshot {
    calls: u64,
    bytes: u64,
}

impl AllocatorSnapshot {
    fn begin() -> AllocatorSnapshot {
        AllocatorSnapshot { calls: CALLS.load(Ordering::SeqCst), bytes: BYTES.load(Ordering::SeqCst) }
    }

    fn end(self, kind: &'static str, operations: u64) -> OperationCost {
        let calls = CALLS.load(Ordering::SeqCst) - self.calls;
        let bytes = BYTES.load(Ordering::SeqCst) - self.bytes;
        let each = |sum: u64| sum as f64 / operations as f64;
        OperationCost { kind, operations, allocations: each(calls), allocated_bytes: each(bytes) }
    }
}

fn main() -> ExitCode {
    match measure() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("allocations: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure() -> Result<(), Failure> {
    let (mut spec, mut json) = (format!("memory:{}M", DEVICE_BYTES >> 20), None);
    let words: Vec<String> = std::env::args().skip(1).collect();
    for pair in words.chunks(2) {
        match pair {
            [name, value] if name == "--device" => spec.clone_from(value),
            [name, value] if name == "--json" => json = Some(value.clone()),
            _ => return Err(format!("{} is not understood, or needs a value", pair[0]).into()),
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let kinds = runtime.block_on(run(&spec))?;
    println!("{:<28} {:>10} {:>12} {:>12}", format!("on {spec}"), "operations", "allocations", "bytes");
    for OperationCost { kind, operations, allocations, allocated_bytes } in &kinds {
        println!("{kind:<28} {operations:>10} {allocations:>12.3} {allocated_bytes:>12.0}");
    }
    if let Some(path) = json {
        std::fs::write(path, serde_json::to_vec_pretty(&serde_json::json!({ "device": spec, "kinds": kinds }))?)?;
    }
    Ok(())
}

async fn run(spec: &str) -> Result<Vec<OperationCost>, Failure> {
    let options =
        nectary_block::OpenOptions { create_bytes: Some(DEVICE_BYTES), ..nectary_block::OpenOptions::default() };
    let device = nectary_block::open(spec, &options).await?;
    // A device in memory allocates when it is first written. These allocations must not count as the store's.
    for offset in (0..DEVICE_BYTES).step_by(1 << 20) {
        nectary_block::write(&*device, offset, Buffer::zeroed(1 << 20)).await?;
    }
    Store::create(device.clone(), &CreateOptions { force: true, ..CreateOptions::default() }).await?;
    let mut kinds = Vec::new();
    let store = open(&device).await?;
    let (small, large) = (Bytes::from(vec![7; SMALL_BYTES]), Bytes::from(vec![9; LARGE_BYTES]));

    for kind in ["put", "put that replaces"] {
        let counted = AllocatorSnapshot::begin();
        for number in 0..SMALL {
            store.put(key(&name(b's', number)), Bytes::from_static(b"metadata"), small.clone()).await?;
            sync_sometimes(&store, number).await?;
        }
        store.sync().await?;
        kinds.push(counted.end(kind, SMALL));
    }

    let counted = AllocatorSnapshot::begin();
    for number in 0..PURGES {
        let tag = name(b't', number % TAGS);
        let metadata = Bytes::from_static(b"metadata");
        store.put_tagged(key(&name(b'g', number)), &[&tag], metadata, small.clone()).await?;
        sync_sometimes(&store, number).await?;
    }
    store.sync().await?;
    kinds.push(counted.end("put with a tag", PURGES));

    let counted = AllocatorSnapshot::begin();
    for number in 0..LARGE {
        store.put(key(&name(b'l', number)), Bytes::from_static(b"metadata"), large.clone()).await?;
    }
    store.sync().await?;
    kinds.push(counted.end("put of 1 MiB", LARGE));

    let counted = AllocatorSnapshot::begin();
    for number in 0..SYNCS {
        store.put(key(&name(b'y', number)), Bytes::from_static(b"metadata"), small.clone()).await?;
        store.sync().await?;
    }
    kinds.push(counted.end("put and sync", SYNCS));

    let counted = AllocatorSnapshot::begin();
    for number in 0..FILLS {
        fill(&store, number, &small).await?;
        sync_sometimes(&store, number).await?;
    }
    store.sync().await?;
    kinds.push(counted.end("fill", FILLS));

    let before = store.stat().counts;
    let counted = AllocatorSnapshot::begin();
    for place in 0..SMALL * ROUNDS {
        let name = name(b's', place * STEP % SMALL);
        let object = store.get(key(&name)).await.ok_or("an object is missing")?;
        object.whole().ok_or("an object is in fragments")?;
    }
    kinds.push(counted.end("get from memory", SMALL * ROUNDS));
    expect("from memory", store.stat().counts.hits_memory - before.hits_memory, SMALL * ROUNDS)?;

    let counted = AllocatorSnapshot::begin();
    for number in 0..SMALL {
        if store.get(key(&name(b'x', number))).await.is_some() {
            return Err("something was found that was never put".into());
        }
    }
    kinds.push(counted.end("get that misses", SMALL));
    store.close().await?;
    drop(store);

    let store = open(&device).await?;
    settle().await;
    let before = store.stat().counts;
    let counted = AllocatorSnapshot::begin();
    for place in 0..SMALL {
        let name = name(b's', place * STEP % SMALL);
        let object = store.get(key(&name)).await.ok_or("an object is missing")?;
        object.whole().ok_or("an object is in fragments")?;
    }
    kinds.push(counted.end("get from disk", SMALL));
    expect("from disk", store.stat().counts.hits_disk - before.hits_disk, SMALL)?;

    let counted = AllocatorSnapshot::begin();
    for place in 0..LARGE {
        let name = name(b'l', place * STEP % LARGE);
        let object = store.get(key(&name)).await.ok_or("an object is missing")?;
        let (mut reader, mut bytes) = (object.reader(0..u64::MAX), 0);
        while let Some(chunk) = reader.next().await {
            bytes += chunk?.len();
        }
        expect("bytes of a body", bytes as u64, LARGE_BYTES as u64)?;
    }
    kinds.push(counted.end("get of 1 MiB from disk", LARGE));
    store.sync().await?;

    let counted = AllocatorSnapshot::begin();
    for number in 0..PURGES {
        store.purge_key(&name(b's', number)).await?;
    }
    kinds.push(counted.end("purge by key", PURGES));

    let counted = AllocatorSnapshot::begin();
    for number in 0..PURGES {
        store.purge_key(&name(b'x', number)).await?;
    }
    kinds.push(counted.end("purge of what is not there", PURGES));

    let counted = AllocatorSnapshot::begin();
    for number in 0..TAGS {
        store.purge_tag(&name(b't', number)).await?;
    }
    kinds.push(counted.end("purge by tag", TAGS));

    for number in [0, PURGES - 1] {
        for kind in [b's', b'g'] {
            if store.get(key(&name(kind, number))).await.is_some() {
                return Err("something was found that was purged".into());
            }
        }
    }
    store.close().await?;
    Ok(kinds)
}

/// Opens the store with options under which it writes and reads only when it is called.
async fn open(device: &SharedDevice) -> Result<Store, Failure> {
    let options = OpenOptions {
        memory_bytes: MEMORY_BYTES,
        write_delay: Duration::from_secs(3600),
        cluster_read: ClusterRead::Object,
        warm_up: false,
        ..OpenOptions::default()
    };
    Ok(Store::open(device.clone(), options).await?)
}

/// Waits until nothing is allocated any more: background work of the open must not count for an operation.
async fn settle() {
    let mut calls = u64::MAX;
    while calls != CALLS.load(Ordering::SeqCst) {
        calls = CALLS.load(Ordering::SeqCst);
        tokio::time::sleep(QUIET).await;
    }
}

async fn sync_sometimes(store: &Store, number: u64) -> Result<(), Failure> {
    if number % SYNC_EVERY == SYNC_EVERY - 1 {
        store.sync().await?;
    }
    Ok(())
}

async fn fill(store: &Store, number: u64, body: &Bytes) -> Result<(), Failure> {
    let FillRole::Leader(mut fill) = store.begin_fill(key(&name(b'f', number)), None) else {
        return Err("somebody else fills".into());
    };
    if !fill.start(b"", Bytes::from_static(b"metadata"), Some(body.len() as u64)) {
        return Err("a fill is not stored".into());
    }
    for chunk in 0..CHUNKS {
        let length = body.len() / CHUNKS;
        fill.write(body.slice(chunk * length..(chunk + 1) * length)).await?;
    }
    fill.finish().await?;
    Ok(())
}

/// A name on the stack, so that it costs no allocation.
fn name(kind: u8, number: u64) -> [u8; 32] {
    let mut name = [kind; 32];
    name[24..].copy_from_slice(&number.to_be_bytes());
    name
}

fn key(name: &[u8; 32]) -> KeyRef<'_> {
    KeyRef::new(name, b"")
}

fn expect(what: &str, found: u64, expected: u64) -> Result<(), Failure> {
    if found == expected { Ok(()) } else { Err(format!("{what}: {found} instead of {expected}").into()) }
}
