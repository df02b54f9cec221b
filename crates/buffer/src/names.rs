//! The ids of files and blocks, and the record of a reference.
//!
//! Owns: the id of a block, which has the file's number in the upper bits and the block's number in the lower bits. The
//! policy, all tables and all records of references use this id.

use nectary_block::AccessStream;

/// The number of low bits of a block id that hold the block's number in its file; the other bits hold the file's
/// number.
pub(crate) const BLOCK_BITS: u32 = 36;

/// The id of a block, for the policy and all tables.
pub(crate) fn id_of(file: u32, block: u64) -> u64 {
    u64::from(file) << BLOCK_BITS | block
}

/// The ids of the blocks that a range of a file touches, limited to the largest block number.
pub(crate) fn ids_of(file: u32, offset: u64, length: u64, block_bytes: u64) -> std::ops::Range<u64> {
    let last = (1 << BLOCK_BITS) - 1;
    let (first, end) =
        ((offset / block_bytes).min(last), offset.saturating_add(length).div_ceil(block_bytes).min(last));
    id_of(file, first)..id_of(file, first.max(if length == 0 { first } else { end }))
}

/// The number of the block in its file.
pub(crate) fn block_of(id: u64) -> u64 {
    id & ((1 << BLOCK_BITS) - 1)
}

/// The number of the block's file.
pub(crate) fn file_of(id: u64) -> u32 {
    (id >> BLOCK_BITS) as u32
}

/// The number that identifies a file in a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub(crate) u32);

/// A reference, as the policy saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockReference {
    /// The id of the block, with the file's number in the upper bits and the block's number in the lower bits.
    pub id: u64,
    /// The origin of the reference.
    pub stream: AccessStream,
    /// Whether a write made the reference.
    pub is_write: bool,
}
