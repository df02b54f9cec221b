//! Runs many concurrent clients on one store, and checks that a possible order of the calls explains their answers.
//!
//! Owns: a run (clients, lives, and the ends of lives), and the results of many runs. `world`: the store and its
//! device; `client`: operations; `ending`: how lives end; `history`: the allowed answers; `situations`: the situations
//! that runs must reach; `late_entry`: a purge at a moment that only threads can have; `crash`: crash states of such
//! runs. A seed repeats a run exactly.

mod client;
pub mod crash;
mod ending;
mod flushing;
mod history;
mod late_entry;
pub mod situations;
mod world;

use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, join, join_all, select};
use nectary_store::planted::{Bug, plant};

use crate::late::in_virtual_time;
use crate::planted::{BugCase, CaughtBug};
use ending::LifeEnding;
use history::LifeEnd;
use situations::SituationCounts;
use world::StoreWorld;

/// The minimum number of operations of a run.
pub const OPERATIONS: u64 = 200;
/// The minimum and maximum number of clients of a run.
pub const CLIENTS: (u64, u64) = (4, 8);
/// The number of clients that only put, to advance the ring, in a run that holds reads.
const PUSHERS: u64 = 2;
/// The largest number of crashes in a row, besides the one that ends a life with clients.
const ROW_MAX: u64 = 3;
/// One run in this many also purges an object between its read and its entry into memory.
const LATE_ENTRY: u64 = 250;
/// The largest number of violations that are described.
const BROKEN_MAX: usize = 10;

/// The results of many runs.
#[derive(Debug, Default, Clone)]
pub struct ConcurrentStoreReport {
    /// Runs done.
    pub runs: u64,
    /// Operations of clients.
    pub operations: u64,
    /// Operations that began while another one on the same key was in flight.
    pub overlapping: u64,
    /// Gets, except those that read a fill in progress.
    pub gets: u64,
    /// Gets that hit.
    pub hits: u64,
    /// Gets that had to hit.
    pub demanded: u64,
    /// Lives ended by a kill, a clean stop, a loss of power, a truncated purge log.
    pub ends: [u64; 4],
    /// Lives that ended soon after the store was opened, with another crash.
    pub in_a_row: u64,
    /// Segments that the ring overwrote.
    pub reclaimed: u64,
    /// Reads that the device held while others wrote.
    pub reads_held: u64,
    /// Gets during which the ring overwrote every segment.
    pub gets_lapped: u64,
    /// Gets that were answered by the read of another get.
    pub reads_shared: u64,
    /// Purges that returned.
    pub purges: u64,
    /// How often the runs reached each situation.
    pub situations: SituationCounts,
    /// The number of violations.
    pub broken_count: u64,
    /// Descriptions of the first violations.
    pub broken: Vec<String>,
    /// A hash of all events.
    pub trace: u64,
}

impl ConcurrentStoreReport {
    /// The number of lives that did not end with a clean stop.
    pub fn faults(&self) -> u64 {
        self.ends[0] + self.ends[2] + self.ends[3]
    }

    /// Adds a violation.
    fn describe(&mut self, seed: u64, broken: &str) {
        self.broken_count += 1;
        if self.broken.len() < BROKEN_MAX {
            self.broken.push(format!("seed {seed}: {broken}"));
        }
    }
}

/// Runs one seed.
pub fn run(seed: u64, report: &mut ConcurrentStoreReport) {
    let world = in_virtual_time(async {
        let world = StoreWorld::new(seed).await;
        world.open(LifeEnd::Process).await;
        // In most runs, fill the store first so that the ring soon overwrites segments.
        for _ in 0..world.below(200).saturating_sub(60) {
            client::put(&world, world.below(world::KEYS.into()) as u32, world.below(4096) as usize).await;
            world.pause(20).await;
        }
        while world.operations.get() < OPERATIONS {
            let way = live(&world, report).await;
            report.ends[way as usize] += 1;
            let after = world.end(way).await;
            world.open(after).await;
            crash_in_a_row(&world, report).await;
        }
        // Check the contents at the end as well.
        join_all((0..world::KEYS).map(|key| client::get(&world, key))).await;
        count(&world, report);
        *world.store.borrow_mut() = None;
        world
    });
    let history = world.history.borrow();
    let checked = history.check();
    if seed.is_multiple_of(LATE_ENTRY) {
        late_entry::run(seed / LATE_ENTRY, seed, report);
    }
    report.runs += 1;
    report.situations.add(&world.situations());
    report.operations += world.operations.get();
    report.overlapping += world.overlapping.get();
    report.gets_lapped += world.lapped.get();
    report.gets += history.gets.iter().filter(|get| !get.follows).count() as u64;
    report.hits += checked.hits;
    report.demanded += checked.demanded;
    report.trace = xxhash_rust::xxh3::xxh3_64_with_seed(format!("{history:?}").as_bytes(), report.trace);
    for broken in checked.broken {
        report.describe(seed, &broken);
    }
}

/// Sometimes crashes the store again, soon after it was opened, and opens it, up to some times in a row.
async fn crash_in_a_row(world: &StoreWorld, report: &mut ConcurrentStoreReport) {
    for _ in 0..world.below(ROW_MAX + 1) {
        if !world.chance(40) {
            return;
        }
        // Sometimes a few versions are put that the next crash may lose.
        for _ in 0..world.below(4) {
            client::put(world, world.below(4) as u32, world.below(3000) as usize).await;
            world.pause(6).await;
        }
        let way = if world.chance(30) { LifeEnding::Killed } else { LifeEnding::PowerLost };
        report.ends[way as usize] += 1;
        report.in_a_row += 1;
        let after = world.end(way).await;
        world.open(after).await;
    }
}

/// Runs the clients for a while; returns the way in which this life of the store must end.
async fn live(world: &StoreWorld, report: &mut ConcurrentStoreReport) -> LifeEnding {
    let clients = CLIENTS.0 + world.below(CLIENTS.1 - CLIENTS.0 + 1);
    let pushers = if world.is_lapping { PUSHERS } else { 0 };
    let pushers = join_all((0..pushers).map(|_| client::push(world)));
    let clients = pin!(join(join_all((0..clients).map(|_| client::run(world))), pushers));
    // A cycle of the ring takes longer than the clients usually run.
    let most_ms = if world.is_lapping { 1500 } else { 400 };
    let end = pin!(tokio::time::sleep(Duration::from_millis(20 + world.below(most_ms))));
    world.hold.borrow().begin();
    let Either::Right(((), clients)) = select(clients, end).await else { unreachable!("clients go on for ever") };
    let way = match world.below(20) {
        0..=9 => LifeEnding::Killed,
        10..=12 => LifeEnding::Stopped,
        13..=17 => LifeEnding::PowerLost,
        _ => LifeEnding::LogCut,
    };
    if way == LifeEnding::Stopped {
        let store = world.store();
        let closed = pin!(async move { store.close().await });
        let _ = select(clients, closed).await;
    }
    report.reads_held += world.hold.borrow().count();
    count(world, report);
    way
}

fn count(world: &StoreWorld, report: &mut ConcurrentStoreReport) {
    let counts = world.store().stat().counts;
    report.reclaimed += counts.segments_reclaimed;
    report.reads_shared += counts.reads_shared;
    report.purges += counts.purges;
}

/// Runs seeds from `seed` on; `progress` gets the results after each and returns whether to continue.
pub fn run_many(
    seed: u64,
    runs: u64,
    mut progress: impl FnMut(&ConcurrentStoreReport) -> bool,
) -> ConcurrentStoreReport {
    let mut report = ConcurrentStoreReport::default();
    for seed in seed..seed + runs {
        run(seed, &mut report);
        if !progress(&report) {
            break;
        }
    }
    report
}

/// Runs seeds from `seed` on with one bug planted, until a run catches it.
pub fn run_planted(bug: Bug, seed: u64, runs: u64) -> Option<CaughtBug> {
    (seed..seed + runs).find_map(|seed| replay_planted(bug, seed))
}

/// Runs one seed with one bug planted.
pub fn replay_planted(bug: Bug, seed: u64) -> Option<CaughtBug> {
    plant(Some(bug));
    let report = run_many(seed, 1, |_| true);
    plant(None);
    let broken = report.broken.first()?.trim_start_matches(&format!("seed {seed}: ")).to_owned();
    Some(CaughtBug { case: BugCase::of_seed(seed), broken, account: format!("{report:?}") })
}
