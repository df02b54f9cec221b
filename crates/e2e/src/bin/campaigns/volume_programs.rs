//! Runs a database, git, compilers, npm, `rm` and mail on three mounts of a volume whose server is killed:
//! `e2e-campaigns volume-programs --rounds 70 --seed 7`.
//!
//! The exit code is 0 only if each program ran, in each round the other mounts had everything that was stored, the
//! volume's check found no problem and no file after each round, enough servers were killed while each program ran, and
//! each check failed after something was changed on purpose. It is 77 if all is well, but a program is not installed.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, ensure};
use clap::{Args, Subcommand};
use nectary_e2e::live::missing;
use nectary_e2e::report::{not_run, seed_or_new};
use nectary_e2e::rng::SeededRng;
use nectary_e2e::volume::VolumeRig;
use nectary_e2e::volume::programs::maildir::MaildirProgram;
use nectary_e2e::volume::programs::{
    PlannedRound, ProgramCounts, ProgramKit, ProgramScale, VolumeProgram, planted_round, round,
};

use crate::rounds::{MountChoice, NotRunPolicy, ProblemCounter, first_line};

/// Runs programs on three mounts of a volume whose server is killed.
#[derive(Args)]
pub struct VolumeProgramsArguments {
    /// Rounds; each has one program
    #[arg(long, default_value_t = 70)]
    rounds: u64,
    /// The seed; a new one is drawn and printed by default
    #[arg(long)]
    seed: Option<u64>,
    /// The programs, which take turns; all by default
    #[arg(long, value_enum, value_delimiter = ',')]
    programs: Vec<VolumeProgram>,
    /// Make small trees
    #[arg(long)]
    small: bool,
    #[command(flatten)]
    mounts: MountChoice,
    #[command(subcommand)]
    command: Option<VolumeProgramsCommand>,
}

#[derive(Subcommand)]
enum VolumeProgramsCommand {
    /// Is one of the programs that use a maildir
    #[command(subcommand)]
    Work(MaildirProgram),
}

/// The size of the volume.
const DISK: &str = "2G";
/// The largest number of rounds on one volume.
const ROUNDS_MAX: usize = 14;

/// Runs the campaign.
pub fn campaign(arguments: &VolumeProgramsArguments) -> Result<ExitCode> {
    if let Some(VolumeProgramsCommand::Work(program)) = &arguments.command {
        return program.work().map(|()| ExitCode::SUCCESS);
    }
    arguments.mounts.apply();
    if let Some(reason) = missing(false) {
        return Ok(NotRunPolicy::Fails.exit("volume-programs", reason));
    }
    let mut programs = arguments.programs.clone();
    if programs.is_empty() {
        programs = VolumeProgram::EVERY.to_vec();
    }
    let requested = programs.len();
    programs.retain(|program| {
        let reason = program.missing();
        reason.iter().for_each(|reason| not_run(format!("volume-programs: {reason}")));
        reason.is_none()
    });
    let kit = ProgramKit::new(
        if arguments.small { ProgramScale::Sample } else { ProgramScale::Whole },
        &std::env::current_exe()?,
    );
    let seed = seed_or_new(arguments.seed);
    let mut problems = ProblemCounter::default();
    println!("volume-programs: seed {seed}, {} rounds", arguments.rounds);
    let mut counts = vec![(0, ProgramCounts::default()); programs.len()];
    for (index, program) in programs.iter().enumerate() {
        let plan = PlannedRound { program: *program, seed: seed + index as u64 };
        match planted(&plan, &kit) {
            Ok(Some(error)) => println!("planted: {program:?}: missed: {}", first_line(&error)),
            Ok(None) => problems.add(format!("planted: {program:?}: what was changed was not missed")),
            Err(error) => problems.add(format!("planted: {program:?} with seed {}: {error:#}", plan.seed)),
        }
    }
    let plans: Vec<PlannedRound> = (0..arguments.rounds)
        .zip(programs.iter().cycle())
        .map(|(round, program)| PlannedRound {
            program: *program,
            seed: SeededRng::new(seed + round).below(1_000_000_000),
        })
        .collect();
    for part in plans.chunks(ROUNDS_MAX) {
        let add = |plan: &PlannedRound, done: &ProgramCounts| {
            let index = programs.iter().position(|program| *program == plan.program).unwrap_or_default();
            counts[index].0 += 1;
            counts[index].1.add(done);
        };
        if let Err(error) = series(part, &kit, add) {
            problems.add(format!("seed {seed}: {error:#}"));
        }
    }
    for (program, (rounds, done)) in programs.iter().zip(&counts) {
        println!(
            "  {program:?}: {rounds} rounds, {} servers killed while it ran, {} things stored, \
             {} looks of other mounts{}",
            done.kills,
            done.stored,
            done.looks,
            if *program == VolumeProgram::Maildir {
                format!(", {} claims came too late", done.contests)
            } else {
                String::new()
            }
        );
        // Require at least one kill for each round of this program.
        if *rounds == 0 {
            problems.add(format!("{program:?} never ran to its end"));
        } else if done.kills < *rounds || done.stored == 0 || done.looks == 0 {
            problems.add(format!("{program:?}: too little happened"));
        } else if *program == VolumeProgram::Maildir && done.contests == 0 {
            problems.add("Maildir: no reader came too late");
        }
    }
    println!("volume-programs: {} rounds, {} problems", arguments.rounds, problems.count());
    if problems.count() == 0 && programs.len() < requested {
        return Ok(NotRunPolicy::IsAllowed.code());
    }
    Ok(problems.exit())
}

/// Runs a round whose result is changed before the check; returns what the check says.
fn planted(plan: &PlannedRound, kit: &ProgramKit) -> Result<Option<anyhow::Error>> {
    let mut volume = VolumeRig::new(DISK)?;
    let mounts = [volume.mount()?, volume.mount()?, volume.mount()?];
    planted_round(&mut volume, &mounts, plan, kit)
}

/// Runs rounds on one volume; after each, everything is unmounted and the volume is checked.
fn series(rounds: &[PlannedRound], kit: &ProgramKit, mut add: impl FnMut(&PlannedRound, &ProgramCounts)) -> Result<()> {
    let mut volume = VolumeRig::new(DISK)?;
    for (index, plan) in rounds.iter().enumerate() {
        let began = Instant::now();
        if index > 0 {
            volume.serve()?;
        }
        let mounts: [PathBuf; 3] = [volume.mount()?, volume.mount()?, volume.mount()?];
        let mut run = || -> Result<ProgramCounts> {
            let done = round(&mut volume, &mounts, plan, kit)?;
            for mount in &mounts {
                let name = mount.file_name().unwrap_or_default().to_string_lossy().into_owned();
                ensure!(!volume.log(&name).contains("is ended"), "the session of {name} was ended");
            }
            volume.finish_empty()?;
            Ok(done)
        };
        let done = run().map_err(|error| error.context(format!("{:?} with seed {}", plan.program, plan.seed)))?;
        add(plan, &done);
        println!("  {:?} with seed {}: {done:?} in {:.1?}", plan.program, plan.seed, began.elapsed());
    }
    Ok(())
}
