//! The rules of a fleet, under faults of its nodes, their network, etcd and the rules that make keys.
//!
//! Owns: a run, and the report of many runs. The machine is that of `nectary_fleet::machine`; what is around it is a
//! model. The same seed repeats a run exactly.
//!
//! | file | contents |
//! |---|---|
//! | `world` | the order of events, the stages of a run |
//! | `driving`, `calls`, `watches` | the driver of a machine, its requests to etcd, its watch |
//! | `etcd_model`, `store_model`, `node` | etcd; the store of a node; a node and its process |
//! | `peers` | owners of keys, and copies in memory |
//! | `clients`, `requests`, `facts` | requests, fills and purges; what the run knows of them |
//! | `faults`, `check` | what fails; what must hold |
//! | `bugs`, `coverage` | planted bugs; situations to reach |

mod bugs;
mod calls;
mod check;
mod clients;
mod coverage;
mod driving;
mod etcd_model;
mod facts;
mod faults;
mod node;
mod peers;
mod requests;
mod store_model;
mod watches;
mod world;

pub use bugs::FleetBug;
pub use coverage::{FleetCoverage, RUNS_PER_SITUATION, SITUATIONS};
use world::FleetWorld;

use crate::planted::{BugCase, CaughtBug};

/// The purges that are applied in a run, on average, at least.
pub const APPLIED: u64 = 10;
/// The responses from stores in a run, on average, at least.
pub const RESPONSES: u64 = 100;
/// The largest number of violations that are described.
const BROKEN_MAX: usize = 10;

/// The report of many runs.
#[derive(Debug, Default, Clone)]
pub struct FleetReport {
    /// Runs done.
    pub runs: u64,
    /// Purges.
    pub purges: u64,
    /// Purges that were answered as applied.
    pub applied: u64,
    /// Responses from stores.
    pub responses: u64,
    /// Faults.
    pub faults: u64,
    /// Virtual time. *Units*: microseconds.
    pub time_us: u64,
    /// Situations reached.
    pub coverage: FleetCoverage,
    /// The number of runs with a violation.
    pub broken_count: u64,
    /// Descriptions of the first violations.
    pub broken: Vec<String>,
    /// A hash of all that happened.
    pub trace: u64,
}

impl FleetReport {
    /// Whether enough has happened to make a result without errors meaningful.
    pub fn is_enough(&self) -> bool {
        let is_busy = self.applied >= self.runs * APPLIED && self.responses >= self.runs * RESPONSES;
        is_busy && self.coverage.missing(self.runs).is_empty()
    }
}

/// Runs one seed.
pub fn run(seed: u64, report: &mut FleetReport) {
    let mut world = FleetWorld::new(seed);
    world.run();
    report.runs += 1;
    report.purges += world.purges;
    report.applied += world.applied.len() as u64;
    report.responses += world.responses;
    report.faults += world.faults;
    report.time_us += world.now_us;
    report.coverage.join(&world.coverage);
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
    runs: u64,
    shard: (u64, u64),
    mut progress: impl FnMut(&FleetReport) -> bool,
) -> FleetReport {
    let mut report = FleetReport::default();
    for at in (0..runs).filter(|at| at % shard.1 == shard.0) {
        run(seed + at, &mut report);
        if !progress(&report) {
            break;
        }
    }
    report
}

/// Runs seeds from `seed` on with one bug planted, until a run catches it.
pub fn run_planted(bug: FleetBug, seed: u64, runs: u64) -> Option<CaughtBug> {
    (seed..seed + runs).find_map(|seed| replay_planted(bug, seed))
}

/// Runs one seed with one bug planted.
pub fn replay_planted(bug: FleetBug, seed: u64) -> Option<CaughtBug> {
    bugs::plant(Some(bug));
    let mut report = FleetReport::default();
    run(seed, &mut report);
    bugs::plant(None);
    let broken = report.broken.first()?.trim_start_matches(&format!("seed {seed}: ")).to_owned();
    Some(CaughtBug { case: BugCase::of_seed(seed), broken, account: format!("{report:?}") })
}

/// Runs one seed, and returns a description of the events.
pub fn story(seed: u64) -> Vec<String> {
    let mut world = FleetWorld::new(seed);
    world.story = Some(Vec::new());
    world.run();
    let mut story = world.story.take().unwrap_or_default();
    story.extend(world.broken.take());
    story
}
