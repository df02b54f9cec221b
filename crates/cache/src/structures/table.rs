//! A table of records that are found by hash with one access to memory: it uses open addressing and holds the records
//! themselves.
//!
//! Owns: the places of records. Promises: a record is at the first free place from the place of its hash on, so mostly
//! in the same cache line or the next; nothing is allocated once the table has grown, nor before the first record.
//! Leaves to others: the contents of a record.
//!
//! The cost of an access depends on the number of cache lines that it touches. A table of indexes would touch one line
//! in the table and one for the record; this table touches only one. In exchange, records move when others are inserted
//! or removed, so a caller must remember the id of a record instead of its place.
//!
//! Cost: 4/3 to 5/3 of the records' size (at most three quarters of the places are occupied, and the table grows by a
//! quarter).

use crate::structures::growth;
use crate::structures::memory::{filled, prefetch};

/// The size of a cache line. *Units*: bytes.
const LINE_BYTES: usize = 64;
/// The number of places in the smallest table.
const PLACES_MIN: usize = 16;

/// A record of a table. It has at most 64 bytes, preferably a divisor of 64.
pub(crate) trait TableRecord: Copy {
    /// The value of a place that has no record.
    const VACANT: Self;

    /// Whether the record is [`TableRecord::VACANT`].
    fn is_vacant(&self) -> bool;

    /// The [`hash`] of the record's id.
    fn hash(&self) -> u32;
}

/// Spreads ids, which may be consecutive block numbers, over all bits.
#[inline]
pub(crate) fn hash(id: u64) -> u32 {
    crate::structures::hash::hash(id) as u32
}

/// A table of records.
#[derive(Debug, Clone)]
pub(crate) struct RecordTable<R> {
    places: Vec<R>,
    count: usize,
}

impl<R: TableRecord> RecordTable<R> {
    /// An empty table.
    pub(crate) fn new() -> RecordTable<R> {
        RecordTable { places: Vec::new(), count: 0 }
    }

    /// The number of records.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// The place of the record with this hash for which `is_it` returns `true`; valid until another record is added or
    /// removed.
    #[inline]
    pub(crate) fn find(&self, hash: u32, is_it: impl Fn(&R) -> bool) -> Option<usize> {
        let mut place = self.home(hash);
        loop {
            let record = self.places.get(place)?;
            if record.is_vacant() {
                return None;
            }
            if is_it(record) {
                return Some(place);
            }
            place = self.after(place);
        }
    }

    /// The record at an occupied place.
    #[inline]
    pub(crate) fn get(&self, place: usize) -> &R {
        &self.places[place]
    }

    /// The record at an occupied place; the caller must not change its hash.
    #[inline]
    pub(crate) fn get_mut(&mut self, place: usize) -> &mut R {
        &mut self.places[place]
    }

    /// Adds a record that is not in the table yet. *Returns* its place.
    #[inline]
    pub(crate) fn insert(&mut self, record: R) -> usize {
        if (self.count + 1) * 4 > self.places.len() * 3 {
            self.grow();
        }
        self.count += 1;
        self.put(record)
    }

    /// Removes the record at an occupied place; displaced records after it move closer to the places of their hashes.
    #[inline]
    pub(crate) fn remove(&mut self, place: usize) {
        let (mut hole, mut place) = (place, place);
        self.count -= 1;
        loop {
            place = self.after(place);
            let record = self.places[place];
            if record.is_vacant() {
                break;
            }
            if self.distance(self.home(record.hash()), place) >= self.distance(hole, place) {
                self.places[hole] = record;
                hole = place;
            }
        }
        self.places[hole] = R::VACANT;
    }

    /// Prefetches the memory that a search or a removal needs: two cache lines if the next record is in another line.
    #[inline]
    pub(crate) fn prepare(&self, hash: u32) {
        let home = self.home(hash);
        for place in [home, home + 1] {
            if let Some(record) = self.places.get(place) {
                prefetch(record);
            }
        }
    }

    /// Prefetches the memory that a removal needs in a table that is at least half full: the cache line of the hash,
    /// and the next one.
    #[inline]
    pub(crate) fn prepare_removal(&self, hash: u32) {
        let (home, line) = (self.home(hash), LINE_BYTES / size_of::<R>());
        for place in [home, home + line] {
            if let Some(record) = self.places.get(place) {
                prefetch(record);
            }
        }
    }

    /// The record at the place where the search for `hash` starts. Mostly it is the record with that hash, and finding
    /// it needs no access to memory.
    #[inline]
    pub(crate) fn guess(&self, hash: u32) -> Option<&R> {
        self.places.get(self.home(hash))
    }

    #[inline]
    fn put(&mut self, record: R) -> usize {
        let mut place = self.home(record.hash());
        while !self.places[place].is_vacant() {
            place = self.after(place);
        }
        self.places[place] = record;
        place
    }

    /// The place where the search for a hash starts: the hash, scaled to the number of places. *Returns* 0 if there is
    /// no place.
    #[inline]
    fn home(&self, hash: u32) -> usize {
        ((u64::from(hash) * self.places.len() as u64) >> 32) as usize
    }

    #[inline]
    fn after(&self, place: usize) -> usize {
        if place + 1 == self.places.len() { 0 } else { place + 1 }
    }

    /// The number of steps from one place to another.
    #[inline]
    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.places.len() - from }
    }

    /// The memory of a table that grew to hold `count` records. *Units*: bytes.
    pub(crate) fn bytes_of(count: usize) -> u64 {
        (growth::reached((count * 4).div_ceil(3), PLACES_MIN, 1) * size_of::<R>()) as u64
    }

    #[cold]
    fn grow(&mut self) {
        let places = if self.places.is_empty() { PLACES_MIN } else { growth::next(self.places.len(), 1) };
        let old = std::mem::replace(&mut self.places, filled(R::VACANT, places));
        old.into_iter().filter(|record| !record.is_vacant()).for_each(|record| {
            self.put(record);
        });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[derive(Clone, Copy)]
    struct PairRecord {
        id: u64,
        value: u64,
    }

    impl TableRecord for PairRecord {
        const VACANT: PairRecord = PairRecord { id: 0, value: u64::MAX };

        fn is_vacant(&self) -> bool {
            self.value == u64::MAX
        }

        fn hash(&self) -> u32 {
            hash(self.id)
        }
    }

    impl RecordTable<PairRecord> {
        fn find_id(&self, id: u64) -> Option<usize> {
            self.find(hash(id), |pair| pair.id == id)
        }
    }

    #[test]
    fn a_table_is_a_map() {
        let (mut table, mut map) = (RecordTable::new(), HashMap::new());
        let (mut state, mut most) = (7_u64, 0);
        for step in 0..200_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // The table grows and shrinks in turn, so that runs of displaced records form and are removed.
            let id = (state >> 33) % 3000;
            match table.find_id(id) {
                Some(place) if state >> 20 & 3 > u64::from(step / 5000 % 2 == 0) => {
                    assert_eq!(map.remove(&id), Some(table.get(place).value));
                    table.remove(place);
                }
                Some(place) => {
                    table.get_mut(place).value = step;
                    map.insert(id, step);
                }
                None => {
                    table.insert(PairRecord { id, value: step });
                    assert_eq!(map.insert(id, step), None);
                }
            }
            assert_eq!(table.count(), map.len());
            most = most.max(map.len());
            assert_eq!(
                (table.places.capacity() * size_of::<PairRecord>()) as u64,
                RecordTable::<PairRecord>::bytes_of(most)
            );
        }
        for id in 0..3000 {
            assert_eq!(table.find_id(id).map(|place| table.get(place).value), map.get(&id).copied());
        }
    }

    #[test]
    fn empty_table_uses_no_memory() {
        let table: RecordTable<PairRecord> = RecordTable::new();
        table.prepare(hash(1));
        assert_eq!((table.find_id(1), table.places.capacity()), (None, 0));
    }
}
