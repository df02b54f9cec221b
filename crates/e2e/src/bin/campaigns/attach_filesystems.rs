//! Tests file systems on attached devices for a given time: `e2e-campaigns attach-filesystems --fs ext4,xfs,btrfs
//! --seconds 600 --seed 7`.
//!
//! Each round uses the next file system and the next device, with its own seed, and kills the attaching process several
//! times under memory pressure. Prints one line per round. The exit code is 0 only if at least one round ran, every
//! planted loss was found, and there was no error.

use anyhow::{Context, Result};
use clap::Args;
use nectary_e2e::attach::{self, TestFileSystem, missing};
use nectary_e2e::report::seed_or_new;
use nectary_e2e::rng::SeededRng;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The devices, used in turn; each stores its contents in a file, so that they survive its process.
const DEVICES: [&str; 6] = [
    "{file}",
    "cache({file},memory=16M,mode=writeback)",
    "cache({file},memory=8M,policy=dear)",
    "model({file},disk=ssd-sata)",
    "model({file},disk=hdd-7200,speed=20)",
    "delay(stats({file}),write=1ms,flush=2ms)",
];

/// The number of files that are synced before the first kill of a round.
const FILES: u64 = 40;

/// Makes, fills, verifies, kills and checks file systems on attached devices.
#[derive(Args)]
pub struct AttachFilesystemsArguments {
    /// Which file systems, joined by commas.
    #[arg(long, default_value = "ext4,xfs,btrfs", value_delimiter = ',')]
    fs: Vec<String>,
    /// For how long; the last round is finished.
    #[arg(long, default_value_t = 300)]
    seconds: u64,
    /// The seed of the writes and of the moment of the kill; a new one is drawn and printed by default.
    #[arg(long)]
    seed: Option<u64>,
    /// Kills in each round.
    #[arg(long, default_value_t = 3)]
    kills: u32,
}

/// Runs the campaign.
pub fn campaign(arguments: &AttachFilesystemsArguments) -> Result<ExitCode> {
    let seed = seed_or_new(arguments.seed);
    let named = |name: &String| TestFileSystem::by_name(name).with_context(|| format!("{name} is not known"));
    let systems = arguments.fs.iter().map(named).collect::<Result<Vec<_>>>()?;
    println!("attach-filesystems: {}, seed {seed}", arguments.fs.join(","));
    let (mut rng, deadline) = (SeededRng::new(seed), Instant::now() + Duration::from_secs(arguments.seconds));
    // Start at a random device, so that short runs with different seeds cover all devices.
    let first_device = rng.below(DEVICES.len() as u64) as usize;
    let (mut rounds, mut failed) = (0, 0);
    for turn in 0.. {
        let device = DEVICES[(first_device + turn / systems.len()) % DEVICES.len()];
        let system = systems[turn % systems.len()];
        let (round_seed, load) = (rng.next_u64(), Duration::from_millis(500 + rng.below(4000)));
        if let Some(reason) = missing(system) {
            println!("NOT RUN: {}: {reason}", system.name());
        } else {
            let outcome = attach::run(system, device, round_seed, FILES, arguments.kills, load)?;
            let good = outcome.problems.is_empty() && outcome.caught;
            let verdict = if good { "ok" } else { "FAILED" };
            println!(
                "{verdict} {} on {device}: {} files synced, {} kills, {} released, short of memory {:?} times, seed {round_seed}",
                system.name(),
                outcome.synced,
                outcome.kills,
                outcome.released,
                outcome.short_of_memory
            );
            outcome.problems.iter().for_each(|problem| println!("  {problem}"));
            rounds += 1;
            failed += u32::from(!good);
        }
        if turn + 1 >= systems.len() && Instant::now() >= deadline {
            break;
        }
    }
    println!("attach-filesystems: {rounds} rounds, {failed} failed");
    Ok(ExitCode::from(u8::from(failed > 0 || rounds == 0)))
}
