//! Runs programs with memory maps and locks on two mounts of a volume: `e2e-campaigns volume-maps --rounds 100`.
//!
//! Then the server is stopped for more than 30 s while calls are made. The exit code is 0 only if each program did all of
//! its work and none of its calls hung, the status named the calls that waited for the stopped server, no session was
//! ended, and the volume's check found no problem.

use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::{Args, Subcommand};
use nectary_e2e::live::missing;
use nectary_e2e::volume::VolumeRig;
use nectary_e2e::volume::maps::{MapProgram, waits};

use crate::rounds::{MountChoice, NotRunPolicy, ProblemCounter};

/// Runs programs with memory maps and locks on two mounts of a volume.
#[derive(Args)]
pub struct VolumeMapsArguments {
    /// Files with holes that are written to and removed
    #[arg(long, default_value_t = 100)]
    rounds: u64,
    /// The time of each other program
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    #[command(subcommand)]
    command: Option<VolumeMapsCommand>,
    #[command(flatten)]
    mounts: MountChoice,
}

#[derive(Subcommand)]
enum VolumeMapsCommand {
    /// Is one of the programs
    #[command(subcommand)]
    Work(MapProgram),
}

/// Runs the campaign.
pub fn campaign(arguments: &VolumeMapsArguments) -> ExitCode {
    arguments.mounts.apply();
    if let Some(reason) = missing(false) {
        return NotRunPolicy::IsAllowed.exit("volume-maps", reason);
    }
    let done = match &arguments.command {
        Some(VolumeMapsCommand::Work(program)) => program.work().map(|line| println!("{line}")),
        None => all(arguments.rounds, arguments.seconds),
    };
    let mut problems = ProblemCounter::default();
    problems.extend(done.err().map(|error| format!("{error:#}")));
    problems.exit()
}

fn all(rounds: u64, seconds: u64) -> Result<()> {
    let mut volume = VolumeRig::new("512M")?;
    let (directory, other) = (volume.mount()?, volume.mount()?);
    let programs = [
        MapProgram::Holes { directory: directory.clone(), rounds },
        MapProgram::Truncations { directory: directory.clone(), other: other.clone(), seconds },
        MapProgram::Stores { directory: directory.clone(), other, seconds },
        MapProgram::Locks { directory: directory.clone(), waiters: 2000 },
    ];
    let worker = std::env::current_exe()?;
    for program in programs {
        println!("volume-maps: {}", program.run(&mut volume, &worker)?);
    }
    println!("volume-maps: {}", waits(&mut volume, &directory)?);
    ensure!(!volume.log("m0").contains("is ended") && !volume.log("m1").contains("is ended"), "a session was ended");
    volume.finish_whole()?;
    println!("volume-maps: {rounds} rounds, {seconds} s each of the others, nothing hangs");
    Ok(())
}
