//! The results of a run: one for each contender, and the figures that are computed from them.
//!
//! Owns: the data that a run produces and a report reads. Leaves to others: running (`run`, `simulation`) and
//! presentation (`report`, `text`, `plot`).

use serde::Serialize;

use super::limit::DiskSpeed;
use super::plan::DiskSizeGroup;
use crate::contender::ContenderFileSystem;
use crate::disk::DiskCounts;
use crate::group::{GroupMemoryUsage, GroupUsage};
use crate::worker::PieceResult;
use crate::workload::{RequestLocality, WorkloadDemand, WorkloadTotals};

/// The result of one contender.
#[derive(Debug, Clone, Serialize)]
pub struct LaneResult {
    /// Its name.
    pub name: String,
    /// The contender of the paper's table that this one replaces.
    pub seed_name: String,
    /// The memory in the paper and how it is divided, in MB.
    pub memory: String,
    /// The number of its disks.
    pub disks: usize,
    /// The results of each piece of the workload.
    pub pieces: Vec<PieceResult>,
    /// The sum of the pieces.
    pub total: PieceResult,
    /// The counters of each of its disks during the run.
    pub counts: Vec<DiskCounts>,
    /// The speed of the disk's clock: the milliseconds that it advances per millisecond of the kernel's clock.
    pub speed: f64,
    /// The usage of its memory group at the end.
    pub usage: GroupUsage,
    /// Whether the disk's clock was virtual.
    pub is_virtual: bool,
    /// The usage of its memory group that the checks between requests found.
    pub keeping: GroupMemoryUsage,
    /// Its own counters at the end.
    pub counters: serde_json::Value,
    /// The hits that a simulation expects.
    pub simulated: Option<ExpectedHits>,
}

/// The results of all contenders of a group with one seed.
#[derive(Debug, Clone)]
pub struct GroupResult {
    /// The group, with the workload of that seed.
    pub group: DiskSizeGroup,
    /// The limit of its disk.
    pub limit: DiskSpeed,
    /// The work that the workload demands from any store.
    pub demand: WorkloadDemand,
    /// The hits of an LRU of the memory's size and of one of the disk's size on this workload.
    pub locality: RequestLocality,
    /// The numbers of requests, objects and bytes of the workload.
    pub totals: WorkloadTotals,
    /// One result per contender.
    pub lanes: Vec<LaneResult>,
}

/// The result of a file system with one share of dirty pages.
#[derive(Debug, Clone, Serialize)]
pub struct DirtyShareResult {
    /// The file system.
    pub system: ContenderFileSystem,
    /// The share of the buffer cache that may be dirty, in percent.
    pub dirty_percent: u64,
    /// The time of the run, in seconds.
    pub run_s: f64,
}

/// The number of hits that a contender should have.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ExpectedHits {
    /// The number of hits of the simulation.
    pub hits: u64,
    /// The smallest accepted number.
    pub low: u64,
    /// The largest accepted number.
    pub high: u64,
}

/// How the ratio to a contender changed from piece to piece.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RatioTrend {
    /// Disk size and contender.
    pub name: String,
    /// The ratio for each piece of the workload: the median over seeds.
    pub pieces: Vec<f64>,
    /// The ratio over the second half of the pieces, in which the disk is full.
    pub steady: f64,
}

/// The parts of the mean time of a request, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct RequestTimeParts {
    /// The time of hits.
    pub read_ms: f64,
    /// The time of puts, and of the final write of waiting objects.
    pub write_ms: f64,
    /// The time in which requests waited for daemons and for the reclaim of memory.
    pub daemon_ms: f64,
    /// The time of misses, and all time that is not in another part.
    pub other_ms: f64,
    /// The contender's processor time; it overlaps the parts above.
    pub processor_ms: f64,
    /// The time in which requests waited for busy disks; it overlaps the parts above.
    pub waiting_ms: f64,
}

/// Computes the parts of the mean time of a contender's requests.
pub(super) fn spent_ms(lane: &LaneResult) -> RequestTimeParts {
    let total = &lane.total;
    let of = |seconds: f64| 1e3 * seconds / total.requests.max(1) as f64;
    let known = total.hit_s + total.put_s + total.settle_s + total.daemon_s + total.pressure_s;
    RequestTimeParts {
        read_ms: of(total.hit_s),
        write_ms: of(total.put_s + total.settle_s),
        daemon_ms: of(total.daemon_s + total.pressure_s),
        other_ms: of((total.run_s - known).max(0.0)),
        processor_ms: of(total.processor_s),
        waiting_ms: of(total.waited_s),
    }
}

/// The mean time of a hit, in memory or on disk, in milliseconds.
pub(super) fn hit_ms(lane: &LaneResult) -> f64 {
    let total = &lane.total;
    1e3 * total.hit_s / (total.memory_hits + total.disk_hits).max(1) as f64
}

/// The mean time of a hit outside the contender's own memory, in milliseconds.
pub(super) fn disk_hit_ms(lane: &LaneResult) -> f64 {
    1e3 * lane.total.disk_get_s / lane.total.disk_hits.max(1) as f64
}

/// The mean time of a put, in milliseconds.
pub(super) fn put_ms(lane: &LaneResult) -> f64 {
    1e3 * lane.total.put_s / lane.total.misses().max(1) as f64
}
