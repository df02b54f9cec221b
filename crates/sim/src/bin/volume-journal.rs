//! `volume-journal`: opens a volume after a crash at any moment, and lets servers contend for one.
//!
//! Exits with 0 when no promise was broken, every expected event occurred, and each planted bug was caught by a case
//! that catches it again. With `--bug NAME --replay SEED --state N` it checks only that case with that bug planted, and
//! exits with 0 if the bug was caught.

use std::io::Write;
use std::process::ExitCode;

use nectary_sim::arguments::Arguments;
use nectary_sim::planted::{self, Case};
use nectary_sim::volume_journal::run::{Amount, BUGS, Report, replay_planted, run, run_planted};
use nectary_volume::planted::Bug;

const PROGRAM: &str = "volume-journal";
const ARGUMENTS: [&str; 9] = ["seed", "runs", "states", "contentions", "planted", "bug", "replay", "state", "log"];
/// A planted bug must be caught within this many runs.
const PLANTED_RUNS_MAX: u64 = 200;

fn named(name: &str) -> Bug {
    *BUGS.iter().find(|bug| bug.name() == name).expect("names are those of the bugs")
}

fn main() -> ExitCode {
    let arguments = match Arguments::parse(PROGRAM, &ARGUMENTS) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    let names: Vec<&str> = BUGS.iter().map(|bug| bug.name()).collect();
    let replay = |name: &str, case: Case| replay_planted(named(name), case);
    if let Some((name, case)) = Case::of(&arguments, &names) {
        let is_caught = planted::print_replay(name, case, replay(name, case).as_ref());
        return if is_caught { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let seed = arguments.number("seed", 1);
    let amount = Amount {
        seed: seed.wrapping_mul(1_000_000),
        runs: arguments.number("runs", 100).max(1),
        states_per_run: arguments.number("states", 60),
        contentions: arguments.number("contentions", 10),
    };
    let begun = std::time::Instant::now();
    let mut caught = Vec::new();
    if arguments.number("planted", 1) == 1 {
        let amount = Amount { runs: PLANTED_RUNS_MAX, ..amount };
        caught = planted::catch_each(PROGRAM, &names, |name| run_planted(named(name), amount), replay);
    }
    let mut told = 0;
    let report = run(amount, |report| {
        report.violations[told..].iter().for_each(|broken| println!("BROKEN {broken}"));
        told = report.violations.len();
        let seconds = begun.elapsed().as_secs_f64();
        let (runs, count) = (report.workloads, report.violation_count);
        eprint!("\r{runs} of {} runs, {} images, {count} broken, {seconds:.0} s    ", amount.runs, report.distinct);
        let _ = std::io::stderr().flush();
    });
    eprintln!();
    let survived = caught.iter().filter(|(.., is_good)| !is_good).count();
    print(&report, seed);
    let good = report.violation_count == 0 && report.has_all() && survived == 0;
    arguments.log(&serde_json::json!({
        "check": PROGRAM, "seed": seed, "runs": report.workloads, "states": report.states,
        "distinct": report.distinct, "started": report.started, "unacknowledged": report.unacknowledged,
        "epochs": report.epochs, "checkpoints": report.checkpoints, "large": report.large, "late": report.late,
        "contentions": report.contentions, "led": report.contention.led, "lost": report.contention.lost,
        "violations": report.violation_count, "planted": caught, "seconds": begun.elapsed().as_secs(), "passed": good,
    }));
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn print(report: &Report, seed: u64) {
    let contention = &report.contention;
    println!(
        "seed {seed}: {} workloads with {} epochs, {} checkpoints, {} large appends, {} late appends of old leaders; {} \
         crash states, {} distinct images, {} started, {} with unacknowledged transactions; {} contentions with {} \
         leaders, {} refused, {} replaced, {} appends acknowledged; {} broken promises",
        report.workloads,
        report.epochs,
        report.checkpoints,
        report.large,
        report.late,
        report.states,
        report.distinct,
        report.started,
        report.unacknowledged,
        report.contentions,
        contention.led,
        contention.refused,
        contention.lost,
        contention.acknowledged,
        report.violation_count
    );
}
