//! `store-moments`: moments of a running store that other campaigns seldom meet: purges of objects that wait to be
//! written while the ring goes on, and gets that are answered between two shards of an index that is being loaded.
//!
//! The campaign succeeds if every answer was right, both moments occurred often, and each planted bug was caught by a
//! seed that catches it again.

use std::process::ExitCode;
use std::time::Instant;

use nectary_sim::planted::{BugCase, CaughtBug};
use nectary_sim::store::{shard_run, waiting_run};
use nectary_store::planted::Bug;

use crate::shared::{CampaignBugs, CampaignOptions, exit_code, progress, survived};

const NAME: &str = "store-moments";
/// A planted bug must be caught within this many seeds.
const PLANTED_SEEDS_MAX: u64 = 100;

/// The options of this campaign.
#[derive(Debug, clap::Args)]
pub struct StoreMomentsOptions {
    #[command(flatten)]
    shared: CampaignOptions,
    /// The number of seeds for each of the two moments
    #[arg(long, default_value_t = 200)]
    runs: u64,
}

fn replay(bug: Bug, case: BugCase) -> Option<CaughtBug> {
    match Bug::WAITING.contains(&bug) {
        true => waiting_run::replay_planted(bug, case.seed),
        false => shard_run::replay_planted(bug, case.seed),
    }
}

/// Runs the campaign.
pub fn run(options: &StoreMomentsOptions) -> ExitCode {
    let StoreMomentsOptions { shared, runs } = options;
    let list = Bug::WAITING.into_iter().chain(Bug::SHARDS).collect();
    let bugs = CampaignBugs { campaign: NAME, list, name: Bug::name, replay: &replay };
    if let Some(code) = bugs.repeat(shared, None) {
        return code;
    }
    let (begun, first) = (Instant::now(), shared.first());
    let seeds = first..first + PLANTED_SEEDS_MAX;
    let caught = bugs.catch_each(shared, |bug| seeds.clone().find_map(|seed| replay(bug, BugCase::of_seed(seed))));
    let show = |name: &str, done: u64, count: u64| {
        let seconds = begun.elapsed().as_secs_f64();
        progress(format_args!("{name}: {done} of {runs} seeds, {count} wrong answers, {seconds:.0} s"));
    };
    let waiting = waiting_run::run(first, *runs, |report| show("waiting", report.runs, report.difference_count));
    let shards = shard_run::run(first, *runs, |report| show("shards", report.runs, report.difference_count));
    eprintln!();
    waiting.differences.iter().chain(&shards.differences).for_each(|difference| println!("DIFFERENT {difference}"));
    println!(
        "seed {}: {} objects put in bursts, {} purged while they waited, {} of them after a cycle of the ring; {} hits, \
         {} differences",
        shared.seed, waiting.puts, waiting.purges, waiting.purged_late, waiting.hits, waiting.difference_count
    );
    println!(
        "{} gets answered while the index was loaded, {} neighbours taken; {} hits, {} differences",
        shards.early, shards.neighbours, shards.hits, shards.difference_count
    );
    let survivors = survived(&caught);
    let good = waiting.difference_count + shards.difference_count == 0
        && survivors == 0
        && waiting.purged_late >= *runs
        && waiting.hits >= *runs
        && shards.early >= *runs
        && shards.neighbours >= *runs;
    shared.log(&serde_json::json!({
        "check": NAME, "seed": shared.seed, "runs": runs, "puts": waiting.puts, "purges": waiting.purges,
        "purged_late": waiting.purged_late, "early": shards.early, "neighbours": shards.neighbours,
        "hits": waiting.hits + shards.hits, "differences": waiting.difference_count + shards.difference_count,
        "planted": caught, "planted_survived": survivors, "seconds": begun.elapsed().as_secs(), "passed": good,
    }));
    exit_code(good)
}
