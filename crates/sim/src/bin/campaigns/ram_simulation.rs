//! `ram-simulation`: a network RAM disk under faults, with its invariants checked after every step.
//!
//! The campaign succeeds if no invariant is broken, every history of operations has a possible order, each scenario was
//! met often enough, and each planted bug was caught by a seed that catches it again.

use std::process::ExitCode;
use std::time::Instant;

use nectary_ram::format::RedundancyCode;
use nectary_ram::placement::RedundancyPolicy;
use nectary_ram::planted::MirrorBug;
use nectary_sim::planted::BugCase;
use nectary_sim::ram::{FAULTS, RamSimulationReport, Scenario, WRITES, replay_planted, run_many, run_planted, story};
use nectary_sim::ram_log::{self, RamLogBug};

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
    /// mirror, parity, parity-log, parity-cache or adaptive
    #[arg(long, default_value = "mirror", value_parser = policy)]
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

/// Reads a policy that protects blocks.
pub fn policy(text: &str) -> Result<RedundancyPolicy, String> {
    let policy = text.parse::<RedundancyPolicy>()?;
    if policy == RedundancyPolicy::None {
        return Err("this policy protects nothing".to_owned());
    }
    Ok(policy)
}

/// Runs the campaign.
pub fn run(options: &RamSimulationOptions) -> ExitCode {
    match options.policy {
        RedundancyPolicy::Mirror => in_place(options, RedundancyCode::Mirror, NAME, &MirrorBug::ALL),
        RedundancyPolicy::Parity => {
            in_place(options, RedundancyCode::Parity, "ram-simulation --policy parity", &MirrorBug::PARITY)
        }
        policy => log(options, policy),
    }
}

/// Runs the planted bugs and the seeds for a policy that changes blocks in place.
fn in_place(options: &RamSimulationOptions, code: RedundancyCode, campaign: &str, bugs: &[MirrorBug]) -> ExitCode {
    let shared = &options.shared;
    if let Some(seed) = options.story {
        story(seed, code).iter().for_each(|line| println!("{line}"));
        return ExitCode::SUCCESS;
    }
    let replay = |bug: MirrorBug, case: BugCase| replay_planted(bug, code, case.seed);
    let bugs = CampaignBugs { campaign, list: bugs.to_vec(), name: MirrorBug::name, replay: &replay };
    if let Some(code) = bugs.repeat(shared, None) {
        return code;
    }
    let (first, runs) = (shared.first(), options.runs.unwrap_or(RUNS).max(1));
    let begun = Instant::now();
    let caught = bugs.catch_each(shared, |bug| run_planted(bug, code, first, PLANTED_RUNS_MAX));
    let survived = survived(&caught);
    let mut told = 0;
    let report = run_many(first, code, runs, options.shard, |report| {
        print_new(&report.broken, &mut told);
        if report.runs.is_multiple_of(500) {
            let seconds = begun.elapsed().as_secs_f64();
            progress(format_args!("{} of {runs} runs, {} broken, {seconds:.0} s", report.runs, report.broken_count));
        }
        true
    });
    eprintln!();
    let good = print_runs(&report, code, first) && survived == 0;
    let coverage: Vec<(&str, u64)> =
        Scenario::ALL.iter().map(|scenario| (scenario.name(), report.coverage.count(*scenario))).collect();
    shared.log(&serde_json::json!({
        "check": NAME, "policy": options.policy, "seed": shared.seed, "runs": report.runs, "lossy": report.lossy,
        "operations": report.operations, "writes": report.writes, "failed": report.failed, "faults": report.faults,
        "clients": report.clients, "broken": report.broken_count, "coverage": coverage, "planted": caught,
        "planted_survived": survived, "seconds": begun.elapsed().as_secs(), "passed": good,
    }));
    exit_code(good)
}

fn print_runs(report: &RamSimulationReport, code: RedundancyCode, first: u64) -> bool {
    println!(
        "seeds from {first}: {} runs, of which {} lost more than the policy survives, {} operations, {} acknowledged \
         writes (wanted {WRITES} a run), {} faults (wanted {FAULTS} a run), {} runs short of that, {} failed operations, \
         {} clients, {} virtual seconds, {} broken, trace {:#x}",
        report.runs,
        report.lossy,
        report.operations,
        report.writes,
        report.faults,
        report.short,
        report.failed,
        report.clients,
        report.time_us / 1_000_000,
        report.broken_count,
        report.trace
    );
    let missing = report.coverage.missing(report.runs, code);
    let wanted = (report.runs / nectary_sim::ram::RUNS_PER_SCENARIO).max(1);
    for scenario in Scenario::ALL.iter().filter(|scenario| scenario.is_of(code)) {
        let short = if missing.contains(&scenario.name()) { "  TOO FEW" } else { "" };
        println!("  {:<50} {:>9} (wanted {wanted}){short}", scenario.name(), report.coverage.count(*scenario));
    }
    report.broken_count == 0 && report.is_enough(code)
}

/// Runs the planted bugs and the seeds for a policy that logs parity.
fn log(options: &RamSimulationOptions, policy: RedundancyPolicy) -> ExitCode {
    let shared = &options.shared;
    if let Some(seed) = options.story {
        ram_log::story(seed, policy).iter().for_each(|line| println!("{line}"));
        return ExitCode::SUCCESS;
    }
    let campaign = format!("{NAME} --policy {policy}");
    let replay = |bug: RamLogBug, case: BugCase| ram_log::replay_planted(bug, policy, case.seed);
    let bugs = CampaignBugs { campaign: &campaign, list: RamLogBug::all(), name: RamLogBug::name, replay: &replay };
    if let Some(code) = bugs.repeat(shared, None) {
        return code;
    }
    let (first, runs) = (shared.first(), options.runs.unwrap_or(RUNS_LOG).max(1));
    let begun = Instant::now();
    let betrayed = CampaignBugs { list: RamLogBug::betrayed(policy), ..bugs };
    let caught = betrayed.catch_each(shared, |bug| ram_log::run_planted(bug, policy, first, PLANTED_RUNS_MAX));
    let survived = survived(&caught);
    let mut told = 0;
    let report = ram_log::run_many(first, policy, runs, options.shard, |report| {
        print_new(&report.broken, &mut told);
        if report.runs.is_multiple_of(100) {
            let seconds = begun.elapsed().as_secs_f64();
            progress(format_args!("{} of {runs} runs, {} broken, {seconds:.0} s", report.runs, report.broken_count));
        }
        true
    });
    eprintln!();
    let good = print_log_runs(&report, policy, first) && survived == 0;
    let coverage: Vec<(&str, u64)> =
        ram_log::SCENARIOS.iter().map(|scenario| (*scenario, report.coverage.count(scenario))).collect();
    shared.log(&serde_json::json!({
        "check": NAME, "policy": policy, "seed": shared.seed, "runs": report.runs, "lossy": report.lossy,
        "operations": report.operations, "writes": report.writes, "flushes": report.flushes,
        "failed": report.failed, "faults": report.faults, "clients": report.clients,
        "broken": report.broken_count, "coverage": coverage, "planted": caught, "planted_survived": survived,
        "seconds": begun.elapsed().as_secs(), "passed": good,
    }));
    exit_code(good)
}

fn print_log_runs(report: &ram_log::RamLogReport, policy: RedundancyPolicy, first: u64) -> bool {
    println!(
        "{policy}, seeds from {first}: {} runs, of which {} lost more than the policy survives, {} operations, {} \
         acknowledged writes (wanted {} a run), {} flushes, {} faults (wanted {} a run), {} runs short of that, {} \
         failed operations, {} clients, {} virtual seconds, {} broken, trace {:#x}",
        report.runs,
        report.lossy,
        report.operations,
        report.writes,
        ram_log::WRITES,
        report.flushes,
        report.faults,
        ram_log::FAULTS,
        report.short,
        report.failed,
        report.clients,
        report.time_us / 1_000_000,
        report.broken_count,
        report.trace
    );
    let (missing, wanted) = (report.coverage.missing(report.runs), ram_log::RamLogCoverage::wanted(report.runs));
    for scenario in ram_log::SCENARIOS {
        let short = if missing.contains(scenario) { "  TOO FEW" } else { "" };
        println!("  {scenario:<60} {:>9} (wanted {wanted}){short}", report.coverage.count(scenario));
    }
    report.broken_count == 0 && report.is_enough()
}
