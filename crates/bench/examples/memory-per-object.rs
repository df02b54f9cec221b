//! Measures the memory cost of an object that is on disk, by counting allocated bytes, for several numbers of objects.
//!
//! `cargo run --release -p nectary-bench --example memory-per-object -- [--folder DIR] [--objects N,N]`
//!
//! A store is filled, dropped like in a crash, and opened again, so that its memory tier is empty. The cost of the
//! objects is the live memory after this open, minus the live memory of an empty store of the smallest size. No object
//! has tags. The program exits with 1 if the cost is more than the design's 10 bytes per object, or if objects are
//! missing from the index.

use std::alloc::{GlobalAlloc, Layout, System};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use nectary_block::OpenOptions as DeviceOptions;
use nectary_store::{CreateOptions, KeyRef, OpenOptions, SPAN_BYTES_MIN, Store};

type Failure = Box<dyn std::error::Error>;

/// The largest cost that the design allows. *Units*: bytes per object.
const TARGET: f64 = 10.0;
const BODY_BYTES: usize = 200;
const MEMORY_BYTES: u64 = 1 << 30;

static LIVE: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, with a count of live bytes.
struct LiveBytesAllocator;

#[global_allocator]
static ALLOCATOR: LiveBytesAllocator = LiveBytesAllocator;

// SAFETY: every call is passed unchanged to the system's allocator.
unsafe impl GlobalAlloc for LiveBytesAllocator {
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

fn main() -> ExitCode {
    match measure() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("memory-per-object: {error}");
            ExitCode::from(2)
        }
    }
}

fn measure() -> Result<bool, Failure> {
    let (mut folder, mut counts) = (std::env::temp_dir().to_string_lossy().into_owned(), vec![1_000_000, 10_000_000]);
    let words: Vec<String> = std::env::args().skip(1).collect();
    for pair in words.chunks(2) {
        match pair {
            [name, value] if name == "--folder" => folder.clone_from(value),
            [name, value] if name == "--objects" => {
                counts = value.split(',').map(str::parse).collect::<Result<_, _>>()?;
            }
            _ => return Err(format!("{} is not understood, or needs a value", pair[0]).into()),
        }
    }
    let path = format!("{folder}/nectary-memory-{}.img", std::process::id());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut good = true;
    let counted = runtime.block_on(async {
        let (empty, _) = taken(&path, SPAN_BYTES_MIN, 0).await?;
        println!("a store of {SPAN_BYTES_MIN} bytes without objects: {empty} bytes live");
        for objects in counts {
            let (live, entries) = taken(&path, objects * 2 * 1100, objects).await?;
            let each = live.saturating_sub(empty) as f64 / objects as f64;
            let is_good = each <= TARGET && entries >= objects;
            good &= is_good;
            println!(
                "{objects} objects, {entries} entries: {live} bytes live, {each:.2} bytes an object (wanted at most {TARGET}){}",
                if is_good { "" } else { ": MISSED" }
            );
        }
        Ok::<_, Failure>(())
    });
    let _ = std::fs::remove_file(&path);
    counted.map(|()| good)
}

/// Returns the live bytes of a store with this many objects and an empty memory tier, and the number of entries in its
/// index.
async fn taken(path: &str, span_bytes: u64, objects: u64) -> Result<(usize, u64), Failure> {
    let options = OpenOptions { memory_bytes: MEMORY_BYTES, warm_up: false, ..OpenOptions::default() };
    let _ = std::fs::remove_file(path);
    // The file is sparse, so that it uses only the space that is written.
    let span_bytes = span_bytes.next_multiple_of(1 << 20);
    std::fs::File::create(path)?.set_len(span_bytes)?;
    let device_options = DeviceOptions { create_bytes: Some(span_bytes), ..DeviceOptions::default() };
    let device = nectary_block::open(path, &device_options).await?;
    Store::create(device.clone(), &CreateOptions { force: true, ..CreateOptions::default() }).await?;
    let store = Store::open(device.clone(), options.clone()).await?;
    let body = Bytes::from(vec![7u8; BODY_BYTES]);
    for number in 0..objects {
        let name = format!("http://example.invalid/object/{number}");
        while store.put(KeyRef::new(name.as_bytes(), b""), "metadata".into(), body.clone()).await.is_err() {
            store.sync().await?;
        }
        if number % 100_000 == 0 {
            eprint!("\rfilling: {number} of {objects} objects");
        }
    }
    store.sync().await?;
    store.checkpoint().await?;
    eprintln!("\rfilled: {objects} objects            ");
    drop(store);
    let before = LIVE.load(Ordering::Relaxed);
    let store = Store::open(device, options).await?;
    // The index loads in the background, and nothing is written before it is fully loaded.
    store.put(KeyRef::new(b"one more", b""), "metadata".into(), body).await?;
    store.sync().await?;
    let live = LIVE.load(Ordering::Relaxed).saturating_sub(before);
    let entries = store.stat().entries;
    Ok((live, entries))
}
