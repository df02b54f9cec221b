//! Ids in several queues: an id is found with one access to memory, and moved without touching its neighbours.
//!
//! Owns: a [`RecordTable`] of records, and a [`IdTimeline`] for each queue. Promises: an id is in exactly one queue, and its
//! record stores its position. An operation on a found id touches only its record, the bit of its old position and the
//! newest end of a queue, and no other random memory. Leaves to others: the meaning of each queue.
//!
//! An [`Arena`](crate::structures::arena::Arena) touches four cache lines to move an id (index, entry, both
//! neighbours); this structure touches one cache line and one bit. In exchange an id has no fixed number: its place in
//! the table is valid until another id is inserted or removed.
//!
//! Cost: 16 bytes per place of the table, 4/3 to 5/3 places per id, and the cost of a timeline per queue.

use crate::structures::table::{RecordTable, TableRecord, hash};
use crate::structures::timeline::{IdTimeline, NOWHERE, TimelineOwner};

/// The largest number of ids. It keeps every timeline below its own limit.
const IDS_MAX: usize = 1 << 28;

/// The record of one id.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueueEntry {
    pub(crate) id: u64,
    /// The position of the id in the timeline of its queue; [`NOWHERE`] in a vacant record.
    position: u32,
    queue: u8,
}

impl TableRecord for QueueEntry {
    const VACANT: QueueEntry = QueueEntry { id: 0, position: NOWHERE, queue: 0 };

    #[inline]
    fn is_vacant(&self) -> bool {
        self.position == NOWHERE
    }

    #[inline]
    fn hash(&self) -> u32 {
        hash(self.id)
    }
}

/// `COUNT` queues of weighted ids.
#[derive(Debug, Clone)]
pub(crate) struct QueueSet<const COUNT: usize> {
    table: RecordTable<QueueEntry>,
    timelines: [IdTimeline; COUNT],
}

impl<const COUNT: usize> QueueSet<COUNT> {
    /// Empty queues; they allocate nothing before the first id.
    pub(crate) fn new() -> QueueSet<COUNT> {
        QueueSet { table: RecordTable::new(), timelines: std::array::from_fn(|_| IdTimeline::default()) }
    }

    /// The memory of queues of at most `counts` ids, where the largest count is that of all queues together. *Units*:
    /// bytes.
    pub(crate) fn bytes_of(counts: [usize; COUNT]) -> u64 {
        let all = counts.into_iter().max().unwrap_or(0);
        RecordTable::<QueueEntry>::bytes_of(all)
            + counts.into_iter().map(|count| IdTimeline::bytes_of(count).0).sum::<u64>()
    }

    /// The place of `id` in the table, valid until an id is inserted or removed.
    #[inline]
    pub(crate) fn find(&self, id: u64) -> Option<usize> {
        find(&self.table, id)
    }

    /// Prefetches the memory that a search for `id` needs.
    #[inline]
    pub(crate) fn prepare(&self, id: u64) {
        self.table.prepare(hash(id));
    }

    /// The queue of the id at a place.
    #[inline]
    pub(crate) fn queue_of(&self, place: usize) -> usize {
        usize::from(self.table.get(place).queue)
    }

    /// The sum of the weights of a queue's ids.
    #[inline]
    pub(crate) fn weight(&self, queue: usize) -> u64 {
        self.timelines[queue].weight()
    }

    /// The number of ids in a queue.
    #[inline]
    pub(crate) fn count(&self, queue: usize) -> usize {
        self.timelines[queue].count()
    }

    /// The oldest id of a queue.
    #[inline]
    pub(crate) fn oldest(&mut self, queue: usize) -> Option<u64> {
        let timeline = &mut self.timelines[queue];
        timeline.oldest().map(|position| timeline.id(position))
    }

    /// An id that will soon be the oldest of its queue and was not returned before; its record is prefetched. *Returns*
    /// `None` when enough ids were returned.
    #[inline]
    pub(crate) fn next_ahead(&mut self, queue: usize) -> Option<u64> {
        let soon = self.timelines[queue].next_ahead()?;
        self.table.prepare(hash(soon));
        Some(soon)
    }

    /// Adds `id`, which must not be present, as the newest of a queue; `false` if there are too many ids.
    #[inline]
    pub(crate) fn insert(&mut self, queue: usize, id: u64, weight: u64) -> bool {
        let has_room = self.table.count() < IDS_MAX;
        if has_room {
            let position = self.put(queue, id, weight);
            self.table.insert(QueueEntry { id, position, queue: queue as u8 });
        }
        has_room
    }

    /// Forgets the id at a place.
    #[inline]
    pub(crate) fn remove(&mut self, place: usize) {
        let QueueEntry { position, queue, .. } = *self.table.get(place);
        self.timelines[usize::from(queue)].take(position);
        self.table.remove(place);
    }

    /// Makes the id at a place the newest of its queue.
    #[inline]
    pub(crate) fn refresh(&mut self, place: usize) {
        let QueueEntry { position, queue, .. } = *self.table.get(place);
        if !self.timelines[usize::from(queue)].is_newest(position) {
            self.transfer(place, usize::from(queue));
        }
    }

    /// Makes the id at a place the newest of a queue.
    #[inline]
    pub(crate) fn transfer(&mut self, place: usize, queue: usize) {
        let QueueEntry { id, position, queue: from } = *self.table.get(place);
        let weight = self.timelines[usize::from(from)].take(position);
        let position = self.put(queue, id, weight);
        let entry = self.table.get_mut(place);
        (entry.position, entry.queue) = (position, queue as u8);
    }

    /// Makes the oldest id of a queue the newest of another; `false` if the first queue is empty.
    #[inline]
    pub(crate) fn pass_oldest(&mut self, from: usize, to: usize) -> bool {
        let Some(place) = self.oldest(from).and_then(|id| self.find(id)) else { return false };
        self.transfer(place, to);
        true
    }

    #[inline]
    fn put(&mut self, queue: usize, id: u64, weight: u64) -> u32 {
        let timeline = &mut self.timelines[queue];
        if timeline.is_full() {
            timeline.make_room(&mut self.table);
        }
        timeline.put_newest(id, weight)
    }
}

impl TimelineOwner for RecordTable<QueueEntry> {
    #[inline]
    fn moved(&mut self, id: u64, position: u32) {
        if let Some(place) = find(self, id) {
            self.get_mut(place).position = position;
        }
    }

    #[inline]
    fn prepare(&self, id: u64) {
        RecordTable::prepare(self, hash(id));
    }
}

#[inline]
fn find(table: &RecordTable<QueueEntry>, id: u64) -> Option<usize> {
    table.find(hash(id), |entry| entry.id == id)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// The queues as lists of ids and weights, oldest first.
    type Lists = [VecDeque<(u64, u64)>; 3];

    fn take(lists: &mut Lists, id: u64) -> Option<(usize, u64)> {
        lists.iter_mut().enumerate().find_map(|(queue, list)| {
            let at = list.iter().position(|(other, _)| *other == id)?;
            list.remove(at).map(|(_, weight)| (queue, weight))
        })
    }

    #[test]
    fn queues_are_lists() {
        let (mut queues, mut lists) = (QueueSet::<3>::new(), Lists::default());
        let mut random = 0x2545_f491_4f6c_dd1d_u64;
        for _ in 0..200_000 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let (id, weight, to) = (random % 300, 1 + (random >> 20) % 4, (random >> 30) as usize % 3);
            let known = take(&mut lists, id);
            let place = queues.find(id);
            assert_eq!(place.map(|place| queues.queue_of(place)), known.map(|(queue, _)| queue));
            match (place, known) {
                (Some(place), Some(_)) if random >> 40 & 7 == 0 => queues.remove(place),
                (Some(place), Some((queue, weight))) if random >> 40 & 1 == 0 => {
                    queues.refresh(place);
                    lists[queue].push_back((id, weight));
                }
                (Some(place), Some((_, weight))) => {
                    queues.transfer(place, to);
                    lists[to].push_back((id, weight));
                }
                _ => {
                    assert!(queues.insert(to, id, weight));
                    lists[to].push_back((id, weight));
                }
            }
            if random >> 50 & 3 == 0 {
                let passed = lists[to].pop_front();
                assert_eq!(queues.pass_oldest(to, 0), passed.is_some());
                lists[0].extend(passed);
            }
            for (queue, list) in lists.iter().enumerate() {
                assert_eq!(queues.oldest(queue), list.front().map(|(id, _)| *id));
                assert_eq!(queues.count(queue), list.len());
                assert_eq!(queues.weight(queue), list.iter().map(|(_, weight)| weight).sum::<u64>());
            }
        }
    }
}
