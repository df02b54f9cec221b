//! `bench io`: the rate of a directory, file or device for each request size, measured like xdd.
//!
//! Owns: the options and the cells of a run. First the streams are filled with a pattern. Then each cell (a combination
//! of operation, mode, streams, depth and request size) runs in several passes. The result of writes is compared after
//! the timed part. Each pass runs all cells before the next pass begins, so that a drift of the machine affects all
//! sizes alike.
//!
//! | file | what is in it |
//! |---|---|
//! | `pattern`, `content` | the bytes of the streams, and their comparison |
//! | `target` | what may be used, and what is refused |
//! | `job`, `engine` | the description of a pass, and the threads and rings that execute it |
//! | `process` | a pass in its own process |
//! | `run`, `results`, `report`, `plot` | the sweep, its columns, tables and pictures |
//! | `timestamps` | the file of requests |
//! | `fio` | the comparison with fio |
//! | `ncar` | the conditions of the NCAR report: hosts, file system, figures |

mod content;
mod engine;
mod fio;
mod job;
mod ncar;
mod pattern;
mod plot;
mod process;
mod report;
mod results;
mod run;
mod target;
mod timestamps;

use std::path::PathBuf;

pub use fio::check as check_fio;
pub use job::{CompletedRequest, IoPass, OpenMode, PassOutcome, RequestOperation, StreamOutcome, SubmissionEngine};
pub use ncar::{
    NcarMatrixOptions as NcarOptions, dry_run as ncar_dry_run, figure_id as ncar_figure_id, pictures as ncar_pictures,
    run as run_ncar, titles as ncar_titles,
};
pub use plot::pictures as sweep_pictures;
pub use process::serve;
pub use run::{dry_run, run};
pub use timestamps::RequestTimestamps;

use crate::{Error, ExperimentErrorKind};
use pattern::BLOCK_BYTES;

/// The experiments, each with its subject and its approximate duration.
pub const EXPERIMENTS: [(&str, &str, &str); 4] = [
    ("bench io TARGET --quick", "a look: MiB/s by request size of a directory, file or device", "1 minute"),
    ("bench io TARGET", "the same for 4 KiB to 16 MiB, beside the device's ceiling", "10 minutes"),
    ("bench io DIR --check-fio", "whether this command and fio measure the same, in pairs", "2 minutes"),
    (
        "bench io DIR --matrix ncar",
        "the figures of the NCAR report: a shared volume, XFS, the raw device and a bare FUSE server on two hosts",
        "2 hours",
    ),
];

/// The default length of each stream, and that in a quick run. *Units*: bytes.
pub const BYTES: u64 = 256 << 20;
const BYTES_QUICK: u64 = 64 << 20;
/// The largest request. *Units*: bytes.
const REQUEST_BYTES_MAX: u64 = 64 << 20;
/// The largest number of requests of a stream in a pass. All are kept in memory until the pass ends.
const REQUESTS_MAX: u64 = 4 << 20;
/// The largest number of streams.
const STREAMS_MAX: usize = 64;
/// The largest number of requests that a stream may have in flight.
const DEPTH_MAX: usize = 256;
/// The largest number of threads of a pass.
const THREADS_MAX: usize = 512;
/// The largest amount of memory for the buffers of a pass. *Units*: bytes.
const BUFFERS_BYTES_MAX: u64 = 4 << 30;
/// The largest number of passes.
const PASSES_MAX: usize = 1000;
/// The longest time of a pass in a quick run. *Units*: seconds.
const SECONDS_QUICK: f64 = 0.5;

/// The settings of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct BenchIoOptions {
    /// A directory, file or block device.
    pub target: PathBuf,
    /// The operations. By default reads and writes, or only reads if the target must not be written.
    pub operations: Vec<RequestOperation>,
    /// The modes; buffered and direct by default.
    pub modes: Vec<OpenMode>,
    /// The request sizes; by default the powers of two from 4 KiB to 16 MiB. *Units*: bytes.
    pub sizes: Vec<u64>,
    /// The numbers of streams; 1 by default.
    pub streams: Vec<usize>,
    /// The numbers of requests that a stream has in flight; 1 by default.
    pub depths: Vec<usize>,
    /// The number of passes of each cell.
    pub passes: Option<usize>,
    /// The length of each stream. *Units*: bytes.
    pub bytes: Option<u64>,
    /// The share of mixed requests that read, in percent.
    pub read_percent: u64,
    /// The time after which a pass ends even if it is unfinished. *Units*: seconds.
    pub seconds: Option<f64>,
    /// The engine; by default threads at depth 1, otherwise io_uring.
    pub engine: Option<SubmissionEngine>,
    /// Whether existing contents may be overwritten.
    pub overwrite: bool,
    /// Whether cached pages of the streams stay in memory between passes.
    pub is_warm: bool,
    /// Whether the time includes a final `fsync`.
    pub is_synced: bool,
    /// A quick run, which takes less than a minute.
    pub quick: bool,
    /// Whether the report contains each request.
    pub keep: bool,
}

/// A cell of the sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SweepCell {
    /// The operation.
    pub operation: RequestOperation,
    /// The mode.
    pub mode: OpenMode,
    /// The number of streams.
    pub streams: usize,
    /// The number of requests that a stream has in flight.
    pub depth: usize,
    /// The size of a request. *Units*: bytes.
    pub request_bytes: u64,
}

/// A whole run.
#[derive(Debug, Clone)]
pub struct SweepPlan {
    /// The options.
    pub options: BenchIoOptions,
    /// The cells, in the order of a pass.
    pub cells: Vec<SweepCell>,
    /// The number of passes of each cell.
    pub passes: usize,
    /// The length of each stream. *Units*: bytes.
    pub bytes: u64,
    /// The time after which a pass ends even if it is unfinished. *Units*: seconds.
    pub seconds: Option<f64>,
}

fn usage(message: impl Into<String>) -> Error {
    Error::new(ExperimentErrorKind::Usage, message)
}

fn or<T: Clone>(given: &[T], else_these: &[T]) -> Vec<T> {
    if given.is_empty() { else_these.to_vec() } else { given.to_vec() }
}

impl SweepPlan {
    /// Makes the plan of a run.
    ///
    /// *Errors*: [`ExperimentErrorKind::ResourceUsage`] for numbers out of bounds, with the bounds.
    pub fn new(options: BenchIoOptions) -> Result<SweepPlan, Error> {
        let bytes = options.bytes.unwrap_or(if options.quick { BYTES_QUICK } else { BYTES });
        let passes = options.passes.unwrap_or(if options.quick { 1 } else { 3 });
        let doubled: Vec<u64> = (12..=24).map(|power| 1 << power).collect();
        let sizes = match (options.quick, options.sizes.is_empty()) {
            (true, true) => doubled.into_iter().step_by(4).collect(),
            _ => or(&options.sizes, &doubled),
        };
        for size in &sizes {
            check_size(*size, bytes)?;
        }
        let (streams, depths) = (or(&options.streams, &[1]), or(&options.depths, &[1]));
        if !(1..=PASSES_MAX).contains(&passes) {
            return Err(usage(format!("{passes} passes: 1 at least, and {PASSES_MAX} at most")));
        }
        if let Some(count) = streams.iter().find(|count| !(1..=STREAMS_MAX).contains(*count)) {
            return Err(usage(format!("{count} streams: 1 at least, and {STREAMS_MAX} at most")));
        }
        if let Some(depth) = depths.iter().find(|depth| !(1..=DEPTH_MAX).contains(*depth)) {
            return Err(usage(format!("{depth} requests in flight: 1 at least, and {DEPTH_MAX} at most")));
        }
        if options.read_percent > 100 {
            return Err(usage("mixed requests: 0 to 100 percent of them read"));
        }
        if options.seconds.is_some_and(|seconds| !(0.01..=86_400.0).contains(&seconds)) {
            return Err(usage("a pass takes 0.01 seconds at least, and a day at most"));
        }
        let operations = or(&options.operations, &[RequestOperation::Read, RequestOperation::Write]);
        let modes = or(&options.modes, &[OpenMode::Buffered, OpenMode::Direct]);
        let mut cells = Vec::new();
        for operation in &operations {
            for mode in &modes {
                for streams in &streams {
                    for depth in &depths {
                        for request_bytes in &sizes {
                            let (operation, mode, request_bytes) = (*operation, *mode, *request_bytes);
                            cells.push(SweepCell { operation, mode, streams: *streams, depth: *depth, request_bytes });
                        }
                    }
                }
            }
        }
        for cell in &cells {
            let in_flight = cell.streams * cell.depth;
            if in_flight as u64 * cell.request_bytes > BUFFERS_BYTES_MAX {
                let message = format!(
                    "{in_flight} requests of {} bytes at once take more than {} GiB: fewer streams, less depth or smaller \
                     requests",
                    cell.request_bytes,
                    BUFFERS_BYTES_MAX >> 30
                );
                return Err(usage(message));
            }
            let engine = engine_of(options.engine, cell.mode, cell.depth)?;
            if engine == SubmissionEngine::Threads && in_flight > THREADS_MAX {
                return Err(usage(format!("{in_flight} threads: {THREADS_MAX} at most; io_uring needs one a stream")));
            }
        }
        let seconds = options.seconds.or(options.quick.then_some(SECONDS_QUICK));
        Ok(SweepPlan { cells, passes, bytes, seconds, options })
    }

    /// Whether any cell writes.
    pub fn writes(&self) -> bool {
        self.cells.iter().any(|cell| cell.operation.writes())
    }

    /// The largest number of streams of a cell.
    pub fn streams_max(&self) -> usize {
        self.cells.iter().map(|cell| cell.streams).max().unwrap_or(1)
    }
}

/// Checks a request size. *Errors*: [`ExperimentErrorKind::ResourceUsage`] if it is out of bounds.
fn check_size(size: u64, bytes: u64) -> Result<(), Error> {
    let block = BLOCK_BYTES as u64;
    if !size.is_multiple_of(block) || !(block..=REQUEST_BYTES_MAX).contains(&size) {
        let most = REQUEST_BYTES_MAX >> 20;
        return Err(usage(format!("requests of {size} bytes: multiples of {block}, and {most} MiB at most")));
    }
    if !bytes.is_multiple_of(block) || size > bytes {
        return Err(usage(format!(
            "streams of {bytes} bytes: a multiple of {block}, and at least a request of {size} bytes"
        )));
    }
    if bytes / size > REQUESTS_MAX {
        return Err(usage(format!(
            "streams of {bytes} bytes in requests of {size} are more than {REQUESTS_MAX} requests: a smaller --size, \
             or larger requests"
        )));
    }
    Ok(())
}

/// Chooses the engine of a cell.
fn engine_of(wanted: Option<SubmissionEngine>, mode: OpenMode, depth: usize) -> Result<SubmissionEngine, Error> {
    match (wanted, mode, depth) {
        (Some(SubmissionEngine::Uring), OpenMode::Sync, _) => {
            Err(usage("O_SYNC goes with threads: leave --engine uring out"))
        }
        (Some(engine), ..) => Ok(engine),
        (None, OpenMode::Sync, _) | (None, _, 1) => Ok(SubmissionEngine::Threads),
        (None, ..) => Ok(SubmissionEngine::Uring),
    }
}

#[cfg(test)]
pub(crate) mod plan_tests {
    use super::*;

    /// The default options.
    pub fn options() -> BenchIoOptions {
        BenchIoOptions {
            target: PathBuf::from("/tmp"),
            operations: Vec::new(),
            modes: Vec::new(),
            sizes: Vec::new(),
            streams: Vec::new(),
            depths: Vec::new(),
            passes: None,
            bytes: None,
            read_percent: 50,
            seconds: None,
            engine: None,
            overwrite: false,
            is_warm: false,
            is_synced: false,
            quick: false,
            keep: false,
        }
    }

    /// A plan has each cell once, and refuses values out of bounds.
    #[test]
    fn sweep_plan_has_cells_once() {
        let plan = SweepPlan::new(options()).unwrap();
        assert_eq!((plan.cells.len(), plan.passes, plan.bytes), (2 * 2 * 13, 3, 256 << 20));
        assert!(plan.writes() && plan.streams_max() == 1);
        let quick = SweepPlan::new(BenchIoOptions { quick: true, ..options() }).unwrap();
        assert_eq!((quick.cells.len(), quick.passes, quick.seconds), (2 * 2 * 4, 1, Some(SECONDS_QUICK)));
        let refused = |options: BenchIoOptions, words: &str| {
            let error = SweepPlan::new(options).unwrap_err();
            assert!(error.kind == ExperimentErrorKind::Usage && error.message.contains(words), "{error}");
        };
        refused(BenchIoOptions { sizes: vec![5000], ..options() }, "multiples of 4096");
        refused(BenchIoOptions { sizes: vec![128 << 20], ..options() }, "64 MiB at most");
        refused(BenchIoOptions { bytes: Some(1 << 20), ..options() }, "at least a request");
        refused(BenchIoOptions { bytes: Some(1 << 40), ..options() }, "more than 4194304 requests");
        refused(BenchIoOptions { streams: vec![0], ..options() }, "64 at most");
        refused(BenchIoOptions { depths: vec![257], ..options() }, "256 at most");
        refused(BenchIoOptions { passes: Some(0), ..options() }, "1 at least");
        refused(BenchIoOptions { streams: vec![64], depths: vec![64], ..options() }, "GiB");
        refused(
            BenchIoOptions { modes: vec![OpenMode::Sync], engine: Some(SubmissionEngine::Uring), ..options() },
            "threads",
        );
        assert_eq!(engine_of(None, OpenMode::Direct, 8).unwrap(), SubmissionEngine::Uring);
        assert_eq!(engine_of(None, OpenMode::Sync, 8).unwrap(), SubmissionEngine::Threads);
    }
}
