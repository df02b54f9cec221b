//! `store-spans`: stores of several spans that are lost and return, against a model.
//!
//! The campaign succeeds if no purged or replaced object reappeared, even after a span was restored from an older copy,
//! only objects of lost spans were lost, and each planted bug was caught by a seed that catches it again.

use std::process::ExitCode;
use std::time::Instant;

use nectary_sim::late::in_virtual_time;
use nectary_sim::planted::BugCase;
use nectary_sim::store::spans_run::{self, SpansOptions, replay_planted, run_planted};
use nectary_store::planted::Bug;

use crate::shared::{CampaignBugs, CampaignOptions, exit_code, progress, survived};

const NAME: &str = "store-spans";
/// A planted bug must be caught within this many stores.
const PLANTED_STORES_MAX: u64 = 4000;

/// The options of this campaign.
#[derive(Debug, clap::Args)]
pub struct StoreSpansOptions {
    #[command(flatten)]
    shared: CampaignOptions,
    /// The number of stores
    #[arg(long, default_value_t = 500)]
    stores: u64,
    /// The number of events of each store
    #[arg(long, default_value_t = 12)]
    events: u64,
    /// The number of keys of each store
    #[arg(long, default_value_t = 120)]
    keys: u32,
}

/// Runs the campaign.
pub fn run(options: &StoreSpansOptions) -> ExitCode {
    let StoreSpansOptions { shared, stores, .. } = options;
    let stores = *stores;
    let replay = |bug: Bug, case: BugCase| replay_planted(bug, case.seed);
    let bugs = CampaignBugs { campaign: NAME, list: Bug::SPANS.to_vec(), name: Bug::name, replay: &replay };
    if let Some(code) = bugs.repeat(shared, None) {
        return code;
    }
    let amount = SpansOptions {
        seed: shared.seed,
        stores,
        events: options.events,
        keys: options.keys,
        stops_at_difference: false,
    };
    let begun = Instant::now();
    let report = in_virtual_time(spans_run::run(amount, |done| {
        progress(format_args!("{done} of {stores} stores, {:.0} s", begun.elapsed().as_secs_f64()));
    }));
    eprintln!();
    for difference in &report.differences {
        println!("DIFFERENT {difference}");
    }
    let [killed, stopped, failed] = report.ends;
    let [earlier, same] = report.put_back;
    let [for_good, for_some] = report.failed_in_purge;
    println!(
        "seed {}: {} stores, {} operations, {} spans lost while serving, {} came back, ends: {killed} killed, {stopped} clean, {failed} \
         by a loss of power; {} opens ended by a crash, {} refused; spans put back as they were in an earlier life {earlier}, \
         in the same {same}; during a purge {for_good} failed for good and {for_some} for some operations, {} opens without them",
        shared.seed,
        stores,
        report.operations,
        report.losses,
        report.returns,
        report.torn_opens,
        report.refused,
        report.opened_without
    );
    println!(
        "{} hits, {} misses; hits demanded of other spans after a loss {}, and of all spans after an end {}; {} missing; \
         differences {}",
        report.hits,
        report.misses,
        report.demanded,
        report.demanded_after_end,
        report.demanded_missing,
        report.differences.len()
    );
    let caught = bugs.catch_each(shared, |bug| run_planted(bug, shared.seed ^ 77, PLANTED_STORES_MAX));
    let survivors = survived(&caught);
    let good = report.differences.is_empty()
        && survivors == 0
        && report.losses >= stores
        && report.returns >= stores
        && report.demanded >= stores
        && report.demanded_after_end >= stores
        && earlier + same >= stores / 2
        && for_good >= stores / 4
        && for_some >= stores / 4
        && report.opened_without >= stores / 8;
    shared.log(&serde_json::json!({
        "check": NAME, "seed": shared.seed, "stores": stores, "operations": report.operations,
        "losses": report.losses, "returns": report.returns, "ends": report.ends, "refused": report.refused,
        "put_back": report.put_back, "failed_in_purge": report.failed_in_purge, "opened_without": report.opened_without,
        "hits": report.hits, "misses": report.misses, "demanded": report.demanded,
        "demanded_after_end": report.demanded_after_end,
        "demanded_missing": report.demanded_missing, "differences": report.differences.len(),
        "planted": caught, "planted_survived": survivors, "seconds": begun.elapsed().as_secs(), "passed": good,
    }));
    exit_code(good)
}
