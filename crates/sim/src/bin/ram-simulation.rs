//! `ram-simulation`: a network RAM disk under faults, with its invariants checked after every step.
//!
//! `--policy` is `mirror` (the default), `parity`, `parity-log`, `parity-cache` or `adaptive`.
//!
//! Exits with 0 when no invariant is broken, every history of operations has a possible order, each scenario was met
//! often enough, and each planted bug was caught by a seed that catches it again. With `--bug NAME --replay SEED` it
//! runs only that seed with that bug planted, and exits with 0 if the bug was caught. `--shard I/K` takes every K-th
//! run, from the I-th on; `--story SEED` prints what happens in one run.

use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

use nectary_ram::format::Code;
use nectary_ram::placement::Policy;
use nectary_ram::planted::Bug;
use nectary_sim::arguments::Arguments;
use nectary_sim::planted::{self, Case};
use nectary_sim::ram::{FAULTS, Report, Scenario, WRITES, replay_planted, run_many, run_planted, story};
use nectary_sim::ram_log::{self, Planted};

const ARGUMENTS: [&str; 9] = ["policy", "seed", "runs", "shard", "planted", "bug", "replay", "story", "log"];
/// A planted bug must be caught within this many runs.
const PLANTED_RUNS_MAX: u64 = 20_000;

fn named(name: &str) -> Bug {
    let bug = Bug::PARITY.into_iter().find(|bug| bug.name() == name);
    bug.expect("names are those of the bugs")
}

fn shard(arguments: &Arguments) -> Result<(u64, u64), ExitCode> {
    let Some(word) = arguments.word("shard") else { return Ok((0, 1)) };
    let parts = word.split_once('/').and_then(|(at, of)| Some((at.parse().ok()?, of.parse().ok()?)));
    parts.filter(|(at, of)| at < of).ok_or_else(|| {
        eprintln!("ram-simulation: --shard I/K: I counts from 0 and is below K, as 0/4");
        ExitCode::from(2)
    })
}

fn main() -> ExitCode {
    let arguments = match Arguments::parse("ram-simulation", &ARGUMENTS) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    let shard = match shard(&arguments) {
        Ok(shard) => shard,
        Err(code) => return code,
    };
    match arguments.word("policy").unwrap_or("mirror").parse::<Policy>() {
        Ok(Policy::Mirror) => in_place(&arguments, Code::Mirror, "ram-simulation", &Bug::ALL, shard),
        Ok(Policy::Parity) => in_place(&arguments, Code::Parity, "ram-simulation --policy parity", &Bug::PARITY, shard),
        Ok(policy) if !policy.is_in_place() => log(&arguments, policy, shard),
        _ => {
            eprintln!("ram-simulation: --policy mirror, parity, parity-log, parity-cache or adaptive");
            ExitCode::from(2)
        }
    }
}

/// Runs the planted bugs and the seeds for a policy that changes blocks in place; returns the exit code.
fn in_place(arguments: &Arguments, code: Code, program: &str, bugs: &[Bug], shard: (u64, u64)) -> ExitCode {
    if arguments.word("story").is_some() {
        story(arguments.number("story", 0), code).iter().for_each(|line| println!("{line}"));
        return ExitCode::SUCCESS;
    }
    let names: Vec<&str> = bugs.iter().map(|bug| bug.name()).collect();
    let replay = |name: &str, case: Case| replay_planted(named(name), code, case.seed);
    if let Some((name, case)) = Case::of(arguments, &names) {
        let is_caught = planted::print_replay(name, case, replay(name, case).as_ref());
        return if is_caught { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let (seed, runs) = (arguments.number("seed", 1), arguments.number("runs", 2000).max(1));
    let begun = Instant::now();
    let first = seed.wrapping_mul(1_000_000);
    let mut caught = Vec::new();
    if arguments.number("planted", 1) == 1 {
        let find = |name: &str| run_planted(named(name), code, first, PLANTED_RUNS_MAX);
        caught = planted::catch_each(program, &names, find, replay);
    }
    let survived = caught.iter().filter(|(.., is_good)| !is_good).count();
    let mut shown = 0;
    let report = run_many(first, code, runs, shard, |report| {
        show_new(&report.broken, &mut shown);
        if report.runs.is_multiple_of(500) {
            let seconds = begun.elapsed().as_secs_f64();
            eprint!("\r{} of {runs} runs, {} broken, {seconds:.0} s    ", report.runs, report.broken_count);
            let _ = std::io::stderr().flush();
        }
        true
    });
    eprintln!();
    let policy = if code == Code::Parity { Policy::Parity } else { Policy::Mirror };
    let good = print_runs(&report, code, first) && survived == 0;
    let coverage: Vec<(&str, u64)> =
        Scenario::ALL.iter().map(|scenario| (scenario.name(), report.coverage.count(*scenario))).collect();
    arguments.log(&serde_json::json!({
        "check": "ram-simulation", "policy": policy, "seed": seed, "runs": report.runs, "lossy": report.lossy,
        "operations": report.operations, "writes": report.writes, "failed": report.failed, "faults": report.faults,
        "clients": report.clients, "broken": report.broken_count, "coverage": coverage, "planted": caught,
        "planted_survived": survived, "seconds": begun.elapsed().as_secs(), "passed": good,
    }));
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn print_runs(report: &Report, code: Code, first: u64) -> bool {
    println!(
        "seeds from {first}: {} runs, of which {} lost more than the policy survives, {} operations, {} acknowledged \
         writes (wanted {WRITES} a run), {} faults (wanted {FAULTS} a run), {} runs short of that, {} failed operations, \
         {} clients, {} virtual seconds, {} broken, trace {:#x}",
        report.runs,
        report.lossy,
        report.operations,
        report.writes,
        report.faults,
        report.short,
        report.failed,
        report.clients,
        report.time_us / 1_000_000,
        report.broken_count,
        report.trace
    );
    let missing = report.coverage.missing(report.runs, code);
    let wanted = (report.runs / nectary_sim::ram::RUNS_PER_SCENARIO).max(1);
    for scenario in Scenario::ALL.iter().filter(|scenario| scenario.is_of(code)) {
        let short = if missing.contains(&scenario.name()) { "  TOO FEW" } else { "" };
        println!("  {:<50} {:>9} (wanted {wanted}){short}", scenario.name(), report.coverage.count(*scenario));
    }
    report.broken_count == 0 && report.is_enough(code)
}

/// Prints the broken runs that were not shown yet.
fn show_new(broken: &[String], shown: &mut usize) {
    broken.iter().skip(*shown).for_each(|broken| println!("BROKEN {broken}"));
    *shown = broken.len();
}

/// Runs the planted bugs and the seeds for a policy that logs parity; returns the exit code.
fn log(arguments: &Arguments, policy: Policy, shard: (u64, u64)) -> ExitCode {
    if arguments.word("story").is_some() {
        ram_log::story(arguments.number("story", 0), policy).iter().for_each(|line| println!("{line}"));
        return ExitCode::SUCCESS;
    }
    let bugs = Planted::all();
    let names: Vec<&str> = bugs.iter().map(|bug| bug.name()).collect();
    let of = |name: &str| *bugs.iter().find(|bug| bug.name() == name).expect("names are those of the bugs");
    let replay = |name: &str, case: Case| ram_log::replay_planted(of(name), policy, case.seed);
    if let Some((name, case)) = Case::of(arguments, &names) {
        let is_caught = planted::print_replay(name, case, replay(name, case).as_ref());
        return if is_caught { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let (seed, runs) = (arguments.number("seed", 1), arguments.number("runs", 200).max(1));
    let begun = Instant::now();
    let first = seed.wrapping_mul(1_000_000);
    let mut caught = Vec::new();
    if arguments.number("planted", 1) == 1 {
        let find = |name: &str| ram_log::run_planted(of(name), policy, first, PLANTED_RUNS_MAX);
        let program = format!("ram-simulation --policy {policy}");
        let betrayed: Vec<&str> = Planted::betrayed(policy).iter().map(|bug| bug.name()).collect();
        caught = planted::catch_each(&program, &betrayed, find, replay);
    }
    let survived = caught.iter().filter(|(.., is_good)| !is_good).count();
    let mut shown = 0;
    let report = ram_log::run_many(first, policy, runs, shard, |report| {
        show_new(&report.broken, &mut shown);
        if report.runs.is_multiple_of(100) {
            let seconds = begun.elapsed().as_secs_f64();
            eprint!("\r{} of {runs} runs, {} broken, {seconds:.0} s    ", report.runs, report.broken_count);
            let _ = std::io::stderr().flush();
        }
        true
    });
    eprintln!();
    println!(
        "{policy}, seeds from {first}: {} runs, of which {} lost more than the policy survives, {} operations, {} \
         acknowledged writes (wanted {} a run), {} flushes, {} faults (wanted {} a run), {} runs short of that, {} \
         failed operations, {} clients, {} virtual seconds, {} broken, trace {:#x}",
        report.runs,
        report.lossy,
        report.operations,
        report.writes,
        ram_log::WRITES,
        report.flushes,
        report.faults,
        ram_log::FAULTS,
        report.short,
        report.failed,
        report.clients,
        report.time_us / 1_000_000,
        report.broken_count,
        report.trace
    );
    let (missing, wanted) = (report.coverage.missing(report.runs), ram_log::Coverage::wanted(report.runs));
    for scenario in ram_log::SCENARIOS {
        let short = if missing.contains(scenario) { "  TOO FEW" } else { "" };
        println!("  {scenario:<60} {:>9} (wanted {wanted}){short}", report.coverage.count(scenario));
    }
    let good = report.broken_count == 0 && report.is_enough() && survived == 0;
    let coverage: Vec<(&str, u64)> =
        ram_log::SCENARIOS.iter().map(|scenario| (*scenario, report.coverage.count(scenario))).collect();
    arguments.log(&serde_json::json!({
        "check": "ram-simulation", "policy": policy, "seed": seed, "runs": report.runs, "lossy": report.lossy,
        "operations": report.operations, "writes": report.writes, "flushes": report.flushes,
        "failed": report.failed, "faults": report.faults, "clients": report.clients,
        "broken": report.broken_count, "coverage": coverage, "planted": caught, "planted_survived": survived,
        "seconds": begun.elapsed().as_secs(), "passed": good,
    }));
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
