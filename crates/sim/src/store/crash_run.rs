//! Many workloads, the crash states of each, and every state checked.
//!
//! Owns: the account: how many distinct images, how many with live objects, what was broken. Leaves to others: what a
//! workload does, which states there are, and what is promised.

use std::collections::HashSet;

use nectary_store::planted::{Bug, plant};

use crate::crash::{CrashOptions, CrashStates};
use crate::store::crash_check::check;
use crate::store::expectation::{Event, Expectation};
use crate::store::workload::{self, Workload};

/// Operations of a workload while it is recorded.
const OPERATIONS: u32 = 40;
/// Violations that are kept in words.
const VIOLATIONS_MAX: usize = 10;

/// The account of a run.
#[derive(Debug, Default, Clone)]
pub struct CrashReport {
    /// Workloads done.
    pub workloads: u64,
    /// States checked.
    pub states: u64,
    /// Of these, how many had an image that none before had.
    pub distinct: u64,
    /// Distinct images in which at least one object hit.
    pub live: u64,
    /// Objects that the workloads re-inserted.
    pub reinserted: u64,
    /// Objects that they wrote beside those that hints tie them to.
    pub tied: u64,
    /// Objects that workloads wrote anew from memory.
    pub rewritten: u64,
    /// Purges by tag that returned.
    pub tag_purges: u64,
    /// Objects that came into memory with a neighbour's read when images were checked.
    pub neighbours: u64,
    /// Objects that came into memory with the hot list when images were checked.
    pub warmed: u64,
    /// Answers compared that had to be hits.
    pub demanded: u64,
    /// Broken promises, counted.
    pub violation_count: u64,
    /// The first of them in words.
    pub violations: Vec<String>,
}

/// How far to go.
#[derive(Debug, Clone, Copy)]
pub struct CrashRunOptions {
    /// The seed of the first workload; the next have the next seeds.
    pub seed: u64,
    /// How many workloads.
    pub workloads: u64,
    /// How many states of each, at most.
    pub states_per_workload: u64,
    /// Whether to end at the first broken promise.
    pub stop_at_violation: bool,
}

/// Runs workloads and checks their crash states; `progress` is told the account after each workload.
pub async fn run(options: CrashRunOptions, mut progress: impl FnMut(&CrashReport)) -> CrashReport {
    let mut report = CrashReport::default();
    let mut seen = HashSet::new();
    for seed in options.seed..options.seed + options.workloads {
        let workload = workload::run(seed, OPERATIONS).await;
        check_states(&workload, &options, &mut seen, &mut report).await;
        report.workloads += 1;
        report.reinserted += workload.reinserted;
        report.tied += workload.tied;
        report.rewritten += workload.rewritten;
        let is_tag_purge = |event: &&Event| matches!(event, Event::TagPurgeReturned { .. });
        report.tag_purges += workload.events.iter().filter(is_tag_purge).count() as u64;
        progress(&report);
        if options.stop_at_violation && report.violation_count > 0 {
            break;
        }
    }
    report
}

/// Runs with one bug planted until a promise is broken; tells in which workload, if any.
pub async fn run_planted(bug: Bug, options: CrashRunOptions) -> Option<u64> {
    plant(Some(bug));
    let report = run(CrashRunOptions { stop_at_violation: true, ..options }, |_| {}).await;
    plant(None);
    (report.violation_count > 0).then_some(report.workloads)
}

async fn check_states(
    workload: &Workload,
    options: &CrashRunOptions,
    seen: &mut HashSet<u64>,
    report: &mut CrashReport,
) {
    // States of one epoch are much alike: some of each, spread over the whole recording.
    let crash_options = CrashOptions { max_per_epoch: 8, seed: workload.seed, ..CrashOptions::default() };
    let states: Vec<_> = CrashStates::new(workload.base.clone(), &workload.recording, crash_options).collect();
    let wanted = options.states_per_workload as usize;
    let mut expectation = Expectation::default();
    let mut told = 0;
    for number in 0..states.len().min(wanted) {
        let state = &states[number * states.len() / states.len().min(wanted)];
        let known = state.last_mark().map_or(workload.events_before, |mark| mark as usize);
        if known < told {
            expectation = Expectation::default();
            told = 0;
        }
        workload.events[told..known].iter().for_each(|event| expectation.tell(event));
        told = known;
        let verdict = check(state.device(), state.model, &expectation).await;
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
            if options.stop_at_violation {
                return;
            }
        }
    }
}
