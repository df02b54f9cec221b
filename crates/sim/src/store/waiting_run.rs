//! Purges of objects that wait to be written, while the ring goes on.
//!
//! Bursts of objects are put that take several cycles of the ring, on a device whose operations take time. While they
//! wait, some of them are purged. So a purge finds objects whose name was noted long before they are written; if the
//! store forgets such a name, it counts the object as absent, or forgets the purge too early. A purge that returned holds
//! for ever: after each burst, and after a crash, every key is compared with the model. All runs on one thread in virtual
//! time, so a seed repeats a run.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use nectary_block::{MemoryDevice, SharedDevice};
use nectary_store::planted::{Bug, plant};
use nectary_store::{BackgroundRuntime, CreateOptions, KeyRef, OpenOptions, Store};

use crate::late::{DetachedFilter, LateFilter, OperationDelays, UnderWay, in_virtual_time};
use crate::planted::{BugCase, CaughtBug};
use crate::random::SimulationRandom;
use crate::store::crash_check::read;
use crate::store::workload::{SEGMENT_BYTES, STORE_BYTES, open_options};
use crate::store::{body, primary, variant};

/// The number of bursts of a run.
const BURSTS: u64 = 4;
/// The smallest and the largest size of a burst, in bytes: up to four cycles of the ring, as much as may wait.
const BURST_BYTES: (u64, u64) = (64 << 10, 1800 << 10);
/// The largest length of a body, in bytes.
const BODY_BYTES_MAX: u64 = 4096;
/// The largest number of objects that are purged while a burst waits.
const PURGES_MAX: u64 = 60;
/// The largest number of differences that are described.
const DIFFERENCES_MAX: usize = 10;

/// The results of many runs.
#[derive(Debug, Default, Clone)]
pub struct WaitingReport {
    /// Runs done.
    pub runs: u64,
    /// Objects put.
    pub puts: u64,
    /// Purges that returned.
    pub purges: u64,
    /// Purges that began when their object waited to be written, and a cycle of the ring had been written since its put.
    pub purged_late: u64,
    /// Purges of objects that were absent.
    pub absent: u64,
    /// Gets that hit, with the right bytes.
    pub hits: u64,
    /// The number of answers that differ from the model's.
    pub difference_count: u64,
    /// Descriptions of the first of them.
    pub differences: Vec<String>,
}

/// Runs the seeds from `seed` on; `progress` gets the results after each.
pub fn run(seed: u64, runs: u64, mut progress: impl FnMut(&WaitingReport)) -> WaitingReport {
    let mut report = WaitingReport::default();
    for seed in seed..seed + runs {
        in_virtual_time(one(seed, &mut report));
        report.runs += 1;
        progress(&report);
    }
    report
}

/// Runs one seed with a planted bug.
pub fn replay_planted(bug: Bug, seed: u64) -> Option<CaughtBug> {
    plant(Some(bug));
    let report = run(seed, 1, |_| {});
    plant(None);
    let broken = report.differences.first()?.clone();
    Some(CaughtBug { case: BugCase::of_seed(seed), broken, account: format!("{report:?}") })
}

/// What the model knows of a key: the length of its body, and whether it was purged.
#[derive(Debug, Clone, Copy)]
struct KnownObject {
    length: usize,
    /// The segment that was being written when it was put.
    head: u64,
    is_purged: bool,
}

async fn one(seed: u64, report: &mut WaitingReport) {
    let mut random = SimulationRandom::new(seed);
    let memory = Arc::new(MemoryDevice::new(STORE_BYTES));
    let create =
        CreateOptions { size_bytes: STORE_BYTES, segment_bytes: Some(SEGMENT_BYTES), seed: Some(seed), force: true };
    Store::create(memory.clone(), &create).await.expect("a store is made");
    let options = OpenOptions {
        memory_bytes: 24 << 20,
        reinsert_percent: [0, 50][random.below(2) as usize],
        warm_up: random.chance(50),
        device_deadline: None,
        ..open_options(BackgroundRuntime::Caller)
    };
    let mut known: BTreeMap<u32, KnownObject> = BTreeMap::new();
    for number in 0..BURSTS {
        let under_way = UnderWay::default();
        let late = LateFilter::by(memory.clone(), OperationDelays::short(random.bits()), &under_way);
        let device: SharedDevice = Arc::new(DetachedFilter::new(Arc::new(late), &under_way));
        let store = match Store::open(device, options.clone()).await {
            Ok(store) => store,
            Err(error) => return differs(report, format!("seed {seed}, burst {number}: it does not open: {error}")),
        };
        compare(&store, &known, &format!("seed {seed}, before burst {number}"), report).await;
        while !store.stat().names_known {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        burst(&store, &mut known, &mut random, report).await;
        compare(&store, &known, &format!("seed {seed}, after burst {number}"), report).await;
        // Half of the lives end at once, the others after a sync; then nothing is left that a crash may lose.
        if random.chance(50)
            && let Err(error) = store.sync().await
        {
            differs(report, format!("seed {seed}, burst {number}: it does not sync: {error}"));
        }
        report.absent += store.stat().counts.purges_absent;
        drop(store);
        under_way.settle(None).await;
    }
}

/// Puts objects, and purges some of them while they wait.
async fn burst(
    store: &Store,
    known: &mut BTreeMap<u32, KnownObject>,
    random: &mut SimulationRandom,
    report: &mut WaitingReport,
) {
    let first = known.last_key_value().map_or(0, |(&key, _)| key + 1);
    let mut sequences = Vec::new();
    let mut left = (BURST_BYTES.0 + random.below(BURST_BYTES.1 - BURST_BYTES.0)) as i64;
    for key in first.. {
        let length = random.below(BODY_BYTES_MAX) as usize;
        left -= length as i64;
        let (name, head) = (primary(key), store.stat().head_epoch);
        let metadata = key.to_le_bytes().to_vec();
        let put = store.put(KeyRef::new(&name, variant(key)), metadata.into(), body(0, key, 0, length).into()).await;
        // The queue is full: nothing more of this burst waits.
        let Ok(sequence) = put else { break };
        known.insert(key, KnownObject { length, head, is_purged: false });
        sequences.push((key, sequence));
        report.puts += 1;
        if left < 0 {
            break;
        }
    }
    for _ in 0..random.below(PURGES_MAX) {
        let written = store.sequences().written;
        let waiting = sequences.partition_point(|(_, sequence)| *sequence <= written);
        let count = (sequences.len() - waiting) as u64;
        let Some(&(key, _)) = sequences.get(waiting + random.below(count) as usize) else { break };
        let stat = store.stat();
        let entry = known.get_mut(&key).expect("it was put");
        report.purged_late += u64::from(stat.head_epoch >= entry.head + stat.segment_count);
        if store.purge_key(&primary(key)).await.is_ok() {
            entry.is_purged = true;
            report.purges += 1;
        }
        tokio::time::sleep(Duration::from_millis(random.below(8))).await;
    }
    // Wait until all is written. Nothing is requested before, because a get makes the store forget a purged object.
    while store.sequences().written < store.sequences().last && store.stat().stopped.is_none() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn differs(report: &mut WaitingReport, difference: String) {
    report.difference_count += 1;
    if report.differences.len() < DIFFERENCES_MAX {
        report.differences.push(difference);
    }
}

/// Gets every key: a purged one must miss, another one may hit, with its bytes.
async fn compare(store: &Store, known: &BTreeMap<u32, KnownObject>, place: &str, report: &mut WaitingReport) {
    for (&key, entry) in known {
        let name = primary(key);
        let Some((metadata, bytes)) = read(store, KeyRef::new(&name, variant(key))).await else { continue };
        if entry.is_purged {
            differs(report, format!("{place}: key {key} is found although its purge returned"));
        } else if metadata != key.to_le_bytes() || bytes != body(0, key, 0, entry.length) {
            differs(report, format!("{place}: key {key} has {} bytes that nobody put", bytes.len()));
        } else {
            report.hits += 1;
        }
    }
}
