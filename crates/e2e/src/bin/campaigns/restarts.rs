//! Restarts a proxy under load, with listeners that outlive each process: `e2e-campaigns restarts --restarts 10`.
//!
//! The exit code is 0 only if no request failed.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use nectary_e2e::restart;

use crate::rounds::ProblemCounter;

/// Restarts a proxy under load, and counts failed requests.
#[derive(Args)]
pub struct RestartsArguments {
    /// The number of restarts
    #[arg(long, default_value_t = 10)]
    restarts: u64,
    /// The seed of the load
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Runs the campaign.
pub fn campaign(arguments: &RestartsArguments) -> Result<ExitCode> {
    let counts = restart::run(arguments.restarts, arguments.seed)?;
    println!("restarts: {counts}");
    let mut problems = ProblemCounter::default();
    problems.extend(&counts.failed);
    if counts.restarts < arguments.restarts || counts.good == 0 || counts.long == 0 {
        problems.add("there was too little load");
    }
    Ok(problems.exit())
}
