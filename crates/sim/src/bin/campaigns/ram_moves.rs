//! `ram-moves`: replace, drain, sparing, growth and take-over of a network RAM disk, with a fault at any step.
//!
//! The campaign succeeds if no run lost the device or data, each scenario was met often enough, and each planted bug was
//! caught by a seed that catches it again.

use std::process::ExitCode;
use std::time::Instant;

use nectary_ram::placement::RedundancyPolicy;
use nectary_ram::planted::MirrorBug;
use nectary_sim::planted::BugCase;
use nectary_sim::ram_moves::{RamMovesReport, replay_planted, run_many, run_planted, story};

use crate::ram_simulation::print_scenarios;
use crate::shared::{self, CampaignBugs, CampaignOptions, exit_code, print_new, progress, survived};

const NAME: &str = "ram-moves";
/// A planted bug must be caught within this many runs.
const PLANTED_RUNS_MAX: u64 = 20_000;
/// The default number of runs of a policy.
const RUNS: u64 = 1000;

/// The options of this campaign.
#[derive(Debug, clap::Args)]
pub struct RamMovesOptions {
    #[command(flatten)]
    shared: CampaignOptions,
    /// mirror, parity, parity-log, parity-cache or adaptive
    #[arg(long, default_value = "mirror", value_parser = policy)]
    policy: RedundancyPolicy,
    /// The number of runs
    #[arg(long, default_value_t = RUNS)]
    runs: u64,
    /// Takes every K-th run, from the I-th on, counted from 0
    #[arg(long, value_name = "I/K", default_value = "0/1", value_parser = shared::shard)]
    shard: (u64, u64),
    /// Only prints what happens in the run with this seed
    #[arg(long, value_name = "SEED")]
    story: Option<u64>,
}

/// Reads a policy that protects blocks.
fn policy(text: &str) -> Result<RedundancyPolicy, String> {
    let policy = text.parse::<RedundancyPolicy>()?;
    if policy == RedundancyPolicy::None {
        return Err("this policy protects nothing".to_owned());
    }
    Ok(policy)
}

/// Runs the campaign.
pub fn run(options: &RamMovesOptions) -> ExitCode {
    let (shared, policy) = (&options.shared, options.policy);
    if let Some(seed) = options.story {
        story(seed, policy).iter().for_each(|line| println!("{line}"));
        return ExitCode::SUCCESS;
    }
    let campaign = format!("{NAME} --policy {policy}");
    let replay = |bug: MirrorBug, case: BugCase| replay_planted(bug, policy, case.seed);
    let bugs =
        CampaignBugs { campaign: &campaign, list: MirrorBug::MOVES.to_vec(), name: MirrorBug::name, replay: &replay };
    if let Some(code) = bugs.repeat(shared, None) {
        return code;
    }
    let (first, begun) = (shared.first(), Instant::now());
    let caught = bugs.catch_each(shared, |bug| run_planted(bug, policy, first, PLANTED_RUNS_MAX));
    let survived = survived(&caught);
    let mut told = 0;
    let report = run_many(first, policy, options.runs.max(1), options.shard, |report| {
        print_new(&report.broken, &mut told);
        if report.runs.is_multiple_of(500) {
            let seconds = begun.elapsed().as_secs_f64();
            progress(format_args!("{} of {} runs, {} lost, {seconds:.0} s", report.runs, options.runs, report.lost));
        }
        true
    });
    eprintln!();
    let good = print_runs(&report, policy, first) && survived == 0;
    let coverage: Vec<(&str, u64)> = report.coverage.iter().flat_map(|coverage| coverage.counts()).collect();
    shared.log(&serde_json::json!({
        "check": NAME, "policy": policy, "seed": shared.seed, "runs": report.runs, "lost": report.lost,
        "operations": report.operations, "failed": report.failed, "clients": report.clients, "coverage": coverage,
        "planted": caught, "planted_survived": survived, "seconds": begun.elapsed().as_secs(), "passed": good,
    }));
    exit_code(good)
}

fn print_runs(report: &RamMovesReport, policy: RedundancyPolicy, first: u64) -> bool {
    println!(
        "{policy}, seeds from {first}: {} runs with one donor down at a time, {} lost, {} operations, {} failed while a \
         fault lasted, {} clients, {} virtual seconds, trace {:#x}",
        report.runs,
        report.lost,
        report.operations,
        report.failed,
        report.clients,
        report.time_us / 1_000_000,
        report.trace
    );
    print_scenarios(report.coverage.as_ref(), report.runs);
    report.lost == 0 && report.is_enough()
}
