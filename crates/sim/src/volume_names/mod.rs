//! Simulates names and attributes of a shared volume: real clients with a real server, over a network that delays, breaks
//! and cuts off, with a model of each host's kernel.
//!
//! Owns: a run, and the report of many runs. Promises: a run uses one thread and virtual time, and its seed repeats nearly
//! everything, but not the order of what a hash table holds. Each run's calls must have an order that explains them; what
//! may be lost with a session is left out of the order, or is in it together with everything before. Leaves to others:
//! crash states (`volume_clients`), tokens and leases under faults of clocks and disks (`volume`).
//!
//! | file | what is in it |
//! |---|---|
//! | `tree` | calls and their effects, one after another |
//! | `history`, `order` | what was called; whether an order explains it |
//! | `board` | what all programs share |
//! | `program`, `home` | the calls of a program on a host |
//! | `scenes` | calls of several hosts that meet within milliseconds |
//! | `mount`, `kernel` | system calls; what the kernel of a host shows |
//! | `network`, `world` | frames that take time; hosts, servers and losses |
//! | `crashes` | crash states of such runs |
//! | `bugs`, `coverage` | bugs that are planted; what must happen |

mod board;
mod bugs;
mod coverage;
pub mod crashes;
mod history;
mod home;
mod kernel;
mod mount;
mod network;
mod order;
mod program;
mod scenes;
mod tree;
mod world;

use std::sync::PoisonError;

use nectary_host::log::{LogLevel, write_only};
use nectary_volume::simulated::switch_on;

pub use bugs::VolumeNamesBug;
pub use coverage::VolumeNamesCoverage;

use crate::late::in_virtual_time;
use crate::planted::{BugCase, CaughtBug};
use crate::volume::OrderVerdict;
use crate::volume_clients::world::WorkloadStart;
use board::NamesBoard;
use history::NamesHistory;
use order::{OrderStep, explain};
use tree::ModelTree;
use world::VolumeNamesWorld;

/// The smallest number of calls of a run, on average.
pub const CALLS_MIN: u64 = 80;
/// Fewer runs than these are a sample.
const SAMPLE_RUNS_MAX: u64 = 1000;
/// The largest number of violations that are described.
const BROKEN_MAX: usize = 10;

/// The report of many runs.
#[derive(Debug, Default, Clone)]
pub struct VolumeNamesReport {
    /// Runs done.
    pub runs: u64,
    /// Calls of programs.
    pub calls: u64,
    /// Runs with so many calls at the same time that the search for an order was given up.
    pub undecided: u64,
    /// What happened.
    pub coverage: VolumeNamesCoverage,
    /// The number of violations.
    pub broken_count: u64,
    /// Descriptions of the first violations.
    pub broken: Vec<String>,
}

impl VolumeNamesReport {
    /// What is missing to make a result without errors meaningful.
    pub fn missing(&self) -> Vec<&'static str> {
        let mut missing: Vec<&'static str> =
            self.coverage.counts().into_iter().filter(|(_, count)| *count == 0).map(|(name, _)| name).collect();
        if self.calls < CALLS_MIN * self.runs {
            missing.push("calls");
        }
        if self.undecided * 1000 > self.runs {
            missing.push("decided histories");
        }
        if !self.coverage.is_local_enough(self.runs < SAMPLE_RUNS_MAX) {
            missing.push("changes that hosts made themselves: a third of the calls");
        }
        missing
    }
}

/// The result of a run.
struct NamesRunResult {
    broken: Option<String>,
    story: Vec<String>,
    calls: u64,
    is_undecided: bool,
    coverage: VolumeNamesCoverage,
}

/// Whether hosts make and remove names themselves in the run of a seed.
fn are_names_local(seed: u64) -> bool {
    !seed.is_multiple_of(2)
}

fn run_one(seed: u64, is_told: bool) -> NamesRunResult {
    // Sessions and servers that are lost on purpose are not reported one by one.
    write_only(LogLevel::Error);
    let mut ran = NamesRunResult {
        broken: None,
        story: Vec::new(),
        calls: 0,
        is_undecided: false,
        coverage: VolumeNamesCoverage::default(),
    };
    let start = match WorkloadStart::formatted() {
        Ok(start) => start,
        Err(broken) => return NamesRunResult { broken: Some(broken), ..ran },
    };
    let (steps, broken) = in_virtual_time(async {
        switch_on(true);
        let board = NamesBoard::new(is_told, are_names_local(seed), None);
        let world = VolumeNamesWorld::new(seed, start.disk(seed), board.clone(), None);
        let ended = world.run(seed).await;
        ran.coverage = world.coverage.lock().unwrap_or_else(PoisonError::into_inner).clone();
        ran.story = board.take_story();
        let (steps, broken) = board.history(|history| {
            if let Err(what) = ended {
                history.is_broken(what);
            }
            (history.steps(), history.broken.take())
        });
        switch_on(false);
        (steps, broken)
    });
    ran.calls = steps.len() as u64;
    ran.coverage.add_lost(steps.iter().filter(|step| step.is_optional && step.outcome.is_some()).count() as u64);
    match broken.map_or_else(|| explained(&steps), Err) {
        Ok(is_decided) => ran.is_undecided = !is_decided,
        Err(broken) => ran.broken = Some(broken),
    }
    ran
}

/// Whether an order explains calls, or the search was given up. *Errors*: no order does.
fn explained(steps: &[OrderStep]) -> Result<bool, String> {
    let explained = explain(steps, ModelTree::default());
    match explained.verdict {
        OrderVerdict::Explained => Ok(true),
        OrderVerdict::Unknown => Ok(false),
        OrderVerdict::Broken => {
            let stuck = explained.stuck.map_or_else(String::new, |at| NamesHistory::describe(&steps[at]));
            let (longest, all) = (explained.longest, steps.len());
            Err(format!("no order explains more than {longest} of {all} calls: {stuck}"))
        }
    }
}

/// Runs one seed.
pub fn run(seed: u64, report: &mut VolumeNamesReport) {
    let ran = run_one(seed, false);
    report.runs += 1;
    report.calls += ran.calls;
    report.undecided += u64::from(ran.is_undecided);
    report.coverage.merge(&ran.coverage);
    if let Some(broken) = ran.broken {
        report.broken_count += 1;
        if report.broken.len() < BROKEN_MAX {
            report.broken.push(format!("seed {seed}: {broken}"));
        }
    }
}

/// Runs the seeds from `seed` on that belong to shard `shard.0` of `shard.1`; `progress` gets the report after each run.
/// Shards take pairs of seeds, because hosts change names themselves in every second run.
pub fn run_many(
    seed: u64,
    runs: u64,
    shard: (u64, u64),
    mut progress: impl FnMut(&VolumeNamesReport),
) -> VolumeNamesReport {
    let mut report = VolumeNamesReport::default();
    for at in (0..runs).filter(|at| at / 2 % shard.1 == shard.0) {
        run(seed + at, &mut report);
        progress(&report);
    }
    report
}

/// Runs one seed, and returns a description of the events.
pub fn story(seed: u64) -> Vec<String> {
    let ran = run_one(seed, true);
    ran.story.into_iter().chain(ran.broken).collect()
}

/// Runs seeds from `seed` on with one bug planted, until a run catches it whose seed is good without it.
pub fn run_planted(bug: VolumeNamesBug, seed: u64, runs: u64) -> Option<CaughtBug> {
    let is_due_to_it = |caught: &CaughtBug| run_one(caught.case.seed, false).broken.is_none();
    (seed..seed + runs).find_map(|seed| replay_planted(bug, seed).filter(is_due_to_it))
}

/// Runs one seed with one bug planted.
pub fn replay_planted(bug: VolumeNamesBug, seed: u64) -> Option<CaughtBug> {
    bugs::plant(Some(bug));
    let ran = run_one(seed, false);
    bugs::plant(None);
    let broken = ran.broken?;
    Some(CaughtBug { case: BugCase::of_seed(seed), broken, account: String::new() })
}
