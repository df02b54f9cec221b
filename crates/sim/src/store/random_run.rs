//! A long seeded run of operations against a model, with restarts and damage.
//!
//! Owns: the model (the current version of each key), and the count of objects that may be missing: the objects that
//! the ring has overwritten, and one per damaged place. If no later append confirms that a damaged record was flushed,
//! the damage looks like a power cut. The store then reports the sequence up to which it recovered. Of each key, the
//! last version before that sequence or any later version may be found. Every answer is compared byte by byte.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use nectary_block::{BlockDevice, Buffer, IoContext, MemoryDevice, SharedDevice, WriteFlags, read as read_device};
use nectary_store::planted::{Bug, plant};
use nectary_store::{
    AdmissionOptions, AdmitRule, BackgroundRuntime, ClusterRead, CreateOptions, FillRole, IndexLoading, KeyRef,
    OpenOptions, Store, WriteBudget,
};

use tokio::time::Instant;

use crate::late::{DetachedFilter, LateFilter, UnderWay, in_virtual_time};
use crate::planted::{BugCase, CaughtBug};
use crate::random::SimulationRandom;
use crate::store::{body, primary, tag, variant};

mod soft_purges;

/// A write budget that is so small that it is used up between two crashes.
const BUDGET: WriteBudget = WriteBudget { bytes: 64 << 20, period: Duration::from_secs(86_400) };
/// One operation in this many purges everything; some others purge by prefix or tag.
const PURGE_ALL_EVERY: u64 = 30_000;
/// The number of tags in the run.
const TAGS: u64 = 300;
/// The number of keys of a page: the page itself and its embedded objects.
const PAGE_KEYS: u32 = 8;

/// What to run.
#[derive(Debug, Clone)]
pub struct RunOptions {
    /// The seed.
    pub seed: u64,
    /// The number of operations.
    pub operations: u64,
    /// The number of keys.
    pub keys: u32,
    /// The number of operations between restarts.
    pub operations_per_restart: u64,
    /// The number of damaged places at each restart.
    pub damage_per_restart: u64,
    /// The store's size in bytes.
    pub store_bytes: u64,
    /// Whether the device's operations take time and end in any order; this needs virtual time.
    pub is_late: bool,
    /// Where the store's background work runs. On the caller's thread and in virtual time a seed repeats a run; with
    /// threads it does not, because their timing varies.
    pub background: BackgroundRuntime,
    /// Whether to stop at the first difference.
    pub stops_at_difference: bool,
    /// Whether the model expects a version that was never put, to show that the comparison can fail.
    pub plant_wrong_model: bool,
}

/// The results of a run.
#[derive(Debug, Default, Clone)]
pub struct RunReport {
    /// Operations done.
    pub operations: u64,
    /// Gets that hit, with the right bytes.
    pub hits: u64,
    /// Gets that missed.
    pub misses: u64,
    /// Gets that had to hit according to the model.
    pub demanded: u64,
    /// Gets that had to hit and missed.
    pub demanded_missing: u64,
    /// Restarts.
    pub restarts: u64,
    /// Restarts after a clean stop.
    pub restarts_clean: u64,
    /// Places damaged.
    pub damaged_places: u64,
    /// Damaged records that the store noticed.
    pub damage_noticed: u64,
    /// Objects that the store re-inserted.
    pub reinserted: u64,
    /// Objects that entered memory because a read of a neighbour included them.
    pub neighbours: u64,
    /// Objects that were moved next to their page.
    pub regrouped: u64,
    /// Objects that were rewritten from memory before their segment was overwritten.
    pub kept: u64,
    /// Objects that were purged by tag.
    pub purged_by_tag: u64,
    /// Gets that found a softly purged object, which is stale.
    pub stale_hits: u64,
    /// Puts that were not admitted to the disk.
    pub unadmitted: u64,
    /// Puts that were admitted because they replaced an object on the disk, in lives that do not admit everything.
    pub admitted_replacing: u64,
    /// Keys whose last versions a restart may have lost.
    pub uncertain: u64,
    /// Keys whose last version a restart lost: a get found a replaced version.
    pub rolled_back: u64,
    /// The highest share of a write budget that was used between two restarts for puts that could have been refused.
    pub budget_used_max: f64,
    /// Answers that differ from the model's.
    pub differences: Vec<String>,
}

#[derive(Debug, Clone, Copy, Default)]
struct ExpectedObject {
    version: u32,
    sequence: u64,
    length: u32,
    head: u64,
    live: bool,
    /// Whether it was not admitted to the disk; it then need not be found.
    in_memory_alone: bool,
    /// Its tags, at most two; `u16::MAX` stands for no tag.
    tags: [u16; 2],
    /// Whether it is stale because of a soft purge; `None` if a restart may have lost what made it fresh again.
    stale: Option<bool>,
    /// The sequence of its last confirmation with new metadata.
    confirmed_sequence: u64,
}

struct RandomStoreRun {
    random: SimulationRandom,
    memory: Arc<MemoryDevice>,
    under_way: UnderWay,
    store: Option<Store>,
    expected: Vec<ExpectedObject>,
    /// For each key, the versions that were replaced since the last restart, oldest first.
    replaced: HashMap<u32, Vec<ExpectedObject>>,
    /// Keys whose current version a restart may have lost.
    uncertain: HashSet<u32>,
    version: u32,
    segment_count: u64,
    whole_bytes_max: u64,
    /// The number of puts that the open store has not admitted so far.
    unadmitted: u64,
    opened: Instant,
    report: RunReport,
    options: RunOptions,
}

/// Does the operations; `progress` gets the number of operations done.
pub async fn run(options: RunOptions, mut progress: impl FnMut(u64)) -> RunReport {
    let memory = Arc::new(MemoryDevice::new(options.store_bytes));
    let under_way = UnderWay::default();
    let device = device_of(&memory, &under_way, &options, 0);
    let create = CreateOptions { seed: Some(options.seed), ..CreateOptions::default() };
    Store::create(device.clone(), &create).await.expect("a store is made");
    let store = Store::open(device, open_options(0, options.background)).await.expect("a new store opens");
    let mut run = RandomStoreRun {
        random: SimulationRandom::new(options.seed),
        memory,
        under_way,
        segment_count: store.stat().segment_count,
        whole_bytes_max: store.stat().whole_bytes_max,
        store: Some(store),
        expected: vec![ExpectedObject::default(); options.keys as usize],
        replaced: HashMap::new(),
        uncertain: HashSet::new(),
        version: 0,
        unadmitted: 0,
        opened: Instant::now(),
        report: RunReport::default(),
        options: options.clone(),
    };
    for number in 0..options.operations {
        run.operate().await;
        if number % options.operations_per_restart == options.operations_per_restart - 1 {
            run.restart().await;
            progress(number + 1);
        }
        if run.report.differences.len() > if options.stops_at_difference { 0 } else { 20 } {
            break;
        }
    }
    run.report
}

/// The bugs planted to show that the comparison can fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RandomRunBug {
    /// The model expects a version that was never put.
    WrongModel,
    /// A bug of the store.
    Bug(Bug),
}

impl RandomRunBug {
    /// Returns all bugs that can be planted.
    pub fn all() -> Vec<RandomRunBug> {
        let bugs = Bug::RUNNING.into_iter().chain(Bug::ADMISSION);
        [RandomRunBug::WrongModel].into_iter().chain(bugs.map(RandomRunBug::Bug)).collect()
    }

    /// The printed name.
    pub fn name(self) -> &'static str {
        match self {
            RandomRunBug::WrongModel => "a model that expects a version never put",
            RandomRunBug::Bug(bug) => bug.name(),
        }
    }
}

/// Runs seeds from `seed` on with a planted defect, until an answer differs.
pub fn run_planted(plant: RandomRunBug, seed: u64, runs: u64) -> Option<CaughtBug> {
    (seed..seed + runs).find_map(|seed| replay_planted(plant, seed))
}

/// Runs one seed with a planted defect.
pub fn replay_planted(planted: RandomRunBug, seed: u64) -> Option<CaughtBug> {
    let options = RunOptions {
        seed,
        // This many operations take several lives with each rule of admission and each way to read.
        operations: 100_000,
        keys: 10_000,
        operations_per_restart: 8_000,
        damage_per_restart: 0,
        store_bytes: 64 << 20,
        is_late: false,
        background: BackgroundRuntime::Caller,
        stops_at_difference: true,
        plant_wrong_model: planted == RandomRunBug::WrongModel,
    };
    if let RandomRunBug::Bug(bug) = planted {
        plant(Some(bug));
    }
    let report = in_virtual_time(run(options, |_| {}));
    plant(None);
    let broken = report.differences.first()?.clone();
    Some(CaughtBug { case: BugCase::of_seed(seed), broken, account: format!("{report:?}") })
}

/// Returns the page with which a key is put.
fn page_of(key: u32) -> u32 {
    key / PAGE_KEYS * PAGE_KEYS
}

/// Returns the options for the opening after so many restarts: the size of reads and the rules of admission change.
fn open_options(restarts: u64, background: BackgroundRuntime) -> OpenOptions {
    let write_delay = Duration::from_millis(50);
    let cluster_read = [ClusterRead::Cluster, ClusterRead::Auto, ClusterRead::Object][(restarts % 3) as usize];
    let (reinsert_percent, rewrite_percent) = [(10, 20), (0, 100), (10, 100), (0, 20)][(restarts % 4) as usize];
    let index_loading = [IndexLoading::Shards, IndexLoading::Apart][(restarts / 2 % 2) as usize];
    // The model knows no device that is silent for a while, and operations that end late may take longer than that.
    let device_deadline = None;
    let admission = admission(restarts);
    let usual = OpenOptions { admission, index_loading, background, device_deadline, ..OpenOptions::default() };
    OpenOptions { memory_bytes: 24 << 20, write_delay, reinsert_percent, rewrite_percent, cluster_read, ..usual }
}

/// Makes the device for the opening after so many restarts.
fn device_of(memory: &Arc<MemoryDevice>, under_way: &UnderWay, options: &RunOptions, restarts: u64) -> SharedDevice {
    if !options.is_late {
        return memory.clone();
    }
    let late = LateFilter::new(memory.clone(), options.seed ^ restarts, under_way);
    Arc::new(DetachedFilter::new(Arc::new(late), under_way))
}

/// Returns the rules of admission after so many restarts; half of all openings admit everything.
fn admission(restarts: u64) -> AdmissionOptions {
    let open = AdmissionOptions::default();
    match restarts % 6 {
        1 => AdmissionOptions { rule: AdmitRule::SecondRequest, ..open },
        3 => AdmissionOptions { bytes_min: 100, bytes_max: Some(1000), ..open },
        5 => AdmissionOptions { write_budget: Some(BUDGET), seed: Some(restarts), ..open },
        _ => open,
    }
}

impl RandomStoreRun {
    fn store(&self) -> &Store {
        self.store.as_ref().expect("a store is open between restarts")
    }

    async fn operate(&mut self) {
        self.report.operations += 1;
        match self.random.below(PURGE_ALL_EVERY) {
            0 => return self.purge_all().await,
            1..=20 => return self.purge_prefix().await,
            21..=80 => return self.purge_tag().await,
            81 => return self.soft_purge_all().await,
            82..=91 => return self.soft_purge_prefix().await,
            92..=121 => return self.soft_purge_tag().await,
            _ => {}
        }
        // A few popular keys are chosen often, so that versions replace each other; the others cover the whole range.
        let bound =
            if self.random.chance(50) { u64::from(self.options.keys / 50).max(1) } else { self.options.keys.into() };
        let key = self.random.below(bound) as u32;
        match self.random.below(100) {
            0..=44 => self.get(key, None).await,
            45..=54 => self.view(key).await,
            55..=92 => self.put(key).await,
            93..=95 => self.purge(key).await,
            96 => self.soft_purge(key).await,
            97 => self.fill_that_breaks(key).await,
            _ => self.refresh(key).await,
        }
    }

    /// Gets a page, some objects stored with it, and an object stored with the previous page.
    async fn view(&mut self, key: u32) {
        let page = page_of(key);
        self.get(page, None).await;
        for _ in 0..3 {
            let other = page + 1 + self.random.below(PAGE_KEYS as u64 - 1) as u32;
            let other = if self.random.chance(30) { other.saturating_sub(PAGE_KEYS) } else { other };
            self.get(other.min(self.options.keys - 1), Some(page)).await;
        }
    }

    async fn get(&mut self, key: u32, page: Option<u32>) {
        let name = primary(key);
        if let Some(page) = page {
            self.store().collocate(&name, &primary(page));
        }
        let found = self.read(key, KeyRef::new(&name, variant(key))).await;
        let expected = self.expected[key as usize];
        let head = self.store().stat().head_epoch;
        // Fragments in the oldest quarter of the ring need not be found, because the ring may overwrite some while
        // others are read.
        let leaving = if u64::from(expected.length) > self.whole_bytes_max { self.segment_count / 4 } else { 0 };
        let is_certain = !self.uncertain.contains(&key);
        let demanded = is_certain
            && expected.live
            && !expected.in_memory_alone
            && expected.head + self.segment_count > head + 3 + leaving;
        self.report.demanded += u64::from(demanded);
        match found {
            None => {
                self.report.misses += 1;
                if demanded {
                    self.report.demanded_missing += 1;
                    // The loss is counted now; do not count it again.
                    self.expected[key as usize].live = false;
                }
            }
            Some((metadata, bytes)) => {
                self.report.hits += 1;
                let planted = u32::from(self.options.plant_wrong_model && self.report.hits == 1000);
                let version = expected.version + planted;
                let right = expected.live
                    && metadata.starts_with(&version.to_le_bytes())
                    && bytes == body(0, key, version, expected.length as usize);
                if !right {
                    let operation = self.report.operations;
                    self.report.differences.push(format!(
                        "operation {operation}: key {key} hit with {} bytes, metadata {metadata:?}; the model has {expected:?}",
                        bytes.len()
                    ));
                }
            }
        }
    }

    /// Makes the found version the current one, if it is a possible one.
    fn settle(&mut self, key: u32, metadata: &[u8]) {
        if !self.uncertain.contains(&key) {
            return;
        }
        let current = self.expected[key as usize];
        let candidates = self.replaced.get(&key).into_iter().flatten().chain([&current]);
        let is_it =
            |candidate: &&ExpectedObject| candidate.live && metadata.starts_with(&candidate.version.to_le_bytes());
        let Some(found) = candidates.copied().find(|candidate| is_it(&candidate)) else { return };
        self.report.rolled_back += u64::from(found.version != current.version);
        self.expected[key as usize] = found;
        self.forget_replaced(key);
    }

    /// Forgets the replaced versions of a key and the uncertainty about it: from now on the key has its current version
    /// or none.
    fn forget_replaced(&mut self, key: u32) {
        self.replaced.remove(&key);
        self.uncertain.remove(&key);
    }

    /// Whether a put was not admitted since the last call.
    fn was_not_admitted(&mut self) -> bool {
        let counts = self.store().stat().counts;
        let unadmitted = counts.unadmitted_first + counts.unadmitted_size + counts.unadmitted_budget;
        unadmitted != std::mem::replace(&mut self.unadmitted, unadmitted)
    }

    async fn put(&mut self, key: u32) {
        self.version += 1;
        let version = self.version;
        let length = match self.random.below(1000) {
            0..=4 => 600_000 + self.random.below(1_500_000),
            5..=20 => 20_000 + self.random.below(200_000),
            _ => self.random.below(1200),
        };
        let name = primary(key);
        let bytes = bytes::Bytes::from(body(0, key, version, length as usize));
        let metadata = bytes::Bytes::copy_from_slice(&version.to_le_bytes());
        let head = self.store().stat().head_epoch;
        if self.random.chance(50) {
            self.store().collocate(&name, &primary(page_of(key)));
        }
        let tags = [(); 2].map(|()| if self.random.chance(40) { self.random.below(TAGS) as u16 } else { u16::MAX });
        let tag_names: Vec<_> = tags.iter().filter(|&&tag| tag != u16::MAX).map(|&number| tag(number.into())).collect();
        let tag_refs: Vec<&[u8]> = tag_names.iter().map(Vec::as_slice).collect();
        let sequence = loop {
            let key = KeyRef::new(&name, variant(key));
            let put = self.store().put_tagged(key, &tag_refs, metadata.clone(), bytes.clone()).await;
            match put {
                Ok(sequence) => break sequence.0,
                // The put was refused because the writer is behind: wait and retry, because here every put must be
                // accepted.
                Err(_) if self.store().sync().await.is_ok() => {}
                Err(error) => {
                    self.report.differences.push(format!("put of key {key:?} failed: {error}"));
                    return;
                }
            }
        };
        let in_memory_alone = self.was_not_admitted();
        let fresh = ExpectedObject { stale: Some(false), ..ExpectedObject::default() };
        let new = ExpectedObject {
            version,
            sequence,
            length: length as u32,
            head,
            live: true,
            in_memory_alone,
            tags,
            ..fresh
        };
        let before = std::mem::replace(&mut self.expected[key as usize], new);
        self.uncertain.remove(&key);
        self.replaced.entry(key).or_default().push(before);
    }

    async fn purge(&mut self, key: u32) {
        if let Err(error) = self.store().purge_key(&primary(key)).await {
            self.report.differences.push(format!("purge of key {key} failed: {error}"));
        }
        self.expected[key as usize].live = false;
        self.forget_replaced(key);
    }

    async fn purge_all(&mut self) {
        if let Err(error) = self.store().purge_all().await {
            self.report.differences.push(format!("purge of everything failed: {error}"));
        }
        self.expected.iter_mut().for_each(|expected| expected.live = false);
        self.replaced.clear();
        self.uncertain.clear();
    }

    /// Purges all keys whose number begins with three random digits.
    async fn purge_prefix(&mut self) {
        let number = 100 + self.random.below(900) as u32;
        if let Err(error) = self.store().purge_prefix(&primary(number)).await {
            self.report.differences.push(format!("purge of what begins with {number} failed: {error}"));
        }
        let mut scale = 1;
        while number * scale < self.options.keys {
            let end = ((number + 1) * scale).min(self.options.keys);
            for key in number * scale..end {
                self.expected[key as usize].live = false;
                self.forget_replaced(key);
            }
            scale *= 10;
        }
    }

    /// Purges all keys whose version has a tag; the versions that these versions replaced stay hidden.
    async fn purge_tag(&mut self) {
        let number = self.random.below(TAGS) as u16;
        if let Err(error) = self.store().purge_tag(&tag(number.into())).await {
            self.report.differences.push(format!("purge of tag {number} failed: {error}"));
        }
        for expected in self.expected.iter_mut().filter(|expected| expected.live && expected.tags.contains(&number)) {
            expected.live = false;
            self.report.purged_by_tag += 1;
        }
        for replaced in self.replaced.values_mut().flatten().filter(|replaced| replaced.tags.contains(&number)) {
            replaced.live = false;
        }
    }

    /// Breaks a fill off in the middle; the previous version must remain.
    async fn fill_that_breaks(&mut self, key: u32) {
        let name = primary(key);
        let key_ref = KeyRef::new(&name, variant(key));
        let stale = self.store().get(key_ref).await;
        if let FillRole::Leader(mut fill) = self.store().begin_fill(key_ref, stale.as_ref()) {
            let length = self.random.below(3_000_000);
            if fill.start(variant(key), "broken".into(), Some(length + 1)) {
                let _ = fill.write(vec![7; length as usize].into()).await;
            }
        }
    }

    /// Stores new metadata for a stored object, as after a 304.
    async fn refresh(&mut self, key: u32) {
        let name = primary(key);
        let key_ref = KeyRef::new(&name, variant(key));
        let Some(stale) = self.store().get(key_ref).await else { return };
        self.settle(key, stale.metadata());
        let head = self.store().stat().head_epoch;
        if let FillRole::Leader(fill) = self.store().begin_fill(key_ref, Some(&stale)) {
            let mut metadata = stale.metadata()[..4].to_vec();
            metadata.extend_from_slice(b"refreshed");
            let whole = stale.whole().is_some();
            let Ok(refreshed) = fill.refresh(&stale, metadata.into()).await else { return };
            let expected = &mut self.expected[key as usize];
            (expected.stale, expected.confirmed_sequence) = (Some(false), refreshed.sequence().0);
            if whole {
                // A whole object is rewritten with its metadata; fragments stay where they are.
                self.expected[key as usize].head = head;
                self.expected[key as usize].in_memory_alone = self.was_not_admitted();
            }
        }
    }

    async fn restart(&mut self) {
        self.report.restarts += 1;
        let clean = self.random.chance(50);
        let stopped = if clean { self.store().close().await } else { self.store().sync().await.map(|_| ()) };
        if let Err(error) = stopped {
            self.report.differences.push(format!("stop failed: {error}"));
        }
        self.report.restarts_clean += u64::from(clean);
        let counts = self.store().stat().counts;
        self.report.damage_noticed += counts.damaged;
        self.report.reinserted += counts.reinserted;
        self.report.neighbours += counts.neighbours_taken;
        self.report.regrouped += counts.regrouped;
        self.report.kept += counts.kept;
        self.report.unadmitted += counts.unadmitted_first + counts.unadmitted_size + counts.unadmitted_budget;
        self.report.admitted_replacing += counts.admitted_replacing;
        self.look_at_the_budget();
        self.unadmitted = 0;
        self.opened = Instant::now();
        self.store = None;
        std::mem::take(&mut self.under_way).settle(None).await;
        for _ in 0..self.options.damage_per_restart {
            self.damage().await;
        }
        let device = device_of(&self.memory, &self.under_way, &self.options, self.report.restarts);
        match Store::open(device, open_options(self.report.restarts, self.options.background)).await {
            Ok(store) => {
                let recovered = store.sequences().written.0;
                self.store = Some(store);
                self.doubt_what_came_after(recovered);
            }
            Err(error) => panic!("seed {}: the store does not open: {error}", self.options.seed),
        }
    }

    /// Marks as uncertain the versions after the recovered sequence; the last version up to it is certain.
    fn doubt_what_came_after(&mut self, recovered: u64) {
        self.uncertain.clear();
        self.doubt_staleness(recovered);
        let expected = &self.expected;
        self.replaced.retain(|&key, replaced| {
            let certain = replaced.iter().rposition(|version| version.sequence <= recovered);
            replaced.drain(..certain.unwrap_or(0));
            expected[key as usize].sequence > recovered
        });
        self.uncertain.extend(self.replaced.keys());
        self.report.uncertain += self.uncertain.len() as u64;
    }

    /// Checks that the objects that could have been refused were admitted within the budget: the initial credit plus
    /// the income since then.
    fn look_at_the_budget(&mut self) {
        let stat = self.store().stat();
        if stat.admission.write_budget.is_none() {
            return;
        }
        let credit = BUDGET.bytes as f64 / 48.0 + self.opened.elapsed().as_secs_f64() * BUDGET.bytes_per_s();
        let used = (stat.counts.admitted_bytes - stat.counts.admitted_replacing_bytes) as f64 / credit;
        self.report.budget_used_max = self.report.budget_used_max.max(used);
        if used > 1.0 {
            let operation = self.report.operations;
            self.report.differences.push(format!("operation {operation}: {used} of the write budget was admitted"));
        }
    }

    /// Flips a random bit of the store.
    async fn damage(&mut self) {
        let block = 4096;
        let offset = self.random.below(self.options.store_bytes / block) * block;
        let Ok(mut buffer) = read_device(&*self.memory, offset, block as usize).await else { return };
        let at = self.random.below(block) as usize;
        buffer[at] ^= 1 << self.random.below(8);
        let write =
            self.memory.write_at(offset, vec![Buffer::copy_of(&buffer)], WriteFlags::default(), IoContext::default());
        if write.await.is_ok() {
            self.report.damaged_places += 1;
        }
    }
}
