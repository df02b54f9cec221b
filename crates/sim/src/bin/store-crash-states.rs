//! `store-crash-states`: what a crash at any moment leaves of a store, opened and compared with what was promised.
//!
//! Exits with 0 when enough distinct images were checked, enough of them had live objects, no promise was broken, and
//! each planted bug was caught.

use std::io::Write;
use std::process::ExitCode;

use nectary_sim::arguments::Arguments;
use nectary_sim::store::crash_run::{CrashReport, CrashRunOptions, run, run_planted};
use nectary_store::planted::Bug;

/// At least this share of the distinct images must have live objects, in percent.
const LIVE_PERCENT_MIN: u64 = 95;
/// The same of a sample: one workload that deletes all it put is much of a few.
const LIVE_PERCENT_MIN_OF_A_SAMPLE: u64 = 80;
/// Fewer workloads are a sample: of what is rare they need not have any.
const WORKLOADS_WHOLE: u64 = 200;
/// A planted bug must be caught within this many workloads.
const PLANTED_WORKLOADS_MAX: u64 = 200;

fn main() -> ExitCode {
    let names = ["seed", "workloads", "states", "planted", "log"];
    let arguments = match Arguments::parse("store-crash-states", &names) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    let seed = arguments.number("seed", 1);
    let workloads = arguments.number("workloads", 200).max(1);
    let states = arguments.number("states", 10_000);
    let options = CrashRunOptions {
        seed: seed.wrapping_mul(1_000_000),
        workloads,
        // Twice as many, because equal images are counted once.
        states_per_workload: (states * 2).div_ceil(workloads) + 1,
        stop_at_violation: false,
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
        for bug in Bug::ALL {
            let planted = CrashRunOptions { workloads: PLANTED_WORKLOADS_MAX, states_per_workload: 100, ..options };
            let after = runtime.block_on(run_planted(bug, planted));
            match after {
                Some(workloads) => println!("planted: {}: caught in workload {workloads}", bug.name()),
                None => println!("planted: {}: SURVIVED {PLANTED_WORKLOADS_MAX} workloads", bug.name()),
            }
            caught.push((bug.name(), after));
        }
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
    let survived = caught.iter().filter(|(_, after)| after.is_none()).count();
    let good = print(&report, seed, workloads, states) && survived == 0;
    arguments.log(&serde_json::json!({
        "check": "store-crash-states", "seed": seed, "workloads": report.workloads, "states": report.states,
        "distinct": report.distinct, "live": report.live, "demanded": report.demanded, "reinserted": report.reinserted,
        "tied": report.tied, "rewritten": report.rewritten, "neighbours": report.neighbours, "tag_purges": report.tag_purges, "warmed": report.warmed,
        "violations": report.violation_count, "planted": caught.iter().map(|(name, after)| (*name, *after)).collect::<Vec<_>>(),
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
