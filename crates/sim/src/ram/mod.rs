//! A network RAM disk that is changed in place (a mirror, or parity) under a seeded network, clock, crashes and faults.
//!
//! Owns: a run, and the report of many runs. `donor`: the donor's side; `network`: messages in virtual time; `client`:
//! the machine of `nectary_ram::mirror` and the operations of its user; `life`: the starts and ends of clients; `user`:
//! the calls of users; `faults`: the faults; `moves`: other donors take the place of some; `copies`: what the donors
//! have; `check`: the invariants after every step; `coverage`: the scenarios. The same seed repeats a run exactly.

pub(crate) mod blocks;
mod check;
pub(crate) mod client;
mod copies;
mod coverage;
pub(crate) mod donor;
mod faults;
mod life;
mod moves;
pub(crate) mod network;
mod user;
mod world;

use nectary_ram::format::RedundancyCode;
use nectary_ram::planted::{MirrorBug, plant};

pub use coverage::{RUNS_PER_SCENARIO, RamCoverage, Scenario};
use world::RamWorld;

use crate::planted::{BugCase, CaughtBug};

/// The smallest number of acknowledged writes in a run that is not lossy.
pub const WRITES: u64 = 200;
/// The smallest number of faults in a run.
pub const FAULTS: u64 = 3;
/// A longer run counts as hanging. *Units*: microseconds of virtual time.
pub const TIME_MAX_US: u64 = 120_000_000;
/// The largest number of violations that are described.
const BROKEN_MAX: usize = 10;

/// The report of many runs.
#[derive(Debug, Default, Clone)]
pub struct RamSimulationReport {
    /// Runs done.
    pub runs: u64,
    /// Runs in which more was lost than the policy survives; they end early.
    pub lossy: u64,
    /// Users' operations.
    pub operations: u64,
    /// Acknowledged writes.
    pub writes: u64,
    /// Operations that failed.
    pub failed: u64,
    /// Faults.
    pub faults: u64,
    /// Clients.
    pub clients: u64,
    /// Runs with fewer writes or faults than they must have.
    pub short: u64,
    /// Virtual time. *Units*: microseconds.
    pub time_us: u64,
    /// Scenarios reached.
    pub coverage: RamCoverage,
    /// The number of violations.
    pub broken_count: u64,
    /// Descriptions of the first violations.
    pub broken: Vec<String>,
    /// A hash of all that happened.
    pub trace: u64,
}

impl RamSimulationReport {
    /// Whether enough has happened to make a result without errors meaningful.
    pub fn is_enough(&self, code: RedundancyCode) -> bool {
        self.short == 0 && self.coverage.missing(self.runs, code).is_empty()
    }
}

/// Runs one seed with a redundancy code.
pub fn run(seed: u64, code: RedundancyCode, report: &mut RamSimulationReport) {
    let mut world = RamWorld::new(seed, code);
    world.run();
    for client in 0..world.clients.len() {
        world.close(client);
    }
    let mut broken: Vec<String> = world.broken.take().into_iter().collect();
    broken.extend(world.history.unexplained(world.geometry.blocks() as usize));
    report.runs += 1;
    report.lossy += u64::from(world.is_lossy);
    report.operations += world.operations;
    report.writes += world.writes;
    report.failed += world.failed;
    report.faults += world.faults.done;
    report.clients += world.clients.len() as u64;
    report.time_us += world.now_us();
    let is_short = world.writes < WRITES || world.faults.done < FAULTS;
    report.short += u64::from(is_short && !world.is_lossy && broken.is_empty());
    report.coverage.add(&world.coverage);
    report.broken_count += broken.len() as u64;
    report.trace = (report.trace ^ world.trace).wrapping_mul(0x0100_0000_01b3);
    for broken in broken {
        if report.broken.len() < BROKEN_MAX {
            report.broken.push(format!("seed {seed}: {broken}"));
        }
    }
}

/// Runs the seeds from `seed` on that belong to shard `shard.0` of `shard.1`; `progress` gets the report after each run
/// and returns whether to continue.
pub fn run_many(
    seed: u64,
    code: RedundancyCode,
    runs: u64,
    shard: (u64, u64),
    mut progress: impl FnMut(&RamSimulationReport) -> bool,
) -> RamSimulationReport {
    let mut report = RamSimulationReport::default();
    for at in (0..runs).filter(|at| at % shard.1 == shard.0) {
        run(seed + at, code, &mut report);
        if !progress(&report) {
            break;
        }
    }
    report
}

/// Runs seeds from `seed` on with one bug planted, until a run catches it.
pub fn run_planted(bug: MirrorBug, code: RedundancyCode, seed: u64, runs: u64) -> Option<CaughtBug> {
    (seed..seed + runs).find_map(|seed| replay_planted(bug, code, seed))
}

/// Runs one seed, and returns a description of the events.
pub fn story(seed: u64, code: RedundancyCode) -> Vec<String> {
    let mut world = RamWorld::new(seed, code);
    world.story = Some(Vec::new());
    world.run();
    let mut story = world.story.take().unwrap_or_default();
    story.extend(world.broken.take());
    story
}

/// Runs one seed with one bug planted.
pub fn replay_planted(bug: MirrorBug, code: RedundancyCode, seed: u64) -> Option<CaughtBug> {
    plant(Some(bug));
    let mut report = RamSimulationReport::default();
    run(seed, code, &mut report);
    plant(None);
    let broken = report.broken.first()?.trim_start_matches(&format!("seed {seed}: ")).to_owned();
    Some(CaughtBug { case: BugCase::of_seed(seed), broken, account: format!("{report:?}") })
}
