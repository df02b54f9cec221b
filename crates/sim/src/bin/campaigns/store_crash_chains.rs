//! `store-crash-chains`: crashes a store several times in a row, with work between the crashes, and checks that what one
//! crash took or left stays so after the next ones.
//!
//! The campaign succeeds if no promise was broken, enough crashes took something, and each planted bug was caught by a
//! chain that catches it again.

use std::process::ExitCode;
use std::time::Instant;

use nectary_sim::planted::BugCase;
use nectary_sim::store::chain_run::{self, ChainOptions, replay_planted, run_planted};
use nectary_store::planted::Bug;

use crate::shared::{CampaignBugs, CampaignOptions, exit_code, print_new, progress, survived};

const NAME: &str = "store-crash-chains";
/// A planted bug must be caught within this many chains.
const PLANTED_CHAINS_MAX: u64 = 1000;
/// A run with fewer chains is a sample, in which rare events need not occur.
const CHAINS_WHOLE: u64 = 200;

/// The options of this campaign.
#[derive(Debug, clap::Args)]
pub struct CrashChainsOptions {
    #[command(flatten)]
    shared: CampaignOptions,
    /// The number of chains
    #[arg(long, default_value_t = 1000)]
    chains: u64,
    /// The number of crash states of each link that are checked, besides the one with which the chain goes on
    #[arg(long, default_value_t = 8)]
    states: u64,
}

/// Runs the campaign.
pub fn run(options: &CrashChainsOptions) -> ExitCode {
    let CrashChainsOptions { shared, chains, states } = options;
    let replay = |bug: Bug, case: BugCase| replay_planted(bug, case.seed);
    let bugs = CampaignBugs { campaign: NAME, list: Bug::CHAINS.to_vec(), name: Bug::name, replay: &replay };
    if let Some(code) = bugs.repeat(shared, None) {
        return code;
    }
    let begun = Instant::now();
    let amount = ChainOptions { seed: shared.first(), chains: *chains, states_per_link: *states };
    let planted = ChainOptions { chains: PLANTED_CHAINS_MAX, ..amount };
    let caught = bugs.catch_each(shared, |bug| run_planted(bug, planted));
    let mut told = 0;
    let report = chain_run::run(amount, |report| {
        print_new(&report.violations, &mut told);
        progress(format_args!(
            "{} of {chains} chains, {} states, {} broken promises, {:.0} s",
            report.chains,
            report.states,
            report.violation_count,
            begun.elapsed().as_secs_f64()
        ));
    });
    eprintln!();
    let survivors = survived(&caught);
    println!(
        "seed {}: {} chains, {} links ({} after a loss of power, {} that filled segments), {} states, {} keys rolled \
         back, {} hits, {} demanded, {} broken promises",
        shared.seed,
        report.chains,
        report.links,
        report.power_losses,
        report.long_links,
        report.states,
        report.rolled_back,
        report.live,
        report.demanded,
        report.violation_count
    );
    let seldom = [report.power_losses, report.long_links, report.rolled_back, report.demanded];
    let good = report.violation_count == 0
        && report.chains == *chains
        && survivors == 0
        && (*chains < CHAINS_WHOLE || seldom.iter().all(|&count| count >= *chains / 4));
    shared.log(&serde_json::json!({
        "check": NAME, "seed": shared.seed, "chains": report.chains, "links": report.links,
        "power_losses": report.power_losses, "long_links": report.long_links, "states": report.states,
        "rolled_back": report.rolled_back, "live": report.live, "demanded": report.demanded,
        "violations": report.violation_count, "planted": caught, "planted_survived": survivors,
        "seconds": begun.elapsed().as_secs(), "passed": good,
    }));
    exit_code(good)
}
