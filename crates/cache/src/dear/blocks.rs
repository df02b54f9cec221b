//! The blocks that DEAR knows: found by id, each with its history and its place in three orders.
//!
//! Owns: one slab of entries, a table from id to slab index, and doubly linked chains over the slab. An entry is linked
//! in each of the three orders on its own:
//!
//! | order | chains | of | what it tells |
//! |---|---|---|---|
//! | `RECENCY` | one an application | resident blocks | last reference within the application |
//! | `RANK` | one a frequency of an application | resident blocks and some ghosts | the application's LFU order |
//! | `PLACE` | one | resident blocks | whom the system asks for the next victim |
//!
//! Promises: nothing is allocated once slab and table have grown to the largest number of entries ever held. Leaves to
//! others: which chain an entry belongs to; a chain must be given the entries that it holds.
//!
//! What a hit needs is together, in half a line of a processor's cache as in the slab of LRU; the rest is beside it: the
//! links of ranks, those of places from the first place on, and weights from the first that is not 1.
//!
//! Cost: 32 bytes an entry, 8 for its rank, 8 for its place and 8 for its weight where there are any, and about 6 in the
//! table.

use hashbrown::HashTable;

use crate::arena::hash;
use crate::detect::History;

/// The end of a chain of slab indexes; so at most `u32::MAX` entries are held.
const NONE: u32 = u32::MAX;

/// Within an application: the last reference.
pub(super) const RECENCY: usize = 0;
/// Within a frequency of an application: when it came to that frequency.
pub(super) const RANK: usize = 1;
/// Among all resident blocks: the place in the system's order.
pub(super) const PLACE: usize = 2;

/// One block.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    pub(super) id: u64,
    /// The last reference and the frequency in the owner's time.
    pub(super) history: History,
    recency: Link,
    /// [`RESIDENT`]; or the number of its eviction while it is a ghost; or [`ABSENT`].
    pub(super) evicted: u32,
    /// The application that referred to it last.
    pub(super) owner: u16,
    /// The frequency under which it is filed in the owner's LFU order, the true one may have grown since; or [`UNFILED`].
    pub(super) rank: u16,
}

/// The rank of a block that is not in the LFU order.
pub(super) const UNFILED: u16 = u16::MAX;
/// Marks a block that is in the cache; no eviction has this number.
pub(super) const RESIDENT: u32 = 0;
/// Marks a block that is neither in the cache nor a ghost; no eviction has this number.
pub(super) const ABSENT: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Link {
    newer: u32,
    /// The next free entry while the entry is free.
    older: u32,
}

const UNLINKED: Link = Link { newer: NONE, older: NONE };

/// A chain of entries in one of the orders, newest to oldest.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chain {
    newest: u32,
    oldest: u32,
    /// How many entries it has.
    pub(super) count: u32,
}

impl Chain {
    pub(super) const EMPTY: Chain = Chain { newest: NONE, oldest: NONE, count: 0 };

    /// The slab index of its newest entry.
    #[inline]
    pub(super) fn newest(&self) -> Option<u32> {
        (self.newest != NONE).then_some(self.newest)
    }

    /// The slab index of its oldest entry.
    #[inline]
    pub(super) fn oldest(&self) -> Option<u32> {
        (self.oldest != NONE).then_some(self.oldest)
    }
}

/// The slab and the table.
#[derive(Debug)]
pub(super) struct Blocks {
    slab: Vec<Block>,
    /// As many as the slab.
    ranks: Vec<Link>,
    /// As many as the slab has been long when a place was given last; none before the first.
    places: Vec<Link>,
    /// None while all weights are 1.
    weights: Vec<u64>,
    free: u32,
    table: HashTable<u32>,
}

impl Blocks {
    /// No blocks; nothing is allocated before the first.
    pub(super) fn new() -> Blocks {
        Blocks {
            slab: Vec::new(),
            ranks: Vec::new(),
            places: Vec::new(),
            weights: Vec::new(),
            free: NONE,
            table: HashTable::new(),
        }
    }

    /// The slab index of `id`.
    #[inline]
    pub(super) fn find(&self, id: u64) -> Option<u32> {
        self.table.find(hash(id), |&index| self.slab[index as usize].id == id).copied()
    }

    /// The block at a slab index that was given out here.
    #[inline]
    pub(super) fn get(&self, index: u32) -> &Block {
        &self.slab[index as usize]
    }

    /// The block at a slab index that was given out here; its id must stay.
    #[inline]
    pub(super) fn get_mut(&mut self, index: u32) -> &mut Block {
        &mut self.slab[index as usize]
    }

    /// Adds `id`, which must not be there, without a history, in no chain; `None` at the slab's limit.
    pub(super) fn insert(&mut self, id: u64, owner: u16) -> Option<u32> {
        let history = History::default();
        let block = Block { id, history, recency: UNLINKED, evicted: ABSENT, owner, rank: UNFILED };
        let index = if self.free != NONE {
            let index = self.free;
            self.free = self.slab[index as usize].recency.older;
            self.slab[index as usize] = block;
            index
        } else if self.slab.len() < NONE as usize {
            self.slab.push(block);
            self.ranks.push(UNLINKED);
            (self.slab.len() - 1) as u32
        } else {
            return None;
        };
        let slab = &self.slab;
        self.table.insert_unique(hash(id), index, |&other| hash(slab[other as usize].id));
        Some(index)
    }

    /// Forgets a block, which must be in no chain.
    pub(super) fn forget(&mut self, index: u32) {
        let id = self.slab[index as usize].id;
        let slab = &self.slab;
        if let Ok(found) = self.table.find_entry(hash(id), |&other| slab[other as usize].id == id) {
            found.remove();
        }
        let block = &mut self.slab[index as usize];
        block.evicted = ABSENT;
        block.recency.older = self.free;
        self.free = index;
    }

    /// The weight of a resident block.
    #[inline]
    pub(super) fn weight(&self, index: u32) -> u64 {
        self.weights.get(index as usize).copied().unwrap_or(1)
    }

    /// Sets the weight of a block that becomes resident.
    #[inline]
    pub(super) fn set_weight(&mut self, index: u32, weight: u64) {
        if weight == 1 && self.weights.is_empty() {
            return;
        }
        if self.weights.len() < self.slab.len() {
            self.weights.resize(self.slab.len(), 1);
        }
        self.weights[index as usize] = weight;
    }

    /// Links a block, which is in no chain of this order, as the newest of `chain`.
    #[inline]
    pub(super) fn link_newest<const ORDER: usize>(&mut self, chain: &mut Chain, index: u32) {
        self.make_room_for_places::<ORDER>();
        *self.link_mut::<ORDER>(index) = Link { newer: NONE, older: chain.newest };
        match chain.newest {
            NONE => chain.oldest = index,
            newest => self.link_mut::<ORDER>(newest).newer = index,
        }
        chain.newest = index;
        chain.count += 1;
    }

    /// Links a block, which is in no chain of this order, as the oldest of `chain`.
    pub(super) fn link_oldest<const ORDER: usize>(&mut self, chain: &mut Chain, index: u32) {
        self.make_room_for_places::<ORDER>();
        *self.link_mut::<ORDER>(index) = Link { newer: chain.oldest, older: NONE };
        match chain.oldest {
            NONE => chain.newest = index,
            oldest => self.link_mut::<ORDER>(oldest).older = index,
        }
        chain.oldest = index;
        chain.count += 1;
    }

    /// Takes a block out of `chain`, in which it must be.
    #[inline]
    pub(super) fn unlink<const ORDER: usize>(&mut self, chain: &mut Chain, index: u32) {
        let Link { newer, older } = self.link::<ORDER>(index);
        match newer {
            NONE => chain.newest = older,
            newer => self.link_mut::<ORDER>(newer).older = older,
        }
        match older {
            NONE => chain.oldest = newer,
            older => self.link_mut::<ORDER>(older).newer = newer,
        }
        chain.count -= 1;
    }

    /// Makes a block of `chain` its newest.
    #[inline]
    pub(super) fn refresh<const ORDER: usize>(&mut self, chain: &mut Chain, index: u32) {
        if chain.newest != index {
            self.unlink::<ORDER>(chain, index);
            self.link_newest::<ORDER>(chain, index);
        }
    }

    /// Takes `stays` and `leaves`, two blocks of `chain`, and puts the first where the second was, which is unlinked.
    pub(super) fn take_place<const ORDER: usize>(&mut self, chain: &mut Chain, stays: u32, leaves: u32) {
        self.unlink::<ORDER>(chain, stays);
        let link = self.link::<ORDER>(leaves);
        *self.link_mut::<ORDER>(stays) = link;
        match link.newer {
            NONE => chain.newest = stays,
            newer => self.link_mut::<ORDER>(newer).older = stays,
        }
        match link.older {
            NONE => chain.oldest = stays,
            older => self.link_mut::<ORDER>(older).newer = stays,
        }
    }

    /// The block that is next newer than `index` in its chain of this order.
    pub(super) fn newer<const ORDER: usize>(&self, index: u32) -> Option<u32> {
        let newer = self.link::<ORDER>(index).newer;
        (newer != NONE).then_some(newer)
    }

    #[inline]
    fn link<const ORDER: usize>(&self, index: u32) -> Link {
        match ORDER {
            RECENCY => self.slab[index as usize].recency,
            RANK => self.ranks[index as usize],
            _ => self.places[index as usize],
        }
    }

    #[inline]
    fn link_mut<const ORDER: usize>(&mut self, index: u32) -> &mut Link {
        match ORDER {
            RECENCY => &mut self.slab[index as usize].recency,
            RANK => &mut self.ranks[index as usize],
            _ => &mut self.places[index as usize],
        }
    }

    #[inline]
    fn make_room_for_places<const ORDER: usize>(&mut self) {
        if ORDER == PLACE && self.places.len() < self.slab.len() {
            self.places.resize(self.slab.len(), UNLINKED);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn oldest_to_newest(blocks: &Blocks, chain: &Chain) -> Vec<u64> {
        std::iter::successors(chain.oldest(), |&index| blocks.newer::<PLACE>(index))
            .map(|index| blocks.get(index).id)
            .collect()
    }

    #[test]
    fn a_block_takes_the_place_of_one_that_leaves() {
        for (stays, leaves, expected) in [(1, 3, [2, 1, 4]), (1, 4, [2, 3, 1]), (1, 2, [1, 3, 4]), (4, 1, [4, 2, 3])] {
            let (mut blocks, mut chain) = (Blocks::new(), Chain::EMPTY);
            for id in 1..=4 {
                let index = blocks.insert(id, 0).expect("room");
                blocks.link_newest::<PLACE>(&mut chain, index);
            }
            let (stays, leaves) = (blocks.find(stays).expect("there"), blocks.find(leaves).expect("there"));
            blocks.take_place::<PLACE>(&mut chain, stays, leaves);
            assert_eq!(oldest_to_newest(&blocks, &chain), expected);
            assert_eq!(chain.count, 3);
        }
    }

    #[test]
    fn an_entry_is_as_long_as_one_of_lru() {
        assert_eq!(size_of::<Block>(), 32);
    }

    #[test]
    fn weights_are_kept_from_the_first_that_is_not_1() {
        let mut blocks = Blocks::new();
        for (id, weight) in [(0, 1), (1, 1), (2, 7), (3, 1), (4, 9)] {
            let index = blocks.insert(id, 0).expect("room");
            blocks.set_weight(index, weight);
            assert_eq!(blocks.weights.is_empty(), id < 2);
        }
        let weights: Vec<u64> = (0..5).map(|id| blocks.weight(blocks.find(id).expect("there"))).collect();
        assert_eq!(weights, [1, 1, 7, 1, 9]);
    }

    #[test]
    fn a_forgotten_block_is_used_again_before_the_slab_grows() {
        let mut blocks = Blocks::new();
        for id in 0..100 {
            let index = blocks.insert(id, 0).expect("room");
            blocks.forget(index);
        }
        assert_eq!(blocks.slab.len(), 1);
        assert_eq!(blocks.find(99), None);
    }
}
