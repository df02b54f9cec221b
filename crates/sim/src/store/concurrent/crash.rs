//! Checks crash states of stores with many clients. Each state is opened and compared, written to, ended again, and
//! then opened and compared once more.
//!
//! Owns: recording a run, and counting its states. Leaves to others: the possible states (`crate::crash`), and the
//! allowed contents (`history`).

use std::collections::HashSet;
use std::pin::pin;
use std::time::Duration;

use futures_util::future::{join_all, select};
use nectary_block::{Recorder, Recording};

use super::ending::LifeEnding;
use super::history::{LifeEnd, PurgedObjects, Time, name_of};
use super::world::{KEYS, StoreWorld};
use super::{CLIENTS, client};
use crate::crash::{CrashModel, CrashOptions, CrashState, CrashStates, overlapping};
use crate::late::in_virtual_time;
use crate::random::SimulationRandom;

/// The number of keys that are put again in each image.
const PUTS: u32 = 8;
/// The largest number of violations that are described.
const BROKEN_MAX: usize = 10;

/// The results of a run.
#[derive(Debug, Default, Clone)]
pub struct ConcurrentCrashReport {
    /// Recorded runs of clients.
    pub workloads: u64,
    /// Operations on the device that began while another was in flight.
    pub in_flight: u64,
    /// States checked.
    pub states: u64,
    /// Distinct images among the checked states.
    pub distinct: u64,
    /// Gets that hit while states were checked.
    pub hits: u64,
    /// Gets that had to hit.
    pub demanded: u64,
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
    mut progress: impl FnMut(&ConcurrentCrashReport) -> bool,
) -> ConcurrentCrashReport {
    let mut report = ConcurrentCrashReport::default();
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

fn workload(seed: u64, states: usize, seen: &mut HashSet<u64>, report: &mut ConcurrentCrashReport) {
    let RecordedRun { world, base, began, recording } = in_virtual_time(record(seed));
    report.in_flight += overlapping(&recording);
    // States of one epoch are similar: take some of each epoch, spread over the whole recording.
    let options = CrashOptions { max_per_epoch: 8, seed, ..CrashOptions::default() };
    let all: Vec<_> = CrashStates::new(base, &recording, options).collect();
    for number in 0..states.min(all.len()) {
        let state = &all[number * all.len() / states.min(all.len())];
        let broken = in_virtual_time(look(&world, state, began, seed ^ number as u64, report));
        report.states += 1;
        report.distinct += u64::from(seen.insert(state.hash));
        report.broken_count += broken.len() as u64;
        for broken in broken.into_iter().take(BROKEN_MAX.saturating_sub(report.broken.len())) {
            report.broken.push(format!("workload {seed}, {}: {broken}", state.description));
        }
    }
}

/// The result of a workload.
struct RecordedRun {
    world: StoreWorld,
    /// The device's contents when the recording began, and the time of that moment.
    base: Vec<u8>,
    began: Time,
    recording: Recording,
}

/// Runs clients for some time before the recording and some time during it, with a kill in between.
async fn record(seed: u64) -> RecordedRun {
    let world = StoreWorld::new(seed).await;
    world.open(LifeEnd::Process).await;
    for _ in 0..world.below(160) {
        client::put(&world, world.below(KEYS.into()) as u32, world.below(4096) as usize).await;
        world.pause(10).await;
    }
    world.end(LifeEnding::Killed).await;
    let recorder = Recorder::new();
    let base = world.record(&recorder);
    let began = world.history.borrow().now;
    for _ in 0..2 {
        world.open(LifeEnd::Process).await;
        let clients = pin!(join_all((0..CLIENTS.0).map(|_| client::run(&world))));
        let end = pin!(tokio::time::sleep(Duration::from_millis(60 + world.below(120))));
        select(clients, end).await;
        world.end(LifeEnding::Killed).await;
    }
    RecordedRun { world, base, began, recording: recorder.take() }
}

/// Opens an image, compares it with the history, writes to it, ends the store again, and compares once more.
async fn look(
    recorded: &StoreWorld,
    state: &CrashState,
    began: Time,
    seed: u64,
    report: &mut ConcurrentCrashReport,
) -> Vec<String> {
    let moment = state.last_mark().unwrap_or(began);
    let history = recorded.history.borrow().until(moment);
    let world = StoreWorld::of_image(&state.snapshot, history, recorded.options.clone(), seed);
    let after = if state.model == CrashModel::Power { LifeEnd::Power } else { LifeEnd::Process };
    world.open(after).await;
    join_all((0..KEYS).map(|key| client::get(&world, key))).await;
    let mut random = SimulationRandom::new(seed);
    let mut key = || random.below(KEYS.into()) as u32;
    let puts: Vec<u32> = (0..PUTS).map(|_| key()).collect();
    let (purged, tag) = (name_of(key()), key() % super::world::TAGS);
    let writes = join_all(puts.into_iter().map(|key| client::put(&world, key, 300 + 90 * key as usize)));
    let purges =
        join_all([PurgedObjects::Name(purged), PurgedObjects::Tag(tag)].map(|scope| client::purge(&world, scope)));
    futures_util::future::join(writes, purges).await;
    if seed.is_multiple_of(3) {
        let _ = world.store().sync().await;
    }
    world.pause(60).await;
    let ended = world.end(if seed.is_multiple_of(2) { LifeEnding::Killed } else { LifeEnding::PowerLost }).await;
    world.open(ended).await;
    join_all((0..KEYS).map(|key| client::get(&world, key))).await;
    *world.store.borrow_mut() = None;
    let checked = world.history.borrow().check_from(moment);
    report.hits += checked.hits;
    report.demanded += checked.demanded;
    checked.broken
}
