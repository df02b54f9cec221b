//! The limit in every report: the time to move the data that any store must move, at the disk's own speed. That speed
//! is measured with the same I/O engine through the same layers.
//!
//! The limit does not depend on any contender. It assumes a store that misses only the first request for each object.
//! Such a store writes each object once and reads the bytes that no memory of its size can hold, both at the disk's
//! sequential speed. For reference, the report also has an LRU over groups, which needs a seek per read.

use std::sync::Arc;

use nectary_block::{Buffer, OpenOptions, WriteFlags, read};
use serde::Serialize;

use crate::Error;
use crate::disk::{DiskClock, DiskOptions, MeasuredDisk, SharedClock};
use crate::random::SeededRandom;
use crate::workload::WorkloadDemand;

/// The size of one read, in bytes: a typical object in whole blocks.
const READ_BYTES: usize = 8192;
/// The number of measured random reads, and that of measured sequential reads and writes.
const READS: u64 = 300;
const WRITES: u64 = 24;
/// The size of a sequential read or write, in bytes.
const WRITE_BYTES: usize = 1 << 20;

/// The disk's own speed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct DiskSpeed {
    /// The time of a random read of 8 KiB, one at a time, in milliseconds.
    pub random_read_ms: f64,
    /// The rate of sequential writes of 1 MiB, in bytes per second.
    pub write_bytes_per_s: f64,
    /// The rate of sequential reads of 1 MiB, in bytes per second.
    pub read_bytes_per_s: f64,
}

impl DiskSpeed {
    /// Measures a new disk like those of the contenders. Reads are in the first `region_bytes`, because contenders fill
    /// only this part.
    pub fn measure(
        options: &DiskOptions,
        bytes: u64,
        region_bytes: u64,
        clock: &Arc<SharedClock>,
        slot: usize,
    ) -> Result<DiskSpeed, Error> {
        let bytes = bytes.max(64 << 20);
        let disk = MeasuredDisk::attach(options, bytes, "limit", clock, slot)?;
        let clock = DiskClock::new(options.time, Some(clock.clone()), vec![slot]);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Error::failed("starting a runtime", error))?;
        let limit = runtime.block_on(async {
            let device =
                nectary_block::open(&format!("disk:{}", disk.path().display()), &OpenOptions::default()).await?;
            let began = clock.now();
            for index in 0..WRITES {
                let offset = index * WRITE_BYTES as u64;
                let buffer = vec![Buffer::zeroed(WRITE_BYTES)];
                device.write_at(offset, buffer, WriteFlags::default(), Default::default()).await?;
            }
            let written = clock.now();
            for index in 0..WRITES {
                read(&*device, index * WRITE_BYTES as u64, WRITE_BYTES).await?;
            }
            let read_back = clock.now();
            let mut random = SeededRandom::new(bytes);
            let places = region_bytes.clamp(64 << 20, bytes) / READ_BYTES as u64;
            for _ in 0..READS {
                let offset = random.below(places) * READ_BYTES as u64;
                read(&*device, offset, READ_BYTES).await?;
            }
            let done = clock.now();
            Ok::<DiskSpeed, Error>(DiskSpeed {
                random_read_ms: (done - read_back).as_secs_f64() * 1e3 / READS as f64,
                write_bytes_per_s: (WRITES * WRITE_BYTES as u64) as f64 / (written - began).as_secs_f64(),
                read_bytes_per_s: (WRITES * WRITE_BYTES as u64) as f64 / (read_back - written).as_secs_f64(),
            })
        })?;
        Ok(limit)
    }

    /// The requests per second of a store that misses only first requests and does only the necessary work. Several
    /// disks share the work equally.
    pub fn requests_per_s(&self, demand: &WorkloadDemand, disks: usize) -> f64 {
        let reads_s = demand.must_read_bytes as f64 / self.read_bytes_per_s;
        (demand.requests * disks as u64) as f64 / (reads_s + self.writes_s(demand))
    }

    /// The requests per second of an LRU over groups, which needs a seek per read.
    pub fn lru_over_groups_per_s(&self, demand: &WorkloadDemand, disks: usize) -> f64 {
        let seeks_s = demand.group_reads as f64 * self.random_read_ms / 1e3;
        let beyond_bytes = demand.group_read_bytes.saturating_sub(demand.group_reads * READ_BYTES as u64);
        let reads_s = seeks_s + beyond_bytes as f64 / self.read_bytes_per_s;
        (demand.requests * disks as u64) as f64 / (reads_s + self.writes_s(demand))
    }

    fn writes_s(&self, demand: &WorkloadDemand) -> f64 {
        demand.compulsory_bytes as f64 / self.write_bytes_per_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The limit depends only on the workload and the disk.
    #[test]
    fn limit_ignores_contenders() {
        let limit = DiskSpeed { random_read_ms: 10.0, write_bytes_per_s: 1e6, read_bytes_per_s: 2e6 };
        let demand = WorkloadDemand {
            requests: 1000,
            compulsory: 500,
            compulsory_bytes: 1_000_000,
            must_read_bytes: 2_000_000,
            group_reads: 100,
            group_read_bytes: 100 * (READ_BYTES as u64 + 20_000),
        };
        // The store writes for a second and reads for a second. The LRU over groups also writes for a second; it seeks
        // 100 times for 10 ms each, and reads for a second.
        assert_eq!((limit.requests_per_s(&demand, 1), limit.requests_per_s(&demand, 2)), (500.0, 1000.0));
        assert!((limit.lru_over_groups_per_s(&demand, 1) - 1000.0 / 3.0).abs() < 1.0);
    }
}
