//! `store-model`: a long run of operations on a store against a model, with restarts and damage.
//!
//! Exits with 0 when no answer differed, nothing was missing beyond what was damaged, and a wrong model was noticed.

use std::io::Write;

use nectary_sim::arguments::Arguments;
use nectary_sim::late::in_virtual_time;
use nectary_sim::store::random_run::{RunOptions, RunReport, run, run_planted};
use nectary_store::planted::Bug;

/// A planted bug must be caught within so many operations: a write budget is that of every sixth life.
const PLANTED_OPERATIONS_MAX: u64 = 200_000;

/// One in so many of the operations are done on a late device besides.
const LATE_SHARE: u64 = 4;

fn main() -> std::process::ExitCode {
    let arguments =
        match Arguments::parse("store-model", &["seed", "operations", "keys", "restart-every", "damage", "log"]) {
            Ok(arguments) => arguments,
            Err(code) => return code,
        };
    let options = RunOptions {
        seed: arguments.number("seed", 1),
        operations: arguments.number("operations", 1_000_000),
        keys: arguments.number("keys", 100_000) as u32,
        operations_per_restart: arguments.number("restart-every", 20_000).max(1),
        damage_per_restart: arguments.number("damage", 4),
        store_bytes: 192 << 20,
        is_late: false,
        plant_wrong_model: false,
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("store-model: no runtime: {error}");
            return std::process::ExitCode::FAILURE;
        }
    };
    let planted = RunOptions { operations: 20_000.min(options.operations), plant_wrong_model: true, ..options.clone() };
    let noticed = runtime.block_on(run(planted, |_| {})).differences.len();
    println!("planted: a model that expects a version never put: {}", if noticed > 0 { "caught" } else { "SURVIVED" });
    let mut survived = 0;
    for bug in Bug::RUNNING.into_iter().chain(Bug::ADMISSION) {
        let planted = RunOptions { operations: PLANTED_OPERATIONS_MAX, ..options.clone() };
        let caught = runtime.block_on(run_planted(bug, planted));
        println!("planted: {}: {}", bug.name(), if caught { "caught" } else { "SURVIVED" });
        survived += u32::from(!caught);
    }
    let begun = std::time::Instant::now();
    let report = runtime.block_on(run(options.clone(), |done| {
        eprint!("\r{done} of {} operations, {:.0} s", options.operations, begun.elapsed().as_secs_f64());
        let _ = std::io::stderr().flush();
    }));
    eprintln!();
    let late = RunOptions { operations: options.operations / LATE_SHARE, is_late: true, ..options.clone() };
    let late_report = in_virtual_time(run(late.clone(), |done| {
        eprint!("\r{done} of {} operations on a late device, {:.0} s", late.operations, begun.elapsed().as_secs_f64());
        let _ = std::io::stderr().flush();
    }));
    eprintln!();
    let good = print(&options, &report) & print(&late, &late_report) && noticed > 0 && survived == 0;
    arguments.log(&serde_json::json!({
        "check": "store-model", "seed": options.seed, "operations": report.operations, "keys": options.keys,
        "hits": report.hits, "misses": report.misses, "restarts": report.restarts,
        "damaged_places": report.damaged_places, "demanded": report.demanded,
        "neighbours": report.neighbours, "copies": report.copies, "regrouped": report.regrouped, "kept": report.kept, "demanded_missing": report.demanded_missing, "differences": report.differences.len(),
        "purged_by_tag": report.purged_by_tag, "planted_caught": noticed > 0 && survived == 0, "seconds": begun.elapsed().as_secs(), "passed": good,
    }));
    if good { std::process::ExitCode::SUCCESS } else { std::process::ExitCode::FAILURE }
}

fn print(options: &RunOptions, report: &RunReport) -> bool {
    for difference in &report.differences {
        println!("DIFFERENT {difference}");
    }
    let gets = (report.hits + report.misses).max(1);
    println!(
        "seed {}: {} operations over {} keys, {} restarts ({} clean), {} damaged places ({} noticed at a read), {} objects re-inserted, {} kept, {} regrouped, {} read as neighbours, {} of them by a copy, {} purged by tag\n{} not admitted, {} admitted as they replaced something, {:.3} of the write budget used at most",
        options.seed,
        report.operations,
        options.keys,
        report.restarts,
        report.restarts_clean,
        report.damaged_places,
        report.damage_noticed,
        report.reinserted,
        report.kept,
        report.regrouped,
        report.neighbours,
        report.copies,
        report.purged_by_tag,
        report.unadmitted,
        report.admitted_replacing,
        report.budget_used_max
    );
    println!(
        "hit rate {:.4}; the model demands {} hits, {} missing (at most one a damaged place: {}); {} versions may have been lost at restarts, {} were; differences {}",
        report.hits as f64 / gets as f64,
        report.demanded,
        report.demanded_missing,
        report.damaged_places,
        report.uncertain,
        report.rolled_back,
        report.differences.len()
    );
    // Neighbours by a copy are too few to count on; the planted bug in copies is caught where there are some.
    let seldom = [report.reinserted, report.kept, report.regrouped, report.neighbours, report.purged_by_tag];
    report.differences.is_empty()
        && report.operations == options.operations
        && seldom.iter().all(|&count| count > 0)
        && report.unadmitted > 0
        && report.admitted_replacing > 0
        && report.demanded_missing <= report.damaged_places
        && report.demanded > report.hits / 2
        // What may have been lost is not demanded, so it has to be little.
        && report.uncertain <= report.operations / 100
}
