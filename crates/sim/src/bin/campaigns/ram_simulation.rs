//! `ram-simulation`: a network RAM disk under faults, with its invariants checked after every step.
//!
//! The campaign succeeds if no invariant is broken, every history of operations has a possible order, each scenario was
//! met often enough, and each planted bug was caught by a seed that catches it again.

use std::process::ExitCode;
use std::time::Instant;

use nectary_ram::placement::RedundancyPolicy;
use nectary_sim::planted::BugCase;
use nectary_sim::ram::{
    FAULTS, RamBug, RamCoverage, RamSimulationReport, WRITES, replay_planted, run_many, run_planted, story,
};

use crate::shared::{self, CampaignBugs, CampaignOptions, exit_code, print_new, progress, survived};

const NAME: &str = "ram-simulation";
/// A planted bug must be caught within this many runs.
const PLANTED_RUNS_MAX: u64 = 20_000;
/// The default number of runs, for policies that change blocks in place and for those that log parity.
const RUNS: u64 = 2000;
const RUNS_LOG: u64 = 200;

/// The options of this campaign.
#[derive(Debug, clap::Args)]
pub struct RamSimulationOptions {
    #[command(flatten)]
    shared: CampaignOptions,
    /// none, mirror, parity, parity-log, parity-cache or adaptive
    #[arg(long, default_value = "mirror")]
    policy: RedundancyPolicy,
    /// The number of runs [default: 2000; 200 if the policy logs parity]
    #[arg(long)]
    runs: Option<u64>,
    /// Takes every K-th run, from the I-th on, counted from 0
    #[arg(long, value_name = "I/K", default_value = "0/1", value_parser = shared::shard)]
    shard: (u64, u64),
    /// Only prints what happens in the run with this seed
    #[arg(long, value_name = "SEED")]
    story: Option<u64>,
}

/// Runs the planted bugs and the seeds.
pub fn run(options: &RamSimulationOptions) -> ExitCode {
    let (shared, policy) = (&options.shared, options.policy);
    if let Some(seed) = options.story {
        story(seed, policy).iter().for_each(|line| println!("{line}"));
        return ExitCode::SUCCESS;
    }
    let campaign = format!("{NAME} --policy {policy}");
    let replay = |bug: RamBug, case: BugCase| replay_planted(bug, policy, case.seed);
    let bugs = CampaignBugs { campaign: &campaign, list: RamBug::all(policy), name: RamBug::name, replay: &replay };
    if let Some(code) = bugs.repeat(shared, None) {
        return code;
    }
    let runs = options.runs.unwrap_or(if policy.is_in_place() { RUNS } else { RUNS_LOG }).max(1);
    let (first, begun) = (shared.first(), Instant::now());
    let betrayed = CampaignBugs { list: RamBug::betrayed(policy), ..bugs };
    let caught = betrayed.catch_each(shared, |bug| run_planted(bug, policy, first, PLANTED_RUNS_MAX));
    let survived = survived(&caught);
    let mut told = 0;
    let report = run_many(first, policy, runs, options.shard, |report| {
        print_new(&report.broken, &mut told);
        if report.runs.is_multiple_of(100) {
            let seconds = begun.elapsed().as_secs_f64();
            progress(format_args!("{} of {runs} runs, {} broken, {seconds:.0} s", report.runs, report.broken_count));
        }
        true
    });
    eprintln!();
    let good = print_runs(&report, policy, first) && survived == 0;
    let coverage: Vec<(&str, u64)> = report.coverage.iter().flat_map(|coverage| coverage.counts()).collect();
    shared.log(&serde_json::json!({
        "check": NAME, "policy": policy, "seed": shared.seed, "runs": report.runs, "lossy": report.lossy,
        "operations": report.operations, "writes": report.writes, "flushes": report.flushes,
        "failed": report.failed, "faults": report.faults, "clients": report.clients,
        "broken": report.broken_count, "coverage": coverage, "planted": caught, "planted_survived": survived,
        "seconds": begun.elapsed().as_secs(), "passed": good,
    }));
    exit_code(good)
}

fn print_runs(report: &RamSimulationReport, policy: RedundancyPolicy, first: u64) -> bool {
    println!(
        "{policy}, seeds from {first}: {} runs, of which {} lost more than the policy survives, {} operations, {} \
         acknowledged writes (wanted {WRITES} a run), {} flushes, {} faults (wanted {FAULTS} a run), {} runs short of \
         that, {} failed operations, {} clients, {} virtual seconds, {} broken, trace {:#x}",
        report.runs,
        report.lossy,
        report.operations,
        report.writes,
        report.flushes,
        report.faults,
        report.short,
        report.failed,
        report.clients,
        report.time_us / 1_000_000,
        report.broken_count,
        report.trace
    );
    print_scenarios(report.coverage.as_ref(), report.runs);
    report.broken_count == 0 && report.is_enough()
}

/// Prints how often each scenario was reached, and which were reached too rarely.
pub fn print_scenarios(coverage: Option<&RamCoverage>, runs: u64) {
    let Some(coverage) = coverage else { return };
    let (missing, wanted) = (coverage.missing(runs), coverage.wanted(runs));
    for (name, count) in coverage.counts() {
        let short = if missing.contains(&name) { "  TOO FEW" } else { "" };
        println!("  {name:<60} {count:>9} (wanted {wanted}){short}");
    }
}
