//! `volume-journal`: opens a volume after a crash at any moment, and lets servers contend for one.
//!
//! The campaign succeeds if no promise was broken, every expected event occurred, and each planted bug was caught by a
//! case that catches it again.

use std::process::ExitCode;
use std::time::Instant;

use nectary_sim::volume_journal::run::{self, BUGS, JournalRunPlan, VolumeJournalReport, replay_planted, run_planted};
use nectary_volume::planted::Bug;

use crate::shared::{CampaignBugs, CampaignOptions, exit_code, print_new, progress, survived};

const NAME: &str = "volume-journal";
/// A planted bug must be caught within this many runs.
const PLANTED_RUNS_MAX: u64 = 200;

/// The options of this campaign.
#[derive(Debug, clap::Args)]
pub struct VolumeJournalOptions {
    #[command(flatten)]
    shared: CampaignOptions,
    /// The number of runs
    #[arg(long, default_value_t = 100)]
    runs: u64,
    /// The number of crash states of each run
    #[arg(long, default_value_t = 60)]
    states: u64,
    /// The number of contentions of each run
    #[arg(long, default_value_t = 10)]
    contentions: u64,
    /// With --replay: checks only this crash state, counted from 0
    #[arg(long, value_name = "N")]
    state: Option<u64>,
}

/// Runs the campaign.
pub fn run(options: &VolumeJournalOptions) -> ExitCode {
    let shared = &options.shared;
    let bugs = CampaignBugs { campaign: NAME, list: BUGS.to_vec(), name: Bug::name, replay: &replay_planted };
    if let Some(code) = bugs.repeat(shared, options.state) {
        return code;
    }
    let amount = JournalRunPlan {
        seed: shared.first(),
        runs: options.runs.max(1),
        states_per_run: options.states,
        contentions: options.contentions,
    };
    let begun = Instant::now();
    let planted = JournalRunPlan { runs: PLANTED_RUNS_MAX, ..amount };
    let caught = bugs.catch_each(shared, |bug| run_planted(bug, planted));
    let mut told = 0;
    let report = run::run(amount, |report| {
        print_new(&report.violations, &mut told);
        let seconds = begun.elapsed().as_secs_f64();
        let (runs, count) = (report.workloads, report.violation_count);
        progress(format_args!(
            "{runs} of {} runs, {} images, {count} broken, {seconds:.0} s",
            amount.runs, report.distinct
        ));
    });
    eprintln!();
    print(&report, shared.seed);
    let good = report.violation_count == 0 && report.has_all() && survived(&caught) == 0;
    shared.log(&serde_json::json!({
        "check": NAME, "seed": shared.seed, "runs": report.workloads, "states": report.states,
        "distinct": report.distinct, "started": report.started, "unacknowledged": report.unacknowledged,
        "epochs": report.epochs, "checkpoints": report.checkpoints, "large": report.large, "late": report.late,
        "contentions": report.contentions, "led": report.contention.led, "lost": report.contention.lost,
        "violations": report.violation_count, "planted": caught, "seconds": begun.elapsed().as_secs(), "passed": good,
    }));
    exit_code(good)
}

fn print(report: &VolumeJournalReport, seed: u64) {
    let contention = &report.contention;
    println!(
        "seed {seed}: {} workloads with {} epochs, {} checkpoints, {} large appends, {} late appends of old leaders; {} \
         crash states, {} distinct images, {} started, {} with unacknowledged transactions; {} contentions with {} \
         leaders, {} refused, {} replaced, {} appends acknowledged; {} broken promises",
        report.workloads,
        report.epochs,
        report.checkpoints,
        report.large,
        report.late,
        report.states,
        report.distinct,
        report.started,
        report.unacknowledged,
        report.contentions,
        contention.led,
        contention.refused,
        contention.lost,
        contention.acknowledged,
        report.violation_count
    );
}
