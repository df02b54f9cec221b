//! A run under the conditions of the paper on the Network RamDisk.
//!
//! Owns: the order of the steps, and the cleanup. In each round every contender is set up, runs all loops and is taken
//! down. A contender on the network goes through these steps once for each link. Rounds run the contenders alternately
//! forwards and backwards. Leaves to others: the contenders, and the report.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use super::contender::{DiskContender, DiskContenderEnvironment};
use super::loops::{DeletionOrder, FileLoops};
use super::network::{self, LinkRate};
use super::results::report;
use super::samples::LoopSample;
use super::{FILE_BYTES, FilesPlan};
use crate::group::MemoryGroup;
use crate::guardian::Guardian;
use crate::statistics::order;
use crate::store::RunProgress;
use crate::{Error, ExperimentErrorKind, ExperimentReport, machine, sys};

/// The programs that a run needs, and the Debian packages that contain them.
const NEEDS: [(&str, &str); 3] = [("ip", "iproute2"), ("tc", "iproute2"), ("nsenter", "util-linux")];

/// Runs a plan; `nectary` is the path of this program.
///
/// It moves the calling thread into new mount and network namespaces; the thread must live as long as the process.
/// *Errors*: [`ExperimentErrorKind::Void`] for a wrong byte; [`ExperimentErrorKind::Missing`] if this machine cannot run the plan.
pub fn run(
    plan: &FilesPlan,
    nectary: &Path,
    progress: &mut (dyn FnMut(&RunProgress) + Send),
) -> Result<ExperimentReport, Error> {
    machine::check()?;
    for (program, package) in NEEDS {
        let is_there = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"]
            .iter()
            .any(|folder| PathBuf::from(folder).join(program).is_file());
        if !is_there {
            return Err(Error::new(
                ExperimentErrorKind::Missing,
                format!("there is no {program}: apt-get install {package}"),
            ));
        }
    }
    let _ = nectary_attach::release_stale();
    let began = Instant::now();
    let mut command = Command::new(nectary);
    command.args(["bench", "guardian"]);
    let mut guardian = Guardian::start(command)?;
    let folder = PathBuf::from(format!("/dev/shm/nectary-bench-files-{}", std::process::id()));
    let named = &plan.options.folder;
    let disk_folder = std::fs::canonicalize(named).map_err(|error| Error::failed(named.display(), error))?;
    let disk_folder = disk_folder.join(format!("nectary-bench-files-{}", std::process::id()));
    guardian.guard(&folder)?;
    for group in DiskContenderEnvironment::groups() {
        guardian.guard(&MemoryGroup::place(&group)?)?;
    }
    guardian.make_folder(&disk_folder)?;
    let result = sys::own_mounts(&disk_folder).and_then(|()| {
        network::begin()?;
        std::fs::create_dir(&folder).map_err(|error| Error::failed(folder.display(), error))?;
        let system = plan.options.system;
        run_all(plan, &DiskContenderEnvironment { nectary, folder, disk_folder, system, bytes: FILE_BYTES }, progress)
    });
    // If a step failed, the processes that served block devices were killed and their loop devices remain.
    let _ = nectary_attach::release_stale();
    guardian.finish();
    Ok(report(plan, result?, began.elapsed()))
}

fn run_all(
    plan: &FilesPlan,
    place: &DiskContenderEnvironment<'_>,
    progress: &mut (dyn FnMut(&RunProgress) + Send),
) -> Result<Vec<LoopSample>, Error> {
    let (remote, local): (Vec<_>, Vec<_>) = plan.contenders.iter().partition(|contender| contender.is_remote());
    // Contenders on this machine have no link.
    let mut stages: Vec<(Option<LinkRate>, Vec<&DiskContender>)> = vec![(None, local)];
    stages.extend(plan.links.iter().map(|&link| {
        let here = remote.iter().copied().filter(|contender| plan.has(contender, Some(link)));
        (Some(link), here.collect())
    }));
    let of: usize = stages.iter().map(|stage| stage.1.len()).sum::<usize>() * plan.rounds;
    let (mut samples, mut done) = (Vec::new(), 0);
    for round in 0..plan.rounds {
        for (link, contenders) in &stages {
            for index in order(contenders.len(), round) {
                let (contender, on) = (contenders[index], link.map(|link| format!(", {}", link.name())));
                let what = format!("{}{}, round {}", contender.name, on.unwrap_or_default(), round + 1);
                progress(&RunProgress { done, of: of as u64, what });
                done += 1;
                samples.extend(run_one(plan, place, contender, *link, round, done as u32)?);
            }
        }
    }
    progress(&RunProgress { done, of: of as u64, what: "done".to_owned() });
    Ok(samples)
}

/// Runs all loops on one contender.
fn run_one(
    plan: &FilesPlan,
    place: &DiskContenderEnvironment<'_>,
    contender: &DiskContender,
    link: Option<LinkRate>,
    round: usize,
    number: u32,
) -> Result<Vec<LoopSample>, Error> {
    let named = |error: Error| Error::new(error.kind, format!("{}: {}", contender.name, error.message));
    let mut running = place.set_up(contender, link.unwrap_or(LinkRate::Unshaped), number).map_err(named)?;
    let mut samples = Vec::new();
    let mut measure = |running: &mut super::contender::RunningDiskContender<'_>, files, order, is_synchronous| {
        let (seed, folder) = (plan.options.seed + round as u64, PathBuf::new());
        let before = running.processor_s();
        let loops = FileLoops { folder, files, bytes: FILE_BYTES, order, is_flushed_each: false, seed };
        let taken = running.run(loops).map_err(named)?;
        let processor_s = running.processor_s() - before;
        let contender = contender.name;
        samples.push(LoopSample { contender, link, round, is_synchronous, order, files, taken, processor_s });
        Ok::<(), Error>(())
    };
    for &(files, order) in &plan.loops {
        measure(&mut running, files, order, false)?;
    }
    running.mount_synchronously().map_err(named)?;
    measure(&mut running, plan.synchronous_files, DeletionOrder::Random, true)?;
    running.finish().map_err(named)?;
    Ok(samples)
}
