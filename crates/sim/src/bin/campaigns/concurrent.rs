//! What campaigns with many concurrent clients share: planted bugs first, then histories from a seed on, then crash
//! states.
//!
//! Owns: the order of these parts, the progress on the terminal, and the line of the log. Leaves to others: what a run
//! does, and how much is enough ([`ConcurrentCampaign`]).

use std::process::ExitCode;
use std::time::Instant;

use nectary_sim::planted::{BugCase, CaughtBug};
use serde_json::{Value, json};

use crate::shared::{self, CampaignBugs, CampaignOptions, exit_code};

/// A planted bug must be caught within this many runs.
const PLANTED_RUNS_MAX: u64 = 20_000;
/// The number of crash states that are checked of each recorded run.
const STATES_PER_WORKLOAD: usize = 60;
/// The number of runs between two lines of progress.
const RUNS_TOLD: u64 = 500;

/// The results that every campaign has.
pub trait CampaignResult {
    /// Returns how much was done: the number of runs or of distinct images.
    fn done(&self) -> u64;
    /// Returns the number of violations, and descriptions of the first ones.
    fn broken(&self) -> (u64, &[String]);
}

/// The parts that differ between these campaigns.
pub trait ConcurrentCampaign {
    /// The name of the campaign.
    const NAME: &'static str;
    /// The default number of runs.
    const RUNS: u64;
    /// The bugs that can be planted.
    const BUGS: &'static [Self::Bug];
    /// A bug that can be planted.
    type Bug: Copy + 'static;
    /// The results of histories.
    type Report: CampaignResult;
    /// The results of crash states.
    type States: CampaignResult;

    /// Returns the printed name of a bug.
    fn bug_name(bug: Self::Bug) -> &'static str;
    /// Runs one seed with one bug planted.
    fn replay_planted(bug: Self::Bug, seed: u64) -> Option<CaughtBug>;
    /// Runs seeds from `first` on.
    fn run_many(first: u64, runs: u64, progress: &mut dyn FnMut(&Self::Report) -> bool) -> Self::Report;
    /// Checks crash states of workloads with the seeds from `first` on, until `images` distinct images were checked.
    fn run_states(
        first: u64,
        images: u64,
        states_per_workload: usize,
        progress: &mut dyn FnMut(&Self::States) -> bool,
    ) -> Self::States;
    /// Prints the results of histories; returns whether enough was done.
    fn print_runs(report: &Self::Report, first: u64) -> bool;
    /// Prints the results of crash states; returns whether enough was done; `images` is the number of requested images.
    fn print_states(states: &Self::States, images: u64) -> bool;
    /// Returns further figures of the histories for the log.
    fn figures(report: &Self::Report) -> Value;
}

/// The options of these campaigns.
#[derive(Debug, clap::Args)]
pub struct ConcurrentOptions {
    #[command(flatten)]
    shared: CampaignOptions,
    /// The number of runs [default: that of the campaign]
    #[arg(long)]
    runs: Option<u64>,
    /// The number of distinct images of crash states
    #[arg(long, default_value_t = 10_000)]
    images: u64,
}

/// Runs a campaign.
pub fn run<C: ConcurrentCampaign>(options: &ConcurrentOptions) -> ExitCode {
    let ConcurrentOptions { shared, images, .. } = options;
    let (images, runs) = (*images, options.runs.unwrap_or(C::RUNS).max(1));
    let replay = |bug: C::Bug, case: BugCase| C::replay_planted(bug, case.seed);
    let bugs = CampaignBugs { campaign: C::NAME, list: C::BUGS.to_vec(), name: C::bug_name, replay: &replay };
    if let Some(code) = bugs.repeat(shared, None) {
        return code;
    }
    let begun = Instant::now();
    let first = shared.first();
    let seeds = first..first + PLANTED_RUNS_MAX;
    let caught = bugs.catch_each(shared, |bug| seeds.clone().find_map(|seed| C::replay_planted(bug, seed)));
    let survived = shared::survived(&caught);
    let mut progress = CampaignProgress { begun, told: 0 };
    let report = C::run_many(first, runs, &mut |report| progress.of(report, runs, "runs", RUNS_TOLD));
    progress.told = 0;
    let states =
        C::run_states(first, images, STATES_PER_WORKLOAD, &mut |states| progress.of(states, images, "images", 1));
    // Report the last workload, because `run_states` reports only before each workload.
    progress.of(&states, images, "images", 1);
    eprintln!();
    let is_whole = report.done() == runs && states.done() >= images;
    let is_broken = report.broken().0 > 0 || states.broken().0 > 0;
    let is_enough = C::print_runs(&report, first) & C::print_states(&states, images);
    let good = is_whole && !is_broken && is_enough && survived == 0;
    let mut line = C::figures(&report);
    let own = json!({
        "check": C::NAME, "seed": shared.seed, "runs": report.done(), "broken": report.broken().0,
        "images": states.done(), "images_broken": states.broken().0, "planted": caught,
        "planted_survived": survived, "seconds": begun.elapsed().as_secs(), "passed": good,
    });
    if let (Value::Object(line), Value::Object(own)) = (&mut line, own) {
        line.extend(own);
    }
    shared.log(&line);
    exit_code(good)
}

/// What has been printed so far.
struct CampaignProgress {
    begun: Instant,
    /// How many violations have been printed.
    told: usize,
}

impl CampaignProgress {
    /// Prints new violations at once, and the progress from time to time.
    fn of(&mut self, account: &impl CampaignResult, wanted: u64, what: &str, every: u64) -> bool {
        let (broken_count, broken) = account.broken();
        shared::print_new(broken, &mut self.told);
        let done = account.done();
        if done.is_multiple_of(every) {
            let seconds = self.begun.elapsed().as_secs_f64();
            shared::progress(format_args!("{done} of {wanted} {what}, {broken_count} broken, {seconds:.0} s"));
        }
        true
    }
}
