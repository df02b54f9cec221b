//! Readahead: the next blocks of a sequential stream are read in advance, and wait outside of the policy.
//!
//! Owns: the decisions whether a stream is sequential and how far it is read ahead, and the bound on waiting blocks.
//! Promises: the policy does not see a block before it is referenced, so it decides as in a simulation; a stream never
//! waits for readahead to start; waiting blocks are bounded by the buffer's own budget, even with thousands of streams.
//! Leaves to others: reading (`read`).

use std::ops::Range;

use nectary_block::AccessStream;

use crate::names::id_of;
use crate::state::CacheState;

/// The number of consecutive blocks after which a stream is sequential.
const RUN_MIN: u32 = 4;
/// A waiting block may be dropped once `STALE_AFTER` times the maximum number of waiting blocks have been read ahead
/// after it.
const STALE_AFTER: u64 = 4;

impl CacheState {
    /// Records that a stream read some blocks of a file of `blocks` blocks; returns the ids of the blocks to read ahead
    /// now.
    pub fn read_ahead(&mut self, file: u32, read: Range<u64>, stream: AccessStream, blocks: u64) -> Range<u64> {
        let window = self.budget.ahead;
        let run = self.streams.run(stream);
        let (start, end) = (id_of(file, read.start), id_of(file, read.end));
        if start == run.next {
            run.length = run.length.saturating_add((end - start) as u32);
        } else if end != run.next {
            // A second read of the last block does not end the sequence.
            (run.length, run.ahead) = ((end - start) as u32, 0);
        }
        run.next = end;
        if window == 0 || run.length < RUN_MIN {
            return 0..0;
        }
        let has = run.ahead.max(end);
        if has - end > window / 2 {
            return 0..0;
        }
        let last = id_of(file, blocks);
        let until = (end + window).min(last);
        if has >= until {
            return 0..0;
        }
        run.ahead = until;
        has..until
    }

    /// Reserves a place for a block that will be read ahead, and returns its number; `None` if too many blocks wait.
    pub fn ahead_place(&mut self) -> Option<u64> {
        let most = self.budget.ahead_max;
        while self.ahead.waiting >= most {
            let &(number, id) = self.ahead.order.front()?;
            let is_there = self.entries.get(&id).is_some_and(|entry| entry.ahead == Some(number));
            if is_there && number + STALE_AFTER * most > self.ahead.number {
                return None;
            }
            self.ahead.order.pop_front();
            if is_there && let Some(entry) = self.entries.get_mut(&id) {
                entry.ahead = None;
                self.ahead.waiting -= 1;
                self.settle(id);
            }
        }
        self.ahead.number += 1;
        self.ahead.waiting += 1;
        Some(self.ahead.number)
    }

    /// Drops the oldest waiting blocks above the bound, after the bound was lowered.
    pub fn trim_ahead(&mut self) {
        while self.ahead.waiting > self.budget.ahead_max {
            let Some((number, id)) = self.ahead.order.pop_front() else { return };
            if let Some(entry) = self.entries.get_mut(&id).filter(|entry| entry.ahead == Some(number)) {
                entry.ahead = None;
                self.ahead.waiting -= 1;
                self.settle(id);
            }
        }
    }

    /// Records that the place `number`, which `ahead_place` returned, is used for the block `id`.
    pub fn ahead_taken(&mut self, number: u64, id: u64) {
        self.ahead.order.push_back((number, id));
        let most = 4 * self.budget.ahead_max as usize + 1024;
        if self.ahead.order.len() > most {
            let entries = &self.entries;
            self.ahead.order.retain(|(number, id)| entries.get(id).is_some_and(|entry| entry.ahead == Some(*number)));
        }
    }
}
