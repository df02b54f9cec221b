//! The blocks of the purge log, read from both of its copies.
//!
//! Owns: reading, and the difference between a block that was not written and one that may have been written and cannot
//! be read. Promises: a part of a copy that cannot be read hides no other block. Leaves to others: what missing blocks
//! mean (`log`).

use nectary_block::{Buffer, SharedDevice, read};
use nectary_host::fleet::{AppliedMark, RulesRecord};
use zerocopy::FromBytes;

use crate::format::layout::SpanLayout;
use crate::format::{
    self, BLOCK_BYTES, COUNTER_MAX, FrameMagic, FramePlace, HEADER_BYTES, PURGE_RECORDS_PER_BLOCK, PURGE_TAIL_OFFSET,
    PurgeBlockBody, PurgeBlockTail, PurgeRecord,
};
use crate::names::key::PRIMARY_BYTES_MAX;
use crate::planted::{Bug, planted};
use crate::purge::records::{EFFECT_HARD, EFFECT_SOFT, RULE_ALL, RULE_KEY, RULE_PREFIX, RULE_TAG};

/// The size of a read of the log, in bytes.
const CHUNK_BYTES: u64 = 256 << 10;
/// The offset of the records in a block, in bytes.
pub const RECORDS_OFFSET: usize = HEADER_BYTES + size_of::<PurgeBlockBody>();

/// The position of a span in the order of its store's purges. Purges are numbered, and go to every span in the same
/// order. In a store of one span, both numbers are 0. The mark is about the purges of a fleet, if there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PurgeOrder {
    /// The number of the last purge that is in the log.
    pub number: u64,
    /// The highest purge number that is known to be durable on every present span.
    pub held: u64,
    /// What the store has applied of its fleet's purges: all of these purges are in the log, or need no record.
    pub mark: AppliedMark,
}

impl PurgeOrder {
    /// Returns the larger value of each number, and the mark of the later order that has one. `other` is the later one if
    /// the numbers are equal.
    pub fn max(self, other: PurgeOrder) -> PurgeOrder {
        let (earlier, later) = if other.number >= self.number { (self, other) } else { (other, self) };
        let mark = if later.mark == AppliedMark::NONE { earlier.mark } else { later.mark };
        PurgeOrder { number: later.number, held: self.held.max(other.held), mark }
    }
}

/// An intact block.
pub struct PurgeLogBlock {
    /// The number of copies in which it is intact.
    pub copies: u32,
    pub snapshot_blocks: u32,
    pub order: PurgeOrder,
    pub records: Vec<PurgeRecord>,
}

/// What both copies together have of a block of a cycle.
pub enum FoundBlock {
    Intact(PurgeLogBlock),
    /// It was not written, or it is damaged in both copies, as a crash leaves it.
    Missing,
    /// It may have been written: a copy cannot be read, and the other one does not say that it was not written.
    Unknown,
}

impl FoundBlock {
    /// The block, if it is intact.
    pub fn intact(&self) -> Option<&PurgeLogBlock> {
        match self {
            FoundBlock::Intact(block) => Some(block),
            FoundBlock::Missing | FoundBlock::Unknown => None,
        }
    }

    /// The block itself, if it is intact.
    pub fn into_intact(self) -> Option<PurgeLogBlock> {
        match self {
            FoundBlock::Intact(block) => Some(block),
            FoundBlock::Missing | FoundBlock::Unknown => None,
        }
    }
}

/// What one copy has at the place of a block.
enum BlockCopy {
    /// An intact block of this cycle.
    Written(u64),
    /// Zeroes, or a block of another store: this store wrote nothing here.
    Blank,
    Damaged,
    Unreadable,
}

/// The cycles that have blocks in the log.
pub struct LogSurvey {
    /// The highest cycle of any block; 0 if there is none.
    pub newest: u64,
    /// The cycles that the log may consist of, newest first.
    pub cycles: Vec<u64>,
    /// Whether a half may begin with the first block of a cycle that cannot be read.
    pub has_unknown_head: bool,
}

/// The start of a half of a copy, in bytes.
pub fn half_address(layout: &SpanLayout, copy: usize, half: u64) -> u64 {
    layout.purge_log_offset[copy] + half * (layout.purge_log_bytes / 2)
}

/// Finds the cycles in both halves.
pub async fn survey(device: &SharedDevice, layout: &SpanLayout) -> LogSurvey {
    let mut newest = 0;
    let mut heads: [Vec<BlockCopy>; 2] = Default::default();
    for start in layout.purge_log_offset {
        for offset in (0..layout.purge_log_bytes).step_by(CHUNK_BYTES as usize) {
            let length = CHUNK_BYTES.min(layout.purge_log_bytes - offset);
            let blocks = read_blocks(device, start + offset, length).await;
            for number in 0..length / BLOCK_BYTES {
                let copy = copy_of(blocks.get(number), layout);
                if let BlockCopy::Written(cycle) = copy {
                    newest = newest.max(cycle);
                }
                let at = offset + number * BLOCK_BYTES;
                if at.is_multiple_of(layout.purge_log_bytes / 2) {
                    heads[(at / (layout.purge_log_bytes / 2)) as usize % 2].push(copy);
                }
            }
        }
    }
    let begins = |half: usize| {
        let cycles = heads[half]
            .iter()
            .filter_map(|copy| if let BlockCopy::Written(cycle) = copy { Some(*cycle) } else { None });
        cycles.filter(move |cycle| cycle % 2 == half as u64)
    };
    let mut cycles: Vec<u64> = begins(0).chain(begins(1)).collect();
    let is_unknown = |half: usize| begins(half).next().is_none() && is_unknown(&heads[half]);
    let has_unknown_head = (0..2).any(is_unknown);
    // If both copies of the first block of the newest cycle are lost, later blocks still name the cycle.
    cycles.extend(Some(newest).filter(|&newest| newest > 0));
    cycles.sort_unstable_by(|a, b| b.cmp(a));
    cycles.dedup();
    LogSurvey { newest, cycles, has_unknown_head }
}

/// Whether a block may have been written of which no copy is intact.
fn is_unknown(copies: &[BlockCopy]) -> bool {
    copies.iter().any(|copy| matches!(copy, BlockCopy::Unreadable))
        && !planted(Bug::UnreadableIsBlank)
        && copies.iter().all(|copy| matches!(copy, BlockCopy::Unreadable | BlockCopy::Damaged))
}

fn copy_of(block: Option<&[u8]>, layout: &SpanLayout) -> BlockCopy {
    let Some(bytes) = block else { return BlockCopy::Unreadable };
    match format::open_unplaced(bytes, FrameMagic::Purge) {
        Ok(header) if header.identity.get() == layout.identity => BlockCopy::Written(header.epoch.get()),
        Ok(_) => BlockCopy::Blank,
        Err(_) if bytes.iter().all(|&byte| byte == 0) => BlockCopy::Blank,
        Err(_) => BlockCopy::Damaged,
    }
}

/// Reads all blocks of a cycle, each from a copy in which the block is intact.
pub async fn read_cycle(device: &SharedDevice, layout: &SpanLayout, cycle: u64) -> Vec<FoundBlock> {
    let half_bytes = layout.purge_log_bytes / 2;
    let mut blocks = Vec::new();
    let mut offset = 0;
    while offset < half_bytes {
        let length = CHUNK_BYTES.min(half_bytes - offset);
        let mut copies = Vec::new();
        for copy in 0..2 {
            let start = half_address(layout, copy, cycle % 2) + offset;
            copies.push((start, read_blocks(device, start, length).await));
        }
        let before = blocks.len();
        for at in 0..length / BLOCK_BYTES {
            let number = (offset / BLOCK_BYTES + at) as u32;
            let mut found: Option<PurgeLogBlock> = None;
            for (start, copy) in &copies {
                let place = FramePlace { identity: layout.identity, epoch: cycle, address: start + at * BLOCK_BYTES };
                match (copy.get(at).and_then(|bytes| decode_block(bytes, place, number)), &mut found) {
                    (Some(_), Some(block)) => block.copies += 1,
                    (Some(block), None) => found = Some(block),
                    (None, _) => {}
                }
            }
            let copies = || copies.iter().map(|(_, copy)| copy.get(at));
            blocks.push(match found {
                Some(block) => FoundBlock::Intact(block),
                None if copies().all(|bytes| bytes.is_some()) => FoundBlock::Missing,
                None if is_unknown(&copies().map(|bytes| copy_of(bytes, layout)).collect::<Vec<_>>()) => {
                    FoundBlock::Unknown
                }
                None => FoundBlock::Missing,
            });
        }
        offset += length;
        if blocks[before..].iter().all(|block| matches!(block, FoundBlock::Missing)) {
            break;
        }
    }
    blocks
}

/// Some blocks in a row, of which some may be unreadable.
enum BlockRun {
    /// All were read at once.
    All(Buffer),
    /// Each was read alone.
    Each(Vec<Option<Buffer>>),
}

impl BlockRun {
    fn get(&self, number: u64) -> Option<&[u8]> {
        match self {
            BlockRun::All(bytes) => bytes.get((number * BLOCK_BYTES) as usize..)?.get(..BLOCK_BYTES as usize),
            BlockRun::Each(blocks) => blocks.get(number as usize)?.as_deref(),
        }
    }
}

async fn read_blocks(device: &SharedDevice, start: u64, length: u64) -> BlockRun {
    if let Ok(bytes) = read(&**device, start, length as usize).await {
        return BlockRun::All(bytes);
    }
    let mut blocks = Vec::new();
    for address in (start..start + length).step_by(BLOCK_BYTES as usize) {
        blocks.push(read(&**device, address, BLOCK_BYTES as usize).await.ok());
    }
    BlockRun::Each(blocks)
}

fn decode_block(bytes: &[u8], place: FramePlace, number: u32) -> Option<PurgeLogBlock> {
    format::open(bytes, FrameMagic::Purge, place).ok()?;
    let body: PurgeBlockBody = format::body(bytes).ok()?;
    let count = body.record_count.get() as usize;
    let (tail, _) = PurgeBlockTail::read_from_prefix(bytes.get(PURGE_TAIL_OFFSET..)?).ok()?;
    let rules = RulesRecord { current: tail.fleet_rules.get(), missed: tail.fleet_missed.get() };
    let mark = AppliedMark { fleet: tail.fleet_identity.get(), revision: tail.fleet_revision.get(), rules };
    let order = PurgeOrder { number: tail.purge_number.get(), held: tail.purge_held.get(), mark };
    if body.number.get() != number || count > PURGE_RECORDS_PER_BLOCK || order.held.max(order.number) > COUNTER_MAX {
        return None;
    }
    let records = bytes[RECORDS_OFFSET..].chunks_exact(size_of::<PurgeRecord>()).take(count);
    let records = records.map(PurgeRecord::read_from_bytes).collect::<Result<Vec<_>, _>>().ok()?;
    let known = |record: &PurgeRecord| {
        let counted = record.generation.get() <= COUNTER_MAX && record.position.get() <= COUNTER_MAX;
        let bounded = (1..=PRIMARY_BYTES_MAX).contains(&usize::from(record.prefix_bytes.get()));
        let known = match record.rule {
            RULE_KEY | RULE_ALL => true,
            RULE_TAG => record.primary_hash.get() >> 64 == 0,
            RULE_PREFIX => bounded,
            _ => false,
        };
        let is_effect = matches!(record.effect, EFFECT_HARD | EFFECT_SOFT);
        counted && known && is_effect
    };
    if !records.iter().all(known) {
        return None;
    }
    Some(PurgeLogBlock { copies: 1, snapshot_blocks: body.snapshot_blocks.get(), order, records })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_marks_replace_earlier_ones() {
        let mark = |fleet, revision| AppliedMark { fleet, revision, ..AppliedMark::NONE };
        let order = |number, mark| PurgeOrder { number, held: 0, mark };
        let of = |one, other| PurgeOrder::max(one, other).mark;
        assert_eq!(of(order(0, mark(1, 9)), order(0, mark(2, 3))), mark(2, 3), "of another fleet, later in the log");
        assert_eq!(of(order(0, mark(1, 9)), order(0, AppliedMark::NONE)), mark(1, 9), "of an earlier program");
        assert_eq!(of(order(5, mark(1, 9)), order(4, mark(1, 8))), mark(1, 9), "of a span that is behind");
        assert_eq!(of(order(5, AppliedMark::NONE), order(4, mark(1, 8))), mark(1, 8));
    }
}
