//! Many workloads with their crash states, also with a planted bug.

use std::collections::{BTreeSet, HashSet};

use nectary_volume::planted::{Bug, plant};

use super::check::{Seen, check};
use super::model::Event;
use super::workload::{self, Losses, Workload};
use super::world::{in_virtual_time, stale};
use crate::crash::{CrashOptions, CrashState, CrashStates, sample};

/// The bugs that are planted.
pub const BUGS: [Bug; 2] = [Bug::CommitBeforeFlush, Bug::AnsweredEarly];

/// The maximum number of crash states for each epoch of a recording and kind of crash.
const STATES_PER_EPOCH: usize = 4;
/// The maximum number of violations that are described in words.
const VIOLATIONS_MAX: usize = 10;

/// The numbers of runs and states.
#[derive(Debug, Clone, Copy)]
pub struct Amount {
    /// The seed of the first run; the following runs use the next seeds.
    pub seed: u64,
    /// The number of workloads.
    pub runs: u64,
    /// The maximum number of crash states of each workload.
    pub states_per_run: u64,
}

/// The results of all runs.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// The number of workloads done.
    pub workloads: u64,
    /// The number of events of their programs.
    pub events: u64,
    /// The losses during the workloads.
    pub losses: Losses,
    /// The number of crash states checked.
    pub states: u64,
    /// The number of different images among them.
    pub distinct: u64,
    /// The number of states with a complete volume.
    pub ready: u64,
    /// The number of states after which the volume was used.
    pub used: u64,
    /// The number of names found.
    pub names: u64,
    /// The number of files compared.
    pub files: u64,
    /// Files whose contents are newer than promised.
    pub newer: u64,
    /// Files whose blocks have several states.
    pub mixed: u64,
    /// The number of calls that had not returned and were done.
    pub done: u64,
    /// Calls that had not returned and were not done.
    pub undone: u64,
    /// The number of violations.
    pub violation_count: u64,
    /// The first violations in words.
    pub violations: Vec<String>,
}

impl Report {
    fn violation(&mut self, text: String) {
        self.violation_count += 1;
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(text);
        }
    }

    fn count(&mut self, seen: Seen) {
        self.ready += u64::from(seen.is_ready);
        self.used += u64::from(seen.is_used);
        self.names += seen.names;
        self.files += seen.files;
        self.newer += seen.newer;
        self.mixed += seen.mixed;
        self.done += seen.done;
        self.undone += seen.undone;
    }

    /// Whether every kind of event that should be tested has happened.
    pub fn has_all(&self) -> bool {
        let Losses { hosts, servers, both, calls, files } = self.losses;
        let counts = [self.ready, self.used, self.newer, self.mixed, self.done, self.undone];
        [hosts, servers, both, calls, files].iter().chain(&counts).all(|count| *count > 0)
    }

    fn add(&mut self, workload: &Workload) {
        let Losses { hosts, servers, both, calls, files } = workload.losses;
        self.workloads += 1;
        self.events += workload.events.len() as u64;
        self.losses.hosts += hosts;
        self.losses.servers += servers;
        self.losses.both += both;
        self.losses.calls += calls;
        self.losses.files += files;
    }
}

/// Runs workloads; `progress` gets the report after each.
pub fn run(amount: Amount, mut progress: impl FnMut(&Report)) -> Report {
    let (mut report, mut seen) = (Report::default(), HashSet::new());
    for seed in amount.seed..amount.seed + amount.runs {
        one(seed, amount.states_per_run, true, &mut seen, &mut report);
        progress(&report);
    }
    report
}

fn one(seed: u64, states_per_run: u64, has_losses: bool, seen: &mut HashSet<u64>, report: &mut Report) {
    let workload = in_virtual_time(workload::run(seed, has_losses));
    report.add(&workload);
    if let Some(broken) = &workload.broken {
        report.violation(format!("workload {seed}: {broken}"));
    }
    let states = states(&workload);
    for number in chosen(&workload.events, &states, states_per_run) {
        let state = &states[number];
        report.states += 1;
        report.distinct += u64::from(seen.insert(state.hash));
        match in_virtual_time(check(&workload, state)) {
            Ok(found) => report.count(found),
            Err(broken) => {
                report.violation(format!("workload {seed}, state {number}: {broken}; {}", state.description));
            }
        }
    }
}

/// The detection of a planted bug.
#[derive(Debug, Clone)]
pub struct Found {
    /// The seed of the run that detected the bug.
    pub seed: u64,
    /// The number of violations in this run.
    pub violations: u64,
    /// The first violation in words.
    pub first: String,
}

/// Runs one seed with a planted bug, without losses before the crash.
pub fn replay_planted(bug: Bug, seed: u64, states_per_run: u64) -> Option<Found> {
    let mut report = Report::default();
    plant(Some(bug));
    one(seed, states_per_run, false, &mut HashSet::new(), &mut report);
    plant(None);
    let first = report.violations.into_iter().next()?;
    Some(Found { seed, violations: report.violation_count, first })
}

/// Runs seeds with a planted bug until one of them detects it.
pub fn run_planted(bug: Bug, amount: Amount) -> Option<Found> {
    (amount.seed..amount.seed + amount.runs).find_map(|seed| replay_planted(bug, seed, amount.states_per_run))
}

/// At most `most` numbers of states: a quarter right after somebody saw what another session did, a quarter right after
/// another promise, and the others evenly spread.
fn chosen(events: &[Event], states: &[CrashState], most: u64) -> BTreeSet<usize> {
    let is_after = |number: &usize, is: fn(&Event) -> bool| {
        states[*number].marks().len().checked_sub(1).and_then(|last| events.get(last)).is_some_and(is)
    };
    let is_seen = |event: &Event| matches!(event, Event::NamesSeen { .. });
    let is_promise = |event: &Event| matches!(event, Event::NamesEnded { .. } | Event::FileDurable { .. });
    let mut numbers = BTreeSet::new();
    for is in [is_seen as fn(&Event) -> bool, is_promise] {
        let after: Vec<usize> = (0..states.len()).filter(|number| is_after(number, is)).collect();
        numbers.extend(sample(after.len(), most / 4).map(|number| after[number]));
    }
    numbers.extend(sample(states.len(), most - numbers.len() as u64));
    numbers
}

fn states(workload: &Workload) -> Vec<CrashState> {
    let options = CrashOptions { max_per_epoch: STATES_PER_EPOCH, seed: workload.seed, ..CrashOptions::default() };
    CrashStates::new(stale().to_vec(), &workload.recording, options).collect()
}
