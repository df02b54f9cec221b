//! Lets one server of a volume take over from another one while three mounts are used: `e2e-campaigns volume-takeover
//! --rounds 20 --seed 7`.
//!
//! In each round the leader loses its disk, its processor or its network, for long or for a moment. The exit code is 0
//! only if no program saw anything that it should not: no stale read, no lock held twice, no lost synced write, no call
//! that does not return; and if enough rounds ran, with enough calls and takeovers.

use std::process::ExitCode;
use std::time::Instant;

use clap::Args;
use nectary_e2e::report::seed_or_new;
use nectary_e2e::volume::takeover::campaign::{TakeoverOutcome, TakeoverTotals, round};
use nectary_e2e::volume::takeover::plan::TakeoverPlan;
use nectary_e2e::volume::takeover::site::missing;

use crate::rounds::{MountChoice, NotRunPolicy, ProblemCounter};

/// Lets servers of a volume take over from each other.
#[derive(Args)]
pub struct VolumeTakeoverArguments {
    /// Rounds
    #[arg(long, default_value_t = 20)]
    rounds: u64,
    /// The number of the first round, which decides what goes wrong in it
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// The seed of the first round; the next rounds have the next seeds. A new one is drawn and printed by default
    #[arg(long)]
    seed: Option<u64>,
    /// No mount knows two servers, for binaries that take only one `--server`
    #[arg(long)]
    single: bool,
    /// Print what happened in each round, and not only in those with problems
    #[arg(long)]
    verbose: bool,
    #[command(flatten)]
    mounts: MountChoice,
}

/// Runs the campaign.
pub fn campaign(arguments: &VolumeTakeoverArguments) -> ExitCode {
    arguments.mounts.apply();
    if let Some(reason) = missing() {
        return NotRunPolicy::IsAllowed.exit("volume-takeover", reason);
    }
    let seed = seed_or_new(arguments.seed);
    println!("volume-takeover: seed {seed}, {} rounds from round {}", arguments.rounds, arguments.first);
    let mut totals = TakeoverTotals::default();
    for number in arguments.first..arguments.first + arguments.rounds {
        let plan = TakeoverPlan::draw(number, seed.wrapping_add(number), arguments.single);
        println!("round {number}: {plan:?}");
        let began = Instant::now();
        match round(&plan) {
            Ok(done) => {
                println!("  {done}, {:.1} s", began.elapsed().as_secs_f64());
                show(&done, arguments.verbose);
                totals.add(&plan, &done);
            }
            Err(error) => totals.fail(&plan, format!("{error:#}")),
        }
    }
    let mut problems = ProblemCounter::default();
    problems.extend(totals.problems(arguments.rounds));
    println!("volume-takeover: {totals}, {} problems", problems.count());
    problems.exit()
}

fn show(done: &TakeoverOutcome, is_verbose: bool) {
    for (mount, (gap, change)) in done.gaps.iter().zip(&done.change_gaps).enumerate() {
        println!("  mount {mount}: longest gap {} ms ({})", gap.ns / 1_000_000, gap.cause);
        println!("  mount {mount}: longest gap between changes {} ms ({})", change.ns / 1_000_000, change.cause);
    }
    done.problems.iter().for_each(|problem| println!("  BROKEN: {problem}"));
    // A leader that ended by itself is always shown.
    let is_shown = |what: &str| is_verbose || !done.problems.is_empty() || what.contains("by itself");
    for (at, what) in done.timeline.iter().filter(|(_, what)| is_shown(what)) {
        println!("    {:>9.3} ms {what}", *at as f64 / 1e6);
    }
}
