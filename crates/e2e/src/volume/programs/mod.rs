//! Runs programs that people use on a volume whose server is killed meanwhile: a database, git, compilers, npm, `rm`,
//! and programs that deliver mail.
//!
//! Owns: one round, which is a program on one mount or several, the kills, and the checks of other mounts. The other
//! mounts must have everything that the program was told is stored. Leaves to others: the programs, one file each.
//! Promises: only other programs change files of the volume, because this process starts servers.

mod compiler;
mod database;
pub mod maildir;
mod npm_install;
mod npm_registry;
mod remove_tree;
mod repository;
mod shared_compile;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use clap::ValueEnum;

use self::npm_registry::NpmRegistry;
use super::VolumeRig;
use crate::guard::find_program;
use crate::rng::SeededRng;

/// The time limit of a program.
const LIMIT: Duration = Duration::from_secs(300);
/// The longest time without a server. *Units*: milliseconds.
const AWAY_MS_MAX: u64 = 400;
/// How often a program is run that has ended before a server was killed.
const RUNS_MAX: u32 = 8;

/// The program of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum VolumeProgram {
    /// sqlite: transactions on one mount, a reader on another
    Database,
    /// git: commits, a clone and a garbage collection on one mount, `fsck` on another
    Repository,
    /// make and cc on one mount; the program runs on another
    Compiler,
    /// make on two mounts at once, each with half of the objects; the third one links them
    SharedCompile,
    /// npm: an installation of many packages on one mount, compared with a local one on the others
    NpmInstall,
    /// rm: a large tree is removed while other mounts list it
    RemoveTree,
    /// Mail: two mounts deliver into one maildir, and two mounts claim the messages
    Maildir,
}

impl VolumeProgram {
    /// All programs.
    pub const EVERY: [VolumeProgram; 7] = [
        VolumeProgram::Database,
        VolumeProgram::Repository,
        VolumeProgram::Compiler,
        VolumeProgram::SharedCompile,
        VolumeProgram::NpmInstall,
        VolumeProgram::RemoveTree,
        VolumeProgram::Maildir,
    ];

    /// What this machine lacks for the program, if anything.
    pub fn missing(self) -> Option<String> {
        let needs: &[&str] = match self {
            VolumeProgram::Database => &["sqlite3"],
            VolumeProgram::Repository => &["git"],
            VolumeProgram::Compiler | VolumeProgram::SharedCompile => &["make", "cc"],
            VolumeProgram::NpmInstall => &["npm", "node", "tar"],
            VolumeProgram::RemoveTree | VolumeProgram::Maildir => &[],
        };
        let absent = needs.iter().find(|name| find_program(name).is_none())?;
        Some(format!("{self:?}: {absent} is not installed"))
    }

    /// Returns the program's round.
    fn round(self) -> Box<dyn ProgramRound> {
        match self {
            VolumeProgram::Database => Box::new(database::DatabaseRound),
            VolumeProgram::Repository => Box::new(repository::RepositoryRound),
            VolumeProgram::Compiler => Box::new(compiler::CompilerRound),
            VolumeProgram::SharedCompile => Box::new(shared_compile::SharedCompileRound),
            VolumeProgram::NpmInstall => Box::new(npm_install::NpmInstallRound),
            VolumeProgram::RemoveTree => Box::<remove_tree::RemoveTreeRound>::default(),
            VolumeProgram::Maildir => Box::new(maildir::MaildirRound),
        }
    }
}

/// The counts of a round.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProgramCounts {
    /// Servers that were killed while the program ran.
    pub kills: u64,
    /// Transactions, commits, objects, packages, files or messages that the program was told are stored.
    pub stored: u64,
    /// Checks of another mount while the program ran; each had to find everything that was stored before it.
    pub looks: u64,
    /// Messages that one of two readers claimed while the other one tried.
    pub contests: u64,
}

impl ProgramCounts {
    /// Adds the counts of another round.
    pub fn add(&mut self, other: &ProgramCounts) {
        let ProgramCounts { kills, stored, looks, contests } = other;
        self.kills += kills;
        self.stored += stored;
        self.looks += looks;
        self.contests += contests;
    }
}

/// The amount of work of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgramScale {
    /// A sample that takes seconds.
    Sample,
    /// Trees of 10,000 files, and as much of everything else.
    Whole,
}

impl ProgramScale {
    /// Chooses between two amounts.
    fn of<T>(self, sample: T, whole: T) -> T {
        match self {
            ProgramScale::Sample => sample,
            ProgramScale::Whole => whole,
        }
    }
}

/// What the rounds of a run have in common.
pub struct ProgramKit {
    scale: ProgramScale,
    /// The program `e2e-campaigns`, which is also the programs that deliver mail.
    worker: PathBuf,
    registry: std::sync::OnceLock<Result<NpmRegistry, String>>,
}

impl ProgramKit {
    /// Prepares rounds of this scale; `worker` is the program `e2e-campaigns`.
    pub fn new(scale: ProgramScale, worker: &Path) -> ProgramKit {
        ProgramKit { scale, worker: worker.to_owned(), registry: std::sync::OnceLock::new() }
    }

    /// The registry of packages, which the first round that needs it starts.
    fn registry(&self) -> Result<&NpmRegistry> {
        let start = || NpmRegistry::start(self.scale).map_err(|error| format!("{error:#}"));
        self.registry.get_or_init(start).as_ref().map_err(|error| anyhow!("{error}"))
    }
}

/// A round: its program and its seed.
#[derive(Debug, Clone, Copy)]
pub struct PlannedRound {
    /// The program.
    pub program: VolumeProgram,
    /// The seed of the work and of the kills.
    pub seed: u64,
}

/// The folder of a round on all mounts. A program works in `here`, and some also in the others.
struct RoundFolders<'a> {
    here: PathBuf,
    there: PathBuf,
    third: PathBuf,
    /// A folder for files that are not on the volume.
    beside: PathBuf,
    seed: u64,
    kit: &'a ProgramKit,
}

impl<'a> RoundFolders<'a> {
    /// Makes the folder of a round; the mounts change places from seed to seed.
    fn new(
        volume: &VolumeRig,
        mounts: &[PathBuf; 3],
        seed: u64,
        kit: &'a ProgramKit,
        rng: &mut SeededRng,
    ) -> Result<RoundFolders<'a>> {
        let (first, step) = (rng.index(3), 1 + rng.index(2));
        let name = format!("round-{seed}");
        let beside = volume.scratch.join(&format!("{name}-beside"));
        let [here, there, third] = [0, 1, 2].map(|turn| mounts[(first + turn * step) % 3].join(&name));
        let folders = RoundFolders { here, there, third, beside, seed, kit };
        folders.make()?;
        Ok(folders)
    }

    fn make(&self) -> Result<()> {
        fs::create_dir_all(&self.beside)?;
        run(Command::new("mkdir").arg(&self.here)).map(drop)
    }

    /// Removes everything.
    fn remove(&self) -> Result<()> {
        run(Command::new("rm").arg("-rf").arg(&self.there))?;
        for gone in self.every() {
            ensure!(fs::symlink_metadata(gone).is_err(), "{} is not removed", gone.display());
        }
        Ok(fs::remove_dir_all(&self.beside)?)
    }

    /// The folder on each mount.
    fn every(&self) -> [&Path; 3] {
        [&self.here, &self.there, &self.third]
    }
}

/// How often a server is killed, and another mount checked, while a program runs.
struct RoundPace {
    /// The longest time before a kill. *Units*: milliseconds.
    before_ms_max: u64,
    /// The number of kills, after which the program runs to its end.
    kills_max: u64,
    /// The pause between two checks of another mount. *Units*: milliseconds.
    look_every_ms: u64,
}

impl RoundPace {
    /// A sample kills earlier, and at most twice.
    fn scaled(mut self, scale: ProgramScale) -> RoundPace {
        self.before_ms_max = scale.of(self.before_ms_max.min(500), self.before_ms_max);
        self.kills_max = scale.of(self.kills_max.min(2), self.kills_max);
        self
    }
}

/// What a program does in a round.
trait ProgramRound: Sync {
    /// How often the server is killed meanwhile, and another mount checked.
    fn pace(&self) -> RoundPace {
        RoundPace { before_ms_max: 300, kills_max: 4, look_every_ms: 30 }
    }

    /// Runs the program; `stored` counts what it was told is stored. Returns the number of
    /// [contests](ProgramCounts::contests).
    fn work(&self, folders: &RoundFolders, stored: &AtomicU64) -> Result<u64>;

    /// Checks another mount while the program runs: what was stored before must be there. Returns whether there was
    /// anything to check.
    fn look(&self, folders: &RoundFolders, before: u64) -> Result<bool>;

    /// Changes something that was stored, to show that the check then fails.
    fn spoil(&self, folders: &RoundFolders) -> Result<()>;

    /// Checks the result on other mounts, after the end of the program and a restart of the server.
    fn check(&self, folders: &RoundFolders, done: &ProgramCounts) -> Result<()>;
}

/// Runs a program while the server is killed, and checks the result of its work.
pub fn round(
    volume: &mut VolumeRig,
    mounts: &[PathBuf; 3],
    plan: &PlannedRound,
    kit: &ProgramKit,
) -> Result<ProgramCounts> {
    let mut rng = SeededRng::new(plan.seed);
    let folders = RoundFolders::new(volume, mounts, plan.seed, kit, &mut rng)?;
    let (program, done) = run_until_killed(volume, plan.program, &folders, &mut rng)?;
    check(volume, program.as_ref(), &folders, &done)?;
    folders.remove()?;
    Ok(done)
}

/// As [`round`], but something that was stored is changed before the check. Returns what the check says; `None` if it
/// misses nothing.
pub fn planted_round(
    volume: &mut VolumeRig,
    mounts: &[PathBuf; 3],
    plan: &PlannedRound,
    kit: &ProgramKit,
) -> Result<Option<anyhow::Error>> {
    let mut rng = SeededRng::new(plan.seed);
    let folders = RoundFolders::new(volume, mounts, plan.seed, kit, &mut rng)?;
    let (program, done) = run_until_killed(volume, plan.program, &folders, &mut rng)?;
    program.spoil(&folders)?;
    Ok(check(volume, program.as_ref(), &folders, &done).err())
}

/// Runs a program while the server is killed. If it has ended before, it is run again, and the server is killed earlier.
fn run_until_killed(
    volume: &mut VolumeRig,
    program: VolumeProgram,
    folders: &RoundFolders,
    rng: &mut SeededRng,
) -> Result<(Box<dyn ProgramRound>, ProgramCounts)> {
    let mut pace = program.round().pace().scaled(folders.kit.scale);
    let mut runs = 0;
    loop {
        runs += 1;
        let (round, began) = (program.round(), Instant::now());
        let done = run_killed(volume, round.as_ref(), (folders, &pace), rng)?;
        if done.kills > 0 || runs == RUNS_MAX {
            return Ok((round, done));
        }
        let took_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        pace.before_ms_max = pace.before_ms_max.min(took_ms / 2).max(1);
        folders.remove()?;
        folders.make()?;
    }
}

/// Runs a program once while the server is killed.
fn run_killed(
    volume: &mut VolumeRig,
    program: &dyn ProgramRound,
    (folders, pace): (&RoundFolders, &RoundPace),
    rng: &mut SeededRng,
) -> Result<ProgramCounts> {
    let (stored, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let mut done = ProgramCounts::default();
    // This thread kills and starts servers; other threads run the program and check other mounts.
    std::thread::scope(|scope| -> Result<()> {
        let worker = scope.spawn(|| {
            let result = program.work(folders, &stored);
            is_over.store(true, Ordering::Release);
            result
        });
        let looker = scope.spawn(|| look(program, folders, &stored, &is_over));
        let killed = kill(volume, rng, pace, &is_over, &mut done.kills);
        if killed.is_err() {
            // Ends the calls that wait, so that the threads end.
            volume.kill_mounts();
        }
        let worker = worker.join().map_err(|_| anyhow!("the program's thread panicked"));
        let looks = looker.join().map_err(|_| anyhow!("the looking thread panicked"));
        killed?;
        done.contests = worker?.context("the program, while servers are killed")?;
        done.looks = looks?.context("a look of another mount")?;
        Ok(())
    })?;
    done.stored = stored.load(Ordering::Acquire);
    Ok(done)
}

/// Checks the result of a program on all mounts.
fn check(
    volume: &mut VolumeRig,
    program: &dyn ProgramRound,
    folders: &RoundFolders,
    done: &ProgramCounts,
) -> Result<()> {
    // Restart the server, so that the result does not depend on its memory.
    volume.kill_server();
    volume.serve()?;
    program.check(folders, done)?;
    for other in [&folders.there, &folders.third] {
        run(Command::new("diff").args(["-r", "--no-dereference"]).arg(&folders.here).arg(other))?;
    }
    Ok(())
}

/// Kills the server and starts it again until the program has ended.
fn kill(
    volume: &mut VolumeRig,
    rng: &mut SeededRng,
    pace: &RoundPace,
    is_over: &AtomicBool,
    kills: &mut u64,
) -> Result<()> {
    let began = Instant::now();
    while !is_over.load(Ordering::Acquire) {
        ensure!(began.elapsed() < LIMIT, "the program does not end within {LIMIT:?}");
        let until = Instant::now() + Duration::from_millis(rng.below(pace.before_ms_max));
        while Instant::now() < until && !is_over.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(2));
        }
        // Kill the server a few times at random moments; then let the program run to its end.
        if is_over.load(Ordering::Acquire) || *kills >= pace.kills_max {
            std::thread::sleep(Duration::from_millis(10));
            continue;
        }
        volume.kill_server();
        *kills += 1;
        std::thread::sleep(Duration::from_millis(rng.below(AWAY_MS_MAX)));
        volume.serve().context("a server does not start again")?;
    }
    Ok(())
}

/// Checks another mount again and again: everything that was stored before a check must be there. Returns the number of
/// checks.
fn look(program: &dyn ProgramRound, folders: &RoundFolders, stored: &AtomicU64, is_over: &AtomicBool) -> Result<u64> {
    let mut looks = 0;
    while !is_over.load(Ordering::Acquire) {
        looks += u64::from(program.look(folders, stored.load(Ordering::Acquire))?);
        let next = Instant::now() + Duration::from_millis(program.pace().look_every_ms);
        while Instant::now() < next && !is_over.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    Ok(looks)
}

/// The command with a fixed language of its messages.
fn tool(name: &str) -> Command {
    let mut command = Command::new(name);
    command.env("LC_ALL", "C");
    command
}

/// Runs a command to its end; an error contains its output.
fn run(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start {command:?}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(3000)..]).into_owned();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    ensure!(output.status.success(), "{command:?} ended with {}\n{stdout}\n{stderr}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a command that lists files while others remove them. Its messages may only say that a file does not exist any
/// more. Returns what it printed.
fn list(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start {command:?}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    let other = errors.lines().find(|line| !line.ends_with("No such file or directory"));
    ensure!(other.is_none(), "{command:?}: {other:?}");
    ensure!(output.status.success() || !errors.is_empty(), "{command:?} ended with {}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
