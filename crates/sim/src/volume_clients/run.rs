//! Many workloads with their crash states, also with a planted bug.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, HashSet};

use nectary_block::RecordedEvent as Recorded;
use nectary_host::log::{LogLevel, write_only};
use nectary_volume::planted::{Bug, plant};

use super::check::{ClientStateCheck, check};
use super::model::WorkloadEvent;
use super::workload::{self, ClientWorkload, LossCounts};
use super::world::{WorkloadStart, in_virtual_time};
use crate::crash::{CrashOptions, CrashState, CrashStates, sample};

/// The bugs that are planted.
pub const BUGS: [Bug; 4] = [Bug::CommitBeforeFlush, Bug::AnsweredEarly, Bug::ShownEarly, Bug::SizeBeforeData];

/// The maximum number of crash states of each kind, in each epoch of a recording.
const STATES_PER_EPOCH: usize = 4;
/// Every so many runs, the volume is formatted in the run.
const FORMAT_EVERY: u64 = 8;
/// In this many workloads, rare events happen, too.
const RARE_WORKLOADS_MIN: u64 = 100;
/// How many violations are described in words.
const VIOLATIONS_MAX: usize = 10;

/// The numbers of runs and states.
#[derive(Debug, Clone, Copy)]
pub struct ClientRunPlan {
    /// The seed of the first run; the following runs use the next seeds.
    pub seed: u64,
    /// The number of workloads.
    pub runs: u64,
    /// The maximum number of crash states of each workload.
    pub states_per_run: u64,
}

/// The results of all runs.
#[derive(Debug, Clone, Default)]
pub struct VolumeClientsReport {
    /// The number of workloads done.
    pub workloads: u64,
    /// The number of events of their programs.
    pub events: u64,
    /// The losses during the workloads.
    pub losses: LossCounts,
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

impl VolumeClientsReport {
    fn violation(&mut self, text: String) {
        self.violation_count += 1;
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(text);
        }
    }

    fn count(&mut self, seen: ClientStateCheck) {
        self.ready += u64::from(seen.is_ready);
        self.used += u64::from(seen.is_used);
        self.names += seen.names;
        self.files += seen.files;
        self.newer += seen.newer;
        self.mixed += seen.mixed;
        self.done += seen.done;
        self.undone += seen.undone;
    }

    /// Whether every kind of event that should be tested has happened. Rare kinds are expected of many workloads only.
    pub fn has_all(&self) -> bool {
        let LossCounts { hosts, servers, both, calls, awaited, files } = self.losses;
        let often = [hosts, servers, both, files, self.ready, self.used, self.newer, self.done, self.undone];
        let rare = [calls, awaited, self.mixed];
        let rare = rare.iter().filter(|_| self.workloads >= RARE_WORKLOADS_MIN);
        often.iter().chain(rare).all(|count| *count > 0)
    }

    fn add(&mut self, workload: &ClientWorkload) {
        let LossCounts { hosts, servers, both, calls, awaited, files } = workload.losses;
        self.workloads += 1;
        self.events += workload.events.len() as u64;
        self.losses.hosts += hosts;
        self.losses.servers += servers;
        self.losses.both += both;
        self.losses.calls += calls;
        self.losses.awaited += awaited;
        self.losses.files += files;
    }
}

/// Runs workloads; `progress` gets the report after each.
pub fn run(amount: ClientRunPlan, mut progress: impl FnMut(&VolumeClientsReport)) -> VolumeClientsReport {
    let (mut report, mut seen) = (VolumeClientsReport::default(), HashSet::new());
    quietly();
    for seed in amount.seed..amount.seed + amount.runs {
        one(seed, amount.states_per_run, RunPurpose::Check, &mut seen, &mut report);
        progress(&report);
    }
    report
}

/// What a run is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RunPurpose {
    /// To check states, after losses.
    Check,
    /// To catch a planted bug: nothing is lost before the crash, and one violation is enough.
    Catch,
}

fn one(seed: u64, states_per_run: u64, purpose: RunPurpose, seen: &mut HashSet<u64>, report: &mut VolumeClientsReport) {
    let is_check = purpose == RunPurpose::Check;
    // Most begin with a volume: all formats are alike.
    let start = match is_check && seed.is_multiple_of(FORMAT_EVERY) {
        true => Ok(WorkloadStart::used()),
        false => WorkloadStart::formatted(),
    };
    let start = match start {
        Ok(start) => start,
        Err(broken) => return report.violation(broken),
    };
    let workload = in_virtual_time(workload::run(seed, start, is_check));
    report.add(&workload);
    if let Some(broken) = &workload.broken {
        report.violation(format!("workload {seed}: {broken}"));
    }
    let states = states(&workload);
    for number in chosen(&workload, &states, states_per_run) {
        if !is_check && report.violation_count > 0 {
            return;
        }
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
pub struct BugDetection {
    /// The seed of the run that detected the bug.
    pub seed: u64,
    /// The first violation in words.
    pub first: String,
}

/// Runs one seed with a planted bug, without losses before the crash.
pub fn replay_planted(bug: Bug, seed: u64, states_per_run: u64) -> Option<BugDetection> {
    let mut report = VolumeClientsReport::default();
    quietly();
    plant(Some(bug));
    one(seed, states_per_run, RunPurpose::Catch, &mut HashSet::new(), &mut report);
    plant(None);
    let first = report.violations.into_iter().next()?;
    Some(BugDetection { seed, first })
}

/// Runs seeds with a planted bug until one of them detects it.
pub fn run_planted(bug: Bug, amount: ClientRunPlan) -> Option<BugDetection> {
    (amount.seed..amount.seed + amount.runs).find_map(|seed| replay_planted(bug, seed, amount.states_per_run))
}

/// Sessions and servers that are lost on purpose are not reported one by one.
fn quietly() {
    write_only(LogLevel::Error);
}

/// At most `most` numbers of states: a quarter of them soon after somebody saw what another session did, a quarter soon
/// after another promise, and the others evenly spread. Soon means that no flush succeeded between the promise and the
/// crash, so the disk may have lost what was promised too early.
fn chosen(workload: &ClientWorkload, states: &[CrashState], most: u64) -> BTreeSet<usize> {
    let marked = workload.recording.events.iter().enumerate().filter(|(_, event)| matches!(event, Recorded::Mark(_)));
    let marked: Vec<usize> = marked.map(|(at, _)| at).collect();
    let is_after = |number: &usize, is: fn(&WorkloadEvent) -> bool| {
        let state = &states[*number];
        let flushed = state.flushed_through.map_or(0, |flush| marked.partition_point(|mark| *mark < flush));
        workload.events[flushed..state.marks().len()].iter().any(is)
    };
    let is_seen = |event: &WorkloadEvent| matches!(event, WorkloadEvent::NamesSeen { .. });
    let is_promise =
        |event: &WorkloadEvent| matches!(event, WorkloadEvent::NamesEnded { .. } | WorkloadEvent::FileDurable { .. });
    let mut numbers = BTreeSet::new();
    for is in [is_seen as fn(&WorkloadEvent) -> bool, is_promise] {
        let after: Vec<usize> = (0..states.len()).filter(|number| is_after(number, is)).collect();
        numbers.extend(sample(after.len(), most / 4).map(|number| after[number]));
    }
    let others: Vec<usize> = (0..states.len()).filter(|number| !numbers.contains(number)).collect();
    let left = most.saturating_sub(numbers.len() as u64);
    numbers.extend(sample(others.len(), left).map(|number| others[number]));
    numbers
}

/// States with different images. Of those with the same image, the last is taken: it has all promises of the others.
fn states(workload: &ClientWorkload) -> Vec<CrashState> {
    let options = CrashOptions { max_per_epoch: STATES_PER_EPOCH, seed: workload.seed, ..CrashOptions::default() };
    let (mut states, mut places) = (Vec::<CrashState>::new(), HashMap::new());
    for state in CrashStates::on(&workload.start.base, &workload.recording, options) {
        match places.entry(state.hash) {
            Entry::Vacant(place) => {
                place.insert(states.len());
                states.push(state);
            }
            Entry::Occupied(place) => {
                let known = &mut states[*place.get()];
                if known.marks().len() < state.marks().len() {
                    *known = state;
                }
            }
        }
    }
    states
}
