//! `volume-simulation`: simulates tokens, leases and sessions of the shared volume under faults; every history of calls
//! must have a possible order.
//!
//! Exits with 0 when no promise is broken, every history has a possible order, every scenario occurred, and each
//! planted bug was caught by a seed that catches it again. With `--bug NAME --replay SEED` it runs only that seed with
//! that bug planted, and exits with 0 if the bug was caught. `--shard I/K` takes every K-th run, from the I-th on;
//! `--story SEED` prints what happens in one run.

use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

use nectary_sim::arguments::Arguments;
use nectary_sim::planted::{self, Case};
use nectary_sim::volume::{Bug, FAULTS, OPERATIONS, Report, SCENARIOS, replay_planted, run_many, run_planted, story};

const PROGRAM: &str = "volume-simulation";
const ARGUMENTS: [&str; 8] = ["seed", "runs", "shard", "planted", "bug", "replay", "story", "log"];
/// A planted bug must be caught within this many runs.
const PLANTED_RUNS_MAX: u64 = 100_000;

fn named(name: &str) -> Bug {
    *Bug::EVERY.iter().find(|bug| bug.name() == name).expect("names are those of the bugs")
}

fn shard(arguments: &Arguments) -> Result<(u64, u64), ExitCode> {
    let Some(word) = arguments.word("shard") else { return Ok((0, 1)) };
    let parts = word.split_once('/').and_then(|(at, of)| Some((at.parse().ok()?, of.parse().ok()?)));
    parts.filter(|(at, of)| at < of).ok_or_else(|| {
        eprintln!("{PROGRAM}: --shard I/K: I counts from 0 and is below K, as 0/4");
        ExitCode::from(2)
    })
}

fn main() -> ExitCode {
    let arguments = match Arguments::parse(PROGRAM, &ARGUMENTS) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    let shard = match shard(&arguments) {
        Ok(shard) => shard,
        Err(code) => return code,
    };
    if arguments.word("story").is_some() {
        story(arguments.number("story", 0)).iter().for_each(|line| println!("{line}"));
        return ExitCode::SUCCESS;
    }
    let names: Vec<&str> = Bug::EVERY.iter().map(|bug| bug.name()).collect();
    let replay = |name: &str, case: Case| replay_planted(named(name), case.seed);
    if let Some((name, case)) = Case::of(&arguments, &names) {
        let is_caught = planted::print_replay(name, case, replay(name, case).as_ref());
        return if is_caught { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let (seed, runs) = (arguments.number("seed", 1), arguments.number("runs", 1000).max(1));
    let begun = Instant::now();
    let first = seed.wrapping_mul(1_000_000);
    let mut caught = Vec::new();
    if arguments.number("planted", 1) == 1 {
        let find = |name: &str| run_planted(named(name), first, PLANTED_RUNS_MAX);
        caught = planted::catch_each(PROGRAM, &names, find, replay);
    }
    let survived = caught.iter().filter(|(.., is_good)| !is_good).count();
    let report = run_many(first, runs, shard, |report| {
        if report.runs.is_multiple_of(1000) {
            let seconds = begun.elapsed().as_secs_f64();
            eprint!("\r{} of {runs} runs, {} broken, {seconds:.0} s    ", report.runs, report.broken_count);
            let _ = std::io::stderr().flush();
        }
        true
    });
    eprintln!();
    let good = print(&report, first) && survived == 0;
    let coverage: Vec<(&str, u64)> = SCENARIOS.iter().map(|name| (*name, report.coverage.count(name))).collect();
    arguments.log(&serde_json::json!({
        "check": PROGRAM, "seed": seed, "runs": report.runs, "operations": report.operations,
        "failed": report.failed, "faults": report.faults, "undecided": report.undecided,
        "broken": report.broken_count, "coverage": coverage, "planted": caught, "planted_survived": survived,
        "seconds": begun.elapsed().as_secs(), "passed": good,
    }));
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn print(report: &Report, first: u64) -> bool {
    report.broken.iter().for_each(|broken| println!("BROKEN {broken}"));
    println!(
        "seeds from {first}: {} runs, {} operations (wanted {OPERATIONS} a run), {} failed, {} faults (wanted {FAULTS} \
         a run), {} runs short of that, {} clients, {} virtual seconds, {} histories too large to decide, {} broken, \
         trace {:#x}",
        report.runs,
        report.operations,
        report.failed,
        report.faults,
        report.short,
        report.clients,
        report.time_us / 1_000_000,
        report.undecided,
        report.broken_count,
        report.trace
    );
    let missing = report.coverage.missing();
    for name in SCENARIOS {
        let never = if missing.contains(name) { "  NEVER" } else { "" };
        println!("  {name:<70} {:>9}{never}", report.coverage.count(name));
    }
    report.broken_count == 0 && report.is_enough()
}
