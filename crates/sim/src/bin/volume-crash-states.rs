//! `volume-crash-states`: checks a shared volume with real clients and a real server after a crash at any moment.
//!
//! Exits with 0 when no promise was broken, every expected event occurred, there were enough distinct states, and each
//! planted bug was caught by a seed that catches it again. With `--bug NAME --replay SEED` it runs only that seed with
//! that bug planted, and exits with 0 if the bug was caught; `--replay SEED` without a bug checks only that workload.
//! `--least N` sets the minimum number of distinct states.

use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

use nectary_sim::arguments::Arguments;
use nectary_sim::volume_clients::run::{Amount, BUGS, Found, Report, replay_planted, run, run_planted};
use nectary_volume::planted::Bug;

const PROGRAM: &str = "volume-crash-states";
const ARGUMENTS: [&str; 8] = ["seed", "runs", "states", "least", "planted", "bug", "replay", "log"];
/// A planted bug must be caught within this many runs.
const PLANTED_RUNS_MAX: u64 = 50;

fn main() -> ExitCode {
    let arguments = match Arguments::parse(PROGRAM, &ARGUMENTS) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    let seed = arguments.number("seed", 1);
    let amount = Amount {
        seed: seed.wrapping_mul(1_000_000),
        runs: arguments.number("runs", 60).max(1),
        states_per_run: arguments.number("states", 60),
    };
    if let Some(name) = arguments.word("bug") {
        let Some(bug) = BUGS.into_iter().find(|bug| bug.name() == name) else {
            eprintln!("--bug NAME: a name is one of");
            BUGS.iter().for_each(|bug| eprintln!("  {}", bug.name()));
            return ExitCode::from(2);
        };
        let found = replay_planted(bug, arguments.number("replay", amount.seed), amount.states_per_run);
        println!("planted: {name}: {}", found.as_ref().map_or("SURVIVED", |found| &found.first));
        return if found.is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    if arguments.word("replay").is_some() {
        let report = run(Amount { seed: arguments.number("replay", amount.seed), runs: 1, ..amount }, |_| {});
        report.violations.iter().for_each(|broken| println!("BROKEN {broken}"));
        print(&report, seed, 1);
        return if report.violation_count == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let begun = Instant::now();
    let caught: Vec<(&str, bool)> = match arguments.number("planted", 1) {
        1 => BUGS.iter().map(|bug| (bug.name(), is_caught(*bug, amount))).collect(),
        _ => Vec::new(),
    };
    let mut told = 0;
    let report = run(amount, |report| {
        report.violations[told..].iter().for_each(|broken| println!("BROKEN {broken}"));
        told = report.violations.len();
        let seconds = begun.elapsed().as_secs_f64();
        let (runs, count) = (report.workloads, report.violation_count);
        eprint!("\r{runs} of {} runs, {} states, {count} broken, {seconds:.0} s    ", amount.runs, report.distinct);
        let _ = std::io::stderr().flush();
    });
    eprintln!();
    let least = arguments.number("least", 2000);
    print(&report, seed, least);
    let survived = caught.iter().filter(|(_, is_good)| !is_good).count();
    let good = report.violation_count == 0 && report.has_all() && survived == 0 && report.distinct >= least;
    arguments.log(&serde_json::json!({
        "check": PROGRAM, "seed": seed, "runs": report.workloads, "states": report.states,
        "distinct": report.distinct, "events": report.events, "files": report.files, "names": report.names,
        "lost_hosts": report.losses.hosts, "lost_servers": report.losses.servers, "lost_both": report.losses.both,
        "violations": report.violation_count, "planted": caught, "seconds": begun.elapsed().as_secs(), "passed": good,
    }));
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn is_caught(bug: Bug, amount: Amount) -> bool {
    let name = bug.name();
    let Some(Found { seed, first }) = run_planted(bug, Amount { runs: PLANTED_RUNS_MAX, ..amount }) else {
        println!("planted: {name}: SURVIVED");
        return false;
    };
    let again = replay_planted(bug, seed, amount.states_per_run);
    let states = amount.states_per_run;
    let how = if again.is_some() { "caught again" } else { "NOT CAUGHT AGAIN" };
    println!(
        "planted: {name}: caught with seed {seed}, {how}: {first}\n  \
         {PROGRAM} --bug '{name}' --replay {seed} --states {states}"
    );
    again.is_some()
}

fn print(report: &Report, seed: u64, least: u64) {
    let losses = &report.losses;
    println!(
        "seed {seed}: {} workloads with {} events; {} hosts lost, {} servers, {} of both at once, with {} calls and {} \
         files that were not certain, {} of them during a call of another host; {} crash states, {} distinct images \
         (wanted {least}), {} of a complete volume, {} used afterwards; {} names and {} files compared, {} with more \
         than was promised, {} with blocks of several states; {} calls without an answer done, {} not; {} broken \
         promises",
        report.workloads,
        report.events,
        losses.hosts,
        losses.servers,
        losses.both,
        losses.calls,
        losses.files,
        losses.awaited,
        report.states,
        report.distinct,
        report.ready,
        report.used,
        report.names,
        report.files,
        report.newer,
        report.mixed,
        report.done,
        report.undone,
        report.violation_count
    );
}
