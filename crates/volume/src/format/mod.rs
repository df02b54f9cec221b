//! The bytes of a volume on disk: `docs/formats/volume.md` in code.
//!
//! Owns: encoding and decoding of each structure, with its bounds. Promises: what is encoded decodes to the same; a
//! decoder gives an error, and never panics, for any bytes; every length is checked before it is used. Leaves to
//! others: where structures are, and in which order they are written.
//!
//! | file | what is in it |
//! |---|---|
//! | `error`, `cursor` | what is wrong with bytes; reading and writing them |
//! | `frame` | the header of every frame |
//! | `label`, `lease`, `epoch` | the areas at the start of the disk, and metadata segments |
//! | `journal`, `run` | transactions, and sorted records |
//! | `table`, `inode`, `value`, `record` | the tables: keys and values |

pub(crate) mod cursor;
mod epoch;
mod error;
mod frame;
mod inode;
mod journal;
mod label;
mod lease;
mod record;
mod run;
mod table;
#[cfg(test)]
mod tests;
mod value;

pub use epoch::{EpochHead, SegmentHeader, SegmentUse};
pub use error::{FormatError, Problem};
pub use frame::{Frame, Identity, Magic, Place};
pub use inode::{INLINE_BYTES_MAX, Inode, TARGET_BYTES_MAX};
pub use journal::{Action, Append, Mutation, Transaction, TransactionKind};
pub use label::Label;
pub use lease::{LeaseSector, LeaseState};
pub use record::{EpochRecord, EpochState, Project, RunRecord, VolumeRecord};
pub use run::{Chunk, ChunkPlace, Index};
pub use table::{Key, Table};
pub use value::{Extent, ExtentState, Grant, NAME_BYTES_MAX, Name, Reply, Session, SessionState, Space};

/// The unit of the disk. *Units*: bytes.
pub const BLOCK_BYTES: usize = 4096;
/// The version of the format.
pub const VERSION: u16 = 1;
/// The largest disk. *Units*: blocks.
pub const BLOCKS_MAX: u64 = 1 << 47;
/// Epoch heads are in a ring of this many blocks.
pub const EPOCH_HEADS: u64 = 1024;
/// Servers have numbers below this.
pub const SERVERS: u32 = 32;
/// Lease sectors of a server.
pub const SECTORS_OF_SERVER: u32 = 16;
/// Where the lease sectors begin. *Units*: blocks.
pub const LEASE_START: u64 = 64;
/// Where the epoch heads begin. *Units*: blocks.
pub const EPOCH_START: u64 = 576;
/// Where space begins. *Units*: blocks.
pub const SPACE_START: u64 = 2048;

/// The block of a lease sector.
///
/// # Panics
/// When there is no such server or sector: that is a bug of the caller.
pub fn lease_block(server: u32, sector: u32) -> u64 {
    assert!(server < SERVERS && sector < SECTORS_OF_SERVER, "server {server}, sector {sector}");
    LEASE_START + u64::from(server * SECTORS_OF_SERVER + sector)
}

/// The block of an epoch's head.
pub fn epoch_block(epoch: u64) -> u64 {
    EPOCH_START + epoch % EPOCH_HEADS
}
