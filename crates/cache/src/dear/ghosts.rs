//! Which evicted blocks are remembered: those of the last so many evictions.
//!
//! Owns: the row of evictions, oldest first. Promises: a block whose eviction is in the row is remembered until it comes
//! back; an eviction that is not in the row keeps no block. Leaves to others: the blocks, and unlinking those forgotten.
//!
//! A row and not a chain, as a ghost that comes back then costs nothing here: its eviction stays in the row, where it is
//! known as outdated by its number. The row is shortened in batches, whose blocks are asked for together before they are
//! looked at.

use std::collections::VecDeque;

use super::blocks::{Blocks, State};

/// The most evictions that are left out together.
const BATCH_MAX: usize = 64;
/// A batch is the number of evictions to be remembered divided by this.
const BATCH_DIVISOR: usize = 16;

/// An eviction: the block's id, and the eviction's number.
type Eviction = (u64, u32);

/// The row of evictions.
#[derive(Debug)]
pub(super) struct Ghosts {
    row: VecDeque<Eviction>,
    /// The number of the last eviction.
    number: u32,
    count: usize,
    /// Evictions at the front of the row that are to be left out, of one batch.
    outdated: usize,
}

impl Ghosts {
    /// No evictions.
    pub(super) fn new() -> Ghosts {
        Ghosts { row: VecDeque::new(), number: 0, count: 0, outdated: 0 }
    }

    /// How many blocks are remembered.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Makes a block a ghost.
    pub(super) fn add(&mut self, blocks: &mut Blocks, at: usize) {
        self.number = self.number.wrapping_add(1);
        let block = blocks.get_mut(at);
        block.set_ghost(self.number);
        self.row.push_back((block.id, self.number));
        self.count += 1;
    }

    /// Makes a ghost an absent block.
    pub(super) fn recall(&mut self, blocks: &mut Blocks, at: usize) {
        blocks.get_mut(at).set_state(State::Absent);
        self.count -= 1;
    }

    /// A block to be forgotten, no ghost any more, where the row is a batch longer than `evictions`; to be asked until
    /// there is none.
    pub(super) fn outdated(&mut self, blocks: &mut Blocks, evictions: usize) -> Option<usize> {
        let batch = (evictions / BATCH_DIVISOR).clamp(1, BATCH_MAX);
        loop {
            if self.outdated == 0 {
                if self.row.len() < evictions + batch {
                    return None;
                }
                self.outdated = batch;
            }
            self.outdated -= 1;
            let (id, number) = self.row.pop_front()?;
            if self.outdated == 0 {
                // The next batch is on its way while other things are done.
                self.row.iter().take(batch).for_each(|(id, _)| blocks.prepare(*id));
            }
            let ghost = blocks.find(id).filter(|&at| {
                let block = blocks.get(at);
                block.state() == State::Ghost && block.eviction() == number
            });
            if let Some(at) = ghost {
                self.recall(blocks, at);
                return Some(at);
            }
        }
    }
}
