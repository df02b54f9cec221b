//! Shows the effect of admitting an object only at its second request: the number of hits that this costs, and the
//! number of writes that it saves, in a replay of the workload of the Hummingbird paper.
//!
//! `cargo run --release -p nectary-bench --example admission -- [SCALE [REINSERT]]` replays the workload of `bench
//! store --seed table4` on a device in memory at several disk sizes, once with all objects admitted, and once with only
//! those that are requested again. Nothing is timed; the length of every object is compared. `hits` is the share of all
//! hits in the requests, and `memory` that of hits from memory. `byte hits` is the share of hits in the requested
//! bytes. `written` includes headers, padding and checkpoints.

use std::sync::Arc;

use bytes::Bytes;
use nectary_bench::workload::{ProxyRequest, RequestGenerator, WorkloadLaws, content};
use nectary_block::{MemoryDevice, SharedDevice};
use nectary_store::{
    AdmissionOptions, AdmitRule, CreateOptions, KeyRef, OpenOptions, Store, StoreErrorKind, StoreStat,
};

type Failure = Box<dyn std::error::Error>;

/// The memory in the paper, at scale 1, in bytes.
const MEMORY_BYTES: f64 = 256.0 * 1048576.0;
/// The disk sizes, at scale 1, in bytes.
const DISKS_BYTES: [f64; 4] = [1e9, 2e9, 4e9, 8e9];

async fn put(store: &Store, request: &ProxyRequest) -> Result<(), Failure> {
    let (name, body) = (request.key(), Bytes::from(content::body(request.object, request.bytes)));
    for _ in 0..8 {
        match store.put(KeyRef::new(name.as_bytes(), b""), Bytes::new(), body.clone()).await {
            Err(error) if error.kind == StoreErrorKind::Busy => drop(store.sync().await?),
            put => return Ok(put.map(drop)?),
        }
    }
    Ok(())
}

/// Replays the requests; returns the store's state at the end, and the bytes of the hits.
async fn replay(options: OpenOptions, requests: &[ProxyRequest], disk_bytes: u64) -> Result<(StoreStat, u64), Failure> {
    let device: SharedDevice = Arc::new(MemoryDevice::new(disk_bytes));
    Store::create(device.clone(), &CreateOptions::default()).await?;
    let store = Store::open(device, options).await?;
    let mut hit_bytes = 0;
    for request in requests {
        match store.get(KeyRef::new(request.key().as_bytes(), b"")).await {
            Some(object) if object.body_bytes() == u64::from(request.bytes) => hit_bytes += object.body_bytes(),
            Some(_) => return Err(format!("object {} came back with another length", request.object).into()),
            None => put(&store, request).await?,
        }
    }
    store.sync().await?;
    Ok((store.stat(), hit_bytes))
}

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let scale: f64 = arguments.next().map_or(Ok(1.0 / 32.0), |text| text.parse())?;
    let reinsert_percent: u32 = arguments.next().map_or(Ok(0), |text| text.parse())?;
    let requests: Vec<ProxyRequest> = RequestGenerator::new(WorkloadLaws::seed_trace(1, scale)).collect();
    let memory_bytes = (MEMORY_BYTES * scale) as u64;
    let asked_bytes: u64 = requests.iter().map(|request| u64::from(request.bytes)).sum();
    println!(
        "scale {scale}, {} requests of {asked_bytes} bytes, {memory_bytes} of memory, re-insertion {reinsert_percent} %",
        requests.len()
    );
    println!(
        "{:>10} {:<16} {:>6} {:>7} {:>9} {:>12} {:>9} {:>9} {:>7}",
        "disk MB", "admitted", "hits", "memory", "byte hits", "written MB", "of all", "first", "later"
    );
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    for disk in DISKS_BYTES {
        let disk_bytes = (disk * scale) as u64 / 4096 * 4096;
        let mut all_written = None;
        for rule in [AdmitRule::All, AdmitRule::SecondRequest] {
            let admission = AdmissionOptions { rule, ..AdmissionOptions::default() };
            let options = OpenOptions { memory_bytes, reinsert_percent, admission, ..OpenOptions::default() };
            let (stat, hit_bytes) = runtime.block_on(replay(options, &requests, disk_bytes))?;
            let counts = &stat.counts;
            let written = (counts.append_bytes + counts.metadata_bytes) as f64;
            let all = *all_written.get_or_insert(written);
            println!(
                "{:>10.0} {:<16} {:>6.3} {:>7.3} {:>9.3} {:>12.1} {:>9.3} {:>9} {:>7}",
                disk_bytes as f64 / 1e6,
                rule.name(),
                (counts.hits_memory + counts.hits_disk) as f64 / requests.len() as f64,
                counts.hits_memory as f64 / requests.len() as f64,
                hit_bytes as f64 / asked_bytes as f64,
                written / 1e6,
                written / all,
                counts.unadmitted_first,
                counts.admitted_later
            );
        }
    }
    Ok(())
}
