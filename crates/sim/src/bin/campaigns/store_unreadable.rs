//! `store-unreadable`: a store of which each block in turn cannot be read, when it is opened and while it runs.
//!
//! The campaign succeeds if in each case exactly that was lost which `docs/semantics.md` states, the store went on, and
//! each planted bug was caught.

use std::process::ExitCode;
use std::time::Instant;

use nectary_sim::planted::BugCase;
use nectary_sim::store::unreadable::{self, UnreadableRunPlan, replay_planted};
use nectary_store::planted::Bug;

use crate::shared::{CampaignBugs, CampaignOptions, exit_code, progress, survived};

const NAME: &str = "store-unreadable";
/// A planted bug must be caught within this many seeds.
const PLANTED_SEEDS_MAX: u64 = 40;

/// The options of this campaign.
#[derive(Debug, clap::Args)]
pub struct StoreUnreadableOptions {
    #[command(flatten)]
    shared: CampaignOptions,
    /// One block in so many of the segments is tried; 1 for all blocks of the store
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    stride: u64,
    /// The number of keys that are read in each case, besides those that must be lost
    #[arg(long, default_value_t = 40)]
    keys: u32,
}

/// Runs the campaign.
pub fn run(options: &StoreUnreadableOptions) -> ExitCode {
    let StoreUnreadableOptions { shared, stride, keys } = options;
    let replay = |bug: Bug, case: BugCase| replay_planted(bug, case.seed);
    let bugs = CampaignBugs { campaign: NAME, list: Bug::UNREADABLE.to_vec(), name: Bug::name, replay: &replay };
    if let Some(code) = bugs.repeat(shared, None) {
        return code;
    }
    let begun = Instant::now();
    let amount = UnreadableRunPlan { seed: shared.seed, store_bytes: 64 << 20, stride: *stride, keys: *keys };
    let report = unreadable::run(amount, |cases| {
        if cases % 100 < 4 {
            progress(format_args!("{cases} cases, {:.0} s", begun.elapsed().as_secs_f64()));
        }
    });
    eprintln!();
    for difference in &report.differences {
        println!("DIFFERENT {difference}");
    }
    for ((area, moment), [cases, lost, older]) in &report.cases {
        let (area, moment) = (area.name(), format!("{moment:?}").to_lowercase());
        println!("{area:>12}, {moment:<7}: {cases} cases, {lost} objects lost, {older} found in an older version");
    }
    println!(
        "seed {}: {} cases, {} of them with both copies of a block; {} opens refused, {} purged everything; {} objects found, {} lost, \
         {} differences",
        shared.seed,
        report.case_count(),
        report.pairs,
        report.refused,
        report.purged_all,
        report.found,
        report.lost_count(),
        report.difference_count
    );
    let catch = |bug| (shared.seed..shared.seed + PLANTED_SEEDS_MAX).find_map(|seed| replay_planted(bug, seed));
    let caught = bugs.catch_each(shared, catch);
    let survivors = survived(&caught);
    let good = report.difference_count == 0
        && survivors == 0
        && report.pairs > 0
        && report.refused > 0
        && report.purged_all > 0
        && report.lost_count() > 0;
    shared.log(&serde_json::json!({
        "check": NAME, "seed": shared.seed, "stride": stride, "cases": report.case_count(), "pairs": report.pairs,
        "refused": report.refused, "purged_all": report.purged_all, "found": report.found, "lost": report.lost_count(),
        "differences": report.difference_count, "planted": caught, "planted_survived": survivors,
        "seconds": begun.elapsed().as_secs(), "passed": good,
    }));
    exit_code(good)
}
