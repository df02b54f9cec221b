//! `bench io --check-fio`: checks that this command and fio measure the same rates.
//!
//! Owns: the pairs and the verdict. In each round this command runs twice and fio once on the same file. They take
//! turns, and each runs in a new process, so that all start alike. fio uses the same kind of call (`psync` or
//! io_uring), the same offsets and sizes, and the same flags. The ratio of this command's two runs is the noise. The
//! check fails if the median ratio to fio differs from 1 by more than [`TOLERANCE`]. It also fails if the noise does,
//! because the comparison then shows nothing.

use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::{Value, json};

use super::content::{drop_pages, fill};
use super::job::{IoPass, OpenMode, SubmissionEngine};
use super::run::PatternStreams;
use super::target::{MeasurementTarget, TargetUse};
use super::{BenchIoOptions, SweepCell, SweepPlan, engine_of, or, process, usage};
use crate::guardian::Guardian;
use crate::statistics::{IntervalEstimate, median, order, paired_ratio};
use crate::store::{ProcessCommands, RunProgress};
use crate::{Error, ExperimentErrorKind, ExperimentReport, ReportFigure, machine};

/// How far a ratio may be from 1.
const TOLERANCE: f64 = 0.03;
/// The default number of rounds.
const PAIRS: usize = 10;
/// The smallest number of rounds that gives an interval.
const PAIRS_MIN: usize = 4;
/// How long each run takes by default. *Units*: seconds.
const SECONDS: f64 = 0.5;
/// The default sizes of requests. *Units*: bytes.
const SIZES: [u64; 3] = [4 << 10, 64 << 10, 1 << 20];
/// The default numbers of requests in flight.
const DEPTHS: [usize; 2] = [1, 8];

/// The rates of a cell in each round. *Units*: MiB per second.
#[derive(Debug, Clone)]
struct FioCellRates {
    cell: SweepCell,
    own: Vec<f64>,
    again: Vec<f64>,
    fio: Vec<f64>,
}

impl FioCellRates {
    fn noise(&self) -> IntervalEstimate {
        paired_ratio(&self.own, &self.again)
    }

    fn ratio(&self) -> IntervalEstimate {
        paired_ratio(&self.own, &self.fio)
    }

    fn is_outside(&self) -> bool {
        [self.noise(), self.ratio()].iter().any(is_beyond)
    }
}

fn is_beyond(found: &IntervalEstimate) -> bool {
    // A median that is NaN counts as beyond the tolerance.
    found.value.is_nan() || (found.value - 1.0).abs() > TOLERANCE
}

/// Runs the comparison; `programs.worker` has to call [`serve`](super::serve), `programs.guardian`
/// [`serve`](crate::guardian::serve).
///
/// *Errors*: [`ExperimentErrorKind::Missing`] without fio; [`ExperimentErrorKind::ResourceUsage`] if the target must not be used.
pub fn check(
    options: &BenchIoOptions,
    programs: &ProcessCommands,
    progress: &mut dyn FnMut(&RunProgress),
) -> Result<ExperimentReport, Error> {
    let began = Instant::now();
    let pairs = options.passes.unwrap_or(PAIRS);
    if pairs < PAIRS_MIN {
        return Err(usage(format!("{pairs} pairs give no interval: {PAIRS_MIN} at least")));
    }
    let plan = SweepPlan::new(BenchIoOptions {
        modes: or(&options.modes, &[OpenMode::Direct]),
        sizes: or(&options.sizes, &SIZES),
        depths: or(&options.depths, &DEPTHS),
        passes: Some(pairs),
        ..options.clone()
    })?;
    if plan.cells.iter().any(|cell| cell.operation == super::RequestOperation::Mixed) {
        return Err(usage("fio mixes requests in its own order: compare --op read and --op write"));
    }
    let seconds = options.seconds.unwrap_or(SECONDS);
    let wish = TargetUse {
        streams: plan.streams_max(),
        bytes: plan.bytes,
        writes: plan.writes(),
        overwrite: options.overwrite,
    };
    let mut target = MeasurementTarget::find(&options.target, wish)?;
    let mut guardian = Guardian::start((programs.guardian)())?;
    target.make(&mut guardian, wish.streams)?;
    let of = (plan.cells.len() * pairs * 3) as u64;
    let mut done = 0;
    let (is_device, is_own) = (target.is_device(), target.is_own);
    let streams = PatternStreams::new(target.places, is_device, plan.bytes, is_own)?;
    let mut all = Vec::new();
    for cell in &plan.cells {
        let mut job = IoPass {
            seconds_max: Some(seconds),
            is_repeated: true,
            ..streams.job(cell, engine_of(options.engine, cell.mode, cell.depth)?)
        };
        if cell.operation.writes() {
            // fio's writes have other contents, so contents are not compared.
            job.read_generations.clear();
        }
        let mut found = FioCellRates { cell: *cell, own: Vec::new(), again: Vec::new(), fio: Vec::new() };
        for pair in 0..pairs {
            for contender in order(3, pair) {
                progress(&RunProgress { done, of, what: cell.name() });
                done += 1;
                drop_pages(&job.places)?;
                let own = || process::run("a run beside fio", (programs.worker)(), &job, |_| Ok(()));
                match contender {
                    0 => found.own.push(own()?.rate()),
                    1 => found.again.push(own()?.rate()),
                    _ => found.fio.push(fio(&job)?),
                }
            }
        }
        if cell.operation.writes() {
            fill(&streams.places, plan.bytes, 1)?;
        }
        all.push(found);
    }
    guardian.finish();
    Ok(report(&plan, seconds, &all, began.elapsed().as_secs_f64()))
}

/// The arguments of fio's command line.
fn words(job: &IoPass) -> Vec<String> {
    let seconds = job.seconds_max.unwrap_or(SECONDS);
    let engine = match job.engine {
        SubmissionEngine::Threads => ("psync", 1),
        SubmissionEngine::Uring => ("io_uring", job.depth),
    };
    let mut words: Vec<String> =
        ["--output-format=json", "--time_based", "--overwrite=1", "--fallocate=none"].map(str::to_owned).to_vec();
    words.push(format!("--rw={}", job.operation.name()));
    words.push(format!("--bs={}", job.request_bytes));
    words.push(format!("--size={}", job.requests() * job.request_bytes));
    // This is more than fio can do in the time, so fio starts again at the start of the file until the time is over.
    words.push("--io_size=1T".to_owned());
    words.push(format!("--runtime={}ms", (seconds * 1e3).round()));
    words.push(format!("--ioengine={}", engine.0));
    words.push(format!("--iodepth={}", engine.1));
    words.push(format!("--direct={}", u8::from(job.mode.is_direct())));
    match job.mode {
        OpenMode::Sync => words.push("--sync=sync".to_owned()),
        OpenMode::Dsync | OpenMode::DirectDsync => words.push("--sync=dsync".to_owned()),
        OpenMode::Buffered | OpenMode::Direct => {}
    }
    for (number, place) in job.places.iter().enumerate() {
        words.push(format!("--name=stream-{number}"));
        words.push(format!("--filename={}", place.path.display().to_string().replace(':', "\\:")));
        words.push(format!("--offset={}", place.start));
    }
    words
}

/// Runs fio and returns its rate. *Units*: MiB per second.
fn fio(job: &IoPass) -> Result<f64, Error> {
    let output = Command::new("fio").args(words(job)).stdin(Stdio::null()).output();
    let output = output.map_err(|error| {
        Error::new(ExperimentErrorKind::Missing, format!("fio: {error}; install the Debian package fio"))
    })?;
    if !output.status.success() {
        return Err(Error::failed("fio", String::from_utf8_lossy(&output.stderr).trim()));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    // Warnings may precede the report.
    let json = text.find('{').map_or("", |start| &text[start..]);
    let report = serde_json::from_str(json).map_err(|error| Error::failed("fio's report", error))?;
    rate(&report, job.operation.name())
}

/// The rate in fio's report: the bytes of all jobs, divided by the longest time of a job. *Units*: MiB per second.
fn rate(report: &Value, operation: &str) -> Result<f64, Error> {
    let jobs = report["jobs"].as_array().map(Vec::as_slice).unwrap_or_default();
    let number = |name: &str| jobs.iter().filter_map(|job| job[operation][name].as_f64()).collect::<Vec<f64>>();
    let (bytes, times) = (number("io_bytes").iter().sum::<f64>(), number("runtime"));
    let time_s = times.into_iter().fold(0.0, f64::max) / 1e3;
    if bytes <= 0.0 || time_s <= 0.0 {
        return Err(Error::failed("fio's report", format!("there are no {operation} bytes in it")));
    }
    Ok(bytes / time_s / (1 << 20) as f64)
}

fn report(plan: &SweepPlan, seconds: f64, all: &[FioCellRates], took_s: f64) -> ExperimentReport {
    let mut text = format!("bench io --check-fio {}: {}\n", plan.options.target.display(), machine::describe());
    text += &format!(
        "{} pairs of {seconds} s on {} MiB a stream; MiB/s are medians; noise is this command over itself; took \
         {took_s:.0} s\n\n",
        plan.passes,
        plan.bytes >> 20
    );
    text += &format!("{:38} {:>9} {:>9}  {:22} this command over fio\n", "", "nectary", "fio", "noise (A/A)");
    let (mut figures, mut rows) = (Vec::new(), Vec::new());
    // Failures are listed first.
    let mut sorted: Vec<&FioCellRates> = all.iter().collect();
    sorted.sort_by_key(|pairs| !pairs.is_outside());
    for pairs in sorted {
        let (noise, ratio, name) = (pairs.noise(), pairs.ratio(), pairs.cell.name());
        let verdict = match (is_beyond(&noise), is_beyond(&ratio)) {
            (true, _) => "OUTSIDE: the noise alone is beyond 3 %",
            (false, true) => "OUTSIDE",
            (false, false) => "agrees",
        };
        let shown = |found: &IntervalEstimate| format!("{:.3} ({:.3} to {:.3})", found.value, found.low, found.high);
        text += &format!(
            "{name:38} {:9.1} {:9.1}  {:22} {}  {verdict}\n",
            median(&pairs.own),
            median(&pairs.fio),
            shown(&noise),
            shown(&ratio)
        );
        figures.push(ReportFigure::new(format!("io.fio.{name}"), "x", ratio));
        figures.push(ReportFigure::new(format!("io.fio.noise.{name}"), "x", noise));
        rows.push(json!({ "cell": name, "nectary": pairs.own, "again": pairs.again, "fio": pairs.fio }));
    }
    let outside = all.iter().filter(|pairs| pairs.is_outside()).count();
    text += &format!("\n{outside} of {} outside of 3 %\n", all.len());
    let setting = json!({
        "target": plan.options.target, "bytes": plan.bytes, "pairs": plan.passes, "seconds": seconds,
        "machine": machine::describe(), "took_s": took_s,
    });
    ExperimentReport::new("io-fio", setting, figures, rows, text).judged(outside > 0)
}

#[cfg(test)]
mod tests {
    use super::super::job::tests::job;
    use super::super::plan_tests::options;
    use super::super::results::tests::result;
    use super::*;

    #[test]
    fn fio_arguments_match_engine() {
        let threads = words(&job()).join(" ");
        assert!(
            threads.contains("--rw=write --bs=65536 --size=1048576")
                && threads.contains("--ioengine=psync --iodepth=1"),
            "{threads}"
        );
        let uring = IoPass {
            engine: SubmissionEngine::Uring,
            depth: 8,
            mode: OpenMode::DirectDsync,
            seconds_max: Some(0.25),
            ..job()
        };
        let uring = words(&uring).join(" ");
        assert!(uring.contains("--ioengine=io_uring --iodepth=8 --direct=1 --sync=dsync"), "{uring}");
        assert!(uring.contains("--runtime=250ms") && uring.contains("--name=stream-0 --filename=/mnt/x/stream-0"));
    }

    /// The rate is the bytes of all jobs divided by the longest time; no bytes are an error.
    #[test]
    fn fio_rate_uses_longest_time() {
        let one = |bytes: u64, ms: u64| json!({ "read": { "io_bytes": bytes, "runtime": ms } });
        let report = json!({ "jobs": [one(1 << 20, 500), one(3 << 20, 1000)] });
        assert_eq!(rate(&report, "read").unwrap(), 4.0);
        assert!(rate(&report, "write").is_err() && rate(&Value::Null, "read").is_err());
    }

    /// Four percent are outside of the limit; such pairs and noise come first.
    #[test]
    fn fio_mismatch_and_noise_stand_first() {
        let pairs = |own: f64, again: f64| FioCellRates {
            cell: result().cell,
            own: vec![own; 4],
            again: vec![again; 4],
            fio: vec![100.0; 4],
        };
        assert!(pairs(104.0, 104.0).is_outside() && pairs(100.0, 110.0).is_outside());
        assert!(!pairs(102.0, 101.0).is_outside());
        let none = FioCellRates { own: Vec::new(), again: Vec::new(), fio: Vec::new(), ..pairs(1.0, 1.0) };
        assert!(none.is_outside(), "no pairs agree with nothing");
        let plan = SweepPlan::new(options()).unwrap();
        let found = report(&plan, 0.5, &[pairs(100.0, 100.0), pairs(96.0, 96.0), pairs(100.0, 120.0)], 1.0);
        assert!(found.is_short() && found.text().contains("2 of 3 outside"));
        let lines: Vec<&str> = found.text().lines().filter(|line| line.starts_with("read.")).collect();
        assert!(lines[0].ends_with("OUTSIDE") && lines[1].contains("noise alone") && lines[2].ends_with("agrees"));
        assert!(!report(&plan, 0.5, &[pairs(100.0, 100.0)], 1.0).is_short());
    }
}
