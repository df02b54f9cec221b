//! How stores are made and opened.
//!
//! Owns: the options, their defaults and bounds, and what can be known to be wrong without a device.

use std::time::Duration;

use crate::background::Background;
use crate::error::Error;
use crate::intake::admission::AdmissionOptions;
use crate::locality::clusters::ClusterRead;
use crate::recover::IndexLoading;
use crate::rewrite::keep::{REWRITE_PERCENT_DEFAULT, REWRITE_PERCENT_MAX};
use crate::rewrite::reinsert::REINSERT_PERCENT_MAX;

/// The share of a segment that is re-inserted where none is given, in percent: none, as where the ring turns in two
/// seconds the hit rate is not yet the one that a simulation of it gives (decision 0019).
const REINSERT_PERCENT_DEFAULT: u32 = 0;
/// The size of a cluster where none is given, in bytes.
const CLUSTER_BYTES_DEFAULT: u64 = 64 << 10;
/// The smallest cluster, in bytes.
pub const CLUSTER_BYTES_MIN: u64 = 4 << 10;
/// The largest cluster, in bytes.
pub const CLUSTER_BYTES_MAX: u64 = 1 << 20;
/// The smallest memory budget, in bytes.
pub const MEMORY_BYTES_MIN: u64 = 8 << 20;

/// How a store is made.
#[derive(Debug, Clone, Default)]
pub struct CreateOptions {
    /// Size of the store in bytes; 0 for the whole device.
    pub size_bytes: u64,
    /// Size of a segment in bytes; by default 16 MiB, or less where the store is small.
    pub segment_bytes: Option<u64>,
    /// Whether what is on the device may be overwritten.
    pub force: bool,
    /// What its random identity is drawn from, so that a simulation can be repeated; by default the operating system.
    pub seed: Option<u64>,
}

/// How a store is opened.
#[derive(Debug, Clone)]
pub struct OpenOptions {
    /// Memory for everything: index, buffers, fills and the memory tier, in bytes.
    pub memory_bytes: u64,
    /// The most of that which objects in memory take; by default all that the rest leaves.
    pub objects_bytes_max: Option<u64>,
    /// How long a put may wait in memory before it is written.
    pub write_delay: Duration,
    /// How often the device is flushed where something was written; `None`: at the end of each segment, at checkpoints,
    /// purges and syncs.
    pub flush_interval: Option<Duration>,
    /// How much of a segment may be rewritten before it is overwritten, in percent: objects that were requested since
    /// they were written. At most [`REINSERT_PERCENT_MAX`]; 0, the default, turns it off.
    pub reinsert_percent: u32,
    /// How much of what is in memory may be rewritten, in percent of the bytes that are put: what is wanted together
    /// and lies apart is laid together, and what is requested is kept before its segment is overwritten. Neither costs
    /// a read. At most [`REWRITE_PERCENT_MAX`]; 0 turns it off.
    pub rewrite_percent: u32,
    /// The size of a cluster in bytes: objects that [`collocate`](crate::Store::collocate) ties are packed into one,
    /// and a read from disk may take a whole one. A power of two from [`CLUSTER_BYTES_MIN`] to [`CLUSTER_BYTES_MAX`],
    /// or 0 for no clusters.
    pub cluster_bytes: u64,
    /// What a read from disk takes.
    pub cluster_read: ClusterRead,
    /// Whether what was in memory when the store was last open is read into it again, in the background, as far as it
    /// fits.
    pub warm_up: bool,
    /// What is admitted to the disk; by default everything.
    pub admission: AdmissionOptions,
    /// How the index is read when the store is opened.
    pub index_loading: IndexLoading,
    /// Where the work is done that no call waits for.
    pub background: Background,
    /// What the random identity is drawn from of what is made when the store is opened, such as a span that begins
    /// empty; by default the operating system. For simulations, which can then be repeated: each open needs another
    /// one.
    pub seed: Option<u64>,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions {
            memory_bytes: 256 << 20,
            objects_bytes_max: None,
            write_delay: Duration::from_millis(500),
            flush_interval: None,
            reinsert_percent: REINSERT_PERCENT_DEFAULT,
            rewrite_percent: REWRITE_PERCENT_DEFAULT,
            cluster_bytes: CLUSTER_BYTES_DEFAULT,
            cluster_read: ClusterRead::default(),
            warm_up: true,
            admission: AdmissionOptions::default(),
            index_loading: IndexLoading::default(),
            background: Background::default(),
            seed: None,
        }
    }
}

impl OpenOptions {
    /// Checks what can be known without a device. *Errors*: `Invalid` for a budget that is too small, or a bound that
    /// is out of bounds.
    pub fn check(&self) -> Result<(), Error> {
        self.admission.check()?;
        if self.memory_bytes < MEMORY_BYTES_MIN {
            return Err(Error::invalid(format!(
                "a store needs at least {MEMORY_BYTES_MIN} bytes of memory, {} were given",
                self.memory_bytes
            )));
        }
        if self.reinsert_percent > REINSERT_PERCENT_MAX {
            return Err(Error::invalid(format!(
                "at most {REINSERT_PERCENT_MAX} percent of a segment can be re-inserted, {} were given",
                self.reinsert_percent
            )));
        }
        if self.rewrite_percent > REWRITE_PERCENT_MAX {
            return Err(Error::invalid(format!(
                "at most {REWRITE_PERCENT_MAX} percent of what is put can be rewritten, {} were given",
                self.rewrite_percent
            )));
        }
        let bytes = self.cluster_bytes;
        if bytes != 0 && !(bytes.is_power_of_two() && (CLUSTER_BYTES_MIN..=CLUSTER_BYTES_MAX).contains(&bytes)) {
            return Err(Error::invalid(format!(
                "a cluster has a power of two from {CLUSTER_BYTES_MIN} to {CLUSTER_BYTES_MAX} bytes, or 0 for none, \
                 {bytes} were given"
            )));
        }
        Ok(())
    }
}
