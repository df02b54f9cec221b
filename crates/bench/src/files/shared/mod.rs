//! `bench files --seed ncar`: creates, stats and unlinks a second on a shared volume, beside peers.
//!
//! Owns: the options, the plan, the order of the steps, and the cleanup. In each round every contender is set up on the
//! same device, runs the loops with each number of threads, and is taken down. Rounds run the contenders alternately
//! forwards and backwards. Files are empty, so that only names and attributes are measured.
//!
//! | file | what is in it |
//! |---|---|
//! | `contender` | the list of contenders, and how each is set up and taken down |
//! | `juicefs` | JuiceFS as a peer |
//! | `programs` | `ls -l`, git, and two hosts that create files at once |
//! | `report` | rates with their medians and quartiles, ratios, tables |

mod contender;
mod juicefs;
mod programs;
mod report;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use super::together::ThreadedLoops;
use crate::disk::BareDisk;
use crate::guardian::Guardian;
use crate::hosts::HostPair;
use crate::statistics::order;
use crate::store::RunProgress;
use crate::{Error, ExperimentErrorKind, ExperimentReport, machine, sys};

use contender::{CONTENDERS, MountContender, MountEnvironment};
pub use juicefs::find as find_juicefs;
use programs::{ProgramRun, ProgramSample};
use report::{RunSamples, ThreadSample};

/// The number of files, and that in a quick run.
const FILES: u32 = 4096;
const FILES_QUICK: u32 = 512;
/// How many times as many names the directory has that `ls -l` lists.
const LISTED_TIMES: u32 = 5;
/// The largest number of files: a disk of moderate size has room for them.
const FILES_MAX: u32 = 100_000;
/// The numbers of threads.
const THREADS: [u32; 2] = [1, 4];
/// The number of rounds; each gives one pair.
const ROUNDS: usize = 5;
const ROUNDS_QUICK: usize = 2;
/// The size of the disk without room for files; a file system needs most of it. *Units*: bytes.
const DISK_BYTES: u64 = 512 << 20;
/// The room for each file, and for each name of the directory that `ls -l` lists. *Units*: bytes.
const FILE_ROOM_BYTES: u64 = 16 << 10;
const LISTED_ROOM_BYTES: u64 = 2 << 10;

/// The settings of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct SharedFilesOptions {
    /// A quick run: fewer files, two rounds.
    pub quick: bool,
    /// Only contenders whose name contains one of these; all if the list is empty.
    pub only: Vec<String>,
    /// The number of files.
    pub files: Option<u32>,
    /// The number of rounds.
    pub rounds: Option<usize>,
    /// The directory of the disk's file.
    pub folder: PathBuf,
    /// The program of JuiceFS; `None` if there is none.
    pub juicefs: Option<PathBuf>,
    /// Whether volumes are also mounted so that they make and remove names themselves.
    pub has_local_names: bool,
    /// Whether programs run, too: `ls -l` of a large directory, git, and two hosts that create files at once.
    pub has_programs: bool,
    /// The seed of the order in which files are unlinked.
    pub seed: u64,
}

/// A whole run.
#[derive(Debug, Clone)]
pub struct SharedFilesPlan {
    options: SharedFilesOptions,
    contenders: Vec<MountContender>,
    not_run: Vec<String>,
    files: u32,
    rounds: usize,
}

impl SharedFilesPlan {
    /// Makes the plan of a run.
    ///
    /// *Errors*: [`ExperimentErrorKind::ResourceUsage`] for numbers out of bounds and unknown names; [`ExperimentErrorKind::Missing`] if no
    /// contender can run.
    pub fn new(options: SharedFilesOptions) -> Result<SharedFilesPlan, Error> {
        let usage = |message: String| Error::new(ExperimentErrorKind::Usage, message);
        let rounds = options.rounds.unwrap_or(if options.quick { ROUNDS_QUICK } else { ROUNDS });
        if !(1..=100).contains(&rounds) {
            return Err(usage(format!("{rounds} rounds: 1 at least, and 100 at most")));
        }
        let files = options.files.unwrap_or(if options.quick { FILES_QUICK } else { FILES });
        if !(1..=FILES_MAX).contains(&files) {
            return Err(usage(format!("{files} files: 1 at least, and {FILES_MAX} at most")));
        }
        let is_named = |name: &str| options.only.is_empty() || options.only.iter().any(|part| name.contains(&**part));
        if let Some(part) = options.only.iter().find(|part| !CONTENDERS.iter().any(|one| one.name.contains(&***part))) {
            let known: Vec<&str> = CONTENDERS.iter().map(|contender| contender.name).collect();
            return Err(usage(format!("no contender has \"{part}\" in its name; there are {}", known.join(", "))));
        }
        let (mut contenders, mut not_run) = (Vec::new(), Vec::new());
        let is_wanted =
            |one: &MountContender| is_named(one.name) && (options.has_local_names || !one.has_local_names());
        for contender in CONTENDERS.into_iter().filter(is_wanted) {
            match contender.missing(&options) {
                None => contenders.push(contender),
                Some(why) => not_run.push(format!("{}: NOT RUN: {why}", contender.name)),
            }
        }
        if options.has_programs && !juicefs::is_on_path(ProgramRun::NEEDS.0) {
            let (program, package) = ProgramRun::NEEDS;
            return Err(Error::new(
                ExperimentErrorKind::Missing,
                format!("there is no {program}: apt-get install {package}"),
            ));
        }
        if contenders.is_empty() && not_run.is_empty() {
            return Err(usage("these contenders run with --local-names".to_owned()));
        }
        if contenders.is_empty() {
            return Err(Error::new(ExperimentErrorKind::Missing, not_run.join("; ")));
        }
        Ok(SharedFilesPlan { options, contenders, not_run, files, rounds })
    }

    /// The size of the disk. *Units*: bytes.
    fn disk_bytes(&self) -> u64 {
        let listed = if self.options.has_programs { u64::from(self.listed()) * LISTED_ROOM_BYTES } else { 0 };
        (DISK_BYTES + u64::from(self.files) * FILE_ROOM_BYTES + listed).next_multiple_of(1 << 20)
    }

    /// The number of names in the directory that `ls -l` lists.
    fn listed(&self) -> u32 {
        self.files * LISTED_TIMES
    }

    /// The loops of a contender; `root` is where it is mounted.
    fn loops(&self, contender: &MountContender, root: &Path, threads: u32, round: usize) -> ThreadedLoops {
        let seed = self.options.seed + round as u64;
        let is_flushed_each = contender.is_flushed_each();
        ThreadedLoops { folder: root.to_owned(), files: self.files, threads, bytes: 0, is_flushed_each, seed }
    }
}

/// Runs a plan; `nectary` is the path of this program.
///
/// It moves the calling thread into its own mount and network namespaces; the thread must live as long as the process.
/// *Errors*: [`ExperimentErrorKind::Void`] if a file is missing; [`ExperimentErrorKind::Missing`] if this machine cannot run the plan.
pub fn run(
    plan: &SharedFilesPlan,
    nectary: &Path,
    progress: &mut (dyn FnMut(&RunProgress) + Send),
) -> Result<ExperimentReport, Error> {
    machine::check()?;
    HostPair::check()?;
    let _ = nectary_attach::release_stale();
    let began = Instant::now();
    let mut command = Command::new(nectary);
    command.args(["bench", "guardian"]);
    let mut guardian = Guardian::start(command)?;
    // The names of sockets have a limit, so they are in a directory with a short name.
    let folder = std::env::temp_dir().join(format!("nectary-bench-hosts-{}", std::process::id()));
    let named = &plan.options.folder;
    let disk_folder = std::fs::canonicalize(named).map_err(|error| Error::failed(named.display(), error))?;
    let disk_folder = disk_folder.join(format!("nectary-bench-files-{}", std::process::id()));
    guardian.make_folder(&folder)?;
    guardian.make_folder(&disk_folder)?;
    let result = sys::own_mounts(&disk_folder).and_then(|()| {
        let disk = BareDisk::new(&disk_folder.join("disk"), plan.disk_bytes())?;
        let hosts = HostPair::new(nectary, &folder, Vec::new())?;
        let place =
            MountEnvironment { nectary, folder: &folder, device: disk.path(), hosts: &hosts, options: &plan.options };
        let make = || ProgramRun::new(&disk_folder, plan.listed(), plan.files);
        let programs = plan.options.has_programs.then(make).transpose()?;
        run_all(plan, &place, programs.as_ref(), progress)
    });
    let _ = nectary_attach::release_stale();
    guardian.finish();
    Ok(report::report(plan, &result?, began.elapsed()))
}

fn run_all(
    plan: &SharedFilesPlan,
    place: &MountEnvironment<'_>,
    programs: Option<&ProgramRun>,
    progress: &mut (dyn FnMut(&RunProgress) + Send),
) -> Result<RunSamples, Error> {
    let of = (plan.contenders.len() * plan.rounds) as u64;
    let (mut samples, mut done) = (RunSamples::default(), 0);
    for round in 0..plan.rounds {
        for index in order(plan.contenders.len(), round) {
            let contender = &plan.contenders[index];
            progress(&RunProgress { done, of, what: format!("{}, round {}", contender.name, round + 1) });
            done += 1;
            let named = |error: Error| Error::new(error.kind, format!("{}: {}", contender.name, error.message));
            samples.threads.extend(run_one(plan, place, contender, round).map_err(named)?);
            let Some(programs) = programs.filter(|_| ProgramRun::is_of(contender)) else { continue };
            let mut running = place.set_up(contender).map_err(named)?;
            let found = programs.run(place, contender, &mut running).map_err(named)?;
            running.finish().map_err(named)?;
            let sample = |(measure, value)| ProgramSample { contender: contender.name, round, measure, value };
            samples.programs.extend(found.into_iter().map(sample));
        }
    }
    progress(&RunProgress { done, of, what: "done".to_owned() });
    Ok(samples)
}

/// Runs all loops on one contender.
fn run_one(
    plan: &SharedFilesPlan,
    place: &MountEnvironment<'_>,
    contender: &MountContender,
    round: usize,
) -> Result<Vec<ThreadSample>, Error> {
    let mut running = place.set_up(contender)?;
    let mut samples = Vec::new();
    for threads in THREADS {
        let steps = running.run(plan.loops(contender, running.root(), threads, round))?;
        samples.push(ThreadSample { contender: contender.name, threads, round, steps });
    }
    running.finish()?;
    Ok(samples)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub fn options() -> SharedFilesOptions {
        SharedFilesOptions {
            quick: false,
            only: Vec::new(),
            files: None,
            rounds: None,
            folder: PathBuf::from("."),
            juicefs: None,
            has_local_names: false,
            has_programs: false,
            seed: 1,
        }
    }

    /// A plan has what the options name, and gives a reason for each contender that does not run.
    #[test]
    fn shared_plan_lists_skipped_contenders() {
        let plan = SharedFilesPlan::new(options()).unwrap();
        assert_eq!((plan.files, plan.rounds), (FILES, ROUNDS));
        assert_eq!(plan.contenders.len() + plan.not_run.len(), CONTENDERS.len() - 2);
        let both = SharedFilesPlan::new(SharedFilesOptions {
            has_local_names: true,
            only: vec!["volume".to_owned()],
            ..options()
        })
        .unwrap();
        assert_eq!(both.contenders.iter().filter(|one| one.has_local_names()).count(), 2);
        let juicefs = plan.not_run.iter().find(|line| line.starts_with("juicefs: NOT RUN: ")).unwrap();
        assert!(juicefs.contains("ci/setup files"), "{juicefs}");
        let with_peer =
            SharedFilesPlan::new(SharedFilesOptions { juicefs: Some(PathBuf::from("/bin/true")), ..options() })
                .unwrap();
        assert!(with_peer.contenders.iter().any(|one| one.name == "juicefs"));
        let quick =
            SharedFilesPlan::new(SharedFilesOptions { quick: true, only: vec!["volume".to_owned()], ..options() })
                .unwrap();
        assert_eq!((quick.files, quick.rounds, quick.contenders.len()), (FILES_QUICK, ROUNDS_QUICK, 3));
        let few = SharedFilesPlan::new(SharedFilesOptions { files: Some(100), ..options() }).unwrap();
        assert!(few.disk_bytes() >= DISK_BYTES && few.disk_bytes().is_multiple_of(1 << 20));
    }

    #[test]
    fn what_there_is_not_is_refused() {
        let wrong = SharedFilesPlan::new(SharedFilesOptions { only: vec!["nfs".to_owned()], ..options() }).unwrap_err();
        assert!(wrong.kind == ExperimentErrorKind::Usage && wrong.message.contains("volume-client"), "{wrong}");
        assert!(SharedFilesPlan::new(SharedFilesOptions { rounds: Some(0), ..options() }).is_err());
        assert!(SharedFilesPlan::new(SharedFilesOptions { files: Some(0), ..options() }).is_err());
        assert!(SharedFilesPlan::new(SharedFilesOptions { files: Some(FILES_MAX + 1), ..options() }).is_err());
        let off = SharedFilesPlan::new(SharedFilesOptions { only: vec!["local".to_owned()], ..options() }).unwrap_err();
        assert!(off.kind == ExperimentErrorKind::Usage && off.message.contains("--local-names"), "{off}");
        let missing =
            SharedFilesPlan::new(SharedFilesOptions { only: vec!["juicefs".to_owned()], ..options() }).unwrap_err();
        assert!(missing.kind == ExperimentErrorKind::Missing && missing.message.contains("NOT RUN"), "{missing}");
    }
}
