//! Runs a plan on a target.
//!
//! Owns: the order of passes, the generations of the streams, and the measurement of the ceilings.

use std::process::Command;
use std::time::Instant;

use nectary_block::Buffer;

use super::content::{drop_pages, fill, settle};
use super::job::{IoPass, OpenMode, PassOutcome, RequestOperation, StreamPlace, SubmissionEngine};
use super::report::report;
use super::results::{CellResult, RateCeilings};
use super::target::{MeasurementTarget, TargetUse};
use super::timestamps::RequestTimestamps;
use super::{SweepCell, SweepPlan, engine, engine_of};
use crate::guardian::Guardian;
use crate::statistics::order;
use crate::store::RunProgress;
use crate::{Error, ExperimentReport};

/// The size of the direct requests that measure the ceiling. *Units*: bytes.
const CEILING_REQUEST_BYTES: u64 = 4 << 20;
/// The number of requests in flight while a ceiling is measured.
const CEILING_DEPTH: usize = 8;
/// How long each ceiling is measured. *Units*: seconds.
const CEILING_SECONDS: f64 = 0.5;
/// The size of the copy in memory that measures the ceiling of the page cache. *Units*: bytes.
const COPY_BYTES: usize = 32 << 20;
/// The generation of the first contents.
const FIRST: u32 = 1;

/// The streams of a run, and their contents.
pub(super) struct PatternStreams {
    pub places: Vec<StreamPlace>,
    pub is_device: bool,
    pub bytes: u64,
    /// The generation of each stream; empty if this run did not write the contents.
    generations: Vec<u32>,
    /// The newest generation of all streams.
    newest: u32,
}

impl PatternStreams {
    /// Makes the streams at the places of a target; with `is_own` it fills them.
    pub fn new(places: Vec<StreamPlace>, is_device: bool, bytes: u64, is_own: bool) -> Result<PatternStreams, Error> {
        if is_own {
            fill(&places, bytes, FIRST)?;
        }
        let generations = if is_own { vec![FIRST; places.len()] } else { Vec::new() };
        Ok(PatternStreams { places, is_device, bytes, generations, newest: FIRST })
    }

    /// Describes a pass of a cell.
    pub fn job(&self, cell: &SweepCell, engine: SubmissionEngine) -> IoPass {
        IoPass {
            places: self.places[..cell.streams].to_vec(),
            is_device: self.is_device,
            bytes: self.bytes,
            request_bytes: cell.request_bytes,
            operation: cell.operation,
            mode: cell.mode,
            depth: cell.depth,
            engine,
            read_percent: 50,
            read_generations: self.generations.iter().take(cell.streams).copied().collect(),
            write_generation: self.newest + 1,
            seconds_max: None,
            is_repeated: false,
            is_fresh: false,
            is_synced: false,
        }
    }

    /// Runs a pass with `how`; if it writes, compares the contents afterwards.
    pub fn pass(
        &mut self,
        job: &IoPass,
        how: impl FnOnce(&IoPass) -> Result<PassOutcome, Error>,
    ) -> Result<PassOutcome, Error> {
        let outcome = how(job)?;
        if job.operation.writes() {
            settle(job, &outcome)?;
            self.newest = job.write_generation;
            let known = self.generations.iter_mut().take(job.places.len());
            known.for_each(|generation| *generation = job.write_generation);
        }
        Ok(outcome)
    }
}

/// Runs a plan, and returns its report and the requests that were kept; `guardian` has to call [`serve`](crate::guardian::serve).
///
/// *Errors*: [`ExperimentErrorKind::ResourceUsage`](crate::ExperimentErrorKind::ResourceUsage) if the target must not be used;
/// [`ExperimentErrorKind::Void`](crate::ExperimentErrorKind::Void) if a byte was wrong.
pub fn run(
    plan: &SweepPlan,
    guardian: Command,
    progress: &mut dyn FnMut(&RunProgress),
) -> Result<(ExperimentReport, RequestTimestamps), Error> {
    let began = Instant::now();
    let options = &plan.options;
    let wish = TargetUse {
        streams: plan.streams_max(),
        bytes: plan.bytes,
        writes: plan.writes(),
        overwrite: options.overwrite,
    };
    let mut target = MeasurementTarget::find(&options.target, wish)?;
    let mut guardian = Guardian::start(guardian)?;
    target.make(&mut guardian, wish.streams)?;
    let of = (plan.cells.len() * plan.passes + 2) as u64;
    let mut done = 0;
    let mut step = |what: String| {
        progress(&RunProgress { done, of, what });
        done += 1;
    };
    step("writing what is read later".to_owned());
    let is_device = target.is_device();
    let mut streams = PatternStreams::new(target.places, is_device, plan.bytes, target.is_own)?;
    step("the ceiling".to_owned());
    let ceilings = ceilings(plan, &mut streams)?;
    let mut results: Vec<CellResult> = plan.cells.iter().map(|cell| CellResult::new(*cell)).collect();
    let mut timestamps = RequestTimestamps::default();
    for pass in 0..plan.passes {
        for index in order(results.len(), pass) {
            let result = &mut results[index];
            let cell = result.cell;
            step(format!("{}, pass {} of {}", cell.name(), pass + 1, plan.passes));
            let job = job_of(plan, &streams, &cell)?;
            if !options.is_warm {
                drop_pages(&job.places)?;
            }
            let mut outcome = streams.pass(&job, |job| engine::run(job, options.keep))?;
            timestamps.add(&cell, pass + 1, &job, &mut outcome);
            result.outcomes.push(outcome);
        }
    }
    guardian.finish();
    Ok((report(plan, ceilings, results, began.elapsed()), timestamps))
}

fn job_of(plan: &SweepPlan, streams: &PatternStreams, cell: &SweepCell) -> Result<IoPass, Error> {
    let options = &plan.options;
    let engine = engine_of(options.engine, cell.mode, cell.depth)?;
    Ok(IoPass {
        read_percent: options.read_percent,
        seconds_max: plan.seconds,
        is_synced: options.is_synced,
        ..streams.job(cell, engine)
    })
}

/// The xdd command lines of a plan, one per cell.
pub fn dry_run(plan: &SweepPlan) -> Result<String, Error> {
    let is_folder = plan.options.target.is_dir();
    let place = |stream: usize| match is_folder {
        true => StreamPlace { path: plan.options.target.join(format!("stream-{stream}")), start: 0 },
        false => StreamPlace { path: plan.options.target.clone(), start: stream as u64 * plan.bytes },
    };
    let places = (0..plan.streams_max()).map(place).collect();
    let streams =
        PatternStreams { places, is_device: !is_folder, bytes: plan.bytes, generations: Vec::new(), newest: FIRST };
    let mut text = String::new();
    for cell in &plan.cells {
        text += &format!("{}\n", job_of(plan, &streams, cell)?.xdd(plan.passes));
    }
    Ok(text)
}

/// Measures the highest rates of the device, and the rate of a copy in memory.
fn ceilings(plan: &SweepPlan, streams: &mut PatternStreams) -> Result<RateCeilings, Error> {
    let mut found = RateCeilings::default();
    for operation in [RequestOperation::Read, RequestOperation::Write] {
        if operation.writes() && !plan.writes() {
            continue;
        }
        let request_bytes = CEILING_REQUEST_BYTES.min(plan.bytes);
        let cell = SweepCell { operation, mode: OpenMode::Direct, streams: 1, depth: CEILING_DEPTH, request_bytes };
        for engine in [SubmissionEngine::Uring, SubmissionEngine::Threads] {
            let job = IoPass { seconds_max: Some(CEILING_SECONDS), is_repeated: true, ..streams.job(&cell, engine) };
            match streams.pass(&job, |job| engine::run(job, false)) {
                Ok(outcome) => {
                    let rate = Some(outcome.rate());
                    if operation.writes() {
                        found.write = rate
                    } else {
                        found.read = rate
                    }
                    break;
                }
                Err(error) if error.kind == crate::ExperimentErrorKind::Void => return Err(error),
                // Without io_uring or `O_DIRECT` there is no such ceiling.
                Err(_) => {}
            }
        }
    }
    if plan.cells.iter().any(|cell| !cell.mode.is_direct()) {
        found.copy = Some(copy_rate());
    }
    Ok(found)
}

/// The rate of a copy in memory. *Units*: MiB per second.
fn copy_rate() -> f64 {
    let (from, mut to) = (Buffer::zeroed(COPY_BYTES), Buffer::zeroed(COPY_BYTES));
    let rate = |_| {
        let began = Instant::now();
        to.copy_from_slice(&from);
        std::hint::black_box(&mut to);
        (COPY_BYTES >> 20) as f64 / began.elapsed().as_secs_f64()
    };
    crate::statistics::median(&(0..5).map(rate).collect::<Vec<_>>())
}
