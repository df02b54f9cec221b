//! Compares the memory that a cache is charged with what it uses, for each policy at several sizes, by the allocator's
//! count and by resident memory.
//!
//! Owns: the limits, and the count of the allocator, which is that of all subcommands. Each row is measured in its own
//! process. A charge is right if it differs from what is used by at most 3 % of the cache's memory. Tables take at most
//! the design's 120 bytes a block (200 of `adaptive`). LIRS and `dear` have limits of their own, because they remember
//! three times as many evicted blocks as they hold, and at least 64 Ki. `dear` alone is measured with one stream.

use std::alloc::{GlobalAlloc, Layout, System};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nectary_block::{AccessStream, IoContext, MemoryDevice};
use nectary_buffer::{BufferCache, CacheOptions, DeviceSource, STREAMS_MAX};
use nectary_cache::{NAMES, explaining, table_bytes};

const HELP: &str = "\
Usage: research cache-memory [--sizes N,N] [--caches N,N] [--policies A,B]

  --sizes N,N     policies alone, with their tables full [default: 10000,100000,1000000,10000000 blocks]
  --caches N,N    whole caches with blocks of 4 KiB, read until nothing grows [default: 10000,100000 blocks]
  --policies A,B  [default: all]

Exit codes: 0 every charge is right, 1 one is wrong, or tables are too large, 2 the command line is wrong";

type Failure = Box<dyn std::error::Error>;

/// The block size: the smallest, with which tables weigh most. *Units*: bytes.
const BLOCK_BYTES: u64 = 4096;
/// The largest difference between charged and used memory. *Units*: percent of the charged memory.
const PERCENT_MAX: f64 = 3.0;
/// What a process takes besides: code that is run for the first time, and the runtime. *Units*: resident bytes.
const BASE_BYTES: u64 = 2 << 20;
/// The name of this subcommand.
const NAME: &str = "cache-memory";
/// The first word, after that name, of a process that measures one row.
const ROW: &str = "--row";
/// The number of streams that refer to blocks of a policy alone, and that a whole cache with `dear` meets. Other whole
/// caches have as many as they count apart, because they are charged for that many.
const STREAMS: u64 = 20;
/// What the allocator adds to each allocation. *Units*: bytes.
const HEADER_BYTES: usize = size_of::<usize>();

static LIVE: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, with a count of the bytes that live allocations really take.
struct UsableBytesAllocator;

#[global_allocator]
static ALLOCATOR: UsableBytesAllocator = UsableBytesAllocator;

fn taken(pointer: *mut u8) -> usize {
    // SAFETY: the pointer is that of a live allocation of the system's allocator, which is malloc, or null.
    let usable = unsafe { libc::malloc_usable_size(pointer.cast()) };
    usable + HEADER_BYTES
}

// SAFETY: every call is passed unchanged to the system's allocator.
unsafe impl GlobalAlloc for UsableBytesAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `alloc`.
        let pointer = unsafe { System.alloc(layout) };
        LIVE.fetch_add(taken(pointer), Ordering::Relaxed);
        pointer
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        let pointer = unsafe { System.alloc_zeroed(layout) };
        LIVE.fetch_add(taken(pointer), Ordering::Relaxed);
        pointer
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(taken(pointer), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// What was used: by the allocator's count, and resident. *Units*: bytes.
#[derive(Clone, Copy)]
struct MemoryUse {
    live: u64,
    resident: u64,
}

impl MemoryUse {
    fn now() -> Result<MemoryUse, Failure> {
        let text = std::fs::read_to_string("/proc/self/statm")?;
        let pages: u64 = text.split(' ').nth(1).ok_or("no resident pages in /proc/self/statm")?.parse()?;
        // SAFETY: the call reads a constant of the system.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
        Ok(MemoryUse { live: LIVE.load(Ordering::Relaxed) as u64, resident: pages * page })
    }

    fn since(self) -> Result<MemoryUse, Failure> {
        let now = MemoryUse::now()?;
        Ok(MemoryUse { live: now.live.saturating_sub(self.live), resident: now.resident.saturating_sub(self.resident) })
    }
}

/// Where the next references of a stream of references go: scans and skewed references in turn.
struct ReferenceStream {
    blocks: u64,
    streams: u64,
    step: u64,
    random: u64,
}

impl ReferenceStream {
    fn next(&mut self) -> (u64, AccessStream) {
        self.step += 1;
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let unit = (self.random >> 11) as f64 / (1_u64 << 53) as f64;
        let is_scan = (self.step / (6 * self.blocks)).is_multiple_of(2);
        let skewed = ((4 * self.blocks) as f64 * unit * unit) as u64;
        let block = if is_scan { 4 * self.blocks + self.step % (6 * self.blocks) } else { skewed };
        // Every stream comes, also where blocks are few.
        let of_stream = (10 * self.blocks / self.streams).clamp(1, 97);
        (block, AccessStream((block / of_stream % self.streams) as u32 + 1))
    }
}

fn references(blocks: u64, streams: u64) -> ReferenceStream {
    ReferenceStream { blocks, streams, step: 0, random: 7 }
}

/// The limit on the tables of a policy. *Units*: bytes per block.
fn tables_max(name: &str) -> u64 {
    match name {
        "lirs" => 260,
        "dear" => 720,
        "adaptive" => 200,
        _ => 120,
    }
}

fn policy_row(name: &str, blocks: u64) -> Result<bool, Failure> {
    let before = MemoryUse::now()?;
    let mut policy = explaining(name, blocks, Box::new(|_| ())).ok_or("no such policy")?;
    let mut references = references(blocks, STREAMS);
    for _ in 0..24 * blocks {
        let (id, stream) = references.next();
        let stream = if name == "dear" { 1 } else { stream.0 };
        policy.reference(id, 1, nectary_cache::StreamId(stream), &mut |_| true);
    }
    let (used, charged) = (before.since()?, table_bytes(name, blocks));
    let is_small = used.live <= tables_max(name) * blocks;
    let is_right = row(name, blocks, charged, used, blocks * BLOCK_BYTES, is_small);
    drop(policy);
    Ok(is_right)
}

async fn cache_row(name: &str, blocks: u64) -> Result<bool, Failure> {
    let device = Arc::new(MemoryDevice::new(16 * blocks * BLOCK_BYTES));
    let before = MemoryUse::now()?;
    let memory_bytes = blocks * BLOCK_BYTES;
    let block_bytes = BLOCK_BYTES as u32;
    let options = CacheOptions { memory_bytes, block_bytes, policy: name.to_owned(), ..CacheOptions::default() };
    let cache = BufferCache::new(options)?;
    let file = cache.add(Arc::new(DeviceSource::new(device)))?;
    let mut references = references(blocks, STREAMS_MAX as u64);
    for number in 0..24 * blocks {
        let (block, stream) = references.next();
        // `dear` meets a few streams, and then has one: it is not charged for what it keeps of each, some 4 kB.
        let stream = match name {
            "dear" if number < STREAMS => AccessStream(number as u32 + 1),
            "dear" => AccessStream(1),
            _ => stream,
        };
        let context = IoContext { stream, deadline: None };
        if cache.try_read(file, block * BLOCK_BYTES, BLOCK_BYTES, context).is_none() {
            cache.read(file, block * BLOCK_BYTES, BLOCK_BYTES, context).await?;
        }
    }
    let stats = cache.stats();
    // Frames that are free now are for data in flight.
    let charged = memory_bytes - (stats.memory_bytes - stats.used_bytes);
    Ok(row(&format!("cache, {name}"), stats.capacity_blocks, charged, before.since()?, 0, true))
}

/// Prints a row. *Returns* whether the charge is right.
fn row(name: &str, blocks: u64, charged: u64, used: MemoryUse, beside: u64, is_small: bool) -> bool {
    let each = |bytes: u64| bytes as f64 / blocks as f64;
    let percent = |bytes: u64| 100.0 * (bytes as f64 - charged as f64) / (charged + beside) as f64;
    let (live, resident) = (percent(used.live), percent(used.resident));
    let allowed = PERCENT_MAX / 100.0 * (charged + beside) as f64 + BASE_BYTES as f64;
    let is_right = live.abs() <= PERCENT_MAX && used.resident.abs_diff(charged) as f64 <= allowed;
    let (off, large) = (if is_right { "" } else { "  OFF" }, if is_small { "" } else { "  LARGE" });
    println!(
        "{name:16} {blocks:>9} {:>10.1} {:>10.1} {:>10.1}  {live:+6.2} % {resident:+6.2} %{off}{large}",
        each(charged),
        each(used.live),
        each(used.resident)
    );
    is_right && is_small
}

fn measure(words: &[String]) -> Result<bool, Failure> {
    let (mut sizes, mut caches) = (vec![10_000, 100_000, 1_000_000, 10_000_000], vec![10_000, 100_000]);
    let mut policies: Vec<String> = NAMES.iter().map(|name| (*name).to_owned()).collect();
    let numbers = |name: &str, value: &str| -> Result<Vec<u64>, Failure> {
        let each = value.split(',').filter(|word| !word.is_empty()).map(str::parse::<u64>);
        each.collect::<Result<Vec<u64>, _>>().map_err(|_| format!("{name} {value}: expected numbers\n\n{HELP}").into())
    };
    for pair in words.chunks(2) {
        match pair {
            [name, value] if name == "--sizes" => sizes = numbers(name, value)?,
            [name, value] if name == "--caches" => caches = numbers(name, value)?,
            [name, value] if name == "--policies" => policies = value.split(',').map(str::to_owned).collect(),
            _ => return Err(format!("{} is not understood, or needs a value\n\n{HELP}", pair[0]).into()),
        }
    }
    println!("bytes a block:                charged       used   resident    used off, resident off");
    let (mut good, mut rows) = (0, 0);
    for name in &policies {
        for (kind, blocks) in sizes.iter().map(|size| ("policy", size)).chain(caches.iter().map(|size| ("cache", size)))
        {
            let row = [NAME, ROW, kind, name, &blocks.to_string()];
            let status = std::process::Command::new(std::env::current_exe()?).args(row).status()?;
            (good, rows) = (good + usize::from(status.success()), rows + 1);
        }
    }
    println!("{good} of {rows} charges are right");
    Ok(rows > 0 && good == rows)
}

/// Measures one row.
fn one(kind: &str, name: &str, blocks: &str) -> Result<bool, Failure> {
    let blocks = blocks.parse()?;
    match kind {
        "policy" => policy_row(name, blocks),
        _ => tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(cache_row(name, blocks)),
    }
}

/// Runs the subcommand with the arguments after its name.
pub fn main(words: &[String]) -> ExitCode {
    if words.iter().any(|word| ["--help", "-h"].contains(&word.as_str())) {
        println!("{HELP}");
        return ExitCode::SUCCESS;
    }
    let measured = match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [ROW, kind, name, blocks] => one(kind, name, blocks),
        _ => measure(words),
    };
    match measured {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("cache-memory: error: {error}");
            ExitCode::from(2)
        }
    }
}
