//! `volume-names`: names and attributes of a shared volume, with real clients and a real server.
//!
//! The campaign succeeds if each run's calls have an order that explains them, everything happened that must, and each
//! planted bug was caught by a seed that catches it again. `--shard I/K` takes a part of the runs; `--from N` goes on after
//! the first N.

use std::process::ExitCode;
use std::time::Instant;

use nectary_sim::planted::CaughtBug;
use nectary_sim::volume_names::crashes::{self, NamesCrashReport};
use nectary_sim::volume_names::{
    CALLS_MIN, VolumeNamesBug, VolumeNamesReport, replay_planted, run_many, run_planted, story,
};

use crate::shared::{self, CampaignOptions, PROGRAM, exit_code, progress};

const NAME: &str = "volume-names";
/// A planted bug must be caught within this many runs.
const PLANTED_RUNS_MAX: u64 = 4000;
/// How often a seed that caught a bug is tried again: it fixes nearly everything of a run, but not all.
const REPLAYS_MAX: u32 = 10;
/// The number of crash states of each recorded run.
const STATES_PER_RUN: u64 = 60;
/// The number of runs between two lines of progress.
const RUNS_TOLD: u64 = 50;

/// The options of this campaign.
#[derive(Debug, clap::Args)]
pub struct VolumeNamesOptions {
    #[command(flatten)]
    shared: CampaignOptions,
    /// The number of runs
    #[arg(long, default_value_t = 2000)]
    runs: u64,
    /// The number of runs that were made before
    #[arg(long, value_name = "N", default_value_t = 0)]
    from: u64,
    /// Takes every K-th run, from the I-th on, counted from 0
    #[arg(long, value_name = "I/K", default_value = "0/1", value_parser = shared::shard)]
    shard: (u64, u64),
    /// The number of distinct crash images with operations that are answered and not durable; 0: none
    #[arg(long, default_value_t = 5000)]
    images: u64,
    /// Only prints what happens in the run with this seed
    #[arg(long, value_name = "SEED")]
    story: Option<u64>,
}

/// Runs the campaign.
pub fn run(options: &VolumeNamesOptions) -> ExitCode {
    let shared = &options.shared;
    if let Some(seed) = options.story {
        story(seed).iter().for_each(|line| println!("{line}"));
        return ExitCode::SUCCESS;
    }
    let (first, runs) = (shared.first() + options.from, options.runs.max(1));
    if let Some(name) = &shared.bug {
        let Some(bug) = VolumeNamesBug::EVERY.iter().copied().find(|bug| bug.name() == name) else {
            eprintln!("--bug NAME: a name is one of");
            VolumeNamesBug::EVERY.iter().for_each(|bug| eprintln!("  {}", bug.name()));
            return ExitCode::from(2);
        };
        let caught = match shared.replay {
            Some(seed) => replay_planted(bug, seed),
            None => run_planted(bug, first, PLANTED_RUNS_MAX),
        };
        let case = caught
            .as_ref()
            .map_or_else(|| "SURVIVED".to_owned(), |caught| format!("{}: {}", caught.case, caught.broken));
        println!("planted: {name}: {case}");
        return exit_code(caught.is_some());
    }
    if let Some(seed) = shared.replay {
        let report = run_many(seed, 1, (0, 1), |_| {});
        report.broken.iter().for_each(|broken| println!("BROKEN {broken}"));
        return exit_code(report.broken_count == 0);
    }
    let begun = Instant::now();
    let bugs = if shared.is_planting() { VolumeNamesBug::EVERY } else { &[] };
    let caught: Vec<(&str, bool)> = bugs.iter().map(|bug| (bug.name(), is_caught(*bug, first))).collect();
    let mut told = 0;
    let report = run_many(first, runs, options.shard, |report| {
        shared::print_new(&report.broken, &mut told);
        if report.runs.is_multiple_of(RUNS_TOLD) {
            let seconds = begun.elapsed().as_secs_f64();
            progress(format_args!("{} of {runs} runs, {} broken, {seconds:.0} s", report.runs, report.broken_count));
        }
    });
    eprintln!();
    let survived = caught.iter().filter(|(_, is_good)| !is_good).count();
    let states = crashes::run_many(first, options.images, STATES_PER_RUN, |states| {
        let seconds = begun.elapsed().as_secs_f64();
        let (images, broken) = (states.under_way, states.broken_count);
        progress(format_args!("{images} of {} images, {broken} broken, {seconds:.0} s", options.images));
    });
    eprintln!();
    let good = print(&report, first, runs, options.shard) & print_states(&states, options.images) && survived == 0;
    println!("{} of {} planted bugs caught", caught.len() - survived, caught.len());
    shared.log(&serde_json::json!({
        "check": NAME, "seed": shared.seed, "from": options.from, "runs": report.runs, "calls": report.calls,
        "undecided": report.undecided, "broken": report.broken_count, "coverage": report.coverage.counts(),
        "planted": caught, "images": states.images, "images_under_way": states.under_way,
        "images_broken": states.broken_count, "seconds": begun.elapsed().as_secs(), "passed": good,
    }));
    exit_code(good)
}

/// Whether a seed catches the bug and catches it again. A seed fixes nearly everything of a run, but not all, so the
/// messages may differ.
fn is_caught(bug: VolumeNamesBug, first: u64) -> bool {
    let name = bug.name();
    let Some(CaughtBug { case, broken, .. }) = run_planted(bug, first, PLANTED_RUNS_MAX) else {
        println!("planted: {name}: SURVIVED");
        return false;
    };
    let is_again = (0..REPLAYS_MAX).any(|_| replay_planted(bug, case.seed).is_some());
    let how = if is_again { "caught again" } else { "NOT CAUGHT AGAIN" };
    println!(
        "planted: {name}: caught with {case}, {how}: {broken}\n  {PROGRAM} {NAME} --bug '{name}' --replay {}",
        case.seed
    );
    is_again
}

fn print_states(states: &NamesCrashReport, images: u64) -> bool {
    states.broken.iter().for_each(|broken| println!("BROKEN {broken}"));
    println!(
        "{} distinct crash images of {} runs, each written to afterwards; {} (wanted {images}) while operations were \
         answered and not durable, {} of them on average; {} undecided, {} broken",
        states.images,
        states.runs,
        states.under_way,
        states.operations / states.under_way.max(1),
        states.undecided,
        states.broken_count
    );
    states.broken_count == 0 && states.under_way >= images && states.undecided * 1000 <= states.images
}

fn print(report: &VolumeNamesReport, first: u64, runs: u64, shard: (u64, u64)) -> bool {
    println!(
        "seeds from {first}, {} of {} in shard {}/{}: {} calls (wanted {CALLS_MIN} a run), {} histories too large to \
         decide, {} broken",
        report.runs, runs, shard.0, shard.1, report.calls, report.undecided, report.broken_count
    );
    let missing = report.missing();
    for (name, count) in report.coverage.counts() {
        println!("  {name:<60} {count:>9}{}", if missing.contains(&name) { "  NEVER" } else { "" });
    }
    missing.iter().for_each(|missing| println!("MISSING {missing}"));
    report.broken_count == 0 && missing.is_empty()
}
