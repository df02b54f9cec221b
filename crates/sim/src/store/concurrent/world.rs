//! The store with concurrent clients: its stack of devices, and its opening.
//!
//! Owns: one open store at a time, on a device whose operations take time and end in any order. Everything runs on the
//! caller's thread in virtual time, so a seed repeats a run exactly. Leaves to others: the ends of the store's lives
//! (`ending`).
//!
//! One run in [`LAPPING`] holds reads: the device answers some reads so late that the ring can complete a cycle
//! meanwhile. For this, objects are written after a short delay, and some clients only put.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use nectary_block::{BlockDevice, DeviceSnapshot, Recorder, SharedDevice};
use nectary_store::{
    AdmissionOptions, AdmitRule, BackgroundRuntime, ClusterRead, CreateOptions, IndexLoading, KeyRef, OpenOptions,
    Store,
};

use super::flushing::{FlushCountFilter, FlushesInFlight};
use super::history::{LifeEnd, ReportedSequences, StoreHistory, StoreLife, VersionFate};
use super::situations::{ClientSituation, SituationCounts};
use crate::disk::{DiskOptions, SimulatedDisk};
use crate::held::{ReadHold, ReadHoldFilter, ReadSelector};
use crate::late::{DetachedFilter, LateFilter, OperationDelays, UnderWay};
use crate::random::SimulationRandom;
use crate::store::{body, primary};

/// The size of the store in bytes: some ten segments.
pub const STORE_BYTES: u64 = 512 << 10;
const SEGMENT_BYTES: u64 = 32 << 10;
/// The segment size of a store with the fewest allowed segments, in bytes.
const LONG_SEGMENT_BYTES: u64 = 64 << 10;
/// One run in this many delays reads, so that the ring can overwrite what they read.
const LAPPING: u64 = 8;
/// The time that objects wait to be written in a run that holds reads. It is so short that the ring completes a cycle
/// within few operations.
const LAPPING_WRITE_DELAY: Duration = Duration::from_millis(2);
/// The memory for objects in a run that holds reads, in bytes. It has room for few objects, so that most gets read the
/// disk.
const LAPPING_OBJECTS_BYTES: u64 = 48 << 10;
/// The reads that may be held: reads of objects, but not reads of the index or of whole segments.
const HELD: ReadSelector = ReadSelector { offset_min: STORE_BYTES / 2, bytes_max: 12 << 10 };
/// The share of the reads of [`HELD`] that is held, in percent.
const HELD_PERCENT: u64 = 20;
/// The limit on the bytes to write before a held read ends: more than a cycle of the ring.
const HELD_BYTES_MAX: u64 = STORE_BYTES;
/// The number of keys of a run.
pub const KEYS: u32 = 24;
/// The number of further keys, in a run in which not everything is admitted. Each is seldom used, so that the store
/// knows nothing of its name.
pub const RARE_KEYS: u32 = 160;
/// The number of tags of a run.
pub const TAGS: u32 = 6;

/// A store and everything around it.
pub struct StoreWorld {
    pub random: RefCell<SimulationRandom>,
    pub history: RefCell<StoreHistory>,
    pub store: RefCell<Option<Store>>,
    /// How many operations on each key are in flight.
    pub busy: RefCell<[u32; (KEYS + RARE_KEYS) as usize]>,
    pub operations: Cell<u64>,
    /// Operations that began while another one on the same key was in flight.
    pub overlapping: Cell<u64>,
    /// The number of puts that the open store has not admitted so far.
    unadmitted: Cell<u64>,
    /// Gets during which the ring overwrote every segment.
    pub lapped: Cell<u64>,
    /// How often the run reached each situation.
    situations: RefCell<SituationCounts>,
    flushes: RefCell<FlushesInFlight>,
    /// Whether reads are held while the ring completes a cycle.
    pub is_lapping: bool,
    pub(super) hold: RefCell<ReadHold>,
    next_version: Cell<u32>,
    pub(super) disk: RefCell<Arc<SimulatedDisk>>,
    pub(super) under_way: RefCell<UnderWay>,
    /// The recorder, if a recording is running.
    pub(super) recorder: RefCell<Option<Recorder>>,
    pub options: OpenOptions,
    seed: u64,
}

impl StoreWorld {
    /// Makes a store from a seed, without opening it.
    pub async fn new(seed: u64) -> StoreWorld {
        let mut random = SimulationRandom::new(seed);
        let options = open_options(&mut random, seed);
        let is_lapping = seed % LAPPING == 3;
        let disk = DiskOptions { seed, late_percent: 0, delays: !is_lapping, ..DiskOptions::default() };
        let disk = SimulatedDisk::new(STORE_BYTES, disk);
        let options = match is_lapping {
            true => OpenOptions {
                objects_bytes_max: Some(LAPPING_OBJECTS_BYTES),
                write_delay: LAPPING_WRITE_DELAY,
                ..options
            },
            false => options,
        };
        let world = StoreWorld { is_lapping, ..StoreWorld::of(disk, StoreHistory::default(), options, 0, seed) };
        let is_short = world.is_lapping && seed % (2 * LAPPING) >= LAPPING;
        let create = CreateOptions {
            size_bytes: STORE_BYTES,
            segment_bytes: Some(if is_short { LONG_SEGMENT_BYTES } else { SEGMENT_BYTES }),
            force: true,
            seed: Some(seed),
        };
        Store::create(world.device(), &create).await.expect("a store is made");
        world
    }

    /// Makes a world with the device after a crash, and the history before that crash.
    pub fn of_image(snapshot: &DeviceSnapshot, history: StoreHistory, options: OpenOptions, seed: u64) -> StoreWorld {
        let disk =
            SimulatedDisk::from_snapshot(snapshot, DiskOptions { seed, late_percent: 0, ..DiskOptions::default() });
        let next_version = history.versions.iter().map(|version| version.number).max().unwrap_or(0);
        StoreWorld::of(disk, history, options, next_version, seed)
    }

    fn of(
        disk: Arc<SimulatedDisk>,
        history: StoreHistory,
        options: OpenOptions,
        next_version: u32,
        seed: u64,
    ) -> StoreWorld {
        StoreWorld {
            random: RefCell::new(SimulationRandom::new(seed ^ 0x5eed)),
            history: RefCell::new(history),
            store: RefCell::new(None),
            busy: RefCell::new([0; (KEYS + RARE_KEYS) as usize]),
            operations: Cell::new(0),
            overlapping: Cell::new(0),
            unadmitted: Cell::new(0),
            lapped: Cell::new(0),
            situations: RefCell::default(),
            flushes: RefCell::default(),
            is_lapping: false,
            hold: RefCell::new(ReadHold::new(seed, HELD, 0, 0)),
            next_version: Cell::new(next_version),
            disk: RefCell::new(disk),
            under_way: RefCell::default(),
            recorder: RefCell::new(None),
            options,
            seed,
        }
    }

    /// Records the operations on the device from the store's next opening on; returns the device's current contents.
    pub fn record(&self, recorder: &Recorder) -> Vec<u8> {
        *self.recorder.borrow_mut() = Some(recorder.clone());
        self.mark(&self.history.borrow());
        self.disk.borrow().image()
    }

    fn device(&self) -> SharedDevice {
        let seed = self.seed ^ self.history.borrow().lives.len() as u64;
        let under_way = UnderWay::default();
        self.under_way.replace(under_way.clone());
        let percent = if self.is_lapping { HELD_PERCENT } else { 0 };
        self.hold.replace(ReadHold::new(seed, HELD, percent, HELD_BYTES_MAX));
        let disk = self.disk.borrow().clone() as Arc<dyn BlockDevice>;
        let held = Arc::new(ReadHoldFilter::new(disk, &self.hold.borrow()));
        let delays = if self.is_lapping { OperationDelays::short(seed) } else { OperationDelays::new(seed) };
        let late: SharedDevice = Arc::new(LateFilter::by(held, delays, &under_way));
        let recorded = match &*self.recorder.borrow() {
            Some(recorder) => recorder.wrap(late),
            None => late,
        };
        let flushes = FlushesInFlight::default();
        self.flushes.replace(flushes.clone());
        Arc::new(FlushCountFilter::new(Arc::new(DetachedFilter::new(recorded, &under_way)), &flushes))
    }

    /// Opens the store: a new life begins.
    pub async fn open(&self, after: LifeEnd) {
        let store = Store::open(self.device(), self.options.clone()).await.expect("the store opens");
        self.begin_life(store, after);
    }

    fn begin_life(&self, store: Store, after: LifeEnd) {
        let stat = store.stat();
        self.unadmitted.set(0);
        *self.busy.borrow_mut() = [0; (KEYS + RARE_KEYS) as usize];
        let mut history = self.history.borrow_mut();
        let began = history.tick();
        history.lives.push(StoreLife {
            began,
            after,
            recovered: stat.sequences.written.0,
            purges_lost: stat.recovery.purges_lost,
            segment_count: stat.segment_count,
            whole_bytes_max: stat.whole_bytes_max,
        });
        *self.store.borrow_mut() = Some(store);
    }

    /// Records the sequences that the store reports.
    pub fn look(&self) {
        let Some(store) = &*self.store.borrow() else { return };
        let sequences = store.sequences();
        let mut history = self.history.borrow_mut();
        let at = history.tick();
        history.told.push(ReportedSequences { at, written: sequences.written.0, flushed: sequences.flushed.0 });
        self.mark(&history);
    }

    /// Sets a mark with the time of the last event, if operations are recorded. All events up to this time are before
    /// every crash point after the mark.
    pub fn mark(&self, history: &StoreHistory) {
        if let Some(recorder) = &*self.recorder.borrow() {
            recorder.mark(history.now);
        }
    }

    /// Counts a situation.
    pub fn note(&self, situation: ClientSituation) {
        self.situations.borrow_mut().note(situation);
    }

    /// How often the run reached each situation.
    pub fn situations(&self) -> SituationCounts {
        self.situations.borrow().clone()
    }

    /// Whether the device is being flushed.
    pub fn is_flushing(&self) -> bool {
        self.flushes.borrow().any()
    }

    /// Whether the store does not admit everything.
    pub fn is_choosy(&self) -> bool {
        self.options.admission != AdmissionOptions::default()
    }

    /// The open store.
    pub fn store(&self) -> Store {
        self.store.borrow().clone().expect("a store is open while clients run")
    }

    /// A number below `bound`.
    pub fn below(&self, bound: u64) -> u64 {
        self.random.borrow_mut().below(bound)
    }

    /// Returns true with a probability of `percent` percent.
    pub fn chance(&self, percent: u64) -> bool {
        self.random.borrow_mut().chance(percent)
    }

    /// The number of a new version.
    pub fn draw_version(&self) -> u32 {
        self.next_version.set(self.next_version.get() + 1);
        self.next_version.get()
    }

    /// Records whether a version was accepted.
    pub fn end_version(&self, number: u32, outcome: Result<u64, bool>) {
        let store = self.store();
        let counts = store.stat().counts;
        let unadmitted = counts.unadmitted_first + counts.unadmitted_size;
        let is_admitted = unadmitted == self.unadmitted.replace(unadmitted);
        let mut history = self.history.borrow_mut();
        let now = history.tick();
        let version = history.versions.iter_mut().rev().find(|version| version.number == number);
        let version = version.expect("a version ends that began");
        version.ended = Some(now);
        version.outcome = match outcome {
            Ok(sequence) => VersionFate::Accepted { sequence, is_admitted },
            Err(true) => VersionFate::Refused,
            Err(false) => VersionFate::Unknown,
        };
        self.mark(&history);
    }

    /// The segment epoch that is being written.
    pub fn head(&self) -> u64 {
        self.store().stat().head_epoch
    }

    /// Counts a get that began when the ring was at `head` and ends now, if the ring completed a cycle meanwhile.
    pub fn note_lap(&self, head: u64) {
        let segment_count = self.history.borrow().lives.last().map_or(0, |life| life.segment_count);
        self.lapped.set(self.lapped.get() + u64::from(self.head() >= head + segment_count));
    }

    /// Waits for up to `most_ms` milliseconds.
    pub async fn pause(&self, most_ms: u64) {
        let ms = self.below(most_ms + 1);
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }
}

/// Draws the options with which the store of a run is opened.
fn open_options(random: &mut SimulationRandom, seed: u64) -> OpenOptions {
    let pick = |random: &mut SimulationRandom, choices: [u32; 4]| choices[random.below(4) as usize];
    let open = AdmissionOptions::default();
    let admission = match seed % 12 {
        1 => AdmissionOptions { rule: AdmitRule::SecondRequest, ..open },
        7 => AdmissionOptions { bytes_max: Some(2048), ..open },
        _ => open,
    };
    OpenOptions {
        memory_bytes: 8 << 20,
        // This limit is so small that objects are evicted from memory all the time.
        objects_bytes_max: Some((32 << 10) << random.below(4)),
        write_delay: Duration::from_millis(random.below(30)),
        flush_interval: random.chance(30).then(|| Duration::from_millis(40)),
        reinsert_percent: pick(random, [0, 0, 20, 50]),
        rewrite_percent: pick(random, [0, 20, 100, 100]),
        cluster_bytes: u64::from(pick(random, [0, 0, 8 << 10, 16 << 10])),
        cluster_read: if random.chance(50) { ClusterRead::Cluster } else { ClusterRead::Auto },
        warm_up: {
            let warm_up = random.chance(40);
            // This draw is unused: it replaces a choice that was removed, so that existing seeds keep their meaning.
            random.chance(50);
            warm_up
        },
        admission,
        index_loading: if random.chance(70) { IndexLoading::Shards } else { IndexLoading::BySize },
        background: BackgroundRuntime::Caller,
        is_read_only: false,
        seed: None,
        // The device of these runs answers everything in the end.
        device_deadline: None,
    }
}

/// The name of a key; two keys are variants of the same name.
pub fn key_name(key: u32) -> Vec<u8> {
    primary(super::history::name_of(key))
}

/// The variant part of a key.
pub fn key_variant(key: u32) -> &'static [u8] {
    if key.is_multiple_of(2) { b"" } else { b"gzip" }
}

/// A key in the store's form.
pub fn key_ref(name: &[u8], key: u32) -> KeyRef<'_> {
    KeyRef::new(name, key_variant(key))
}

/// The metadata of a version: its number, and that of the version whose body it has.
pub fn metadata(number: u32, content: u32) -> bytes::Bytes {
    [number.to_le_bytes(), content.to_le_bytes()].concat().into()
}

/// The numbers in the metadata of a version.
pub fn numbers(metadata: &[u8]) -> Option<(u32, u32)> {
    let (number, content) = metadata.split_at_checked(4)?;
    Some((u32::from_le_bytes(number.try_into().ok()?), u32::from_le_bytes(content.try_into().ok()?)))
}

/// The body of a version.
pub fn body_of(key: u32, content: u32, length: usize) -> Vec<u8> {
    body(0, key, content, length)
}
