//! Runs databases on a volume whose mount is killed under load, and checks that every commit that a client was told of
//! is there afterwards.
//!
//! Owns: the database's processes, the clients, the kill, and the check. What a client was told is recorded outside of
//! the volume. Promises: the process of the mount gets SIGKILL while clients commit; the database gets it right after,
//! so nothing repairs what the mount lost. A planted loss is the database's own: it acknowledges commits before they
//! are durable.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::apart::apart;
use super::{LIMIT, VolumeRig};
use crate::guard::GuardedProcess;
use crate::rng::SeededRng;
use crate::scratch::ScratchFolder;

/// The folder of the versions of PostgreSQL, and of its programs in that of a version.
const VERSIONS: &str = "/usr/lib/postgresql";
/// The clients that commit at the same time.
const CLIENTS: u64 = 4;
/// The user and group of the server of PostgreSQL, which refuses to run as root.
const NOBODY: u32 = 65534;
/// The least number of commits before a kill.
const COMMITS_MIN: u64 = 20;
/// The shortest and the longest time of a load before a kill. *Units*: milliseconds.
const LOAD_MS: (u64, u64) = (300, 1500);
/// How much of the output of a program that fails is shown. *Units*: bytes.
const SHOWN_BYTES: usize = 3000;
/// The rows of a transaction of SQLite.
const ROWS: u64 = 3;
/// The time between two looks at something that changes.
const STEP: Duration = Duration::from_millis(5);

/// The journal modes of SQLite.
pub const JOURNAL_MODES: [&str; 2] = ["delete", "wal"];

/// The outcome of a round.
#[derive(Debug, Clone, Default)]
pub struct DatabaseOutcome {
    /// The commits that clients were told of before the kill.
    pub commits: u64,
    /// What is wrong with the database after the kill.
    pub lost: Vec<String>,
}

/// The programs of PostgreSQL on this machine; `None` if it is not installed.
pub fn programs_of_postgres() -> Option<PathBuf> {
    let versions = fs::read_dir(VERSIONS).ok()?.flatten().map(|entry| entry.path().join("bin"));
    let complete =
        versions.filter(|folder| ["initdb", "postgres", "psql"].iter().all(|name| folder.join(name).exists()));
    complete.max()
}

/// Runs a command to its end; an error contains its output.
fn run(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start {command:?}"))?;
    let end = |bytes: &[u8]| String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(SHOWN_BYTES)..]).into_owned();
    if !output.status.success() {
        bail!("{command:?} ended with {}\n{}\n{}", output.status, end(&output.stdout), end(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A command as the user [`NOBODY`].
fn as_nobody(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args([format!("--reuid={NOBODY}"), format!("--regid={NOBODY}")]);
    command.args(["--clear-groups", "--"]).arg(program).env("LC_ALL", "C");
    command
}

/// Loads a database with `client`, which commits and counts until its database is gone, until there are enough commits;
/// then calls `kill`. Returns the number of commits that each client was told of.
fn load(
    rng: &mut SeededRng,
    clients: u64,
    client: impl Fn(u64, &AtomicU64) + Sync,
    kill: impl FnOnce(),
) -> Result<Vec<u64>> {
    let told: Vec<AtomicU64> = (0..clients).map(|_| AtomicU64::new(0)).collect();
    let total = || told.iter().map(|told| told.load(Ordering::Acquire)).sum::<u64>();
    let time = Duration::from_millis(LOAD_MS.0 + rng.below(LOAD_MS.1 - LOAD_MS.0));
    let enough = std::thread::scope(|scope| {
        for (number, told) in (0..).zip(&told) {
            let client = &client;
            scope.spawn(move || client(number, told));
        }
        let began = Instant::now();
        while began.elapsed() < time || (total() < COMMITS_MIN && began.elapsed() < LIMIT) {
            std::thread::sleep(STEP);
        }
        let enough = total() >= COMMITS_MIN;
        kill();
        enough
    });
    ensure!(enough, "only {} commits within {LIMIT:?}", total());
    Ok(told.into_iter().map(AtomicU64::into_inner).collect())
}

/// Feeds a program with one statement after another. After each it prints `told N`, which counts as soon as it is read.
/// Ends when the program does.
fn feed(
    mut child: Child,
    begin: &str,
    statement: impl Fn(u64) -> String,
    tell: impl Fn(u64) -> String,
    told: &AtomicU64,
) {
    let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else { return };
    let mut lines = BufReader::new(output).lines();
    let mut run = || -> Option<()> {
        writeln!(input, "{begin}").ok()?;
        for number in 0.. {
            writeln!(input, "{}\n{}", statement(number), tell(number)).ok()?;
            let wanted = format!("told {number}");
            while lines.next()?.ok()? != wanted {}
            told.store(number + 1, Ordering::Release);
        }
        None
    };
    run();
    drop(input);
    let _ = child.kill();
    let _ = child.wait();
}

/// A cluster of PostgreSQL on a volume, whose mount is killed in each round.
pub struct PostgresCluster {
    programs: PathBuf,
    /// The folder of the socket and of the server's log, outside of the volume.
    beside: ScratchFolder,
    volume: VolumeRig,
    /// The mount that is used now, and its number.
    mount: (usize, PathBuf),
    server: Option<GuardedProcess>,
    /// For each client of the rounds so far, the commits that it was told of.
    told: Vec<u64>,
}

impl PostgresCluster {
    /// Makes a volume with a new cluster.
    pub fn new(programs: PathBuf) -> Result<PostgresCluster> {
        let beside = ScratchFolder::new("postgres")?;
        chown(beside.path(), Some(NOBODY), Some(NOBODY))?;
        let template = beside.join("template");
        let mut initdb = as_nobody(&programs.join("initdb"));
        initdb.args([
            "-U",
            "postgres",
            "-A",
            "trust",
            "--locale=C",
            "-E",
            "UTF8",
            "--no-sync",
            "--wal-segsize=1",
            "-D",
        ]);
        run(initdb.arg(&template).current_dir("/"))?;
        let mut volume = VolumeRig::new("1G")?;
        let directory = volume.mount()?;
        run(Command::new("cp").arg("-a").arg(&template).arg(directory.join("cluster")))?;
        let mut cluster =
            PostgresCluster { programs, beside, volume, mount: (0, directory), server: None, told: Vec::new() };
        cluster.start(&[])?;
        cluster.ask(
            "CREATE TABLE commits(client bigint, number bigint, text text, PRIMARY KEY (client, number)); CHECKPOINT",
        )?;
        cluster.stop();
        Ok(cluster)
    }

    /// The values of `wal_sync_method` that this build supports.
    pub fn methods(&mut self) -> Result<Vec<String>> {
        self.start(&[])?;
        let words = self.ask("SELECT unnest(enumvals) FROM pg_settings WHERE name = 'wal_sync_method'")?;
        self.stop();
        Ok(words.lines().map(str::to_owned).collect())
    }

    fn psql(&self) -> Command {
        let mut command = Command::new(self.programs.join("psql"));
        command.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-U", "postgres", "-d", "postgres", "-h"]);
        command.arg(self.beside.path()).current_dir("/");
        command
    }

    fn ask(&self, statement: &str) -> Result<String> {
        run(self.psql().args(["-c", statement]))
    }

    /// Starts the server, in its own process namespace, so that all its processes can be killed at once; waits until it
    /// has recovered.
    fn start(&mut self, settings: &[(&str, &str)]) -> Result<()> {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child=SIGKILL", "--"]);
        let server = as_nobody(&self.programs.join("postgres"));
        command.arg(server.get_program()).args(server.get_args()).env("LC_ALL", "C").current_dir("/");
        command.arg("-D").arg(self.mount.1.join("cluster")).arg("-k").arg(self.beside.path());
        let fixed = [("listen_addresses", ""), ("shared_buffers", "16MB"), ("max_connections", "20")];
        for (name, value) in fixed.iter().chain(settings) {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        let log = self.beside.join("server.log");
        let mut server = apart(move || GuardedProcess::spawn("postgres", command, &log, None))?;
        let began = Instant::now();
        while self.ask("SELECT 1").is_err() {
            let has_ended = server.try_status().is_some();
            ensure!(!has_ended && began.elapsed() < LIMIT, "it does not start\n{}", server.log_tail());
            std::thread::sleep(Duration::from_millis(50));
        }
        self.server = Some(server);
        Ok(())
    }

    /// Kills all processes of the server.
    fn stop(&mut self) {
        if let Some(mut server) = self.server.take() {
            server.kill();
        }
    }

    /// Commits with this method of syncing the log, kills the mount under the load, mounts the volume again, and checks
    /// the recovered cluster. With `planted`, commits are acknowledged before they are durable.
    pub fn round(&mut self, method: &str, seed: u64, planted: bool) -> Result<DatabaseOutcome> {
        let settings = [("wal_sync_method", method), ("synchronous_commit", if planted { "off" } else { "on" })];
        self.start(&settings)?;
        let first = self.told.len() as u64;
        let base = self.psql();
        let client = |number: u64, told: &AtomicU64| {
            let mut command = Command::new(base.get_program());
            command.args(base.get_args()).current_dir("/").stdin(Stdio::piped()).stdout(Stdio::piped());
            let Ok(child) = command.stderr(Stdio::null()).spawn() else { return };
            let statement = |at| {
                let client = first + number;
                format!("INSERT INTO commits VALUES ({client}, {at}, repeat(md5('{client} {at}'), 4));")
            };
            feed(child, "", statement, |at| format!("\\echo told {at}"), told);
        };
        let (mut server, volume, index) = (self.server.take(), &mut self.volume, self.mount.0);
        let told = load(&mut SeededRng::new(seed), CLIENTS, client, || {
            volume.kill_mount(index);
            server.iter_mut().for_each(GuardedProcess::kill);
        })?;
        let commits = told.iter().sum();
        self.told.extend(told);
        let directory = self.volume.mount()?;
        self.mount = (index + 1, directory);
        self.start(&settings[..1])?;
        let lost = self.check()?;
        self.stop();
        if !lost.is_empty() {
            // What is lost now must not count in the next round.
            self.told.iter_mut().for_each(|told| *told = 0);
        }
        Ok(DatabaseOutcome { commits, lost })
    }

    /// Compares the cluster with what the clients were told.
    fn check(&self) -> Result<Vec<String>> {
        let mut lost = Vec::new();
        let statement = "SET enable_indexscan = off; SET enable_indexonlyscan = off; SET enable_bitmapscan = off; \
                         SELECT client, count(*), max(number), bool_and(text = repeat(md5(client || ' ' || number), 4)) \
                         FROM commits GROUP BY client";
        let text = self.ask(statement)?;
        let mut rows = vec![(0, true); self.told.len()];
        for line in text.lines() {
            let mut fields = line.split('|');
            let mut number = || fields.next().and_then(|field| field.parse::<u64>().ok()).context(line.to_owned());
            let (client, count, max) = (number()?, number()?, number()?);
            let is_sound = fields.next() == Some("t") && max + 1 == count;
            *rows.get_mut(client as usize).context("an unknown client")? = (count, is_sound);
        }
        for (client, (told, (count, is_sound))) in self.told.iter().zip(&rows).enumerate() {
            if count < told || !is_sound {
                lost.push(format!("client {client} was told of {told} commits, and {count} are there"));
            }
            ensure!(*told == 0 || *count <= told + 1, "client {client} was told of {told} commits of {count}");
        }
        // The index agrees with the table.
        let by_index = "SET enable_seqscan = off; SELECT count(*) FROM commits WHERE client >= 0";
        let found: u64 = self.ask(by_index)?.trim().parse()?;
        let sum: u64 = rows.iter().map(|(count, _)| count).sum();
        if found != sum {
            lost.push(format!("the index has {found} rows of {sum}"));
        }
        Ok(lost)
    }

    /// Ends everything, and checks the volume.
    pub fn finish(mut self) -> Result<()> {
        self.stop();
        self.volume.finish_whole()
    }
}

impl Drop for PostgresCluster {
    fn drop(&mut self) {
        self.stop();
    }
}

fn sqlite(database: &Path) -> Command {
    let mut command = Command::new("sqlite3");
    command.args(["-batch", "-bail"]).arg(database).current_dir("/");
    command
}

/// Commits with SQLite in this journal mode, kills the mount under the load, mounts the volume again, and checks the
/// database. With `planted`, SQLite does not sync.
pub fn sqlite_round(
    volume: &mut VolumeRig,
    index: usize,
    mode: &str,
    seed: u64,
    planted: bool,
) -> Result<DatabaseOutcome> {
    let directory = volume.mount()?;
    let name = format!("database-{mode}-{seed}");
    let database = directory.join(&name);
    let synchronous = if planted { "OFF" } else { "FULL" };
    let begin = format!(
        "PRAGMA journal_mode={mode};\nPRAGMA synchronous=FULL;\n\
         CREATE TABLE t(id INTEGER PRIMARY KEY, text TEXT);\nPRAGMA synchronous={synchronous};"
    );
    let client = |_, told: &AtomicU64| {
        let mut command = sqlite(&database);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let Ok(child) = command.spawn() else { return };
        let statement = |at: u64| {
            let rows = (at * ROWS..(at + 1) * ROWS).map(|id| format!("({id}, '{id} ' || hex(zeroblob(200)))"));
            let rows: Vec<String> = rows.collect();
            format!("BEGIN;\nINSERT INTO t VALUES {};\nCOMMIT;", rows.join(", "))
        };
        feed(child, &begin, statement, |at| format!("SELECT 'told {at}';"), told);
    };
    let told = load(&mut SeededRng::new(seed), 1, client, || volume.kill_mount(index))?;
    let commits = told.iter().sum();
    let directory = volume.mount()?;
    let statement = "SELECT id FROM t WHERE text = id || ' ' || hex(zeroblob(200)) ORDER BY id; \
                     SELECT count(*) FROM t; PRAGMA integrity_check;";
    let mut lost = Vec::new();
    match run(sqlite(&directory.join(&name)).args(["-cmd", ".timeout 60000"]).arg(statement)) {
        Err(error) => lost.push(format!("it cannot be read: {}", format!("{error:#}").replace('\n', " "))),
        Ok(text) => {
            let mut lines: Vec<&str> = text.lines().collect();
            let (check, count) = (lines.pop().unwrap_or_default(), lines.pop().unwrap_or_default());
            let rows = lines.len() as u64;
            let is_whole = check == "ok" && count == rows.to_string() && rows.is_multiple_of(ROWS);
            let is_first = lines.iter().enumerate().all(|(id, line)| *line == id.to_string());
            if !is_whole || !is_first {
                lost.push(format!("{rows} of {count} rows are as they were written, its check says {check}"));
            }
            if rows < commits * ROWS {
                lost.push(format!("{commits} transactions of {ROWS} rows were told of, and {rows} rows are there"));
            }
            if rows > (commits + 1) * ROWS {
                bail!("{rows} rows after {commits} transactions");
            }
        }
    }
    Ok(DatabaseOutcome { commits, lost })
}
