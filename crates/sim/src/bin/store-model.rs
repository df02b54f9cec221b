//! `store-model`: a long run of operations on a store against a model, with restarts and damage.
//!
//! Exits with 0 when no answer differed, only damaged objects were missing, and a wrong model and each planted bug were
//! noticed by a seed that notices them again. With `--bug NAME --replay SEED` it runs only that seed, with that bug
//! planted, and exits with 0 if the bug was noticed.

use std::io::Write;

use nectary_sim::arguments::Arguments;
use nectary_sim::late::in_virtual_time;
use nectary_sim::planted::{self, Case};
use nectary_sim::store::random_run::{Plant, RunOptions, RunReport, replay_planted, run, run_planted};
use nectary_store::Background;

const ARGUMENTS: [&str; 8] = ["seed", "operations", "keys", "restart-every", "damage", "bug", "replay", "log"];
/// A planted bug must be caught within this many runs.
const PLANTED_RUNS_MAX: u64 = 16;

/// A run with fewer operations is a sample, in which the ring completes one cycle or none, so rare events need not
/// occur.
const OPERATIONS_WHOLE: u64 = 200_000;
/// A second run, on a late device, has one operation for this many of the first run.
const LATE_SHARE: u64 = 4;

fn main() -> std::process::ExitCode {
    let arguments = match Arguments::parse("store-model", &ARGUMENTS) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    let plants = Plant::all();
    let names: Vec<&str> = plants.iter().map(|plant| plant.name()).collect();
    let plant = |name: &str| plants[names.iter().position(|other| *other == name).expect("names are those of plants")];
    let replay = |name: &str, case: Case| replay_planted(plant(name), case.seed);
    if let Some((name, case)) = Case::of(&arguments, &names) {
        let is_caught = planted::print_replay(name, case, replay(name, case).as_ref());
        return if is_caught { std::process::ExitCode::SUCCESS } else { std::process::ExitCode::FAILURE };
    }
    let options = RunOptions {
        seed: arguments.number("seed", 1),
        operations: arguments.number("operations", 1_000_000),
        keys: arguments.number("keys", 100_000) as u32,
        operations_per_restart: arguments.number("restart-every", 20_000).max(1),
        damage_per_restart: arguments.number("damage", 4),
        store_bytes: 192 << 20,
        is_late: false,
        background: Background::Threads,
        stops_at_difference: false,
        plant_wrong_model: false,
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("store-model: no runtime: {error}");
            return std::process::ExitCode::FAILURE;
        }
    };
    let find = |name: &str| run_planted(plant(name), options.seed.wrapping_mul(1_000_000), PLANTED_RUNS_MAX);
    let caught = planted::catch_each("store-model", &names, find, replay);
    let survived = caught.iter().filter(|(.., is_good)| !is_good).count();
    let begun = std::time::Instant::now();
    let report = runtime.block_on(run(options.clone(), |done| {
        eprint!("\r{done} of {} operations, {:.0} s", options.operations, begun.elapsed().as_secs_f64());
        let _ = std::io::stderr().flush();
    }));
    eprintln!();
    let late = RunOptions {
        operations: options.operations / LATE_SHARE,
        is_late: true,
        background: Background::Caller,
        ..options.clone()
    };
    let late_report = in_virtual_time(run(late.clone(), |done| {
        eprint!("\r{done} of {} operations on a late device, {:.0} s", late.operations, begun.elapsed().as_secs_f64());
        let _ = std::io::stderr().flush();
    }));
    eprintln!();
    let good = print(&options, &report) & print(&late, &late_report) && survived == 0;
    arguments.log(&serde_json::json!({
        "check": "store-model", "seed": options.seed, "operations": report.operations, "keys": options.keys,
        "hits": report.hits, "misses": report.misses, "restarts": report.restarts,
        "damaged_places": report.damaged_places, "demanded": report.demanded,
        "neighbours": report.neighbours, "regrouped": report.regrouped, "kept": report.kept, "demanded_missing": report.demanded_missing, "differences": report.differences.len(),
        "purged_by_tag": report.purged_by_tag, "planted": caught, "planted_survived": survived, "seconds": begun.elapsed().as_secs(), "passed": good,
    }));
    if good { std::process::ExitCode::SUCCESS } else { std::process::ExitCode::FAILURE }
}

fn print(options: &RunOptions, report: &RunReport) -> bool {
    for difference in &report.differences {
        println!("DIFFERENT {difference}");
    }
    let gets = (report.hits + report.misses).max(1);
    println!(
        "seed {}: {} operations over {} keys, {} restarts ({} clean), {} damaged places ({} noticed at a read), {} objects re-inserted, {} kept, {} regrouped, {} read as neighbours, {} purged by tag\n{} not admitted, {} admitted as they replaced something, {:.3} of the write budget used at most",
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
    let seldom = [report.reinserted, report.kept, report.regrouped, report.neighbours, report.purged_by_tag];
    report.differences.is_empty()
        && report.operations == options.operations
        && (options.operations < OPERATIONS_WHOLE || seldom.iter().all(|&count| count > 0))
        && report.unadmitted > 0
        && report.admitted_replacing > 0
        && report.demanded_missing <= report.damaged_places
        && report.demanded > report.hits / 2
        // Objects that may have been lost need not be found, so there must be few of them.
        && report.uncertain <= report.operations / 100
}
