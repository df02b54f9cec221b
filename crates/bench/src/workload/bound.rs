//! The work that a workload demands from any store, and the reads of a simple store. Both are computed only from the
//! requests.
//!
//! Owns: three numbers that do not depend on any contender.
//! - *Compulsory misses*: the first request for each object, which no store can hit.
//! - *Necessary reads*: a memory of M bytes over N requests has an area of M x N. An object that stays in memory
//!   between two of its requests uses an area of its bytes times the number of requests from one to the other. The area
//!   is given to the shortest such gaps first, until it is used up. Even a store that knows the future must read the
//!   objects of the other gaps from disk, because no store's memory has a larger area over the whole run [1].
//! - *LRU over groups*, for reference: memory is an LRU of pages together with their embedded objects, and one read
//!   loads a whole page with its embedded objects.
//!
//! The file also measures how close together requests for an object are ([`RequestLocality`]); this must be the same at every
//! scale.
//!
//! [1] D. Berger, N. Beckmann, M. Harchol-Balter: Practical Bounds on Optimal Caching with Variable Object Sizes.
//! SIGMETRICS 2018.

use std::collections::HashMap;

use nectary_cache::{AccessResult, Lru, Policy, StreamId};
use serde::Serialize;

use super::ProxyRequest;

/// The demand of a workload.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct WorkloadDemand {
    /// The number of requests.
    pub requests: u64,
    /// The number of requests that are the first for their object.
    pub compulsory: u64,
    /// The bytes of these first requests.
    pub compulsory_bytes: u64,
    /// The bytes that a store with this memory must read if it has only compulsory misses.
    pub must_read_bytes: u64,
    /// The number of reads of an LRU over groups.
    pub group_reads: u64,
    /// The bytes of these reads.
    pub group_read_bytes: u64,
}

/// Computes the work that requests demand from a store with `memory_bytes` of memory.
pub fn demand(requests: &[ProxyRequest], memory_bytes: u64) -> WorkloadDemand {
    let mut demand = WorkloadDemand { requests: requests.len() as u64, ..WorkloadDemand::default() };
    let mut last: HashMap<u32, u64> = HashMap::new();
    // For each pair of successive requests for an object: the number of requests from one to the other, and the
    // object's bytes.
    let mut gaps: Vec<(u64, u64)> = Vec::new();
    for (at, request) in requests.iter().enumerate() {
        let bytes = u64::from(request.bytes);
        match last.insert(request.object, at as u64) {
            Some(before) => gaps.push((at as u64 - before, bytes)),
            None => {
                demand.compulsory += 1;
                demand.compulsory_bytes += bytes;
            }
        }
    }
    gaps.sort_unstable();
    let mut room = memory_bytes as f64 * requests.len() as f64;
    for (gap, bytes) in gaps {
        let taken = gap as f64 * bytes as f64;
        // The last gap that gets memory fits only in part.
        let share = (room / taken).clamp(0.0, 1.0);
        room -= taken * share;
        demand.must_read_bytes += ((1.0 - share) * bytes as f64) as u64;
    }
    (demand.group_reads, demand.group_read_bytes) = group_reads(requests, memory_bytes);
    demand
}

/// Computes the number of reads of an LRU over groups, and their bytes.
fn group_reads(requests: &[ProxyRequest], memory_bytes: u64) -> (u64, u64) {
    let mut memory = Lru::new(memory_bytes);
    let mut group_bytes: HashMap<u32, u64> = HashMap::new();
    let mut seen: HashMap<u32, ()> = HashMap::new();
    let (mut reads, mut bytes) = (0, 0);
    for request in requests {
        let group = request.page.unwrap_or(request.object);
        let weight = group_bytes.entry(group).or_default();
        let is_new = seen.insert(request.object, ()).is_none();
        if is_new {
            *weight += u64::from(request.bytes);
            // The object comes from the origin, and enlarges its group.
            memory.remove(u64::from(group));
        }
        let access = memory.reference(u64::from(group), (*weight).max(1), StreamId::default(), &mut |_| true);
        if !is_new && access != AccessResult::Hit {
            reads += 1;
            bytes += *weight;
        }
    }
    (reads, bytes)
}

/// How close together the requests for an object are, measured as hit rates of LRUs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RequestLocality {
    /// The share of requests that hit in an LRU of the memory's size.
    pub memory_hits: f64,
    /// The share of requests that hit in an LRU of the disk's size but not in that of the memory's size.
    pub disk_hits: f64,
}

/// Replays requests in an LRU of the memory's size and one of the disk's size.
pub fn locality(requests: impl Iterator<Item = ProxyRequest>, memory_bytes: u64, disk_bytes: u64) -> RequestLocality {
    let (mut memory, mut disk) = (Lru::new(memory_bytes), Lru::new(disk_bytes));
    let (mut count, mut in_memory, mut on_disk) = (0u64, 0u64, 0u64);
    for request in requests {
        let ask = |lru: &mut Lru| {
            let access = lru.reference(request.object.into(), request.bytes.into(), StreamId::default(), &mut |_| true);
            access == AccessResult::Hit
        };
        count += 1;
        match (ask(&mut memory), ask(&mut disk)) {
            (true, _) => in_memory += 1,
            (false, true) => on_disk += 1,
            (false, false) => {}
        }
    }
    let share = |hits: u64| hits as f64 / count.max(1) as f64;
    RequestLocality { memory_hits: share(in_memory), disk_hits: share(on_disk) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{RequestGenerator, WorkloadLaws};

    fn requests(asked: &[(u32, u32)]) -> Vec<ProxyRequest> {
        let request = |&(object, bytes): &(u32, u32)| ProxyRequest { client: 0, object, bytes, site: 0, page: None };
        asked.iter().map(request).collect()
    }

    /// The bytes that must be read are those that no memory of this size can hold.
    #[test]
    fn must_read_is_memory_minimum() {
        // Object 1 is requested again by the next request, 2 and 3 after three requests.
        let asked = requests(&[(1, 10), (1, 10), (2, 10), (3, 10), (4, 10), (2, 10), (3, 10)]);
        let of = |memory| demand(&asked, memory);
        assert_eq!((of(0).compulsory, of(0).compulsory_bytes, of(0).must_read_bytes), (4, 40, 30));
        // The area is 7 x 10. The gaps use 1 x 10, 3 x 10 and 3 x 10, so all fit.
        assert_eq!(of(10).must_read_bytes, 0);
        // The area is 42: gaps of 10 and 30 fit, and 2 of the last 30.
        assert_eq!(of(6).must_read_bytes, 9);
        assert!(of(1).must_read_bytes > of(6).must_read_bytes);
    }

    #[test]
    fn must_read_never_exceeds_lru() {
        let requests: Vec<ProxyRequest> = RequestGenerator::new(WorkloadLaws::seed_trace(1, 0.01)).collect();
        for memory in [64 << 10, 1 << 20, 8 << 20] {
            let mut lru = Lru::new(memory);
            let mut read = 0;
            let mut seen = std::collections::HashSet::new();
            for request in &requests {
                let weight = u64::from(request.bytes);
                let hit = lru.reference(request.object.into(), weight, StreamId::default(), &mut |_| true)
                    == AccessResult::Hit;
                read += if hit || seen.insert(request.object) { 0 } else { weight };
            }
            let must = demand(&requests, memory).must_read_bytes;
            assert!(must <= read && (must > 0 || memory > 1 << 20), "{memory}: {must} of {read}");
        }
    }

    #[test]
    fn locality_is_equal_at_all_scales() {
        let of = |scale: f64| {
            let bytes = |gb: f64| (gb * 1e9 * scale) as u64;
            [4.0, 9.0]
                .map(|gb| locality(RequestGenerator::new(WorkloadLaws::seed_trace(1, scale)), bytes(0.256), bytes(gb)))
        };
        let (small, large) = (of(1.0 / 32.0), of(1.0 / 4.0));
        for (small, large) in small.iter().zip(&large) {
            println!("{small:?} {large:?}");
            assert!((small.memory_hits - large.memory_hits).abs() < 0.015, "{small:?} {large:?}");
            assert!((small.disk_hits - large.disk_hits).abs() < 0.015, "{small:?} {large:?}");
        }
    }
}
