//! Runs a proxy whose origin has several addresses that fail: `e2e-campaigns proxy-origins --rounds 200 --seed 7`; with
//! `--servers` the origin has three servers with weights.
//!
//! Prints one line per round, and the counts. The exit code is 0 only if every request that another address could answer
//! was answered in time, no POST arrived twice, no half answer was stored, and servers got their shares; and, in 20 rounds or more, if every fault
//! was there. It is 77 if this machine has no mount namespaces.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use nectary_e2e::failover::{AddressFault, FailoverCounts, FailoverRoundPlan, OriginRedundancy, missing, round};
use nectary_e2e::report::seed_or_new;

use crate::rounds::{NotRunPolicy, ProblemCounter, first_line, shard};

/// Every fault must be there in this number of rounds.
const ALL_FAULTS_ROUNDS: u64 = 20;

/// The time between two changes of the faults. It is longer than an answer may take, so that one address is well from
/// each request's begin to its end.
const PHASE: Duration = Duration::from_millis(3200);

/// Breaks the addresses of a proxy's origin under load.
#[derive(Args)]
pub struct ProxyOriginsArguments {
    /// Rounds.
    #[arg(long, default_value_t = 200)]
    rounds: u64,
    /// How often the faults change in a round.
    #[arg(long, default_value_t = 3)]
    phases: u64,
    /// The seed of the first round; a new one is drawn and printed by default.
    #[arg(long)]
    seed: Option<u64>,
    /// Only every N-th round, as K/N, counted from 0.
    #[arg(long, default_value = "0/1")]
    shard: String,
    /// The origin has three servers instead of one with several addresses.
    #[arg(long)]
    servers: bool,
    /// Leaves no address well, which the campaign must find.
    #[arg(long)]
    plant: bool,
}

/// Runs the campaign.
pub fn campaign(arguments: &ProxyOriginsArguments) -> Result<ExitCode> {
    if let Some(reason) = missing().filter(|_| !arguments.servers) {
        return Ok(NotRunPolicy::IsAllowed.exit("proxy-origins", reason));
    }
    let seed = seed_or_new(arguments.seed);
    let (at, of) = shard(&arguments.shard)?;
    let several = if arguments.servers { OriginRedundancy::Servers } else { OriginRedundancy::Addresses };
    let extent = FailoverRoundPlan { phases: arguments.phases, phase: PHASE, is_planted: arguments.plant, several };
    let (mut all, mut problems, mut ran) = (FailoverCounts::default(), ProblemCounter::default(), 0);
    for number in (0..arguments.rounds).filter(|number| number % of == at) {
        let round_seed = seed.wrapping_add(number);
        ran += 1;
        match round(round_seed, &extent) {
            Ok(mut counts) => {
                println!("round {number}, seed {round_seed}: {counts}");
                problems.extend(std::mem::take(&mut counts.problems));
                all.add(counts);
            }
            Err(error) => problems.add(format!("round {number}, seed {round_seed}: {}", first_line(&error))),
        }
    }
    if ran >= ALL_FAULTS_ROUNDS && !arguments.plant {
        let absent = AddressFault::ALL.into_iter().filter(|fault| !all.faults.contains_key(fault));
        problems.extend(absent.map(|fault| format!("no address had the fault {fault:?}")));
    }
    println!("proxy-origins: {ran} rounds from seed {seed}: {all}; {} problems in all", problems.count());
    Ok(problems.exit())
}
