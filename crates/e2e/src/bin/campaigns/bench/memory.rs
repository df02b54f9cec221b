//! Measures requests per second from memory, and compares Nectary with nginx and Varnish: `e2e-campaigns bench-memory
//! --rounds 10 --seconds 3 --json out.json`.
//!
//! Prints rates, and Nectary's ratio to each contestant as median (min-max) over the paired rounds, including the A/A
//! row, in which Nectary is compared with itself. It also prints these figures per second of the server's processor
//! time, which show whether the server was the limit. The exit code is 0 only if the median ratio to every peer reaches
//! `--ratio-min` in every workload, no request failed, and none reached the origin.

use anyhow::Result;
use clap::Args;
use nectary_e2e::bench::{self, BenchWorkload, PairedRoundsPlan, WorkloadOutcome};
use nectary_e2e::report::{ValueSpread, seed_or_new, write_json};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::rounds::{NotRunPolicy, ProblemCounter};

/// Measures Nectary, nginx and Varnish answering from memory, one worker each.
#[derive(Args)]
pub struct BenchMemoryArguments {
    /// Paired rounds.
    #[arg(long, default_value_t = 10)]
    rounds: usize,
    /// Length of each measurement.
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// Sizes in bytes of single objects, joined by commas; the mix comes after them.
    #[arg(long, default_value = "1024", value_delimiter = ',')]
    objects: Vec<u64>,
    /// Chooses the mix.
    #[arg(long)]
    seed: Option<u64>,
    /// The least median ratio to each peer.
    #[arg(long, default_value_t = 1.5)]
    ratio_min: f64,
    /// Threads of Varnish.
    #[arg(long, default_value_t = 100)]
    varnish_threads: usize,
    /// A server to show as the best case: it is started with an address and answers `GET /`. Without it, the example
    /// `bare_hyper` of the proxy, if it has been built.
    #[arg(long, value_name = "PROGRAM")]
    floor: Option<PathBuf>,
    /// Write the figures to this file.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Print every measurement.
    #[arg(long)]
    verbose: bool,
    /// Further arguments of the proxy.
    #[arg(last = true)]
    proxy: Vec<String>,
}

/// Runs the campaign.
pub fn campaign(arguments: BenchMemoryArguments) -> Result<ExitCode> {
    if !bench::has_two_processors() {
        let reason = "it needs wrk and two processors: one for the server, one for the load";
        return Ok(NotRunPolicy::Fails.exit("bench-memory", reason));
    }
    let seed = seed_or_new(arguments.seed);
    let plan = PairedRoundsPlan {
        rounds: arguments.rounds,
        duration: Duration::from_secs(arguments.seconds),
        varnish_threads: arguments.varnish_threads,
        floor: arguments.floor.or_else(bare_hyper),
        arguments: arguments.proxy,
    };
    println!("bench-memory: seed {seed}, {}", bench::machine());
    println!("server on processor 0, wrk -t1 -c64 on processor 1, {} rounds of {} s", plan.rounds, arguments.seconds);
    let mut missed = Vec::new();
    let mut figures = Vec::new();
    let single = arguments.objects.iter().map(|bytes| BenchWorkload::object(*bytes));
    for workload in single.chain([BenchWorkload::mix(seed)]) {
        let outcome = bench::measure(&plan, &workload, |line| {
            if arguments.verbose {
                println!("  {line}");
            }
        })?;
        print(&outcome);
        missed.extend(unmet(&outcome, arguments.ratio_min));
        figures.push(to_json(&outcome));
    }
    if let Some(path) = arguments.json {
        let figures = json!({"bench": "memory", "seed": seed, "machine": bench::machine(), "workloads": figures});
        write_json(&path, &figures)?;
    }
    let mut problems = ProblemCounter::default();
    problems.extend(missed);
    Ok(problems.exit())
}

/// Returns the path of the example `bare_hyper` in this program's build directory, if it has been built.
fn bare_hyper() -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    let built = own.parent()?.join("examples/bare_hyper");
    if !built.is_file() {
        println!("no best case: `cargo build --release -p nectary-proxy --example bare_hyper` builds it");
    }
    built.is_file().then_some(built)
}

fn print(outcome: &WorkloadOutcome) {
    println!("\n{}", outcome.workload);
    println!(
        "{:18} {:>26} {:>8} {:>8} {:>7}  nectary's ratio",
        "", "requests/s (min-max)", "p50 us", "p99 us", "errors"
    );
    for (index, series) in outcome.series.iter().enumerate() {
        let rate = ValueSpread::of(&series.rates());
        let latency = |get: fn(&nectary_e2e::load::wrk::WrkResult) -> u64| {
            ValueSpread::of(&series.measured.iter().map(|measured| get(measured) as f64).collect::<Vec<_>>()).median
        };
        let ratio = match index {
            0 => String::new(),
            _ => format!("{}, {}", outcome.ratio(index), outcome.ratio_of_cpu(index)),
        };
        println!(
            "{:20} {:>22} {:>7.0} {:>7.0} {:>6} {:>4.0}% {:>8.0}  {ratio}",
            series.name,
            format!("{:.0} ({:.0}-{:.0})", rate.median, rate.min, rate.max),
            latency(|measured| measured.p50_us),
            latency(|measured| measured.p99_us),
            series.errors(),
            100.0 * ValueSpread::of(&series.busy_shares()).median,
            ValueSpread::of(&series.rates_of_cpu()).median,
        );
    }
    println!("requests that reached the origin meanwhile: {}", outcome.origin_requests);
}

/// The requirements that are not met.
fn unmet(outcome: &WorkloadOutcome, ratio_min: f64) -> Vec<String> {
    let mut problems = Vec::new();
    for index in bench::PEERS {
        let ratio = outcome.ratio(index).median;
        if ratio < ratio_min {
            let peer = &outcome.series[index].name;
            problems.push(format!("{}: {ratio:.2} times {peer}, at least {ratio_min} wanted", outcome.workload));
        }
    }
    let errors = outcome.series[0].errors() + outcome.series[1].errors();
    if errors + outcome.origin_requests > 0 {
        let reached = outcome.origin_requests;
        problems.push(format!("{}: {errors} errors, {reached} requests reached the origin", outcome.workload));
    }
    problems
}

fn to_json(outcome: &WorkloadOutcome) -> Value {
    let series: Vec<Value> = (0..outcome.series.len())
        .map(|index| {
            let one = &outcome.series[index];
            let ratio = outcome.ratio(index);
            json!({
                "name": one.name, "requests_per_second": one.rates(), "errors": one.errors(),
                "requests_per_cpu_second": one.rates_of_cpu(),
                "nectary_ratio_by_cpu": outcome.ratio_of_cpu(index).median,
                "nectary_ratio": {"median": ratio.median, "min": ratio.min, "max": ratio.max},
            })
        })
        .collect();
    json!({"workload": outcome.workload, "origin_requests": outcome.origin_requests, "series": series})
}
