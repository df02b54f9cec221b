//! The results of a run: one for each contender, and the figures that follow from it alone.
//!
//! Owns: the data that runs fill in and reports read. Leaves to others: the runs behind them (`run`, `simulation`), and
//! their presentation (`report`, `text`, `plot`).

use serde::Serialize;

use super::limit::Limit;
use super::plan::Group;
use crate::contender::FileSystem;
use crate::disk::DiskCounts;
use crate::group::{GroupUsage, Keeping};
use crate::worker::Piece;
use crate::workload::{Demand, Locality, Totals};

/// The result of one contender.
#[derive(Debug, Clone, Serialize)]
pub struct LaneResult {
    /// Its name.
    pub name: String,
    /// Which contender of the paper's table this one stands for.
    pub seed_name: String,
    /// The seeds' memory and its split, in MB.
    pub memory: String,
    /// How many disks it had.
    pub disks: usize,
    /// Its pieces of the workload.
    pub pieces: Vec<Piece>,
    /// Their sum.
    pub total: Piece,
    /// What each of its disks did during the run.
    pub counts: Vec<DiskCounts>,
    /// How much its disks' time differed from real time: the kernel's milliseconds are this many of the disk's.
    pub speed: f64,
    /// Its memory at the end.
    pub usage: GroupUsage,
    /// Whether the disk's clock was virtual.
    pub is_virtual: bool,
    /// How its memory was kept.
    pub keeping: Keeping,
    /// Its own counters at the end.
    pub counters: serde_json::Value,
    /// The hits that a simulation has.
    pub simulated: Option<Expected>,
}

/// The results of all contenders of a group with one seed.
#[derive(Debug, Clone)]
pub struct GroupResult {
    /// The group, with the laws of that seed.
    pub group: Group,
    /// What its disk can do by itself.
    pub limit: Limit,
    /// The demand of the workload on any store.
    pub demand: Demand,
    /// The hits of LRUs of several sizes on this workload.
    pub locality: Locality,
    /// The options.
    pub totals: Totals,
    /// A result a contender.
    pub lanes: Vec<LaneResult>,
}

/// The results with one share of dirty pages.
#[derive(Debug, Clone, Serialize)]
pub struct Swept {
    /// The file system.
    pub system: FileSystem,
    /// How much of the buffer cache could be dirty, in percent.
    pub dirty_percent: u64,
    /// Time of the run, in seconds.
    pub run_s: f64,
}

/// The hits that were expected.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Expected {
    /// Hits of the simulation.
    pub hits: u64,
    /// The fewest that are accepted.
    pub low: u64,
    /// The most that are accepted.
    pub high: u64,
}

/// One figure of a report.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figure {
    /// Its name, which stays the same between versions.
    pub name: String,
    /// The median over seeds, or of the run.
    pub value: f64,
    /// Its unit.
    pub unit: &'static str,
    /// The interval's ends.
    pub low: f64,
    /// See `low`.
    pub high: f64,
    /// The target, if one was set.
    pub target: Option<f64>,
    /// Whether the target is an upper bound.
    pub is_at_most: bool,
    /// Whether the run was long enough to say that it is short of its target.
    pub is_judged: bool,
}

impl Figure {
    /// Whether it misses its target, as far as this run can tell.
    pub fn is_short(&self) -> bool {
        let is_missed = |target| if self.is_at_most { self.value > target } else { self.value < target };
        self.is_judged && self.target.is_some_and(is_missed)
    }
}

/// How the ratio to a contender went from piece to piece.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Trend {
    /// Disk size and contender.
    pub name: String,
    /// The ratio for each piece of the workload: the median over seeds.
    pub pieces: Vec<f64>,
    /// The ratio over only the second half of the pieces: by then the disk is as full as it gets.
    pub steady: f64,
}

/// The parts of a request's time, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Spent {
    /// Hits.
    pub read_ms: f64,
    /// Puts, and writing at the end what still waited.
    pub write_ms: f64,
    /// What daemons did and requests waited for, and giving back memory.
    pub daemon_ms: f64,
    /// Misses, and time that is in no other figure.
    pub other_ms: f64,
    /// Of all that, processor time of the contender.
    pub processor_ms: f64,
    /// The part of it that is waiting for disks that served others.
    pub waiting_ms: f64,
}

/// The parts of the time of a lane's requests.
pub(super) fn spent_ms(lane: &LaneResult) -> Spent {
    let total = &lane.total;
    let of = |seconds: f64| 1e3 * seconds / total.requests.max(1) as f64;
    let known = total.hit_s + total.put_s + total.settle_s + total.daemon_s + total.pressure_s;
    Spent {
        read_ms: of(total.hit_s),
        write_ms: of(total.put_s + total.settle_s),
        daemon_ms: of(total.daemon_s + total.pressure_s),
        other_ms: of((total.run_s - known).max(0.0)),
        processor_ms: of(total.processor_s),
        waiting_ms: of(total.waited_s),
    }
}

/// Mean time of a hit, wherever it was found.
pub(super) fn hit_ms(lane: &LaneResult) -> f64 {
    let total = &lane.total;
    1e3 * total.hit_s / (total.memory_hits + total.disk_hits).max(1) as f64
}

/// Mean time of a hit that the contender's own memory did not have.
pub(super) fn disk_hit_ms(lane: &LaneResult) -> f64 {
    1e3 * lane.total.disk_get_s / lane.total.disk_hits.max(1) as f64
}

/// Mean time of a put.
pub(super) fn put_ms(lane: &LaneResult) -> f64 {
    1e3 * lane.total.put_s / lane.total.misses().max(1) as f64
}
