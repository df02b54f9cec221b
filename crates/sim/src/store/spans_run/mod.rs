//! A long seeded run of a store of several spans that are lost and return, against a model.
//!
//! Owns: the versions of each key that may be found. After a put, until the store ends, only that version may be found.
//! After an end, the last synced version or a later one may be found. After a purge, no version that began before it
//! may be found. These rules do not depend on the spans that are present: a loss causes only misses, and only of
//! objects on the lost span. If a span is restored from an older copy while another span was present all the time, no
//! purged object reappears. No replaced object reappears either, unless the copy is from the same life. Leaves to
//! others: spans that fail during a purge (`failing`).

mod failing;

use std::sync::Arc;
use std::time::Duration;

use nectary_block::{BlockDevice, SharedDevice};
use nectary_store::planted::{Bug, plant};
use nectary_store::{
    Background, CreateOptions, Error, ErrorKind, Fill, FillRole, IndexLoading, KeyRef, Object, OpenOptions, SpanDevice,
    SpanStat, Spans,
};

use crate::disk::{Disk, DiskOptions};
use crate::flushed::{Flushed, Images};
use crate::late::{Late, Owned, UnderWay, in_virtual_time};
use crate::planted::{Case, Caught};
use crate::random::Random;
use crate::store::crash_check::whole;
use crate::store::{body, primary, variant};
use crate::switch::{Off, Switch};

/// The size of a span, in bytes.
const SPAN_BYTES: u64 = 4 << 20;
/// The largest number of fills that stay open for a while.
const FILLS_MAX: usize = 4;
/// Within this many opens, each with other spans missing, one must succeed.
const OPENS_MAX: u32 = 500;
/// A store notices the loss of a span at the latest after this time.
const LOSS_TIME: Duration = Duration::from_secs(60);
/// The number of operations between two events.
const OPERATIONS_PER_EVENT: u64 = 60;

/// What to run.
#[derive(Debug, Clone)]
pub struct SpansOptions {
    /// The seed.
    pub seed: u64,
    /// The number of stores to run, one after another.
    pub stores: u64,
    /// The number of losses, returns, ends and crashes of each store.
    pub events: u64,
    /// The number of keys.
    pub keys: u32,
    /// Whether to stop at the first difference.
    pub stops_at_difference: bool,
}

/// The results of a run.
#[derive(Debug, Default, Clone)]
pub struct SpansReport {
    /// Operations done.
    pub operations: u64,
    /// Gets that hit with allowed bytes.
    pub hits: u64,
    /// Gets that missed.
    pub misses: u64,
    /// Spans lost while the store served.
    pub losses: u64,
    /// Spans that returned.
    pub returns: u64,
    /// Spans that failed during a purge: for good, and for a few operations.
    pub failed_in_purge: [u64; 2],
    /// Opens without a span that had failed during a purge that returned; each had to succeed.
    pub opened_without: u64,
    /// Ends by a kill, by a clean stop, and by a loss of power.
    pub ends: [u64; 3],
    /// Spans restored from older copies: from copies made before the last open, and from copies made since then.
    pub put_back: [u64; 2],
    /// Opens that a crash interrupted.
    pub torn_opens: u64,
    /// Opens that were refused because the missing spans may have been used without the others.
    pub refused: u64,
    /// Gets that had to hit, because their span was not the lost one.
    pub demanded: u64,
    /// Gets that had to hit after an end, because all spans were there.
    pub demanded_after_end: u64,
    /// Gets that had to hit and missed.
    pub demanded_missing: u64,
    /// The answers that differ from the model.
    pub differences: Vec<String>,
}

/// The versions of a key that may be found: from `oldest` to `newest`.
#[derive(Debug, Clone, Copy, Default)]
struct Expected {
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

struct Device {
    disk: Arc<Disk>,
    off: Off,
    is_away: bool,
    /// A copy of the span's disk at an earlier moment, with the number of opens before that moment.
    copy: Option<(u64, Arc<Disk>)>,
    /// The disk's state after each flush, if a crash will interrupt the open.
    flushed: Option<Images>,
}

struct Run {
    random: Random,
    devices: Vec<Device>,
    store: Option<Spans>,
    expected: Vec<Expected>,
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
        let mut random = Random::new(seed);
        let count = 2 + random.below(3) as usize;
        let devices = (0..count).map(|span| Device {
            disk: Disk::new(
                SPAN_BYTES * (1 + span as u64 % 2),
                DiskOptions { seed: seed ^ span as u64, late_percent: 0, ..DiskOptions::default() },
            ),
            off: Off::default(),
            is_away: false,
            copy: None,
            flushed: None,
        });
        let mut run = Run {
            random,
            devices: devices.collect(),
            store: None,
            expected: vec![Expected::default(); options.keys as usize],
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
pub fn run_planted(bug: Bug, seed: u64, stores: u64) -> Option<Caught> {
    (0..stores).find_map(|number| replay_planted(bug, seed_of(seed, number)))
}

/// Runs the store of one seed with one bug planted.
pub fn replay_planted(bug: Bug, seed: u64) -> Option<Caught> {
    plant(Some(bug));
    let report = in_virtual_time(run(planted_options(seed), |_| {}));
    plant(None);
    let broken = report.differences.first()?.trim_start_matches(&format!("seed {seed}: ")).to_owned();
    Some(Caught { case: Case::of_seed(seed), broken, account: format!("{report:?}") })
}

impl Run {
    fn differ(&mut self, what: String) {
        if self.report.differences.len() < 20 {
            self.report.differences.push(format!("seed {}: {what}", self.seed));
        }
    }

    fn store(&self) -> Spans {
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
    async fn compare(&mut self, key: u32, object: &Object) -> bool {
        let Some((version, bytes)) = contents(object).await else { return false };
        let Expected { oldest, newest, .. } = self.expected[key as usize];
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
            let Expected { is_shaken, is_purged, .. } = self.expected[key as usize];
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

    /// Keeps a copy of some spans, as a backup of their files would be.
    fn copy_some(&mut self) {
        for span in 0..self.devices.len() {
            if !self.devices[span].is_away && self.random.chance(40) {
                self.devices[span].copy = Some((self.opens, self.devices[span].disk.crash()));
            }
        }
    }

    /// Restores an older copy of a span, if another span was present all the time and can notice it; returns whether it
    /// did.
    fn put_back(&mut self) -> bool {
        let there: Vec<usize> = (0..self.devices.len()).filter(|span| !self.devices[*span].is_away).collect();
        let span = self.random.below(self.devices.len() as u64) as usize;
        if !there.iter().any(|other| *other != span) {
            return false;
        }
        let Some((opens, disk)) = self.devices[span].copy.take() else { return false };
        self.devices[span].disk = disk;
        let is_same_life = opens == self.opens;
        self.report.put_back[usize::from(is_same_life)] += 1;
        if is_same_life {
            // The other spans do not know what was put on this span since the copy.
            for expected in &mut self.expected {
                (expected.oldest, expected.durable) = (expected.floor, expected.floor);
            }
        }
        // The spans that can notice the old copy must be present at the next open.
        self.keeps_all = true;
        true
    }

    /// Opens the store. Sometimes a crash interrupts a first attempt, so that some disks lack the last change of the
    /// membership; returns whether one did.
    async fn reopen(&mut self) -> bool {
        let is_torn = self.version > 0 && self.missing.is_none() && self.random.chance(30);
        if is_torn {
            let before: Vec<Arc<Disk>> = self.devices.iter().map(|device| device.disk.crash()).collect();
            self.devices.iter_mut().for_each(|device| device.flushed = Some(Images::default()));
            self.open().await;
            // An empty span is initialised before the membership records that the span is present.
            let is_empty = |span: &SpanStat| span.stat.as_ref().is_some_and(|stat| stat.recovery.open_count == 1);
            let empty: Vec<bool> = self.store().stat().spans.iter().map(is_empty).collect();
            self.store = None;
            self.settle().await;
            self.report.torn_opens += 1;
            // The last flush made the second change of the membership durable, and the flush before it the first
            // change. No disk has the second change while another disk lacks the first.
            let is_second = self.random.chance(50);
            for ((device, before), is_empty) in self.devices.iter_mut().zip(before).zip(empty) {
                let mut images = device.flushed.take().map(|images| images.take()).unwrap_or_default();
                let (second, first) = (images.pop(), images.pop());
                if device.is_away {
                    continue;
                }
                let is_behind = self.random.chance(50);
                let found = match (is_second, is_behind) {
                    (true, false) => second,
                    (true, true) | (false, false) => first,
                    (false, true) if is_empty => first,
                    (false, true) => Some(before),
                };
                device.disk = found.expect("an open flushes each span that is there three times");
            }
            self.expected.iter_mut().for_each(|expected| expected.oldest = expected.durable);
        }
        self.open().await;
        self.keeps_all = false;
        is_torn
    }

    /// Opens the store with some spans returned and some missing.
    async fn open(&mut self) {
        let mut tries = 0;
        let mut missing = self.missing.take();
        loop {
            tries += 1;
            assert!(tries < OPENS_MAX, "seed {}: the store opens no more: {:?}", self.seed, self.report.differences);
            let is_new = self.version == 0;
            for span in 0..self.devices.len() {
                let is_away = match &missing {
                    Some(missing) => missing[span],
                    None => !is_new && self.random.chance(25) && !self.keeps_all,
                };
                let device = &mut self.devices[span];
                let was_away = std::mem::replace(&mut device.is_away, is_away);
                device.off.set(false);
                self.report.returns += u64::from(was_away && !device.is_away);
            }
            if self.devices.iter().all(|device| device.is_away) {
                continue;
            }
            let seed = self.seed ^ self.opens;
            let under_way = self.under_way.as_ref().map(|under_way| (under_way, seed));
            let named = |(span, device): (usize, &Device)| named(span, device, under_way);
            let mut named: Vec<SpanDevice> = self.devices.iter().enumerate().map(named).collect();
            let turn = self.random.below(named.len() as u64) as usize;
            if !is_new {
                named.rotate_left(turn);
            }
            let options = OpenOptions {
                memory_bytes: (8 << 20) * self.devices.len() as u64,
                write_delay: Duration::from_millis(5),
                index_loading: IndexLoading::Shards,
                background: Background::Caller,
                // Deadlines are on the real clock, which stands still in virtual time: all reads would miss theirs.
                device_deadline: None,
                seed: Some(self.random.bits()),
                ..OpenOptions::default()
            };
            match Spans::open(named, options).await {
                Ok(store) => {
                    self.opens += 1;
                    self.report.opened_without += u64::from(missing.is_some());
                    let has_begun =
                        |span: &SpanStat| span.stat.as_ref().is_none_or(|stat| stat.recovery.open_count == 1);
                    if store.stat().spans.iter().all(has_begun) {
                        // The store is a new one; drop the copies of the old one.
                        self.devices.iter_mut().for_each(|device| device.copy = None);
                    }
                    self.store = Some(store);
                    return;
                }
                Err(error) if error.kind == ErrorKind::Absent && self.devices.iter().any(|device| device.is_away) => {
                    self.report.refused += 1;
                    if missing.take().is_some() {
                        self.differ(format!("no other span knows of the loss of a span during a purge: {error}"));
                    }
                }
                Err(error) => {
                    self.differ(format!("the store does not open: {error}"));
                    // Make all spans present at the next attempt, so that the loop ends.
                    self.devices.iter_mut().for_each(|device| device.is_away = false);
                }
            }
        }
    }
}

/// Returns the device of a span as a user would name it. The device of a missing span cannot be opened, or its
/// operations fail.
fn named(span: usize, device: &Device, late: Option<(&UnderWay, u64)>) -> SpanDevice {
    let inner: SharedDevice = device.disk.clone() as Arc<dyn BlockDevice>;
    let spec = format!("disk{span}");
    let size_bytes = CreateOptions::default().size_bytes;
    if device.is_away && span.is_multiple_of(2) {
        return SpanDevice { spec, device: Err(Error::new(ErrorKind::Absent, "no such device")), size_bytes };
    }
    let inner = match &device.flushed {
        Some(images) => Arc::new(Flushed::new(inner, Arc::clone(&device.disk), images)),
        None => inner,
    };
    let inner: SharedDevice = match late {
        Some((under_way, seed)) => {
            Arc::new(Owned::new(Arc::new(Late::new(inner, seed ^ span as u64, under_way)), under_way))
        }
        None => inner,
    };
    device.off.set(device.is_away);
    SpanDevice { spec, device: Ok(Arc::new(Switch::new(inner, &device.off))), size_bytes }
}

/// Returns the version and the body of an object; `None` if the body cannot be read to its end.
async fn contents(object: &Object) -> Option<(u32, Vec<u8>)> {
    let version = u32::from_le_bytes(object.metadata()[..].try_into().ok()?);
    Some((version, whole(object).await?))
}

/// Returns the length of a version's body: most bodies are small, and some have several fragments.
fn length(version: u32) -> usize {
    if version % 41 == 7 { 70_000 } else { 200 + version as usize * 37 % 3000 }
}
