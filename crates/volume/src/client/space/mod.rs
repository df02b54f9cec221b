//! Space that a client holds: blocks that the server granted, which only this client writes and which no file shows
//! yet.
//!
//! Owns: the set of granted blocks that are free, without I/O. Promises: a block is handed out only once. Leaves to
//! others: requesting more, and returning space.

mod pool;
mod reserved;

use std::collections::BTreeMap;

use crate::protocol::GrantedSpace;

pub(super) use pool::SpacePool;

/// The free blocks that a client holds.
#[derive(Debug, Default)]
pub(crate) struct FreeBlocks {
    /// Numbers of free blocks, by first block.
    free: BTreeMap<u64, u64>,
    blocks: u64,
}

impl FreeBlocks {
    /// Returns the number of free blocks.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Adds blocks.
    pub fn add(&mut self, granted: GrantedSpace) {
        let GrantedSpace { block: mut start, mut blocks } = granted;
        if blocks == 0 {
            return;
        }
        self.blocks += blocks;
        if let Some((&before, &of_before)) = self.free.range(..start).next_back()
            && before + of_before == start
        {
            self.free.remove(&before);
            (start, blocks) = (before, of_before + blocks);
        }
        if let Some(of_next) = self.free.remove(&(start + blocks)) {
            blocks += of_next;
        }
        self.free.insert(start, blocks);
    }

    /// Takes up to `blocks` blocks in one piece: the blocks that follow block `after` if they are free, otherwise from
    /// the smallest piece that is large enough, otherwise the largest piece. `None` if no block is free, or requested.
    pub fn take(&mut self, after: Option<u64>, blocks: u64) -> Option<GrantedSpace> {
        if blocks == 0 {
            return None;
        }
        let next = after.map(|after| after + 1).filter(|next| self.free.contains_key(next));
        let fits = || self.free.iter().filter(|(_, free)| **free >= blocks).min_by_key(|(_, free)| **free);
        let largest = || self.free.iter().max_by_key(|(_, free)| **free);
        let start = next.or_else(|| fits().or_else(largest).map(|(&start, _)| start))?;
        let free = self.free.remove(&start)?;
        let taken = free.min(blocks);
        if free > taken {
            self.free.insert(start + taken, free - taken);
        }
        self.blocks -= taken;
        Some(GrantedSpace { block: start, blocks: taken })
    }

    /// Takes up to `blocks` blocks from the end of the last piece. `None` if no block is free.
    pub fn take_last(&mut self, blocks: u64) -> Option<GrantedSpace> {
        let (&start, &free) = self.free.last_key_value()?;
        let taken = free.min(blocks);
        match free - taken {
            0 => self.free.remove(&start),
            left => self.free.insert(start, left),
        };
        self.blocks -= taken;
        Some(GrantedSpace { block: start + free - taken, blocks: taken })
    }

    /// Takes all free blocks, to return them.
    pub fn drain(&mut self) -> Vec<GrantedSpace> {
        self.blocks = 0;
        std::mem::take(&mut self.free).into_iter().map(|(block, blocks)| GrantedSpace { block, blocks }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks are given in order, and next to the requested position where that is possible.
    #[test]
    fn free_blocks_granted_once() {
        let mut space = FreeBlocks::default();
        space.add(GrantedSpace { block: 100, blocks: 10 });
        space.add(GrantedSpace { block: 110, blocks: 10 });
        space.add(GrantedSpace { block: 500, blocks: 4 });
        assert_eq!(space.take(None, 3), Some(GrantedSpace { block: 500, blocks: 3 }));
        assert_eq!(space.take(Some(502), 8), Some(GrantedSpace { block: 503, blocks: 1 }));
        assert_eq!(space.take(Some(503), 8), Some(GrantedSpace { block: 100, blocks: 8 }));
        assert_eq!((space.take(Some(107), 100), space.blocks()), (Some(GrantedSpace { block: 108, blocks: 12 }), 0));
        assert_eq!(space.take(None, 1), None);
        space.add(GrantedSpace { block: 7, blocks: 2 });
        space.add(GrantedSpace { block: 9, blocks: 2 });
        space.add(GrantedSpace { block: 20, blocks: 5 });
        assert_eq!(space.take_last(3), Some(GrantedSpace { block: 22, blocks: 3 }));
        assert_eq!((space.take_last(9), space.blocks()), (Some(GrantedSpace { block: 20, blocks: 2 }), 4));
        assert_eq!(space.drain(), [GrantedSpace { block: 7, blocks: 4 }]);
    }
}
