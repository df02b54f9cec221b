//! Programs on a shared volume and its peers: `ls -l` of a large directory, git, and two hosts that create files at once.
//!
//! Owns: what is run, in which order, and its clock. Before each `ls -l` and the look-ups after it the kernel forgets
//! names and attributes, and a volume is mounted again, so that nothing is in memory but on the server. Leaves to others:
//! how contenders are set up (`contender`).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::contender::{ContenderMountKind, MountContender, MountEnvironment, RunningMount};
use crate::Error;
use crate::files::prefixed::PrefixedFiles;
use crate::process;
use crate::workload::content;

/// The directories of the repository, and the files in each.
const REPOSITORY: (u32, u32) = (200, 25);
/// The size of a file of the repository. *Units*: bytes.
const REPOSITORY_FILE_BYTES: u32 = 2000;
/// The environment in which git reads no settings of this machine.
const GIT_ENVIRONMENT: [(&str, &str); 4] = [
    ("GIT_CONFIG_NOSYSTEM", "1"),
    ("HOME", "/nonexistent"),
    ("GIT_AUTHOR_DATE", "2026-01-01T00:00:00Z"),
    ("GIT_COMMITTER_DATE", "2026-01-01T00:00:00Z"),
];
/// Longer than the kernel shows names and attributes of a volume without a question.
const UNTIL_STALE: Duration = Duration::from_secs(5);

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ProgramMeasure {
    /// `ls -l` of the large directory.
    List,
    /// The attributes of each of its names, one after another, after the kernel has forgotten them.
    StatStale,
    /// `git clone` of a local repository.
    GitClone,
    /// `git status`, directly after another one.
    GitStatus,
    /// `git status` after the times of names and attributes are over.
    GitStatusLater,
    /// One host creates files, in one directory.
    OneHost,
    /// Two hosts create files in one directory.
    OneDirectory,
    /// Two hosts create files, each in its directory.
    TwoDirectories,
}

impl ProgramMeasure {
    /// All of them, in the order of the tables.
    pub const ALL: [ProgramMeasure; 8] = [
        ProgramMeasure::List,
        ProgramMeasure::StatStale,
        ProgramMeasure::GitClone,
        ProgramMeasure::GitStatus,
        ProgramMeasure::GitStatusLater,
        ProgramMeasure::OneHost,
        ProgramMeasure::OneDirectory,
        ProgramMeasure::TwoDirectories,
    ];

    /// Its name in figures.
    pub fn name(self) -> &'static str {
        match self {
            ProgramMeasure::List => "ls",
            ProgramMeasure::StatStale => "stat-stale",
            ProgramMeasure::GitClone => "git-clone",
            ProgramMeasure::GitStatus => "git-status",
            ProgramMeasure::GitStatusLater => "git-status-later",
            ProgramMeasure::OneHost => "create-one-host",
            ProgramMeasure::OneDirectory => "create-one-directory",
            ProgramMeasure::TwoDirectories => "create-two-directories",
        }
    }

    /// The unit of its values.
    pub fn unit(self) -> &'static str {
        match self {
            ProgramMeasure::List
            | ProgramMeasure::GitClone
            | ProgramMeasure::GitStatus
            | ProgramMeasure::GitStatusLater => "s",
            _ => "1/s",
        }
    }
}

/// What was measured of one contender in one round.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct ProgramSample {
    pub contender: &'static str,
    pub round: usize,
    pub measure: ProgramMeasure,
    /// A time in seconds, or a number a second.
    pub value: f64,
}

/// The programs, and what they work on.
pub(super) struct ProgramRun {
    /// A repository on a local file system.
    repository: PathBuf,
    /// The number of names in the large directory.
    listed: u32,
    /// The number of files that each host creates.
    created: u32,
}

impl ProgramRun {
    /// The program that this needs, and its Debian package.
    pub const NEEDS: (&'static str, &'static str) = ("git", "git");

    /// Makes the repository in `folder`.
    pub fn new(folder: &Path, listed: u32, created: u32) -> Result<ProgramRun, Error> {
        let repository = folder.join("repository");
        for directory in 0..REPOSITORY.0 {
            let below = repository.join(format!("part-{directory:03}"));
            fs::create_dir_all(&below).map_err(|error| Error::failed(below.display(), error))?;
            for file in 0..REPOSITORY.1 {
                let path = below.join(format!("unit-{file:02}.txt"));
                let body = content::body(directory * REPOSITORY.1 + file, REPOSITORY_FILE_BYTES);
                fs::write(&path, body).map_err(|error| Error::failed(path.display(), error))?;
            }
        }
        git(&repository, &["init", "--quiet"])?;
        git(&repository, &["add", "--all"])?;
        let identity = ["-c", "user.name=bench", "-c", "user.email=bench@localhost", "-c", "commit.gpgsign=false"];
        git(&repository, &[&identity[..], &["commit", "--quiet", "--message", "all files"]].concat())?;
        git(&repository, &["repack", "-adq"])?;
        Ok(ProgramRun { repository, listed, created })
    }

    /// Whether programs run on this contender: twice the same one, and one that flushes each step, tell nothing more.
    pub fn is_of(contender: &MountContender) -> bool {
        contender.name != super::contender::AGAIN && !contender.is_flushed_each()
    }

    /// Runs the programs on a contender that is set up.
    pub fn run(
        &self,
        place: &MountEnvironment<'_>,
        contender: &MountContender,
        running: &mut RunningMount,
    ) -> Result<Vec<(ProgramMeasure, f64)>, Error> {
        let mut found = self.listing(place, running)?;
        if contender.kind != ContenderMountKind::Bare {
            found.extend(self.git(running.root())?);
        }
        if matches!(contender.kind, ContenderMountKind::Volume { .. }) {
            found.extend(self.two_hosts(place, running)?);
        }
        Ok(found)
    }

    /// Makes the large directory and lists it.
    fn listing(
        &self,
        place: &MountEnvironment<'_>,
        running: &mut RunningMount,
    ) -> Result<Vec<(ProgramMeasure, f64)>, Error> {
        let files =
            PrefixedFiles { folder: made(running.root(), "listed")?, prefix: "name-".to_owned(), files: self.listed };
        running.create(files.clone())?;
        running.mount_again(place)?;
        forget_names()?;
        let began = Instant::now();
        let said = process::run(Command::new("ls").env("LC_ALL", "C").arg("-l").arg(&files.folder))?;
        let list_s = began.elapsed().as_secs_f64();
        let names = said.lines().filter(|line| line.contains("name-")).count();
        if names != self.listed as usize {
            return Err(Error::failed("ls -l", format!("it shows {names} names, there are {}", self.listed)));
        }
        forget_names()?;
        let stat_s = running.stat(files)?;
        Ok(vec![(ProgramMeasure::List, list_s), (ProgramMeasure::StatStale, f64::from(self.listed) / stat_s)])
    }

    fn git(&self, root: &Path) -> Result<Vec<(ProgramMeasure, f64)>, Error> {
        let clone = root.join("clone");
        let words = ["clone", "--quiet", "--no-hardlinks", &path_text(&self.repository), &path_text(&clone)];
        let clone_s = timed(|| git(Path::new("/"), &words))?;
        // The first one writes the index again.
        status(&clone)?;
        let status_s = timed(|| status(&clone))?;
        std::thread::sleep(UNTIL_STALE);
        let later_s = timed(|| status(&clone))?;
        Ok(vec![
            (ProgramMeasure::GitClone, clone_s),
            (ProgramMeasure::GitStatus, status_s),
            (ProgramMeasure::GitStatusLater, later_s),
        ])
    }

    /// Lets one host create files, then both in one directory, then each in its own.
    fn two_hosts(
        &self,
        place: &MountEnvironment<'_>,
        running: &mut RunningMount,
    ) -> Result<Vec<(ProgramMeasure, f64)>, Error> {
        let made_in = |name: &str, prefix: &str| -> Result<PrefixedFiles, Error> {
            Ok(PrefixedFiles { folder: made(running.root(), name)?, prefix: prefix.to_owned(), files: self.created })
        };
        let alone = made_in("alone", "a-")?;
        let (shared, own) = (made_in("shared", "a-")?, made_in("own", "a-")?);
        let alone_s = running.create(alone)?;
        let mut second = running.mount_on_other_host(place)?;
        let other_shared =
            PrefixedFiles { folder: second.root().join("shared"), prefix: "b-".to_owned(), files: shared.files };
        let other_own = PrefixedFiles { folder: made(second.root(), "other")?, ..other_shared.clone() };
        let shared_s = at_once(running, shared, &mut second, other_shared)?;
        let own_s = at_once(running, own, &mut second, other_own)?;
        second.finish()?;
        let files = f64::from(self.created);
        Ok(vec![
            (ProgramMeasure::OneHost, files / alone_s),
            (ProgramMeasure::OneDirectory, 2.0 * files / shared_s),
            (ProgramMeasure::TwoDirectories, 2.0 * files / own_s),
        ])
    }
}

/// Lets two mounts create files at the same time. *Returns*: the time until both are done. *Units*: seconds.
fn at_once(
    one: &mut RunningMount,
    of_one: PrefixedFiles,
    other: &mut super::contender::SecondMount,
    of_other: PrefixedFiles,
) -> Result<f64, Error> {
    let began = Instant::now();
    std::thread::scope(|scope| {
        let beside = scope.spawn(|| other.create(of_other));
        let here = one.create(of_one);
        let there = beside.join().unwrap_or_else(|_| Err(Error::failed("a thread of the loops", "it panicked")));
        here.and(there)
    })?;
    Ok(began.elapsed().as_secs_f64())
}

fn made(root: &Path, name: &str) -> Result<PathBuf, Error> {
    let path = root.join(name);
    fs::create_dir(&path).map_err(|error| Error::failed(path.display(), error))?;
    Ok(path)
}

fn timed<T>(step: impl FnOnce() -> Result<T, Error>) -> Result<f64, Error> {
    let began = Instant::now();
    step()?;
    Ok(began.elapsed().as_secs_f64())
}

/// The kernel forgets all names and attributes that no program uses, of all file systems.
fn forget_names() -> Result<(), Error> {
    let path = "/proc/sys/vm/drop_caches";
    fs::write(path, "2").map_err(|error| Error::failed(path, error))
}

fn path_text(path: &Path) -> String {
    path.display().to_string()
}

fn git(folder: &Path, words: &[&str]) -> Result<String, Error> {
    process::run(Command::new("git").current_dir(folder).envs(GIT_ENVIRONMENT).args(words))
}

/// *Errors*: git failed, or says that something has changed.
fn status(clone: &Path) -> Result<(), Error> {
    // The directory belongs to another user than the one whose mount it is on some file systems.
    let words = ["-c", "safe.directory=*", "-C", &path_text(clone), "status", "--porcelain"];
    let said = git(Path::new("/"), &words)?;
    match said.is_empty() {
        true => Ok(()),
        false => {
            Err(Error::failed("git status", format!("a clone has changed: {}", said.lines().next().unwrap_or(""))))
        }
    }
}
