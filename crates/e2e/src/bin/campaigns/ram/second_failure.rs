//! Kills the processes of donors while other donors are moved, leave, are replaced by spares, and while a device grows:
//! `e2e-campaigns ram-second-failure --rounds 1 --seed 7 --shard 0/1`.
//!
//! A round runs every case. Prints one line per case. Exit code 0 only if every case of the shard ran, the device
//! answered, nothing that was acknowledged was lost, and in each case at least one kill was at the wanted moment.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use clap::Args;
use nectary_e2e::mirror::second_failure::SecondFailureCase;
use nectary_e2e::ram::cannot;
use nectary_e2e::report::seed_or_new;

use crate::rounds::{NotRunPolicy, ProblemCounter, shard};

/// How often a case is repeated until the kill is at the wanted moment.
const TRIES_MAX: u64 = 8;

/// Kills donors while others are moved.
#[derive(Args)]
pub struct SecondFailureArguments {
    /// Rounds of all cases.
    #[arg(long, default_value_t = 1)]
    rounds: u64,
    /// Only cases whose description contains this.
    #[arg(long, default_value = "")]
    only: String,
    /// The seed of the first round; a new one is drawn and printed by default.
    #[arg(long)]
    seed: Option<u64>,
    /// Only every N-th case, as K/N, counted from 0.
    #[arg(long, default_value = "0/1")]
    shard: String,
}

/// Runs the campaign.
pub fn campaign(arguments: &SecondFailureArguments) -> Result<ExitCode> {
    let seed = seed_or_new(arguments.seed);
    let (at, of) = shard(&arguments.shard)?;
    println!("ram-second-failure: seed {seed}");
    if cannot("ram-second-failure") {
        return Ok(NotRunPolicy::IsAllowed.code());
    }
    let cases = SecondFailureCase::all().into_iter().filter(|case| case.to_string().contains(&arguments.only));
    let cases: Vec<SecondFailureCase> =
        (0..).zip(cases).filter(|(number, _)| number % of == at).map(|(_, case)| case).collect();
    let (mut problems, mut runs, mut survived, mut on_time, mut operations) =
        (ProblemCounter::default(), 0u64, 0u64, 0u64, 0);
    for (round, case) in (0..arguments.rounds).flat_map(|round| cases.iter().map(move |case| (round, case))) {
        for attempt in 0..TRIES_MAX {
            let (began, seed) = (Instant::now(), seed.wrapping_add(round * TRIES_MAX + attempt));
            runs += 1;
            match case.run(seed) {
                Ok(found) => {
                    let (took, gap) = (began.elapsed().as_secs_f64(), found.account.gap);
                    let when = if found.is_on_time { "on time" } else { "too late" };
                    println!("ok {case}: {when}, longest gap {gap:?}, {took:.1} s, seed {seed}");
                    survived += 1;
                    operations += found.account.operations;
                    on_time += u64::from(found.is_on_time);
                    if found.is_on_time {
                        break;
                    }
                }
                Err(error) => {
                    problems.add(format!("{error:#}"));
                    break;
                }
            }
            if attempt + 1 == TRIES_MAX {
                problems.add(format!("{case}: no kill was at the wanted moment"));
            }
        }
    }
    let (wanted, failed) = (arguments.rounds * cases.len() as u64, problems.count());
    println!(
        "ram-second-failure: {on_time} of {wanted} cases with the kill on time, {survived} of {runs} runs lost \
         nothing, {operations} operations, {failed} problems"
    );
    if on_time == 0 {
        return Ok(ExitCode::FAILURE);
    }
    Ok(problems.exit())
}
