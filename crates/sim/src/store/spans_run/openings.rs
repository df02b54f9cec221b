//! Opens of the store of a run: with spans that are missing, spans that are older copies, and after a crash during an
//! open.

use std::sync::Arc;
use std::time::Duration;

use nectary_block::{BlockDevice, SharedDevice};
use nectary_store::{
    BackgroundRuntime, CreateOptions, Error, IndexLoading, OpenOptions, SpanDevice, SpanSet, SpanStat, StoreErrorKind,
};

use super::{SimulatedSpan, SpansRun};
use crate::disk::SimulatedDisk;
use crate::flushed::{FlushImageFilter, FlushImages};
use crate::late::{DetachedFilter, LateFilter, UnderWay};
use crate::switch::SwitchFilter;

/// Within this many opens, each with other spans missing, one must succeed.
const OPENS_MAX: u32 = 500;

impl SpansRun {
    /// Keeps a copy of some spans, as a backup of their files would be.
    pub(super) fn copy_some(&mut self) {
        for span in 0..self.devices.len() {
            if !self.devices[span].is_away && self.random.chance(40) {
                self.devices[span].copy = Some((self.opens, self.devices[span].disk.crash()));
            }
        }
    }

    /// Restores an older copy of a span, if another span was present all the time and can notice it; returns whether it
    /// did.
    pub(super) fn put_back(&mut self) -> bool {
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
    pub(super) async fn reopen(&mut self) -> bool {
        let is_torn = self.version > 0 && self.missing.is_none() && self.random.chance(30);
        if is_torn {
            let before: Vec<Arc<SimulatedDisk>> = self.devices.iter().map(|device| device.disk.crash()).collect();
            self.devices.iter_mut().for_each(|device| device.flushed = Some(FlushImages::default()));
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
            let named = |(span, device): (usize, &SimulatedSpan)| named(span, device, under_way);
            let mut named: Vec<SpanDevice> = self.devices.iter().enumerate().map(named).collect();
            let turn = self.random.below(named.len() as u64) as usize;
            if !is_new {
                named.rotate_left(turn);
            }
            let options = OpenOptions {
                memory_bytes: (8 << 20) * self.devices.len() as u64,
                write_delay: Duration::from_millis(5),
                index_loading: IndexLoading::Shards,
                background: BackgroundRuntime::Caller,
                // Deadlines are on the real clock, which stands still in virtual time: all reads would miss theirs.
                device_deadline: None,
                seed: Some(self.random.bits()),
                ..OpenOptions::default()
            };
            match SpanSet::open(named, options).await {
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
                Err(error)
                    if error.kind == StoreErrorKind::Absent && self.devices.iter().any(|device| device.is_away) =>
                {
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
fn named(span: usize, device: &SimulatedSpan, late: Option<(&UnderWay, u64)>) -> SpanDevice {
    let inner: SharedDevice = device.disk.clone() as Arc<dyn BlockDevice>;
    let spec = format!("disk{span}");
    let size_bytes = CreateOptions::default().size_bytes;
    if device.is_away && span.is_multiple_of(2) {
        return SpanDevice { spec, device: Err(Error::new(StoreErrorKind::Absent, "no such device")), size_bytes };
    }
    let inner = match &device.flushed {
        Some(images) => Arc::new(FlushImageFilter::new(inner, Arc::clone(&device.disk), images)),
        None => inner,
    };
    let inner: SharedDevice = match late {
        Some((under_way, seed)) => {
            Arc::new(DetachedFilter::new(Arc::new(LateFilter::new(inner, seed ^ span as u64, under_way)), under_way))
        }
        None => inner,
    };
    device.off.set(device.is_away);
    SpanDevice { spec, device: Ok(Arc::new(SwitchFilter::new(inner, &device.off))), size_bytes }
}
