//! A network RAM disk that logs parity, under a seeded network, clock, crashes and faults.
//!
//! Owns: a run, and the report of many runs. `client`: the machine of `nectary_ram::log`; `life`: the starts and ends
//! of clients; `user`: the calls of users; `faults`: the faults; `lies`: damage that the scrub has to find; `values`: the possible contents of each block;
//! `oracle`: the data that a recovery has to find, computed from the donors' memory alone; `check`: the invariants
//! after every step; `coverage`: the scenarios. Donors and network are those of `ram`. The same seed and policy repeat
//! a run exactly.

mod check;
mod client;
mod coverage;
mod faults;
mod lies;
mod life;
mod oracle;
mod user;
mod values;
mod world;

use nectary_ram::log::planted::{Bug, plant};
use nectary_ram::placement::{RedundancyPolicy, planted as placement};

pub use coverage::{RUNS_PER_SCENARIO, RamLogCoverage, SCENARIOS};
use world::RamLogWorld;

use crate::planted::{BugCase, CaughtBug};

/// The smallest number of acknowledged writes in a run that is not lossy.
pub const WRITES: u64 = 200;
/// The smallest number of acknowledged writes in a run whose users fill the device.
const WRITES_OF_FULL: u64 = 500;
/// The smallest number of faults in a run.
pub const FAULTS: u64 = 3;
/// A longer run counts as hanging. *Units*: microseconds of virtual time.
pub const TIME_MAX_US: u64 = 120_000_000;
/// The largest number of violations that are described.
const BROKEN_MAX: usize = 10;

/// A bug that can be planted, in the log or in the placement below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RamLogBug {
    /// A bug of the log.
    Log(Bug),
    /// A bug of the placement.
    Placement(placement::PlacementBug),
}

impl RamLogBug {
    /// The bugs that a sample of runs with this policy finds.
    pub fn betrayed(policy: RedundancyPolicy) -> Vec<RamLogBug> {
        // These bugs show only if a loss happens at a moment that a sample does not reach.
        let is_missed = |planted: &RamLogBug| match planted {
            // With this policy, cleaning moves few blocks.
            RamLogBug::Log(Bug::LostAsZeroes) => policy == RedundancyPolicy::ParityLog,
            RamLogBug::Log(bug) => [Bug::PinsIgnored, Bug::ErasureUnawaited].contains(bug),
            RamLogBug::Placement(bug) => *bug != placement::PlacementBug::DeadSlotLeftOut,
        };
        RamLogBug::all().into_iter().filter(|planted| !is_missed(planted)).collect()
    }

    /// All bugs that can be planted.
    pub fn all() -> Vec<RamLogBug> {
        let placed = [
            placement::PlacementBug::DeadSlotLeftOut,
            placement::PlacementBug::SuccessorInMemory,
            placement::PlacementBug::DeadBeforeParity,
        ];
        let log = Bug::EVERY.iter().copied().map(RamLogBug::Log);
        log.chain(placed.into_iter().map(RamLogBug::Placement)).collect()
    }

    /// The bug's name in reports.
    pub fn name(self) -> &'static str {
        match self {
            RamLogBug::Log(bug) => bug.name(),
            RamLogBug::Placement(placement::PlacementBug::SuccessorInMemory) => {
                "old copy dead while its successor is in memory"
            }
            RamLogBug::Placement(bug) => bug.name(),
        }
    }

    fn set(this: Option<RamLogBug>) {
        plant(this.and_then(|planted| if let RamLogBug::Log(bug) = planted { Some(bug) } else { None }));
        placement::plant(
            this.and_then(|planted| if let RamLogBug::Placement(bug) = planted { Some(bug) } else { None }),
        );
    }
}

/// The report of many runs.
#[derive(Debug, Default, Clone)]
pub struct RamLogReport {
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
    /// Scenarios reached.
    pub coverage: RamLogCoverage,
    /// The number of violations.
    pub broken_count: u64,
    /// Descriptions of the first violations.
    pub broken: Vec<String>,
    /// A hash of all that happened.
    pub trace: u64,
}

impl RamLogReport {
    /// Whether enough has happened to make a result without errors meaningful.
    pub fn is_enough(&self) -> bool {
        self.short == 0 && self.coverage.missing(self.runs).is_empty()
    }
}

/// Runs one seed.
pub fn run(seed: u64, policy: RedundancyPolicy, report: &mut RamLogReport) {
    let mut world = RamLogWorld::new(seed, policy);
    world.run();
    for client in 0..world.clients.len() {
        world.close(client);
    }
    report.runs += 1;
    report.lossy += u64::from(world.is_lossy);
    report.operations += world.operations;
    report.writes += world.writes;
    report.flushes += world.flushes;
    report.failed += world.failed;
    report.faults += world.faults.done;
    report.clients += world.clients.len() as u64;
    report.time_us += world.now_us();
    let is_short = world.writes < WRITES || world.faults.done < FAULTS;
    report.short += u64::from(is_short && !world.is_lossy && world.broken.is_none());
    report.coverage.add(&world.coverage);
    report.broken_count += u64::from(world.broken.is_some());
    report.trace = (report.trace ^ world.trace).wrapping_mul(0x0100_0000_01b3);
    if let Some(broken) = world.broken.filter(|_| report.broken.len() < BROKEN_MAX) {
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
    mut progress: impl FnMut(&RamLogReport) -> bool,
) -> RamLogReport {
    let mut report = RamLogReport::default();
    for at in (0..runs).filter(|at| at % shard.1 == shard.0) {
        run(seed + at, policy, &mut report);
        if !progress(&report) {
            break;
        }
    }
    report
}

/// Runs seeds from `seed` on with one bug planted, until a run catches it.
pub fn run_planted(bug: RamLogBug, policy: RedundancyPolicy, seed: u64, runs: u64) -> Option<CaughtBug> {
    (seed..seed + runs).find_map(|seed| replay_planted(bug, policy, seed))
}

/// Runs one seed, and returns a description of the events.
pub fn story(seed: u64, policy: RedundancyPolicy) -> Vec<String> {
    let mut world = RamLogWorld::new(seed, policy);
    world.story = Some(Vec::new());
    world.run();
    let mut story = world.story.take().unwrap_or_default();
    story.extend(world.broken.take());
    story
}

/// Runs one seed with one bug planted.
pub fn replay_planted(bug: RamLogBug, policy: RedundancyPolicy, seed: u64) -> Option<CaughtBug> {
    RamLogBug::set(Some(bug));
    let mut report = RamLogReport::default();
    run(seed, policy, &mut report);
    RamLogBug::set(None);
    let broken = report.broken.first()?.trim_start_matches(&format!("seed {seed}: ")).to_owned();
    Some(CaughtBug { case: BugCase::of_seed(seed), broken, account: format!("{report:?}") })
}
