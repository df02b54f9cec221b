//! Gets that are answered between two shards, while an index is loaded.
//!
//! After a crash, recovery looks for the fragments of an object and loads their shards of the index from the checkpoint.
//! The log is replayed for these shards later, one after the other: until then, such a shard leads to versions that were
//! replaced after the checkpoint. Meanwhile gets are answered whose own shard is complete, and they read neighbours of
//! any shard. The loader wakes these gets between two shards. Here, a get goes on within its wake-up, so that each shard
//! is requested exactly then; with threads, chance would have to hit microseconds. All runs on one thread in virtual
//! time, so a seed repeats a run.
//!
//! Owns: the store, these gets, and what is found during and after the loading.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use nectary_block::MemoryDevice;
use nectary_store::planted::{Bug, plant};
use nectary_store::{
    BackgroundRuntime, ClusterRead, CreateOptions, FillRole, IndexLoading, KeyRef, OpenOptions, Store,
};

use crate::late::in_virtual_time;
use crate::planted::{BugCase, CaughtBug};
use crate::random::SimulationRandom;
use crate::store::crash_check::read;
use crate::store::workload::{SEGMENT_BYTES, open_options};
use crate::store::{body, primary, variant};

const STORE_BYTES: u64 = 8 << 20;
/// The smallest number of short objects, and how many more there may be. They take a part of the ring, so all are there.
const KEYS_MIN: u64 = 300;
const KEYS_MORE: u64 = 700;
/// The largest length of a short body, in bytes.
const SHORT_BYTES_MAX: u64 = 400;
/// The length of a long body, in bytes. It has so many fragments that most shards have one.
const LONG_BYTES: usize = 3 << 19;
/// The largest number of differences that are described.
const DIFFERENCES_MAX: usize = 10;

/// The results of many runs.
#[derive(Debug, Default, Clone)]
pub struct ShardReport {
    /// Runs done.
    pub runs: u64,
    /// Gets that were answered before the whole index was loaded.
    pub early: u64,
    /// Objects that entered memory as neighbours, in all runs.
    pub neighbours: u64,
    /// Gets with the right answer.
    pub hits: u64,
    /// The number of wrong answers.
    pub difference_count: u64,
    /// Descriptions of the first of them.
    pub differences: Vec<String>,
}

impl ShardReport {
    fn count(&mut self, key: u32, version: u32, found: Option<Answer>, place: &str) {
        let is_right = |(metadata, bytes): &Answer| {
            metadata == &version.to_le_bytes() && bytes == &body(0, key, version, length_of(key, version))
        };
        if found.as_ref().is_some_and(is_right) {
            self.hits += 1;
            return;
        }
        self.difference_count += 1;
        if self.differences.len() < DIFFERENCES_MAX {
            let found = found.map(|(metadata, bytes)| format!("{} bytes with metadata {metadata:?}", bytes.len()));
            self.differences.push(format!("{place}: key {key} is {found:?}, not version {version}"));
        }
    }
}

/// Runs the seeds from `seed` on; `progress` gets the results after each.
pub fn run(seed: u64, runs: u64, mut progress: impl FnMut(&ShardReport)) -> ShardReport {
    let mut report = ShardReport::default();
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

/// The metadata and the body of an object.
type Answer = (Vec<u8>, Vec<u8>);

fn length_of(key: u32, version: u32) -> usize {
    SimulationRandom::new(u64::from(key) << 32 | u64::from(version)).below(SHORT_BYTES_MAX) as usize
}

fn options() -> OpenOptions {
    OpenOptions {
        memory_bytes: 32 << 20,
        warm_up: false,
        reinsert_percent: 0,
        rewrite_percent: 0,
        cluster_read: ClusterRead::Cluster,
        index_loading: IndexLoading::Shards,
        device_deadline: None,
        ..open_options(BackgroundRuntime::Caller)
    }
}

async fn put(store: &Store, key: u32, version: u32) {
    let (name, bytes) = (primary(key), body(0, key, version, length_of(key, version)));
    let put = store.put(KeyRef::new(&name, variant(key)), version.to_le_bytes().to_vec().into(), bytes.into());
    put.await.expect("the queue has room");
}

/// Makes a store that was killed. The last versions of `replaced` are only in the log after the checkpoint, as is the
/// head of a long object; its fragments are before.
async fn killed(seed: u64, keys: u32, replaced: &[u32]) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(STORE_BYTES));
    let create =
        CreateOptions { size_bytes: STORE_BYTES, segment_bytes: Some(SEGMENT_BYTES), seed: Some(seed), force: true };
    Store::create(device.clone(), &create).await.expect("a store is made");
    let store = Store::open(device.clone(), options()).await.expect("a new store opens");
    for key in 0..keys {
        put(&store, key, 1).await;
    }
    let FillRole::Leader(mut fill) = store.begin_fill(KeyRef::new(b"long", b""), None) else {
        unreachable!("no other")
    };
    assert!(fill.start(b"", "long".into(), Some(LONG_BYTES as u64)));
    fill.write(body(0, keys, 1, LONG_BYTES).into()).await.expect("the device works");
    store.sync().await.expect("the device works");
    store.checkpoint().await.expect("the device works");
    for &key in replaced {
        put(&store, key, 2).await;
    }
    fill.finish().await.expect("the device works");
    store.sync().await.expect("the device works");
    device
}

type Get = Pin<Box<dyn Future<Output = Option<Answer>> + Send>>;

/// A get that goes on whenever it is woken, within the call that wakes it.
struct EagerGet {
    key: u32,
    version: u32,
    get: Mutex<Option<Get>>,
    answer: Mutex<Option<Option<Answer>>>,
    /// Whether the answer came within a wake-up.
    is_early: AtomicBool,
}

impl Wake for EagerGet {
    fn wake(self: Arc<Self>) {
        if self.go_on() {
            self.is_early.store(true, Ordering::Relaxed);
        }
    }
}

impl EagerGet {
    /// Polls the get; returns whether this ended it. A wake-up during a poll is left to the next poll.
    fn go_on(self: &Arc<Self>) -> bool {
        let Ok(mut slot) = self.get.try_lock() else { return false };
        let Some(get) = slot.as_mut() else { return false };
        let waker = Waker::from(Arc::clone(self));
        let Poll::Ready(answer) = get.as_mut().poll(&mut Context::from_waker(&waker)) else { return false };
        *slot = None;
        *self.answer.lock().expect("no poll panics") = Some(answer);
        true
    }
}

async fn one(seed: u64, report: &mut ShardReport) {
    let mut random = SimulationRandom::new(seed);
    let keys = (KEYS_MIN + random.below(KEYS_MORE)) as u32;
    let percent = 20 + random.below(60);
    let (replaced, kept): (Vec<u32>, Vec<u32>) = (0..keys).partition(|_| random.chance(percent));
    let device = killed(seed, keys, &replaced).await;
    let store = Store::open(device, options()).await.expect("a killed store opens");
    let gets: Vec<Arc<EagerGet>> =
        kept.iter().filter(|_| random.chance(50)).map(|&key| eager(&store, key, 1)).collect();
    // Nothing is loaded before this function waits for the first time.
    for get in &gets {
        get.go_on();
    }
    while store.stat().index_loading || gets.iter().any(|get| get.get.lock().is_ok_and(|get| get.is_some())) {
        tokio::time::sleep(Duration::from_millis(1)).await;
        for get in &gets {
            get.go_on();
        }
    }
    for get in &gets {
        let answer = get.answer.lock().expect("no poll panics").take().flatten();
        report.early += u64::from(get.is_early.load(Ordering::Relaxed));
        report.count(get.key, get.version, answer, &format!("seed {seed}, while the index is loaded"));
    }
    report.neighbours += store.stat().counts.neighbours_taken;
    for (keys, version) in [(&replaced, 2), (&kept, 1)] {
        for &key in keys {
            let found = read(&store, KeyRef::new(&primary(key), variant(key))).await;
            report.count(key, version, found, &format!("seed {seed}, when the index is loaded"));
        }
    }
    let long = read(&store, KeyRef::new(b"long", b"")).await;
    if long.is_none_or(|(_, bytes)| bytes != body(0, keys, 1, LONG_BYTES)) {
        report.difference_count += 1;
        report.differences.push(format!("seed {seed}: the long object is missing or wrong"));
    }
}

fn eager(store: &Store, key: u32, version: u32) -> Arc<EagerGet> {
    let store = store.clone();
    let get = tokio::task::unconstrained(async move {
        let name = primary(key);
        read(&store, KeyRef::new(&name, variant(key))).await
    });
    let get = Mutex::new(Some(Box::pin(get) as Pin<Box<_>>));
    Arc::new(EagerGet { key, version, get, answer: Mutex::default(), is_early: AtomicBool::new(false) })
}
