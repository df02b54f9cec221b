//! Runs programs that people use on a volume whose server is killed meanwhile: a database, git, and a compiler.
//!
//! Owns: one round, which is a program on one mount, the kills, and the check of another mount. The other mount must
//! have everything that the program was told is stored. Promises: only other programs change files of the volume,
//! because this process starts servers.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::VolumeRig;
use crate::rng::SeededRng;

/// The number of transactions of a database.
const TRANSACTIONS: u64 = 60;
/// The number of rows of a transaction.
const ROWS: u64 = 3;
/// The number of commits of a repository.
const COMMITS: u64 = 3;
/// The number of files of a repository.
const FILES: u64 = 40;
/// The number of units of a C program.
const UNITS: u64 = 12;
/// The longest time before a kill. *Units*: milliseconds.
const BEFORE_MS_MAX: u64 = 300;
/// The longest time without a server. *Units*: milliseconds.
const AWAY_MS_MAX: u64 = 400;
/// The time limit of a program.
const LIMIT: Duration = Duration::from_secs(240);

/// The program of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VolumeProgram {
    /// sqlite: transactions on one mount, a reader on the other.
    Database,
    /// git: commits, a clone and a garbage collection on one mount, `fsck` on the other.
    Repository,
    /// make and cc on one mount; the program runs on the other.
    Compiler,
}

impl VolumeProgram {
    /// All programs.
    pub const EVERY: [VolumeProgram; 3] = [VolumeProgram::Database, VolumeProgram::Repository, VolumeProgram::Compiler];
}

/// The counts of a round.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProgramCounts {
    /// Servers that were killed while the program ran.
    pub kills: u64,
    /// Transactions, commits or units that the program was told are stored.
    pub stored: u64,
    /// Checks of the other mount while the program ran; each had to find everything that was stored before it.
    pub looks: u64,
}

/// The folder of a round on both mounts; the program runs in `here`.
struct RoundFolders {
    here: PathBuf,
    there: PathBuf,
    /// A folder for files that are not on the volume.
    beside: PathBuf,
}

/// Runs a program while the server is killed, and checks the result of its work. With `planted`, something that was
/// stored is removed before the check, which must then fail.
pub fn round(
    volume: &mut VolumeRig,
    mounts: [&Path; 2],
    kind: VolumeProgram,
    seed: u64,
    planted: bool,
) -> Result<ProgramCounts> {
    let mut rng = SeededRng::new(seed);
    let first = rng.index(2);
    let name = format!("round-{seed}");
    let beside = volume.scratch.join(&format!("{name}-beside"));
    fs::create_dir_all(&beside)?;
    let place = RoundFolders { here: mounts[first].join(&name), there: mounts[1 - first].join(&name), beside };
    run(Command::new("mkdir").arg(&place.here))?;
    let (stored, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let mut done = ProgramCounts::default();
    // This thread kills and starts servers; other threads run the program and check the other mount.
    std::thread::scope(|scope| -> Result<()> {
        let program = scope.spawn(|| {
            let result = match kind {
                VolumeProgram::Database => transact(&place, &stored),
                VolumeProgram::Repository => version(&place, &stored, seed),
                VolumeProgram::Compiler => compile(&place, &stored),
            };
            is_over.store(true, Ordering::Release);
            result
        });
        let looker = scope.spawn(|| look(&place, kind, &stored, &is_over));
        let killed = kill(volume, &mut rng, &is_over, &mut done.kills);
        let program = program.join().map_err(|_| anyhow::anyhow!("the program's thread panicked"));
        let looks = looker.join().map_err(|_| anyhow::anyhow!("the looking thread panicked"));
        killed.context("a server does not start again")?;
        program?.context(format!("{kind:?} under kills"))?;
        done.looks = looks?.context("a look of the other mount")?;
        Ok(())
    })?;
    done.stored = stored.load(Ordering::Acquire);
    if planted {
        take_away(&place, kind)?;
    }
    // Restart the server, so that the result does not depend on its memory.
    volume.kill_server();
    volume.serve()?;
    match kind {
        VolumeProgram::Database => check_database(&place, done.stored, true)?,
        VolumeProgram::Repository => check_repository(&place)?,
        VolumeProgram::Compiler => check_compiled(&place)?,
    }
    run(Command::new("diff").args(["-r", "--no-dereference"]).arg(&place.here).arg(&place.there))?;
    run(Command::new("rm").arg("-rf").arg(&place.there))?;
    ensure!(fs::symlink_metadata(&place.here).is_err(), "{} is not removed", place.here.display());
    Ok(done)
}

/// Kills the server and starts it again until the program has ended.
fn kill(volume: &mut VolumeRig, rng: &mut SeededRng, is_over: &AtomicBool, kills: &mut u64) -> Result<()> {
    let began = Instant::now();
    while !is_over.load(Ordering::Acquire) {
        ensure!(began.elapsed() < LIMIT, "the program does not end within {LIMIT:?}");
        let until = Instant::now() + Duration::from_millis(rng.below(BEFORE_MS_MAX));
        while Instant::now() < until && !is_over.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(2));
        }
        // Kill the server a few times at random moments; then let the program run to its end.
        if is_over.load(Ordering::Acquire) || *kills >= 4 {
            std::thread::sleep(Duration::from_millis(10));
            continue;
        }
        volume.kill_server();
        *kills += 1;
        std::thread::sleep(Duration::from_millis(rng.below(AWAY_MS_MAX)));
        volume.serve()?;
    }
    Ok(())
}

/// Checks the other mount again and again: everything that was stored before a check must be there. Returns the number
/// of checks.
fn look(place: &RoundFolders, kind: VolumeProgram, stored: &AtomicU64, is_over: &AtomicBool) -> Result<u64> {
    let mut looks = 0;
    while !is_over.load(Ordering::Acquire) {
        let before = stored.load(Ordering::Acquire);
        if before > 0 {
            match kind {
                VolumeProgram::Database => check_database(place, before, false)?,
                VolumeProgram::Repository => {
                    let known = commits(place)?;
                    let repository = place.there.join("repository");
                    for commit in &known[..before as usize] {
                        run(git(&repository).args(["cat-file", "-e", &format!("{commit}^{{tree}}")]))?;
                    }
                }
                VolumeProgram::Compiler => {
                    for unit in 0..before {
                        run(Command::new("test").arg("-s").arg(place.there.join(format!("unit_{unit}.o"))))?;
                    }
                }
            }
            looks += 1;
        }
        std::thread::sleep(Duration::from_millis(30));
    }
    Ok(looks)
}

/// Removes something that was stored, to show that the check then fails.
fn take_away(place: &RoundFolders, kind: VolumeProgram) -> Result<()> {
    match kind {
        VolumeProgram::Database => run(&mut sqlite(&place.there.join("database"), "DELETE FROM t WHERE id = 7;")),
        VolumeProgram::Repository => {
            let script =
                "rm \"$(find . -path './.git/objects/??/*' -o -path './.git/objects/pack/*.pack' | sort | head -n1)\"";
            run(Command::new("sh").args(["-c", script]).current_dir(place.there.join("repository")))
        }
        VolumeProgram::Compiler => run(Command::new("truncate").args(["-s", "100"]).arg(place.there.join("unit_3.o"))),
    }
    .map(drop)
}

/// Runs a command to its end; an error contains its output.
fn run(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start {command:?}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(3000)..]).into_owned();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    ensure!(output.status.success(), "{command:?} ended with {}\n{stdout}\n{stderr}", output.status);
    Ok(stdout)
}

fn sqlite(database: &Path, statements: &str) -> Command {
    let mut command = Command::new("sqlite3");
    command.args(["-batch", "-bail", "-cmd", ".timeout 60000"]).arg(database).arg(statements);
    command
}

/// Makes one transaction after another; a transaction counts as stored when sqlite says so.
fn transact(place: &RoundFolders, stored: &AtomicU64) -> Result<()> {
    let mut command = Command::new("sqlite3");
    command.args(["-batch", "-bail"]).arg(place.here.join("database"));
    let log = fs::File::create(place.beside.join("database.log"))?;
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log).spawn()?;
    let result = feed(&mut child, stored);
    let status = child.wait()?;
    let log = fs::read_to_string(place.beside.join("database.log"))?;
    result.context(log.clone())?;
    ensure!(status.success(), "sqlite3 ended with {status}: {log}");
    Ok(())
}

fn feed(child: &mut std::process::Child, stored: &AtomicU64) -> Result<()> {
    let mut input = child.stdin.take().context("it has an input")?;
    let mut lines = BufReader::new(child.stdout.take().context("it has an output")?).lines();
    writeln!(input, ".timeout 60000\nPRAGMA synchronous=FULL;")?;
    writeln!(input, "CREATE TABLE t(id INTEGER PRIMARY KEY, number INTEGER, text TEXT);")?;
    for transaction in 0..TRANSACTIONS {
        writeln!(input, "BEGIN;")?;
        for row in 0..ROWS {
            let id = transaction * ROWS + row;
            writeln!(input, "INSERT INTO t VALUES({id}, {}, hex(zeroblob(200)));", number(id))?;
        }
        writeln!(input, "COMMIT;\nSELECT 'stored {transaction}';")?;
        let told = format!("stored {transaction}");
        loop {
            match lines.next() {
                Some(line) if line.as_ref().is_ok_and(|line| *line == told) => break,
                Some(line) => drop(line?),
                None => bail!("it ended before transaction {transaction} was stored"),
            }
        }
        stored.store(transaction + 1, Ordering::Release);
    }
    Ok(())
}

fn number(id: u64) -> u64 {
    id * 7919 % 10_007
}

/// Checks the database on the other mount: it must have all stored transactions, only whole transactions, and no
/// damage.
fn check_database(place: &RoundFolders, stored: u64, is_last: bool) -> Result<()> {
    let statement = "SELECT id || ' ' || number FROM t ORDER BY id; PRAGMA integrity_check;";
    let text = run(&mut sqlite(&place.there.join("database"), statement))?;
    let mut lines: Vec<&str> = text.lines().collect();
    ensure!(lines.pop() == Some("ok"), "the database is damaged: {text}");
    let rows = lines.len() as u64;
    let enough = if is_last { rows == stored * ROWS } else { rows >= stored * ROWS };
    ensure!(enough && rows.is_multiple_of(ROWS), "{rows} rows after {stored} transactions");
    for (id, line) in (0..).zip(&lines) {
        ensure!(*line == format!("{id} {}", number(id)), "row {id} is {line}");
    }
    Ok(())
}

fn git(place: &Path) -> Command {
    let mut command = Command::new("git");
    command.arg("-C").arg(place).env("GIT_CONFIG_NOSYSTEM", "1").env("HOME", "/nonexistent");
    // Ignore the user's configuration, and leave no process in the background after a command has ended.
    for setting in
        ["user.name=nectary", "user.email=nectary@localhost", "commit.gpgsign=false", "gc.auto=0", "safe.directory=*"]
    {
        command.args(["-c", setting]);
    }
    command
}

/// Writes files with a shell, so that this process opens no file of the volume.
fn write_files(folder: &Path, seed: u64, files: u64) -> Result<()> {
    const SCRIPT: &str = "set -e; i=0; while [ $i -lt $2 ]; do mkdir -p folder-$((i % 7)); \
        { echo \"$1 $i\"; seq $(( ($1 * 31 + i * 17) % 700 )); } > folder-$((i % 7))/file-$i; i=$((i + 1)); done";
    let (seed, files) = ((seed % 100_000).to_string(), files.to_string());
    run(Command::new("sh").args(["-c", SCRIPT, "sh", &seed, &files]).current_dir(folder)).map(drop)
}

/// Returns the commits that git has reported.
fn commits(place: &RoundFolders) -> Result<Vec<String>> {
    Ok(fs::read_to_string(place.beside.join("commits"))?.lines().map(str::to_owned).collect())
}

/// Makes commits, then a clone and a garbage collection.
fn version(place: &RoundFolders, stored: &AtomicU64, seed: u64) -> Result<()> {
    let repository = place.here.join("repository");
    run(Command::new("git").args(["init", "-q"]).arg(&repository).env("HOME", "/nonexistent"))?;
    let mut known = fs::File::create(place.beside.join("commits"))?;
    for commit in 0..COMMITS {
        write_files(&repository, seed + commit, FILES)?;
        run(git(&repository).args(["add", "."]))?;
        run(git(&repository).args(["commit", "-q", "-m", &format!("commit {commit}")]))?;
        known.write_all(run(git(&repository).args(["rev-parse", "HEAD"]))?.as_bytes())?;
        stored.store(commit + 1, Ordering::Release);
    }
    run(git(&place.here).args(["clone", "-q", "--no-local"]).arg(&repository).arg(place.here.join("clone")))?;
    run(git(&repository).args(["gc", "-q"]))?;
    Ok(())
}

fn check_repository(place: &RoundFolders) -> Result<()> {
    let expected = commits(place)?;
    for name in ["repository", "clone"] {
        let folder = place.there.join(name);
        run(git(&folder).args(["fsck", "--full", "--strict"]))?;
        let found = run(git(&folder).args(["rev-list", "--reverse", "HEAD"]))?;
        ensure!(found.lines().eq(expected.iter().map(String::as_str)), "{name} has {found}, not {expected:?}");
        let state = run(git(&folder).args(["status", "--porcelain"]))?;
        ensure!(state.is_empty(), "{name} has changes: {state}");
    }
    Ok(())
}

/// Compiles units one after another and links them.
fn compile(place: &RoundFolders, stored: &AtomicU64) -> Result<()> {
    const SCRIPT: &str = r#"set -e; i=0; while [ $i -lt $1 ]; do n=$((i + 1)); r="unit_$n(value + $i)";
        [ $n -lt $1 ] || r=value
        printf 'long unit_%d(long);\nlong unit_%d(long value) { return %s; }\n' $n $i "$r" > unit_$i.c; i=$n; done
        printf '#include <stdio.h>\nlong unit_0(long);\nint main(void) { printf("%%ld\\n", unit_0(0)); }\n' > main.c
        printf 'program: $(patsubst %%.c,%%.o,$(wildcard *.c))\n\tcc -o $@ $^\n' > Makefile"#;
    run(Command::new("sh").args(["-c", SCRIPT, "sh", &UNITS.to_string()]).current_dir(&place.here))?;
    for unit in 0..UNITS {
        run(Command::new("make").arg("-C").arg(&place.here).arg(format!("unit_{unit}.o")))?;
        stored.store(unit + 1, Ordering::Release);
    }
    run(Command::new("make").args(["-j2", "-C"]).arg(&place.here).arg("program")).map(drop)
}

fn check_compiled(place: &RoundFolders) -> Result<()> {
    // Run the program that the other mount has, and then the program after it was linked again there.
    let sum: u64 = (0..UNITS - 1).sum();
    for again in [false, true] {
        if again {
            run(Command::new("rm").arg(place.there.join("program")))?;
        }
        run(Command::new("make").args([if again { "-k" } else { "-q" }, "-C"]).arg(&place.there).arg("program"))?;
        let found = run(&mut Command::new(place.there.join("program")))?;
        ensure!(found.trim() == sum.to_string(), "the program prints {found}, not {sum}");
    }
    Ok(())
}
