//! Short seeded workloads on a small store, recorded at the device.
//!
//! Owns: the operations and their order, and reporting every promise as an event and a mark in the recording. A
//! workload may start on the remains of another store, or on a store that was filled for several cycles. Sometimes it
//! crashes the store and opens it again.

use std::sync::Arc;
use std::time::Duration;

use nectary_block::{MemoryDevice, Recorder, Recording, SharedDevice};
use nectary_store::{
    AdmissionOptions, AdmitRule, BackgroundRuntime, ClusterRead, CreateOptions, FillRole, IndexLoading, KeyRef,
    OpenOptions, PurgeEffect, PutSequence, Store,
};

use crate::random::SimulationRandom;
use crate::store::expectation::StoreEvent;
use crate::store::{body, primary, tag, variant};

/// The size of the store in bytes: some ten segments of 32 KiB.
pub const STORE_BYTES: u64 = 512 << 10;
/// The size of a segment in bytes.
pub const SEGMENT_BYTES: u64 = 32 << 10;
/// The number of keys of a workload.
pub const KEYS: u32 = 24;
/// One operation in this many purges everything; some others purge by prefix or tag.
const PURGE_ALL_EVERY: u64 = 400;
/// The number of tags of a workload.
const TAGS: u32 = 6;
/// The number of keys that are put most of the time.
const BUSY_KEYS: u32 = 6;
/// The number of keys that are requested in a row, so that some objects count as requested.
const LOOKS: u32 = 4;
/// The salt of the bodies of the former store; none of these bodies may ever be returned.
const FORMER_SALT: u64 = 0xdead;

/// A recorded workload.
pub struct StoreWorkload {
    /// The seed that repeats it.
    pub seed: u64,
    /// The device's contents when the recording began.
    pub base: Vec<u8>,
    /// The recording.
    pub recording: Recording,
    /// The events; mark `n` in the recording means that `events[..n]` have happened.
    pub events: Vec<StoreEvent>,
    /// The number of events before the recording began.
    pub events_before: usize,
    /// Objects that were re-inserted.
    pub reinserted: u64,
    /// Objects that were written next to the objects to which hints tie them.
    pub tied: u64,
    /// Objects that were rewritten from memory, to keep them or to store them next to their page.
    pub rewritten: u64,
}

/// A store, and the operations on it.
pub(super) struct WorkloadStore {
    pub random: SimulationRandom,
    device: SharedDevice,
    /// `None` only between two stores.
    store: Option<Store>,
    recorder: Option<Recorder>,
    pub events: Vec<StoreEvent>,
    next_version: u32,
    options: OpenOptions,
    reinserted: u64,
    tied: u64,
    rewritten: u64,
    /// The number of puts that the open store has not admitted so far.
    unadmitted: u64,
    /// If it is set, keys of this parity are neither put nor purged.
    spared: Option<u32>,
}

/// Returns the options with which stores are opened. With background work on the caller's thread and in virtual time, a
/// seed repeats a workload; with threads it does not, because their timing varies.
pub fn open_options(background: BackgroundRuntime) -> OpenOptions {
    let write_delay = Duration::from_millis(2);
    OpenOptions {
        memory_bytes: 8 << 20,
        write_delay,
        reinsert_percent: 50,
        cluster_bytes: 16 << 10,
        cluster_read: ClusterRead::Cluster,
        index_loading: IndexLoading::Shards,
        background,
        ..OpenOptions::default()
    }
}

/// Runs the workload of a seed. `operations` is the number of recorded operations.
pub async fn run(seed: u64, operations: u32, background: BackgroundRuntime) -> StoreWorkload {
    let mut random = SimulationRandom::new(seed);
    let memory = Arc::new(MemoryDevice::new(STORE_BYTES));
    let device: SharedDevice = memory.clone();
    let create =
        CreateOptions { size_bytes: STORE_BYTES, segment_bytes: Some(SEGMENT_BYTES), force: true, seed: Some(seed) };
    if random.chance(60) {
        leave_former_store(&device, &create, background, &mut random).await;
    }
    Store::create(device.clone(), &create).await.expect("a store is made");
    let reinsert_percent = [0, 20, 50, 50][random.below(4) as usize];
    let write_delay = Duration::from_millis(random.below(6));
    // This draw is unused; it keeps the meaning of existing seeds.
    random.chance(50);
    let cluster_bytes = [0, 8 << 10, 16 << 10, 16 << 10][random.below(4) as usize];
    let rewrite_percent = [0, 20, 100, 100][random.below(4) as usize];
    // Without a warm-up after a restart, objects are read from disk and may be moved next to their page.
    let warm_up = random.chance(50);
    let admission = admission(seed);
    let index_loading = [IndexLoading::Shards, IndexLoading::Apart, IndexLoading::BySize][(seed % 3) as usize];
    let options = OpenOptions {
        write_delay,
        reinsert_percent,
        rewrite_percent,
        cluster_bytes,
        warm_up,
        admission,
        index_loading,
        ..open_options(background)
    };
    let store = Store::open(device.clone(), options.clone()).await.expect("a new store opens");
    let mut running = WorkloadStore {
        random,
        device: device.clone(),
        store: Some(store),
        recorder: None,
        events: Vec::new(),
        next_version: 0,
        options,
        reinserted: 0,
        tied: 0,
        rewritten: 0,
        unadmitted: 0,
        spared: None,
    };

    // Before the recording, the ring often completes one to three cycles, so that there are reclaimed segments,
    // re-inserted objects and segments of old cycles.
    let before = if running.random.chance(60) { 200 + running.random.below(400) } else { running.random.below(12) };
    for _ in 0..before {
        running.operate().await;
    }
    running.sync().await;
    running.leave();
    let WorkloadStore { events, random, next_version, options, reinserted, tied, rewritten, .. } = running;
    let base = memory.image();
    let recorder = Recorder::new();
    let recorded = recorder.wrap(device);
    let events_before = events.len();
    recorder.mark(events_before as u64);
    let store = Store::open(recorded.clone(), options.clone()).await.expect("a store opens again");
    let mut running = WorkloadStore {
        random,
        device: recorded,
        store: Some(store),
        recorder: Some(recorder.clone()),
        events,
        next_version,
        options,
        reinserted,
        tied,
        rewritten,
        unadmitted: 0,
        spared: None,
    };
    running.tell(StoreEvent::Reopened { recovered: running.store().sequences().written.0 });
    for _ in 0..operations {
        running.operate().await;
    }
    running.leave();
    let WorkloadStore { events, reinserted, tied, rewritten, .. } = running;
    StoreWorkload { seed, base, recording: recorder.take(), events, events_before, reinserted, tied, rewritten }
}

/// Returns the rules of admission of a workload. One workload in six does not admit everything; it is not more, because
/// images then contain few objects.
fn admission(seed: u64) -> AdmissionOptions {
    let open = AdmissionOptions::default();
    match seed % 12 {
        1 => AdmissionOptions { rule: AdmitRule::SecondRequest, ..open },
        // Objects of up to 2 KiB are admitted; some of them replace longer objects that were written before the
        // recording.
        7 => AdmissionOptions { bytes_max: Some(2048), ..open },
        _ => open,
    }
}

/// Fills the device with a store of the same layout and other bodies under the same keys.
async fn leave_former_store(
    device: &SharedDevice,
    create: &CreateOptions,
    background: BackgroundRuntime,
    random: &mut SimulationRandom,
) {
    // The former store has another seed.
    let create = CreateOptions { seed: create.seed.map(|seed| !seed), ..create.clone() };
    Store::create(device.clone(), &create).await.expect("a store is made");
    let store = Store::open(device.clone(), open_options(background)).await.expect("a new store opens");
    for round in 0..6 {
        for key in 0..KEYS {
            let bytes = body(FORMER_SALT, key, round, 500 + random.below(3000) as usize);
            let name = primary(key);
            let _ = store.put(KeyRef::new(&name, variant(key)), "former".into(), bytes.into()).await;
        }
        let _ = store.sync().await;
    }
    let _ = store.checkpoint().await;
}

/// The tags whose bits are set.
fn names(tags: u32) -> Vec<Vec<u8>> {
    (0..TAGS).filter(|number| tags & 1 << number != 0).map(tag).collect()
}

impl WorkloadStore {
    /// Opens a store whose device is recorded. `events` and `next_version` are those of its earlier lives. *Errors*:
    /// the message, if it does not open.
    pub async fn open(
        device: SharedDevice,
        recorder: &Recorder,
        options: OpenOptions,
        random: SimulationRandom,
        events: Vec<StoreEvent>,
        next_version: u32,
    ) -> Result<WorkloadStore, String> {
        recorder.mark(events.len() as u64);
        let store = Store::open(device.clone(), options.clone()).await.map_err(|error| error.to_string())?;
        let mut running = WorkloadStore {
            random,
            device,
            store: Some(store),
            recorder: Some(recorder.clone()),
            events,
            next_version,
            options,
            reinserted: 0,
            tied: 0,
            rewritten: 0,
            unadmitted: 0,
            spared: None,
        };
        running.tell(StoreEvent::Reopened { recovered: running.store().sequences().written.0 });
        Ok(running)
    }

    /// Does operations, but no crash and no checkpoint, and leaves keys of one parity alone.
    pub async fn work(&mut self, operations: u64, spared: u32) {
        self.spared = Some(spared);
        for _ in 0..operations {
            match self.random.below(100) {
                0..=63 => self.put().await,
                64..=67 => self.purge().await,
                68..=70 => self.fill_across_a_purge().await,
                71..=80 => self.sync().await,
                81..=90 => self.look().await,
                _ => self.wait_for_the_writer().await,
            }
        }
    }

    /// Ends the store without a clean stop; returns the events, and the number of the last version.
    pub fn end(mut self) -> (Vec<StoreEvent>, u32) {
        self.leave();
        (self.events, self.next_version)
    }

    /// Draws a key below `bound` that may be put and purged.
    fn key(&mut self, bound: u32) -> u32 {
        let key = self.random.below(bound.into()) as u32;
        if self.spared == Some(key % 2) { key ^ 1 } else { key }
    }

    pub fn store(&self) -> &Store {
        self.store.as_ref().expect("a store is open between operations")
    }

    /// Reports that a version was accepted, and whether it was admitted to the disk.
    fn accepted(&mut self, key: u32, version: u32, sequence: PutSequence) {
        let counts = self.store().stat().counts;
        let unadmitted = counts.unadmitted_first + counts.unadmitted_size;
        let admitted = unadmitted == std::mem::replace(&mut self.unadmitted, unadmitted);
        self.tell(StoreEvent::Accepted { key, version, sequence: sequence.0, admitted });
    }

    /// Drops the store without a clean stop, as in a crash.
    fn leave(&mut self) {
        let counts = self.store.take().map(|store| store.stat().counts).unwrap_or_default();
        self.reinserted += counts.reinserted;
        self.tied += counts.objects_tied;
        self.rewritten += counts.regrouped + counts.kept;
        self.unadmitted = 0;
    }

    pub fn tell(&mut self, event: StoreEvent) {
        self.events.push(event);
        if let Some(recorder) = &self.recorder {
            recorder.mark(self.events.len() as u64);
        }
    }

    async fn operate(&mut self) {
        match self.random.below(PURGE_ALL_EVERY) {
            0 => return self.purge_all().await,
            1..=4 => return self.purge_prefix().await,
            5..=16 => return self.purge_tag().await,
            17..=22 => return self.fill_across_a_purge_of_its_tag().await,
            _ => {}
        }
        match self.random.below(100) {
            0..=55 => self.put().await,
            56..=64 => self.purge().await,
            65..=69 => self.fill_across_a_purge().await,
            70..=79 => self.sync().await,
            80..=91 => self.look().await,
            92..=94 => {
                let _ = self.store().checkpoint().await;
            }
            95..=96 => self.crash_and_reopen().await,
            97 => self.soft_purge().await,
            _ => self.wait_for_the_writer().await,
        }
    }

    /// Begins a version; returns its key, number, length and tags.
    fn begin(&mut self) -> (u32, u32, usize, u32) {
        // A few keys are replaced all the time; the others stay long enough to be re-inserted.
        let keys = if self.random.chance(75) { BUSY_KEYS } else { KEYS };
        let key = self.key(keys);
        self.next_version += 1;
        // Up to 4 KiB, a body is one record here; longer bodies are stored as fragments.
        let length = match self.random.below(10) {
            0 => 0,
            1..=7 => self.random.below(4096),
            _ => 4096 + self.random.below(20_000),
        } as usize;
        let head = self.store().stat().head_epoch;
        let tags = match self.random.below(10) {
            0..=3 => 0,
            4..=7 => 1 << self.random.below(TAGS.into()),
            _ => 1 << self.random.below(TAGS.into()) | 1 << self.random.below(TAGS.into()),
        };
        self.tell(StoreEvent::Began { key, version: self.next_version, length, head, tags });
        (key, self.next_version, length, tags)
    }

    async fn put(&mut self) {
        let (key, version, length, tags) = self.begin();
        let name = primary(key);
        let bytes = body(0, key, version, length);
        let tags = names(tags);
        let tags: Vec<&[u8]> = tags.iter().map(Vec::as_slice).collect();
        let metadata = version.to_le_bytes().to_vec();
        if self.random.chance(60) {
            self.collocate(key);
        }
        let put = self.store().put_tagged(KeyRef::new(&name, variant(key)), &tags, metadata.into(), bytes.into());
        if let Ok(sequence) = put.await {
            self.accepted(key, version, sequence);
        }
    }

    /// Hints that a key belongs to a page; some keys are pages.
    fn collocate(&mut self, key: u32) {
        let page = self.random.below(BUSY_KEYS.into()) as u32;
        self.store().collocate(&primary(key), &primary(page));
    }

    async fn purge(&mut self) {
        let key = self.key(KEYS);
        self.tell(StoreEvent::PurgeBegan { key });
        if self.store().purge_key(&primary(key)).await.is_ok() {
            self.tell(StoreEvent::PurgeReturned { key });
        }
    }

    async fn soft_purge(&mut self) {
        let key = self.key(KEYS);
        self.tell(StoreEvent::SoftPurgeBegan { key });
        let soft = PurgeEffect::Soft { since_s: 1_000_000_000 };
        if self.store().purge_key_as(&primary(key), soft).await.is_ok() {
            self.tell(StoreEvent::SoftPurgeReturned { key });
        }
    }

    /// Purges everything, and reports this as a purge of each key.
    async fn purge_all(&mut self) {
        (0..KEYS).for_each(|key| self.tell(StoreEvent::PurgeBegan { key }));
        if self.store().purge_all().await.is_ok() {
            (0..KEYS).for_each(|key| self.tell(StoreEvent::PurgeReturned { key }));
        }
    }

    /// Purges all keys whose number begins with a random digit.
    async fn purge_prefix(&mut self) {
        let prefix = primary(1 + self.random.below(9) as u32);
        let keys = || (0..KEYS).filter(|&key| primary(key).starts_with(&prefix));
        keys().for_each(|key| self.tell(StoreEvent::PurgeBegan { key }));
        if self.store().purge_prefix(&prefix).await.is_ok() {
            keys().for_each(|key| self.tell(StoreEvent::PurgeReturned { key }));
        }
    }

    async fn purge_tag(&mut self) {
        let tag = self.random.below(TAGS.into()) as u32;
        self.purge_tag_number(tag).await;
    }

    async fn purge_tag_number(&mut self, tag: u32) {
        let name = self::tag(tag);
        self.tell(StoreEvent::TagPurgeBegan { tag });
        if self.store().purge_tag(&name).await.is_ok() {
            self.tell(StoreEvent::TagPurgeReturned { tag });
        }
    }

    /// Makes a fill that begins before a purge of its tag, if it has a tag, and ends after that purge.
    async fn fill_across_a_purge_of_its_tag(&mut self) {
        let (key, version, length, tags) = self.begin();
        let name = primary(key);
        let stale = self.store().get(KeyRef::new(&name, variant(key))).await;
        let FillRole::Leader(mut fill) = self.store().begin_fill(KeyRef::new(&name, variant(key)), stale.as_ref())
        else {
            return;
        };
        let names = names(tags);
        let late = self.random.chance(50);
        if late && tags != 0 {
            self.purge_tag_number(tags.trailing_zeros()).await;
        }
        let tagged = fill.tag(names.iter().map(Vec::as_slice)).is_ok();
        let started = tagged && fill.start(variant(key), version.to_le_bytes().to_vec().into(), None);
        if !late && tags != 0 {
            self.purge_tag_number(tags.trailing_zeros()).await;
        }
        if started
            && fill.write(body(0, key, version, length).into()).await.is_ok()
            && let Ok(sequence) = fill.finish().await
        {
            self.accepted(key, version, sequence);
        }
    }

    /// Makes a fill that begins before a purge of its key and ends after that purge; the fill must not be stored.
    async fn fill_across_a_purge(&mut self) {
        let (key, version, length, _) = self.begin();
        let name = primary(key);
        let stale = self.store().get(KeyRef::new(&name, variant(key))).await;
        let FillRole::Leader(mut fill) = self.store().begin_fill(KeyRef::new(&name, variant(key)), stale.as_ref())
        else {
            return;
        };
        let started = fill.start(variant(key), version.to_le_bytes().to_vec().into(), None);
        self.tell(StoreEvent::PurgeBegan { key });
        if self.store().purge_key(&name).await.is_ok() {
            self.tell(StoreEvent::PurgeReturned { key });
        }
        if started
            && fill.write(body(0, key, version, length).into()).await.is_ok()
            && let Ok(sequence) = fill.finish().await
        {
            self.accepted(key, version, sequence);
        }
    }

    async fn sync(&mut self) {
        if let Ok(sequences) = self.store().sync().await {
            self.tell(StoreEvent::Sequences { written: sequences.written.0, flushed: sequences.flushed.0 });
        }
    }

    async fn look(&mut self) {
        let sequences = self.store().sequences();
        self.tell(StoreEvent::Sequences { written: sequences.written.0, flushed: sequences.flushed.0 });
        for _ in 0..LOOKS {
            let key = self.random.below(KEYS.into()) as u32;
            if self.random.chance(50) {
                self.collocate(key);
            }
            let _ = self.store().get(KeyRef::new(&primary(key), variant(key))).await;
        }
    }

    /// Waits until the put objects are written, without a flush.
    async fn wait_for_the_writer(&mut self) {
        loop {
            let sequences = self.store().sequences();
            if sequences.written >= sequences.last || self.store().stat().stopped.is_some() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        self.look().await;
    }

    async fn crash_and_reopen(&mut self) {
        // The store is dropped first, because a process ends before its successor starts.
        self.leave();
        let opened = Store::open(self.device.clone(), self.options.clone()).await;
        self.store = Some(opened.expect("a dropped store opens again"));
        self.tell(StoreEvent::Reopened { recovered: self.store().sequences().written.0 });
    }
}
