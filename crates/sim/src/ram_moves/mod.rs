//! Moves of a network RAM disk's donors under faults: replace, drain, sparing, growth and take-over, for every policy.
//!
//! Owns: a run, and the report of many runs. In each run one procedure is carried out under load, and a donor, or the
//! client, is killed, stopped or cut off at one of its steps. Afterwards every request must succeed, and the next client
//! must attach and find everything. `network`: hosts and messages in virtual time; `client`: the machine, and what the
//! owner of a live device does around it; `life`: attaching; `faults`: the fault; `values`: what each block may have;
//! `check`: what has to be so at every moment of a move; A move is the `Mover` of `nectary_ram::device::moves`, which live devices use. The same
//! seed and policy repeat a run exactly.

mod check;
mod client;
mod device;
mod faults;
mod life;
mod network;
mod values;
mod world;

use nectary_ram::placement::RedundancyPolicy;
use nectary_ram::planted::{MirrorBug, plant};

use world::RamMovesWorld;

use crate::planted::{BugCase, CaughtBug};
use crate::ram::RamCoverage;

/// Each scenario has to be reached at least once per this many runs, on average.
const RUNS_PER_SCENARIO: u64 = 1000;
const SCENARIOS: &[&str] = &[
    "replace",
    "drain, or the SIGTERM of a donor",
    "a spare for a lost donor",
    "growth",
    "take-over",
    "fault: a donor killed",
    "fault: a donor started again",
    "fault: a donor stopped",
    "fault: a donor cut off",
    "fault: the client killed",
    "fault: the client stopped",
    "connections broken while copying",
    "fault while connecting",
    "fault while copying",
    "fault in the last pause",
    "fault while the others are told",
    "fault while a spare is filled",
    "fault while the former donor is emptied",
    "fault outside a move",
    "another donor took the place",
    "moves done",
    "spares filled",
    "moves reverted",
    "moves ended for a lost donor",
    "other donor lost after the switch",
    "spares given up",
    "switches of lost clients finished",
    "devices grown",
    "attached after the loss of a client",
];
/// The largest number of losses that are described.
const LOST_MAX: usize = 10;

/// The report of many runs.
#[derive(Debug, Default, Clone)]
pub struct RamMovesReport {
    /// Runs done.
    pub runs: u64,
    /// Users' operations.
    pub operations: u64,
    /// Operations that failed while a fault lasted.
    pub failed: u64,
    /// Clients.
    pub clients: u64,
    /// Virtual time. *Units*: microseconds.
    pub time_us: u64,
    /// Scenarios reached, once a run is done.
    pub coverage: Option<RamCoverage>,
    /// Runs that lost the device, some of its data, or the ability to use it.
    pub lost: u64,
    /// Descriptions of the first of them.
    pub broken: Vec<String>,
    /// A hash of all that happened.
    pub trace: u64,
}

impl RamMovesReport {
    /// Whether enough has happened to make a result without losses meaningful.
    pub fn is_enough(&self) -> bool {
        self.missing().is_empty()
    }

    /// The scenarios that were reached too rarely.
    pub fn missing(&self) -> Vec<&'static str> {
        self.coverage.as_ref().map(|coverage| coverage.missing(self.runs)).unwrap_or_default()
    }
}

/// Runs one seed.
pub fn run(seed: u64, policy: RedundancyPolicy, report: &mut RamMovesReport) {
    let mut world = RamMovesWorld::new(seed, policy);
    world.run();
    report.runs += 1;
    report.operations += world.operations;
    report.failed += world.failed;
    report.clients += world.clients.len() as u64;
    report.time_us += world.now_us();
    match &mut report.coverage {
        Some(coverage) => coverage.add(&world.coverage),
        None => report.coverage = Some(world.coverage),
    }
    report.lost += u64::from(world.broken.is_some());
    report.trace = (report.trace ^ world.trace).wrapping_mul(0x0100_0000_01b3);
    if let Some(broken) = world.broken.filter(|_| report.broken.len() < LOST_MAX) {
        report.broken.push(format!("seed {seed}: {broken}"));
    }
}

/// Runs the seeds from `seed` on that belong to shard `shard.0` of `shard.1`; `progress` gets the report after each run
/// and returns whether to continue.
pub fn run_many(
    seed: u64,
    policy: RedundancyPolicy,
    runs: u64,
    shard: (u64, u64),
    mut progress: impl FnMut(&RamMovesReport) -> bool,
) -> RamMovesReport {
    let mut report = RamMovesReport::default();
    for at in (0..runs).filter(|at| at % shard.1 == shard.0) {
        run(seed + at, policy, &mut report);
        if !progress(&report) {
            break;
        }
    }
    report
}

/// Runs seeds from `seed` on with one bug planted, until a run catches it.
pub fn run_planted(bug: MirrorBug, policy: RedundancyPolicy, seed: u64, runs: u64) -> Option<CaughtBug> {
    (seed..seed + runs).find_map(|seed| replay_planted(bug, policy, seed))
}

/// Runs one seed with one bug planted.
pub fn replay_planted(bug: MirrorBug, policy: RedundancyPolicy, seed: u64) -> Option<CaughtBug> {
    plant(Some(bug));
    let mut report = RamMovesReport::default();
    run(seed, policy, &mut report);
    plant(None);
    let broken = report.broken.first()?.trim_start_matches(&format!("seed {seed}: ")).to_owned();
    Some(CaughtBug { case: BugCase::of_seed(seed), broken, account: format!("{report:?}") })
}

/// Runs one seed, and returns a description of the events.
pub fn story(seed: u64, policy: RedundancyPolicy) -> Vec<String> {
    let mut world = RamMovesWorld::new(seed, policy);
    world.story = Some(Vec::new());
    world.run();
    let mut story = world.story.take().unwrap_or_default();
    story.extend(world.describe_hosts());
    story.extend(world.broken.take());
    story
}
