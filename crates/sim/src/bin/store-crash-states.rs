//! `store-crash-states`: opens a store after a crash at any moment, and checks that it keeps its promises.
//!
//! Exits with 0 when enough distinct images were checked, enough of them had live objects, no promise was broken, and
//! each planted bug was caught by a crash state that catches it again. With `--bug NAME --replay SEED --state N` it
//! checks only that crash state with that bug planted, and exits with 0 if the bug was caught.

use std::io::Write;
use std::process::ExitCode;

use nectary_sim::arguments::Arguments;
use nectary_sim::planted::{self, Case};
use nectary_sim::store::crash_run::{CrashReport, CrashRunOptions, replay_planted, run, run_planted};
use nectary_store::planted::Bug;

const ARGUMENTS: [&str; 8] = ["seed", "workloads", "states", "planted", "bug", "replay", "state", "log"];
/// At least this share of the distinct images must have live objects, in percent.
const LIVE_PERCENT_MIN: u64 = 95;
/// In a sample at least this share must have live objects, in percent: among few workloads, one that deletes all its
/// objects is a large share.
const LIVE_PERCENT_MIN_OF_A_SAMPLE: u64 = 80;
/// A run with fewer workloads is a sample, in which rare events need not occur.
const WORKLOADS_WHOLE: u64 = 200;
/// A planted bug must be caught within this many workloads.
const PLANTED_WORKLOADS_MAX: u64 = 200;

fn main() -> ExitCode {
    let arguments = match Arguments::parse("store-crash-states", &ARGUMENTS) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    let names = Bug::ALL.map(Bug::name);
    let replay = |name: &str, case: Case| replay_planted(planted::named(&Bug::ALL, name), case);
    if let Some((name, case)) = Case::of(&arguments, &names) {
        let is_caught = planted::print_replay(name, case, replay(name, case).as_ref());
        return if is_caught { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let seed = arguments.number("seed", 1);
    let workloads = arguments.number("workloads", 200).max(1);
    let states = arguments.number("states", 10_000);
    let options = CrashRunOptions {
        seed: seed.wrapping_mul(1_000_000),
        workloads,
        // Check twice as many states as requested images, because equal images are counted once.
        states_per_workload: (states * 2).div_ceil(workloads) + 1,
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("store-crash-states: no runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let begun = std::time::Instant::now();
    let mut caught = Vec::new();
    if arguments.number("planted", 1) == 1 {
        let options = CrashRunOptions { workloads: PLANTED_WORKLOADS_MAX, states_per_workload: 100, ..options };
        let find = |name: &str| run_planted(planted::named(&Bug::ALL, name), options);
        caught = planted::catch_each("store-crash-states", &names, find, replay);
    }
    let report = runtime.block_on(run(options, |report| {
        eprint!(
            "\r{} of {workloads} workloads, {} distinct images, {} broken promises, {:.0} s",
            report.workloads,
            report.distinct,
            report.violation_count,
            begun.elapsed().as_secs_f64()
        );
        let _ = std::io::stderr().flush();
    }));
    eprintln!();
    let survived = caught.iter().filter(|(.., is_good)| !is_good).count();
    let good = print(&report, seed, workloads, states) && survived == 0;
    arguments.log(&serde_json::json!({
        "check": "store-crash-states", "seed": seed, "workloads": report.workloads, "states": report.states,
        "distinct": report.distinct, "live": report.live, "demanded": report.demanded, "reinserted": report.reinserted,
        "tied": report.tied, "rewritten": report.rewritten, "neighbours": report.neighbours, "tag_purges": report.tag_purges, "warmed": report.warmed,
        "violations": report.violation_count, "planted": caught,
        "seconds": begun.elapsed().as_secs(), "passed": good,
    }));
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn print(report: &CrashReport, seed: u64, workloads: u64, states: u64) -> bool {
    for violation in &report.violations {
        println!("BROKEN {violation}");
    }
    let live_percent = report.live * 100 / report.distinct.max(1);
    let is_whole = workloads >= WORKLOADS_WHOLE;
    let live_percent_min = if is_whole { LIVE_PERCENT_MIN } else { LIVE_PERCENT_MIN_OF_A_SAMPLE };
    let seldom =
        [report.reinserted, report.tied, report.rewritten, report.neighbours, report.tag_purges, report.warmed];
    println!(
        "seed {seed}: {} workloads, {} states, {} distinct images (wanted {states}), {live_percent} % of them with live \
         objects (wanted {live_percent_min}), {} objects re-inserted, {} tied by hints, {} written anew from memory, {} read as neighbours, {} purges by tag, {} warmed (wanted{} some of each), {} hits demanded, {} broken promises",
        report.workloads,
        report.states,
        report.distinct,
        report.reinserted,
        report.tied,
        report.rewritten,
        report.neighbours,
        report.tag_purges,
        report.warmed,
        if is_whole { "" } else { ", of 200 workloads," },
        report.demanded,
        report.violation_count
    );
    report.violation_count == 0
        && report.distinct >= states
        && (!is_whole || seldom.iter().all(|&count| count > 0))
        && report.workloads == workloads
        && live_percent >= live_percent_min
}
