//! The encoding of a volume on disk: `docs/formats/volume.md` in code.
//!
//! Owns: encoding and decoding of each structure, with its bounds. Promises: an encoded structure decodes to the same
//! structure; for any bytes, a decoder returns an error rather than panicking; every length is checked before it is
//! used. Leaves to others: the positions of structures, and the order of writing them.
//!
//! | file | what is in it |
//! |---|---|
//! | `error`, `cursor` | the errors of decoding; reading and writing fields |
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
mod lease_sector;
mod record;
mod run;
mod table;
#[cfg(test)]
mod tests;
mod value;

pub use epoch::{EpochHead, SegmentHeader, SegmentUse};
pub use error::{FormatError, FormatProblem};
pub use frame::{FrameKind, FramePosition, VerifiedFrame, VolumeIdentity};
pub use inode::{HAS_XATTRS, INLINE_BYTES_MAX, Inode, LOST_TO_OTHERS, TARGET_BYTES_MAX};
pub use journal::{JournalAppend, Mutation, MutationAction, Transaction, TransactionKind};
pub use label::VolumeLabel;
pub use lease_sector::{LeaseSector, LeaseState};
pub use record::{EpochRecord, EpochState, OrphanRecord, OrphanState, ProjectRecord, RunRecord, VolumeRecord};
pub use run::{ChunkPlace, RunChunk, RunIndex};
pub use table::{TableKey, TableKind, XATTR_HEAD_BYTES, XATTR_VALUE_BYTES_MAX};
pub use value::{
    ExtentRecord, ExtentState, GrantRecord, NAME_BYTES_MAX, NameRecord, ReplyRecord, SessionRecord, SessionState,
    SpaceRecord,
};

/// The unit of the disk. *Units*: bytes.
pub const BLOCK_BYTES: usize = 4096;
/// The version of the on-disk format.
pub const VERSION: u16 = 1;
/// The size of the largest disk. *Units*: blocks.
pub const BLOCKS_MAX: u64 = 1 << 47;
/// The number of blocks in the ring of epoch heads.
pub const EPOCH_HEADS: u64 = 1024;
/// Server numbers are below this.
pub const SERVERS: u32 = 32;
/// The number of lease sectors of a server.
pub const SECTORS_OF_SERVER: u32 = 16;
/// The first block of the lease sectors. *Units*: blocks.
pub const LEASE_START: u64 = 64;
/// The first block of the epoch heads. *Units*: blocks.
pub const EPOCH_START: u64 = 576;
/// The first block of the area for data and metadata segments. *Units*: blocks.
pub const SPACE_START: u64 = 2048;

/// Returns the block of a lease sector.
///
/// # Panics
/// When there is no such server or sector: that is a bug of the caller.
pub fn lease_block(server: u32, sector: u32) -> u64 {
    assert!(server < SERVERS && sector < SECTORS_OF_SERVER, "server {server}, sector {sector}");
    LEASE_START + u64::from(server * SECTORS_OF_SERVER + sector)
}

/// Returns the block of an epoch's head.
pub fn epoch_block(epoch: u64) -> u64 {
    EPOCH_START + epoch % EPOCH_HEADS
}
