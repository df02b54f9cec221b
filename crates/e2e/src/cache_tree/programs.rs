//! Programs that people run on a cached directory: a compiler, git, a database.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};

use crate::cache_tree::run;
use crate::live::LiveCache;
use crate::rng::SeededRng;

/// The number of C files; each is a separate compilation unit.
const UNITS: u64 = 40;
/// The number of files of the repository.
const FILES: u64 = 300;
/// The number of rows of the database.
const ROWS: u64 = 20_000;

/// Compiles, commits, clones and queries in the mounted directory. Returns a text that describes the work.
pub fn run_programs(live: &LiveCache, seed: u64) -> Result<String> {
    let folder = live.scratch.join("shown");
    compile(&folder.join("compiled"))?;
    version(&folder, seed)?;
    query(&folder)?;
    Ok(format!("{UNITS} units compiled and linked, {FILES} files committed and cloned, {ROWS} rows"))
}

/// Compiles and links units that call each other, and runs the program.
fn compile(folder: &Path) -> Result<()> {
    fs::create_dir(folder)?;
    let mut makefile = "OBJECTS =".to_owned();
    for unit in 0..UNITS {
        let next = if unit + 1 < UNITS { format!("unit_{}(value + {unit})", unit + 1) } else { "value".to_owned() };
        let code = format!(
            "#include <stdio.h>\nlong unit_{}(long);\nlong unit_{unit}(long value) {{ return {next}; }}\n",
            unit + 1
        );
        fs::write(folder.join(format!("unit_{unit}.c")), code)?;
        let _ = write!(makefile, " unit_{unit}.o");
    }
    fs::write(
        folder.join("main.c"),
        "#include <stdio.h>\nlong unit_0(long);\nint main(void) { printf(\"%ld\\n\", unit_0(0)); }\n",
    )?;
    makefile += " main.o\nprogram: $(OBJECTS)\n\tcc -o $@ $(OBJECTS)\n";
    fs::write(folder.join("Makefile"), makefile)?;
    run(Command::new("make").args(["-j2", "-C"]).arg(folder).arg("program"))?;
    let output = run(&mut Command::new(folder.join("program")))?;
    let sum: u64 = (0..UNITS - 1).sum();
    ensure!(
        String::from_utf8_lossy(&output.stdout).trim() == sum.to_string(),
        "the program prints {output:?}, not {sum}"
    );
    Ok(())
}

/// Fills, clones and checks a repository.
fn version(folder: &Path, seed: u64) -> Result<()> {
    let (repository, clone) = (folder.join("repository"), folder.join("clone"));
    let mut rng = SeededRng::new(seed);
    fs::create_dir(&repository)?;
    let git = |place: &Path| {
        let mut command = Command::new("git");
        // Ignore the user's configuration.
        command.arg("-C").arg(place).env("GIT_CONFIG_NOSYSTEM", "1").env("HOME", place);
        command.args(["-c", "user.name=nectary", "-c", "user.email=nectary@localhost", "-c", "commit.gpgsign=false"]);
        command
    };
    run(git(&repository).args(["init", "-q"]))?;
    for commit in 0..3 {
        for file in 0..FILES {
            let path = repository.join(format!("folder-{}", file % 17));
            fs::create_dir_all(&path)?;
            let bytes: Vec<u8> = (0..rng.below(20_000)).map(|_| b'a' + rng.below(16) as u8).collect();
            fs::write(path.join(format!("file-{file}")), bytes)?;
        }
        run(git(&repository).args(["add", "."]))?;
        run(git(&repository).args(["commit", "-q", "-m", &format!("commit {commit}")]))?;
    }
    run(git(&repository).args(["gc", "-q"]))?;
    run(git(folder).args(["clone", "-q", "--no-local"]).arg(&repository).arg(&clone))?;
    run(git(&clone).args(["fsck", "--full", "--strict"]))?;
    let state = run(git(&clone).args(["status", "--porcelain"]))?;
    ensure!(state.stdout.is_empty(), "the clone has changes: {}", String::from_utf8_lossy(&state.stdout));
    Ok(())
}

/// Fills, changes and checks a database with a write-ahead log, whose index is memory-mapped.
fn query(folder: &Path) -> Result<()> {
    let statements = format!(
        "PRAGMA journal_mode=WAL; PRAGMA mmap_size=8388608;
         CREATE TABLE t(id INTEGER PRIMARY KEY, text TEXT, number INTEGER); CREATE INDEX i ON t(number);
         WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < {ROWS})
           INSERT INTO t SELECT x, hex(randomblob(40)), x * 7919 % 10007 FROM n;
         UPDATE t SET number = number + 1 WHERE id % 3 = 0; DELETE FROM t WHERE id % 10 = 0; VACUUM;
         PRAGMA integrity_check; SELECT count(*) FROM t;"
    );
    let output = run(Command::new("sqlite3").arg(folder.join("database")).arg(statements))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let rows = ROWS - ROWS / 10;
    ensure!(text.lines().any(|line| line == "ok"), "the database is damaged: {text}");
    ensure!(text.lines().last() == Some(rows.to_string().as_str()), "not {rows} rows: {text}");
    Ok(())
}
