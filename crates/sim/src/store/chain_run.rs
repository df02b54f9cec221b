//! Chains of crashes: a store crashes, is opened, works for a while and crashes again, several times.
//!
//! Each link of a chain is recorded. Its crash states (lost, torn and reordered writes) are the beginning of the next
//! link, and some others of them are checked. After each open, every key is requested: what a crash lost may be found or
//! not, but later crashes must not change the answer. A link leaves half of the keys alone, so that versions from before
//! a crash are still on the disk when later links have filled some segments. All runs on one thread in virtual time, so a
//! seed repeats a chain.
//!
//! Owns: the links of a chain, and the results. Leaves to others: operations (`workload`), possible states
//! (`crate::crash`), and the promises (`expectation`).

use std::sync::Arc;

use nectary_block::{DeviceSnapshot, MemoryDevice, Recorder, SharedDevice};
use nectary_store::planted::{Bug, plant};
use nectary_store::{BackgroundRuntime, CreateOptions, IndexLoading, OpenOptions, Store};

use crate::crash::{CrashModel, CrashOptions, CrashState, CrashStates, RecordingBase};
use crate::late::{DetachedFilter, LateFilter, OperationDelays, UnderWay, in_virtual_time};
use crate::planted::{BugCase, CaughtBug};
use crate::random::SimulationRandom;
use crate::store::crash_check::{CrashVerdict, check, compare};
use crate::store::expectation::{StoreEvent, StoreExpectation};
use crate::store::workload::{SEGMENT_BYTES, STORE_BYTES, WorkloadStore, open_options};

/// A chain has at least this many links, and at most `LINKS_MORE` more.
const LINKS_MIN: u64 = 3;
const LINKS_MORE: u64 = 4;
/// The largest number of operations of a short link, and the smallest and largest of a long one. A long link fills more
/// segments than recovery verifies.
const SHORT_OPERATIONS_MAX: u64 = 14;
const LONG_OPERATIONS: (u64, u64) = (60, 180);
/// The largest number of violations that are described.
const VIOLATIONS_MAX: usize = 10;

/// The amount of work of a run.
#[derive(Debug, Clone, Copy)]
pub struct ChainOptions {
    /// The seed of the first chain; the following ones have the next seeds.
    pub seed: u64,
    /// The number of chains.
    pub chains: u64,
    /// The number of crash states of each link that are checked, besides the one with which the chain goes on.
    pub states_per_link: u64,
}

/// The results of a run.
#[derive(Debug, Default, Clone)]
pub struct ChainReport {
    /// Chains done.
    pub chains: u64,
    /// Links of all chains.
    pub links: u64,
    /// Links that began with a loss of power.
    pub power_losses: u64,
    /// Keys of which an open found an older version than the last one, because a crash had lost that.
    pub rolled_back: u64,
    /// Links that opened more segments than recovery verifies.
    pub long_links: u64,
    /// States checked.
    pub states: u64,
    /// Gets that hit with allowed bytes.
    pub live: u64,
    /// Gets that had to hit.
    pub demanded: u64,
    /// The number of broken promises.
    pub violation_count: u64,
    /// Descriptions of the first broken promises.
    pub violations: Vec<String>,
}

impl ChainReport {
    fn count(&mut self, place: &str, verdict: CrashVerdict) {
        self.live += u64::from(verdict.live);
        self.demanded += u64::from(verdict.demanded);
        for violation in verdict.violations {
            self.violation_count += 1;
            if self.violations.len() < VIOLATIONS_MAX {
                self.violations.push(format!("{place}: {violation}"));
            }
        }
    }
}

/// Runs chains; `progress` gets the results after each.
pub fn run(options: ChainOptions, mut progress: impl FnMut(&ChainReport)) -> ChainReport {
    let mut report = ChainReport::default();
    for seed in options.seed..options.seed + options.chains {
        in_virtual_time(chain(seed, options.states_per_link, &mut report));
        report.chains += 1;
        progress(&report);
    }
    report
}

/// Runs chains from the seed in `options` on with one bug planted, until one of them breaks a promise.
pub fn run_planted(bug: Bug, options: ChainOptions) -> Option<CaughtBug> {
    (options.seed..options.seed + options.chains).find_map(|seed| replay_planted(bug, seed))
}

/// Runs the chain of a seed with one bug planted.
pub fn replay_planted(bug: Bug, seed: u64) -> Option<CaughtBug> {
    plant(Some(bug));
    let report = run(ChainOptions { seed, chains: 1, states_per_link: 2 }, |_| {});
    plant(None);
    let broken = report.violations.first()?.clone();
    Some(CaughtBug { case: BugCase::of_seed(seed), broken, account: format!("{report:?}") })
}

/// The disk after a crash, and what had happened before.
struct CrashedDisk {
    model: CrashModel,
    snapshot: DeviceSnapshot,
    events: Vec<StoreEvent>,
    next_version: u32,
}

/// Returns the options for all links of a chain.
fn options_of(random: &mut SimulationRandom) -> OpenOptions {
    OpenOptions {
        reinsert_percent: [0, 20, 50][random.below(3) as usize],
        rewrite_percent: [0, 0, 100][random.below(3) as usize],
        warm_up: random.chance(50),
        index_loading: [IndexLoading::Shards, IndexLoading::BySize][random.below(2) as usize],
        device_deadline: None,
        ..open_options(BackgroundRuntime::Caller)
    }
}

async fn chain(seed: u64, states_per_link: u64, report: &mut ChainReport) {
    let mut random = SimulationRandom::new(seed);
    let memory = Arc::new(MemoryDevice::new(STORE_BYTES));
    let create =
        CreateOptions { size_bytes: STORE_BYTES, segment_bytes: Some(SEGMENT_BYTES), seed: Some(seed), force: true };
    Store::create(memory.clone(), &create).await.expect("a store is made");
    let options = options_of(&mut random);
    let model = CrashModel::Process;
    let mut ended = CrashedDisk { model, snapshot: memory.snapshot(), events: Vec::new(), next_version: 0 };
    let before = report.violation_count;
    for number in 0..LINKS_MIN + random.below(LINKS_MORE + 1) {
        let place = format!("chain {seed}, link {number}");
        report.links += 1;
        report.power_losses += u64::from(ended.model == CrashModel::Power);
        ended = match link(&place, ended, &options, states_per_link, &mut random, report).await {
            Some(next) if report.violation_count == before => next,
            _ => break,
        };
    }
}

/// Opens a store, works, and crashes it; returns the end. `None` if the store does not open.
async fn link(
    place: &str,
    begin: CrashedDisk,
    options: &OpenOptions,
    states_per_link: u64,
    random: &mut SimulationRandom,
    report: &mut ChainReport,
) -> Option<CrashedDisk> {
    let CrashedDisk { model, snapshot, events, next_version } = begin;
    let (recorder, under_way) = (Recorder::new(), UnderWay::default());
    let memory: SharedDevice = Arc::new(MemoryDevice::from_snapshot(&snapshot));
    let late = LateFilter::by(memory, OperationDelays::short(random.bits()), &under_way);
    let device = Arc::new(DetachedFilter::new(recorder.wrap(Arc::new(late)), &under_way));
    let expectation = expected(&events);
    let events_before = events.len();
    let own = SimulationRandom::new(random.bits());
    let mut running = match WorkloadStore::open(device, &recorder, options.clone(), own, events, next_version).await {
        Ok(running) => running,
        Err(error) => {
            let violations = vec![format!("the store does not open: {error}")];
            report.count(place, CrashVerdict { violations, ..CrashVerdict::default() });
            return None;
        }
    };
    let mut verdict = CrashVerdict::default();
    let mut found = Vec::new();
    compare(running.store(), model, &expectation, &mut verdict, |key, version| found.push((key, version))).await;
    report.count(&format!("{place}, opened after a crash"), verdict);
    for (key, version) in found {
        report.rolled_back += u64::from(version.is_some_and(|version| expectation.is_followed(key, version)));
        running.tell(StoreEvent::Found { key, version });
    }
    let head = running.store().stat().head_epoch;
    let operations = match random.chance(50) {
        true => random.below(SHORT_OPERATIONS_MAX + 1),
        false => LONG_OPERATIONS.0 + random.below(LONG_OPERATIONS.1 - LONG_OPERATIONS.0 + 1),
    };
    running.work(operations, random.below(2) as u32).await;
    report.long_links += u64::from(running.store().stat().head_epoch > head + 2);
    let (mut events, next_version) = running.end();
    under_way.settle(Some(random.bits())).await;

    let crash = CrashOptions { max_per_epoch: 6, seed: random.bits(), ..CrashOptions::default() };
    let states: Vec<CrashState> = CrashStates::on(&RecordingBase::new(snapshot), &recorder.take(), crash).collect();
    let count = states.len() as u64;
    // A third of the links end late, when segments were opened, and a third with a torn write; the others end at any
    // moment.
    let torn: Vec<_> = states.iter().filter(|state| state.is_torn).collect();
    let last = match random.below(3) {
        0 => &states[(count - 1 - random.below(count / 8 + 1)) as usize],
        1 if !torn.is_empty() => torn[random.below(torn.len() as u64) as usize],
        _ => &states[random.below(count) as usize],
    };
    let others: Vec<_> = (0..states_per_link).map(|_| &states[random.below(count) as usize]).collect();
    for state in others {
        let known = state.last_mark().map_or(events_before, |mark| mark as usize);
        let verdict = check(state.device(), state.model, &expected(&events[..known]), BackgroundRuntime::Caller).await;
        report.states += 1;
        report.count(&format!("{place}, {}", state.description), verdict);
    }
    events.truncate(last.last_mark().map_or(events_before, |mark| mark as usize));
    events.push(StoreEvent::Crashed { model: last.model });
    Some(CrashedDisk { model: last.model, snapshot: last.snapshot.clone(), events, next_version })
}

fn expected(events: &[StoreEvent]) -> StoreExpectation {
    let mut expectation = StoreExpectation::default();
    events.iter().for_each(|event| expectation.tell(event));
    expectation
}
