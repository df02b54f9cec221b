//! `store-faults`: a store on a device with a place that cannot be read, or on one that is silent at times.
//!
//! The campaign succeeds if no promise was broken, the faults occurred often, and the planted bug was caught by a seed
//! that catches it again.

use std::process::ExitCode;
use std::time::Instant;

use nectary_sim::planted::BugCase;
use nectary_sim::store::fault_run::{self, replay_planted};
use nectary_store::planted::Bug;

use crate::shared::{CampaignBugs, CampaignOptions, exit_code, print_new, progress, survived};

const NAME: &str = "store-faults";
/// A planted bug must be caught within this many seeds.
const PLANTED_SEEDS_MAX: u64 = 100;

/// The options of this campaign.
#[derive(Debug, clap::Args)]
pub struct StoreFaultsOptions {
    #[command(flatten)]
    shared: CampaignOptions,
    /// The number of seeds
    #[arg(long, default_value_t = 2000)]
    runs: u64,
}

/// Runs the campaign.
pub fn run(options: &StoreFaultsOptions) -> ExitCode {
    let StoreFaultsOptions { shared, runs } = options;
    let replay = |bug: Bug, case: BugCase| replay_planted(bug, case.seed);
    let bugs = CampaignBugs { campaign: NAME, list: Bug::FAULTS.to_vec(), name: Bug::name, replay: &replay };
    if let Some(code) = bugs.repeat(shared, None) {
        return code;
    }
    let (begun, first) = (Instant::now(), shared.first());
    let seeds = first..first + PLANTED_SEEDS_MAX;
    let caught = bugs.catch_each(shared, |bug| seeds.clone().find_map(|seed| replay_planted(bug, seed)));
    let mut told = 0;
    let report = fault_run::run(first, *runs, |report| {
        print_new(&report.violations, &mut told);
        let seconds = begun.elapsed().as_secs_f64();
        progress(format_args!(
            "{} of {runs} runs, {} broken promises, {seconds:.0} s",
            report.runs, report.violation_count
        ));
    });
    eprintln!();
    let [purged, not_purged] = report.purges;
    println!(
        "seed {}: {} runs, {} operations, {} silences, {} reads of an unreadable place; {} gets hit, {} had to, {} were \
         errors; {purged} purges, {not_purged} refused; {} clean stops; {} broken promises",
        shared.seed,
        report.runs,
        report.operations,
        report.silences,
        report.failed_reads,
        report.hits,
        report.demanded,
        report.errors,
        report.stopped,
        report.violation_count
    );
    let survivors = survived(&caught);
    let seldom = [report.silences, report.failed_reads, report.errors, report.demanded, not_purged, report.stopped];
    let good = report.violation_count == 0 && survivors == 0 && seldom.iter().all(|&count| count >= *runs / 4);
    shared.log(&serde_json::json!({
        "check": NAME, "seed": shared.seed, "runs": runs, "operations": report.operations,
        "silences": report.silences, "failed_reads": report.failed_reads, "hits": report.hits,
        "demanded": report.demanded, "errors": report.errors, "purges": report.purges, "stopped": report.stopped,
        "violations": report.violation_count, "planted": caught, "planted_survived": survivors,
        "seconds": begun.elapsed().as_secs(), "passed": good,
    }));
    exit_code(good)
}
