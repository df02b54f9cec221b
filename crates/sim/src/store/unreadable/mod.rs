//! A store of which a block, or both copies of one, cannot be read: when it is opened, or while it runs. Some blocks of
//! segments are damaged instead.
//!
//! Owns: the images, the cases, and the losses that `docs/semantics.md` states for each area. What is lost is compared
//! with these losses, key by key. `device`: the device; `image`: which blocks an object occupies.

mod device;
mod image;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use nectary_block::{DeviceSnapshot, MemoryDevice, SharedDevice};
use nectary_store::planted::{Bug, plant};
use nectary_store::{BackgroundRuntime, CreateOptions, KeyRef, OpenOptions, Store};

use crate::late::in_virtual_time;
use crate::planted::{BugCase, CaughtBug};
use crate::random::SimulationRandom;
use crate::store::{body, primary};
pub use device::{BLOCK_BYTES, BadBlocks};
pub use image::{BlockArea, ImageAreas};

/// The number of keys of an image.
const KEYS: u32 = 500;
/// The number of keys that are purged before the image is made, and the number that are put after the last checkpoint of
/// a killed store.
const PURGED: u32 = 20;
const PUT_LAST: u32 = 160;
/// So many of the last versions may be in appends of which no later append says that they were flushed.
const UNCONFIRMED: u32 = 10;
/// The most differences that are described.
const DIFFERENCES_MAX: usize = 10;

/// What to run.
#[derive(Debug, Clone, Copy)]
pub struct UnreadableRunPlan {
    /// The seed of the images, and of the choice of blocks and keys.
    pub seed: u64,
    /// The size of the store, in bytes.
    pub store_bytes: u64,
    /// One block in so many of the segments is tried, and all blocks of the other areas if it is 1; otherwise one in
    /// eight times fewer.
    pub stride: u64,
    /// The number of keys whose loss is not expected that are read in each case; all others count as there.
    pub keys: u32,
}

/// The moment from which a block cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultOnset {
    /// Before the store is opened.
    Open,
    /// While it runs.
    Running,
}

/// What is wrong with the blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BlockFault {
    /// They cannot be read.
    Unreadable,
    /// They have other bytes.
    Damaged,
}

/// The results.
#[derive(Debug, Default, Clone)]
pub struct UnreadableReport {
    /// Cases by area and moment: their number, the objects that were lost, and those of which an older version was
    /// found.
    pub cases: BTreeMap<(BlockArea, FaultOnset), [u64; 3]>,
    /// Cases with both copies of a block.
    pub pairs: u64,
    /// Cases in which the block is damaged.
    pub damaged: u64,
    /// Opens that were refused, because both copies of the superblock cannot be read.
    pub refused: u64,
    /// Opens that purged everything, because both copies of a block of the purge log cannot be read.
    pub purged_all: u64,
    /// Objects that were found, with the right bytes.
    pub found: u64,
    /// What differs from the stated losses.
    pub differences: Vec<String>,
    /// The number of differences.
    pub difference_count: u64,
}

impl UnreadableReport {
    /// The number of cases.
    pub fn case_count(&self) -> u64 {
        self.cases.values().map(|[cases, ..]| cases).sum()
    }

    /// The number of objects that were lost, in all cases.
    pub fn lost_count(&self) -> u64 {
        self.cases.values().map(|[_, lost, _]| lost).sum()
    }

    fn differs(&mut self, difference: String) {
        self.difference_count += 1;
        if self.differences.len() < DIFFERENCES_MAX {
            self.differences.push(difference);
        }
    }
}

/// An image of a store, and what a store without bad blocks finds in it.
struct FilledImage {
    /// Whether the store was killed, not closed.
    is_killed: bool,
    snapshot: DeviceSnapshot,
    image: Vec<u8>,
    areas: ImageAreas,
    /// The current version and length of each key that is there.
    live: HashMap<u32, (u32, usize)>,
    /// Versions that were replaced after the last checkpoint, and whether no later append confirms that the newer ones
    /// were flushed.
    older: HashMap<u32, (u32, usize, bool)>,
    /// The blocks with the heads of appends.
    heads: HashSet<u64>,
    /// The blocks of each live object.
    blocks: HashMap<u32, Vec<std::ops::Range<u64>>>,
}

/// One case.
struct UnreadableTrial<'a> {
    filled: &'a FilledImage,
    blocks: &'a [u64],
    fault: BlockFault,
    moment: FaultOnset,
    keys: u32,
    random: SimulationRandom,
}

fn options() -> OpenOptions {
    OpenOptions {
        memory_bytes: 32 << 20,
        write_delay: Duration::from_millis(5),
        warm_up: false,
        reinsert_percent: 0,
        rewrite_percent: 0,
        background: BackgroundRuntime::Caller,
        ..OpenOptions::default()
    }
}

/// Runs all cases; `progress` gets the number of cases done.
pub fn run(amount: UnreadableRunPlan, mut progress: impl FnMut(u64)) -> UnreadableReport {
    let mut report = UnreadableReport::default();
    for is_killed in [false, true] {
        let filled = in_virtual_time(fill(amount, is_killed));
        let dense = (amount.stride / 8).max(1);
        let tries = |block: &u64| {
            let stride = if filled.areas.area(*block) == BlockArea::Segment { amount.stride } else { dense };
            block % stride == amount.seed % stride || *block < 4
        };
        let end = amount.store_bytes / BLOCK_BYTES;
        let single = (0..end).filter(|block| tries(block) || *block == end - 1).map(|block| vec![block]);
        // All pairs whose loss purges everything are tried: there are few.
        let purges = |block| {
            let is_log = filled.areas.area(block) == BlockArea::PurgeLog;
            is_log && filled.areas.may_have_purges(&filled.image, block)
        };
        let pairs = filled.areas.pairs().into_iter().filter(|[first, _]| tries(first) || purges(*first));
        let pairs = pairs.map(|pair| pair.to_vec());
        if let Some(wrong) = image::wrong_states(&filled.image).filter(|_| is_killed) {
            report.differs(wrong);
        }
        for blocks in single.chain(pairs) {
            let (unreadable, damaged) = (BlockFault::Unreadable, BlockFault::Damaged);
            let is_in_segments = filled.areas.area(blocks[0]) == BlockArea::Segment;
            let cases =
                [(unreadable, FaultOnset::Open), (unreadable, FaultOnset::Running), (damaged, FaultOnset::Open)];
            for (fault, moment) in cases.into_iter().take(if is_in_segments { 3 } else { 2 }) {
                let random = SimulationRandom::new(amount.seed ^ blocks[0] << 1 ^ u64::from(is_killed));
                let trial =
                    UnreadableTrial { filled: &filled, blocks: &blocks, fault, moment, keys: amount.keys, random };
                in_virtual_time(trial.run(&mut report));
            }
            progress(report.case_count());
        }
    }
    report
}

/// Runs one seed with a planted bug.
pub fn replay_planted(bug: Bug, seed: u64) -> Option<CaughtBug> {
    plant(Some(bug));
    let report = run(UnreadableRunPlan { seed, store_bytes: 8 << 20, stride: 64, keys: 8 }, |_| {});
    plant(None);
    let broken = report.differences.first()?.clone();
    Some(CaughtBug { case: BugCase::of_seed(seed), broken, account: format!("{report:?}") })
}

/// Makes an image.
async fn fill(amount: UnreadableRunPlan, is_killed: bool) -> FilledImage {
    let mut random = SimulationRandom::new(amount.seed);
    let memory = Arc::new(MemoryDevice::new(amount.store_bytes));
    let device: SharedDevice = memory.clone();
    let create = CreateOptions { seed: Some(amount.seed), ..CreateOptions::default() };
    Store::create(device.clone(), &create).await.expect("a store is made");
    let store = Store::open(device.clone(), options()).await.expect("a new store opens");
    let mut live = HashMap::new();
    // About 1.2 times what the ring has room for is put, so that segments have remains of a former lap.
    let mean = amount.store_bytes * 6 / 5 / u64::from(KEYS + KEYS / 4);
    let length = |random: &mut SimulationRandom| match random.below(20) {
        0 => mean * 6 + random.below(mean * 4),
        1..=5 => random.below(600),
        _ => random.below(mean),
    };
    for version in 0..KEYS + KEYS / 4 {
        let key = if version < KEYS { version } else { random.below(KEYS.into()) as u32 };
        put(&store, &mut live, key, version, length(&mut random) as usize).await;
    }
    for _ in 0..PURGED {
        let key = random.below(KEYS.into()) as u32;
        store.purge_key(&primary(key)).await.expect("a purge is flushed");
        live.remove(&key);
    }
    store.close().await.expect("the store is closed");
    drop(store);
    let mut older = HashMap::new();
    if is_killed {
        let store = Store::open(device.clone(), options()).await.expect("a closed store opens");
        for version in 0..PUT_LAST {
            let key = if version % 3 == 0 { KEYS + version } else { random.below(KEYS.into()) as u32 };
            let is_unconfirmed = version + UNCONFIRMED >= PUT_LAST;
            older.extend(live.get(&key).map(|&(before, length)| (key, (before, length, is_unconfirmed))));
            put(&store, &mut live, key, 2 * KEYS + version, length(&mut random) as usize / 4).await;
            if version % 5 == 0 {
                store.sync().await.expect("the store is flushed");
            }
        }
        store.purge_key(&primary(0)).await.expect("a purge is flushed");
        live.remove(&0);
        older.remove(&0);
        store.sync().await.expect("the store is flushed");
    }
    let (snapshot, image) = (memory.snapshot(), memory.image());
    let areas = ImageAreas::of(&image);
    // What the ring has overwritten is not in the image.
    let store = Store::open(device_of(&snapshot), options()).await.expect("the image opens");
    let mut there = HashMap::new();
    for (&key, &(version, length)) in &live {
        if get(&store, key).await == GetAnswer::Found(version, length) {
            there.insert(key, (version, length));
        }
    }
    let mut all = image::blocks_of_objects(&image, &areas);
    assert!(there.keys().all(|&key| all.contains_key(&primary(key))), "what is found is in the image");
    let blocks = (0..KEYS + PUT_LAST).filter_map(|key| Some((key, all.remove(&primary(key))?))).collect();
    let heads = image::blocks_of_heads(&image, &areas);
    FilledImage { is_killed, snapshot, image, areas, live: there, older, heads, blocks }
}

fn device_of(snapshot: &DeviceSnapshot) -> SharedDevice {
    Arc::new(MemoryDevice::from_snapshot(snapshot))
}

async fn put(store: &Store, live: &mut HashMap<u32, (u32, usize)>, key: u32, version: u32, length: usize) {
    let name = primary(key);
    let metadata = [version.to_le_bytes(), (length as u32).to_le_bytes()].concat();
    loop {
        let bytes = body(0, key, version, length);
        if store.put(KeyRef::new(&name, b""), metadata.clone().into(), bytes.into()).await.is_ok() {
            break;
        }
        store.sync().await.expect("the device works");
    }
    live.insert(key, (version, length));
}

/// The answer of a get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GetAnswer {
    /// A version and its length, with the right bytes.
    Found(u32, usize),
    Missing,
    /// The device failed.
    Failed,
    /// Bytes that nobody put.
    Wrong,
}

async fn get(store: &Store, key: u32) -> GetAnswer {
    let name = primary(key);
    let object = match store.try_get(KeyRef::new(&name, b"")).await {
        Ok(Some(object)) => object,
        Ok(None) => return GetAnswer::Missing,
        Err(_) => return GetAnswer::Failed,
    };
    let mut bytes = Vec::new();
    let mut reader = object.reader(0..u64::MAX);
    while let Some(piece) = reader.next().await {
        match piece {
            Ok(piece) => bytes.extend_from_slice(&piece),
            Err(_) => return GetAnswer::Failed,
        }
    }
    let metadata = object.metadata();
    let field = |at: usize| metadata.get(at..at + 4).map(|bytes| u32::from_le_bytes(bytes.try_into().expect("four")));
    match (field(0), field(4)) {
        (Some(version), Some(length)) if bytes == body(0, key, version, length as usize) => {
            GetAnswer::Found(version, length as usize)
        }
        _ => GetAnswer::Wrong,
    }
}

impl UnreadableTrial<'_> {
    async fn run(mut self, report: &mut UnreadableReport) {
        let UnreadableTrial { filled, blocks, fault, moment, .. } = self;
        let area = filled.areas.area(blocks[0]);
        report.pairs += u64::from(blocks.len() > 1);
        report.damaged += u64::from(fault == BlockFault::Damaged);
        report.cases.entry((area, moment)).or_default()[0] += 1;
        let bad = BadBlocks::default();
        let mut snapshot = filled.snapshot.clone();
        if fault == BlockFault::Damaged {
            for block in blocks {
                let at = (block * BLOCK_BYTES) as usize;
                let bytes: Vec<u8> = filled.image[at..][..BLOCK_BYTES as usize].iter().map(|byte| !byte).collect();
                snapshot.write(at as u64, &bytes);
            }
        }
        let device = bad.over(device_of(&snapshot));
        if (fault, moment) == (BlockFault::Unreadable, FaultOnset::Open) {
            bad.add(blocks);
        }
        let is_refused = moment == FaultOnset::Open && blocks == [0, 1];
        let probed = Store::probe(&device).await;
        let store = match Store::open(device.clone(), options()).await {
            Ok(store) => store,
            Err(_) if is_refused && probed.is_err() => return report.refused += 1,
            Err(error) => return report.differs(format!("{}: the store does not open: {error}", self.what())),
        };
        if is_refused || !matches!(probed, Ok(true)) {
            report.differs(format!("{}: it opens, but it was taken for {probed:?}", self.what()));
        }
        if fault == BlockFault::Unreadable {
            bad.add(blocks);
        }
        let may_lose_purges = area == BlockArea::PurgeLog && blocks.len() > 1 && moment == FaultOnset::Open;
        let purges_all = may_lose_purges && filled.areas.may_have_purges(&filled.image, blocks[0]);
        report.purged_all += u64::from(purges_all);
        self.compare(&store, purges_all, report).await;
        // The store goes on, and what it stores now is found again.
        let new = KEYS * 4;
        let mut live = HashMap::new();
        put(&store, &mut live, new, new, 3000).await;
        let written = store.sync().await;
        let purged = store.purge_key(&primary(1)).await;
        let closed = store.close().await;
        drop(store);
        if let Some(error) = [written.err(), purged.err(), closed.err()].into_iter().flatten().next() {
            return report.differs(format!("{}: it cannot be written any more: {error}", self.what()));
        }
        // What was not written again cannot be read at the next open either.
        let store = match Store::open(device, options()).await {
            Ok(store) => store,
            Err(_) if blocks == [0, 1] => return,
            Err(error) => return report.differs(format!("{}: it does not open again: {error}", self.what())),
        };
        for (key, wanted) in [(new, GetAnswer::Found(new, 3000)), (1, GetAnswer::Missing)] {
            let got = get(&store, key).await;
            // While it runs, both copies of a block of the log may be lost that the next open needs.
            let is_lost = got == GetAnswer::Missing && store.stat().recovery.purges_lost;
            if got != wanted && !(is_lost && area == BlockArea::PurgeLog && blocks.len() > 1) {
                report.differs(format!("{}: after the next open, key {key} is {got:?}", self.what()));
            }
        }
    }

    fn what(&self) -> String {
        let state = if self.filled.is_killed { "killed" } else { "closed" };
        let area = self.filled.areas.area(self.blocks[0]).name();
        format!("{state}, blocks {:?} ({area}), {:?}, {:?}", self.blocks, self.fault, self.moment)
    }

    /// Compares what is lost with what may be.
    async fn compare(&mut self, store: &Store, purges_all: bool, report: &mut UnreadableReport) {
        let filled = self.filled;
        let is_bad = |range: &std::ops::Range<u64>| self.blocks.iter().any(|block| range.contains(block));
        let is_in_bad_block = |key: &u32| filled.blocks.get(key).is_some_and(|blocks| blocks.iter().any(is_bad));
        let is_lost = |key: &u32| purges_all || is_in_bad_block(key);
        let mut keys: Vec<u32> = filled.live.keys().copied().filter(is_lost).collect();
        let others = (0..self.keys).map(|_| self.random.below(u64::from(KEYS + PUT_LAST)) as u32);
        keys.extend(others.collect::<Vec<_>>());
        keys.sort_unstable();
        keys.dedup();
        let area = filled.areas.area(self.blocks[0]);
        for key in keys {
            let wanted = filled.live.get(&key).map(|&(version, length)| GetAnswer::Found(version, length));
            let is_lost = wanted.is_some() && is_lost(&key);
            let got = get(store, key).await;
            let older = filled.older.get(&key).map(|&(version, length, _)| GetAnswer::Found(version, length));
            let counts = report.cases.entry((area, self.moment)).or_default();
            // A read that fails is not a miss. What a crash left behind is read when the store is opened; then a part of it
            // that cannot be read is a miss, as damage is.
            let is_damaged = self.fault == BlockFault::Damaged;
            let may_miss = purges_all || is_damaged || filled.is_killed && self.moment == FaultOnset::Open;
            let may_be_older = filled.is_killed
                && self.moment == FaultOnset::Open
                && (filled.older.get(&key).is_some_and(|older| older.2) || filled.heads.contains(&self.blocks[0]));
            match got {
                GetAnswer::Failed if is_lost && !purges_all => counts[1] += 1,
                GetAnswer::Missing if is_lost && may_miss => counts[1] += 1,
                GetAnswer::Missing if wanted.is_none() => {}
                // Whether a rule has purged a record is seen in the record.
                GetAnswer::Failed if wanted.is_none() && is_in_bad_block(&key) => {}
                _ if is_lost && may_be_older && Some(got) == older => counts[2] += 1,
                _ if !is_lost && Some(got) == wanted => report.found += 1,
                _ => {
                    let what = self.what();
                    report.differs(format!("{what}: key {key} is {got:?}, not {wanted:?}; lost: {is_lost}"));
                }
            }
        }
    }
}
