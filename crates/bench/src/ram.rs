//! `bench ram`: a donor of memory compared with nbdkit, with the same client in the same run.
//!
//! Owns: servers, client and figures. One `nectary ram donate` and one nbdkit with its memory plugin each export the
//! same amount of memory over TCP on this machine. fio's NBD engine is the client of both; they take turns (A B B A …).
//! A second donor runs too; its ratio to the first one shows the noise. nbdkit's null plugin, which stores nothing,
//! shows the limit: the time that client, protocol and kernel need. Each server is filled once and compared byte by
//! byte before the measurement. With one request at a time, client and server sleep in turn, and a machine takes longer to
//! wake a processor than either to work; so these figures are also measured with both on one processor. Figures are medians of the ratios of pairs; the lower end of their interval has to
//! reach the target. Leaves to others: file systems on such a device (`files`).

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::{Value, json};

use crate::guardian::Guardian;
use crate::process::{PipedProcess, ProcessEnvironment, run as run_program};
use crate::statistics::{IntervalEstimate, estimate, order, paired_ratio};
use crate::store::RunProgress;
use crate::{Error, ExperimentErrorKind, ExperimentReport, ReportFigure, machine};

/// The size of each server's export, in bytes.
const EXPORT_BYTES: u64 = 256 << 20;
/// The memory that a donor lends, in bytes.
const LENT_BYTES: u64 = EXPORT_BYTES + (4 << 20);
/// The longest time that a server may take to start.
const PATIENCE: Duration = Duration::from_secs(20);
/// The time between two attempts to connect to a server that starts.
const STEP: Duration = Duration::from_millis(5);
/// The lowest allowed ratio of the donor's rate to that of nbdkit, with one request at a time.
const TARGET_ONE: f64 = 0.95;
/// The lowest allowed ratio of the donor's rate to that of nbdkit, with many requests in flight.
const TARGET_MANY: f64 = 1.2;

/// The experiments, each with its subject and its approximate duration.
pub const EXPERIMENTS: [(&str, &str, &str); 2] = [
    ("bench ram --quick", "a look: three short pairs of each figure, no verdicts", "1 minute"),
    ("bench ram", "a donor of memory beside nbdkit and a null server, with fio as client", "6 minutes"),
];

/// A workload: the requests that fio makes.
#[derive(Debug, Clone, Copy, PartialEq)]
struct FioWorkload {
    name: &'static str,
    rw: &'static str,
    block_bytes: u32,
    jobs: u32,
    depth: u32,
    target: f64,
    /// Whether client and server run on the same processor.
    is_pinned: bool,
}

const fn random(name: &'static str, rw: &'static str, jobs: u32, depth: u32, target: f64) -> FioWorkload {
    FioWorkload { name, rw, block_bytes: 4096, jobs, depth, target, is_pinned: false }
}

const fn pinned(name: &'static str, rw: &'static str) -> FioWorkload {
    FioWorkload { is_pinned: true, ..random(name, rw, 1, 1, TARGET_ONE) }
}

const fn sequential(name: &'static str, rw: &'static str) -> FioWorkload {
    FioWorkload { name, rw, block_bytes: 128 << 10, jobs: 1, depth: 4, target: TARGET_ONE, is_pinned: false }
}

const WORKS: [FioWorkload; 8] = [
    random("read.depth1", "randread", 1, 1, TARGET_ONE),
    random("write.depth1", "randwrite", 1, 1, TARGET_ONE),
    pinned("read.depth1.pinned", "randread"),
    pinned("write.depth1.pinned", "randwrite"),
    random("read.4x32", "randread", 4, 32, TARGET_MANY),
    random("write.4x32", "randwrite", 4, 32, TARGET_MANY),
    sequential("read.sequential", "read"),
    sequential("write.sequential", "write"),
];

impl FioWorkload {
    fn is_read(&self) -> bool {
        self.rw.ends_with("read")
    }

    fn is_random(&self) -> bool {
        self.rw.starts_with("rand")
    }
}

/// The settings of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct RamOptions {
    /// A quick run: three short pairs, no verdicts.
    pub quick: bool,
    /// Runs only the figures whose names contain one of these texts; all if the list is empty.
    pub only: Vec<String>,
    /// The number of pairs of each figure; `None` for the default.
    pub pairs: Option<usize>,
    /// The duration of each run of fio, in milliseconds; `None` for the default.
    pub milliseconds: Option<u64>,
    /// The number of threads of each donor; `None` for the donor's default.
    pub threads: Option<u64>,
}

/// The servers, in the order of the elements in [`All`].
const SERVERS: [&str; 4] = ["nectary", "nectary-again", "nbdkit", "null"];

/// A running server.
struct ExportServer {
    process: PipedProcess,
    url: String,
}

/// The runs of one figure on one server.
#[derive(Debug, Clone, Default, Serialize)]
struct ServerRuns {
    /// Requests per second.
    rates: Vec<f64>,
    /// The processor time of the server per request, in microseconds.
    server_us: Vec<f64>,
    /// The processor time of the client per request, in microseconds.
    client_us: Vec<f64>,
}

/// Runs the experiment; `nectary` is the path of this program.
///
/// *Errors*: [`ExperimentErrorKind::Missing`] without fio or nbdkit, with the names of their packages; [`ExperimentErrorKind::Failed`] if a
/// server returns bytes other than those that were written.
pub fn run(
    options: &RamOptions,
    nectary: &Path,
    progress: &mut (dyn FnMut(&RunProgress) + Send),
) -> Result<ExperimentReport, Error> {
    let pairs = options.pairs.unwrap_or(if options.quick { 3 } else { 10 });
    let milliseconds = options.milliseconds.unwrap_or(if options.quick { 400 } else { 1000 });
    if !(2..=1000).contains(&pairs) || !(100..=600_000).contains(&milliseconds) {
        return Err(Error::new(ExperimentErrorKind::Usage, "2 to 1000 pairs, and runs of 100 ms to 10 minutes"));
    }
    let is_named =
        |work: &FioWorkload| options.only.is_empty() || options.only.iter().any(|part| work.name.contains(&**part));
    let works: Vec<FioWorkload> = WORKS.into_iter().filter(is_named).collect();
    if works.is_empty() {
        let known = WORKS.map(|work| work.name).join(", ");
        return Err(Error::new(
            ExperimentErrorKind::Usage,
            format!("no figure has that in its name; there are {known}"),
        ));
    }
    for (program, package) in [("fio", "fio"), ("nbdkit", "nbdkit")] {
        if let Err(error) = run_program(Command::new(program).arg("--version")) {
            let message = format!("NOT RUN: {}: apt-get install {package}", error.message);
            return Err(Error::new(ExperimentErrorKind::Missing, message));
        }
    }
    let began = Instant::now();
    let mut command = Command::new(nectary);
    command.args(["bench", "guardian"]);
    let mut guardian = Guardian::start(command)?;
    let folder = std::env::temp_dir().join(format!("nectary-bench-ram-{}", std::process::id()));
    guardian.make_folder(&folder)?;
    let result = run_all(&works, pairs, milliseconds, options.threads, nectary, &folder, progress);
    guardian.finish();
    let setting = json!({
        "machine": machine::describe(), "pairs": pairs, "milliseconds": milliseconds, "export_bytes": EXPORT_BYTES,
        "threads": options.threads, "quick": options.quick, "seconds": began.elapsed().as_secs_f64(),
    });
    Ok(report(&works, &result?, options.quick, setting))
}

/// The runs of each figure, for each server.
type All = Vec<[ServerRuns; SERVERS.len()]>;

fn run_all(
    works: &[FioWorkload],
    pairs: usize,
    milliseconds: u64,
    threads: Option<u64>,
    nectary: &Path,
    folder: &Path,
    progress: &mut (dyn FnMut(&RunProgress) + Send),
) -> Result<All, Error> {
    let of = (SERVERS.len() * (pairs * works.len() + 1)) as u64;
    let mut done = 0;
    let mut step = |what: String| {
        progress(&RunProgress { done, of, what });
        done += 1;
    };
    let mut servers = Vec::new();
    for name in SERVERS {
        step(format!("filling {name}"));
        let server = ExportServer::start(name, threads, nectary, folder)?;
        server.fill(name != "null")?;
        servers.push(server);
    }
    let mut all: All = works.iter().map(|_| Default::default()).collect();
    for pair in 0..pairs {
        for (work, runs) in works.iter().zip(&mut all) {
            for index in order(servers.len(), pair) {
                step(format!("{}: {}", work.name, SERVERS[index]));
                servers[index].measure(work, milliseconds, &mut runs[index])?;
            }
        }
    }
    Ok(all)
}

impl ExportServer {
    fn start(name: &str, threads: Option<u64>, nectary: &Path, folder: &Path) -> Result<ExportServer, Error> {
        let said = folder.join(format!("{name}.said"));
        if name.starts_with("nectary") {
            let mut command = ProcessEnvironment::default().command(nectary, nectary);
            command.args(["ram", "donate", "--listen", "127.0.0.1:0", "--memory", &LENT_BYTES.to_string()]);
            command.args(threads.map(|count| format!("--threads={count}")));
            command.env("NECTARY_RUNTIME_DIR", folder.join(name));
            let process = PipedProcess::start(command, name, said)?;
            let address = process.line(PATIENCE)?;
            return Ok(ExportServer { process, url: format!("nbd://{address}/bench/{EXPORT_BYTES}") });
        }
        let port = free_port()?;
        let mut command = ProcessEnvironment::default().command(nectary, Path::new("nbdkit"));
        command.args(["--foreground", "--ipaddr", "127.0.0.1", "--port", &port.to_string()]);
        command.arg(if name == "null" { "null" } else { "memory" }).arg(format!("size={EXPORT_BYTES}"));
        let process = PipedProcess::start(command, name, said)?;
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if Instant::now() > deadline {
                // If the server ended, the error quotes its output, which has the reason.
                process.line(Duration::ZERO)?;
            }
            std::thread::sleep(STEP);
        }
        Ok(ExportServer { process, url: format!("nbd://127.0.0.1:{port}/") })
    }

    /// Writes the whole export once, so that all its memory is allocated; if `is_compared`, then reads and compares it.
    fn fill(&self, is_compared: bool) -> Result<(), Error> {
        let mut command = self.fio(&format!("--size={EXPORT_BYTES}"));
        command.args(["--rw=write", "--bs=64k", "--iodepth=4"]);
        if is_compared {
            command.args(["--verify=crc32c", "--do_verify=1", "--verify_fatal=1", "--verify_state_save=0"]);
        }
        run_program(&mut command).map(drop)
    }

    fn measure(&self, work: &FioWorkload, milliseconds: u64, runs: &mut ServerRuns) -> Result<(), Error> {
        let mut command = self.fio(&format!("--size={EXPORT_BYTES}"));
        let processors = all_processors()?;
        if work.is_pinned {
            let one = processors.split([',', '-']).next().unwrap_or("0");
            self.pin(one)?;
            let fio = command;
            command = Command::new("taskset");
            command.args(["--cpu-list", one]).arg(fio.get_program()).args(fio.get_args());
        }
        command.args(["--time_based", "--group_reporting", &format!("--runtime={milliseconds}ms")]);
        command.args([format!("--rw={}", work.rw), format!("--bs={}", work.block_bytes)]);
        command.args([format!("--numjobs={}", work.jobs), format!("--iodepth={}", work.depth)]);
        if work.is_random() {
            command.args(["--norandommap", "--randrepeat=0"]);
        }
        let before = self.process.processor_s();
        let said = run_program(&mut command);
        if work.is_pinned {
            self.pin(&processors)?;
        }
        let said = said?;
        let server_s = self.process.processor_s() - before;
        // Warnings may precede the report.
        let json = said.find('{').map_or("", |start| &said[start..]);
        let report: Value = serde_json::from_str(json).map_err(|error| Error::failed("fio's report", error))?;
        let job = &report["jobs"][0];
        let direction = &job[if work.is_read() { "read" } else { "write" }];
        let number = |value: &Value| value.as_f64().filter(|value| *value > 0.0);
        let (Some(rate), Some(count)) = (number(&direction["iops"]), number(&direction["total_ios"])) else {
            return Err(Error::failed("fio's report", "there is no rate in it"));
        };
        let share = ["usr_cpu", "sys_cpu"].iter().filter_map(|name| job[name].as_f64()).sum::<f64>() / 100.0;
        runs.rates.push(rate);
        runs.server_us.push(server_s * 1e6 / count);
        // With several jobs, fio reports their mean.
        runs.client_us.push(share * f64::from(work.jobs) * 1e6 / rate);
        Ok(())
    }

    /// Lets the server run on these processors alone.
    fn pin(&self, processors: &str) -> Result<(), Error> {
        let mut command = Command::new("taskset");
        command.args(["--all-tasks", "--cpu-list", "--pid", processors, &self.process.id().to_string()]);
        run_program(&mut command).map(drop)
    }

    fn fio(&self, size: &str) -> Command {
        let mut command = Command::new("fio");
        command.args(["--name=ram", "--ioengine=nbd", "--output-format=json", &format!("--uri={}", self.url), size]);
        command
    }
}

/// The processors that this process may use, as a list for `taskset`.
fn all_processors() -> Result<String, Error> {
    let path = "/proc/self/status";
    let status = std::fs::read_to_string(path).map_err(|error| Error::failed(path, error))?;
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    Ok(list.ok_or_else(|| Error::failed(path, "it has no list of processors"))?.trim().to_owned())
}

/// Finds a TCP port of this machine that no process uses now.
fn free_port() -> Result<u16, Error> {
    let listener = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    listener.map(|address| address.port()).map_err(|error| Error::failed("a free port", error))
}

fn report(works: &[FioWorkload], all: &All, quick: bool, setting: Value) -> ExperimentReport {
    let (mut figures, mut rows) = (Vec::new(), Vec::new());
    let mut text = format!("bench ram: {}\n", machine::describe());
    text.push_str(&format!(
        "{} MiB over TCP on this machine, fio's NBD engine as client; {} pairs of {} ms; us: processor time of the \
         server a request\ntimes are real, and neighbours on the machine change them: only ratios of pairs count\n",
        EXPORT_BYTES >> 20,
        setting["pairs"],
        setting["milliseconds"]
    ));
    if quick {
        text.push_str("a quick run: no verdicts\n");
    }
    text.push_str(&format!(
        "  {:19} {:>7} {:>18} {:>18} {:>18} {:>8}  ratio to nbdkit; again; to null\n",
        "", "unit", "nectary us", "nbdkit us", "null us", "client"
    ));
    let is_missed = |low: f64, target: f64| !quick && low < target;
    let mut is_short = false;
    for (work, runs) in works.iter().zip(all) {
        let [nectary, again, nbdkit, null] = runs;
        let ratio = paired_ratio(&nectary.rates, &nbdkit.rates);
        let (noise, limit) = (paired_ratio(&again.rates, &nectary.rates), paired_ratio(&nectary.rates, &null.rates));
        is_short |= is_missed(ratio.low, work.target);
        let (unit, by) = if work.is_random() { ("IOPS", 1.0) } else { ("MB/s", 1e6 / f64::from(work.block_bytes)) };
        let rate = |runs: &ServerRuns| estimate(&runs.rates.iter().map(|rate| rate / by).collect::<Vec<_>>());
        let both = |runs: &ServerRuns| format!("{:9.0} {:5.1}", rate(runs).value, mean(&runs.server_us));
        text.push_str(&format!(
            "  {:19} {unit:>7} {:>18} {:>18} {:>18} {:>8.1}  {} target {}{}; {}; {}\n",
            work.name,
            both(nectary),
            both(nbdkit),
            both(null),
            mean(&nectary.client_us),
            range(ratio),
            work.target,
            if is_missed(ratio.low, work.target) { " SHORT" } else { "" },
            range(noise),
            range(limit)
        ));
        let mut add = |name: &str, unit, found: IntervalEstimate, target: Option<f64>| {
            let name = format!("ram.{}.{name}", work.name);
            figures.push(ReportFigure::new(name, unit, found).at_least(target).judged(target.is_some() && !quick));
        };
        add("again", "x", noise, None);
        add("of_nbdkit", "x", ratio, Some(work.target));
        add("of_null", "x", limit, None);
        for (name, runs) in SERVERS.iter().zip(runs) {
            add(name, unit, rate(runs), None);
            add(&format!("{name}.processor"), "us", estimate(&runs.server_us), None);
        }
        let runs: Vec<_> = SERVERS.iter().zip(runs).collect();
        rows.push(json!({ "figure": work.name, "unit": unit, "divided_by": by, "runs": runs }));
    }
    figures.sort_by_key(|figure| {
        let is_missed = figure.target.is_some_and(|target| figure.low < target);
        (!figure.name.ends_with(".again"), !is_missed, figure.target.is_none())
    });
    ExperimentReport::new("ram", setting, figures, rows, text).judged(is_short)
}

fn range(found: IntervalEstimate) -> String {
    format!("{:.2} ({:.2} to {:.2})", found.value, found.low, found.high)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(rate: f64) -> ServerRuns {
        ServerRuns { rates: vec![rate; 4], server_us: vec![10.0; 4], client_us: vec![20.0; 4] }
    }

    fn reported(nectary: f64, quick: bool) -> ExperimentReport {
        let all = vec![[runs(nectary), runs(nectary), runs(100.0), runs(200.0)]; 2];
        report(&[WORKS[0], WORKS[4]], &all, quick, json!({ "pairs": 4, "milliseconds": 1 }))
    }

    /// Short figures come after the noise and before all others.
    #[test]
    fn ram_report_puts_noise_first() {
        let report = reported(100.0, false);
        let names: Vec<&str> = report.figures.iter().take(4).map(|figure| &*figure.name).collect();
        let expected =
            ["ram.read.depth1.again", "ram.read.4x32.again", "ram.read.4x32.of_nbdkit", "ram.read.depth1.of_nbdkit"];
        assert_eq!(names, expected);
        assert!(report.is_short() && report.text().matches("SHORT").count() == 1, "{}", report.text());
        assert!(!reported(130.0, false).is_short() && !reported(100.0, true).is_short());
    }

    /// Unknown figures and numbers out of bounds are refused.
    #[test]
    fn ram_refuses_unknown_or_unbounded() {
        let options = RamOptions { quick: true, only: Vec::new(), pairs: None, milliseconds: None, threads: None };
        for wrong in [
            RamOptions { only: vec!["tape".to_owned()], ..options.clone() },
            RamOptions { pairs: Some(1), ..options.clone() },
            RamOptions { milliseconds: Some(1), ..options.clone() },
        ] {
            let error = run(&wrong, Path::new("/nowhere"), &mut |_| {}).unwrap_err();
            assert_eq!(error.kind, ExperimentErrorKind::Usage);
        }
    }
}
