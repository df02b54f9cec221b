//! Tokens, leases and sessions of the shared volume, under a seeded network, clocks, pauses and losses.
//!
//! Owns: a run and the account of many. The machines of `nectary_volume::tokens` run here as they do in a mount and in
//! a server; what is around them is a model that follows the same rules. A run is repeated exactly by its seed.

mod bugs;
mod check;
mod client;
mod coverage;
mod data;
mod direct;
mod disk;
mod executor;
mod faults;
mod file;
mod history;
mod hold;
mod image;
mod kernel;
mod names;
mod network;
mod server;
mod user;
mod world;

pub use bugs::Bug;
pub use check::{Verdict, explain};
pub use coverage::{Coverage, SCENARIOS};
pub use history::{Act, Entry, NEVER};

use crate::planted::{Case, Caught};
use world::World;

/// Operations of a run, at least.
pub const OPERATIONS: u64 = 200;
/// Faults of a run, at least.
pub const FAULTS: u64 = 3;
/// A run that takes longer hangs. *Units*: microseconds of virtual time.
const TIME_MAX_US: u64 = 60_000_000;
/// The number of violations that are kept in words.
const BROKEN_MAX: usize = 10;

/// The account of many runs.
#[derive(Debug, Default, Clone)]
pub struct Report {
    /// Runs done.
    pub runs: u64,
    /// Programs' operations.
    pub operations: u64,
    /// Operations that failed.
    pub failed: u64,
    /// Faults.
    pub faults: u64,
    /// Clients, with those that followed a lost one on its host.
    pub clients: u64,
    /// Runs with fewer operations or faults than they must have.
    pub short: u64,
    /// Virtual time. *Units*: microseconds.
    pub time_us: u64,
    /// Values whose calls were too many to be explained or not.
    pub undecided: u64,
    /// What was met.
    pub coverage: Coverage,
    /// Violations, counted.
    pub broken_count: u64,
    /// The first of them in words.
    pub broken: Vec<String>,
    /// A hash of the ends of all runs.
    pub trace: u64,
}

impl Report {
    /// Whether enough happened that finding no error means something.
    pub fn is_enough(&self) -> bool {
        self.short == 0 && self.undecided == 0 && self.coverage.missing().is_empty()
    }
}

/// Runs one seed.
pub fn run(seed: u64, report: &mut Report) {
    let world = World::new(seed);
    world.run();
    report.runs += 1;
    report.operations += world.operations.get();
    report.failed += world.failed.get();
    report.faults += world.faults.done.get();
    report.time_us += world.now();
    report.undecided += world.undecided.get();
    report.coverage.merge(&world.coverage);
    report.trace = (report.trace ^ world.now() ^ world.below(u64::MAX)).wrapping_mul(0x0100_0000_01b3);
    report.clients += world.clients() as u64;
    let (is_short, broken) =
        (world.operations.get() < OPERATIONS || world.faults.done.get() < FAULTS, world.take_broken());
    report.short += u64::from(is_short && broken.is_none());
    if let Some(broken) = broken {
        report.broken_count += 1;
        if report.broken.len() < BROKEN_MAX {
            report.broken.push(format!("seed {seed}: {broken}"));
        }
    }
}

/// Runs seeds from `seed` on, of which shard `shard.0` of `shard.1` takes its part; `progress` is told the account
/// after each and says whether to go on.
pub fn run_many(seed: u64, runs: u64, shard: (u64, u64), mut progress: impl FnMut(&Report) -> bool) -> Report {
    let mut report = Report::default();
    for at in (0..runs).filter(|at| at % shard.1 == shard.0) {
        run(seed + at, &mut report);
        if !progress(&report) {
            break;
        }
    }
    report
}

/// Runs one seed, and tells what happened in it.
pub fn story(seed: u64) -> Vec<String> {
    let world = World::new(seed);
    *world.story.borrow_mut() = Some(Vec::new());
    world.run();
    let mut story = world.story.borrow_mut().take().unwrap_or_default();
    story.extend(world.take_broken());
    story
}

/// Runs seeds from `seed` on with one bug planted, until one finds it.
pub fn run_planted(bug: Bug, seed: u64, runs: u64) -> Option<Caught> {
    (seed..seed + runs).find_map(|seed| replay_planted(bug, seed))
}

/// Runs one seed with one bug planted.
pub fn replay_planted(bug: Bug, seed: u64) -> Option<Caught> {
    bugs::plant(Some(bug));
    let mut report = Report::default();
    run(seed, &mut report);
    bugs::plant(None);
    let broken = report.broken.first()?.trim_start_matches(&format!("seed {seed}: ")).to_owned();
    Some(Caught { case: Case::of_seed(seed), broken, account: format!("{report:?}") })
}
