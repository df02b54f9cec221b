//! Kills a mount of a volume and mounts it again, while a file of a tenth of the disk is rewritten: `e2e-campaigns
//! volume-kills --rounds 50 --seed 7`.
//!
//! The exit code is 0 only if no write failed for lack of space or waited for a dead mount, enough mounts were killed
//! while they wrote, and the volume's check found no problem; with the server on the same path of the disk, with a
//! mount that lives beside, and with a server whose kernel proves nothing because it reaches the disk by another path.

use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::Args;
use nectary_e2e::live::missing;
use nectary_e2e::report::seed_or_new;
use nectary_e2e::volume::VolumeRig;
use nectary_e2e::volume::kills::{DISK, FileLoopDevice, KillTotals, SERVER_LEASE, rounds};

use crate::rounds::{MountChoice, NotRunPolicy, ProblemCounter};

/// Kills a mount of a volume and mounts it again.
#[derive(Args)]
pub struct VolumeKillsArguments {
    /// Rounds of each kind; in each round, one mount is killed
    #[arg(long, default_value_t = 50)]
    rounds: u64,
    /// The seed; a new one is drawn and printed by default
    #[arg(long)]
    seed: Option<u64>,
    #[command(flatten)]
    mounts: MountChoice,
}

/// Where the server and other mounts are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ServerLayout {
    /// The server has opened the same file.
    Alone,
    /// Another mount lives.
    Beside,
    /// The server has opened a loop device of the file.
    Apart,
}

/// Runs the campaign.
pub fn campaign(arguments: &VolumeKillsArguments) -> Result<ExitCode> {
    arguments.mounts.apply();
    if let Some(reason) = missing(false) {
        return Ok(NotRunPolicy::Fails.exit("volume-kills", reason));
    }
    let seed = seed_or_new(arguments.seed);
    println!("volume-kills: seed {seed}, {} rounds of each kind", arguments.rounds);
    let mut problems = ProblemCounter::default();
    for kind in [ServerLayout::Alone, ServerLayout::Beside, ServerLayout::Apart] {
        match series(kind, arguments.rounds, seed) {
            Ok(done) => println!(
                "  {kind:?}: {} mounts killed while they wrote, {} rewrites, the longest took {} ms",
                done.kills,
                done.rewrites,
                done.longest.as_millis()
            ),
            Err(error) => problems.add(format!("{kind:?}: {error:#}")),
        }
    }
    println!("volume-kills: {} rounds of each kind, {} problems", arguments.rounds, problems.count());
    Ok(problems.exit())
}

fn series(kind: ServerLayout, count: u64, seed: u64) -> Result<KillTotals> {
    let mut volume = VolumeRig::leased(DISK, SERVER_LEASE)?;
    let apart = (kind == ServerLayout::Apart).then(|| FileLoopDevice::of(&volume.disk())).transpose()?;
    if let Some(apart) = &apart {
        volume.stop_server()?;
        volume.serve_from(&format!("disk:{}", apart.0), &[])?;
    }
    let beside = (kind == ServerLayout::Beside).then(|| volume.mount()).transpose()?;
    let done = rounds(&mut volume, count, seed, beside.as_deref())?;
    ensure!(done.kills == count, "only {} of {count} mounts were killed while they wrote", done.kills);
    volume.finish_whole()?;
    Ok(done)
}
