//! The ghosts: the blocks of the last evictions.
//!
//! Owns: the queue of evictions, oldest first, and a bit per eviction that tells whether its block is still
//! remembered. Promises: a block is remembered until its eviction leaves the queue or the block is referenced again.
//! Leaves to others: the blocks, and removing forgotten blocks from their orders.
//!
//! This is cheaper than a linked list of ghosts: when a ghost is referenced again, only the bit of its eviction is
//! cleared. The eviction stays in the queue, and is skipped later without reading the block. The record of a block to
//! be forgotten is prefetched some evictions ahead.

use std::collections::VecDeque;

use super::blocks::{DearBlockState, DearBlocks};
use crate::structures::growth;

/// The record of a block is prefetched this many evictions before the block is forgotten.
const AHEAD: usize = 16;
/// The smallest number of words in `keeping` once there are evictions.
const WORDS_MIN: usize = 1;

/// The queue of evictions.
#[derive(Debug)]
pub(super) struct GhostQueue {
    /// The block of each eviction, oldest first.
    row: VecDeque<u64>,
    /// One bit per eviction in the queue, found by the number of the eviction. The bit is set while the evicted block
    /// is still a ghost. The number of words is a power of two, or 0.
    keeping: Vec<u64>,
    /// The number of the last eviction.
    number: u32,
    count: usize,
}

impl GhostQueue {
    /// An empty queue.
    pub(super) fn new() -> GhostQueue {
        GhostQueue { row: VecDeque::new(), keeping: Vec::new(), number: 0, count: 0 }
    }

    /// The memory of a queue of `evictions` evictions. *Units*: bytes.
    pub(super) fn bytes_of(evictions: usize) -> u64 {
        let row = growth::reached(evictions, 1, 1) * size_of::<u64>();
        (row + evictions.div_ceil(64).next_power_of_two() * size_of::<u64>()) as u64
    }

    /// The number of remembered blocks.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Makes a block a ghost.
    pub(super) fn add(&mut self, blocks: &mut DearBlocks, at: usize) {
        if self.row.len() == self.keeping.len() * 64 {
            self.grow();
        }
        self.number = self.number.wrapping_add(1);
        let block = blocks.get_mut(at);
        block.set_ghost(self.number);
        if self.row.len() == self.row.capacity() {
            let count = self.row.len();
            self.row.reserve_exact(growth::next(count, 1) - count);
        }
        self.row.push_back(block.id);
        let (word, bit) = self.bit(self.number);
        self.keeping[word] |= bit;
        self.count += 1;
    }

    /// Turns a ghost into an absent block.
    pub(super) fn recall(&mut self, blocks: &mut DearBlocks, at: usize) {
        let block = blocks.get_mut(at);
        block.set_state(DearBlockState::Absent);
        let (word, bit) = self.bit(block.eviction());
        self.keeping[word] &= !bit;
        self.count -= 1;
    }

    /// If the queue is longer than `evictions`, removes the oldest ghost and returns it; the caller forgets the block,
    /// and calls this again until it returns `None`.
    pub(super) fn outdated(&mut self, blocks: &mut DearBlocks, evictions: usize) -> Option<usize> {
        while self.row.len() > evictions {
            let oldest = self.oldest();
            if let Some(&soon) = self.row.get(AHEAD)
                && self.is_keeping(oldest.wrapping_add(AHEAD as u32))
            {
                blocks.prepare_forgetting(soon);
            }
            let id = self.row.pop_front()?;
            if self.is_keeping(oldest)
                && let Some(at) = blocks.find(id)
            {
                self.recall(blocks, at);
                return Some(at);
            }
        }
        None
    }

    /// The number of the oldest eviction in the queue.
    fn oldest(&self) -> u32 {
        self.number.wrapping_add(1).wrapping_sub(self.row.len() as u32)
    }

    #[inline]
    fn is_keeping(&self, number: u32) -> bool {
        let (word, bit) = self.bit(number);
        self.keeping[word] & bit != 0
    }

    /// The position of an eviction's bit: the word, and the bit in it.
    #[inline]
    fn bit(&self, number: u32) -> (usize, u64) {
        let last = self.keeping.len() - 1;
        ((number as usize / 64) & last, 1 << (number % 64))
    }

    /// Makes room for the bits of twice as many evictions.
    #[cold]
    fn grow(&mut self) {
        let words = (self.keeping.len() * 2).max(WORDS_MIN);
        let kept = std::mem::replace(self, GhostQueue { keeping: vec![0; words], ..GhostQueue::new() });
        (self.number, self.count) = (kept.number, kept.count);
        for step in 0..kept.row.len() as u32 {
            let number = kept.oldest().wrapping_add(step);
            if kept.is_keeping(number) {
                let (word, bit) = self.bit(number);
                self.keeping[word] |= bit;
            }
        }
        self.row = kept.row;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Evicts `ids` in order, and remembers at most `evictions` evictions. *Returns* the forgotten ids.
    fn evict(
        ghosts: &mut GhostQueue,
        blocks: &mut DearBlocks,
        ids: impl Iterator<Item = u64>,
        evictions: usize,
    ) -> Vec<u64> {
        let mut forgotten = Vec::new();
        for id in ids {
            let at = blocks.find(id).or_else(|| blocks.insert(id, 0)).expect("room");
            ghosts.add(blocks, at);
            while let Some(old) = ghosts.outdated(blocks, evictions) {
                forgotten.push(blocks.get(old).id);
                blocks.forget(old);
            }
        }
        forgotten
    }

    /// Ghosts are forgotten in the order of their evictions, except those that came back.
    #[test]
    fn ghosts_leave_in_eviction_order() {
        for first in [0, u32::MAX - 500] {
            let (mut ghosts, mut blocks) = (GhostQueue { number: first, ..GhostQueue::new() }, DearBlocks::new());
            assert_eq!(evict(&mut ghosts, &mut blocks, 0..1000, 1000), [], "the row is no longer");
            for id in (0..1000).filter(|id| id % 3 == 0) {
                let at = blocks.find(id).expect("a ghost");
                ghosts.recall(&mut blocks, at);
            }
            assert_eq!(ghosts.count(), 666);
            // Recalled blocks are evicted again, and remembered by their new eviction.
            let again = (0..1000).filter(|id| id % 3 == 0);
            let mut forgotten = evict(&mut ghosts, &mut blocks, again, 1000);
            forgotten.extend(evict(&mut ghosts, &mut blocks, 1000..2000, 1000));
            let expected = (0..1000).filter(|id| id % 3 != 0).chain((0..1000).filter(|id| id % 3 == 0));
            let expected: Vec<u64> = expected.take(forgotten.len()).collect();
            assert_eq!(forgotten, expected);
            assert_eq!((ghosts.count(), blocks.count()), (1000, 1000));
        }
    }
}
