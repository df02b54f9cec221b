//! Crash states of cached devices with many clients: compares the contents of the disk with the allowed ones.
//!
//! Owns: recording a run, and counting its states. Leaves to others: the possible states (`crate::crash`), and the
//! allowed contents (`history`).

use std::collections::HashSet;

use futures_util::future::join_all;
use nectary_block::{Recorder, Recording};

use super::history::DeviceHistory;
use super::world::{CELL_BYTES, CELLS, CacheWorld, lost};
use super::{CLIENTS, OPERATIONS};
use crate::crash::{CrashOptions, CrashStates, overlapping};
use crate::late::in_virtual_time;

/// The largest number of violations that are described.
const BROKEN_MAX: usize = 10;

/// The results of a run.
#[derive(Debug, Default, Clone)]
pub struct CacheCrashReport {
    /// Recorded runs of clients.
    pub workloads: u64,
    /// Operations on the device that began while another was in flight.
    pub in_flight: u64,
    /// States checked.
    pub states: u64,
    /// Distinct images among the checked states.
    pub distinct: u64,
    /// Flushes that had succeeded before a checked state, summed over the states.
    pub promises: u64,
    /// The number of violations.
    pub broken_count: u64,
    /// Descriptions of the first violations.
    pub broken: Vec<String>,
}

/// Checks the crash states of workloads with the seeds from `seed` on, until `images` distinct images were checked.
pub fn run(
    seed: u64,
    images: u64,
    states_per_workload: usize,
    mut progress: impl FnMut(&CacheCrashReport) -> bool,
) -> CacheCrashReport {
    let mut report = CacheCrashReport::default();
    let mut seen = HashSet::new();
    for seed in seed.. {
        if report.distinct >= images || !progress(&report) {
            break;
        }
        workload(seed, states_per_workload, &mut seen, &mut report);
        report.workloads += 1;
    }
    report
}

fn workload(seed: u64, states: usize, seen: &mut HashSet<u64>, report: &mut CacheCrashReport) {
    let (history, recording) = record(seed);
    report.in_flight += overlapping(&recording);
    // States of one epoch are similar: take some of each epoch, spread over the whole recording.
    let options = CrashOptions { max_per_epoch: 12, seed, ..CrashOptions::default() };
    let all: Vec<_> = CrashStates::new(vec![0; CELLS * CELL_BYTES], &recording, options).collect();
    for number in 0..states.min(all.len()) {
        let state = &all[number * all.len() / states.min(all.len())];
        let then = history.until(state.last_mark().unwrap_or(0));
        report.states += 1;
        report.distinct += u64::from(seen.insert(state.hash));
        report.promises += then.flushes.len() as u64;
        for broken in lost(&then, &state.image()) {
            report.broken_count += 1;
            if report.broken.len() < BROKEN_MAX {
                report.broken.push(format!("workload {seed}, {}: {broken}", state.description));
            }
        }
    }
}

fn record(seed: u64) -> (DeviceHistory, Recording) {
    let recorder = Recorder::new();
    let world = in_virtual_time(async {
        let world = CacheWorld::new(seed, Some(recorder.clone()));
        join_all((0..CLIENTS.0).map(|client| world.client(client as u32 + 1, OPERATIONS))).await;
        world
    });
    (world.history.take(), recorder.take())
}
