//! Writing shards of the index to a checkpoint, and loading them from one.
//!
//! Owns: which parts of a checkpoint are accepted. Promises: after loading, no slot makes a later call access memory
//! outside its shard, and every entry can be found. Leaves to others: reading and checksums (`checkpoint`).
//!
//! *Cost* of loading: one pass over the slots, without branches that depend on their values; the slots stay in the
//! buffer into which they were read.

use std::sync::atomic::Ordering;

use super::{
    DISTANCE_MASK, DISTANCE_SHIFT, IndexShard, ObjectIndex, SLOT_BYTES, SlotTable, distance_of, location_of,
    slots_bytes,
};
use crate::format::GRANULE_BYTES;
use crate::format::location::{GRANULE_BITS, GRANULE_MASK, class_granules};
use crate::planted::{Bug, planted};

/// The locations in a checkpoint that are still valid.
#[derive(Debug, Clone)]
pub struct ValidLocations {
    /// Granules from this number on are after the last segment.
    granules: u64,
    /// For each segment, whether its contents are unchanged since the checkpoint; empty if all segments are unchanged.
    segments: Vec<bool>,
    segment_granules: u64,
}

impl ValidLocations {
    /// Accepts all locations below `granules`.
    pub fn below(granules: u64) -> ValidLocations {
        ValidLocations { granules, segments: Vec::new(), segment_granules: granules.max(1) }
    }

    /// Accepts the locations in the segments that are marked in `segments`; a segment has `segment_granules` granules.
    pub fn of(segments: Vec<bool>, segment_granules: u64) -> ValidLocations {
        let granules = segments.len() as u64 * segment_granules;
        let segments = if segments.iter().all(|&kept| kept) { Vec::new() } else { segments };
        ValidLocations { granules, segments, segment_granules: segment_granules.max(1) }
    }

    fn has(&self, granule: u64) -> bool {
        let segment = || self.segments.get((granule / self.segment_granules) as usize) == Some(&true);
        granule < self.granules && (self.segments.is_empty() || segment())
    }

    fn has_all_below(&self, granule_end: u64) -> bool {
        granule_end <= self.granules && self.segments.is_empty()
    }
}

impl ObjectIndex {
    /// Copies a shard's slots for a checkpoint. Returns the number of the shard's home slots, and the slots as bytes.
    pub fn dump(&self, shard: usize) -> (u32, Vec<u8>) {
        let shard = self.shard(shard);
        let mut bytes = Vec::with_capacity(shard.slots.len() * SLOT_BYTES);
        for entry in shard.slots.iter() {
            bytes.extend_from_slice(&entry.to_le_bytes());
        }
        (shard.homes as u32, bytes)
    }

    /// Whether a shard of this index can have this many home slots.
    pub fn can_have(&self, homes: u32) -> bool {
        homes as usize >= self.homes_initial
    }

    /// Makes a shard from the slots of a dump, without the entries whose locations `kept` does not accept. Returns
    /// false if the dump is invalid.
    pub fn load(&self, shard_index: usize, homes: u32, slots: SlotTable, kept: &ValidLocations) -> bool {
        if !self.can_have(homes) || slots.len() * SLOT_BYTES != slots_bytes(homes) {
            return false;
        }
        let mut shard = IndexShard { slots, homes: homes as usize, entries: 0 };
        let class_bytes: [u64; 64] = std::array::from_fn(|class| class_granules(class as u8) * GRANULE_BYTES);
        // An entry can be at most one slot further from home than the entry in the slot before it. `distance_end` is
        // this bound plus one. It begins at 1, so no home is before the first slot.
        let mut distance_end = 1;
        let (mut is_right, mut record_bytes, mut granule_end) = (true, 0, 0);
        for &entry in shard.slots.iter() {
            let (is_entry, distance) = (entry != 0, entry >> DISTANCE_SHIFT & 63);
            // If all bits of an entry except its distance were 0, the entry would become an empty slot when it moves to
            // its home. No record has such a location.
            is_right &= !is_entry | ((distance < distance_end) & (entry & !DISTANCE_MASK != 0));
            distance_end = if is_entry { distance + 2 } else { 1 };
            shard.entries += usize::from(is_entry);
            record_bytes += class_bytes[(entry >> GRANULE_BITS & 63) as usize] * u64::from(is_entry);
            granule_end = granule_end.max((entry & GRANULE_MASK) + 1);
        }
        is_right &= self.last_are_right(&shard);
        if !is_right && !planted(Bug::CheckpointSlotUnchecked) {
            return false;
        }
        self.entries.fetch_add(shard.entries as u64, Ordering::Relaxed);
        self.record_bytes.fetch_add(record_bytes, Ordering::Relaxed);
        if !kept.has_all_below(granule_end) {
            let is_dead = |slot: &usize| shard.slots[*slot] != 0 && !kept.has(shard.slots[*slot] & GRANULE_MASK);
            let dead: Vec<usize> = (0..shard.slots.len()).filter(is_dead).collect();
            // The last slots come first, so that entries that move up have already been checked.
            for slot in dead.into_iter().rev() {
                self.forget(shard.slots[slot]);
                shard.take(slot);
            }
        }
        self.put_shard(shard_index, shard);
        true
    }

    /// Takes a shard from another index of the same store.
    pub fn adopt(&self, shard_index: usize, other: &ObjectIndex) {
        let taken = std::mem::replace(&mut *other.shard(shard_index), IndexShard::of(other.homes_initial));
        let entries = taken.slots.iter().filter(|entry| **entry != 0);
        let record_bytes = entries.map(|entry| location_of(*entry).bytes_max()).sum();
        self.entries.fetch_add(taken.entries as u64, Ordering::Relaxed);
        self.record_bytes.fetch_add(record_bytes, Ordering::Relaxed);
        self.put_shard(shard_index, taken);
    }

    /// Puts `shard`, whose entries are already counted, in the place of a shard that has not been used yet.
    fn put_shard(&self, shard_index: usize, shard: IndexShard) {
        let mut current = self.shard(shard_index);
        if current.entries > 0 {
            current.slots.iter().filter(|entry| **entry != 0).for_each(|entry| self.forget(*entry));
        }
        self.bytes.fetch_add((SLOT_BYTES * shard.slots.len()) as u64, Ordering::Relaxed);
        self.bytes.fetch_sub((SLOT_BYTES * current.slots.len()) as u64, Ordering::Relaxed);
        *current = shard;
    }

    /// Whether the entries in the last slots have a valid home and hash: for the last homes, home and tag may give a
    /// value outside the range of hashes.
    fn last_are_right(&self, shard: &IndexShard) -> bool {
        let first_unsure = shard.homes.saturating_sub(shard.homes / self.homes_initial + 1);
        shard.slots.iter().enumerate().skip(first_unsure).filter(|(_, entry)| **entry != 0).all(|(slot, &entry)| {
            let home = slot.checked_sub(distance_of(entry));
            home.is_some_and(|home| {
                home < first_unsure || (home < shard.homes && shard.known(self.width, slot, entry) >> self.width == 0)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::REACH;
    use super::*;
    use crate::format::RecordLocation;
    use crate::names::key::KeyHash;

    const UNITS: u64 = 1000;

    fn filled() -> ObjectIndex {
        let index = ObjectIndex::new(4, 1 << 20);
        for number in 0..700_u128 {
            let hash = number.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835) >> 6 & (u64::MAX >> 6) as u128;
            index.insert(KeyHash(hash), RecordLocation::new(number as u64 + 2, 64));
        }
        index
    }

    fn slots(index: &ObjectIndex) -> (u32, Vec<u64>) {
        let (homes, bytes) = index.dump(0);
        (homes, bytes.as_chunks().0.iter().map(|slot| u64::from_le_bytes(*slot)).collect())
    }

    fn taken(slots: &[u64]) -> SlotTable {
        let mut taken = SlotTable::empty(slots.len());
        taken.copy_from_slice(slots);
        taken
    }

    #[test]
    fn unreachable_entry_refuses_shard() {
        let index = filled();
        let (homes, whole) = slots(&index);
        let loads =
            |slots: Vec<u64>| ObjectIndex::new(4, 1 << 20).load(0, homes, taken(&slots), &ValidLocations::below(UNITS));
        assert!(loads(whole.clone()));
        assert!(!loads(whole[1..].to_vec()), "a slot is missing");
        for slot in 0..whole.len() {
            let mut far = whole.clone();
            far[slot] = 2 | 63 << DISTANCE_SHIFT;
            assert!(!loads(far), "slot {slot} holds what is 63 slots from home behind what is not");
        }
        let second = (1..whole.len()).find(|&slot| whole[slot] == 0 && whole[slot - 1] != 0).unwrap();
        let mut placeless = whole.clone();
        placeless[second] = 1 << DISTANCE_SHIFT;
        assert!(!loads(placeless), "slot {second} would be empty when it moved up");
        let mut homeless = whole;
        homeless[homes as usize + REACH - 1] = 2;
        assert!(!loads(homeless), "the last slots are nobody's home");
    }

    #[test]
    fn invalid_locations_are_left_out() {
        let index = filled();
        let (homes, whole) = slots(&index);
        let segments = (0..10).map(|segment| segment % 3 != 1).collect();
        let copy = ObjectIndex::new(4, 1 << 20);
        assert!(copy.load(0, homes, taken(&whole), &ValidLocations::of(segments, 100)));
        let kept = index.locations().iter().filter(|location| location.granule / 100 % 3 != 1).count();
        assert_eq!((copy.len() as usize, copy.locations().len()), (kept, kept));
        let other = ObjectIndex::new(4, 1 << 20);
        other.adopt(0, &copy);
        assert_eq!((other.len(), other.bytes(), other.record_bytes()), (copy.len(), copy.bytes(), copy.record_bytes()));
    }
}
