//! The ids that LIRS knows: found with one access to memory, each with its positions in the stack and in a second
//! order.
//!
//! Owns: a [`RecordTable`] of records, and the [`IdTimeline`]s of stack, queue and ghosts. Promises: the positions in a record
//! are correct, also after a timeline closes its gaps; moving an id touches only its record, the bits of its old
//! positions and the newest end of an order, and no other random memory. Leaves to others: the decision when an id
//! changes its state.
//!
//! | kind | in the stack | second order |
//! |---|---|---|
//! | LIR | yes | none |
//! | HIR | perhaps | queue |
//! | ghost | yes | ghosts |
//!
//! A place in the table is valid until an id is inserted or forgotten.
//!
//! Cost: 16 bytes per place of the table, 4/3 to 5/3 places per id, and the cost of a timeline per order.

use crate::structures::table::{RecordTable, TableRecord, hash};
use crate::structures::timeline::{IdTimeline, NOWHERE, TimelineOwner};

/// The largest number of ids. It keeps a timeline below 2^31 positions and below its own limit.
const IDS_MAX: usize = (1 << 28) - 1;
/// The bit of [`LirsRecord::second`] that is set if the id is a ghost.
const GHOST_BIT: u32 = 1 << 31;

/// The state of an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LirsState {
    /// The id is resident and has a low distance between its references.
    Lir,
    /// The id is resident and has a high or unknown distance between its references.
    Hir,
    /// The id is not resident, but it is remembered.
    Ghost,
}

/// The record of one id.
#[derive(Debug, Clone, Copy)]
struct LirsRecord {
    id: u64,
    /// The position of the id in the stack, or [`NOWHERE`].
    stack: u32,
    /// The position of the id in the queue, or its position among the ghosts with [`GHOST_BIT`], or [`NOWHERE`].
    second: u32,
}

impl LirsRecord {
    #[inline]
    fn kind(&self) -> LirsState {
        match self.second {
            NOWHERE => LirsState::Lir,
            second if second & GHOST_BIT == 0 => LirsState::Hir,
            _ => LirsState::Ghost,
        }
    }
}

impl TableRecord for LirsRecord {
    const VACANT: LirsRecord = LirsRecord { id: 0, stack: NOWHERE, second: NOWHERE };

    #[inline]
    fn is_vacant(&self) -> bool {
        self.stack == NOWHERE && self.second == NOWHERE
    }

    #[inline]
    fn hash(&self) -> u32 {
        hash(self.id)
    }
}

/// All ids.
#[derive(Debug, Clone)]
pub(super) struct LirsIds {
    table: RecordTable<LirsRecord>,
    /// The LIR ids, the ghosts and some HIR ids, by recency.
    stack: IdTimeline,
    /// The resident HIR ids; the oldest one is the next victim.
    queue: IdTimeline,
    /// The ghosts, by time of eviction.
    ghosts: IdTimeline,
}

impl LirsIds {
    /// An empty table; nothing is allocated before the first id.
    pub(super) fn new() -> LirsIds {
        LirsIds {
            table: RecordTable::new(),
            stack: IdTimeline::default(),
            queue: IdTimeline::default(),
            ghosts: IdTimeline::default(),
        }
    }

    /// The memory of `count` resident ids, of which `hir` are HIR, and `ghosts` ghosts. *Units*: bytes.
    pub(super) fn bytes_of(count: usize, hir: usize, ghosts: usize) -> u64 {
        let orders = [count + ghosts, hir, ghosts].map(|count| IdTimeline::bytes_of(count).0);
        RecordTable::<LirsRecord>::bytes_of(count + ghosts) + orders.iter().sum::<u64>()
    }

    /// The place of `id` in the table.
    #[inline]
    pub(super) fn find(&self, id: u64) -> Option<usize> {
        find(&self.table, id)
    }

    /// Prefetches the memory that a search for `id` needs.
    #[inline]
    pub(super) fn prepare(&self, id: u64) {
        self.table.prepare(hash(id));
    }

    /// The id at a place.
    #[inline]
    pub(super) fn id(&self, at: usize) -> u64 {
        self.table.get(at).id
    }

    /// The state of the id at a place.
    #[inline]
    pub(super) fn kind(&self, at: usize) -> LirsState {
        self.table.get(at).kind()
    }

    /// Whether the id at a place is in the stack.
    #[inline]
    pub(super) fn is_in_stack(&self, at: usize) -> bool {
        self.table.get(at).stack != NOWHERE
    }

    /// The weight of the id at a place.
    #[inline]
    pub(super) fn weight(&self, at: usize) -> u64 {
        let LirsRecord { stack, second, .. } = *self.table.get(at);
        if stack == NOWHERE { self.queue.weight_of(second) } else { self.stack.weight_of(stack) }
    }

    /// The weight of all ids of the queue.
    #[inline]
    pub(super) fn queue_weight(&self) -> u64 {
        self.queue.weight()
    }

    /// The number of ids in the queue.
    #[inline]
    pub(super) fn queue_count(&self) -> usize {
        self.queue.count()
    }

    /// The weight of all ghosts.
    #[inline]
    pub(super) fn ghosts_weight(&self) -> u64 {
        self.ghosts.weight()
    }

    /// The place of the oldest id of the stack. Also prefetches the memory that searches for the next oldest ids need.
    #[inline]
    pub(super) fn oldest_of_stack(&mut self) -> Option<usize> {
        oldest(&mut self.stack, &self.table)
    }

    /// The place of the oldest id of the queue. Also prefetches the memory that searches for the next oldest ids need.
    #[inline]
    pub(super) fn oldest_of_queue(&mut self) -> Option<usize> {
        oldest(&mut self.queue, &self.table)
    }

    /// The place of the oldest ghost. Also prefetches the memory that searches for the next oldest ghosts need.
    #[inline]
    pub(super) fn oldest_of_ghosts(&mut self) -> Option<usize> {
        oldest(&mut self.ghosts, &self.table)
    }

    /// Whether the id at a place is the oldest of the stack.
    #[inline]
    pub(super) fn is_oldest_of_stack(&mut self, at: usize) -> bool {
        self.stack.oldest() == Some(self.table.get(at).stack)
    }

    /// Adds `id`, which must not be present: as LIR and the newest of the stack, or as HIR, the newest of the queue and
    /// not in the stack. *Returns* its place; `None` if there are too many ids.
    #[inline]
    pub(super) fn insert(&mut self, id: u64, weight: u64, is_lir: bool) -> Option<usize> {
        if self.table.count() >= IDS_MAX {
            return None;
        }
        let (stack, second) =
            if is_lir { (self.put_in_stack(id, weight), NOWHERE) } else { (NOWHERE, self.put_in_queue(id, weight)) };
        Some(self.table.insert(LirsRecord { id, stack, second }))
    }

    /// Makes the id at a place, with this weight, the newest of the stack, even if it was not in the stack.
    #[inline]
    pub(super) fn push(&mut self, at: usize, weight: u64) {
        let LirsRecord { id, stack, .. } = *self.table.get(at);
        // Closing gaps updates the positions of all ids in the stack, so the position is read again.
        self.make_room_in_stack();
        if stack != NOWHERE {
            self.stack.take(self.table.get(at).stack);
        }
        self.table.get_mut(at).stack = self.stack.put_newest(id, weight);
    }

    /// Removes a HIR id from the stack.
    pub(super) fn drop_from_stack(&mut self, at: usize) {
        let entry = self.table.get_mut(at);
        self.stack.take(std::mem::replace(&mut entry.stack, NOWHERE));
    }

    /// Makes a HIR id or a ghost LIR; the id must be in the stack.
    #[inline]
    pub(super) fn make_lir(&mut self, at: usize) {
        let second = std::mem::replace(&mut self.table.get_mut(at).second, NOWHERE);
        self.take_from_second(second);
    }

    /// Makes the id at a place HIR and, with the weight `weight`, the newest of the queue.
    #[inline]
    pub(super) fn enqueue(&mut self, at: usize, weight: u64) {
        let id = self.table.get(at).id;
        self.make_room_in_queue();
        self.take_from_second(self.table.get(at).second);
        self.table.get_mut(at).second = self.queue.put_newest(id, weight);
    }

    /// Makes a HIR id that is in the stack the newest ghost.
    #[inline]
    pub(super) fn make_ghost(&mut self, at: usize) {
        let (LirsRecord { id, second, .. }, weight) = (*self.table.get(at), self.weight(at));
        if self.ghosts.is_full() {
            self.ghosts.make_room(&mut QueueOwner(&mut self.table));
        }
        self.queue.take(second);
        self.table.get_mut(at).second = self.ghosts.put_newest(id, weight) | GHOST_BIT;
    }

    /// Forgets the id at a place.
    #[inline]
    pub(super) fn forget(&mut self, at: usize) {
        let LirsRecord { stack, second, .. } = *self.table.get(at);
        if stack != NOWHERE {
            self.stack.take(stack);
        }
        self.take_from_second(second);
        self.table.remove(at);
    }

    #[inline]
    fn take_from_second(&mut self, second: u32) {
        if second == NOWHERE {
            return;
        }
        if second & GHOST_BIT == 0 {
            self.queue.take(second)
        } else {
            self.ghosts.take(second & !GHOST_BIT)
        };
    }

    #[inline]
    fn put_in_stack(&mut self, id: u64, weight: u64) -> u32 {
        self.make_room_in_stack();
        self.stack.put_newest(id, weight)
    }

    #[inline]
    fn put_in_queue(&mut self, id: u64, weight: u64) -> u32 {
        self.make_room_in_queue();
        self.queue.put_newest(id, weight)
    }

    #[inline]
    fn make_room_in_stack(&mut self) {
        if self.stack.is_full() {
            self.stack.make_room(&mut StackOwner(&mut self.table));
        }
    }

    #[inline]
    fn make_room_in_queue(&mut self) {
        if self.queue.is_full() {
            self.queue.make_room(&mut QueueOwner(&mut self.table));
        }
    }
}

/// Implements [`TimelineOwner`] for the positions in the stack.
struct StackOwner<'a>(&'a mut RecordTable<LirsRecord>);

impl TimelineOwner for StackOwner<'_> {
    #[inline]
    fn moved(&mut self, id: u64, position: u32) {
        if let Some(at) = find(self.0, id) {
            self.0.get_mut(at).stack = position;
        }
    }

    #[inline]
    fn prepare(&self, id: u64) {
        self.0.prepare(hash(id));
    }
}

/// Implements [`TimelineOwner`] for the positions in the queue and among the ghosts.
struct QueueOwner<'a>(&'a mut RecordTable<LirsRecord>);

impl TimelineOwner for QueueOwner<'_> {
    #[inline]
    fn moved(&mut self, id: u64, position: u32) {
        if let Some(at) = find(self.0, id) {
            let second = &mut self.0.get_mut(at).second;
            *second = position | *second & GHOST_BIT;
        }
    }

    #[inline]
    fn prepare(&self, id: u64) {
        self.0.prepare(hash(id));
    }
}

#[inline]
fn find(table: &RecordTable<LirsRecord>, id: u64) -> Option<usize> {
    table.find(hash(id), |entry| entry.id == id)
}

#[inline]
fn oldest(order: &mut IdTimeline, table: &RecordTable<LirsRecord>) -> Option<usize> {
    let position = order.oldest()?;
    while let Some(soon) = order.next_ahead() {
        table.prepare(hash(soon));
    }
    find(table, order.id(position))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_fits_quarter_cache_line() {
        assert_eq!(size_of::<LirsRecord>(), 16);
    }

    /// Ids keep their kind, weight and order while gaps are closed.
    #[test]
    fn ids_survive_compaction() {
        let mut ids = LirsIds::new();
        for id in 0..300 {
            ids.insert(id, 1 + id % 3, id % 3 == 0).expect("room");
        }
        for id in (1..300).step_by(3) {
            let at = ids.find(id).expect("there");
            ids.push(at, 1 + id % 3);
            ids.make_ghost(at);
        }
        // Every order closes its gaps many times.
        for step in 0..30_000_u64 {
            let id = step * step % 300;
            let at = ids.find(id).expect("there");
            let weight = ids.weight(at);
            match ids.kind(at) {
                LirsState::Lir => ids.push(at, weight),
                LirsState::Hir => ids.enqueue(at, weight),
                LirsState::Ghost => {
                    ids.push(at, weight);
                    ids.enqueue(at, weight);
                    ids.make_ghost(at);
                }
            }
        }
        for id in 0..300 {
            let at = ids.find(id).expect("there");
            let expected = [(LirsState::Lir, true), (LirsState::Ghost, true), (LirsState::Hir, false)][id as usize % 3];
            assert_eq!((ids.kind(at), ids.is_in_stack(at)), expected);
            let LirsRecord { stack, second, .. } = *ids.table.get(at);
            if stack != NOWHERE {
                assert_eq!((ids.stack.id(stack), ids.stack.weight_of(stack)), (id, 1 + id % 3));
            }
            match expected.0 {
                LirsState::Lir => assert_eq!(second, NOWHERE),
                LirsState::Hir => assert_eq!((ids.queue.id(second), ids.queue.weight_of(second)), (id, 1 + id % 3)),
                LirsState::Ghost => {
                    let second = second & !GHOST_BIT;
                    assert_eq!((ids.ghosts.id(second), ids.ghosts.weight_of(second)), (id, 1 + id % 3));
                }
            }
        }
        assert_eq!((ids.queue_count(), ids.queue_weight(), ids.ghosts_weight()), (100, 300, 200));
    }
}
