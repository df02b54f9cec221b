//! A block in memory, and a reader's reference to it.
//!
//! Owns: the bytes of one version of a block, and the frame of the budget that they take. A version does not change
//! while a reader holds it; a write then makes a new version. Leaves to others: the choice of the newest version
//! (`state`).

use std::ops::{Deref, Range};
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::OwnedSemaphorePermit;

/// The memory of a frame besides its bytes: the frame and its counters, and what the allocator adds to each of the two
/// allocations. *Units*: bytes.
pub(crate) const FRAME_BYTES: u64 =
    (size_of::<BlockFrame>() + 2 * size_of::<usize>()).next_multiple_of(16) as u64 + 2 * 16;

/// One version of a block.
pub(crate) struct BlockFrame {
    pub bytes: Box<[u8]>,
    /// The frame of the budget that this version takes; `None` for a copy that a write makes of a block in memory.
    _place: Option<OwnedSemaphorePermit>,
}

impl BlockFrame {
    /// A block that begins with `bytes`, padded with zeroes.
    pub fn new(bytes: &[u8], block_bytes: usize, place: Option<OwnedSemaphorePermit>) -> BlockFrame {
        let mut copy = Vec::with_capacity(block_bytes);
        copy.extend_from_slice(bytes);
        copy.resize(block_bytes, 0);
        BlockFrame { bytes: copy.into_boxed_slice(), _place: place }
    }
}

/// A part of a block. Its bytes stay unchanged while this value exists, whatever happens to the block.
///
/// A pinned part takes memory of the cache's budget, so hold it only while you use it, and do not wait for the cache
/// while you hold it. *Cost*: no copy.
#[derive(Clone)]
pub struct PinnedBytes {
    frame: Arc<BlockFrame>,
    range: Range<usize>,
}

impl PinnedBytes {
    pub(crate) fn new(frame: Arc<BlockFrame>, range: Range<usize>) -> PinnedBytes {
        PinnedBytes { frame, range }
    }

    /// Converts the part to shared bytes. *Cost*: one small allocation, no copy.
    pub fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl Deref for PinnedBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.frame.bytes[self.range.clone()]
    }
}

impl AsRef<[u8]> for PinnedBytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl std::fmt::Debug for PinnedBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pinned({} bytes)", self.len())
    }
}
