//! `store-concurrent`: many clients at once on one store, and crash states of such stores.
//!
//! Exits with 0 when every history can be explained, enough was done, and each planted bug was caught, twice by the same seed.

use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

use nectary_sim::arguments::Arguments;
use nectary_sim::store::concurrent::crash::{self, CrashReport};
use nectary_sim::store::concurrent::{OPERATIONS, Report, run_many, run_planted};
use nectary_store::planted::Bug;

/// A planted bug must be caught within so many runs.
const PLANTED_RUNS_MAX: u64 = 20_000;
/// Crash states of each recorded run.
const STATES_PER_WORKLOAD: usize = 60;
/// Of the operations, so many begin at least while another of the same key is under way, in percent …
const OVERLAPPING_PERCENT_MIN: u64 = 4;
/// … and of the gets so many hit, and so many have to, at least.
const HITS_PERCENT_MIN: u64 = 30;
const DEMANDED_PERCENT_MIN: u64 = 10;

fn main() -> ExitCode {
    let arguments = match Arguments::parse("store-concurrent", &["seed", "runs", "images", "planted", "log"]) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    let (seed, runs) = (arguments.number("seed", 1), arguments.number("runs", 100_000).max(1));
    let images = arguments.number("images", 10_000);
    let begun = Instant::now();
    let first = seed.wrapping_mul(1_000_000);
    let mut survived = 0;
    if arguments.number("planted", 1) == 1 {
        for bug in Bug::CONCURRENT {
            survived += u32::from(!is_caught(bug, first));
        }
    }
    let mut told = 0;
    let report = run_many(first, runs, |report| {
        for broken in &report.broken[told..] {
            println!("BROKEN {broken}");
        }
        told = report.broken.len();
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
        "check": "store-concurrent", "seed": seed, "runs": report.runs, "operations": report.operations,
        "overlapping": report.overlapping, "gets": report.gets, "hits": report.hits, "demanded": report.demanded,
        "faults": report.faults(), "broken": report.broken_count, "images": states.distinct, "images_broken": states.broken_count,
        "planted_survived": survived, "seconds": begun.elapsed().as_secs(), "passed": good,
    }));
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Plants a bug until a run catches it, and does that run again.
fn is_caught(bug: Bug, seed: u64) -> bool {
    let Some((caught, broken)) = run_planted(bug, seed, PLANTED_RUNS_MAX) else {
        println!("planted: {}: SURVIVED {PLANTED_RUNS_MAX} runs", bug.name());
        return false;
    };
    let is_same = run_planted(bug, caught, 1).is_some_and(|(_, again)| again == broken);
    let again = if is_same { "again the same" } else { "NOT THE SAME AGAIN" };
    println!("planted: {}: caught with {broken}; {again}", bug.name());
    is_same
}

fn tell(text: &str) {
    eprint!("\r{text}    ");
    let _ = std::io::stderr().flush();
}

fn print_runs(report: &Report, first: u64, runs: u64) -> bool {
    let percent = |part: u64, of: u64| part * 100 / of.max(1);
    let overlapping = percent(report.overlapping, report.operations);
    let (hits, demanded) = (percent(report.hits, report.gets), percent(report.demanded, report.gets));
    println!(
        "seeds from {first}: {} runs, {} operations (wanted {OPERATIONS} a run), {overlapping} % of them while another of the same key \
         was under way (wanted {OVERLAPPING_PERCENT_MIN}), {} gets, {hits} % of them hits (wanted {HITS_PERCENT_MIN}), {demanded} % \
         demanded (wanted {DEMANDED_PERCENT_MIN}), {} faults (wanted one a run), lives ended by kills, stops, losses of power and cut \
         logs: {:?}, {} segments overwritten, {} reads shared, {} purges, {} histories that cannot be explained, trace {:#x}",
        report.runs,
        report.operations,
        report.gets,
        report.faults(),
        report.ends,
        report.reclaimed,
        report.reads_shared,
        report.purges,
        report.broken_count,
        report.trace
    );
    report.broken_count == 0
        && report.runs == runs
        && report.operations >= OPERATIONS * runs
        && overlapping >= OVERLAPPING_PERCENT_MIN
        && hits >= HITS_PERCENT_MIN
        && demanded >= DEMANDED_PERCENT_MIN
        && report.faults() >= runs
        && report.reads_shared > 0
        && report.reclaimed > 0
}

fn print_states(states: &CrashReport, images: u64) -> bool {
    for broken in &states.broken {
        println!("BROKEN {broken}");
    }
    println!(
        "{} recorded runs with {} device operations begun while another was under way, {} crash states, {} distinct images (wanted \
         {images}), each written to and ended again; {} hits, {} demanded, {} broken promises",
        states.workloads,
        states.in_flight,
        states.states,
        states.distinct,
        states.hits,
        states.demanded,
        states.broken_count
    );
    states.broken_count == 0
        && states.distinct >= images
        && (images == 0 || (states.in_flight > 0 && states.demanded > 0))
}
