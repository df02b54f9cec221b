//! The options for making and opening a store.
//!
//! Owns: the options, their defaults and bounds, and the checks that need no device.

use std::time::Duration;

use crate::background::BackgroundRuntime;
use crate::error::Error;
use crate::intake::admission::AdmissionOptions;
use crate::locality::clusters::ClusterRead;
use crate::recover::IndexLoading;
use crate::rewrite::keep::{REWRITE_PERCENT_DEFAULT, REWRITE_PERCENT_MAX};
use crate::rewrite::reinsert::REINSERT_PERCENT_MAX;

/// The default share of a segment that is re-inserted, in percent. Re-insertion is off by default: see decision 0019.
const REINSERT_PERCENT_DEFAULT: u32 = 0;
/// The default size of a cluster, in bytes.
const CLUSTER_BYTES_DEFAULT: u64 = 64 << 10;
/// The smallest cluster, in bytes.
pub const CLUSTER_BYTES_MIN: u64 = 4 << 10;
/// The largest cluster, in bytes.
pub const CLUSTER_BYTES_MAX: u64 = 1 << 20;
/// The smallest memory budget, in bytes.
pub const MEMORY_BYTES_MIN: u64 = 8 << 20;

/// The options for making a store.
#[derive(Debug, Clone, Default)]
pub struct CreateOptions {
    /// Size of the store in bytes; 0 for the whole device.
    pub size_bytes: u64,
    /// Size of a segment in bytes; by default 16 MiB, or less if the store is small.
    pub segment_bytes: Option<u64>,
    /// Whether the contents of the device may be overwritten.
    pub force: bool,
    /// The seed of the store's random identity, so that a simulation can be repeated. By default the operating system
    /// provides the seed.
    pub seed: Option<u64>,
}

/// The options for opening a store.
#[derive(Debug, Clone)]
pub struct OpenOptions {
    /// Memory for everything: index, buffers, fills and the memory tier, in bytes.
    pub memory_bytes: u64,
    /// The largest part of `memory_bytes` for objects in memory; by default all memory that the other uses do not need.
    pub objects_bytes_max: Option<u64>,
    /// The longest time for which a put may wait in memory before it is written.
    pub write_delay: Duration,
    /// The interval at which the device is flushed if something was written. With `None`, the device is flushed only at
    /// the end of each segment and at checkpoints, purges and syncs.
    pub flush_interval: Option<Duration>,
    /// The longest time for which an operation on the device may take. After it, a read is a counted miss, and the callers
    /// of purges, syncs and the close get an error; the store goes on when the device answers. With `None` they wait for
    /// ever. The bound is not used while the store is being opened.
    pub device_deadline: Option<Duration>,
    /// The largest part of a segment that may be rewritten before the segment is reclaimed, in percent. Objects
    /// requested since they were written are rewritten; those that are not in memory are read first. The value is at
    /// most [`REINSERT_PERCENT_MAX`]; 0, the default, turns re-insertion off.
    pub reinsert_percent: u32,
    /// The largest number of bytes that may be rewritten from memory, in percent of the bytes that are admitted to the
    /// disk. Objects that are requested together are moved next to each other, and requested objects are rewritten
    /// before their segment is reclaimed. Rewriting from memory costs no read. The value is at most
    /// [`REWRITE_PERCENT_MAX`]; 0 turns this rewriting off.
    pub rewrite_percent: u32,
    /// The size of a cluster in bytes. Objects that [`collocate`](crate::Store::collocate) ties are packed into one
    /// cluster, and one read may read the whole cluster. The size is a power of two from [`CLUSTER_BYTES_MIN`] to
    /// [`CLUSTER_BYTES_MAX`], or 0 for no clusters.
    pub cluster_bytes: u64,
    /// Whether a read from disk reads only the object or its whole cluster.
    pub cluster_read: ClusterRead,
    /// Whether the objects that were in memory when the store was last open are read into memory again in the
    /// background, until memory is full.
    pub warm_up: bool,
    /// The rules that decide which objects are admitted to the disk. By default all objects are admitted.
    pub admission: AdmissionOptions,
    /// Whether the store is opened only for reading: nothing is written to the device. Recovery works as usual, but its
    /// changes stay in memory, and [`Store::repairs`](crate::Store::repairs) lists them. Puts and purges are refused.
    pub is_read_only: bool,
    /// The way in which the index is read when the store is opened.
    pub index_loading: IndexLoading,
    /// The runtime of background work.
    pub background: BackgroundRuntime,
    /// The seed of the random identities that an open draws, for example the identity of a span that begins empty. By
    /// default the operating system provides the seed. A simulation that sets it can be repeated; each open needs a
    /// different seed.
    pub seed: Option<u64>,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions {
            memory_bytes: 256 << 20,
            objects_bytes_max: None,
            write_delay: Duration::from_millis(500),
            flush_interval: None,
            device_deadline: Some(Duration::from_secs(2)),
            reinsert_percent: REINSERT_PERCENT_DEFAULT,
            rewrite_percent: REWRITE_PERCENT_DEFAULT,
            cluster_bytes: CLUSTER_BYTES_DEFAULT,
            cluster_read: ClusterRead::default(),
            warm_up: true,
            admission: AdmissionOptions::default(),
            is_read_only: false,
            index_loading: IndexLoading::default(),
            background: BackgroundRuntime::default(),
            seed: None,
        }
    }
}

impl OpenOptions {
    /// Checks the options without a device. *Errors*: `Invalid` for a budget that is too small, or an option that is
    /// out of bounds.
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
                "at most {REWRITE_PERCENT_MAX} percent of the bytes admitted to the disk can be rewritten, {} were given",
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
