//! The table of entries: found by block, without gaps, so that its memory is known.
//!
//! Owns: the entries, the index that finds them, and the memory of both ([`bytes_of`]). Promises: an entry moves only
//! when another is removed; memory grows by a quarter, and is given back by [`BlockEntries::shrink`]. Leaves to others: the
//! state of an entry (`state`).
//!
//! *Circle*: `options` charges the memory of entries, which are those of `state`, which has the budget of `options`.

use hashbrown::HashTable;

use crate::frame::FRAME_BYTES;
use crate::state::BlockEntry;

/// The smallest number of slots.
const SLOTS_MIN: usize = 64;

/// The entries by block.
#[derive(Default)]
pub(crate) struct BlockEntries {
    slots: Vec<(u64, BlockEntry)>,
    /// The slot of each block.
    index: HashTable<u32>,
}

/// The number of slots after growth to `count` entries.
fn slots(count: usize) -> usize {
    let mut slots = SLOTS_MIN;
    while slots < count {
        slots += slots / 4;
    }
    slots
}

/// The memory of a table that had `count` entries at most, with what the allocator and the counters of each block's
/// frame take. *Units*: bytes.
pub(crate) fn bytes_of(count: u64) -> u64 {
    let entries = slots(count as usize) * size_of::<(u64, BlockEntry)>();
    // Removed entries leave marks in the index, because of which it grows to twice the size that its entries need.
    let index = (2 * (count as usize + 1) * 8 / 7).next_power_of_two() * (size_of::<u32>() + 1);
    (entries + index) as u64 + count * FRAME_BYTES
}

/// Spreads ids evenly over all values; the table uses the lowest and the highest bits.
fn hash(id: u64) -> u64 {
    let wide = u128::from(id ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93_u128;
    (wide >> 64) as u64 ^ wide as u64
}

impl BlockEntries {
    /// The number of entries.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    fn find(&self, id: u64) -> Option<usize> {
        self.index.find(hash(id), |slot| self.slots[*slot as usize].0 == id).map(|slot| *slot as usize)
    }

    /// Whether a block has an entry.
    pub fn contains_key(&self, id: &u64) -> bool {
        self.find(*id).is_some()
    }

    /// The entry of a block.
    pub fn get(&self, id: &u64) -> Option<&BlockEntry> {
        self.find(*id).map(|slot| &self.slots[slot].1)
    }

    /// The entry of a block, to change it.
    pub fn get_mut(&mut self, id: &u64) -> Option<&mut BlockEntry> {
        self.find(*id).map(|slot| &mut self.slots[slot].1)
    }

    /// Sets the entry of a block.
    pub fn insert(&mut self, id: u64, entry: BlockEntry) {
        match self.find(id) {
            Some(slot) => self.slots[slot].1 = entry,
            None => self.add(id, entry),
        }
    }

    /// The entry of a block; if there is none, it is set to what `make` returns.
    pub fn get_or_insert_with(&mut self, id: u64, make: impl FnOnce() -> BlockEntry) -> &mut BlockEntry {
        let slot = self.find(id).unwrap_or_else(|| {
            self.add(id, make());
            self.slots.len() - 1
        });
        &mut self.slots[slot].1
    }

    fn add(&mut self, id: u64, entry: BlockEntry) {
        let count = self.slots.len();
        if count == self.slots.capacity() {
            self.slots.reserve_exact(slots(count + 1) - count);
        }
        self.slots.push((id, entry));
        let BlockEntries { slots, index } = self;
        index.insert_unique(hash(id), count as u32, |slot| hash(slots[*slot as usize].0));
    }

    /// Removes the entry of a block.
    pub fn remove(&mut self, id: &u64) -> Option<BlockEntry> {
        let found = self.index.find_entry(hash(*id), |slot| self.slots[*slot as usize].0 == *id).ok()?;
        let slot = found.remove().0 as usize;
        let last = self.slots.len() - 1;
        if slot != last
            && let Some(moved) = self.index.find_mut(hash(self.slots[last].0), |place| *place as usize == last)
        {
            *moved = slot as u32;
        }
        Some(self.slots.swap_remove(slot).1)
    }

    /// Gives back memory that the entries no longer need.
    pub fn shrink(&mut self) {
        let slots = slots(self.slots.len());
        if slots < self.slots.capacity() {
            self.slots.shrink_to(slots);
            self.index.shrink_to_fit(|slot| hash(self.slots[*slot as usize].0));
        }
    }

    /// The entries, each with its block.
    pub fn iter(&self) -> impl Iterator<Item = (&u64, &BlockEntry)> {
        self.slots.iter().map(|(id, entry)| (id, entry))
    }

    /// The blocks that have an entry.
    pub fn keys(&self) -> impl Iterator<Item = &u64> {
        self.slots.iter().map(|slot| &slot.0)
    }

    /// The entries.
    pub fn values(&self) -> impl Iterator<Item = &BlockEntry> {
        self.slots.iter().map(|slot| &slot.1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use super::*;
    use crate::state::{BlockLoad, EntryContent};

    fn entry(holds: u32) -> BlockEntry {
        BlockEntry { holds, ..BlockEntry::new(EntryContent::Loading(Arc::new(BlockLoad::default())), false) }
    }

    #[test]
    fn entries_map_has_known_memory() {
        let (mut entries, mut map, mut most) = (BlockEntries::default(), BTreeMap::new(), 0);
        let mut random = 7_u64;
        for step in 0..100_000_u32 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let id = (random >> 33) % 3000;
            match random >> 20 & 3 {
                0 => assert_eq!(entries.remove(&id).map(|entry| entry.holds), map.remove(&id)),
                1 => _ = (entries.insert(id, entry(step)), map.insert(id, step)),
                2 => assert_eq!(entries.get_or_insert_with(id, || entry(step)).holds, *map.entry(id).or_insert(step)),
                _ => assert_eq!(entries.get(&id).map(|entry| entry.holds), map.get(&id).copied()),
            }
            most = most.max(map.len());
            assert_eq!(entries.len(), map.len());
        }
        let bytes = entries.slots.capacity() * size_of::<(u64, BlockEntry)>() + entries.index.allocation_size();
        let charged = bytes_of(most as u64) - most as u64 * FRAME_BYTES;
        assert!(bytes as u64 <= charged + 64, "{bytes} used, {charged} charged");
        entries.iter().for_each(|(id, entry)| assert_eq!(map.get(id), Some(&entry.holds)));
        (0..2990).for_each(|id| _ = entries.remove(&id));
        entries.shrink();
        assert!(entries.slots.capacity() <= SLOTS_MIN && entries.contains_key(&2995) == map.contains_key(&2995));
    }
}
