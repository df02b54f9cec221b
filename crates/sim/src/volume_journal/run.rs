//! Many workloads with their crash states, and many contentions; also with one bug planted.

use std::collections::HashSet;
use std::sync::OnceLock;

use nectary_block::DeviceSnapshot;
use nectary_volume::planted::{Bug, plant};

use super::check::{JournalStateCheck, check};
use super::contend::{self, ContentionReport};
use super::server::VOLUME_BYTES;
use super::workload::{self, JournalWorkload};
use crate::crash::{CrashOptions, CrashState, CrashStates, RecordingBase, sample};
use crate::late::in_virtual_time;
use crate::planted::{BugCase, CaughtBug};

/// The largest number of crash states of one epoch of a recording.
const STATES_PER_EPOCH: usize = 4;
/// The largest number of violations that are described.
const VIOLATIONS_MAX: usize = 10;

/// The bugs of a journal.
pub const BUGS: [Bug; 5] =
    [Bug::AcknowledgedBeforeFlush, Bug::ManifestBeforeRuns, Bug::SealIgnored, Bug::PointerSkipped, Bug::BallotIgnored];

/// The amount of work.
#[derive(Debug, Clone, Copy)]
pub struct JournalRunPlan {
    /// The seed of the first run; the following ones have the next seeds.
    pub seed: u64,
    /// The number of workloads.
    pub runs: u64,
    /// The largest number of crash states of each workload.
    pub states_per_run: u64,
    /// The number of contentions for each workload.
    pub contentions: u64,
}

/// The results.
#[derive(Debug, Clone, Default)]
pub struct VolumeJournalReport {
    /// Workloads done.
    pub workloads: u64,
    /// Crash states checked.
    pub states: u64,
    /// Distinct images among the checked states.
    pub distinct: u64,
    /// States in which a server started the volume.
    pub started: u64,
    /// States with transactions that had not been acknowledged.
    pub unacknowledged: u64,
    /// Epochs of the workloads.
    pub epochs: u64,
    /// Checkpoints of the workloads.
    pub checkpoints: u64,
    /// Large appends of the workloads, after which the journal continues in other segments.
    pub large: u64,
    /// Appends of replaced leaders.
    pub late: u64,
    /// Contentions done.
    pub contentions: u64,
    /// The counts of the contentions.
    pub contention: ContentionReport,
    /// The number of violations.
    pub violation_count: u64,
    /// Descriptions of the first violations.
    pub violations: Vec<String>,
}

impl VolumeJournalReport {
    fn violation(&mut self, text: String) {
        self.violation_count += 1;
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(text);
        }
    }

    fn count(&mut self, seen: JournalStateCheck) {
        self.started += u64::from(seen.is_started);
        self.unacknowledged += u64::from(seen.unacknowledged > 0);
    }

    fn contended(&mut self, seed: u64, contention: ContentionReport) {
        self.contentions += 1;
        self.contention.led += contention.led;
        self.contention.refused += contention.refused;
        self.contention.lost += contention.lost;
        self.contention.acknowledged += contention.acknowledged;
        if let Some(broken) = contention.broken {
            self.violation(format!("contention {seed}: {broken}"));
        }
    }

    /// Whether every event that should be tested has happened.
    pub fn has_all(&self) -> bool {
        let counts = [self.started, self.unacknowledged, self.checkpoints, self.large, self.late];
        let contended = [self.contention.led, self.contention.refused, self.contention.lost];
        counts.iter().chain(&contended).all(|count| *count > 0)
    }
}

/// Runs workloads and contentions; `progress` gets the results after each.
pub fn run(amount: JournalRunPlan, mut progress: impl FnMut(&VolumeJournalReport)) -> VolumeJournalReport {
    let (mut report, mut seen) = (VolumeJournalReport::default(), HashSet::new());
    for seed in amount.seed..amount.seed + amount.runs {
        in_virtual_time(one(seed, amount.states_per_run, &mut seen, &mut report));
        for contention in 0..amount.contentions {
            let seed = seed.wrapping_mul(1000).wrapping_add(contention);
            report.contended(seed, in_virtual_time(contend::run(seed)));
        }
        progress(&report);
    }
    report
}

async fn one(seed: u64, states_per_run: u64, seen: &mut HashSet<u64>, report: &mut VolumeJournalReport) {
    let workload = workload::run(seed).await;
    report.workloads += 1;
    report.epochs += workload.epochs;
    report.checkpoints += workload.checkpoints;
    report.large += workload.large;
    report.late += workload.late;
    if let Some(broken) = &workload.broken {
        report.violation(format!("workload {seed}: {broken}"));
    }
    let states = states(&workload);
    for number in sample(states.len(), states_per_run) {
        let state = &states[number];
        report.states += 1;
        report.distinct += u64::from(seen.insert(state.hash));
        match check(&workload, state).await {
            Ok(found) => report.count(found),
            Err(broken) => {
                report.violation(format!("workload {seed}, state {number}: {broken}; {}", state.description))
            }
        }
    }
}

/// Runs seeds with one bug planted, until a run catches it.
pub fn run_planted(bug: Bug, amount: JournalRunPlan) -> Option<CaughtBug> {
    (amount.seed..amount.seed + amount.runs).find_map(|seed| {
        if bug == Bug::BallotIgnored {
            return replay_planted(bug, BugCase::of_seed(seed));
        }
        with_planted(bug, async {
            let workload = workload::run(seed).await;
            let states = states(&workload);
            for number in sample(states.len(), amount.states_per_run) {
                let caught = caught(&workload, &states, number).await;
                if caught.is_some() {
                    return caught;
                }
            }
            None
        })
    })
}

/// Runs one case with one bug planted.
pub fn replay_planted(bug: Bug, case: BugCase) -> Option<CaughtBug> {
    if bug == Bug::BallotIgnored {
        let contention = with_planted(bug, contend::run(case.seed));
        let broken = contention.broken.clone()?;
        return Some(CaughtBug { case, broken, account: format!("{contention:?}") });
    }
    with_planted(bug, async {
        let workload = workload::run(case.seed).await;
        caught(&workload, &states(&workload), case.state.unwrap_or(0) as usize).await
    })
}

async fn caught(workload: &JournalWorkload, states: &[CrashState], number: usize) -> Option<CaughtBug> {
    let state = states.get(number)?;
    let broken = match &workload.broken {
        Some(broken) => broken.clone(),
        None => check(workload, state).await.err()?,
    };
    Some(CaughtBug {
        case: BugCase { seed: workload.seed, state: Some(number as u64) },
        broken: format!("{}: {broken}", state.description),
        account: format!("{} transactions, {} states", workload.transactions.len(), states.len()),
    })
}

fn with_planted<T>(bug: Bug, run: impl Future<Output = T>) -> T {
    plant(Some(bug));
    let result = in_virtual_time(run);
    plant(None);
    result
}

fn states(workload: &JournalWorkload) -> Vec<CrashState> {
    let options = CrashOptions { max_per_epoch: STATES_PER_EPOCH, seed: workload.seed, ..CrashOptions::default() };
    static BASE: OnceLock<RecordingBase> = OnceLock::new();
    let base = BASE.get_or_init(|| RecordingBase::new(DeviceSnapshot::zeroed(VOLUME_BYTES)));
    CrashStates::on(base, &workload.recording, options).collect()
}
