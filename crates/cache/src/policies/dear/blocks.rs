//! The blocks that DEAR knows: found by id, each with its history and its place in three orders.
//!
//! Owns: the table of blocks, and the positions that each block has in timelines of ids:
//!
//! | order | timelines | blocks in it | meaning of a block's position |
//! |---|---|---|---|
//! | `RECENCY` | one per application | resident blocks | last reference within the application |
//! | `RANK` | one per frequency and application | resident blocks and some ghosts | the application's LFU order |
//! | `PLACE` | one | resident blocks | which application must offer the next victim |
//!
//! Promises: the positions stored in a block are correct, also after a timeline closes its gaps. Leaves to others: the
//! choice of the timeline for a block.
//!
//! All state of a block is in its record in the table, half a cache line, so a hit waits for memory once. Records move
//! when others are inserted or removed, so a place in the table is valid only until a block is inserted or forgotten.
//!
//! Cost: 32 bytes per place of the table, and 4/3 to 8/3 places per block.

use crate::detect::BlockHistory;
use crate::structures::table::{RecordTable, TableRecord, hash};
use crate::structures::timeline::{IdTimeline, TimelineOwner};

/// The largest number of known blocks. It is low enough that no timeline reaches its own limit.
const BLOCKS_MAX: usize = 1 << 28;

/// The order of the last references within an application.
pub(super) const RECENCY: usize = 0;
/// The order, within one frequency of an application, in which blocks reached that frequency.
pub(super) const RANK: usize = 1;
/// The system's order of places, over all resident blocks.
pub(super) const PLACE: usize = 2;

/// The state of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DearBlockState {
    /// The place in the table is free.
    Vacant,
    /// The block is in the cache.
    Resident,
    /// The block is not in the cache, but it is remembered.
    Ghost,
    /// The block is neither resident nor a ghost, because it is being inserted or removed.
    Absent,
}

/// The record of one block.
#[derive(Debug, Clone, Copy)]
#[repr(align(32))]
pub(super) struct DearBlock {
    pub(super) id: u64,
    /// The last reference and the frequency in the owner's time.
    pub(super) history: BlockHistory,
    /// For a resident block, its position in the owner's recency; for a ghost, the number of its eviction.
    recency: u32,
    /// The block's position in the timeline of its rank.
    filing: u32,
    /// The block's position in the system's order.
    place: u32,
    /// The application that referenced the block last.
    pub(super) owner: u16,
    /// The low [`RANK_BITS`] bits are the rank: the frequency under which the block is filed in the owner's LFU order,
    /// or [`UNFILED`]. The block's true frequency may be higher. The bits above are the state.
    rank_and_state: u16,
}

const RANK_BITS: u32 = 14;
/// The rank of a block that is not in the LFU order.
pub(super) const UNFILED: u16 = (1 << RANK_BITS) - 1;

impl TableRecord for DearBlock {
    const VACANT: DearBlock = DearBlock {
        id: 0,
        history: BlockHistory::NONE,
        recency: 0,
        filing: 0,
        place: 0,
        owner: 0,
        rank_and_state: (DearBlockState::Vacant as u16) << RANK_BITS,
    };

    #[inline]
    fn is_vacant(&self) -> bool {
        self.state() == DearBlockState::Vacant
    }

    #[inline]
    fn hash(&self) -> u32 {
        hash(self.id)
    }
}

impl DearBlock {
    /// Whether the block is resident, a ghost or neither.
    #[inline]
    pub(super) fn state(&self) -> DearBlockState {
        match self.rank_and_state >> RANK_BITS {
            0 => DearBlockState::Vacant,
            1 => DearBlockState::Resident,
            2 => DearBlockState::Ghost,
            _ => DearBlockState::Absent,
        }
    }

    /// Sets whether the block is resident, a ghost or neither.
    #[inline]
    pub(super) fn set_state(&mut self, state: DearBlockState) {
        self.rank_and_state = self.rank() | (state as u16) << RANK_BITS;
    }

    /// The frequency under which the block is filed, or [`UNFILED`].
    #[inline]
    pub(super) fn rank(&self) -> u16 {
        self.rank_and_state & UNFILED
    }

    /// Sets the frequency under which the block is filed; `rank` is at most [`UNFILED`].
    #[inline]
    pub(super) fn set_rank(&mut self, rank: u16) {
        self.rank_and_state = self.rank_and_state & !UNFILED | rank;
    }

    /// The number of the block's eviction. Only a ghost has one.
    #[inline]
    pub(super) fn eviction(&self) -> u32 {
        self.recency
    }

    /// Makes the block a ghost; `eviction` is the number of its eviction.
    #[inline]
    pub(super) fn set_ghost(&mut self, eviction: u32) {
        self.set_state(DearBlockState::Ghost);
        self.recency = eviction;
    }

    #[inline]
    fn position<const ORDER: usize>(&mut self) -> &mut u32 {
        match ORDER {
            RECENCY => &mut self.recency,
            RANK => &mut self.filing,
            _ => &mut self.place,
        }
    }
}

/// All blocks.
#[derive(Debug)]
pub(super) struct DearBlocks {
    table: RecordTable<DearBlock>,
}

impl DearBlocks {
    /// An empty table; nothing is allocated before the first block.
    pub(super) fn new() -> DearBlocks {
        DearBlocks { table: RecordTable::new() }
    }

    /// The place of a block in the table.
    #[inline]
    pub(super) fn find(&self, id: u64) -> Option<usize> {
        self.table.find(hash(id), |block| block.id == id)
    }

    /// Prefetches the memory that a search for `id` needs.
    #[inline]
    pub(super) fn prepare(&self, id: u64) {
        self.table.prepare(hash(id));
    }

    /// Prefetches the memory that [`DearBlocks::forget`] needs for `id`.
    #[inline]
    pub(super) fn prepare_forgetting(&self, id: u64) {
        self.table.prepare_removal(hash(id));
    }

    /// The block at an occupied place.
    #[inline]
    pub(super) fn get(&self, at: usize) -> &DearBlock {
        self.table.get(at)
    }

    /// The block at an occupied place; the caller must not change its id.
    #[inline]
    pub(super) fn get_mut(&mut self, at: usize) -> &mut DearBlock {
        self.table.get_mut(at)
    }

    /// Adds `id`, which must not be present, as an absent block without a history, in no timeline. *Returns* its place;
    /// `None` if there are too many blocks.
    #[inline]
    pub(super) fn insert(&mut self, id: u64, owner: u16) -> Option<usize> {
        if self.table.count() >= BLOCKS_MAX {
            return None;
        }
        let mut block = DearBlock { id, owner, ..DearBlock::VACANT };
        block.set_state(DearBlockState::Absent);
        block.set_rank(UNFILED);
        Some(self.table.insert(block))
    }

    /// The memory of `count` blocks. *Units*: bytes.
    pub(super) fn bytes_of(count: usize) -> u64 {
        RecordTable::<DearBlock>::bytes_of(count)
    }

    /// Forgets a block, which must be in no timeline.
    #[inline]
    pub(super) fn forget(&mut self, at: usize) {
        self.table.remove(at);
    }

    /// The current place of the block `id`, which was at `at` when there were `count` blocks. Since then no block was
    /// inserted, but some may have been forgotten.
    #[inline]
    pub(super) fn find_again(&self, id: u64, at: usize, count: usize) -> Option<usize> {
        if self.table.count() == count { Some(at) } else { self.find(id) }
    }

    /// The number of known blocks.
    #[inline]
    pub(super) fn count(&self) -> usize {
        self.table.count()
    }

    /// Puts a block, which is in no timeline of this order, at the newest end of `timeline`.
    #[inline]
    pub(super) fn put_newest<const ORDER: usize>(&mut self, timeline: &mut IdTimeline, at: usize, weight: u64) {
        self.make_room::<ORDER>(timeline);
        let block = self.table.get_mut(at);
        *block.position::<ORDER>() = timeline.put_newest(block.id, weight);
    }

    /// Puts a block, which is in no timeline of this order, at the oldest end of `timeline`.
    pub(super) fn put_oldest<const ORDER: usize>(&mut self, timeline: &mut IdTimeline, at: usize, weight: u64) {
        self.make_room::<ORDER>(timeline);
        let block = self.table.get_mut(at);
        *block.position::<ORDER>() = timeline.put_oldest(block.id, weight);
    }

    /// Removes a block from its timeline. *Returns* the weight that it has there.
    #[inline]
    pub(super) fn take<const ORDER: usize>(&mut self, timeline: &mut IdTimeline, at: usize) -> u64 {
        timeline.take(*self.table.get_mut(at).position::<ORDER>())
    }

    /// Moves a block to the newest end of its timeline.
    #[inline]
    pub(super) fn refresh<const ORDER: usize>(&mut self, timeline: &mut IdTimeline, at: usize) {
        if !timeline.is_newest(*self.table.get_mut(at).position::<ORDER>()) {
            let weight = self.take::<ORDER>(timeline, at);
            self.put_newest::<ORDER>(timeline, at, weight);
        }
    }

    /// Moves `stays` to the position of `leaves`, and removes `leaves`; both are in `timeline`.
    pub(super) fn take_place<const ORDER: usize>(&mut self, timeline: &mut IdTimeline, stays: usize, leaves: usize) {
        let position = *self.table.get_mut(leaves).position::<ORDER>();
        self.take::<ORDER>(timeline, stays);
        let block = self.table.get_mut(stays);
        timeline.replace(position, block.id);
        *block.position::<ORDER>() = position;
    }

    #[inline]
    fn make_room<const ORDER: usize>(&mut self, timeline: &mut IdTimeline) {
        if timeline.is_full() {
            timeline.make_room(&mut OrderOwner::<ORDER>(self));
        }
    }
}

/// Implements [`TimelineOwner`] for the positions in one order.
struct OrderOwner<'a, const ORDER: usize>(&'a mut DearBlocks);

impl<const ORDER: usize> TimelineOwner for OrderOwner<'_, ORDER> {
    #[inline]
    fn moved(&mut self, id: u64, position: u32) {
        if let Some(at) = self.0.find(id) {
            *self.0.get_mut(at).position::<ORDER>() = position;
        }
    }

    #[inline]
    fn prepare(&self, id: u64) {
        self.0.prepare(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_block_reuses_freed_place() {
        for (stays, leaves, expected) in [(1, 3, [2, 1, 4]), (1, 4, [2, 3, 1]), (1, 2, [1, 3, 4]), (4, 1, [4, 2, 3])] {
            let (mut blocks, mut timeline) = (DearBlocks::new(), IdTimeline::default());
            for id in 1..=4 {
                let at = blocks.insert(id, 0).expect("room");
                blocks.put_newest::<PLACE>(&mut timeline, at, 1);
            }
            let (stays, leaves) = (blocks.find(stays).expect("there"), blocks.find(leaves).expect("there"));
            blocks.take_place::<PLACE>(&mut timeline, stays, leaves);
            assert_eq!(timeline.ids().collect::<Vec<u64>>(), expected);
            assert_eq!(timeline.count(), 3);
        }
    }

    #[test]
    fn a_block_is_half_a_line() {
        assert_eq!(size_of::<DearBlock>(), 32);
    }

    #[test]
    fn rank_and_state_are_independent() {
        let mut block = DearBlock::VACANT;
        for state in [DearBlockState::Resident, DearBlockState::Ghost, DearBlockState::Absent, DearBlockState::Vacant] {
            for rank in [0, 1023, UNFILED] {
                block.set_rank(rank);
                block.set_state(state);
                block.set_rank(rank);
                assert_eq!((block.rank(), block.state()), (rank, state));
            }
        }
    }

    #[test]
    fn positions_stay_right_after_compaction() {
        let (mut blocks, mut timeline) = (DearBlocks::new(), IdTimeline::default());
        for id in 0..1000 {
            let at = blocks.insert(id, 0).expect("room");
            blocks.put_newest::<RECENCY>(&mut timeline, at, id);
        }
        for step in 0..100_000_u64 {
            let at = blocks.find(step * step % 1000).expect("there");
            blocks.refresh::<RECENCY>(&mut timeline, at);
        }
        for id in 0..1000 {
            let at = blocks.find(id).expect("there");
            let position = blocks.get(at).recency;
            assert_eq!((timeline.weight_of(position), timeline.id(position)), (id, id));
        }
    }
}
