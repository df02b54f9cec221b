//! Makes many runs over a trace of any length, which is read once, chunk after chunk.
//!
//! Owns: the chunks, and the threads that give each chunk to all policies while the next chunk is read. Promises: the
//! counts are those of runs over the trace in memory; the memory does not depend on the length of the trace, beside what
//! the policies take. Leaves to others: `min` and reports, which need the whole trace.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nectary_cache::Policy;

use super::counting::{RunCounts, TraceExtent};
use super::cutter::{Cut, WindowCutter};
use super::distinct::{DistinctCount, KEPT_MAX};
use super::load::{LoadOptions, ReferenceIntake};
use super::outline::TraceOutline;
use super::run::RunPlayer;
use super::runs::SimulationRow;
use super::sizes::{CapacityUnit, TraceShape};
use super::workload::{TraceWorkload, name_of};
use crate::error::{Error, Result};
use crate::formats::ReferenceReader;

/// The number of references in a chunk; two chunks take at most 20 MiB.
pub const CHUNK_REFERENCES: usize = 1 << 18;

/// One run of a trace that is read in a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamRun {
    /// The name of the policy: any but `min`.
    pub policy: &'static str,
    /// The capacity.
    pub size: u64,
    /// The unit of the capacity.
    pub unit: CapacityUnit,
}

/// How a trace is read and counted.
#[derive(Debug, Clone, Copy)]
pub struct StreamOptions {
    /// Which references are taken.
    pub load: LoadOptions,
    /// The references that are not counted.
    pub warm_up: Option<TraceExtent>,
    /// The length of windows.
    pub window: Option<TraceExtent>,
    /// The number of references of the trace, if it is known. Extents in percent need it.
    pub length: Option<u64>,
    /// The number of threads; one per core if `None`. One more reads the trace.
    pub threads: Option<usize>,
    /// The number of references in a chunk.
    pub chunk_references: usize,
}

impl Default for StreamOptions {
    fn default() -> StreamOptions {
        StreamOptions {
            load: LoadOptions::default(),
            warm_up: None,
            window: None,
            length: None,
            threads: None,
            chunk_references: CHUNK_REFERENCES,
        }
    }
}

/// Counts the references and objects of a trace. `path` is used in messages; `progress` is called with the number of
/// references so far.
///
/// *Errors*: those of the reader; the trace has no reference.
pub fn survey(
    path: &Path,
    reader: &mut dyn ReferenceReader,
    options: &LoadOptions,
    progress: &dyn Fn(u64),
) -> Result<(u64, TraceShape)> {
    let mut intake = ReferenceIntake::new(reader, *options);
    let mut distinct = DistinctCount::new(KEPT_MAX);
    loop {
        let chunk = intake.fill(
            CHUNK_REFERENCES,
            &mut |reference| distinct.add(reference.block, reference.bytes.max(1)),
            progress,
        )?;
        if chunk.blocks().is_empty() && chunk.deletes().is_empty() {
            break;
        }
    }
    intake.check(path)?;
    let has_sizes = intake.has_objects();
    let distinct_bytes = if has_sizes { distinct.bytes() } else { 0 };
    Ok((intake.taken(), TraceShape { has_sizes, distinct: distinct.count(), distinct_bytes }))
}

/// The rows of all runs, the outline of the trace, and a warning about it.
#[derive(Debug)]
pub struct StreamedResults {
    /// The rows, in the order of the runs.
    pub rows: Vec<SimulationRow>,
    /// The outline of the trace.
    pub outline: TraceOutline,
    /// The warning of the reader, if there is one.
    pub warning: Option<String>,
}

/// A run in progress.
struct SimulationLane {
    run: StreamRun,
    policy: Box<dyn Policy>,
    player: RunPlayer,
    windows: Vec<RunCounts>,
    elapsed: Duration,
}

impl SimulationLane {
    fn play(&mut self, chunk: &TraceWorkload, cuts: &[Cut]) {
        let start = Instant::now();
        for (range, window) in cuts {
            let counts = self.player.play(&mut *self.policy, chunk, range.clone());
            let Some(window) = *window else { continue };
            self.windows.resize(self.windows.len().max(window + 1), RunCounts::default());
            self.windows[window] = [self.windows[window], counts].into_iter().sum();
        }
        self.player.end(&mut *self.policy, chunk);
        self.elapsed += start.elapsed();
    }
}

/// Makes all `runs` over a trace. `path` is used in messages; `progress` is called with the number of references so far.
///
/// *Errors*: those of the reader; a run names an unknown policy, or `min`; what the options count cannot be counted.
pub fn stream(
    path: &Path,
    reader: &mut dyn ReferenceReader,
    runs: &[StreamRun],
    options: &StreamOptions,
    progress: &dyn Fn(u64),
) -> Result<StreamedResults> {
    let usage = |what: String| Error::Usage(format!("{}: {what}", path.display()));
    let lane = |run: &StreamRun| {
        let policy = nectary_cache::by_name(run.policy, run.size)
            .ok_or_else(|| usage(format!("\"{}\" is no policy that can follow a stream", run.policy)))?;
        let player = RunPlayer::new(run.unit);
        Ok(Mutex::new(SimulationLane { run: *run, policy, player, windows: Vec::new(), elapsed: Duration::ZERO }))
    };
    let lanes: Vec<Mutex<SimulationLane>> = runs.iter().map(lane).collect::<Result<_>>()?;
    let threads = options.threads.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from));
    let mut cutter = WindowCutter::new(options.warm_up, options.window, options.length).map_err(usage)?;
    if cutter.needs_times() && !reader.has_times() {
        let what = "it has no times; count references, or name the column of times (--columns time=N,…)";
        return Err(usage(what.to_owned()));
    }
    let mut intake = ReferenceIntake::new(reader, options.load);
    let mut distinct = DistinctCount::new(KEPT_MAX);
    let mut take = |intake: &mut ReferenceIntake<'_>| {
        let each = &mut |reference: &crate::TraceReference| distinct.add(reference.block, reference.bytes.max(1));
        intake.fill(options.chunk_references.max(1), each, progress)
    };
    let mut chunk = take(&mut intake)?;
    while !chunk.blocks().is_empty() || !chunk.deletes().is_empty() {
        chunk.complete(intake.has_objects());
        let cuts = cutter.cut(&chunk).map_err(usage)?;
        let following = play_all(&lanes, &chunk, &cuts, threads, || take(&mut intake))?;
        chunk = following;
    }
    intake.check(path)?;
    let needs_times = cutter.needs_times();
    let mut windows = cutter.finish().map_err(usage)?;
    if intake.has_times() {
        // Windows before the first other time have no column of times.
        windows.iter_mut().for_each(|start| start.second = start.second.or(Some(0)));
    } else if needs_times {
        return Err(usage("all its times are the same; count references".to_owned()));
    }
    let outline = TraceOutline {
        name: name_of(path),
        references: intake.taken(),
        distinct: distinct.count(),
        distinct_bytes: if intake.has_objects() { distinct.bytes() } else { 0 },
        is_estimate: distinct.is_estimate(),
        has_sizes: intake.has_objects(),
        windows,
        streams: intake.names(),
    };
    let rows = lanes.into_iter().filter_map(|lane| lane.into_inner().ok()).map(|lane| row(lane, &outline)).collect();
    Ok(StreamedResults { rows, outline, warning: intake.warning() })
}

/// Gives a chunk to all lanes, on `threads` threads, while `meanwhile` runs on this one.
fn play_all<T>(
    lanes: &[Mutex<SimulationLane>],
    chunk: &TraceWorkload,
    cuts: &[Cut],
    threads: usize,
    meanwhile: impl FnOnce() -> T,
) -> T {
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(lane) = lanes.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Ok(mut lane) = lane.lock() {
                lane.play(chunk, cuts);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..threads.clamp(1, lanes.len().max(1)) {
            scope.spawn(work);
        }
        meanwhile()
    })
}

fn row(lane: SimulationLane, outline: &TraceOutline) -> SimulationRow {
    let StreamRun { policy, size, unit } = lane.run;
    let mut windows = lane.windows;
    windows.resize(outline.windows.len(), RunCounts::default());
    SimulationRow {
        trace: outline.name.clone(),
        policy,
        size,
        unit,
        counts: windows.iter().copied().sum(),
        windows,
        elapsed: lane.elapsed,
        said: Vec::new(),
    }
}
