//! `volume-crash-states`: checks a shared volume with real clients and a real server after a crash at any moment.
//!
//! The campaign succeeds if no promise was broken, every expected event occurred, there were enough distinct states,
//! and each planted bug was caught by a seed that catches it again. `--replay SEED` without a bug checks only that
//! workload.

use std::process::ExitCode;
use std::time::Instant;

use nectary_sim::volume_clients::run::{
    self, BUGS, BugDetection, ClientRunPlan, VolumeClientsReport, replay_planted, run_planted,
};
use nectary_volume::planted::Bug;

use crate::shared::{CampaignOptions, PROGRAM, exit_code, print_new, progress};

const NAME: &str = "volume-crash-states";
/// A planted bug must be caught within this many runs.
const PLANTED_RUNS_MAX: u64 = 50;

/// The options of this campaign.
#[derive(Debug, clap::Args)]
pub struct VolumeCrashOptions {
    #[command(flatten)]
    shared: CampaignOptions,
    /// The number of runs
    #[arg(long, default_value_t = 60)]
    runs: u64,
    /// The number of crash states of each run
    #[arg(long, default_value_t = 60)]
    states: u64,
    /// The minimum number of distinct images
    #[arg(long, value_name = "N", default_value_t = 2000)]
    least: u64,
}

/// Runs the campaign.
pub fn run(options: &VolumeCrashOptions) -> ExitCode {
    let VolumeCrashOptions { shared, least, .. } = options;
    let least = *least;
    let amount = ClientRunPlan { seed: shared.first(), runs: options.runs.max(1), states_per_run: options.states };
    let replayed = shared.replay.unwrap_or(amount.seed);
    if let Some(name) = &shared.bug {
        let Some(bug) = BUGS.into_iter().find(|bug| bug.name() == name) else {
            eprintln!("--bug NAME: a name is one of");
            BUGS.iter().for_each(|bug| eprintln!("  {}", bug.name()));
            return ExitCode::from(2);
        };
        let found = replay_planted(bug, replayed, amount.states_per_run);
        println!("planted: {name}: {}", found.as_ref().map_or("SURVIVED", |found| &found.first));
        return exit_code(found.is_some());
    }
    if shared.replay.is_some() {
        let report = run::run(ClientRunPlan { seed: replayed, runs: 1, ..amount }, |_| {});
        print_new(&report.violations, &mut 0);
        print(&report, shared.seed, 1);
        return exit_code(report.violation_count == 0);
    }
    let begun = Instant::now();
    let bugs = if shared.is_planting() { &BUGS[..] } else { &[] };
    let caught: Vec<(&str, bool)> = bugs.iter().map(|bug| (bug.name(), is_caught(*bug, amount))).collect();
    let mut told = 0;
    let report = run::run(amount, |report| {
        print_new(&report.violations, &mut told);
        let seconds = begun.elapsed().as_secs_f64();
        let (runs, count) = (report.workloads, report.violation_count);
        progress(format_args!(
            "{runs} of {} runs, {} states, {count} broken, {seconds:.0} s",
            amount.runs, report.distinct
        ));
    });
    eprintln!();
    print(&report, shared.seed, least);
    let survived = caught.iter().filter(|(_, is_good)| !is_good).count();
    let good = report.violation_count == 0 && report.has_all() && survived == 0 && report.distinct >= least;
    shared.log(&serde_json::json!({
        "check": NAME, "seed": shared.seed, "runs": report.workloads, "states": report.states,
        "distinct": report.distinct, "events": report.events, "files": report.files, "names": report.names,
        "lost_hosts": report.losses.hosts, "lost_servers": report.losses.servers, "lost_both": report.losses.both,
        "violations": report.violation_count, "planted": caught, "seconds": begun.elapsed().as_secs(), "passed": good,
    }));
    exit_code(good)
}

/// Whether a seed catches the bug and catches it again. A seed fixes nearly everything of a run, but not all, so the
/// messages may differ.
fn is_caught(bug: Bug, amount: ClientRunPlan) -> bool {
    let name = bug.name();
    let Some(BugDetection { seed, first }) = run_planted(bug, ClientRunPlan { runs: PLANTED_RUNS_MAX, ..amount })
    else {
        println!("planted: {name}: SURVIVED");
        return false;
    };
    let again = replay_planted(bug, seed, amount.states_per_run);
    let states = amount.states_per_run;
    let how = if again.is_some() { "caught again" } else { "NOT CAUGHT AGAIN" };
    println!(
        "planted: {name}: caught with seed {seed}, {how}: {first}\n  \
         {PROGRAM} {NAME} --bug '{name}' --replay {seed} --states {states}"
    );
    again.is_some()
}

fn print(report: &VolumeClientsReport, seed: u64, least: u64) {
    let losses = &report.losses;
    println!(
        "seed {seed}: {} workloads with {} events; {} hosts lost, {} servers, {} of both at once, with {} calls and {} \
         files that were not certain, {} of them during a call of another host; {} crash states, {} distinct images \
         (wanted {least}), {} of a complete volume, {} used afterwards; {} names and {} files compared, {} with more \
         than was promised, {} with blocks of several states; {} calls without an answer done, {} not; {} broken \
         promises",
        report.workloads,
        report.events,
        losses.hosts,
        losses.servers,
        losses.both,
        losses.calls,
        losses.files,
        losses.awaited,
        report.states,
        report.distinct,
        report.ready,
        report.used,
        report.names,
        report.files,
        report.newer,
        report.mixed,
        report.done,
        report.undone,
        report.violation_count
    );
}
