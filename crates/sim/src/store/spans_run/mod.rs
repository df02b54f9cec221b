//! A long seeded run of a store of several spans that are lost and return, against a model.
//!
//! Owns: the versions of each key that may be found. After a put, until the store ends, only that version may be found.
//! After an end, the last synced version or a later one may be found. After a purge, no version that began before it
//! may be found. These rules do not depend on the spans that are present: a loss causes only misses, and only of
//! objects on the lost span. If a span is restored from an older copy while another span was present all the time, no
//! purged object reappears. No replaced object reappears either, unless the copy is from the same life. Leaves to
//! others: spans that fail during a purge (`failing`), and opens with missing and older spans (`openings`).

mod failing;
mod openings;
mod spans_report;

use std::sync::Arc;
use std::time::Duration;

use nectary_store::planted::{Bug, plant};
use nectary_store::{Fill, FillRole, KeyRef, SpanSet, SpanStat, StoredObject};

pub use self::spans_report::{SpansOptions, SpansReport};
use crate::disk::{DiskOptions, SimulatedDisk};
use crate::flushed::FlushImages;
use crate::late::{UnderWay, in_virtual_time};
use crate::planted::{BugCase, CaughtBug};
use crate::random::SimulationRandom;
use crate::store::crash_check::whole;
use crate::store::{body, primary, variant};
use crate::switch::SwitchHandle;

/// The size of a span, in bytes.
const SPAN_BYTES: u64 = 4 << 20;
/// The largest number of fills that stay open for a while.
const FILLS_MAX: usize = 4;
/// A store notices the loss of a span at the latest after this time.
const LOSS_TIME: Duration = Duration::from_secs(60);
/// The number of operations between two events.
const OPERATIONS_PER_EVENT: u64 = 60;

/// The versions of a key that may be found: from `oldest` to `newest`.
#[derive(Debug, Clone, Copy, Default)]
struct VersionBounds {
    oldest: u32,
    newest: u32,
    /// The value of `oldest` after a crash.
    durable: u32,
    /// The lower bound of `durable`: the last purge that returned.
    floor: u32,
    /// Whether a purge failed since the last put; the purge may have taken effect nevertheless.
    is_shaken: bool,
    /// Whether nothing was stored since a purge. A put or fill in progress has already raised `newest`.
    is_purged: bool,
}

struct SimulatedSpan {
    disk: Arc<SimulatedDisk>,
    off: SwitchHandle,
    is_away: bool,
    /// A copy of the span's disk at an earlier moment, with the number of opens before that moment.
    copy: Option<(u64, Arc<SimulatedDisk>)>,
    /// The disk's state after each flush, if a crash will interrupt the open.
    flushed: Option<FlushImages>,
}

struct SpansRun {
    random: SimulationRandom,
    devices: Vec<SimulatedSpan>,
    store: Option<SpanSet>,
    expected: Vec<VersionBounds>,
    fills: Vec<(u32, u32, Fill)>,
    /// The operations in flight, in a run in which operations take time and end in any order.
    under_way: Option<UnderWay>,
    version: u32,
    /// The number of opens so far.
    opens: u64,
    /// Whether all spans are present at the next open.
    keeps_all: bool,
    /// Which spans are missing at the next open, which must succeed; `None` if this is drawn.
    missing: Option<Vec<bool>>,
    report: SpansReport,
    seed: u64,
}

/// Runs in virtual time; `progress` gets the number of stores done. If a store's seed is odd, the operations on its
/// devices take time and end in any order.
pub async fn run(options: SpansOptions, mut progress: impl FnMut(u64)) -> SpansReport {
    let mut report = SpansReport::default();
    for number in 0..options.stores {
        // The first store has the given seed, so `--stores 1 --seed` repeats a single store.
        let seed = seed_of(options.seed, number);
        let mut random = SimulationRandom::new(seed);
        let count = 2 + random.below(3) as usize;
        let devices = (0..count).map(|span| SimulatedSpan {
            disk: SimulatedDisk::new(
                SPAN_BYTES * (1 + span as u64 % 2),
                DiskOptions { seed: seed ^ span as u64, late_percent: 0, ..DiskOptions::default() },
            ),
            off: SwitchHandle::default(),
            is_away: false,
            copy: None,
            flushed: None,
        });
        let mut run = SpansRun {
            random,
            devices: devices.collect(),
            store: None,
            expected: vec![VersionBounds::default(); options.keys as usize],
            fills: Vec::new(),
            under_way: (seed % 2 == 1).then(UnderWay::default),
            version: 0,
            opens: 0,
            keeps_all: false,
            missing: None,
            report: std::mem::take(&mut report),
            seed,
        };
        run.reopen().await;
        for _ in 0..options.events {
            for _ in 0..OPERATIONS_PER_EVENT {
                run.operate().await;
            }
            run.event().await;
        }
        run.end(0).await;
        report = run.report;
        progress(number + 1);
        if !report.differences.is_empty() && options.stops_at_difference {
            break;
        }
    }
    report
}

/// Returns the seed of one store of many: even and odd seeds alternate, and successive seeds are otherwise unrelated.
fn seed_of(first: u64, number: u64) -> u64 {
    first.wrapping_add(number.wrapping_mul(0xd6e8_feb8_6659_fd93))
}

/// The options of one store with a planted bug.
fn planted_options(seed: u64) -> SpansOptions {
    SpansOptions { seed, stores: 1, events: 12, keys: 120, stops_at_difference: true }
}

/// Runs stores with one bug planted, the first with this seed, until one of them catches it.
pub fn run_planted(bug: Bug, seed: u64, stores: u64) -> Option<CaughtBug> {
    (0..stores).find_map(|number| replay_planted(bug, seed_of(seed, number)))
}

/// Runs the store of one seed with one bug planted.
pub fn replay_planted(bug: Bug, seed: u64) -> Option<CaughtBug> {
    plant(Some(bug));
    let report = in_virtual_time(run(planted_options(seed), |_| {}));
    plant(None);
    let broken = report.differences.first()?.trim_start_matches(&format!("seed {seed}: ")).to_owned();
    Some(CaughtBug { case: BugCase::of_seed(seed), broken, account: format!("{report:?}") })
}

impl SpansRun {
    fn differ(&mut self, what: String) {
        if self.report.differences.len() < 20 {
            self.report.differences.push(format!("seed {}: {what}", self.seed));
        }
    }

    fn store(&self) -> SpanSet {
        self.store.clone().expect("a store is open between ends")
    }

    async fn operate(&mut self) {
        self.report.operations += 1;
        if self.random.chance(1) {
            self.copy_some();
        }
        let key = self.random.below(self.expected.len() as u64) as u32;
        match self.random.below(100) {
            0..=44 => {
                self.get(key).await;
            }
            45..=79 => self.put(key).await,
            80..=87 => self.purge_key(key).await,
            88 => self.purge_many(true).await,
            89 => self.purge_many(false).await,
            90..=93 => self.begin_fill(key),
            94..=97 => self.finish_fill().await,
            _ => _ = self.sync().await,
        }
    }

    /// Reads a key and compares; returns whether it was found. The calls that find objects take turns.
    async fn get(&mut self, key: u32) -> bool {
        let (name, store, way) = (primary(key), self.store(), self.report.operations % 3);
        let at = KeyRef::new(&name, variant(key));
        let found = match way {
            0 => store.try_get(at).await.ok().flatten(),
            _ => store.get(at).await,
        };
        // A get may have read into memory what it did not return.
        let resident = match way {
            0 => None,
            1 => store.get_resident(at),
            _ => match store.begin_fill(at, None) {
                Ok(FillRole::Resident(object)) => Some(object),
                _ => None,
            },
        };
        let mut is_found = false;
        for object in found.into_iter().chain(resident) {
            is_found |= self.compare(key, &object).await;
        }
        self.report.misses += u64::from(!is_found);
        is_found
    }

    /// Compares an object with what may be found; returns whether it could be read.
    async fn compare(&mut self, key: u32, object: &StoredObject) -> bool {
        let Some((version, bytes)) = contents(object).await else { return false };
        let VersionBounds { oldest, newest, .. } = self.expected[key as usize];
        if bytes != body(self.seed, key, version, length(version)) {
            self.differ(format!("key {key}: wrong bytes under version {version}"));
        } else if !(oldest..=newest).contains(&version) {
            self.differ(format!("key {key}: version {version} came back, {oldest} to {newest} may be found"));
        } else {
            self.report.hits += 1;
            self.expected[key as usize].oldest = version;
        }
        true
    }

    fn draw(&mut self, key: u32) -> u32 {
        self.version += 1;
        self.expected[key as usize].newest = self.version;
        self.version
    }

    async fn put(&mut self, key: u32) {
        let version = self.draw(key);
        let bytes = body(self.seed, key, version, length(version));
        let metadata = version.to_le_bytes().to_vec();
        let name = primary(key);
        let put = self.store().put(KeyRef::new(&name, variant(key)), metadata.into(), bytes.into()).await;
        if put.is_ok() {
            let expected = &mut self.expected[key as usize];
            expected.oldest = expected.oldest.max(version);
            expected.is_shaken = false;
            expected.is_purged = false;
        }
    }

    fn begin_fill(&mut self, key: u32) {
        if self.fills.len() == FILLS_MAX || self.fills.iter().any(|(open, ..)| *open == key) {
            return;
        }
        let name = primary(key);
        let store = self.store();
        let variant = variant(key);
        let resident = store.get_resident(KeyRef::new(&name, variant));
        if let Ok(FillRole::Leader(mut fill)) = store.begin_fill(KeyRef::new(&name, variant), resident.as_ref()) {
            let version = self.draw(key);
            if fill.start(variant, version.to_le_bytes().to_vec().into(), Some(length(version) as u64)) {
                self.fills.push((key, version, fill));
            }
        }
    }

    async fn finish_fill(&mut self) {
        if self.fills.is_empty() {
            return;
        }
        let at = self.random.below(self.fills.len() as u64) as usize;
        let (key, version, mut fill) = self.fills.swap_remove(at);
        let bytes = body(self.seed, key, version, length(version));
        if fill.write(bytes.into()).await.is_ok() && fill.finish().await.is_ok() {
            // A fill that began before a purge of its key is not stored.
            let expected = &mut self.expected[key as usize];
            expected.is_purged &= version < expected.oldest;
            expected.oldest = expected.oldest.max(version);
        }
    }

    /// Records a purge: one that succeeded is permanent; one that failed may have taken effect.
    fn purged(&mut self, is_good: bool, keys: impl Fn(u32) -> bool) {
        self.version += 1;
        for (key, expected) in self.expected.iter_mut().enumerate() {
            if keys(key as u32) && !is_good {
                expected.is_shaken = true;
            } else if keys(key as u32) {
                expected.oldest = self.version;
                expected.durable = self.version;
                expected.floor = self.version;
                expected.is_purged = true;
            }
        }
    }

    async fn purge_key(&mut self, key: u32) {
        let purge = self.store().purge_key(&primary(key)).await;
        self.purged(purge.is_ok(), |other| other == key);
    }

    async fn purge_many(&mut self, is_all: bool) {
        if is_all {
            let purge = self.store().purge_all().await;
            self.purged(purge.is_ok(), |_| true);
            return;
        }
        let prefix = primary(self.random.below(10) as u32);
        let purge = self.store().purge_prefix(&prefix).await;
        self.purged(purge.is_ok(), |key| primary(key).starts_with(&prefix));
    }

    /// Flushes everything; returns whether that succeeded.
    async fn sync(&mut self) -> bool {
        let is_good = self.store().sync().await.is_ok();
        if is_good {
            self.expected.iter_mut().for_each(|expected| expected.durable = expected.durable.max(expected.oldest));
        }
        is_good
    }

    async fn event(&mut self) {
        match self.random.below(10) {
            0..=2 => self.lose().await,
            3 => self.fail_in_purge().await,
            way => {
                // Before every second end nothing is flushed, so that the end may take something.
                let is_flushed = self.report.ends.iter().sum::<u64>() % 2 == 0 && self.sync().await;
                let held = if is_flushed { self.held().await } else { Vec::new() };
                self.end([0, 0, 1, 1, 2, 2][way as usize - 4]).await;
                let is_put_back = self.random.chance(40) && self.put_back();
                let is_torn = self.reopen().await;
                if !is_put_back && !is_torn && self.devices.iter().all(|device| !device.is_away) {
                    self.demand_all(held).await;
                }
            }
        }
    }

    /// The keys that are found; none if a span is lost, or the ring has overwritten anything.
    async fn held(&mut self) -> Vec<u32> {
        let store = self.store();
        let is_whole = |span: &SpanStat| {
            span.lost.is_none() && span.stat.as_ref().is_some_and(|stat| stat.counts.segments_reclaimed == 0)
        };
        let mut held = Vec::new();
        if store.stat().spans.iter().all(is_whole) {
            for key in 0..self.expected.len() as u32 {
                if self.get(key).await {
                    held.push(key);
                }
            }
        }
        held
    }

    /// Checks that all keys that were found before the end are found: all spans are there, as the end left them.
    async fn demand_all(&mut self, held: Vec<u32>) {
        for key in held {
            self.report.demanded_after_end += 1;
            if !self.get(key).await {
                self.report.demanded_missing += 1;
                self.differ(format!("key {key} is gone after an end, and all spans are there"));
            }
        }
    }

    /// Switches a span off while the store serves. Everything on the other spans must still be found afterwards.
    async fn lose(&mut self) {
        let there: Vec<usize> = (0..self.devices.len()).filter(|span| !self.devices[*span].is_away).collect();
        if there.len() < 2 {
            return;
        }
        let store = self.store();
        let mut held = Vec::new();
        for key in 0..self.expected.len() as u32 {
            let span = store.span_of(&primary(key));
            if self.get(key).await {
                let expected = &mut self.expected[key as usize];
                (expected.is_shaken, expected.is_purged) = (false, false);
                held.push((key, span));
            }
        }
        let lost = there[self.random.below(there.len() as u64) as usize];
        self.devices[lost].off.set(true);
        self.devices[lost].is_away = true;
        self.report.losses += 1;
        // The store notices the loss at the next failed write; some operations may happen before.
        let patience = self.random.below(6);
        for _ in 0..patience {
            self.operate().await;
        }
        let _ = store.sync().await;
        if patience.is_multiple_of(2) {
            // The store tries again for less than this time; then the span counts as lost, and others stand in for it.
            tokio::time::sleep(LOSS_TIME).await;
        }
        let _ = store.sync().await;
        let gone: Vec<u32> =
            store.stat().spans.iter().filter(|span| span.lost.is_some()).map(|span| span.number).collect();
        for (key, span) in held {
            let VersionBounds { is_shaken, is_purged, .. } = self.expected[key as usize];
            // A key of the lost span is looked at too: the span that stands in for it must have nothing older.
            let is_found = self.get(key).await;
            // Objects that were purged meanwhile need not be found.
            if is_shaken || is_purged || span.is_some_and(|span| gone.contains(&span)) {
                continue;
            }
            self.report.demanded += 1;
            if !is_found {
                self.report.demanded_missing += 1;
                self.differ(format!("key {key} of span {span:?} is gone, span {gone:?} was lost"));
            }
        }
    }

    /// Ends the store: 0 is a kill, 1 a clean stop, 2 a loss of power.
    async fn end(&mut self, way: usize) {
        let Some(store) = self.store.take() else { return };
        self.report.ends[way] += 1;
        self.fills.clear();
        // A span that fails before anything notices makes the close fail; then the end is that of a kill.
        let is_clean = way == 1 && store.close().await.is_ok();
        if is_clean {
            self.expected.iter_mut().for_each(|expected| expected.durable = expected.durable.max(expected.oldest));
        }
        if way == 2 {
            for device in &mut self.devices {
                device.disk = device.disk.crash();
            }
        }
        drop(store);
        self.settle().await;
        if !is_clean {
            self.expected.iter_mut().for_each(|expected| expected.oldest = expected.durable);
        }
    }

    /// Waits until the operations in flight have ended; some of them may never reach a device.
    async fn settle(&mut self) {
        if let Some(under_way) = &mut self.under_way {
            std::mem::take(under_way).settle(Some(self.random.below(u64::MAX))).await;
        }
    }
}

/// Returns the version and the body of an object; `None` if the body cannot be read to its end.
async fn contents(object: &StoredObject) -> Option<(u32, Vec<u8>)> {
    let version = u32::from_le_bytes(object.metadata()[..].try_into().ok()?);
    Some((version, whole(object).await?))
}

/// Returns the length of a version's body: most bodies are small, and some have several fragments.
fn length(version: u32) -> usize {
    if version % 41 == 7 { 70_000 } else { 200 + version as usize * 37 % 3000 }
}
