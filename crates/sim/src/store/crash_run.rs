//! Runs many workloads and checks the crash states of each.
//!
//! Workloads run on the store's threads, as for users, and so differ a little each time. Workloads with a planted bug
//! run in virtual time on one thread, so that a seed and the number of a crash state repeat the result.
//!
//! Owns: the results: the numbers of distinct images, of images with live objects, and of violations. Leaves to others:
//! the operations of a workload, the possible states, and the promises.

use std::collections::HashSet;

use nectary_store::BackgroundRuntime;
use nectary_store::planted::{Bug, plant};

use crate::crash::{CrashOptions, CrashState, CrashStates, sample};
use crate::late::in_virtual_time;
use crate::planted::{BugCase, CaughtBug};
use crate::store::crash_check::check;
use crate::store::expectation::{StoreEvent, StoreExpectation};
use crate::store::workload::{self, StoreWorkload};

/// The number of operations of a workload while it is recorded.
const OPERATIONS: u32 = 40;
/// The largest number of violations that are described.
const VIOLATIONS_MAX: usize = 10;

/// The results of a run.
#[derive(Debug, Default, Clone)]
pub struct StoreCrashReport {
    /// Workloads done.
    pub workloads: u64,
    /// States checked.
    pub states: u64,
    /// Distinct images among the checked states.
    pub distinct: u64,
    /// Distinct images in which at least one object hit.
    pub live: u64,
    /// Objects that the workloads re-inserted.
    pub reinserted: u64,
    /// Objects that were written next to the objects to which hints tie them.
    pub tied: u64,
    /// Objects that workloads rewrote from memory.
    pub rewritten: u64,
    /// Purges by tag that returned.
    pub tag_purges: u64,
    /// Objects that entered memory when images were checked, because a read of a neighbour included them.
    pub neighbours: u64,
    /// Objects that entered memory from the hot list when images were checked.
    pub warmed: u64,
    /// Answers that had to be hits.
    pub demanded: u64,
    /// The number of broken promises.
    pub violation_count: u64,
    /// Descriptions of the first broken promises.
    pub violations: Vec<String>,
}

/// The amount of work of a run.
#[derive(Debug, Clone, Copy)]
pub struct CrashRunOptions {
    /// The seed of the first workload; the following ones have the next seeds.
    pub seed: u64,
    /// The number of workloads.
    pub workloads: u64,
    /// The largest number of states to check per workload.
    pub states_per_workload: u64,
}

/// Runs workloads and checks their crash states; `progress` gets the results after each workload.
pub async fn run(options: CrashRunOptions, mut progress: impl FnMut(&StoreCrashReport)) -> StoreCrashReport {
    let mut report = StoreCrashReport::default();
    let mut seen = HashSet::new();
    for seed in options.seed..options.seed + options.workloads {
        let workload = workload::run(seed, OPERATIONS, BackgroundRuntime::Threads).await;
        check_states(&workload, &options, &mut seen, &mut report).await;
        report.workloads += 1;
        report.reinserted += workload.reinserted;
        report.tied += workload.tied;
        report.rewritten += workload.rewritten;
        let is_tag_purge = |event: &&StoreEvent| matches!(event, StoreEvent::TagPurgeReturned { .. });
        report.tag_purges += workload.events.iter().filter(is_tag_purge).count() as u64;
        progress(&report);
    }
    report
}

/// Runs workloads from the seed in `options` on with one bug planted, until a crash state of one of them breaks a
/// promise.
pub fn run_planted(bug: Bug, options: CrashRunOptions) -> Option<CaughtBug> {
    (options.seed..options.seed + options.workloads).find_map(|seed| {
        with_planted(bug, async {
            let workload = workload::run(seed, OPERATIONS, BackgroundRuntime::Caller).await;
            let states = crash_states(&workload);
            for number in sample(states.len(), options.states_per_workload) {
                let caught = check_planted(&workload, &states, number).await;
                if caught.is_some() {
                    return caught;
                }
            }
            None
        })
    })
}

/// Runs the workload of a case with one bug planted, and checks one crash state: the case's, or state 0 if the case
/// names none.
pub fn replay_planted(bug: Bug, case: BugCase) -> Option<CaughtBug> {
    with_planted(bug, async {
        let workload = workload::run(case.seed, OPERATIONS, BackgroundRuntime::Caller).await;
        check_planted(&workload, &crash_states(&workload), case.state.unwrap_or(0) as usize).await
    })
}

fn with_planted<T>(bug: Bug, run: impl Future<Output = T>) -> T {
    plant(Some(bug));
    let result = in_virtual_time(run);
    plant(None);
    result
}

/// Checks only one crash state.
async fn check_planted(workload: &StoreWorkload, states: &[CrashState], number: usize) -> Option<CaughtBug> {
    let state = states.get(number)?;
    let mut expectation = StoreExpectation::default();
    workload.events[..known(workload, state)].iter().for_each(|event| expectation.tell(event));
    let verdict = check(state.device(), state.model, &expectation, BackgroundRuntime::Caller).await;
    let first = verdict.violations.first()?;
    Some(CaughtBug {
        case: BugCase { seed: workload.seed, state: Some(number as u64) },
        broken: format!("{}: {first}", state.description),
        // The account omits the hash of the image, because a superblock contains the time at which it was made.
        account: format!("{} events, {} states, {verdict:?}", workload.events.len(), states.len()),
    })
}

/// Returns the crash states of a workload, in an order that depends on its seed.
fn crash_states(workload: &StoreWorkload) -> Vec<CrashState> {
    // States of one epoch are similar: take some of each epoch, spread over the whole recording.
    let options = CrashOptions { max_per_epoch: 8, seed: workload.seed, ..CrashOptions::default() };
    CrashStates::new(workload.base.clone(), &workload.recording, options).collect()
}

/// Returns the number of a workload's events that had happened in a state.
fn known(workload: &StoreWorkload, state: &CrashState) -> usize {
    state.last_mark().map_or(workload.events_before, |mark| mark as usize)
}

async fn check_states(
    workload: &StoreWorkload,
    options: &CrashRunOptions,
    seen: &mut HashSet<u64>,
    report: &mut StoreCrashReport,
) {
    let states = crash_states(workload);
    let mut expectation = StoreExpectation::default();
    let mut told = 0;
    for number in sample(states.len(), options.states_per_workload) {
        let state = &states[number];
        let known = known(workload, state);
        if known < told {
            expectation = StoreExpectation::default();
            told = 0;
        }
        workload.events[told..known].iter().for_each(|event| expectation.tell(event));
        told = known;
        let verdict = check(state.device(), state.model, &expectation, BackgroundRuntime::Threads).await;
        report.states += 1;
        report.demanded += u64::from(verdict.demanded);
        report.neighbours += verdict.neighbours;
        report.warmed += verdict.warmed;
        if seen.insert(state.hash) {
            report.distinct += 1;
            report.live += u64::from(verdict.live > 0);
        }
        for violation in verdict.violations {
            report.violation_count += 1;
            if report.violations.len() < VIOLATIONS_MAX {
                report.violations.push(format!("workload {}, {}: {violation}", workload.seed, state.description));
            }
        }
    }
}
