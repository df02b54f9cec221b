//! What the disk itself can do, measured by the same engine down the same path: the limit beside every result.

use std::sync::Arc;

use nectary_block::{Buffer, OpenOptions, WriteFlags, read};
use serde::Serialize;

use crate::Error;
use crate::disk::{DiskClock, DiskOptions, MeasuredDisk, SharedClock};
use crate::random::Random;
use crate::worker::Piece;

/// What one read takes, in bytes: a usual object in whole blocks.
const READ_BYTES: usize = 8192;
/// Reads and writes that are measured.
const READS: u64 = 300;
const WRITES: u64 = 24;
/// A large write, in bytes.
const WRITE_BYTES: usize = 1 << 20;

/// The disk's own speed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Limit {
    /// A read of 8 KiB at random, one at a time, in milliseconds.
    pub random_read_ms: f64,
    /// Writing 1 MiB after another, in bytes a second.
    pub write_bytes_per_s: f64,
}

impl Limit {
    /// Measures a new disk like those of the contenders, in the first `region_bytes`: as much of it as is ever filled.
    pub fn measure(
        options: &DiskOptions,
        bytes: u64,
        region_bytes: u64,
        clock: &Arc<SharedClock>,
        slot: usize,
    ) -> Result<Limit, Error> {
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
            let mut random = Random::new(bytes);
            let places = region_bytes.clamp(64 << 20, bytes) / READ_BYTES as u64;
            for _ in 0..READS {
                let offset = random.below(places) * READ_BYTES as u64;
                read(&*device, offset, READ_BYTES).await?;
            }
            let done = clock.now();
            Ok::<Limit, Error>(Limit {
                random_read_ms: (done - written).as_secs_f64() * 1e3 / READS as f64,
                write_bytes_per_s: (WRITES * WRITE_BYTES as u64) as f64 / (written - began).as_secs_f64(),
            })
        })?;
        Ok(limit)
    }

    /// Requests a second if each hit on disk cost one read, what was put went in large writes, all else nothing, and
    /// several disks had equal shares of it all the time.
    pub fn requests_per_s(&self, total: &Piece, disks: usize) -> f64 {
        let reads_s = total.disk_hits as f64 * self.random_read_ms / 1e3;
        let writes_s = total.put_bytes as f64 / self.write_bytes_per_s;
        (total.requests * disks as u64) as f64 / (reads_s + writes_s)
    }
}
