//! sqlite on a volume: transactions on one mount, a reader on another.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, bail, ensure};

use super::{ProgramCounts, ProgramRound, RoundFolders, run};

/// The number of transactions of a database.
const TRANSACTIONS: u64 = 60;
/// The number of rows of a transaction.
const ROWS: u64 = 3;

/// A round of the database.
pub(super) struct DatabaseRound;

impl ProgramRound for DatabaseRound {
    fn work(&self, folders: &RoundFolders, stored: &AtomicU64) -> Result<u64> {
        transact(folders, stored).map(|()| 0)
    }

    fn look(&self, folders: &RoundFolders, before: u64) -> Result<bool> {
        if before > 0 {
            check_database(folders, before, false)?;
        }
        Ok(before > 0)
    }

    fn spoil(&self, folders: &RoundFolders) -> Result<()> {
        run(&mut sqlite(&folders.there.join("database"), "DELETE FROM t WHERE id = 7;")).map(drop)
    }

    fn check(&self, folders: &RoundFolders, done: &ProgramCounts) -> Result<()> {
        check_database(folders, done.stored, true)
    }
}

fn sqlite(database: &Path, statements: &str) -> Command {
    let mut command = Command::new("sqlite3");
    command.args(["-batch", "-bail", "-cmd", ".timeout 60000"]).arg(database).arg(statements);
    command
}

/// Makes one transaction after another; a transaction counts as stored when sqlite says so.
fn transact(folders: &RoundFolders, stored: &AtomicU64) -> Result<()> {
    let mut command = Command::new("sqlite3");
    command.args(["-batch", "-bail"]).arg(folders.here.join("database"));
    let log = fs::File::create(folders.beside.join("database.log"))?;
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log).spawn()?;
    let result = feed(&mut child, stored);
    let status = child.wait()?;
    let log = fs::read_to_string(folders.beside.join("database.log"))?;
    result.with_context(|| log.clone())?;
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
fn check_database(folders: &RoundFolders, stored: u64, is_last: bool) -> Result<()> {
    let statement = "SELECT id || ' ' || number FROM t ORDER BY id; PRAGMA integrity_check;";
    let text = run(&mut sqlite(&folders.there.join("database"), statement))?;
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
