//! `nectary ram simulate`: the transfers of each redundancy policy.
//!
//! Owns: the choice of runs from its options. Leaves to others: the runs and tables (`nectary-ram`).

use nectary_ram::placement::RedundancyPolicy;
use nectary_ram::simulate::{BLOCK_BYTES, PlacementWorkload, SimulationSettings, page, run as simulate, table};
use serde_json::json;

use crate::arguments::RamSimulateArguments;
use crate::exit::{CommandFailure, FAILED, GOOD, USAGE};
use crate::{output, progress};

fn settings(arguments: &RamSimulateArguments) -> Result<SimulationSettings, CommandFailure> {
    let blocks = u32::try_from(arguments.size / BLOCK_BYTES).map_err(|_| wrong("--size: it has too many blocks"))?;
    Ok(SimulationSettings {
        blocks,
        members: arguments.donors,
        overflow_percent: arguments.overflow,
        caches: arguments.caches,
        column_blocks: arguments.column,
        stale: arguments.stale,
        rounds: arguments.rounds,
        request_blocks: arguments.request,
        seed: arguments.seed,
    })
}

fn workloads(arguments: &RamSimulateArguments) -> Result<Vec<PlacementWorkload>, CommandFailure> {
    if arguments.streams.contains(&0) {
        return Err(wrong("--streams: one writer at least"));
    }
    let streams: Vec<usize> = arguments.streams.iter().copied().map(usize::from).collect();
    let mut workloads = PlacementWorkload::all(&streams);
    let names: Vec<String> = workloads.iter().map(PlacementWorkload::name).collect();
    workloads.retain(|workload| arguments.only.as_ref().is_none_or(|only| workload.name().contains(only)));
    match (&arguments.only, workloads.is_empty()) {
        (Some(only), true) => {
            Err(wrong(format!("--only: no workload has \"{only}\" in its name; there are: {}", names.join(", "))))
        }
        _ => Ok(workloads),
    }
}

fn wrong(message: impl Into<String>) -> CommandFailure {
    CommandFailure::new(USAGE, message, "see `nectary ram simulate --help`")
}

/// Runs the command.
pub fn run(arguments: &RamSimulateArguments) -> Result<u8, CommandFailure> {
    let settings = settings(arguments)?;
    let workloads = workloads(arguments)?;
    let policies = match arguments.policy.is_empty() {
        true => RedundancyPolicy::ALL.to_vec(),
        false => arguments.policy.clone(),
    };
    let bar = progress::runs((workloads.len() * policies.len()) as u64);
    let mut rows = Vec::new();
    for workload in &workloads {
        for policy in &policies {
            rows.push(simulate(&settings, *policy, workload).map_err(|error| wrong(error.to_string()))?);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    match arguments.json {
        true => output::json(&json!({ "settings": settings, "rows": rows }))?,
        false => output::text(&table(&rows))?,
    }
    if let Some(path) = &arguments.write {
        let command: Vec<String> = std::env::args().skip(1).collect();
        let text = page(&rows, &settings, &format!("nectary {}", command.join(" ")));
        std::fs::write(path, text).map_err(|error| anyhow::anyhow!("{}: {error}", path.display()))?;
    }
    if !arguments.check {
        return Ok(GOOD);
    }
    if rows.iter().all(|row| row.target.is_none()) {
        return Err(wrong("--check: none of these runs has a target; adaptive has one for sequential and files"));
    }
    let missed: Vec<String> = rows.iter().filter(|row| row.is_missed()).map(|row| row.workload.clone()).collect();
    match missed.is_empty() {
        true => Ok(GOOD),
        false => {
            let message = format!("adaptive needs more transfers than its target: {}", missed.join(", "));
            Err(CommandFailure::new(
                FAILED,
                message,
                "give more --overflow, or at least as many --caches as there are writers",
            ))
        }
    }
}
