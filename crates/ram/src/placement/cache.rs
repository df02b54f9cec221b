//! A cache of blocks that are not sent yet, and the open group that they go to.
//!
//! Owns: the order of these blocks, and how many members of the open group are sent and covered. Leaves to others:
//! choosing the cache, and sending.

use std::collections::VecDeque;

/// A group that accepts more members.
#[derive(Debug)]
pub(super) struct OpenGroup {
    pub row: u32,
    /// The number of members that were sent.
    pub filled: u8,
    /// The number of members that stored parity covers.
    pub covered: u8,
    /// The spare slot, 0 or 1, that takes the next parity.
    pub turn: u8,
    /// Slots with older copies of its members, at most one for each member; they are dead once parity covers the group.
    pub superseded: Vec<u32>,
}

impl OpenGroup {
    pub fn new(row: u32) -> OpenGroup {
        OpenGroup { row, filled: 0, covered: 0, turn: 0, superseded: Vec::new() }
    }
}

/// A cache of blocks in the client's memory.
#[derive(Debug, Default)]
pub(super) struct UnsentCache {
    /// Blocks that are not sent yet, the oldest first.
    pub unsent: VecDeque<u32>,
    pub open: Option<OpenGroup>,
}

impl UnsentCache {
    /// Returns how many more blocks the open group accepts; without an open group, how many a new group of `members`
    /// accepts.
    pub fn room(&self, members: u8) -> usize {
        usize::from(members - self.open.as_ref().map_or(0, |open| open.filled))
    }

    /// Removes a block. *Cost*: proportional to the length of the cache.
    pub fn remove(&mut self, block: u32) {
        if let Some(index) = self.unsent.iter().position(|&unsent| unsent == block) {
            self.unsent.remove(index);
        }
    }
}

/// A block that waits in a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UnsentBlock {
    /// The number of the cache.
    pub cache: usize,
    /// Whether the block was fetched to empty its group and not written since: then its old copy has the same data.
    pub is_copy: bool,
}
