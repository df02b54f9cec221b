//! Runs many concurrent clients on one cached device, and checks that a possible order of the operations explains their
//! answers.
//!
//! Owns: a run, and the results of many runs. `world`: the device, its faults and its clients; `history`: the allowed
//! answers; `crash`: crash states of such runs. A seed repeats a run exactly.

pub mod crash;
pub(crate) mod history;
mod world;

use futures_util::future::join_all;
use nectary_block::{IoContext, read};
use nectary_buffer::planted::{Bug, plant};

use crate::late::in_virtual_time;
use crate::planted::{BugCase, CaughtBug};
use world::{CELL_BYTES, CELLS, CacheWorld};

/// The minimum number of operations of a run.
pub const OPERATIONS: u64 = 160;
/// The minimum and maximum number of clients of a run.
pub const CLIENTS: (u64, u64) = (4, 8);
/// The largest number of violations that are described.
const BROKEN_MAX: usize = 10;
/// After the end of the faults, this many flushes in succession must not all fail; fewer may report earlier failures.
const FLUSHES_MAX: u32 = 4;

/// The results of many runs.
#[derive(Debug, Default, Clone)]
pub struct CacheRunReport {
    /// Runs done.
    pub runs: u64,
    /// Operations of clients.
    pub operations: u64,
    /// Operations that began while another one on the same cell was in flight.
    pub overlapping: u64,
    /// Operations that failed.
    pub failed: u64,
    /// Changes of the cache's size or mode.
    pub changes: u64,
    /// Losses of power that were checked.
    pub crashes: u64,
    /// Hits of the cache.
    pub hits: u64,
    /// Misses of the cache.
    pub misses: u64,
    /// References that waited for the read of another reference.
    pub joined: u64,
    /// Blocks read ahead and then referenced.
    pub ahead_used: u64,
    /// Blocks written back.
    pub written_back: u64,
    /// Write-backs that failed.
    pub write_back_errors: u64,
    /// The number of violations.
    pub broken_count: u64,
    /// Descriptions of the first violations.
    pub broken: Vec<String>,
    /// A hash of all events.
    pub trace: u64,
}

impl CacheRunReport {
    /// Whether enough has happened to make a result without errors meaningful.
    pub fn is_enough(&self) -> bool {
        let each = [self.failed, self.changes, self.crashes, self.hits, self.misses, self.joined, self.written_back];
        let has_all = each.iter().all(|&count| count > 0) && self.ahead_used > 0 && self.write_back_errors > 0;
        has_all && self.operations >= OPERATIONS * self.runs && self.overlapping * 10 >= self.operations
    }
}

/// Runs one seed.
pub fn run(seed: u64, report: &mut CacheRunReport) {
    let world = in_virtual_time(async {
        let world = CacheWorld::new(seed, None);
        let clients = CLIENTS.0 + world.below(CLIENTS.1 - CLIENTS.0 + 1);
        join_all((0..clients).map(|client| world.client(client as u32 + 1, OPERATIONS))).await;
        settle(&world).await;
        world
    });
    let history = world.history.borrow();
    let mut broken = world.broken.take();
    broken.extend(history.unexplained(CELLS));
    let stats = world.device.cache().stats();
    report.runs += 1;
    report.operations += world.operations.get();
    report.overlapping += world.overlapping.get();
    report.failed += world.failed.get();
    report.changes += world.changes.get();
    report.crashes += world.crashes.get();
    report.hits += stats.hits;
    report.misses += stats.misses;
    report.joined += stats.joined;
    report.ahead_used += stats.ahead_used;
    report.written_back += stats.written_back;
    report.write_back_errors += stats.write_back_errors;
    report.broken_count += broken.len() as u64;
    report.trace = xxhash_rust::xxh3::xxh3_64_with_seed(format!("{history:?}").as_bytes(), report.trace);
    for broken in broken {
        if report.broken.len() < BROKEN_MAX {
            report.broken.push(format!("seed {seed}: {broken}"));
        }
    }
}

/// Ends the faults, and checks that everything is written back and that memory and disk have the same contents.
async fn settle(world: &CacheWorld) {
    world.faults.set(0);
    let mut flushes = 0;
    // Repeat the close, because operations that clients abandoned may still be in flight and fail.
    while world.device.cache().close().await.is_err() {
        flushes += 1;
        if flushes == FLUSHES_MAX {
            return world.broken.borrow_mut().push("flushes fail though nothing does any more".to_owned());
        }
    }
    for cell in 0..CELLS {
        world.read(cell..cell + 1, IoContext::default()).await;
    }
    world.flush(IoContext::default()).await;
    let image = world.disk.image();
    // Read one cell at a time, because a small cache has no memory for many.
    for cell in 0..CELLS {
        let part = cell * CELL_BYTES..(cell + 1) * CELL_BYTES;
        let found = read(&world.device, part.start as u64, CELL_BYTES).await;
        let mut broken = world.broken.borrow_mut();
        match found {
            Ok(found) if found[..] == image[part] => {}
            Ok(_) => broken.push(format!("cell {cell}: memory has other contents than the disk")),
            Err(error) => broken.push(format!("a read fails though nothing does any more: {error}")),
        }
    }
    let mut broken = world.broken.borrow_mut();
    let stats = world.device.cache().stats();
    if stats.dirty_bytes > 0 || stats.unwritten_bytes > 0 || stats.used_bytes > stats.memory_bytes {
        broken.push(format!("after a flush there is {stats:?}"));
    }
}

/// Runs seeds from `seed` on; `progress` gets the results after each and returns whether to continue.
pub fn run_many(seed: u64, runs: u64, mut progress: impl FnMut(&CacheRunReport) -> bool) -> CacheRunReport {
    let mut report = CacheRunReport::default();
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
