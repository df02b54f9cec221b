//! Measures this program beside an earlier one, in pairs: `e2e-campaigns bench-before --before PROGRAM --rounds 9`.
//!
//! In each round both programs do the same work one after the other, in alternating order; the ratio is taken within a
//! round. Prints the median ratio (least-greatest) of each workload, and the ratio of this program to itself, which is
//! the noise. The exit code is 0 only if no median is below `--ratio-min`.
//!
//! Each measurement is a separate process: it runs this campaign with `--measure`, and the program as `NECTARY_BIN`.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use nectary_e2e::bench;
use nectary_e2e::guard::{self, find_program};
use nectary_e2e::http::HttpConnection;
use nectary_e2e::load::wrk::{self, WrkSettings};
use nectary_e2e::nbd::{self, NbdServer};
use nectary_e2e::nectary::{ProxyCommand, binary};
use nectary_e2e::origin::DeterministicOrigin;
use nectary_e2e::ram::DonorProcess;
use nectary_e2e::report::ValueSpread;
use nectary_e2e::scratch::ScratchFolder;

use crate::rounds::{NotRunPolicy, ProblemCounter};

/// Measures this program beside an earlier one.
#[derive(Args)]
pub struct BenchBeforeArguments {
    /// The earlier program.
    #[arg(long, value_name = "PROGRAM", required_unless_present = "measure")]
    before: Option<PathBuf>,
    /// Paired rounds.
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Length of each measurement.
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// Only these workloads.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<BeforeWorkload>,
    /// The least median ratio.
    #[arg(long, default_value_t = 0.95)]
    ratio_min: f64,
    /// Measure one workload with `NECTARY_BIN`, and print the rate.
    #[arg(long, value_enum, hide = true)]
    measure: Option<BeforeWorkload>,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum BeforeWorkload {
    /// A proxy, one object of 1 KiB from memory. *Units*: requests per second.
    Small,
    /// A proxy, one object of 1 MiB from memory. *Units*: requests per second.
    Large,
    /// A proxy, 1,000 objects of 64 KiB from the disk. *Units*: requests per second.
    Disk,
    /// A proxy, objects of 4 KiB that it fetches and stores. *Units*: requests per second.
    Misses,
    /// A mirror in the memory of two donors, reads of 4 KiB. *Units*: operations per second.
    MirrorRead,
    /// The same, writes of 4 KiB.
    MirrorWrite,
    /// A file over NBD, reads of 4 KiB. *Units*: operations per second.
    FileRead,
    /// The same, writes of 4 KiB.
    FileWrite,
}

/// The number of objects on the disk, and their size.
const DISK_OBJECTS: u64 = 1000;
const DISK_OBJECT_BYTES: u64 = 64 << 10;
/// More objects than any proxy here fetches in one measurement.
const MISSES: u64 = 400_000;

/// Runs the campaign.
pub fn campaign(arguments: &BenchBeforeArguments) -> Result<ExitCode> {
    if let Some(workload) = arguments.measure {
        println!("RATE {}", measure(workload, Duration::from_secs(arguments.seconds))?);
        return Ok(ExitCode::SUCCESS);
    }
    if !bench::has_two_processors() || find_program("fio").is_none() {
        return Ok(NotRunPolicy::Fails.exit("bench-before", "it needs wrk, fio and two processors"));
    }
    let (now, before) = (binary()?, arguments.before.clone().context("--before")?);
    let workloads: Vec<BeforeWorkload> = BeforeWorkload::value_variants()
        .iter()
        .filter(|one| arguments.only.is_empty() || arguments.only.contains(one))
        .copied()
        .collect();
    println!("bench-before: {} and {}, {}", now.display(), before.display(), bench::machine());
    let mut problems = ProblemCounter::default();
    for workload in workloads {
        let [mut rates, mut again, mut earlier] = [const { Vec::new() }; 3];
        for round in 0..arguments.rounds {
            let rate = |program: &Path| measured(program, workload, arguments.seconds);
            // The two runs of the same program are on both sides of the earlier one.
            let first = rate(&now)?;
            earlier.push(rate(&before)?);
            let last = rate(&now)?;
            let (one, other) = if round % 2 == 0 { (first, last) } else { (last, first) };
            rates.push(one);
            again.push(other);
        }
        let (ratio, noise) = (ValueSpread::of_ratios(&rates, &earlier), ValueSpread::of_ratios(&rates, &again));
        let rate = ValueSpread::of(&rates).median;
        let name = workload.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
        println!("{name:12} {rate:>9.0}/s  to the earlier program {ratio}, to itself {noise}");
        if ratio.median < arguments.ratio_min {
            problems.add(format!(
                "{name}: {:.2} of the earlier program, at least {} wanted",
                ratio.median, arguments.ratio_min
            ));
        }
    }
    println!("bench-before: {} workloads are slower", problems.count());
    Ok(problems.exit())
}

/// Measures a program in a separate process.
fn measured(program: &Path, workload: BeforeWorkload, seconds: u64) -> Result<f64> {
    let name = workload.to_possible_value().context("it has a name")?.get_name().to_owned();
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["bench-before", "--measure", &name, "--seconds", &seconds.to_string()]).env("NECTARY_BIN", program);
    let scratch = ScratchFolder::new("bench-before")?;
    let (status, text) = guard::run(&name, command, &scratch.join("log"), Duration::from_secs(180))?;
    let rate = text.lines().find_map(|line| line.strip_prefix("RATE ")).and_then(|rate| rate.parse().ok());
    rate.filter(|_| status.success()).with_context(|| format!("{} {name}: {text}", program.display()))
}

fn measure(workload: BeforeWorkload, length: Duration) -> Result<f64> {
    match workload {
        BeforeWorkload::Small => proxy(&["/o/1?size=1024".to_owned()], "64M", true, length),
        BeforeWorkload::Large => proxy(&["/o/1?size=1048576".to_owned()], "64M", true, length),
        BeforeWorkload::Disk => {
            let targets: Vec<String> =
                (0..DISK_OBJECTS).map(|id| format!("/d/{id}?size={DISK_OBJECT_BYTES}")).collect();
            proxy(&targets, "16M", true, length)
        }
        BeforeWorkload::Misses => {
            let targets: Vec<String> = (0..MISSES).map(|id| format!("/m/{id}?size=4096")).collect();
            proxy(&targets, "64M", false, length)
        }
        BeforeWorkload::MirrorRead => mirror("randread", length),
        BeforeWorkload::MirrorWrite => mirror("randwrite", length),
        BeforeWorkload::FileRead => file("randread", length),
        BeforeWorkload::FileWrite => file("randwrite", length),
    }
}

/// Requests per second of a proxy with one worker.
fn proxy(targets: &[String], memory: &str, is_warm: bool, length: Duration) -> Result<f64> {
    let scratch = ScratchFolder::in_memory("bench-before")?;
    let origin = DeterministicOrigin::start()?;
    let mut command = ProxyCommand::new(scratch.path(), Some(origin.url()))?;
    (command.size, command.memory, command.cpu) = ("2G".to_owned(), memory.to_owned(), Some(0));
    command.arguments.extend(["--workers".to_owned(), "1".to_owned()]);
    let proxy = command.start()?;
    let mut client = HttpConnection::new(proxy.listen, Duration::from_secs(30));
    // Twice: some are written after the first request.
    for target in targets.iter().filter(|_| is_warm).chain(targets.iter().filter(|_| is_warm)) {
        let response = client.get(target)?;
        if response.status != 200 {
            bail!("{target}: status {}", response.status);
        }
    }
    let list = scratch.join("targets");
    wrk::write_targets(&list, targets.iter().cloned())?;
    let load = WrkSettings {
        address: proxy.listen,
        targets: list,
        threads: 1,
        connections: 64,
        duration: length,
        cpu: Some(1),
    };
    let measured = wrk::run(&load, scratch.path())?;
    if measured.errors > 0 {
        bail!("{} errors", measured.errors);
    }
    Ok(measured.requests_per_second)
}

/// Operations per second on a mirror of two donors.
fn mirror(pattern: &str, length: Duration) -> Result<f64> {
    let scratch = ScratchFolder::in_memory("bench-before")?;
    let donors =
        [0, 1].map(|number| DonorProcess::start(&scratch, &format!("donor-{number}"), None, &["--memory", "256M"]));
    let [first, second] = donors;
    let (first, second) = (first?, second?);
    let spec = |more| format!("ram({},{},id=disk,redundancy=mirror{more})", first.address, second.address);
    nbd::run(scratch.path(), "nectary", &["ram", "create", &spec(",size=64M")])?;
    let spec = spec("");
    fio(&scratch, &spec, pattern, length)
}

/// Operations per second on a file.
fn file(pattern: &str, length: Duration) -> Result<f64> {
    let scratch = ScratchFolder::in_memory("bench-before")?;
    let image = scratch.join("image");
    std::fs::File::create(&image)?.set_len(64 << 20)?;
    fio(&scratch, &image.display().to_string(), pattern, length)
}

/// Operations of 4 KiB per second on an export, 16 at a time.
fn fio(scratch: &ScratchFolder, spec: &str, pattern: &str, length: Duration) -> Result<f64> {
    let server = NbdServer::nectary(scratch.path(), "export", &[&format!("disk={spec}")])?;
    let (uri, pattern) = (format!("--uri={}", server.url("disk")), format!("--rw={pattern}"));
    let runtime = format!("--runtime={}", length.as_secs().max(1));
    let fixed = ["--name=one", "--ioengine=nbd", "--bs=4k", "--iodepth=16", "--size=64m", "--time_based"];
    let arguments = [&fixed[..], &["--output-format=json", &uri, &pattern, &runtime]].concat();
    let text = nbd::run(scratch.path(), "fio", &arguments)?;
    let json: serde_json::Value =
        serde_json::from_str(text.get(text.find('{').context("fio prints JSON")?..).unwrap_or_default())?;
    let job = &json["jobs"][0];
    let rate = |kind: &str| job[kind]["iops"].as_f64().unwrap_or(0.0);
    Ok(rate("read") + rate("write"))
}
