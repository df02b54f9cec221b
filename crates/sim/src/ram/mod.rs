//! A network RAM disk under a seeded network, clock, crashes and faults.
//!
//! Owns: a run, and the report of many runs. `donor`: the donor's side; `network`: messages in virtual time; `client`:
//! a machine and the operations of its user; `life`: the starts and ends of clients; `user`: the calls of users;
//! `faults`: the faults; `in_place` and `logged`: the layouts, with the invariants after every step and the scenarios.
//! The same seed and policy repeat a run exactly.

pub(crate) mod blocks;
pub(crate) mod client;
pub(crate) mod coverage;
pub(crate) mod donor;
mod fault_plan;
mod faults;
mod in_place;
mod life;
mod logged;
pub(crate) mod network;
mod user;
mod world;

use nectary_ram::format::{RedundancyCode, RowZones};
use nectary_ram::logged::planted as log;
use nectary_ram::placement::{RedundancyPolicy, planted as placement};
use nectary_ram::planted::{self as in_place_bugs, MirrorBug};

pub use coverage::RamCoverage;
use world::{RamWorld, SimulatedLayout};

use crate::planted::{BugCase, CaughtBug};

/// The smallest number of acknowledged writes in a run that is not lossy.
pub const WRITES: u64 = 200;
/// The smallest number of acknowledged writes in a run with logged parity whose users fill the device.
const WRITES_OF_FULL: u64 = 500;
/// The smallest number of faults in a run.
pub const FAULTS: u64 = 3;
/// A longer run counts as hanging. *Units*: microseconds of virtual time.
pub const TIME_MAX_US: u64 = 120_000_000;
/// The largest number of violations that are described.
const BROKEN_MAX: usize = 10;

/// A bug that can be planted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RamBug {
    /// A bug of a device that is changed in place.
    InPlace(MirrorBug),
    /// A bug of the log.
    Log(log::Bug),
    /// A bug of the placement of the log.
    Placement(placement::PlacementBug),
}

impl RamBug {
    /// The bugs that can be planted in a device with this policy.
    pub fn all(policy: RedundancyPolicy) -> Vec<RamBug> {
        let in_place = |bugs: &[MirrorBug]| bugs.iter().copied().map(RamBug::InPlace).collect();
        match policy {
            RedundancyPolicy::None => return in_place(&MirrorBug::PLAIN),
            RedundancyPolicy::Mirror => return in_place(&MirrorBug::ALL),
            RedundancyPolicy::Parity => return in_place(&MirrorBug::PARITY),
            _ => {}
        }
        let placed = [
            placement::PlacementBug::DeadSlotLeftOut,
            placement::PlacementBug::SuccessorInMemory,
            placement::PlacementBug::DeadBeforeParity,
        ];
        let log = log::Bug::EVERY.iter().copied().map(RamBug::Log);
        log.chain(placed.into_iter().map(RamBug::Placement)).collect()
    }

    /// The bugs that a sample of runs with this policy finds.
    pub fn betrayed(policy: RedundancyPolicy) -> Vec<RamBug> {
        // These bugs show only if a loss happens at a moment that a sample does not reach.
        let is_missed = |planted: &RamBug| match planted {
            RamBug::InPlace(_) => false,
            // With this policy, cleaning moves few blocks.
            RamBug::Log(log::Bug::LostAsZeroes) => policy == RedundancyPolicy::ParityLog,
            RamBug::Log(bug) => [log::Bug::PinsIgnored, log::Bug::ErasureUnawaited].contains(bug),
            RamBug::Placement(bug) => *bug != placement::PlacementBug::DeadSlotLeftOut,
        };
        RamBug::all(policy).into_iter().filter(|planted| !is_missed(planted)).collect()
    }

    /// The bug's name in reports.
    pub fn name(self) -> &'static str {
        match self {
            RamBug::InPlace(bug) => bug.name(),
            RamBug::Log(bug) => bug.name(),
            RamBug::Placement(placement::PlacementBug::SuccessorInMemory) => {
                "old copy dead while its successor is in memory"
            }
            RamBug::Placement(bug) => bug.name(),
        }
    }

    fn set(this: Option<RamBug>) {
        in_place_bugs::plant(if let Some(RamBug::InPlace(bug)) = this { Some(bug) } else { None });
        log::plant(if let Some(RamBug::Log(bug)) = this { Some(bug) } else { None });
        placement::plant(if let Some(RamBug::Placement(bug)) = this { Some(bug) } else { None });
    }
}

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
    /// Acknowledged flushes.
    pub flushes: u64,
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
    /// Scenarios reached, once a run is done.
    pub coverage: Option<RamCoverage>,
    /// The number of violations.
    pub broken_count: u64,
    /// Descriptions of the first violations.
    pub broken: Vec<String>,
    /// A hash of all that happened.
    pub trace: u64,
}

impl RamSimulationReport {
    /// Whether enough has happened to make a result without errors meaningful.
    pub fn is_enough(&self) -> bool {
        self.short == 0 && self.missing().is_empty()
    }

    /// The scenarios that were reached too rarely.
    pub fn missing(&self) -> Vec<&'static str> {
        self.coverage.as_ref().map(|coverage| coverage.missing(self.runs)).unwrap_or_default()
    }
}

/// Runs one seed.
pub fn run(seed: u64, policy: RedundancyPolicy, report: &mut RamSimulationReport) {
    match code_in_place(policy) {
        Some(code) => run_world(RamWorld::in_place(seed, code), report),
        None => run_world(RamWorld::logged(seed, policy), report),
    }
}

/// The redundancy code of a policy that changes blocks in place; the run draws the zones of one without redundancy.
fn code_in_place(policy: RedundancyPolicy) -> Option<RedundancyCode> {
    match policy {
        RedundancyPolicy::None => Some(RedundancyCode::None(RowZones::default())),
        RedundancyPolicy::Mirror => Some(RedundancyCode::Mirror),
        RedundancyPolicy::Parity => Some(RedundancyCode::Parity),
        _ => None,
    }
}

fn run_world<L: SimulatedLayout>(mut world: RamWorld<L>, report: &mut RamSimulationReport) {
    world.run();
    for client in 0..world.clients.len() {
        world.close(client);
    }
    let mut broken: Vec<String> = world.broken.take().into_iter().collect();
    broken.extend(world.layout.unexplained());
    report.runs += 1;
    report.lossy += u64::from(world.is_lossy);
    report.operations += world.counts.operations;
    report.writes += world.counts.writes;
    report.flushes += world.counts.flushes;
    report.failed += world.counts.failed;
    report.faults += world.faults.done;
    report.clients += world.clients.len() as u64;
    report.time_us += world.now_us();
    let is_short = world.counts.writes < WRITES || world.faults.done < FAULTS;
    report.short += u64::from(is_short && !world.is_lossy && broken.is_empty());
    match &mut report.coverage {
        Some(coverage) => coverage.add(&world.coverage),
        None => report.coverage = Some(world.coverage),
    }
    report.broken_count += broken.len() as u64;
    report.trace = (report.trace ^ world.trace).wrapping_mul(0x0100_0000_01b3);
    for broken in broken {
        if report.broken.len() < BROKEN_MAX {
            report.broken.push(format!("seed {}: {broken}", world.seed));
        }
    }
}

/// Runs the seeds from `seed` on that belong to shard `shard.0` of `shard.1`; `progress` gets the report after each run
/// and returns whether to continue.
pub fn run_many(
    seed: u64,
    policy: RedundancyPolicy,
    runs: u64,
    shard: (u64, u64),
    mut progress: impl FnMut(&RamSimulationReport) -> bool,
) -> RamSimulationReport {
    let mut report = RamSimulationReport::default();
    for at in (0..runs).filter(|at| at % shard.1 == shard.0) {
        run(seed + at, policy, &mut report);
        if !progress(&report) {
            break;
        }
    }
    report
}

/// Runs one seed, and returns a description of the events.
pub fn story(seed: u64, policy: RedundancyPolicy) -> Vec<String> {
    fn tell<L: SimulatedLayout>(mut world: RamWorld<L>) -> Vec<String> {
        world.story = Some(Vec::new());
        world.run();
        let mut story = world.story.take().unwrap_or_default();
        story.extend(world.broken.take());
        story
    }
    match code_in_place(policy) {
        Some(code) => tell(RamWorld::in_place(seed, code)),
        None => tell(RamWorld::logged(seed, policy)),
    }
}

/// Runs seeds from `seed` on with one bug planted, until a run catches it.
pub fn run_planted(bug: RamBug, policy: RedundancyPolicy, seed: u64, runs: u64) -> Option<CaughtBug> {
    (seed..seed + runs).find_map(|seed| replay_planted(bug, policy, seed))
}

/// Runs one seed with one bug planted.
pub fn replay_planted(bug: RamBug, policy: RedundancyPolicy, seed: u64) -> Option<CaughtBug> {
    RamBug::set(Some(bug));
    let mut report = RamSimulationReport::default();
    run(seed, policy, &mut report);
    RamBug::set(None);
    let broken = report.broken.first()?.trim_start_matches(&format!("seed {seed}: ")).to_owned();
    Some(CaughtBug { case: BugCase::of_seed(seed), broken, account: format!("{report:?}") })
}
