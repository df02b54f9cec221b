//! Reads and writes all of a volume except the data of files, as `docs/formats/volume.md` describes.
//!
//! Owns: making a volume, leadership by the lease sectors, heads of epochs, the journal, checkpoints and replay.
//! Promises: an acknowledged append survives any crash; appends that a leader writes after another one took over are
//! never read; bytes from the disk cause errors, but no panic and no unbounded allocation. Leaves to others: the
//! meaning of operations, space, sessions, and data.
//!
//! | file | what is in it |
//! |---|---|
//! | `make` | making a volume |
//! | `lease`, `heads` | who leads, and which epoch is current |
//! | `leader_lease` | whether this process leads at this moment |
//! | `log`, `checkpoint` | the leader's journal |
//! | `cursor`, `transactions` | the position of appends; the lengths of transactions, and applying them to tables |
//! | `replay`, `run` | reading the journal; writing and reading runs |
//! | `segments` | metadata segments, as *space* names them |
//! | `disk`, `error` | blocks of the device; what can fail |

mod checkpoint;
mod cursor;
#[cfg(test)]
mod damage_tests;
mod disk;
mod error;
mod heads;
mod leader_lease;
mod leadership;
mod log;
mod make;
mod replay;
mod run;
mod segments;
#[cfg(test)]
mod tests;
mod transactions;

pub use disk::DiskPulse;
pub use error::Error;
pub use leader_lease::LeaderLease;
pub use leadership::StartOptions;
pub use log::LeaderJournal;
pub use make::{FormatOptions, SetAside, VolumeLayout, format};
pub use run::segments_at_most;
pub use transactions::{apply, transaction_bytes};

use nectary_block::SharedDevice;

use crate::format::{EpochHead, LeaseSector, VolumeLabel};
use crate::tables::MetadataTables;

/// The contents of a volume, read without a lease: for `check` and `info`.
#[derive(Debug, Clone)]
pub struct VolumeContents {
    /// The label of the volume.
    pub label: VolumeLabel,
    /// All records.
    pub tables: MetadataTables,
    /// The head of the current epoch.
    pub head: EpochHead,
    /// The lease sectors of servers that have used theirs, in the order of servers and sectors.
    pub servers: Vec<LeaseSector>,
    /// The number of the last valid append.
    pub last_sequence: u64,
    /// Notes from reading: torn appends, a bad copy of the label.
    pub notes: Vec<String>,
}

/// Reads a volume without a lease. If a server writes at the same time, reading may fail; the caller then reads again.
pub async fn read(device: &SharedDevice) -> Result<VolumeContents, Error> {
    let disk = disk::BlockDisk::new(device);
    let (label, mut notes) = disk.label().await?;
    let found = replay::replay(&disk, &label).await?;
    notes.extend(found.notes);
    let last_sequence = found.next_sequence.saturating_sub(1);
    let servers = leadership::used(&disk, &label).await?;
    Ok(VolumeContents { label, tables: found.tables, head: found.head, servers, last_sequence, notes })
}
