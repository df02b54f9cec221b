//! Which evicted blocks are remembered: those of the last so many evictions.
//!
//! Owns: the row of evictions, oldest first. Promises: a block whose eviction is in the row is remembered until it comes
//! back; an eviction that is not in the row keeps no block. Leaves to others: the blocks, and unlinking those forgotten.
//!
//! A row and not a chain, as a ghost that comes back then costs nothing here: its eviction stays in the row, where it is
//! known as outdated by its number. The row is shortened in batches whose blocks are looked at together, so that the
//! processor waits for them together.

use std::collections::VecDeque;

use super::blocks::{ABSENT, Blocks, RESIDENT};

/// The most evictions that are looked at together.
const BATCH_MAX: usize = 64;
/// A batch is the number of evictions to be remembered divided by this.
const BATCH_DIVISOR: usize = 16;

/// An eviction: the slab index of the block, and the eviction's number.
type Eviction = (u32, u32);

/// The row of evictions.
#[derive(Debug)]
pub(super) struct Ghosts {
    row: VecDeque<Eviction>,
    /// The number of the last eviction.
    number: u32,
    count: usize,
    /// Blocks to be forgotten, of one batch.
    outdated: [u32; BATCH_MAX],
    outdated_count: usize,
}

impl Ghosts {
    /// No evictions.
    pub(super) fn new() -> Ghosts {
        Ghosts { row: VecDeque::new(), number: RESIDENT, count: 0, outdated: [0; BATCH_MAX], outdated_count: 0 }
    }

    /// How many blocks are remembered.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Makes a block a ghost.
    pub(super) fn add(&mut self, blocks: &mut Blocks, index: u32) {
        self.number = if self.number == ABSENT - 1 { RESIDENT + 1 } else { self.number + 1 };
        blocks.get_mut(index).evicted = self.number;
        self.row.push_back((index, self.number));
        self.count += 1;
    }

    /// Makes a ghost an absent block.
    pub(super) fn recall(&mut self, blocks: &mut Blocks, index: u32) {
        blocks.get_mut(index).evicted = ABSENT;
        self.count -= 1;
    }

    /// A block to be forgotten, no ghost any more, where the row is a batch longer than `evictions`; to be asked until
    /// there is none.
    pub(super) fn outdated(&mut self, blocks: &mut Blocks, evictions: usize) -> Option<u32> {
        let batch = (evictions / BATCH_DIVISOR).clamp(1, BATCH_MAX);
        while self.outdated_count == 0 && self.row.len() >= evictions + batch {
            for (index, number) in self.row.drain(..batch) {
                if blocks.get(index).evicted == number {
                    self.outdated[self.outdated_count] = index;
                    self.outdated_count += 1;
                }
            }
        }
        self.outdated_count = self.outdated_count.checked_sub(1)?;
        let index = self.outdated[self.outdated_count];
        self.recall(blocks, index);
        Some(index)
    }
}
