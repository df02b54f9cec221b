//! Computes the hits that a contender should have, with simulated caches that share no code with any contender.
//!
//! Owns: two simulations and the comparison. Simulated files: missed objects are put on the disks in turn; on each disk
//! the least recently used files are deleted when blocks run out. The simulated store: a ring of segments, first in,
//! first out. An object takes the space of its body, its key and the header of a record; an object in fragments is lost
//! when its first fragment is overwritten. The store's memory can hold objects that its ring does not, so the store may
//! have as many hits as the ring with an LRU memory before it. Promises: a contender whose hits differ from these by
//! more than [`ExpectedHits`] allows makes the run void. Files on one thread must have exactly the same hits. Other
//! contenders may differ a little: several threads send requests in another order than the trace, and a store pads its
//! appends and may rewrite requested objects.

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::plan::{DiskSizeGroup, StorePlan};
use super::results::{ExpectedHits, LaneResult};
use crate::contender::ContenderKind;
use crate::workload::{ProxyRequest, TraceReader};
use crate::{Error, ExperimentErrorKind};

/// The size of a block, in bytes; a file occupies whole blocks, at least one.
const BLOCK_BYTES: u64 = 4096;
/// The part of a disk's share that files may fill, in percent.
const FULL_PERCENT: u64 = 95;
/// The bytes of a record in addition to its body and key, and the unit to which a record's size is rounded up.
const RECORD_BYTES: u64 = 192;
const UNIT_BYTES: u64 = 64;
/// The number of requests that are read from the trace at once.
const REQUESTS_AT_ONCE: u64 = 1 << 16;
/// The accepted difference of the hit rate, in percentage points; files on one thread may not differ at all.
const POINTS: f64 = 1.0;

/// The multiple of `POINTS` by which foyer's hit rate may exceed that of the simulation, because foyer's memory holds
/// objects that its disk does not.
const FOYER_POINTS: u64 = 3;

/// A simulated cache.
trait SimulatedCache {
    /// Requests an object, and puts it if it is missing; returns whether the request was a hit.
    fn ask(&mut self, request: &ProxyRequest) -> bool;
}

/// The simulated files: LRU on each disk separately.
struct SimulatedFiles {
    blocks_max: u64,
    used: Vec<u64>,
    /// For each disk, its objects by the time of their last use.
    orders: Vec<BTreeMap<u64, (u32, u64)>>,
    at: HashMap<u32, (usize, u64)>,
    time: u64,
    puts: usize,
}

impl SimulatedFiles {
    fn new(disk_bytes: u64, disks: usize) -> SimulatedFiles {
        let blocks_max = disk_bytes * FULL_PERCENT / 100 / BLOCK_BYTES / disks as u64;
        let (used, orders) = (vec![0; disks], vec![BTreeMap::new(); disks]);
        SimulatedFiles { blocks_max, used, orders, at: HashMap::new(), time: 0, puts: 0 }
    }
}

impl SimulatedCache for SimulatedFiles {
    fn ask(&mut self, request: &ProxyRequest) -> bool {
        self.time += 1;
        let found = self.at.get_mut(&request.object);
        if let Some((disk, time)) = found {
            if let Some(entry) = self.orders[*disk].remove(time) {
                self.orders[*disk].insert(self.time, entry);
            }
            *time = self.time;
            return true;
        }
        let disk = self.puts % self.orders.len();
        self.puts += 1;
        let blocks = u64::from(request.bytes).div_ceil(BLOCK_BYTES).max(1);
        if blocks > self.blocks_max {
            return false;
        }
        self.used[disk] += blocks;
        while self.used[disk] > self.blocks_max {
            let Some((_, (object, freed))) = self.orders[disk].pop_first() else { break };
            self.at.remove(&object);
            self.used[disk] -= freed;
        }
        self.orders[disk].insert(self.time, (request.object, blocks));
        self.at.insert(request.object, (disk, self.time));
        false
    }
}

/// The simulated store: segments, first in, first out.
struct SimulatedSegments {
    segment_bytes: u64,
    segments_max: usize,
    /// The bytes of a record in addition to body and key, and the unit to which a record's size is rounded up.
    record_bytes: u64,
    unit_bytes: u64,
    /// The largest body that is one record. Larger bodies are cut into fragments, which have this size in the
    /// simulation.
    whole_bytes_max: u64,
    /// The objects that begin in each segment; the last is the open one.
    segments: VecDeque<Vec<u32>>,
    used: u64,
    held: std::collections::HashSet<u32>,
}

impl SimulatedSegments {
    /// Makes the ring of a store with these counters; `None` if the counters lack a parameter of the ring.
    fn new(counters: &serde_json::Value) -> Option<SimulatedSegments> {
        let number = |name: &str| counters.get(name).and_then(serde_json::Value::as_u64);
        let segments_max = number("segments").filter(|count| *count > 0)? as usize;
        Some(SimulatedSegments {
            segment_bytes: number("segment_bytes")?,
            segments_max,
            record_bytes: number("record_bytes").unwrap_or(RECORD_BYTES),
            unit_bytes: number("unit_bytes").unwrap_or(UNIT_BYTES).max(1),
            whole_bytes_max: number("whole_bytes_max").filter(|bytes| *bytes > 0)?,
            segments: VecDeque::from([Vec::new()]),
            used: 0,
            held: Default::default(),
        })
    }

    /// The parameters that determine the hits of a ring.
    fn shape(&self) -> [u64; 5] {
        let SimulatedSegments { segment_bytes, segments_max, whole_bytes_max, record_bytes, unit_bytes, .. } = self;
        [*segment_bytes, *segments_max as u64, *whole_bytes_max, *record_bytes, *unit_bytes]
    }

    fn append(&mut self, bytes: u64) {
        if self.used + bytes > self.segment_bytes {
            if self.segments.len() == self.segments_max {
                let gone = self.segments.pop_front().unwrap_or_default();
                for object in &gone {
                    self.held.remove(object);
                }
            }
            self.segments.push_back(Vec::new());
            self.used = 0;
        }
        self.used += bytes;
    }
}

impl SimulatedCache for SimulatedSegments {
    fn ask(&mut self, request: &ProxyRequest) -> bool {
        if self.held.contains(&request.object) {
            return true;
        }
        let (beside, unit) = (self.record_bytes + request.key().len() as u64, self.unit_bytes);
        let record = |body: u64| (body + beside).next_multiple_of(unit);
        let mut left = u64::from(request.bytes);
        let piece = self.whole_bytes_max;
        self.append(record(left.min(piece)));
        if let Some(open) = self.segments.back_mut() {
            open.push(request.object);
        }
        self.held.insert(request.object);
        left -= left.min(piece);
        while left > 0 {
            self.append(record(left.min(piece)));
            left -= left.min(piece);
        }
        false
    }
}

/// A ring with a memory before it, which holds the objects that were requested last.
struct WithMemory {
    ring: SimulatedSegments,
    bytes_max: u64,
    used: u64,
    /// The objects and their bytes, by the time of their last request.
    order: BTreeMap<u64, (u32, u64)>,
    at: HashMap<u32, u64>,
    time: u64,
}

impl WithMemory {
    fn new(ring: SimulatedSegments, bytes_max: u64) -> WithMemory {
        WithMemory { ring, bytes_max, used: 0, order: BTreeMap::new(), at: HashMap::new(), time: 0 }
    }
}

impl SimulatedCache for WithMemory {
    fn ask(&mut self, request: &ProxyRequest) -> bool {
        self.time += 1;
        let was_at = self.at.insert(request.object, self.time);
        let entry = was_at.and_then(|time| self.order.remove(&time));
        self.order.insert(self.time, entry.unwrap_or((request.object, request.bytes.into())));
        if entry.is_some() {
            return true;
        }
        self.used += u64::from(request.bytes);
        while self.used > self.bytes_max {
            let Some((_, (object, bytes))) = self.order.pop_first() else { break };
            self.at.remove(&object);
            self.used -= bytes;
        }
        self.ring.ask(request)
    }
}

/// Simulates every contender of a disk size, and compares the hits.
///
/// *Errors*: [`ExperimentErrorKind::Void`] if the hits of a contender are outside the accepted range.
pub(super) fn compare(
    plan: &StorePlan,
    group: &DiskSizeGroup,
    lanes: &mut [LaneResult],
    trace: &mut TraceReader,
) -> Result<(), Error> {
    let mut done: Vec<(String, u64)> = Vec::new();
    let mut simulated = |like: String, simulated: &mut dyn SimulatedCache| -> Result<u64, Error> {
        if let Some((_, hits)) = done.iter().find(|entry| entry.0 == like) {
            return Ok(*hits);
        }
        let hits = simulate(simulated, plan.requests, trace)?;
        done.push((like, hits));
        Ok(hits)
    };
    for (lane, result) in group.lanes.iter().zip(lanes) {
        let ring = || {
            let none = || void(format!("{} does not tell its shape, so its hits cannot be compared", lane.name));
            SimulatedSegments::new(&result.counters).ok_or_else(none)
        };
        let hits = match lane.kind {
            ContenderKind::Files { .. } => {
                simulated(format!("files on {}", lane.disks), &mut SimulatedFiles::new(group.disk_bytes, lane.disks))?
            }
            ContenderKind::Nectary { .. } | ContenderKind::Foyer { .. } => {
                let mut ring = ring()?;
                simulated(format!("ring {:?}", ring.shape()), &mut ring)?
            }
            ContenderKind::Memory { .. } => continue,
        };
        let most = match lane.kind {
            ContenderKind::Nectary { memory_bytes, .. } => {
                let ring = ring()?;
                let like = format!("ring {:?} with {memory_bytes}", ring.shape());
                simulated(like, &mut WithMemory::new(ring, memory_bytes))?
            }
            _ => hits,
        };
        let found = result.total.memory_hits + result.total.disk_hits;
        let expected = accepted(&lane.kind, &result.counters, plan, hits, most.max(hits));
        result.simulated = Some(expected);
        if !(expected.low..=expected.high).contains(&found) {
            return Err(void(format!(
                "{} on {} had {found} hits of {} requests, a simulation {hits}; {} to {} are accepted",
                lane.name, group.label, plan.requests, expected.low, expected.high
            )));
        }
    }
    Ok(())
}

fn simulate(simulated: &mut dyn SimulatedCache, requests: u64, trace: &mut TraceReader) -> Result<u64, Error> {
    let mut hits = 0;
    let mut first = 0;
    while first < requests {
        let count = REQUESTS_AT_ONCE.min(requests - first);
        hits += trace.read(first, count)?.iter().filter(|request| simulated.ask(request)).count() as u64;
        first += count;
    }
    Ok(hits)
}

/// The accepted hits of a contender; `hits` are those of its simulation, and `most` those with a memory before it.
fn accepted(
    kind: &ContenderKind,
    counters: &serde_json::Value,
    plan: &StorePlan,
    hits: u64,
    most: u64,
) -> ExpectedHits {
    let points = (plan.requests as f64 * POINTS / 100.0) as u64;
    let was_full = counters["times_full"].as_u64().unwrap_or(0) > 0;
    // A store that rewrites objects may have more hits than the simulation.
    let reinserted = counters["counts"]["reinserted"].as_u64().unwrap_or(0) > 0;
    match kind {
        ContenderKind::Files { .. } if plan.threads == 1 && !was_full => ExpectedHits { hits, low: hits, high: hits },
        // foyer may drop an object, or have it only in memory. It never holds more than fits in its memory and disk
        // together.
        ContenderKind::Foyer { .. } => ExpectedHits { hits, low: 0, high: hits + FOYER_POINTS * points },
        _ if reinserted => ExpectedHits { hits, low: hits.saturating_sub(points), high: plan.requests },
        // Groups that are still being written, and segments that are not yet used again, hold some objects for longer.
        _ => ExpectedHits { hits, low: hits.saturating_sub(points), high: most + points + points / 2 },
    }
}

fn void(message: String) -> Error {
    Error::new(ExperimentErrorKind::Void, format!("the run is void: {message}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hits(simulated: &mut dyn SimulatedCache, asked: &[(u32, u32)]) -> Vec<bool> {
        let request = |&(object, bytes): &(u32, u32)| ProxyRequest { client: 0, object, bytes, site: 0, page: None };
        asked.iter().map(|asked| simulated.ask(&request(asked))).collect()
    }

    /// The least recently used file is evicted, and large files are not stored.
    #[test]
    fn simulated_files_evict_lru() {
        // The disk has 10 blocks; files may fill 9 of them.
        let mut files = SimulatedFiles::new(10 * BLOCK_BYTES, 1);
        let asked = [(1, 4 * 4096), (2, 4097), (1, 4 * 4096), (3, 4 * 4096), (2, 4097), (1, 4 * 4096), (9, 1 << 20)];
        // Object 1 has 4 blocks, object 2 has 2, object 3 has 4. Object 3 evicts 2, then 2 evicts 1.
        assert_eq!(hits(&mut files, &asked), [false, false, true, false, false, false, false]);
        assert!(files.used[0] <= 9);
    }

    #[test]
    fn disks_are_used_in_turn() {
        let mut files = SimulatedFiles::new(40 * BLOCK_BYTES, 2);
        hits(&mut files, &[(1, 1), (2, 1), (3, 1)]);
        assert_eq!(files.used, [2, 1]);
    }

    /// The oldest segment is evicted, regardless of how often its objects were requested.
    #[test]
    fn simulated_ring_evicts_oldest() {
        let counters = serde_json::json!({ "segments": 2, "segment_bytes": 4096, "whole_bytes_max": 2048 });
        let mut ring = SimulatedSegments::new(&counters).unwrap();
        // Two records of 1,500 bytes fill a segment.
        let asked = [(1, 1500), (2, 1500), (1, 1500), (3, 1500), (4, 1500), (1, 1500), (5, 1500), (1, 1500)];
        assert_eq!(hits(&mut ring, &asked), [false, false, true, false, false, true, false, false]);
        assert!(SimulatedSegments::new(&serde_json::Value::Null).is_none());
    }

    /// Memory has objects that the ring has lost until others are requested.
    #[test]
    fn simulated_memory_keeps_lost_objects() {
        let counters = serde_json::json!({ "segments": 2, "segment_bytes": 4096, "whole_bytes_max": 2048 });
        let mut both = WithMemory::new(SimulatedSegments::new(&counters).unwrap(), 4500);
        // The ring loses objects 1 and 2 when object 5 comes; the memory holds the last three objects.
        let asked = [(1, 1500), (2, 1500), (3, 1500), (1, 1500), (4, 1500), (5, 1500), (1, 1500), (2, 1500), (4, 1500)];
        assert_eq!(hits(&mut both, &asked), [false, false, false, true, false, false, true, false, true]);
        assert!(both.used <= 4500);
    }

    /// A contender that reports too many or too few hits is found.
    #[test]
    fn wrong_hit_count_is_found() {
        let kind = ContenderKind::Files {
            system: crate::contender::ContenderFileSystem::Xfs,
            proxy_bytes: 0,
            buffer_bytes: 0,
            dirty_percent: 20,
        };
        let options = super::super::BenchStoreOptions {
            quick: true,
            ..super::super::BenchStoreOptions::new(super::super::StorePreset::Table4)
        };
        let plan = StorePlan::new(options).unwrap();
        let expected = accepted(&kind, &serde_json::Value::Null, &plan, 100, 100);
        assert_eq!((expected.low, expected.high), (100, 100));
        let kind = ContenderKind::Nectary { memory_bytes: 0, settings: Default::default() };
        let store = accepted(&kind, &serde_json::Value::Null, &plan, 1000, 1000);
        assert!(store.low < 1000 && store.high > 1000 && store.high < 1000 + plan.requests / 50);
        let reinserted = serde_json::json!({ "counts": { "reinserted": 1 } });
        assert_eq!(accepted(&kind, &reinserted, &plan, 1000, 1000).high, plan.requests);
    }
}
