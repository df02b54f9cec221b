//! `bench limits`: the store's rates beside those of fio and of what every store must do, on the same device.
//!
//! Owns: paired runs and their report. *Reads*: two threads get objects that are not in memory, 32 at once. The rate is
//! compared with that of fio's random reads of the same size, 32 at once, from one or from two threads, whichever is
//! faster, and with that of *checked* reads: the same threads read the same bodies from a file, and only compute and
//! compare their checksums. *Filling*: one task puts objects one after another and then flushes. The rate is compared
//! with that of fio's sequential writes of 1 MiB, and with that of *copying*: a loop that copies the same bodies into
//! buffers, computes their checksums, and writes two buffers at a time. All three times include the final flush. Each
//! uses direct I/O on a file of the same size in the same directory, which is written once before the measurement. They
//! take turns (A B B A …). The report also has the store's rates at 64 and 128 gets in flight beside the same reads of
//! fio. If the store is slower than fio at 32 but not at 128, the cause is waiting; if it is slower at both, the cause is
//! processor time. Leaves to others: latencies as users see them (`store`).
//!
//! | file | what it owns |
//! |---|---|
//! | `filled.rs` | the store |
//! | `bare.rs` | what every store must do |
//! | `fio.rs` | fio |

mod bare;
mod filled;
mod fio;

use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use self::bare::{BodyCopier, BodyFile};
use self::filled::FilledStore;
use self::fio::FioRunner;
use crate::guardian::Guardian;
use crate::random::SeededRandom;
use crate::statistics::{IntervalEstimate, estimate, paired_ratio};
use crate::{Error, ExperimentErrorKind, ExperimentReport, ReportFigure, machine};

/// The number of reads in flight.
const DEPTH: usize = 32;
/// Higher numbers of gets in flight, which show how much the store waits. The rates at these numbers have no target.
const DEPTHS_BEYOND: [usize; 2] = [64, 128];
/// The number of threads that read from the store, like a proxy's workers; fio reads with its best number (`FIO_JOBS`).
const THREADS: usize = 2;
/// The numbers of threads with which fio reads. The highest rate counts, because the device can reach it.
const FIO_JOBS: [usize; 2] = [1, THREADS];
/// The memory of the store in bytes: far less than the data that are read, so that few reads find their object in
/// memory.
const MEMORY_BYTES: u64 = 32 << 20;
/// The smallest accepted ratio of reads to fio's rate, and of filling to that of copying.
const TARGET: f64 = 0.9;
/// The smallest accepted ratio of filling to fio's rate; fio neither copies nor sums.
const FILL_TARGET: f64 = 0.75;
/// The name of the page of `docs/results/`.
pub const PAGE: &str = "faster";
/// The number of different bodies, which objects use in turn. They are made before the measurement, as fio makes its
/// buffer. There are so many bodies that a wrong object almost always has a wrong body. The number is prime, because
/// misplaced data tend to be at round distances.
const BODIES: u32 = 1021;
/// The smallest size of a file, in bytes.
const BYTES_MIN: u64 = 256 << 20;

/// A rate, and the processor time of each operation in microseconds.
type Measured = (f64, f64);

/// The settings of a measurement.
#[derive(Debug, Clone, PartialEq)]
pub struct LimitsOptions {
    /// The directory of the files.
    pub folder: PathBuf,
    /// The size of each file, in bytes.
    pub bytes: u64,
    /// The size of the objects, in bytes.
    pub object_bytes: u32,
    /// The number of paired runs of each figure.
    pub pairs: usize,
    /// The duration of each run of reads, in seconds.
    pub seconds: u64,
}

/// The rates of one contender.
#[derive(Debug, Default, Clone)]
struct ContenderRates {
    rates: Vec<f64>,
    processor: Vec<f64>,
}

impl ContenderRates {
    fn add(&mut self, (rate, processor): Measured) {
        self.rates.push(rate);
        self.processor.push(processor);
    }
}

/// All runs.
#[derive(Debug, Default, Clone)]
struct LimitRuns {
    fill: ContenderRates,
    copied: ContenderRates,
    fio_fill: ContenderRates,
    reads: ContenderRates,
    beyond: [ContenderRates; DEPTHS_BEYOND.len()],
    checked: ContenderRates,
    fio_reads: ContenderRates,
}

/// Measures; `progress` receives the number of completed runs and the number of all runs.
///
/// *Errors*: [`ExperimentErrorKind::Missing`] without fio; [`ExperimentErrorKind::Void`] if a byte was wrong.
pub fn limits(
    options: &LimitsOptions,
    guardian: Command,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<ExperimentReport, Error> {
    if options.bytes < BYTES_MIN || options.pairs < 2 || options.seconds == 0 || options.object_bytes == 0 {
        let message = format!("{BYTES_MIN} bytes, 2 pairs, 1 second and objects of 1 byte are the least");
        return Err(Error::new(ExperimentErrorKind::Usage, message));
    }
    let folder = options.folder.join(format!("nectary-bench-limits-{}", std::process::id()));
    let mut guardian = Guardian::start(guardian)?;
    guardian.make_folder(&folder)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Error::failed("starting a runtime", error))?;
    let result = runtime.block_on(run(options, &folder, progress));
    drop(runtime);
    guardian.finish();
    result
}

async fn run(
    options: &LimitsOptions,
    folder: &Path,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<ExperimentReport, Error> {
    let fio = FioRunner { path: folder.join("fio"), bytes: options.bytes };
    let of = (6 + DEPTHS_BEYOND.len() as u64) * options.pairs as u64 + 3;
    let mut done = 0;
    let mut step = || {
        progress(done, of);
        done += 1;
    };
    step();
    fio.write(options.bytes, options.object_bytes)?;
    step();
    let mut store = FilledStore::create(&folder.join("store"), options).await?;
    store.fill(options.bytes).await?;
    let fill_bytes = options.bytes / 4;
    let mut copier = BodyCopier::create(&folder.join("copier"), options, &store.bodies).await?;
    copier.fill(options.bytes).await?;
    let mut runs = LimitRuns::default();
    for pair in 0..options.pairs {
        for is_store in if pair % 2 == 0 { [true, false] } else { [false, true] } {
            step();
            match is_store {
                true => runs.fill.add(store.fill(fill_bytes).await?),
                false => runs.fio_fill.add(fio.write(fill_bytes, options.object_bytes)?),
            }
        }
        step();
        runs.copied.add(copier.fill(fill_bytes).await?);
    }
    drop(copier);
    // The others' reads are as large as the store's: the object and its record header, in whole blocks.
    let (_, read_bytes) = store.read(Duration::from_millis(200), DEPTH)?;
    let read_bytes = read_bytes.next_multiple_of(u64::from(store.block_bytes));
    step();
    let shelf = BodyFile::create(&folder.join("shelf"), options, read_bytes, &store.bodies).await?;
    let time = Duration::from_secs(options.seconds);
    for pair in 0..options.pairs {
        for is_store in if pair % 2 == 0 { [true, false] } else { [false, true] } {
            step();
            match is_store {
                true => runs.reads.add(store.read(time, DEPTH)?.0),
                false => {
                    let [one, several] = FIO_JOBS.map(|jobs| fio.read(read_bytes, jobs, options.seconds));
                    let (one, several) = (one?, several?);
                    runs.fio_reads.add(if one.0 >= several.0 { one } else { several });
                }
            }
        }
        step();
        runs.checked.add(shelf.read(time, DEPTH, pair as u64)?);
        for (rates, depth) in runs.beyond.iter_mut().zip(DEPTHS_BEYOND) {
            step();
            rates.add(store.read(time, depth)?.0);
        }
    }
    progress(of, of);
    store.close().await?;
    Ok(report(options, read_bytes, &runs))
}

/// Runs `depth` tasks on [`THREADS`] threads, each with another seed, and returns their results.
fn on_threads<T, F>(depth: usize, seed: u64, task: impl Fn(SeededRandom) -> F + Sync) -> Result<Vec<T>, Error>
where
    T: Send + 'static,
    F: Future<Output = Result<T, Error>> + Send + 'static,
{
    let run = |mut random: SeededRandom| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Error::failed("starting a runtime", error))?;
        runtime.block_on(async {
            let mut tasks = tokio::task::JoinSet::new();
            for _ in 0..depth / THREADS {
                tasks.spawn(task(SeededRandom::new(random.next_u64())));
            }
            let mut results = Vec::new();
            while let Some(done) = tasks.join_next().await {
                results.push(done.map_err(|error| Error::failed("a reader", error))??);
            }
            Ok(results)
        })
    };
    let (mut random, run) = (SeededRandom::new(seed), &run);
    let ended: Vec<std::thread::Result<Result<Vec<T>, Error>>> = std::thread::scope(|scope| {
        let seeds: Vec<SeededRandom> = (0..THREADS).map(|_| SeededRandom::new(random.next_u64())).collect();
        let threads: Vec<_> = seeds.into_iter().map(|random| scope.spawn(move || run(random))).collect();
        threads.into_iter().map(|thread| thread.join()).collect()
    });
    let mut results = Vec::new();
    for ended in ended {
        results.extend(ended.map_err(|_| Error::failed("a reader", "it panicked"))??);
    }
    Ok(results)
}

fn void(what: &str, number: u32) -> Error {
    Error::new(ExperimentErrorKind::Void, format!("the run is void: what {what} {number} has is not what was put"))
}

/// A line of the report: two contenders.
struct RateComparison<'a> {
    name: &'static str,
    unit: &'static str,
    /// Rates are divided by this number.
    by: f64,
    left: (&'static str, &'a ContenderRates),
    right: (&'static str, &'a ContenderRates),
    target: Option<f64>,
}

fn report(options: &LimitsOptions, read_bytes: u64, runs: &LimitRuns) -> ExperimentReport {
    let mut text = format!("bench limits: {}\n", machine::describe());
    text.push_str(&format!(
        "{} pairs on files of {} MiB in {}; objects of {} bytes, {read_bytes} bytes a read; us: processor time a read or an object\n",
        options.pairs,
        options.bytes >> 20,
        options.folder.display(),
        options.object_bytes
    ));
    text.push_str("checked: reads of the same bodies with a checksum; copied: a loop that copies, sums and writes\n");
    let [twice, four_times] = &runs.beyond;
    let reads = |name, left, right, target| RateComparison { name, unit: "reads/s", by: 1.0, left, right, target };
    let fills = |name, left, right, target| RateComparison { name, unit: "MB/s", by: 1e6, left, right, target };
    let (store, checked, copied) = ("nectary", ("checked", &runs.checked), ("copied", &runs.copied));
    let (fio_reads, fio_fill) = (("fio", &runs.fio_reads), ("fio", &runs.fio_fill));
    let lines = [
        reads("read.depth32", (store, &runs.reads), fio_reads, Some(TARGET)),
        reads("read.depth32", (store, &runs.reads), checked, None),
        reads("read.depth32", checked, fio_reads, None),
        reads("read.gets64", (store, twice), fio_reads, None),
        reads("read.gets128", (store, four_times), fio_reads, None),
        fills("fill", (store, &runs.fill), fio_fill, Some(FILL_TARGET)),
        fills("fill", (store, &runs.fill), copied, Some(TARGET)),
        fills("fill", copied, fio_fill, None),
    ];
    let (mut figures, mut rows) = (Vec::new(), Vec::new());
    for line in &lines {
        let (figure, said, row) = line.compare();
        text.push_str(&said);
        figures.push(figure);
        rows.push(row);
    }
    figures.sort_by_key(|figure| !figure.is_short());
    let setting = json!({
        "folder": options.folder, "bytes": options.bytes, "object_bytes": options.object_bytes, "pairs": options.pairs,
        "seconds": options.seconds, "depth": DEPTH, "memory_bytes": MEMORY_BYTES, "read_bytes": read_bytes,
        "machine": machine::describe(),
    });
    ExperimentReport::new(PAGE, setting, figures, rows, text)
}

impl RateComparison<'_> {
    /// Returns the ratio, the line for people, and every run.
    fn compare(&self) -> (ReportFigure, String, Value) {
        let RateComparison { name, unit, by, left, right, target } = *self;
        let ratio = paired_ratio(&left.1.rates, &right.1.rates);
        let name_of_figure = format!("limits.{name}.{}_of_{}", left.0, right.0);
        let figure = ReportFigure::new(name_of_figure, "x", ratio).at_least(target);
        let verdict = match (target, figure.is_short()) {
            (Some(target), true) => format!("  target {target}  SHORT"),
            (Some(target), false) => format!("  target {target}  reached"),
            (None, _) => String::new(),
        };
        let side = |(who, rates): (&str, &ContenderRates)| {
            let (rate, processor) = (estimate(&rates.rates).value / by, estimate(&rates.processor).value);
            format!("{who:7} {rate:9.1} {unit} {processor:5.1} us")
        };
        let IntervalEstimate { value, low, high } = ratio;
        let ratio = format!("ratio {value:.3} ({low:.3} to {high:.3}){verdict}");
        let text = format!("  {name:12} {}   {}   {ratio}\n", side(left), side(right));
        let row = json!({ "figure": figure.name, "unit": unit, "divided_by": by,
            left.0: left.1.rates, right.0: right.1.rates,
            "processor_us": { left.0: left.1.processor, right.0: right.1.processor } });
        (figure, text, row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rate of half of fio's is short, and is the first figure.
    #[test]
    fn half_fio_rate_is_short() {
        let options = LimitsOptions { folder: "/tmp".into(), bytes: 1 << 30, object_bytes: 8000, pairs: 2, seconds: 1 };
        let of = |rate| ContenderRates { rates: vec![rate; 2], processor: vec![10.0; 2] };
        let (reads, fill, copied, peer) = (of(95.0), of(50.0), of(52.0), of(100.0));
        let beyond = [of(95.0), of(95.0)];
        let runs =
            LimitRuns { fill, copied, fio_fill: peer.clone(), reads, beyond, checked: peer.clone(), fio_reads: peer };
        let report = report(&options, 12_288, &runs);
        assert_eq!(report.figures[0].name, "limits.fill.nectary_of_fio");
        assert!(report.is_short() && !report.figures[1].is_short());
        for (verdict, count) in [("target 0.75  SHORT", 1), ("target 0.9  reached", 2)] {
            assert_eq!(report.text().matches(verdict).count(), count, "{}", report.text());
        }
    }
}
