//! `volume-simulation`: simulates tokens, leases and sessions of the shared volume under faults; every history of calls
//! must have a possible order.
//!
//! The campaign succeeds if no promise is broken, every history has a possible order, every scenario occurred, and each
//! planted bug was caught by a seed that catches it again.

use std::process::ExitCode;
use std::time::Instant;

use nectary_sim::planted::BugCase;
use nectary_sim::volume::{
    FAULTS, OPERATIONS, SCENARIOS, VolumeModelBug, VolumeSimulationReport, replay_planted, run_many, run_planted, story,
};

use crate::shared::{self, CampaignBugs, CampaignOptions, exit_code, progress, survived};

const NAME: &str = "volume-simulation";
/// A planted bug must be caught within this many runs.
const PLANTED_RUNS_MAX: u64 = 100_000;

/// The options of this campaign.
#[derive(Debug, clap::Args)]
pub struct VolumeSimulationOptions {
    #[command(flatten)]
    shared: CampaignOptions,
    /// The number of runs
    #[arg(long, default_value_t = 1000)]
    runs: u64,
    /// Takes every K-th run, from the I-th on, counted from 0
    #[arg(long, value_name = "I/K", default_value = "0/1", value_parser = shared::shard)]
    shard: (u64, u64),
    /// Only prints what happens in the run with this seed
    #[arg(long, value_name = "SEED")]
    story: Option<u64>,
}

/// Runs the campaign.
pub fn run(options: &VolumeSimulationOptions) -> ExitCode {
    let shared = &options.shared;
    if let Some(seed) = options.story {
        story(seed).iter().for_each(|line| println!("{line}"));
        return ExitCode::SUCCESS;
    }
    let replay = |bug: VolumeModelBug, case: BugCase| replay_planted(bug, case.seed);
    let bugs = CampaignBugs {
        campaign: NAME,
        list: VolumeModelBug::EVERY.to_vec(),
        name: VolumeModelBug::name,
        replay: &replay,
    };
    if let Some(code) = bugs.repeat(shared, None) {
        return code;
    }
    let (first, runs) = (shared.first(), options.runs.max(1));
    let begun = Instant::now();
    let caught = bugs.catch_each(shared, |bug| run_planted(bug, first, PLANTED_RUNS_MAX));
    let survived = survived(&caught);
    let report = run_many(first, runs, options.shard, |report| {
        if report.runs.is_multiple_of(1000) {
            let seconds = begun.elapsed().as_secs_f64();
            progress(format_args!("{} of {runs} runs, {} broken, {seconds:.0} s", report.runs, report.broken_count));
        }
        true
    });
    eprintln!();
    let good = print(&report, first) && survived == 0;
    let coverage: Vec<(&str, u64)> = SCENARIOS.iter().map(|name| (*name, report.coverage.count(name))).collect();
    shared.log(&serde_json::json!({
        "check": NAME, "seed": shared.seed, "runs": report.runs, "operations": report.operations,
        "failed": report.failed, "faults": report.faults, "undecided": report.undecided,
        "broken": report.broken_count, "coverage": coverage, "planted": caught, "planted_survived": survived,
        "seconds": begun.elapsed().as_secs(), "passed": good,
    }));
    exit_code(good)
}

fn print(report: &VolumeSimulationReport, first: u64) -> bool {
    report.broken.iter().for_each(|broken| println!("BROKEN {broken}"));
    println!(
        "seeds from {first}: {} runs, {} operations (wanted {OPERATIONS} a run), {} failed, {} faults (wanted {FAULTS} \
         a run), {} runs short of that, {} clients, {} virtual seconds, {} histories too large to decide, {} broken, \
         trace {:#x}",
        report.runs,
        report.operations,
        report.failed,
        report.faults,
        report.short,
        report.clients,
        report.time_us / 1_000_000,
        report.undecided,
        report.broken_count,
        report.trace
    );
    let missing = report.coverage.missing();
    for name in SCENARIOS {
        let never = if missing.contains(name) { "  NEVER" } else { "" };
        println!("  {name:<70} {:>9}{never}", report.coverage.count(name));
    }
    report.broken_count == 0 && report.is_enough()
}
