//! Simulates the tokens, locks, leases and sessions of the shared volume, and the leadership of its servers, under a
//! seeded network, clocks, pauses and losses.
//!
//! Owns: a run, and the report of many runs. The state machines of `nectary_volume::tokens` run here as in a mount and
//! in a server; the code around them is a model that follows the same rules. A seed repeats a run exactly.

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
mod kernel;
mod link;
mod locks;
mod names;
mod network;
mod servers;
mod user;
mod world;

pub use bugs::VolumeModelBug;
pub use check::{OrderVerdict, explain};
pub use coverage::{SCENARIOS, VolumeCoverage};
pub use history::{HistoryEntry, NEVER, ValueAccess};

use crate::planted::{BugCase, CaughtBug};
use world::VolumeWorld;

/// The smallest number of operations of a run.
pub const OPERATIONS: u64 = 200;
/// The smallest number of faults of a run.
pub const FAULTS: u64 = 3;
/// A longer run counts as hanging. *Units*: microseconds of virtual time.
const TIME_MAX_US: u64 = 60_000_000;
/// The largest number of violations that are described.
const BROKEN_MAX: usize = 10;

/// The report of many runs.
#[derive(Debug, Default, Clone)]
pub struct VolumeSimulationReport {
    /// Runs done.
    pub runs: u64,
    /// Programs' operations.
    pub operations: u64,
    /// Operations that failed.
    pub failed: u64,
    /// Faults.
    pub faults: u64,
    /// Clients, including those that replaced a lost client.
    pub clients: u64,
    /// Runs with fewer operations or faults than they must have.
    pub short: u64,
    /// Virtual time. *Units*: microseconds.
    pub time_us: u64,
    /// Values with so many calls that the search for an order was given up.
    pub undecided: u64,
    /// Scenarios reached.
    pub coverage: VolumeCoverage,
    /// The number of violations.
    pub broken_count: u64,
    /// Descriptions of the first violations.
    pub broken: Vec<String>,
    /// A hash of the ends of all runs.
    pub trace: u64,
}

impl VolumeSimulationReport {
    /// Whether enough has happened to make a result without errors meaningful.
    pub fn is_enough(&self) -> bool {
        self.short == 0 && self.undecided == 0 && self.coverage.missing().is_empty()
    }
}

/// Runs one seed.
pub fn run(seed: u64, report: &mut VolumeSimulationReport) {
    let world = VolumeWorld::new(seed);
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

/// Runs the seeds from `seed` on that belong to shard `shard.0` of `shard.1`; `progress` gets the report after each run
/// and returns whether to continue.
pub fn run_many(
    seed: u64,
    runs: u64,
    shard: (u64, u64),
    mut progress: impl FnMut(&VolumeSimulationReport) -> bool,
) -> VolumeSimulationReport {
    let mut report = VolumeSimulationReport::default();
    for at in (0..runs).filter(|at| at % shard.1 == shard.0) {
        run(seed + at, &mut report);
        if !progress(&report) {
            break;
        }
    }
    report
}

/// Runs one seed, and returns a description of the events.
pub fn story(seed: u64) -> Vec<String> {
    let world = VolumeWorld::new(seed);
    *world.story.borrow_mut() = Some(Vec::new());
    world.run();
    let mut story = world.story.borrow_mut().take().unwrap_or_default();
    story.extend(world.take_broken());
    story
}

/// Runs seeds from `seed` on with one bug planted, until a run catches it.
pub fn run_planted(bug: VolumeModelBug, seed: u64, runs: u64) -> Option<CaughtBug> {
    (seed..seed + runs).find_map(|seed| replay_planted(bug, seed))
}

/// Runs one seed with one bug planted.
pub fn replay_planted(bug: VolumeModelBug, seed: u64) -> Option<CaughtBug> {
    bugs::plant(Some(bug));
    let mut report = VolumeSimulationReport::default();
    run(seed, &mut report);
    bugs::plant(None);
    let broken = report.broken.first()?.trim_start_matches(&format!("seed {seed}: ")).to_owned();
    Some(CaughtBug { case: BugCase::of_seed(seed), broken, account: format!("{report:?}") })
}
