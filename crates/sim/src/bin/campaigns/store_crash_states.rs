//! `store-crash-states`: opens a store after a crash at any moment, and checks that it keeps its promises.
//!
//! The campaign succeeds if enough distinct images were checked, enough of them had live objects, no promise was broken,
//! and each planted bug was caught by a crash state that catches it again.

use std::process::ExitCode;
use std::time::Instant;

use nectary_sim::store::crash_run::{self, CrashRunOptions, StoreCrashReport, replay_planted, run_planted};
use nectary_store::planted::Bug;

use crate::shared::{CampaignBugs, CampaignOptions, exit_code, progress, survived};

const NAME: &str = "store-crash-states";
/// At least this share of the distinct images must have live objects, in percent.
const LIVE_PERCENT_MIN: u64 = 95;
/// In a sample at least this share must have live objects, in percent: among few workloads, one that deletes all its
/// objects is a large share.
const LIVE_PERCENT_MIN_OF_A_SAMPLE: u64 = 80;
/// A run with fewer workloads is a sample, in which rare events need not occur.
const WORKLOADS_WHOLE: u64 = 200;
/// A planted bug must be caught within this many workloads.
const PLANTED_WORKLOADS_MAX: u64 = 200;

/// The options of this campaign.
#[derive(Debug, clap::Args)]
pub struct StoreCrashOptions {
    #[command(flatten)]
    shared: CampaignOptions,
    /// The number of workloads
    #[arg(long, default_value_t = WORKLOADS_WHOLE)]
    workloads: u64,
    /// The number of distinct images of crash states
    #[arg(long, default_value_t = 10_000)]
    states: u64,
    /// With --replay: checks only this crash state, counted from 0
    #[arg(long, value_name = "N")]
    state: Option<u64>,
}

/// Runs the campaign.
pub fn run(options: &StoreCrashOptions) -> ExitCode {
    let StoreCrashOptions { shared, states, .. } = options;
    let (workloads, states) = (options.workloads.max(1), *states);
    let bugs = CampaignBugs { campaign: NAME, list: Bug::ALL.to_vec(), name: Bug::name, replay: &replay_planted };
    if let Some(code) = bugs.repeat(shared, options.state) {
        return code;
    }
    let amount = CrashRunOptions {
        seed: shared.first(),
        workloads,
        // Check twice as many states as requested images, because equal images are counted once.
        states_per_workload: (states * 2).div_ceil(workloads) + 1,
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("{NAME}: no runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let begun = Instant::now();
    let planted = CrashRunOptions { workloads: PLANTED_WORKLOADS_MAX, states_per_workload: 100, ..amount };
    let caught = bugs.catch_each(shared, |bug| run_planted(bug, planted));
    let report = runtime.block_on(crash_run::run(amount, |report| {
        let seconds = begun.elapsed().as_secs_f64();
        let (done, distinct, count) = (report.workloads, report.distinct, report.violation_count);
        progress(format_args!(
            "{done} of {workloads} workloads, {distinct} distinct images, {count} broken promises, {seconds:.0} s"
        ));
    }));
    eprintln!();
    let good = print(&report, shared.seed, workloads, states) && survived(&caught) == 0;
    shared.log(&serde_json::json!({
        "check": NAME, "seed": shared.seed, "workloads": report.workloads, "states": report.states,
        "distinct": report.distinct, "live": report.live, "demanded": report.demanded, "reinserted": report.reinserted,
        "tied": report.tied, "rewritten": report.rewritten, "neighbours": report.neighbours,
        "tag_purges": report.tag_purges, "warmed": report.warmed, "violations": report.violation_count,
        "planted": caught, "seconds": begun.elapsed().as_secs(), "passed": good,
    }));
    exit_code(good)
}

fn print(report: &StoreCrashReport, seed: u64, workloads: u64, states: u64) -> bool {
    for violation in &report.violations {
        println!("BROKEN {violation}");
    }
    let live_percent = report.live * 100 / report.distinct.max(1);
    let is_whole = workloads >= WORKLOADS_WHOLE;
    let live_percent_min = if is_whole { LIVE_PERCENT_MIN } else { LIVE_PERCENT_MIN_OF_A_SAMPLE };
    let seldom =
        [report.reinserted, report.tied, report.rewritten, report.neighbours, report.tag_purges, report.warmed];
    println!(
        "seed {seed}: {} workloads, {} states, {} distinct images (wanted {states}), {live_percent} % of them with live \
         objects (wanted {live_percent_min}), {} objects re-inserted, {} tied by hints, {} written anew from memory, {} read as neighbours, {} purges by tag, {} warmed (wanted{} some of each), {} hits demanded, {} broken promises",
        report.workloads,
        report.states,
        report.distinct,
        report.reinserted,
        report.tied,
        report.rewritten,
        report.neighbours,
        report.tag_purges,
        report.warmed,
        if is_whole { "" } else { ", of 200 workloads," },
        report.demanded,
        report.violation_count
    );
    report.violation_count == 0
        && report.distinct >= states
        && (!is_whole || seldom.iter().all(|&count| count > 0))
        && report.workloads == workloads
        && live_percent >= live_percent_min
}
