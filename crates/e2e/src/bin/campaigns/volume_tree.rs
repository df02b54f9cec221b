//! Runs file-system exercisers over two mounts of a volume: `e2e-campaigns volume-tree --operations 20000 --calls 20000
//! --seed 7`.
//!
//! Runs fsx on one mount, and compares its file on the other mount. Runs pjdfstest twice, once on one mount and once
//! with calls that go to both mounts in turn, and compares the results with those on this machine's own file system.
//! Makes random calls on three mounts, and compares their results with those on this machine's own file system, while
//! mounts and the server are killed, stopped and cut off: `--only trees --calls 20000 --faults 70`. The exit code is 0
//! only if everything ran and passed, as often as it should, and each check failed when a mistake was planted.

use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Args;
use nectary_e2e::live::missing;
use nectary_e2e::report::seed_or_new;
use nectary_e2e::volume::VolumeRig;
use nectary_e2e::volume::exercise::exercise;
use nectary_e2e::volume::posix::{self, kind_of};
use nectary_e2e::volume::trees::{self, ModifiedTime, PlantedMistake, TreeFault, TreePlan};
use std::path::PathBuf;

use crate::rounds::{MountChoice, NotRunPolicy, ProblemCounter, first_line};

/// Runs exercisers over two mounts of a volume.
#[derive(Args)]
pub struct VolumeTreeArguments {
    /// Operations of fsx
    #[arg(long, default_value_t = 20_000)]
    operations: u64,
    /// Random calls
    #[arg(long, default_value_t = 20_000)]
    calls: u64,
    /// The number of mounts on which random calls are made
    #[arg(long, default_value_t = 3)]
    hosts: usize,
    /// The number of faults during the random calls; by default one for 280 calls, and each kind at least once
    #[arg(long)]
    faults: Option<u64>,
    /// The seed of fsx and of the calls; a new one is drawn and printed by default
    #[arg(long)]
    seed: Option<u64>,
    /// Only one of fsx, posix, trees
    #[arg(long)]
    only: Option<String>,
    /// Compare the times of the last change of contents, too: without `--local-names` some differ, which nobody has
    /// explained yet
    #[arg(long)]
    times: bool,
    #[command(flatten)]
    mounts: MountChoice,
}

/// The minimum number of comparisons with the other mount while fsx runs.
const LOOKS_MIN: u64 = 5;

/// The number of random calls for each fault.
const CALLS_PER_FAULT: u64 = 280;
/// The calls and the faults of a run with a planted mistake.
const PLANTED: [u64; 2] = [600, 2];

/// One of the program's checks.
type Part<'a> = dyn Fn() -> Result<()> + 'a;

/// Runs the campaign.
pub fn campaign(arguments: &VolumeTreeArguments) -> Result<ExitCode> {
    arguments.mounts.apply();
    if let Some(reason) = missing(false) {
        return Ok(NotRunPolicy::Fails.exit("volume-tree", reason));
    }
    let seed = seed_or_new(arguments.seed);
    println!("volume-tree: seed {seed}");
    let mut problems = ProblemCounter::default();
    let parts: [(&str, &Part<'_>); 3] = [
        ("fsx", &|| on_volume(|volume, mounts| exercised(volume, mounts, arguments.operations, seed))),
        ("trees", &|| drawn(arguments, seed)),
        ("posix", &|| on_volume(tested)),
    ];
    for (name, part) in parts {
        if arguments.only.as_ref().is_some_and(|only| only != name) {
            continue;
        }
        if let Err(error) = part() {
            problems.add(format!("{name}: {error:#}"));
        }
    }
    println!("volume-tree: {} problems", problems.count());
    Ok(problems.exit())
}

/// Runs one check on a new volume with two mounts, and then checks the volume's structures.
fn on_volume(part: impl Fn(&mut VolumeRig, [PathBuf; 2]) -> Result<()>) -> Result<()> {
    let mut volume = VolumeRig::new("2G")?;
    let mounts = [volume.mount()?, volume.mount()?];
    part(&mut volume, mounts)?;
    volume.finish_whole()
}

fn exercised(volume: &mut VolumeRig, mounts: [PathBuf; 2], operations: u64, seed: u64) -> Result<()> {
    let both = [&*mounts[0], &*mounts[1]];
    let planted = exercise(volume, both, operations, seed, true);
    let Err(error) = planted else { anyhow::bail!("planted: bytes of another mount were not noticed: {planted:?}") };
    println!("  planted: fsx noticed bytes of the other mount: {}", first_line(&error));
    let looks = exercise(volume, both, operations, seed, false)?.context("fsx did not run")?;
    println!("  fsx: {operations} operations on one mount, the other had the same bytes {looks} times");
    ensure!(looks >= LOOKS_MIN, "{looks} looks of the other mount");
    Ok(())
}

fn drawn(arguments: &VolumeTreeArguments, seed: u64) -> Result<()> {
    let VolumeTreeArguments { calls, hosts, .. } = *arguments;
    let kinds = TreeFault::ALL.to_vec();
    let faults = arguments.faults.unwrap_or((calls / CALLS_PER_FAULT).max(kinds.len() as u64));
    let mut mistakes = vec![PlantedMistake::WrongByte, PlantedMistake::SkippedBeside, PlantedMistake::SkippedOnVolume];
    if arguments.times {
        ModifiedTime::compare();
        mistakes.push(PlantedMistake::SkippedTime);
    }
    for planted in mistakes {
        let [calls, faults] = if planted == PlantedMistake::WrongByte { [5 * PLANTED[0], 0] } else { PLANTED };
        let kinds = vec![TreeFault::MountKill, TreeFault::BothKill];
        let found = trees::run(&TreePlan { calls, seed, hosts, faults, kinds, planted: Some(planted) });
        let Err(error) = found else { anyhow::bail!("planted: {planted:?} was not noticed") };
        let noticed = first_line(&error);
        let word = if planted == PlantedMistake::WrongByte { " bytes" } else { "planted-" };
        ensure!(noticed.contains(word), "planted: {planted:?} was not noticed, but {noticed}");
        println!("  planted: {planted:?} was noticed: {noticed}");
    }
    let plan = TreePlan { calls, seed, hosts, faults, kinds, planted: None };
    let done = trees::run(&plan)?;
    println!("  trees: {hosts} mounts and {}, {done}", kind_of(&std::env::temp_dir())?);
    let short = done.shortfalls(&plan);
    ensure!(short.is_empty(), "{}", short.join(", "));
    Ok(())
}

fn tested(volume: &mut VolumeRig, mounts: [PathBuf; 2]) -> Result<()> {
    let kind = kind_of(volume.scratch.path())?;
    let both = posix::compare(volume, [&*mounts[0], &*mounts[1]])?.context("pjdfstest did not run")?;
    let mut wrong = 0;
    for (name, compared) in ["on one mount", "on two mounts in turn"].into_iter().zip(&both) {
        println!(
            "  pjdfstest {name}: {} tests passed as on {kind}, {} were skipped or failed on both, {} differ",
            compared.passed,
            compared.alike,
            compared.differing.len()
        );
        if let Some((calls, other)) = compared.calls {
            println!("    {calls} calls with a path, {other} of them sent to the second mount");
            ensure!(other * 3 > calls && other > 1000, "calls did not alternate");
        }
        for (line, reason) in &compared.differing {
            println!("    {line} ({})", reason.unwrap_or("UNEXPLAINED"));
            wrong += usize::from(reason.is_none());
        }
    }
    ensure!(wrong == 0, "{wrong} differences without a reason");
    Ok(())
}
