//! Runs a database, git and a compiler on two mounts of a volume whose server is killed: `e2e-campaigns volume-programs
//! --rounds 50 --seed 7`.
//!
//! The exit code is 0 only if in each round the other mount had everything that was stored, the volume's check found no
//! problem, enough servers were killed while each program ran, and each check failed after something was removed on
//! purpose.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use nectary_e2e::live::missing;
use nectary_e2e::report::seed_or_new;
use nectary_e2e::rng::SeededRng;
use nectary_e2e::volume::VolumeRig;
use nectary_e2e::volume::programs::{ProgramCounts, VolumeProgram, round};

use crate::rounds::{MountChoice, NotRunPolicy, ProblemCounter, first_line};

/// Runs programs on two mounts of a volume whose server is killed.
#[derive(Args)]
pub struct VolumeProgramsArguments {
    /// Rounds; each has one program
    #[arg(long, default_value_t = 50)]
    rounds: u64,
    /// The seed; a new one is drawn and printed by default
    #[arg(long)]
    seed: Option<u64>,
    #[command(flatten)]
    mounts: MountChoice,
}

/// The largest number of rounds on one volume.
const ROUNDS_MAX: u64 = 9;

/// Runs the campaign.
pub fn campaign(arguments: &VolumeProgramsArguments) -> Result<ExitCode> {
    arguments.mounts.apply();
    if let Some(reason) = missing(false) {
        return Ok(NotRunPolicy::Fails.exit("volume-programs", reason));
    }
    let seed = seed_or_new(arguments.seed);
    let mut problems = ProblemCounter::default();
    println!("volume-programs: seed {seed}, {} rounds", arguments.rounds);
    for kind in VolumeProgram::EVERY {
        match series(seed, &[(kind, seed)], true, &mut [ProgramCounts::default(); 3]) {
            Ok(()) => problems.add(format!("planted: {kind:?}: what was taken away was not missed")),
            Err(error) => println!("planted: {kind:?}: missed: {}", first_line(&error)),
        }
    }
    let mut total = [ProgramCounts::default(); 3];
    let all: Vec<(VolumeProgram, u64)> = (0..arguments.rounds)
        .map(|round| (VolumeProgram::EVERY[round as usize % 3], SeededRng::new(seed + round).below(1_000_000_000)))
        .collect();
    for part in all.chunks(ROUNDS_MAX as usize) {
        if let Err(error) = series(seed, part, false, &mut total) {
            problems.add(format!("{error:#}"));
        }
    }
    for (kind, done) in VolumeProgram::EVERY.iter().zip(&total) {
        println!(
            "  {kind:?}: {} servers killed while it ran, {} things stored, {} looks of the other mount",
            done.kills, done.stored, done.looks
        );
        // Require at least one kill for each round of this kind.
        if done.kills < arguments.rounds / 3 || done.stored == 0 {
            problems.add(format!("{kind:?}: too little happened"));
        }
    }
    println!("volume-programs: {} rounds, {} problems", arguments.rounds, problems.count());
    Ok(problems.exit())
}

/// Runs rounds on one volume, and then checks the volume.
fn series(seed: u64, rounds: &[(VolumeProgram, u64)], planted: bool, total: &mut [ProgramCounts; 3]) -> Result<()> {
    let mut volume = VolumeRig::new("2G")?;
    let mounts = [volume.mount()?, volume.mount()?];
    for (kind, round_seed) in rounds {
        let done = round(&mut volume, [&mounts[0], &mounts[1]], *kind, *round_seed, planted)
            .map_err(|error| error.context(format!("seed {seed}, {kind:?} with seed {round_seed}")))?;
        let sum = &mut total[VolumeProgram::EVERY.iter().position(|is| is == kind).unwrap_or(0)];
        sum.kills += done.kills;
        sum.stored += done.stored;
        sum.looks += done.looks;
        println!("  {kind:?}: {done:?}");
    }
    volume.finish_whole()
}
