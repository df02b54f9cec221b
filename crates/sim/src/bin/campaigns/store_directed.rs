//! `store-directed`: directed scenarios of a store: crashes in a row, losses of spans, and readers.
//!
//! The campaign succeeds if no scenario broke a promise, and each planted bug was caught by a seed that catches it again.

use std::process::ExitCode;
use std::time::Instant;

use nectary_sim::planted::BugCase;
use nectary_sim::store::directed::{self, SCENARIOS, replay_planted};
use nectary_store::planted::Bug;

use crate::shared::{CampaignBugs, CampaignOptions, exit_code, progress, survived};

const NAME: &str = "store-directed";

/// The options of this campaign.
#[derive(Debug, clap::Args)]
pub struct StoreDirectedOptions {
    #[command(flatten)]
    shared: CampaignOptions,
    /// The number of seeds with which each scenario runs
    #[arg(long, default_value_t = 50)]
    seeds: u64,
}

/// Runs the campaign.
pub fn run(options: &StoreDirectedOptions) -> ExitCode {
    let StoreDirectedOptions { shared, seeds } = options;
    let replay = |bug: Bug, case: BugCase| replay_planted(bug, case.seed);
    let list = Bug::RECOVERY.into_iter().chain(Bug::SPAN_RETURNS).chain(Bug::READ_ONLY).collect();
    let bugs = CampaignBugs { campaign: NAME, list, name: Bug::name, replay: &replay };
    if let Some(code) = bugs.repeat(shared, None) {
        return code;
    }
    let begun = Instant::now();
    let mut broken = Vec::new();
    for seed in shared.seed..shared.seed + seeds {
        broken.extend(directed::run(seed..seed + 1));
        progress(format_args!("{} of {seeds} seeds, {:.0} s", seed + 1 - shared.seed, begun.elapsed().as_secs_f64()));
    }
    eprintln!();
    broken.iter().for_each(|broken| println!("BROKEN {broken}"));
    println!("seed {}: {} scenarios with {seeds} seeds; broken {}", shared.seed, SCENARIOS.len(), broken.len());
    let caught = bugs.catch_each(shared, |bug| replay_planted(bug, shared.seed));
    let survivors = survived(&caught);
    let good = broken.is_empty() && survivors == 0;
    shared.log(&serde_json::json!({
        "check": NAME, "seed": shared.seed, "seeds": seeds, "scenarios": SCENARIOS.len(), "broken": broken.len(),
        "planted": caught, "planted_survived": survivors, "seconds": begun.elapsed().as_secs(), "passed": good,
    }));
    exit_code(good)
}
