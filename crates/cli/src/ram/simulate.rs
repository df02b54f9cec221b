//! `nectary ram simulate`: transfers of each redundancy policy.
//!
//! Owns: its options, and which runs they request. Leaves to others: running and tables (`nectary-ram`).

use std::path::PathBuf;

use clap::Args;
use nectary_block::parse_size;
use nectary_ram::placement::{Policy, StaleRule};
use nectary_ram::simulate::{BLOCK_BYTES, Settings, Workload, page, run as simulate, table};
use serde_json::json;

use crate::exit::{FAILED, Failure, GOOD, USAGE};
use crate::{output, progress};

/// What stands before everything else in the help.
pub const EXAMPLES: &str = "Examples:
  Every policy under every workload, on 256 MiB over 4 + 1 donors:
    nectary ram simulate
  Random overwrites of a full device, at three sizes of overflow:
    for overflow in 10 25 50; do nectary ram simulate --only uniform --overflow $overflow; done
  The rules for stale streams, when there are more writers than caches:
    nectary ram simulate --policy adaptive --stale lru --caches 8 --only files-16
  Whether adaptive needs at most 1.05 times the transfers of theory:
    nectary ram simulate --policy adaptive --check";

/// `ram simulate`.
#[derive(Debug, Args)]
pub struct RamSimulateArguments {
    /// Donors that hold data, 2 to 16; parity is on one more
    #[arg(long, value_name = "S", default_value_t = 4)]
    donors: u8,
    /// Slots beyond the blocks of the device, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 10)]
    overflow: u32,
    /// Size of the device
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "256M")]
    size: u64,
    /// Policies, separated by commas [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    policy: Vec<Policy>,
    /// Numbers of concurrent writers, separated by commas
    #[arg(long, value_name = "K", value_delimiter = ',', default_value = "1,2,4,8,16")]
    streams: Vec<u8>,
    /// Stream caches of adaptive
    #[arg(long, value_name = "P", default_value_t = 16)]
    caches: usize,
    /// Blocks of a column: a cache holds S times as many
    #[arg(long, value_name = "BLOCKS", default_value_t = 8)]
    column: u32,
    /// Which stream loses its cache to a new one: never, lru, idle, proven
    #[arg(long, value_name = "RULE", default_value_t = StaleRule::default())]
    stale: StaleRule,
    /// Requests have 1 block to so many
    #[arg(long, value_name = "BLOCKS", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    request: u32,
    /// How many times the device is overwritten while transfers are counted
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Only workloads with this in their names: sequential, files-K, files-K-flushed, random, uniform
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Chooses files, requests and blocks
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
    /// Fail with exit code 1 if adaptive misses its target
    #[arg(long)]
    check: bool,
    /// Write the figures into a page in Markdown, too
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl RamSimulateArguments {
    fn settings(&self) -> Result<Settings, Failure> {
        let blocks = u32::try_from(self.size / BLOCK_BYTES).map_err(|_| wrong("--size: it has too many blocks"))?;
        Ok(Settings {
            blocks,
            members: self.donors,
            overflow_percent: self.overflow,
            caches: self.caches,
            column_blocks: self.column,
            stale: self.stale,
            rounds: self.rounds,
            request_blocks: self.request,
            seed: self.seed,
        })
    }

    fn workloads(&self) -> Result<Vec<Workload>, Failure> {
        if self.streams.contains(&0) {
            return Err(wrong("--streams: one writer at least"));
        }
        let streams: Vec<usize> = self.streams.iter().copied().map(usize::from).collect();
        let mut workloads = Workload::all(&streams);
        let names: Vec<String> = workloads.iter().map(Workload::name).collect();
        workloads.retain(|workload| self.only.as_ref().is_none_or(|only| workload.name().contains(only)));
        match (&self.only, workloads.is_empty()) {
            (Some(only), true) => {
                Err(wrong(format!("--only: no workload has \"{only}\" in its name; there are: {}", names.join(", "))))
            }
            _ => Ok(workloads),
        }
    }
}

fn wrong(message: impl Into<String>) -> Failure {
    Failure::new(USAGE, message, "see `nectary ram simulate --help`")
}

/// Runs the command.
pub fn run(arguments: &RamSimulateArguments) -> Result<u8, Failure> {
    let settings = arguments.settings()?;
    let workloads = arguments.workloads()?;
    let policies = match arguments.policy.is_empty() {
        true => Policy::ALL.to_vec(),
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
            Err(Failure::new(
                FAILED,
                message,
                "give more --overflow, or at least as many --caches as there are writers",
            ))
        }
    }
}
