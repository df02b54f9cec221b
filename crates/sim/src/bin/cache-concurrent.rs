//! `cache-concurrent`: many clients at once on one cached device, and crash states of such devices.
//!
//! Exits with 0 when every history can be explained, enough was done, and each planted bug was caught, twice by the
//! same seed. With `--bug NAME --replay SEED` it runs that seed alone with that bug planted, and exits with 0 when it
//! was caught.

use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

use nectary_buffer::planted::Bug;
use nectary_sim::arguments::Arguments;
use nectary_sim::cache::crash::{self, CrashReport};
use nectary_sim::cache::{OPERATIONS, Report, replay_planted, run_many, run_planted};
use nectary_sim::planted::{self, Case};

const ARGUMENTS: [&str; 7] = ["seed", "runs", "images", "planted", "bug", "replay", "log"];
/// A planted bug must be caught within this many runs.
const PLANTED_RUNS_MAX: u64 = 20_000;
/// Crash states of each recorded run.
const STATES_PER_WORKLOAD: usize = 60;
/// Of the operations, this many begin at least while another of the same cell is under way, in percent.
const OVERLAPPING_PERCENT_MIN: u64 = 10;

fn named(name: &str) -> Bug {
    let bug = Bug::ALL.into_iter().find(|bug| bug.name() == name);
    bug.expect("names are those of the bugs")
}

fn main() -> ExitCode {
    let arguments = match Arguments::parse("cache-concurrent", &ARGUMENTS) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    let names = Bug::ALL.map(Bug::name);
    let replay = |name: &str, case: Case| replay_planted(named(name), case.seed);
    if let Some((name, case)) = Case::of(&arguments, &names) {
        let is_caught = planted::print_replay(name, case, replay(name, case).as_ref());
        return if is_caught { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let (seed, runs) = (arguments.number("seed", 1), arguments.number("runs", 20_000).max(1));
    let images = arguments.number("images", 10_000);
    let begun = Instant::now();
    let first = seed.wrapping_mul(1_000_000);
    let mut caught = Vec::new();
    if arguments.number("planted", 1) == 1 {
        let find = |name: &str| run_planted(named(name), first, PLANTED_RUNS_MAX);
        caught = planted::catch_each("cache-concurrent", &names, find, replay);
    }
    let survived = caught.iter().filter(|(.., is_good)| !is_good).count();
    let report = run_many(first, runs, |report| {
        if report.runs.is_multiple_of(500) {
            tell(&format!(
                "{} of {runs} runs, {} broken, {:.0} s",
                report.runs,
                report.broken_count,
                begun.elapsed().as_secs_f64()
            ));
        }
        true
    });
    let states = crash::run(first, images, STATES_PER_WORKLOAD, |report| {
        tell(&format!(
            "{} of {images} images, {} broken, {:.0} s",
            report.distinct,
            report.broken_count,
            begun.elapsed().as_secs_f64()
        ));
        true
    });
    eprintln!();
    let good = print_runs(&report, first, runs) & print_states(&states, images) && survived == 0;
    arguments.log(&serde_json::json!({
        "check": "cache-concurrent", "seed": seed, "runs": report.runs, "operations": report.operations,
        "overlapping": report.overlapping, "failed": report.failed, "broken": report.broken_count,
        "images": states.distinct, "images_broken": states.broken_count, "planted": caught,
        "planted_survived": survived, "seconds": begun.elapsed().as_secs(), "passed": good,
    }));
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn tell(text: &str) {
    eprint!("\r{text}    ");
    let _ = std::io::stderr().flush();
}

fn print_runs(report: &Report, first: u64, runs: u64) -> bool {
    report.broken.iter().for_each(|broken| println!("BROKEN {broken}"));
    let overlapping = report.overlapping * 100 / report.operations.max(1);
    println!(
        "seeds from {first}: {} runs, {} operations (wanted {OPERATIONS} a run), {overlapping} % of them while another of the same \
         cell was under way (wanted {OVERLAPPING_PERCENT_MIN}), {} failed, {} changes of memory and mode, {} losses of power after a \
         flush, {} hits, {} misses, {} joined another's read, {} blocks used that were read ahead, {} written back, {} write-backs \
         failed, {} histories that cannot be explained, trace {:#x}",
        report.runs,
        report.operations,
        report.failed,
        report.changes,
        report.crashes,
        report.hits,
        report.misses,
        report.joined,
        report.ahead_used,
        report.written_back,
        report.write_back_errors,
        report.broken_count,
        report.trace
    );
    report.broken_count == 0 && report.runs == runs && report.is_enough()
}

fn print_states(states: &CrashReport, images: u64) -> bool {
    states.broken.iter().for_each(|broken| println!("BROKEN {broken}"));
    println!(
        "{} recorded runs with {} device operations begun while another was under way, {} crash states, {} distinct images (wanted \
         {images}), {} flushes before them, {} broken promises",
        states.workloads, states.in_flight, states.states, states.distinct, states.promises, states.broken_count
    );
    states.broken_count == 0
        && states.distinct >= images
        && (images == 0 || (states.in_flight > 0 && states.promises > 0))
}
