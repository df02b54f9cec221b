//! Runs file-system exercisers over two mounts of a volume: `e2e-campaigns volume-tree --operations 20000 --calls 20000
//! --seed 7`.
//!
//! Runs fsx on one mount, and compares its file on the other mount. Runs pjdfstest twice, once on one mount and once
//! with calls that go to both mounts in turn, and compares the results with those on this machine's own file system.
//! Makes random calls, and compares their results with those on this machine's own file system. The exit code is 0 only
//! if everything ran and passed, and each check failed when a fault was planted.

use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Args;
use nectary_e2e::live::missing;
use nectary_e2e::report::seed_or_new;
use nectary_e2e::volume::exercise::exercise;
use nectary_e2e::volume::posix::{self, kind_of};
use nectary_e2e::volume::{VolumeRig, trees};
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
    /// The seed of fsx and of the calls; a new one is drawn and printed by default
    #[arg(long)]
    seed: Option<u64>,
    /// Only one of fsx, posix, trees
    #[arg(long)]
    only: Option<String>,
    #[command(flatten)]
    mounts: MountChoice,
}

/// The minimum number of comparisons with the other mount while fsx runs.
const LOOKS_MIN: u64 = 5;

/// One of the program's checks, which runs on a volume with two mounts.
type Part<'a> = dyn Fn(&mut VolumeRig, [PathBuf; 2]) -> Result<()> + 'a;

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
        ("fsx", &|volume, mounts| exercised(volume, mounts, arguments.operations, seed)),
        ("trees", &|volume, mounts| drawn(volume, mounts, arguments.calls, seed)),
        ("posix", &tested),
    ];
    for (name, part) in parts {
        if arguments.only.as_ref().is_some_and(|only| only != name) {
            continue;
        }
        if let Err(error) = on_volume(part) {
            problems.add(format!("{name}: {error:#}"));
        }
    }
    println!("volume-tree: {} problems", problems.count());
    Ok(problems.exit())
}

/// Runs one check on a new volume with two mounts, and then checks the volume's structures.
fn on_volume(part: &Part<'_>) -> Result<()> {
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

fn drawn(volume: &mut VolumeRig, mounts: [PathBuf; 2], calls: u64, seed: u64) -> Result<()> {
    let both = [&*mounts[0], &*mounts[1]];
    let beside = volume.scratch.path();
    let planted = trees::compare(both, beside, calls, seed, true);
    let Err(error) = planted else { anyhow::bail!("planted: a changed byte was not noticed") };
    println!("  planted: a changed byte was noticed: {}", first_line(&error));
    let done = trees::compare(both, beside, calls, seed + 1, false)?;
    println!(
        "  trees: {} calls on two mounts in turn and on {}, {} failed with the same errno; {} comparisons of trees with \
         {} entries in all; succeeded: {:?}",
        done.calls,
        kind_of(beside)?,
        done.failed,
        done.compared,
        done.entries,
        done.succeeded
    );
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
