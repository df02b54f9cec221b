//! `fleet`: nodes of a fleet and etcd under faults, with every response checked against the purges before it.
//!
//! The campaign succeeds if no promise was broken, each situation was reached often enough, and each planted bug was
//! caught by a seed that catches it again.

use std::process::ExitCode;
use std::time::Instant;

use nectary_sim::fleet::{
    APPLIED, FleetBug, FleetCoverage, FleetReport, RESPONSES, SITUATIONS, replay_planted, run_many, run_planted, story,
};
use nectary_sim::planted::BugCase;

use crate::shared::{self, CampaignBugs, CampaignOptions, exit_code, print_new, progress, survived};

const NAME: &str = "fleet";
/// A planted bug must be caught within this many runs.
const PLANTED_RUNS_MAX: u64 = 10_000;

/// The options of this campaign.
#[derive(Debug, clap::Args)]
pub struct FleetCampaignOptions {
    #[command(flatten)]
    shared: CampaignOptions,
    /// The number of runs
    #[arg(long, default_value_t = 2000)]
    runs: u64,
    /// Takes every K-th run, from the I-th on, counted from 0
    #[arg(long, value_name = "I/K", default_value = "0/1", value_parser = shared::shard)]
    shard: (u64, u64),
    /// Only prints what happens in the run with this seed
    #[arg(long, value_name = "SEED")]
    story: Option<u64>,
}

/// Runs the campaign.
pub fn run(options: &FleetCampaignOptions) -> ExitCode {
    let shared = &options.shared;
    if let Some(seed) = options.story {
        story(seed).iter().for_each(|line| println!("{line}"));
        return ExitCode::SUCCESS;
    }
    let replay = |bug: FleetBug, case: BugCase| replay_planted(bug, case.seed);
    let bugs = CampaignBugs { campaign: NAME, list: FleetBug::EVERY.to_vec(), name: FleetBug::name, replay: &replay };
    if let Some(code) = bugs.repeat(shared, None) {
        return code;
    }
    let (first, runs) = (shared.first(), options.runs.max(1));
    let begun = Instant::now();
    let caught = bugs.catch_each(shared, |bug| run_planted(bug, first, PLANTED_RUNS_MAX));
    let mut told = 0;
    let report = run_many(first, runs, options.shard, |report| {
        print_new(&report.broken, &mut told);
        if report.runs.is_multiple_of(500) {
            let seconds = begun.elapsed().as_secs_f64();
            progress(format_args!("{} of {runs} runs, {} broken, {seconds:.0} s", report.runs, report.broken_count));
        }
        true
    });
    eprintln!();
    let good = print(&report, first) && survived(&caught) == 0;
    let coverage: Vec<(&str, u64)> = SITUATIONS.iter().map(|name| (*name, report.coverage.count(name))).collect();
    shared.log(&serde_json::json!({
        "check": NAME, "seed": shared.seed, "runs": report.runs, "purges": report.purges, "applied": report.applied,
        "responses": report.responses, "faults": report.faults, "broken": report.broken_count, "coverage": coverage,
        "planted": caught, "planted_survived": survived(&caught), "seconds": begun.elapsed().as_secs(), "passed": good,
    }));
    exit_code(good)
}

fn print(report: &FleetReport, first: u64) -> bool {
    println!(
        "seeds from {first}: {} runs, {} purges, {} applied (wanted {APPLIED} a run), {} responses from stores (wanted \
         {RESPONSES} a run), {} faults, {} virtual seconds, {} broken, trace {:#x}",
        report.runs,
        report.purges,
        report.applied,
        report.responses,
        report.faults,
        report.time_us / 1_000_000,
        report.broken_count,
        report.trace
    );
    let (missing, wanted) = (report.coverage.missing(report.runs), FleetCoverage::wanted(report.runs));
    for name in SITUATIONS {
        let short = if missing.contains(name) { "  TOO FEW" } else { "" };
        println!("  {name:<60} {:>9} (wanted {wanted}){short}", report.coverage.count(name));
    }
    report.broken_count == 0 && report.is_enough()
}
