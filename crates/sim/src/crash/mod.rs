//! Crash states: the images that a disk could have after a crash at some point of a recording, or a sample of them if
//! there are too many.
//!
//! There are two kinds of crash. When the *process* dies, completed operations survive; those in flight survive wholly,
//! partly or not at all. When *power* is lost, only operations covered by a flush or by forced unit access are certain.
//! Of all others that had begun, any part may survive, in any combination, each write torn at 512 bytes. Recordings are
//! split into *epochs*, each of which ends with a successful flush; within an epoch the certain part of the image is
//! fixed and the rest varies.
//!
//! 1. Overlapping operations take effect in the order in which they began.
//! 2. A failed write, or one whose end was not seen, stays uncertain.
//! 3. A discard is a write of zeroes that is uncertain until a flush covers it.
//! 4. A growth takes effect when it has succeeded, not before.
//! 5. Every state has the marks recorded before it: the promises to the user of the device.
//!
//! Owns: the possible states. Leaves to others: the promises to check in these states.
//!
//! *Cost*: a state takes memory for the writes of its epoch; images share everything else.

mod history;
mod image;
mod plan;

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::fmt::Write;
use std::sync::Arc;

use nectary_block::{DeviceSnapshot, MemoryDevice, RecordedEvent, Recording};

use self::history::{RecordedWrite, WriteHistory};
use self::image::{CrashImage, WrittenPart};
use self::plan::{CrashCase, SurvivorChoice};
use crate::random::SimulationRandom;

/// The largest number of operations that a description names.
const NAMES_MAX: usize = 6;

/// The kind of crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CrashModel {
    /// The process died: completed writes survive.
    Process,
    /// Power was lost: only flushed writes are certain to survive.
    Power,
}

impl CrashModel {
    /// Returns the event after which an operation is certain to survive.
    fn certain_from(self, operation: &RecordedWrite) -> usize {
        match self {
            CrashModel::Process => operation.completed,
            CrashModel::Power => operation.durable,
        }
    }
}

/// The choice of the crash states that are tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CrashOptions {
    /// The largest number of states to try per epoch and kind of crash.
    pub max_per_epoch: usize,
    /// Decides which states are tried if there are too many to try all.
    pub seed: u64,
    /// The largest number of operations that a random subset keeps or loses.
    pub subset_size: usize,
    /// The kinds of crash.
    pub models: Vec<CrashModel>,
}

impl Default for CrashOptions {
    fn default() -> CrashOptions {
        let models = vec![CrashModel::Power, CrashModel::Process];
        CrashOptions { max_per_epoch: 64, seed: 1, subset_size: 3, models }
    }
}

/// An image that a crash could leave, and the state of the recording at the crash.
#[derive(Debug, Clone)]
pub struct CrashState {
    /// The crash and the lost operations, in words.
    pub description: String,
    /// The kind of crash.
    pub model: CrashModel,
    /// The image; a copy of it costs little.
    pub snapshot: DeviceSnapshot,
    /// A hash of the image: equal images have equal hashes.
    pub hash: u64,
    /// Whether a write survived in part.
    pub is_torn: bool,
    /// The number of events of the recording that had happened.
    pub point: usize,
    /// The event with which the last successful flush had ended, if there was one.
    pub flushed_through: Option<usize>,
    marks: Arc<[u64]>,
    mark_count: usize,
}

impl CrashState {
    /// The marks recorded before the crash, in order.
    pub fn marks(&self) -> &[u64] {
        &self.marks[..self.mark_count]
    }

    /// The last mark recorded before the crash.
    pub fn last_mark(&self) -> Option<u64> {
        self.marks().last().copied()
    }

    /// A device that begins with the image. *Cost*: copies no contents.
    pub fn device(&self) -> MemoryDevice {
        MemoryDevice::from_snapshot(&self.snapshot)
    }

    /// The image as bytes. *Cost*: copies the whole image.
    pub fn image(&self) -> Vec<u8> {
        self.snapshot.image()
    }
}

/// The contents of a device when a recording began, for the crash states of any number of recordings.
#[derive(Debug, Clone)]
pub struct RecordingBase(CrashImage);

impl RecordingBase {
    /// Takes the contents. *Cost*: reads and hashes the whole image.
    pub fn new(snapshot: DeviceSnapshot) -> RecordingBase {
        RecordingBase(CrashImage::new(snapshot))
    }
}

/// An epoch of the recording, as the first and the last point at which a crash happens in it.
#[derive(Debug, Clone, Copy)]
struct FlushEpoch {
    first_point: usize,
    last_point: usize,
}

/// The crash states of a recording, one after another.
///
/// No two of them have the same image, kind of crash and marks.
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use nectary_block::{Buffer, IoContext, MemoryDevice, Recorder, write};
/// use nectary_sim::crash::{CrashOptions, CrashStates};
/// let recorder = Recorder::new();
/// let device = recorder.wrap(std::sync::Arc::new(MemoryDevice::new(1 << 20)));
/// write(&*device, 0, Buffer::copy_of(&[1; 4096])).await?;
/// device.flush(IoContext::default()).await?;
/// recorder.mark(7);
/// for state in CrashStates::new(vec![0; 1 << 20], &recorder.recording(), CrashOptions::default()) {
///     // Once mark 7 was set the block is there, whatever the crash.
///     assert!(state.last_mark() != Some(7) || state.image()[0] == 1, "{}", state.description);
/// }
/// # Ok::<(), nectary_block::Error>(()) }).unwrap();
/// ```
pub struct CrashStates {
    history: WriteHistory,
    options: CrashOptions,
    random: SimulationRandom,
    marks: Arc<[u64]>,
    base_bytes: u64,
    /// The certain part of the image after the flushes before the current epoch.
    base: CrashImage,
    /// For each operation, whether `base` contains it.
    applied: Vec<bool>,
    epochs: std::vec::IntoIter<FlushEpoch>,
    /// The remaining work in the current epoch.
    models: std::vec::IntoIter<CrashModel>,
    epoch: FlushEpoch,
    model: CrashModel,
    plans: Vec<CrashCase>,
    yielded: usize,
    seen: HashSet<(u64, CrashModel, usize)>,
}

impl CrashStates {
    /// Prepares the crash states of a recording; `base` is the device's contents when the recording began.
    pub fn new(base: Vec<u8>, recording: &Recording, options: CrashOptions) -> CrashStates {
        CrashStates::on(&RecordingBase::new(DeviceSnapshot::from_image(&base)), recording, options)
    }

    /// Prepares the crash states of a recording that began on `base`. *Cost*: copies no contents.
    pub fn on(base: &RecordingBase, recording: &Recording, options: CrashOptions) -> CrashStates {
        let history = WriteHistory::new(recording);
        let mut epochs = Vec::new();
        let mut first_point = 0;
        for &flush in &history.flushes {
            epochs.push(FlushEpoch { first_point, last_point: flush });
            first_point = flush + 1;
        }
        epochs.push(FlushEpoch { first_point, last_point: history.event_count });
        CrashStates {
            marks: history.marks.iter().map(|&(_, mark)| mark).collect(),
            random: SimulationRandom::new(options.seed),
            base_bytes: base.0.snapshot.size_bytes(),
            base: base.0.clone(),
            applied: vec![false; history.operations.len()],
            epochs: epochs.into_iter(),
            models: Vec::new().into_iter(),
            epoch: FlushEpoch { first_point: 0, last_point: 0 },
            model: CrashModel::Power,
            plans: Vec::new(),
            yielded: 0,
            seen: HashSet::new(),
            history,
            options,
        }
    }

    /// Continues with the next kind of crash, or the next epoch.
    fn advance(&mut self) -> Option<()> {
        self.model = match self.models.next() {
            Some(model) => model,
            None => {
                self.epoch = self.epochs.next()?;
                self.models = self.options.models.clone().into_iter();
                self.settle();
                self.models.next()?
            }
        };
        let FlushEpoch { first_point, last_point } = self.epoch;
        let points: Vec<usize> = match self.model {
            CrashModel::Process => (first_point..=last_point).collect(),
            CrashModel::Power => {
                let points = &self.history.power_points;
                let from = points.partition_point(|&point| point < first_point);
                let to = points.partition_point(|&point| point <= last_point);
                points[from..to].to_vec()
            }
        };
        let (history, max) = (&self.history, self.options.max_per_epoch);
        self.plans = plan::plans(history, self.model, &points, max, &mut self.random);
        self.yielded = 0;
        Some(())
    }

    /// Updates the base by the operations that are durable at the first point of the epoch.
    fn settle(&mut self) {
        let point = self.epoch.first_point;
        let new: Vec<usize> = (0..self.history.operations.len())
            .filter(|&index| !self.applied[index] && self.history.operations[index].durable < point)
            .collect();
        let chosen = new.iter().map(|&index| (&self.history.operations[index], WrittenPart::Whole)).collect();
        let chosen = with_later_overlaps(&self.history, &self.applied, chosen);
        self.base.apply(&chosen, self.history.size_bytes(self.base_bytes, point));
        for index in new {
            self.applied[index] = true;
        }
    }

    fn state(&mut self, plan: &CrashCase) -> Option<CrashState> {
        let (history, point) = (&self.history, plan.point);
        let doubt = plan::in_doubt(history, self.model, point);
        if doubt.is_empty() && plan.choice != SurvivorChoice::None {
            return None;
        }
        let kept = plan::chosen(&doubt, &plan.choice, self.options.subset_size);
        let description = describe(self.model, point, history.event_count, doubt.len(), &kept);
        let is_torn = kept.iter().any(|(_, part)| *part != WrittenPart::Whole);
        let certain = history
            .begun_before(point)
            .iter()
            .enumerate()
            .filter(|&(index, operation)| !self.applied[index] && self.model.certain_from(operation) < point);
        let mut chosen: Vec<(&RecordedWrite, WrittenPart)> =
            certain.map(|(_, operation)| (operation, WrittenPart::Whole)).collect();
        chosen.extend(kept);
        let chosen = with_later_overlaps(history, &self.applied, chosen);
        let mut image = self.base.clone();
        image.apply(&chosen, history.size_bytes(self.base_bytes, point));
        let mark_count = history.marks_before(point);
        if !self.seen.insert((image.hash, self.model, mark_count)) {
            return None;
        }
        Some(CrashState {
            description,
            model: self.model,
            snapshot: image.snapshot,
            hash: image.hash,
            is_torn,
            point,
            flushed_through: history.flushed_through(point),
            marks: self.marks.clone(),
            mark_count,
        })
    }
}

impl Iterator for CrashStates {
    type Item = CrashState;

    fn next(&mut self) -> Option<CrashState> {
        loop {
            if self.yielded == self.options.max_per_epoch {
                self.plans.clear();
            }
            let Some(plan) = self.plans.pop() else {
                self.advance()?;
                continue;
            };
            if let Some(state) = self.state(&plan) {
                self.yielded += 1;
                return Some(state);
            }
        }
    }
}

/// Sorts operations by their start, and adds later operations of the base that overlap any of them, because they must
/// be applied again on top.
fn with_later_overlaps<'h>(
    history: &'h WriteHistory,
    applied: &[bool],
    mut chosen: Vec<(&'h RecordedWrite, WrittenPart)>,
) -> Vec<(&'h RecordedWrite, WrittenPart)> {
    chosen.sort_by_key(|(operation, _)| operation.begun);
    let Some(first) = chosen.first().map(|(operation, _)| operation.begun) else { return chosen };
    let from = history.operations.partition_point(|operation| operation.begun <= first);
    let mut later: Vec<(&RecordedWrite, WrittenPart)> = Vec::new();
    for (operation, _) in history.operations[from..].iter().zip(&applied[from..]).filter(|&(_, &is_applied)| is_applied)
    {
        let hides =
            |&&(under, _): &&(&RecordedWrite, WrittenPart)| under.begun < operation.begun && under.overlaps(operation);
        if chosen.iter().chain(&later).any(|under| hides(&under)) {
            later.push((operation, WrittenPart::Whole));
        }
    }
    if !later.is_empty() {
        chosen.extend(later);
        chosen.sort_by_key(|(operation, _)| operation.begun);
    }
    chosen
}

fn describe(
    model: CrashModel,
    point: usize,
    events: usize,
    doubt: usize,
    kept: &[(&RecordedWrite, WrittenPart)],
) -> String {
    let crash = match model {
        CrashModel::Process => "process crash",
        CrashModel::Power => "power loss",
    };
    let mut text =
        format!("{crash} after {point} of {events} events, {} of {doubt} operations in doubt kept", kept.len());
    let torn = kept.iter().filter(|(_, part)| *part != WrittenPart::Whole);
    for (operation, part) in torn {
        let _ = match part {
            WrittenPart::Head(count) => write!(text, "; #{} torn after {count} sectors", operation.number),
            WrittenPart::Tail(count) => write!(text, "; #{} without its first {count} sectors", operation.number),
            _ => write!(text, "; #{} torn, sectors by seed", operation.number),
        };
    }
    if !kept.is_empty() && kept.len() < doubt {
        let names: Vec<String> =
            kept.iter().take(NAMES_MAX).map(|(operation, _)| format!("#{}", operation.number)).collect();
        let _ = write!(text, ": {}{}", names.join(" "), if kept.len() > NAMES_MAX { " …" } else { "" });
    }
    text
}

/// Returns at most `most` numbers below `count`, evenly spread: the states that a run checks.
pub(crate) fn sample(count: usize, most: u64) -> impl Iterator<Item = usize> {
    let most = count.min(most as usize);
    (0..most).map(move |number| number * count / most)
}

/// Counts the operations of a recording that began while another one was in flight.
pub(crate) fn overlapping(recording: &Recording) -> u64 {
    let (mut under_way, mut overlapping) = (0_u64, 0);
    for event in &recording.events {
        match event {
            RecordedEvent::Mark(_) => {}
            RecordedEvent::Completed { .. } => under_way = under_way.saturating_sub(1),
            _ => {
                overlapping += u64::from(under_way > 0);
                under_way += 1;
            }
        }
    }
    overlapping
}
