//! Blocks that were not sent yet, and the open group that they go to.
//!
//! Owns: the order of these blocks and how far the open group is filled and covered. Leaves to others: choosing the
//! cache, and sending.

use std::collections::VecDeque;

/// A group that takes more members.
#[derive(Debug)]
pub(super) struct Open {
    pub row: u32,
    /// Members that were sent.
    pub filled: u8,
    /// Members that stored parity covers.
    pub covered: u8,
    /// Which of the two spare slots takes the next parity: 0 or 1.
    pub turn: u8,
    /// Older copies of its members, at most one for each: they die when parity covers the group.
    pub superseded: Vec<u32>,
}

impl Open {
    pub fn new(row: u32) -> Open {
        Open { row, filled: 0, covered: 0, turn: 0, superseded: Vec::new() }
    }
}

/// A cache of blocks in the client's memory.
#[derive(Debug, Default)]
pub(super) struct Cache {
    /// Blocks that were not sent, oldest first.
    pub unsent: VecDeque<u32>,
    pub open: Option<Open>,
}

impl Cache {
    /// How many more blocks the open group takes; without an open group, how many a new one of `members` takes.
    pub fn room(&self, members: u8) -> usize {
        usize::from(members - self.open.as_ref().map_or(0, |open| open.filled))
    }

    /// Removes a block. *Cost*: searches the cache.
    pub fn remove(&mut self, block: u32) {
        if let Some(index) = self.unsent.iter().position(|&unsent| unsent == block) {
            self.unsent.remove(index);
        }
    }
}

/// A block in a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Waiting {
    /// The number of the cache.
    pub cache: usize,
    /// It was fetched to empty its group and not written since: its old copy has the same data.
    pub is_copy: bool,
}
