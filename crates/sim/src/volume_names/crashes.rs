//! Crash states of runs: what is on the disk when everything is lost at once, while operations on names are answered and
//! not durable.
//!
//! Owns: which states are checked. A state must be what an order of the calls before the crash leaves, in which each
//! session loses only its newest changes. Then the volume is used, and its records must agree. Leaves to others: which
//! states a crash can leave (`crash`), the runs (`world`).

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use nectary_block::{Recorder, SharedDevice};
use nectary_host::log::{LogLevel, write_only};
use nectary_volume::simulated::switch_on;

use super::board::NamesBoard;
use super::world::VolumeNamesWorld;
use super::{are_names_local, explained};
use crate::crash::{CrashOptions, CrashState, CrashStates, sample};
use crate::late::in_virtual_time;
use crate::volume_clients::world::WorkloadStart;

/// The maximum number of crash states of each kind, in each epoch of a recording.
const STATES_PER_EPOCH: usize = 3;
/// How many violations are described in words.
const BROKEN_MAX: usize = 10;

/// The results of many states.
#[derive(Debug, Clone, Default)]
pub struct NamesCrashReport {
    /// Runs that were recorded.
    pub runs: u64,
    /// Distinct images that were checked; each was written to afterwards.
    pub images: u64,
    /// Distinct images that a crash left while operations were answered and not durable.
    pub under_way: u64,
    /// The number of these operations, over all images.
    pub operations: u64,
    /// States with so many calls at the same time that the search for an order was given up.
    pub undecided: u64,
    /// The number of violations.
    pub broken_count: u64,
    /// Descriptions of the first violations.
    pub broken: Vec<String>,
}

impl NamesCrashReport {
    fn is_broken(&mut self, what: String) {
        self.broken_count += 1;
        if self.broken.len() < BROKEN_MAX {
            self.broken.push(what);
        }
    }
}

/// Checks states of runs with the seeds from `seed` on, until `images` distinct ones were checked that a crash left while
/// operations were answered and not durable.
pub fn run_many(
    seed: u64,
    images: u64,
    states_per_run: u64,
    mut progress: impl FnMut(&NamesCrashReport),
) -> NamesCrashReport {
    let (mut report, mut seen) = (NamesCrashReport::default(), HashSet::new());
    let mut next = seed;
    // Every run has such states; a volume without any would never end.
    while report.under_way < images && report.runs < images {
        one(next, states_per_run, &mut seen, &mut report);
        next += 1;
        progress(&report);
    }
    report
}

/// Checks states of one run.
pub fn one(seed: u64, states_per_run: u64, seen: &mut HashSet<u64>, report: &mut NamesCrashReport) {
    write_only(LogLevel::Error);
    report.runs += 1;
    let start = match WorkloadStart::formatted() {
        Ok(start) => start,
        Err(broken) => return report.is_broken(broken),
    };
    let recorder = Recorder::new();
    let board = in_virtual_time(async {
        switch_on(true);
        let board = NamesBoard::new(false, are_names_local(seed), Some(recorder.clone()));
        let world = VolumeNamesWorld::new(seed, start.disk(seed), board.clone(), Some(recorder.clone()));
        let ended = world.run(seed).await;
        switch_on(false);
        ended.map(|()| board).map_err(|what| format!("seed {seed}: {what}"))
    });
    let board = match board {
        Ok(board) => board,
        Err(broken) => return report.is_broken(broken),
    };
    let recording = recorder.take();
    let options = CrashOptions { max_per_epoch: STATES_PER_EPOCH, seed, ..CrashOptions::default() };
    let states: Vec<CrashState> = CrashStates::on(&start.base, &recording, options).collect();
    let tick_of = |state: &CrashState| state.marks().last().copied().unwrap_or(0);
    let under_way: Vec<usize> = (0..states.len()).filter(|at| board.unstored_at(tick_of(&states[*at])) > 0).collect();
    let mut chosen: BTreeSet<usize> =
        sample(under_way.len(), states_per_run * 9 / 10).map(|at| under_way[at]).collect();
    chosen.extend(sample(states.len(), states_per_run.div_ceil(10)));
    for number in chosen {
        let state = &states[number];
        if !seen.insert(state.hash) {
            continue;
        }
        let tick = tick_of(state);
        let unstored = board.unstored_at(tick);
        report.images += 1;
        report.under_way += u64::from(unstored > 0);
        report.operations += unstored;
        match check(seed, state, &board, tick) {
            Ok(is_decided) => report.undecided += u64::from(!is_decided),
            Err(broken) => report.is_broken(format!("seed {seed}, state {number}: {broken}; {}", state.description)),
        }
    }
}

/// Checks a state, and uses it. Returns whether the search for an order was not given up.
fn check(seed: u64, state: &CrashState, before: &NamesBoard, tick: u64) -> Result<bool, String> {
    let device: SharedDevice = Arc::new(state.device());
    let steps = in_virtual_time(async {
        switch_on(true);
        let board = before.after(tick);
        let world = VolumeNamesWorld::new(seed ^ state.hash, device, board.clone(), None);
        let ended = world.use_after_crash().await;
        switch_on(false);
        board.history(|history| match (ended, history.broken.take()) {
            (Err(broken), _) | (Ok(()), Some(broken)) => Err(broken),
            (Ok(()), None) => Ok(history.steps()),
        })
    })?;
    explained(&steps)
}
