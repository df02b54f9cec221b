//! Loads a proxy for five minutes with a working set larger than memory and store: `e2e-campaigns bench-pressure
//! --seconds 300 --seed 7`.
//!
//! The exit code is 0 only if VmHWM stayed within `--memory` plus 64 MiB, the hit rate is within one percentage point
//! of a simulation with the requests of the access log, nothing failed, and the planted bugs are caught.

use anyhow::Result;
use clap::Args;
use nectary_e2e::pressure::{self, PressurePlan};
use nectary_e2e::report::{seed_or_new, write_json};
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::rounds::ProblemCounter;

/// Loads a proxy with more than it can hold, and compares it with a simulation.
#[derive(Args)]
pub struct BenchPressureArguments {
    /// How long.
    #[arg(long, default_value_t = 300)]
    seconds: u64,
    /// Chooses the order of requests.
    #[arg(long)]
    seed: Option<u64>,
    /// Memory of the proxy in MiB.
    #[arg(long, default_value_t = 128)]
    memory_mib: u64,
    /// Size of the store in MiB.
    #[arg(long, default_value_t = 512)]
    store_mib: u64,
    /// Size of the working set in MiB.
    #[arg(long, default_value_t = 2048)]
    working_set_mib: u64,
    /// Connections.
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// Write the figures to this file.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Further arguments of the proxy.
    #[arg(last = true)]
    proxy: Vec<String>,
}

/// Runs the campaign.
pub fn campaign(arguments: BenchPressureArguments) -> Result<ExitCode> {
    let seed = seed_or_new(arguments.seed);
    let mut plan = PressurePlan::new(seed, Duration::from_secs(arguments.seconds));
    plan.memory_mib = arguments.memory_mib;
    plan.store_mib = arguments.store_mib;
    plan.working_set_mib = arguments.working_set_mib;
    plan.connections = arguments.connections;
    plan.arguments.extend(arguments.proxy);
    println!("bench-pressure: seed {seed}, {} s", arguments.seconds);
    let outcome = pressure::run(&plan)?;
    println!("{}", pressure::describe(&outcome));
    if let Some(path) = arguments.json {
        let figures = json!({
            "bench": "pressure", "seed": seed, "seconds": arguments.seconds, "requests": outcome.measured.requests,
            "requests_per_second": outcome.measured.requests_per_second, "errors": outcome.measured.errors,
            "resident_bytes_max": outcome.resident_bytes_max, "memory_bytes": outcome.memory_bytes,
            "hit_rate": outcome.hit_rate, "simulated": outcome.simulated, "store": outcome.counts,
        });
        write_json(&path, &figures)?;
    }
    let mut problems = ProblemCounter::default();
    problems.extend(outcome.problems());
    problems.extend(outcome.uncaught().into_iter().map(|what| format!("planted bug survives: {what}")));
    Ok(problems.exit())
}
