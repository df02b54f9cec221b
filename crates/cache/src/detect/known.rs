//! A bounded table of block histories by block id, for callers that have no entries for blocks. When the table is full,
//! it forgets the least recently referenced block.
//!
//! Owns: a table of at most a given number of blocks. Leaves to others: detection. A policy that has an entry for each
//! block keeps the history there instead and saves the look-up.
//!
//! Cost: O(1) and one look-up per reference; 51 to 64 bytes per block.

use super::BlockHistory;
use crate::structures::arena::{Arena, ArenaQueue};
use crate::structures::growth;

/// Histories of the most recently referenced blocks.
#[derive(Debug)]
pub struct BlockHistories {
    blocks_max: usize,
    arena: Arena,
    queue: ArenaQueue,
    /// The histories, indexed by the block's slab index in the arena.
    histories: Vec<BlockHistory>,
}

impl BlockHistories {
    /// An empty table of at most `blocks_max` blocks (at least one).
    pub fn new(blocks_max: usize) -> BlockHistories {
        BlockHistories {
            blocks_max: blocks_max.max(1),
            arena: Arena::new(),
            queue: ArenaQueue::new(0),
            histories: Vec::new(),
        }
    }

    /// Makes `id` the most recent block. *Returns* its history; a default history if the block was not known.
    pub fn refer(&mut self, id: u64) -> &mut BlockHistory {
        let index = match self.arena.find(id) {
            Some(index) => {
                self.arena.refresh(&mut self.queue, index);
                index as usize
            }
            None => self.insert(id),
        };
        &mut self.histories[index]
    }

    /// Forgets `id`.
    pub fn forget(&mut self, id: u64) {
        if let Some(index) = self.arena.find(id) {
            self.arena.remove(&mut self.queue, index);
        }
    }

    /// The number of known blocks.
    pub fn len(&self) -> usize {
        self.queue.count
    }

    /// Whether no block is known.
    pub fn is_empty(&self) -> bool {
        self.queue.count == 0
    }

    fn insert(&mut self, id: u64) -> usize {
        if self.queue.count >= self.blocks_max
            && let Some(oldest) = self.queue.oldest()
        {
            self.arena.remove(&mut self.queue, oldest);
        }
        self.arena.insert(&mut self.queue, id, 1);
        // The arena's limit exceeds the size of every table that fits in memory, so the entry always exists. Without an
        // entry, the block would share the first history.
        let index = self.arena.find(id).map_or(0, |index| index as usize);
        if index >= self.histories.len() {
            growth::push(&mut self.histories, BlockHistory::default());
        }
        self.histories[index] = BlockHistory::default();
        index
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recent_is_forgotten_first() {
        let mut known = BlockHistories::new(2);
        for id in [1, 2, 1, 3] {
            known.refer(id).frequency += 1;
        }
        assert_eq!(known.len(), 2);
        assert_eq!(known.refer(1).frequency(), 2);
        assert_eq!(known.refer(2).frequency(), 0);
    }

    #[test]
    fn a_forgotten_block_starts_anew() {
        let mut known = BlockHistories::new(2);
        known.refer(1).frequency = 5;
        known.forget(1);
        assert!(known.is_empty());
        assert_eq!(known.refer(1).frequency(), 0);
    }
}
