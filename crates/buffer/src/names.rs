//! How files, blocks and references are named.
//!
//! Owns: the id of a block, which is its file's number above its own: the policy, all tables and records of references
//! use it.

use nectary_block::Stream;

/// Bits of a block id that number the block in its file; the others number the file.
pub(crate) const BLOCK_BITS: u32 = 36;

/// The id of a block, for the policy and all tables.
pub(crate) fn id_of(file: u32, block: u64) -> u64 {
    u64::from(file) << BLOCK_BITS | block
}

/// The ids of the blocks that a range of a file touches, as far as a file can reach.
pub(crate) fn ids_of(file: u32, offset: u64, length: u64, block_bytes: u64) -> std::ops::Range<u64> {
    let last = (1 << BLOCK_BITS) - 1;
    let (first, end) =
        ((offset / block_bytes).min(last), offset.saturating_add(length).div_ceil(block_bytes).min(last));
    id_of(file, first)..id_of(file, first.max(if length == 0 { first } else { end }))
}

/// The block's number in its file.
pub(crate) fn block_of(id: u64) -> u64 {
    id & ((1 << BLOCK_BITS) - 1)
}

/// The file's number.
pub(crate) fn file_of(id: u64) -> u32 {
    (id >> BLOCK_BITS) as u32
}

/// A file in a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub(crate) u32);

/// A reference as the policy saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reference {
    /// The id of the block: the file's number above the block's.
    pub id: u64,
    /// Whose reference it was.
    pub stream: Stream,
    /// Whether a write named it.
    pub is_write: bool,
}
