//! Runs PostgreSQL and SQLite on a volume whose mount is killed under load: `e2e-campaigns volume-databases --rounds 5
//! --seed 7`.
//!
//! Each round is one kill: PostgreSQL with one of its ways to sync its log (`wal_sync_method`), or SQLite with one of its
//! journal modes and `synchronous=FULL`. The exit code is 0 only if every commit that a client was told of is there
//! after recovery, the volume's check found no problem, there were enough rounds and commits of each kind, and the check
//! found what was lost when commits were acknowledged early on purpose; 77 if a program is missing.

use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Args;
use nectary_e2e::guard::find_program;
use nectary_e2e::live::missing;
use nectary_e2e::report::seed_or_new;
use nectary_e2e::rng::SeededRng;
use nectary_e2e::volume::VolumeRig;
use nectary_e2e::volume::databases::{
    DatabaseOutcome, JOURNAL_MODES, PostgresCluster, programs_of_postgres, sqlite_round,
};

use crate::rounds::{MountChoice, NotRunPolicy, ProblemCounter};

/// Runs databases on a volume whose mount is killed.
#[derive(Args)]
pub struct VolumeDatabasesArguments {
    /// Kills for each way to sync a log
    #[arg(long, default_value_t = 5)]
    rounds: u64,
    /// The seed; a new one is drawn and printed by default
    #[arg(long)]
    seed: Option<u64>,
    #[command(flatten)]
    mounts: MountChoice,
}

/// The least number of commits of a round.
const COMMITS_MIN: u64 = 20;
/// How often a planted loss is tried: a kill may come just after everything became durable.
const PLANTED_TRIES: u64 = 5;

/// The counts of a kind of rounds.
#[derive(Default)]
struct DatabaseKindCounts {
    name: String,
    rounds: u64,
    commits: u64,
    lost: u64,
}

impl DatabaseKindCounts {
    fn new(name: String) -> DatabaseKindCounts {
        DatabaseKindCounts { name, ..DatabaseKindCounts::default() }
    }

    /// Counts a round, and prints what was lost.
    fn add(&mut self, done: DatabaseOutcome) {
        self.rounds += 1;
        self.commits += done.commits;
        self.lost += done.lost.len() as u64;
        println!("  {}: {} commits acknowledged before the kill", self.name, done.commits);
        done.lost.iter().for_each(|lost| println!("LOST: {}: {lost}", self.name));
    }
}

/// Runs the campaign.
pub fn campaign(arguments: &VolumeDatabasesArguments) -> Result<ExitCode> {
    arguments.mounts.apply();
    let programs = match (missing(false), programs_of_postgres(), find_program("sqlite3")) {
        (None, Some(programs), Some(_)) => programs,
        (Some(reason), ..) => return Ok(refused(&reason)),
        (_, None, _) => return Ok(refused("PostgreSQL is not installed")),
        (_, _, None) => return Ok(refused("sqlite3 is not installed")),
    };
    let seed = seed_or_new(arguments.seed);
    println!("volume-databases: seed {seed}, {} kills each, {}", arguments.rounds, programs.display());
    let mut rng = SeededRng::new(seed);
    let mut counts = Vec::new();
    postgres(programs, arguments.rounds, &mut rng, &mut counts).context(format!("seed {seed}, PostgreSQL"))?;
    sqlite(arguments.rounds, &mut rng, &mut counts).context(format!("seed {seed}, SQLite"))?;
    let mut problems = ProblemCounter::default();
    for DatabaseKindCounts { name, rounds, commits, lost } in &counts {
        println!("  {name}: {rounds} kills, {commits} commits acknowledged, {lost} losses");
        let is_short = *rounds < arguments.rounds || *commits < arguments.rounds * COMMITS_MIN;
        if *lost > 0 || is_short {
            problems.add(format!("{name}: {}", if *lost > 0 { "commits are lost" } else { "too little happened" }));
        }
    }
    println!("volume-databases: {} kinds, {} problems", counts.len(), problems.count());
    Ok(if counts.is_empty() { ExitCode::FAILURE } else { problems.exit() })
}

fn refused(reason: &str) -> ExitCode {
    NotRunPolicy::IsAllowed.exit("volume-databases", reason)
}

/// Requires that a loss that was planted is found.
fn planted(name: &str, mut round: impl FnMut() -> Result<DatabaseOutcome>) -> Result<()> {
    for _ in 0..PLANTED_TRIES {
        if let Some(lost) = round()?.lost.first() {
            println!("planted: {name}: found: {lost}");
            return Ok(());
        }
    }
    anyhow::bail!("planted: {name}: what was acknowledged early was not missed")
}

fn postgres(
    programs: std::path::PathBuf,
    rounds: u64,
    rng: &mut SeededRng,
    counts: &mut Vec<DatabaseKindCounts>,
) -> Result<()> {
    let mut cluster = PostgresCluster::new(programs.clone())?;
    let methods = cluster.methods()?;
    ensure!(methods.len() >= 4, "it supports only {methods:?}");
    for method in &methods {
        let mut count = DatabaseKindCounts::new(format!("PostgreSQL {method}"));
        for _ in 0..rounds {
            count.add(cluster.round(method, rng.next_u64(), false)?);
        }
        counts.push(count);
    }
    cluster.finish()?;
    let mut cluster = PostgresCluster::new(programs)?;
    planted("PostgreSQL", || cluster.round("fdatasync", rng.next_u64(), true))?;
    cluster.finish()
}

fn sqlite(rounds: u64, rng: &mut SeededRng, counts: &mut Vec<DatabaseKindCounts>) -> Result<()> {
    for mode in JOURNAL_MODES {
        let mut volume = VolumeRig::new("512M")?;
        let mut count = DatabaseKindCounts::new(format!("SQLite {mode}"));
        for round in 0..rounds {
            count.add(sqlite_round(&mut volume, 2 * round as usize, mode, rng.next_u64(), false)?);
        }
        counts.push(count);
        let mut index = 2 * rounds as usize;
        planted(&format!("SQLite {mode}"), || {
            let done = sqlite_round(&mut volume, index, mode, rng.next_u64(), true);
            index += 2;
            done
        })?;
        volume.finish_whole()?;
    }
    Ok(())
}
