//! The possible contents of each block.
//!
//! Each change has a number, from which the contents of its blocks are computed. Owns: for each block the number of the
//! last acknowledged change, and the numbers of changes that are in progress or failed. Promises: a number stays
//! possible until a later change is acknowledged.

use std::collections::BTreeMap;
use std::ops::Range;

/// The size of a block, in bytes.
pub const BLOCK_BYTES: usize = 16;
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns the contents that a change with this number gives a block; number 0 stands for zeroes.
pub fn contents(number: u64, block: u64) -> [u8; BLOCK_BYTES] {
    let mut bytes = [0; BLOCK_BYTES];
    if number != 0 {
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        bytes[8..].copy_from_slice(&(number.wrapping_mul(MIX) ^ (block + 1)).to_le_bytes());
    }
    bytes
}

/// Returns the number of the change that gives a block these contents; `None` if no change does.
pub fn number_of(bytes: &[u8], block: u64) -> Option<u64> {
    let number = u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?);
    (contents(number, block)[..] == *bytes).then_some(number)
}

/// A change that was not acknowledged.
#[derive(Debug, Clone, Copy)]
struct UnacknowledgedChange {
    number: u64,
    /// The number of the client, then the position of the change in the history. Changes of a later client count as
    /// later.
    order: (usize, usize),
}

/// One block.
#[derive(Debug, Clone, Default)]
struct ChangedBlock {
    acknowledged: u64,
    order: (usize, usize),
    was_written: bool,
    pending: Vec<UnacknowledgedChange>,
}

/// Every block of the device.
#[derive(Debug)]
pub struct ChangedBlocks {
    blocks: Vec<ChangedBlock>,
    /// Changes in progress, by their position in the history.
    under_way: BTreeMap<usize, (Range<u64>, UnacknowledgedChange)>,
}

impl ChangedBlocks {
    /// A device of zeroes.
    pub fn new(count: u64) -> ChangedBlocks {
        ChangedBlocks { blocks: vec![ChangedBlock::default(); count as usize], under_way: BTreeMap::new() }
    }

    /// Notes that a change of a client begins.
    pub fn begin(&mut self, client: usize, place: usize, blocks: Range<u64>, number: u64) {
        let pending = UnacknowledgedChange { number, order: (client, place) };
        for block in blocks.clone() {
            self.blocks[block as usize].pending.push(pending);
        }
        self.under_way.insert(place, (blocks, pending));
    }

    /// Notes that a change is acknowledged: it replaces the changes that began earlier.
    pub fn acknowledge(&mut self, place: usize) -> Range<u64> {
        let Some((blocks, pending)) = self.under_way.remove(&place) else { return 0..0 };
        for block in blocks.clone() {
            let block = &mut self.blocks[block as usize];
            block.pending.retain(|other| other.order > pending.order);
            // The answer to an earlier client may arrive after a later client has overwritten the block.
            if pending.order >= block.order {
                (block.acknowledged, block.order) = (pending.number, pending.order);
                block.was_written |= pending.number != 0;
            }
        }
        blocks
    }

    /// Whether the last change of some block wrote zeroes over other bytes.
    pub fn has_trimmed(&self) -> bool {
        self.blocks.iter().any(|block| block.was_written && block.acknowledged == 0)
    }

    /// Whether a change of the block that was not acknowledged may still happen.
    pub fn is_pending(&self, block: u64) -> bool {
        !self.blocks[block as usize].pending.is_empty()
    }

    /// Whether a block may have these contents.
    pub fn may_be(&self, block: u64, bytes: &[u8]) -> bool {
        let entry = &self.blocks[block as usize];
        number_of(bytes, block).is_some_and(|number| {
            number == entry.acknowledged || entry.pending.iter().any(|pending| pending.number == number)
        })
    }

    /// Describes the possible numbers of a block.
    pub fn expected(&self, block: u64) -> String {
        let entry = &self.blocks[block as usize];
        let pending: Vec<u64> = entry.pending.iter().map(|pending| pending.number).collect();
        format!("{} or one of {pending:?}", entry.acknowledged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Later changes stay possible.
    #[test]
    fn acknowledged_change_replaces_earlier_ones() {
        let mut blocks = ChangedBlocks::new(2);
        blocks.begin(0, 1, 0..2, 11);
        blocks.begin(0, 2, 1..2, 12);
        assert!(blocks.may_be(0, &contents(0, 0)) && blocks.may_be(0, &contents(11, 0)));
        assert!(!blocks.may_be(1, &contents(11, 0)), "the right number in the wrong place");
        assert_eq!(blocks.acknowledge(1), 0..2);
        assert!(!blocks.may_be(1, &contents(0, 1)) && blocks.may_be(1, &contents(12, 1)));
        blocks.acknowledge(2);
        assert!(!blocks.may_be(1, &contents(11, 1)) && !blocks.is_pending(1));
        blocks.begin(0, 3, 0..1, 13);
        blocks.begin(1, 4, 0..1, 14);
        blocks.acknowledge(4);
        blocks.acknowledge(3);
        assert!(blocks.may_be(0, &contents(14, 0)) && !blocks.may_be(0, &contents(13, 0)), "the later client's stays");
    }
}
