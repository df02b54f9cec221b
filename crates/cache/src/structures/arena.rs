//! A slab of entries that are found by id and linked into queues; many policies use it.
//!
//! Owns: one slab of entries, a table from id to slab index, and intrusive doubly linked queues over the slab; an entry
//! is in at most one queue. Promises: a queue knows the sum of its entries' weights; nothing is allocated once slab and
//! table have grown to the largest number of entries ever held. Leaves to others: the meaning of each queue.
//!
//! Cost: 32 to 40 bytes per entry in the slab and 11 to 14 in the table (4 bytes of index and 4 of hash, side by side, so
//! that finding an entry touches one cache line in addition to the entry's own).

use crate::structures::growth;
use crate::structures::memory::{PrefetchQueue, prefetch};
use crate::structures::table::{self, RecordTable, TableRecord};

/// The slab index that marks the end of a chain; so a policy holds at most `u32::MAX` entries.
const NONE: u32 = u32::MAX;

/// The slab index of an entry, and the hash of its id.
#[derive(Debug, Clone, Copy)]
struct ArenaIndex {
    hash: u32,
    /// The slab index; [`NONE`] if there is none.
    index: u32,
}

impl TableRecord for ArenaIndex {
    const VACANT: ArenaIndex = ArenaIndex { hash: 0, index: NONE };

    #[inline]
    fn is_vacant(&self) -> bool {
        self.index == NONE
    }

    #[inline]
    fn hash(&self) -> u32 {
        self.hash
    }
}

/// The neighbours of an entry in one queue.
#[derive(Debug, Clone, Copy)]
struct QueueLinks {
    /// The next entry towards the newest of the queue.
    newer: u32,
    /// The next entry towards the oldest of the queue; for a free entry, the next free one.
    older: u32,
}

impl QueueLinks {
    const NONE: QueueLinks = QueueLinks { newer: NONE, older: NONE };
}

/// One id and its state in a policy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ArenaEntry {
    pub(crate) id: u64,
    pub(crate) weight: u64,
    links: QueueLinks,
    /// A number for use by the policy, for example a position in a heap or the number of a group.
    pub(crate) place: u32,
    /// The number of the last queue that contained the entry; the policy numbers its queues.
    pub(crate) queue: u8,
    /// The number of hits, as far as the policy counts them.
    pub(crate) hits: u16,
}

/// A queue over entries of one arena, newest to oldest.
#[derive(Debug, Clone)]
pub(crate) struct ArenaQueue {
    number: u8,
    newest: u32,
    oldest: u32,
    /// The sum of the weights of its entries.
    pub(crate) weight: u64,
    /// The number of its entries.
    pub(crate) count: usize,
}

impl ArenaQueue {
    /// An empty queue; its entries will store `number`.
    pub(crate) fn new(number: u8) -> ArenaQueue {
        ArenaQueue { number, newest: NONE, oldest: NONE, weight: 0, count: 0 }
    }

    /// The slab index of its oldest entry.
    pub(crate) fn oldest(&self) -> Option<u32> {
        (self.oldest != NONE).then_some(self.oldest)
    }
}

/// The slab of entries, and the table that finds an entry by id.
#[derive(Debug, Clone)]
pub struct Arena {
    entries: Vec<ArenaEntry>,
    free: u32,
    table: RecordTable<ArenaIndex>,
    told: PrefetchQueue,
}

impl Arena {
    /// An empty arena; it allocates nothing before the first entry.
    pub(crate) fn new() -> Arena {
        Arena { entries: Vec::new(), free: NONE, table: RecordTable::new(), told: PrefetchQueue::default() }
    }

    /// The slab index of `id`.
    #[inline]
    pub(crate) fn find(&self, id: u64) -> Option<u32> {
        self.place(id).map(|place| self.table.get(place).index)
    }

    #[inline]
    fn place(&self, id: u64) -> Option<usize> {
        let hash = table::hash(id);
        self.table.find(hash, |found| found.hash == hash && self.entries[found.index as usize].id == id)
    }

    /// Prefetches the table record of `id`, and the slab entry of the id that was announced eight calls earlier, whose
    /// record has arrived by now. The caller announces each coming id.
    #[inline]
    pub(crate) fn prepare(&self, id: u64) {
        self.table.prepare(table::hash(id));
        let guess = self.table.guess(table::hash(self.told.exchange(id)));
        if let Some(entry) = guess.and_then(|guess| self.entries.get(guess.index as usize)) {
            prefetch(entry);
        }
    }

    /// The entry at a slab index that this arena returned.
    #[inline]
    pub(crate) fn entry(&self, index: u32) -> &ArenaEntry {
        &self.entries[index as usize]
    }

    /// The entry at a slab index that this arena returned, for changes by the policy.
    #[inline]
    pub(crate) fn entry_mut(&mut self, index: u32) -> &mut ArenaEntry {
        &mut self.entries[index as usize]
    }

    /// The neighbour of an entry towards the newest of its queue.
    pub(crate) fn newer(&self, index: u32) -> Option<u32> {
        let newer = self.entries[index as usize].links.newer;
        (newer != NONE).then_some(newer)
    }

    /// Adds `id`, which must not be present, but does not put it in a queue. *Returns* its slab index; `None` if the
    /// slab is at its limit.
    pub(crate) fn add(&mut self, id: u64, weight: u64) -> Option<u32> {
        let entry = ArenaEntry { id, weight, links: QueueLinks::NONE, place: 0, queue: 0, hits: 0 };
        let index = if self.free != NONE {
            let index = self.free;
            self.free = self.entries[index as usize].links.older;
            self.entries[index as usize] = entry;
            index
        } else if self.entries.len() < NONE as usize {
            growth::push(&mut self.entries, entry);
            (self.entries.len() - 1) as u32
        } else {
            return None;
        };
        self.table.insert(ArenaIndex { hash: table::hash(id), index });
        Some(index)
    }

    /// The memory of an arena that grew to hold `count` entries. *Units*: bytes.
    pub(crate) fn bytes_of(count: usize) -> u64 {
        growth::bytes_of::<ArenaEntry>(count) + RecordTable::<ArenaIndex>::bytes_of(count)
    }

    /// Forgets an entry, which must be in no queue.
    pub(crate) fn forget(&mut self, index: u32) {
        let id = self.entries[index as usize].id;
        if let Some(place) = self.table.find(table::hash(id), |found| found.index == index) {
            self.table.remove(place);
        }
        self.entries[index as usize].links.older = self.free;
        self.free = index;
    }

    /// Adds `id`, which must not be present, as the newest of `queue`; `false` if the slab is at its limit.
    pub(crate) fn insert(&mut self, queue: &mut ArenaQueue, id: u64, weight: u64) -> bool {
        let Some(index) = self.add(id, weight) else { return false };
        self.link(queue, index);
        true
    }

    /// Removes an entry from `queue`, in which it must be, and forgets it.
    pub(crate) fn remove(&mut self, queue: &mut ArenaQueue, index: u32) {
        self.unlink(queue, index);
        self.forget(index);
    }

    /// Makes an entry the newest of its queue.
    #[inline]
    pub(crate) fn refresh(&mut self, queue: &mut ArenaQueue, index: u32) {
        if queue.newest != index {
            self.unlink(queue, index);
            self.link(queue, index);
        }
    }

    /// Removes an entry from `from` and makes it the newest of `to`.
    pub(crate) fn transfer(&mut self, from: &mut ArenaQueue, to: &mut ArenaQueue, index: u32) {
        self.unlink(from, index);
        self.link(to, index);
    }

    /// Makes an entry, which must be in no queue, the newest of `queue`.
    pub(crate) fn link(&mut self, queue: &mut ArenaQueue, index: u32) {
        let entry = &mut self.entries[index as usize];
        entry.queue = queue.number;
        entry.links = QueueLinks { newer: NONE, older: queue.newest };
        queue.weight += entry.weight;
        queue.count += 1;
        match queue.newest {
            NONE => queue.oldest = index,
            newest => self.entries[newest as usize].links.newer = index,
        }
        queue.newest = index;
    }

    /// Appends all entries of `newer` at the newest end of `queue`; `place` and `queue` in the entries do not change.
    pub(crate) fn append(&mut self, queue: &mut ArenaQueue, newer: ArenaQueue) {
        if newer.count == 0 {
            return;
        }
        match queue.newest {
            NONE => queue.oldest = newer.oldest,
            newest => {
                self.entries[newest as usize].links.newer = newer.oldest;
                self.entries[newer.oldest as usize].links.older = newest;
            }
        }
        queue.newest = newer.newest;
        queue.weight += newer.weight;
        queue.count += newer.count;
    }

    /// All entries in the order of the slab, including forgotten ones.
    pub(crate) fn entries_mut(&mut self) -> impl Iterator<Item = &mut ArenaEntry> {
        self.entries.iter_mut()
    }

    /// Removes an entry from `queue`, in which it must be.
    pub(crate) fn unlink(&mut self, queue: &mut ArenaQueue, index: u32) {
        let ArenaEntry { links, weight, queue: number, .. } = self.entries[index as usize];
        let QueueLinks { newer, older } = links;
        debug_assert_eq!(number, queue.number);
        queue.weight -= weight;
        queue.count -= 1;
        match newer {
            NONE => queue.newest = older,
            newer => self.entries[newer as usize].links.older = older,
        }
        match older {
            NONE => queue.oldest = newer,
            older => self.entries[older as usize].links.newer = newer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Queues keep order, weights and counts.
    #[test]
    fn queues_keep_order_and_weights() {
        let (mut arena, mut first, mut second) = (Arena::new(), ArenaQueue::new(0), ArenaQueue::new(1));
        for id in 1..=3 {
            assert!(arena.insert(&mut first, id, id * 10));
        }
        let two = arena.find(2).expect("inserted");
        arena.transfer(&mut first, &mut second, two);
        let one = first.oldest().expect("not empty");
        arena.refresh(&mut first, one);
        assert_eq!(arena.entry(first.oldest().expect("not empty")).id, 3);
        assert_eq!((first.weight, first.count, second.weight, second.count), (40, 2, 20, 1));
        arena.remove(&mut second, two);
        assert_eq!(arena.find(2), None);
        assert_eq!(second.oldest(), None);
    }

    #[test]
    fn freed_entry_is_reused_first() {
        let (mut arena, mut queue) = (Arena::new(), ArenaQueue::new(0));
        for id in 0..1000_u64 {
            assert!(arena.insert(&mut queue, id, 1));
            if id >= 10 {
                let oldest = queue.oldest().expect("not empty");
                arena.remove(&mut queue, oldest);
            }
        }
        assert_eq!(arena.entries.len(), 11);
    }
}
