//! Computes the hits that a contender should have, with simulated caches that share no code with any contender.
//!
//! Owns: two simulations and the comparison. Simulated files: missed objects are put on the disks in turn; on each disk
//! the least recently used files are deleted when blocks run out. The simulated store: a ring of segments, first in,
//! first out. An object takes the space of its body, its key and the header of a record; an object in fragments is lost
//! when its first fragment is overwritten. The store's memory can hold objects that its ring does not, so the store may
//! have as many hits as the ring with an LRU memory before it. Promises: a contender whose hits differ from these by
//! more than [`Expected`] allows makes the run void. Files on one thread must have exactly the same hits. Other
//! contenders may differ a little: several threads send requests in another order than the trace, and a store pads its
//! appends and may rewrite requested objects.

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::plan::{Group, Plan};
use super::results::{Expected, LaneResult};
use crate::contender::Kind;
use crate::workload::{Request, TraceReader};
use crate::{Error, ErrorKind};

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
trait Simulated {
    /// Requests an object, and puts it if it is missing; returns whether the request was a hit.
    fn ask(&mut self, request: &Request) -> bool;
}

/// The simulated files: LRU on each disk separately.
struct Recency {
    blocks_max: u64,
    used: Vec<u64>,
    /// For each disk, its objects by the time of their last use.
    orders: Vec<BTreeMap<u64, (u32, u64)>>,
    at: HashMap<u32, (usize, u64)>,
    time: u64,
    puts: usize,
}

impl Recency {
    fn new(disk_bytes: u64, disks: usize) -> Recency {
        let blocks_max = disk_bytes * FULL_PERCENT / 100 / BLOCK_BYTES / disks as u64;
        let (used, orders) = (vec![0; disks], vec![BTreeMap::new(); disks]);
        Recency { blocks_max, used, orders, at: HashMap::new(), time: 0, puts: 0 }
    }
}

impl Simulated for Recency {
    fn ask(&mut self, request: &Request) -> bool {
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
struct Ring {
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

impl Ring {
    /// Makes the ring of a store with these counters; `None` if the counters lack a parameter of the ring.
    fn new(counters: &serde_json::Value) -> Option<Ring> {
        let number = |name: &str| counters.get(name).and_then(serde_json::Value::as_u64);
        let segments_max = number("segments").filter(|count| *count > 0)? as usize;
        Some(Ring {
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
        let Ring { segment_bytes, segments_max, whole_bytes_max, record_bytes, unit_bytes, .. } = self;
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

impl Simulated for Ring {
    fn ask(&mut self, request: &Request) -> bool {
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
    ring: Ring,
    bytes_max: u64,
    used: u64,
    /// The objects and their bytes, by the time of their last request.
    order: BTreeMap<u64, (u32, u64)>,
    at: HashMap<u32, u64>,
    time: u64,
}

impl WithMemory {
    fn new(ring: Ring, bytes_max: u64) -> WithMemory {
        WithMemory { ring, bytes_max, used: 0, order: BTreeMap::new(), at: HashMap::new(), time: 0 }
    }
}

impl Simulated for WithMemory {
    fn ask(&mut self, request: &Request) -> bool {
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
/// *Errors*: [`ErrorKind::Void`] if the hits of a contender are outside the accepted range.
pub(super) fn compare(
    plan: &Plan,
    group: &Group,
    lanes: &mut [LaneResult],
    trace: &mut TraceReader,
) -> Result<(), Error> {
    let mut done: Vec<(String, u64)> = Vec::new();
    let mut simulated = |like: String, simulated: &mut dyn Simulated| -> Result<u64, Error> {
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
            Ring::new(&result.counters).ok_or_else(none)
        };
        let hits = match lane.kind {
            Kind::Files { .. } => {
                simulated(format!("files on {}", lane.disks), &mut Recency::new(group.disk_bytes, lane.disks))?
            }
            Kind::Nectary { .. } | Kind::Foyer { .. } => {
                let mut ring = ring()?;
                simulated(format!("ring {:?}", ring.shape()), &mut ring)?
            }
            Kind::Memory { .. } => continue,
        };
        let most = match lane.kind {
            Kind::Nectary { memory_bytes, .. } => {
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

fn simulate(simulated: &mut dyn Simulated, requests: u64, trace: &mut TraceReader) -> Result<u64, Error> {
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
fn accepted(kind: &Kind, counters: &serde_json::Value, plan: &Plan, hits: u64, most: u64) -> Expected {
    let points = (plan.requests as f64 * POINTS / 100.0) as u64;
    let was_full = counters["times_full"].as_u64().unwrap_or(0) > 0;
    // A store that rewrites objects may have more hits than the simulation.
    let reinserted = counters["counts"]["reinserted"].as_u64().unwrap_or(0) > 0;
    match kind {
        Kind::Files { .. } if plan.threads == 1 && !was_full => Expected { hits, low: hits, high: hits },
        // foyer may drop an object, or have it only in memory. It never holds more than fits in its memory and disk
        // together.
        Kind::Foyer { .. } => Expected { hits, low: 0, high: hits + FOYER_POINTS * points },
        _ if reinserted => Expected { hits, low: hits.saturating_sub(points), high: plan.requests },
        // Groups that are still being written, and segments that are not yet used again, hold some objects for longer.
        _ => Expected { hits, low: hits.saturating_sub(points), high: most + points + points / 2 },
    }
}

fn void(message: String) -> Error {
    Error::new(ErrorKind::Void, format!("the run is void: {message}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hits(simulated: &mut dyn Simulated, asked: &[(u32, u32)]) -> Vec<bool> {
        let request = |&(object, bytes): &(u32, u32)| Request { client: 0, object, bytes, site: 0, page: None };
        asked.iter().map(|asked| simulated.ask(&request(asked))).collect()
    }

    #[test]
    fn the_least_recently_used_file_leaves_and_large_ones_stay_outside() {
        // The disk has 10 blocks; files may fill 9 of them.
        let mut files = Recency::new(10 * BLOCK_BYTES, 1);
        let asked = [(1, 4 * 4096), (2, 4097), (1, 4 * 4096), (3, 4 * 4096), (2, 4097), (1, 4 * 4096), (9, 1 << 20)];
        // Object 1 has 4 blocks, object 2 has 2, object 3 has 4. Object 3 evicts 2, then 2 evicts 1.
        assert_eq!(hits(&mut files, &asked), [false, false, true, false, false, false, false]);
        assert!(files.used[0] <= 9);
    }

    #[test]
    fn disks_are_used_in_turn() {
        let mut files = Recency::new(40 * BLOCK_BYTES, 2);
        hits(&mut files, &[(1, 1), (2, 1), (3, 1)]);
        assert_eq!(files.used, [2, 1]);
    }

    #[test]
    fn the_oldest_segment_leaves_however_often_it_was_asked_for() {
        let counters = serde_json::json!({ "segments": 2, "segment_bytes": 4096, "whole_bytes_max": 2048 });
        let mut ring = Ring::new(&counters).unwrap();
        // Two records of 1,500 bytes fill a segment.
        let asked = [(1, 1500), (2, 1500), (1, 1500), (3, 1500), (4, 1500), (1, 1500), (5, 1500), (1, 1500)];
        assert_eq!(hits(&mut ring, &asked), [false, false, true, false, false, true, false, false]);
        assert!(Ring::new(&serde_json::Value::Null).is_none());
    }

    #[test]
    fn a_memory_holds_what_the_ring_has_lost_until_others_are_requested() {
        let counters = serde_json::json!({ "segments": 2, "segment_bytes": 4096, "whole_bytes_max": 2048 });
        let mut both = WithMemory::new(Ring::new(&counters).unwrap(), 4500);
        // The ring loses objects 1 and 2 when object 5 comes; the memory holds the last three objects.
        let asked = [(1, 1500), (2, 1500), (3, 1500), (1, 1500), (4, 1500), (5, 1500), (1, 1500), (2, 1500), (4, 1500)];
        assert_eq!(hits(&mut both, &asked), [false, false, false, true, false, false, true, false, true]);
        assert!(both.used <= 4500);
    }

    #[test]
    fn a_contender_that_invents_or_loses_a_hit_is_found_out() {
        let kind = Kind::Files {
            system: crate::contender::FileSystem::Xfs,
            proxy_bytes: 0,
            buffer_bytes: 0,
            dirty_percent: 20,
        };
        let options = super::super::Options { quick: true, ..super::super::Options::new(super::super::Preset::Table4) };
        let plan = Plan::new(options).unwrap();
        let expected = accepted(&kind, &serde_json::Value::Null, &plan, 100, 100);
        assert_eq!((expected.low, expected.high), (100, 100));
        let kind = Kind::Nectary { memory_bytes: 0, settings: Default::default() };
        let store = accepted(&kind, &serde_json::Value::Null, &plan, 1000, 1000);
        assert!(store.low < 1000 && store.high > 1000 && store.high < 1000 + plan.requests / 50);
        let reinserted = serde_json::json!({ "counts": { "reinserted": 1 } });
        assert_eq!(accepted(&kind, &reinserted, &plan, 1000, 1000).high, plan.requests);
    }
}
