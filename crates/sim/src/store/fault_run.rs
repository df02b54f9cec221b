//! A store on a device with a place that cannot be read, or on one that is silent at times.
//!
//! In half of the runs, a range of the segments stays unreadable for the whole run: what is written there succeeds, but
//! no read does. In the other half, the device is silent for some time, again and again: it answers no read, write or
//! flush, or only some of these. A silent write has taken effect at once, or takes effect when the device answers again,
//! or never, if the process ended before. All runs on one thread in virtual time, so a seed repeats a run.
//!
//! | promise | the check |
//! |---|---|
//! | an object that is replaced or purged is not found, also after the next open | each answer is compared with `expectation` |
//! | a read that fails is an error, not a miss | a get that must hit hits, or is an error |
//! | what cannot be read costs nothing else | a get is an error only if a read failed meanwhile, or the device was silent |
//! | nobody waits for a silent device | no call takes longer than `CALL_MAX` |
//! | all goes on when it answers | then a sync succeeds within `RECOVERY_MAX` |
//!
//! Owns: the faults, the operations between them, and these checks.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nectary_block::{DeviceErrorKind, DeviceOperation, DeviceRequest, Filter, IoFuture, MemoryDevice, SharedDevice};
use nectary_store::planted::{Bug, plant};
use nectary_store::{BackgroundRuntime, CreateOptions, KeyRef, OpenOptions, Store};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::crash::CrashModel;
use crate::late::{DetachedFilter, LateFilter, OperationDelays, UnderWay, in_virtual_time};
use crate::planted::{BugCase, CaughtBug};
use crate::random::SimulationRandom;
use crate::store::crash_check::{CrashVerdict, compare};
use crate::store::expectation::{RecoveredStore, StoreEvent, StoreExpectation};
use crate::store::unreadable::ImageAreas;
use crate::store::workload::{KEYS, SEGMENT_BYTES, STORE_BYTES, open_options};
use crate::store::{body, primary, variant};

/// The number of lives of a store, and of operations of each.
const LIVES: u64 = 4;
const OPERATIONS: (u64, u64) = (60, 200);
/// The deadline of the device's operations.
const DEADLINE: Duration = Duration::from_millis(100);
/// The longest time for which a call may take.
const CALL_MAX: Duration = Duration::from_secs(3);
/// The longest time after a silence until a sync must succeed, and until no read may fail.
const RECOVERY_MAX: Duration = Duration::from_secs(5);
/// The largest number of violations that are described.
const VIOLATIONS_MAX: usize = 10;
/// The kinds of operations that may be silent.
const KINDS: [DeviceOperation; 3] = [DeviceOperation::Read, DeviceOperation::Write, DeviceOperation::Flush];

/// The results of many runs.
#[derive(Debug, Default, Clone)]
pub struct FaultReport {
    /// Runs done.
    pub runs: u64,
    /// Operations of the client.
    pub operations: u64,
    /// Silences.
    pub silences: u64,
    /// Reads that failed because of their place.
    pub failed_reads: u64,
    /// Gets that hit.
    pub hits: u64,
    /// Gets that had to hit.
    pub demanded: u64,
    /// Gets that were errors.
    pub errors: u64,
    /// Purges that returned, and that failed.
    pub purges: [u64; 2],
    /// Lives that ended with a clean stop.
    pub stopped: u64,
    /// The number of broken promises.
    pub violation_count: u64,
    /// Descriptions of the first broken promises.
    pub violations: Vec<String>,
}

/// Runs the seeds from `seed` on; `progress` gets the results after each.
pub fn run(seed: u64, runs: u64, mut progress: impl FnMut(&FaultReport)) -> FaultReport {
    let mut report = FaultReport::default();
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
    let broken = report.violations.first()?.clone();
    Some(CaughtBug { case: BugCase::of_seed(seed), broken, account: format!("{report:?}") })
}

/// The faults of a device.
#[derive(Clone)]
struct DeviceFaults {
    /// The bytes that cannot be read.
    unreadable: Range<u64>,
    failed_reads: Arc<AtomicU64>,
    /// The kinds of operations that are not answered now.
    silent: watch::Sender<Vec<DeviceOperation>>,
    random: Arc<std::sync::Mutex<SimulationRandom>>,
}

struct DeviceFaultFilter {
    inner: SharedDevice,
    faults: DeviceFaults,
}

impl Filter for DeviceFaultFilter {
    fn inner(&self) -> &SharedDevice {
        &self.inner
    }

    fn spec(&self) -> String {
        self.inner.spec()
    }

    fn around<T: Send + 'static>(
        &self,
        request: DeviceRequest,
        operation: impl FnOnce(&SharedDevice) -> IoFuture<T> + Send + 'static,
    ) -> IoFuture<T> {
        let DeviceRequest { offset, length, .. } = request;
        let unreadable = &self.faults.unreadable;
        if request.operation == DeviceOperation::Read && offset < unreadable.end && unreadable.start < offset + length {
            self.faults.failed_reads.fetch_add(1, Ordering::Relaxed);
            let error = request.error(DeviceErrorKind::Io, || self.spec(), "this place cannot be read".to_owned());
            return Box::pin(std::future::ready(Err(error)));
        }
        let (inner, mut silent) = (self.inner.clone(), self.faults.silent.subscribe());
        let takes_effect = self.faults.random.lock().expect("no draw panics").chance(50);
        Box::pin(async move {
            let is_silent = |silent: &Vec<DeviceOperation>| silent.contains(&request.operation);
            if takes_effect {
                let result = operation(&inner).await;
                let _ = silent.wait_for(|silent| !is_silent(silent)).await;
                return result;
            }
            let _ = silent.wait_for(|silent| !is_silent(silent)).await;
            operation(&inner).await
        })
    }
}

/// A store, its device, and what is known of it.
struct StoreFaultWorld {
    seed: u64,
    random: SimulationRandom,
    memory: Arc<MemoryDevice>,
    under_way: UnderWay,
    faults: DeviceFaults,
    /// Whether the device is silent at times, and no place is unreadable.
    is_silence: bool,
    expectation: StoreExpectation,
    next_version: u32,
    /// When the last silence ended.
    answers_since: Instant,
}

async fn one(seed: u64, report: &mut FaultReport) {
    let mut random = SimulationRandom::new(seed);
    let memory = Arc::new(MemoryDevice::new(STORE_BYTES));
    let create =
        CreateOptions { size_bytes: STORE_BYTES, segment_bytes: Some(SEGMENT_BYTES), seed: Some(seed), force: true };
    Store::create(memory.clone(), &create).await.expect("a store is made");
    let is_silence = seed.is_multiple_of(2);
    let segments = ImageAreas::of(&memory.image()).segments;
    let start = segments.start + random.below((segments.end - segments.start) / 4096) * 4096;
    let unreadable = if is_silence { 0..0 } else { start..start + 4096 * (1 + random.below(12)) };
    let faults = DeviceFaults {
        unreadable,
        failed_reads: Arc::default(),
        silent: watch::Sender::new(Vec::new()),
        random: Arc::new(std::sync::Mutex::new(SimulationRandom::new(random.bits()))),
    };
    let mut world = StoreFaultWorld {
        seed,
        random,
        memory,
        under_way: UnderWay::default(),
        faults,
        is_silence,
        expectation: StoreExpectation::default(),
        next_version: 0,
        answers_since: Instant::now(),
    };
    let before = report.violation_count;
    for life in 0..LIVES {
        world.live(life, report).await;
        if report.violation_count > before {
            break;
        }
    }
    report.failed_reads += world.faults.failed_reads.load(Ordering::Relaxed);
}

impl StoreFaultWorld {
    fn breaks(&self, report: &mut FaultReport, violation: String) {
        report.violation_count += 1;
        if report.violations.len() < VIOLATIONS_MAX {
            report.violations.push(format!("seed {}: {violation}", self.seed));
        }
    }

    /// Opens the store, does operations, and ends the store.
    async fn live(&mut self, life: u64, report: &mut FaultReport) {
        self.under_way = UnderWay::default();
        let late = LateFilter::by(self.memory.clone(), OperationDelays::short(self.random.bits()), &self.under_way);
        let faulty = DeviceFaultFilter { inner: Arc::new(late), faults: self.faults.clone() };
        let device: SharedDevice = Arc::new(DetachedFilter::new(Arc::new(faulty), &self.under_way));
        let options = OpenOptions {
            objects_bytes_max: Some(48 << 10),
            device_deadline: Some(DEADLINE),
            warm_up: self.random.chance(50),
            ..open_options(BackgroundRuntime::Caller)
        };
        let store = match Store::open(device, options).await {
            Ok(store) => store,
            Err(error) => return self.breaks(report, format!("life {life}: the store does not open: {error}")),
        };
        self.expectation.tell(&StoreEvent::Reopened { recovered: store.sequences().written.0 });
        if self.is_silence {
            let mut verdict = CrashVerdict::default();
            let mut found = Vec::new();
            let expectation = &self.expectation;
            compare(&store, CrashModel::Process, expectation, &mut verdict, |key, version| found.push((key, version)))
                .await;
            report.hits += u64::from(verdict.live);
            report.demanded += u64::from(verdict.demanded);
            for violation in verdict.violations {
                self.breaks(report, format!("life {life}, opened: {violation}"));
            }
            for (key, version) in found {
                self.expectation.tell(&StoreEvent::Found { key, version });
            }
        } else {
            for key in 0..KEYS {
                self.get(&store, key, report).await;
            }
        }
        let operations = OPERATIONS.0 + self.random.below(OPERATIONS.1 - OPERATIONS.0);
        let mut silent_for = 0;
        for _ in 0..operations {
            if self.is_silence && silent_for == 0 && self.random.chance(5) {
                let kinds: Vec<DeviceOperation> = KINDS.into_iter().filter(|_| self.random.chance(60)).collect();
                self.faults.silent.send_replace(kinds);
                silent_for = 1 + self.random.below(12);
                report.silences += 1;
            }
            let begun = Instant::now();
            let what = self.operate(&store, report).await;
            report.operations += 1;
            if begun.elapsed() > CALL_MAX {
                self.breaks(report, format!("life {life}: a {what} took {:?}", begun.elapsed()));
            }
            if silent_for == 1 {
                self.answer(&store, report).await;
            }
            silent_for = silent_for.saturating_sub(1);
            let pause = if silent_for > 0 { 200 } else { 20 };
            tokio::time::sleep(Duration::from_millis(self.random.below(pause))).await;
        }
        // A place that cannot be read costs other things after a kill, so these stores are closed.
        if !self.is_silence || self.random.chance(40) {
            let begun = Instant::now();
            let closed = store.close().await;
            report.stopped += u64::from(closed.is_ok());
            if begun.elapsed() > CALL_MAX {
                self.breaks(report, format!("life {life}: the close took {:?}", begun.elapsed()));
            }
            if let (Err(error), false) = (closed, self.is_silence) {
                self.breaks(report, format!("life {life}: the store does not close: {error}"));
            }
        }
        let sequences = store.sequences();
        let (written, flushed) = (sequences.written.0, sequences.flushed.0);
        self.expectation.tell(&StoreEvent::Sequences { written, flushed });
        drop(store);
        self.faults.silent.send_replace(Vec::new());
        self.answers_since = Instant::now();
        self.under_way.settle(Some(self.random.bits())).await;
    }

    /// Ends a silence; the store must go on.
    async fn answer(&mut self, store: &Store, report: &mut FaultReport) {
        self.faults.silent.send_replace(Vec::new());
        self.answers_since = Instant::now();
        while let Err(error) = store.sync().await {
            if self.answers_since.elapsed() > RECOVERY_MAX {
                return self.breaks(report, format!("it answers again, but a sync fails: {error}"));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn operate(&mut self, store: &Store, report: &mut FaultReport) -> &'static str {
        let key = self.random.below(KEYS.into()) as u32;
        match self.random.below(100) {
            0..=44 => {
                self.put(store, key).await;
                "put"
            }
            45..=79 => {
                self.get(store, key, report).await;
                "get"
            }
            80..=89 => {
                self.expectation.tell(&StoreEvent::PurgeBegan { key });
                let is_purged = store.purge_key(&primary(key)).await.is_ok();
                report.purges[usize::from(!is_purged)] += 1;
                if is_purged {
                    self.expectation.tell(&StoreEvent::PurgeReturned { key });
                }
                "purge"
            }
            _ => {
                let _ = store.sync().await;
                "sync"
            }
        }
    }

    async fn put(&mut self, store: &Store, key: u32) {
        self.next_version += 1;
        let version = self.next_version;
        let length = match self.random.below(10) {
            0 => 4096 + self.random.below(20_000),
            _ => self.random.below(4096),
        } as usize;
        let head = store.stat().head_epoch;
        self.expectation.tell(&StoreEvent::Began { key, version, length, head, tags: 0 });
        let (name, metadata) = (primary(key), version.to_le_bytes().to_vec());
        let bytes = body(0, key, version, length);
        if let Ok(sequence) = store.put(KeyRef::new(&name, variant(key)), metadata.into(), bytes.into()).await {
            self.expectation.tell(&StoreEvent::Accepted { key, version, sequence: sequence.0, admitted: true });
        }
    }

    /// Gets a key of the running store, and compares the answer.
    async fn get(&mut self, store: &Store, key: u32, report: &mut FaultReport) {
        let stat = store.stat();
        let running = RecoveredStore { sequence: u64::MAX, head: stat.head_epoch, segment_count: stat.segment_count };
        let allowed = self.expectation.allowed(key, CrashModel::Process, running);
        let failed_reads = self.faults.failed_reads.load(Ordering::Relaxed);
        let found = read(store, key).await;
        let is_silent = !self.faults.silent.borrow().is_empty() || self.answers_since.elapsed() < RECOVERY_MAX;
        let has_failed = self.faults.failed_reads.load(Ordering::Relaxed) > failed_reads;
        report.demanded += u64::from(allowed.must_hit);
        match found {
            Err(error) => {
                report.errors += 1;
                let is_excused = has_failed || (self.is_silence && is_silent);
                if !is_excused {
                    self.breaks(report, format!("key {key} is an error, but no read failed: {error}"));
                }
            }
            // While a long body is read, the ring may overwrite it.
            Ok(None) if allowed.must_hit => self.breaks(report, format!("key {key} is missing")),
            Ok(None) => {}
            Ok(Some((metadata, bytes))) => {
                report.hits += 1;
                let is_right = allowed.versions.iter().any(|version| {
                    metadata == version.number.to_le_bytes() && bytes == body(0, key, version.number, version.length)
                });
                if !is_right {
                    let numbers: Vec<u32> = allowed.versions.iter().map(|version| version.number).collect();
                    self.breaks(report, format!("key {key} has metadata {metadata:?}, allowed are {numbers:?}"));
                }
            }
        }
    }
}

/// Reads a whole object: its metadata and its body.
async fn read(store: &Store, key: u32) -> Result<Option<(Vec<u8>, Vec<u8>)>, nectary_store::Error> {
    let name = primary(key);
    let Some(object) = store.try_get(KeyRef::new(&name, variant(key))).await? else { return Ok(None) };
    let mut bytes = Vec::with_capacity(object.body_bytes() as usize);
    let mut reader = object.reader(0..u64::MAX);
    while let Some(piece) = reader.next().await {
        bytes.extend_from_slice(&piece?);
    }
    Ok(Some((object.metadata().to_vec(), bytes)))
}
