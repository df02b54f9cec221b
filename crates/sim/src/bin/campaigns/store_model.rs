//! `store-model`: a long run of operations on a store against a model, with restarts and damage.
//!
//! The campaign succeeds if no answer differed, only damaged objects were missing, and a wrong model and each planted
//! bug were noticed by a seed that notices them again.

use std::process::ExitCode;
use std::time::Instant;

use nectary_sim::late::in_virtual_time;
use nectary_sim::planted::BugCase;
use nectary_sim::store::random_run::{self, RandomRunBug, RunOptions, RunReport, replay_planted, run_planted};
use nectary_store::BackgroundRuntime;

use crate::shared::{CampaignBugs, CampaignOptions, exit_code, progress, survived};

const NAME: &str = "store-model";
/// A planted bug must be caught within this many runs.
const PLANTED_RUNS_MAX: u64 = 16;

/// A run with fewer operations is a sample, in which the ring completes one cycle or none, so rare events need not
/// occur.
const OPERATIONS_WHOLE: u64 = 200_000;
/// A second run, on a late device, has one operation for this many of the first run.
const LATE_SHARE: u64 = 4;

/// The options of this campaign.
#[derive(Debug, clap::Args)]
pub struct StoreModelOptions {
    #[command(flatten)]
    shared: CampaignOptions,
    /// The number of operations
    #[arg(long, default_value_t = 1_000_000)]
    operations: u64,
    /// The number of keys
    #[arg(long, default_value_t = 100_000)]
    keys: u32,
    /// The number of operations between two restarts
    #[arg(long, default_value_t = 20_000)]
    restart_every: u64,
    /// The number of places that are damaged at each restart
    #[arg(long, default_value_t = 4)]
    damage: u64,
}

/// Runs the campaign.
pub fn run(options: &StoreModelOptions) -> ExitCode {
    let shared = &options.shared;
    let replay = |plant: RandomRunBug, case: BugCase| replay_planted(plant, case.seed);
    let plants = CampaignBugs { campaign: NAME, list: RandomRunBug::all(), name: RandomRunBug::name, replay: &replay };
    if let Some(code) = plants.repeat(shared, None) {
        return code;
    }
    let amount = RunOptions {
        seed: shared.seed,
        operations: options.operations,
        keys: options.keys,
        operations_per_restart: options.restart_every.max(1),
        damage_per_restart: options.damage,
        store_bytes: 192 << 20,
        is_late: false,
        background: BackgroundRuntime::Threads,
        stops_at_difference: false,
        plant_wrong_model: false,
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("{NAME}: no runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let caught = plants.catch_each(shared, |plant| run_planted(plant, shared.first(), PLANTED_RUNS_MAX));
    let survived = survived(&caught);
    let begun = Instant::now();
    let told = |done: u64, of: u64, device: &str| {
        let seconds = begun.elapsed().as_secs_f64();
        progress(format_args!("{done} of {of} operations{device}, {seconds:.0} s"));
    };
    let report = runtime.block_on(random_run::run(amount.clone(), |done| told(done, amount.operations, "")));
    eprintln!();
    let late = RunOptions {
        operations: amount.operations / LATE_SHARE,
        is_late: true,
        background: BackgroundRuntime::Caller,
        ..amount.clone()
    };
    let late_report =
        in_virtual_time(random_run::run(late.clone(), |done| told(done, late.operations, " on a late device")));
    eprintln!();
    let good = print(&amount, &report) & print(&late, &late_report) && survived == 0;
    shared.log(&serde_json::json!({
        "check": NAME, "seed": amount.seed, "operations": report.operations, "keys": amount.keys,
        "hits": report.hits, "misses": report.misses, "restarts": report.restarts,
        "damaged_places": report.damaged_places, "demanded": report.demanded,
        "neighbours": report.neighbours, "regrouped": report.regrouped, "kept": report.kept,
        "demanded_missing": report.demanded_missing, "differences": report.differences.len(),
        "purged_by_tag": report.purged_by_tag, "planted": caught, "planted_survived": survived,
        "seconds": begun.elapsed().as_secs(), "passed": good,
    }));
    exit_code(good)
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
