//! Shows the number of reads and I/Os per request that locality hints and cluster reads save, in a replay of the
//! workload of the Hummingbird paper.
//!
//! `cargo run --release -p nectary-bench --example hints -- [SCALE [EMBEDDED [WAY]]]` replays the workload of `bench
//! store --seed table4` on a 4 GB device in memory, once for each way of packing and reading. Nothing is timed: the
//! time of a disk is computed from the I/Os and bytes (10 ms an I/O and 20 MB/s, about a disk of 1999). Every byte is
//! compared.

use std::sync::Arc;

use bytes::Bytes;
use nectary_bench::workload::{ProxyRequest, RequestGenerator, WorkloadLaws, content};
use nectary_block::{MemoryDevice, SharedDevice};
use nectary_store::{ClusterRead, CreateOptions, KeyRef, OpenOptions, Store, StoreErrorKind, StoreStat};

type Failure = Box<dyn std::error::Error>;

/// The sizes of disk and memory in the replayed row of the paper's table 4, at scale 1, in bytes.
const DISK_BYTES: f64 = 4e9;
const MEMORY_BYTES: f64 = 256.0 * 1048576.0;
/// The time of an I/O, and the time to transfer a byte, in milliseconds.
const IO_MS: f64 = 10.0;
const BYTE_MS: f64 = 1.0 / 20_000.0;
/// The time that objects wait in memory before they are written, in milliseconds of the disk's time.
const WRITE_DELAY_MS: f64 = 5_000.0;

/// A way of packing objects and reading them.
struct PackingMode {
    name: &'static str,
    hints: bool,
    options: OpenOptions,
}

fn ways(memory_bytes: u64) -> Vec<PackingMode> {
    let way = |name, hints, cluster_read, cluster_kib: u64| PackingMode {
        name,
        hints,
        options: OpenOptions {
            memory_bytes,
            cluster_read,
            cluster_bytes: cluster_kib << 10,
            warm_up: false,
            ..OpenOptions::default()
        },
    };
    let mut ways = vec![
        way("objects alone", false, ClusterRead::Object, 0),
        way("no hints, auto", false, ClusterRead::Auto, 64),
        way("no hints, clusters", false, ClusterRead::Cluster, 64),
        way("hints, objects", true, ClusterRead::Object, 64),
        way("hints, auto, 16 KiB", true, ClusterRead::Auto, 16),
        way("hints, auto, 32 KiB", true, ClusterRead::Auto, 32),
        way("hints, auto", true, ClusterRead::Auto, 64),
        way("hints, auto, 128 KiB", true, ClusterRead::Auto, 128),
        way("hints, auto, 256 KiB", true, ClusterRead::Auto, 256),
        way("hints, clusters", true, ClusterRead::Cluster, 64),
    ];
    let mut apart = way("hints, auto, nothing rewritten", true, ClusterRead::Auto, 64);
    apart.options.rewrite_percent = 0;
    ways.push(apart);
    ways
}

/// The disk's time for the work of the store so far, in milliseconds.
fn disk_ms(stat: &StoreStat) -> f64 {
    let counts = &stat.counts;
    let ios = counts.device_reads + counts.appends;
    ios as f64 * IO_MS + (counts.device_read_bytes + counts.append_bytes) as f64 * BYTE_MS
}

/// Reads a whole object and compares it. An object that cannot be read to its end counts as right, because the ring may
/// overwrite it meanwhile.
async fn is_right(object: &nectary_store::StoredObject, request: &ProxyRequest) -> bool {
    let mut reader = object.reader(0..object.body_bytes());
    let mut pieces = Vec::new();
    while let Some(Ok(piece)) = reader.next().await {
        pieces.push(piece);
    }
    let bytes: usize = pieces.iter().map(Bytes::len).sum();
    bytes as u64 != object.body_bytes() || content::first_wrong(request.object, request.bytes, &pieces).is_none()
}

async fn put(store: &Store, request: &ProxyRequest) -> Result<(), Failure> {
    let name = request.key();
    let body = Bytes::from(content::body(request.object, request.bytes));
    for _ in 0..8 {
        match store.put(KeyRef::new(name.as_bytes(), b""), Bytes::new(), body.clone()).await {
            Err(error) if error.kind == StoreErrorKind::Busy => drop(store.sync().await?),
            put => return Ok(put.map(drop)?),
        }
    }
    Ok(())
}

async fn replay(way: &PackingMode, requests: &[ProxyRequest], disk_bytes: u64) -> Result<StoreStat, Failure> {
    let device: SharedDevice = Arc::new(MemoryDevice::new(disk_bytes));
    Store::create(device.clone(), &CreateOptions::default()).await?;
    let store = Store::open(device, way.options.clone()).await?;
    let mut written_ms = 0.0;
    for request in requests {
        if let Some(page) = request.page_key().filter(|_| way.hints) {
            store.collocate(request.key().as_bytes(), page.as_bytes());
        }
        match store.get(KeyRef::new(request.key().as_bytes(), b"")).await {
            Some(object) if is_right(&object, request).await => {}
            Some(_) => return Err(format!("object {} came back with wrong bytes", request.object).into()),
            None => put(&store, request).await?,
        }
        if disk_ms(&store.stat()) - written_ms >= WRITE_DELAY_MS {
            store.sync().await?;
            written_ms = disk_ms(&store.stat());
        }
    }
    store.sync().await?;
    Ok(store.stat())
}

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let scale: f64 = arguments.next().map_or(Ok(1.0 / 32.0), |text| text.parse())?;
    let embedded_mean: f64 = arguments.next().map_or(Ok(3.0), |text| text.parse())?;
    let only = arguments.next();
    let laws = WorkloadLaws { embedded_mean, ..WorkloadLaws::seed_trace(1, scale) };
    let requests: Vec<ProxyRequest> = RequestGenerator::new(laws).collect();
    let (disk_bytes, memory_bytes) = ((DISK_BYTES * scale) as u64 / 4096 * 4096, (MEMORY_BYTES * scale) as u64);
    println!(
        "scale {scale}, {} requests, {embedded_mean} embedded a page, {disk_bytes} bytes of disk, {memory_bytes} of memory",
        requests.len()
    );
    println!(
        "{:<30} {:>6} {:>6} {:>8} {:>8} {:>8} {:>7} {:>7} {:>7} {:>7} {:>7} {:>8}",
        "",
        "hits",
        "memory",
        "reads/rq",
        "I/Os/rq",
        "KiB/read",
        "taken",
        "hit",
        "tied",
        "misplaced",
        "rewritten",
        "ms/rq"
    );
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    for way in ways(memory_bytes).iter().filter(|way| only.as_ref().is_none_or(|only| way.name == only)) {
        let stat = runtime.block_on(replay(way, &requests, disk_bytes))?;
        let (counts, count) = (&stat.counts, requests.len() as f64);
        println!(
            "{:<30} {:>6.3} {:>6.3} {:>8.4} {:>8.4} {:>8.1} {:>7} {:>7} {:>7} {:>7} {:>7} {:>8.3}",
            way.name,
            (counts.hits_memory + counts.hits_disk) as f64 / count,
            counts.hits_memory as f64 / count,
            counts.device_reads as f64 / count,
            (counts.device_reads + counts.appends) as f64 / count,
            counts.device_read_bytes as f64 / 1024.0 / counts.device_reads.max(1) as f64,
            counts.neighbours_taken,
            counts.neighbours_hit,
            counts.objects_tied,
            counts.misplaced,
            counts.regrouped + counts.kept,
            disk_ms(&stat) / count,
        );
    }
    Ok(())
}
