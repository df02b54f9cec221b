//! Disturbs a fleet of three proxies and its etcd under load with purges: `e2e-campaigns fleet --rounds 50 --seed 7`. With
//! `--members` the nodes are fixed members without etcd.
//!
//! Prints one line per round, the counts and the longest gap. The exit code is 0 only if no response to a request after an
//! applied purge showed what it purged (but from a node that said that it was cut off, within `serve-when-cut`), no bytes
//! were wrong, and every node that could answer did. It is 77 if this machine has no etcd.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use nectary_e2e::fleet::{FleetCounts, FleetRoundPlan, FleetTrouble, missing, round};
use nectary_e2e::report::seed_or_new;

use crate::rounds::{NotRunPolicy, ProblemCounter, first_line, shard};

/// Disturbs a fleet of proxies and its etcd under load.
#[derive(Args)]
pub struct FleetArguments {
    /// Rounds.
    #[arg(long, default_value_t = 3)]
    rounds: u64,
    /// How often the fleet is disturbed in a round.
    #[arg(long, default_value_t = 7)]
    troubles: u64,
    /// The seed of the first round; a new one is drawn and printed by default.
    #[arg(long)]
    seed: Option<u64>,
    /// Only every N-th round, as K/N, counted from 0.
    #[arg(long, default_value = "0/1")]
    shard: String,
    /// Fixed members, without etcd.
    #[arg(long)]
    members: bool,
    /// Believes in purges that were never made, which the campaign must find.
    #[arg(long)]
    plant: bool,
}

/// Runs the campaign.
pub fn campaign(arguments: &FleetArguments) -> Result<ExitCode> {
    if let Some(reason) = missing().filter(|_| !arguments.members) {
        return Ok(NotRunPolicy::IsAllowed.exit("fleet", reason));
    }
    let seed = seed_or_new(arguments.seed);
    let (at, of) = shard(&arguments.shard)?;
    let (mut all, mut problems, mut ran) = (FleetCounts::default(), ProblemCounter::default(), 0);
    let mut kinds = FleetTrouble::KINDS.len();
    for number in (0..arguments.rounds).filter(|number| number % of == at) {
        let round_seed = seed.wrapping_add(number);
        let serve_when_cut = Duration::from_secs(if number % 2 == 0 { 0 } else { 3 });
        // Two of three rounds share keys.
        let (is_fixed, is_planted) = (arguments.members, arguments.plant);
        let shares = number % 3 != 1 && !is_fixed;
        let extent = FleetRoundPlan { troubles: arguments.troubles, serve_when_cut, shares, is_fixed, is_planted };
        kinds = extent.kinds();
        ran += 1;
        match round(round_seed, &extent) {
            Ok(mut counts) => {
                println!(
                    "round {number}, seed {round_seed}, serve-when-cut {serve_when_cut:?}, shares {shares}: {counts}"
                );
                problems.extend(std::mem::take(&mut counts.problems));
                all.add(counts);
            }
            Err(error) => problems.add(format!("round {number}, seed {round_seed}: {}", first_line(&error))),
        }
    }
    if arguments.troubles >= kinds as u64 && !arguments.plant {
        let absent = FleetTrouble::KINDS[..kinds].iter().zip(all.troubles).filter(|(_, count)| *count == 0);
        problems.extend(absent.map(|(kind, _)| format!("the trouble {kind} was never made")));
    }
    println!("fleet: {ran} rounds from seed {seed}: {all}; {} problems in all", problems.count());
    Ok(problems.exit())
}
