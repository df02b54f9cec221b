//! Writes to donors: each is sent again on every new connection, until the donor has stored it or is left (no longer
//! trusted).
//!
//! Owns: the list of unfinished writes. Promises: two writes that overlap are sent one after the other, in the order in
//! which they were made. Leaves to `tasks`: which bytes to write, and what follows when a write has ended.
//!
//! *Cost*: a write is compared with the writes to nearby bytes twice: when it begins and when it ends.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use crate::group::Donor;

/// A write: its donor, offset and bytes.
#[derive(Debug, Clone)]
pub(super) struct DonorWrite {
    pub donor: Donor,
    pub offset: u64,
    pub data: Bytes,
}

impl DonorWrite {
    fn end(&self) -> u64 {
        self.offset + self.data.len() as u64
    }
}

/// A write in progress.
#[derive(Debug)]
pub(super) struct UnfinishedWrite {
    pub write: DonorWrite,
    /// The task that waits for the write.
    pub task: u64,
}

/// The writes of one donor.
#[derive(Debug, Default)]
struct OfDonor {
    /// The end of each write, by offset and number.
    places: BTreeMap<(u64, u64), u64>,
    /// The numbers of the writes to send now: no earlier overlapping write is in progress.
    ready: BTreeSet<u64>,
}

/// All unfinished writes, by number.
#[derive(Debug, Default)]
pub(super) struct UnfinishedWrites {
    list: BTreeMap<u64, UnfinishedWrite>,
    donors: BTreeMap<Donor, OfDonor>,
    next: u64,
    /// The length of the longest write so far: a write that overlaps another begins at most this far before it.
    /// *Units*: bytes.
    longest: u64,
}

impl UnfinishedWrites {
    pub fn len(&self) -> usize {
        self.list.len()
    }

    pub fn add(&mut self, write: DonorWrite, task: u64) {
        self.next += 1;
        let number = self.next;
        self.longest = self.longest.max(write.data.len() as u64);
        let of_donor = self.donors.entry(write.donor).or_default();
        of_donor.places.insert((write.offset, number), write.end());
        self.list.insert(number, UnfinishedWrite { write, task });
        self.look_at(number);
    }

    /// Returns the numbers of the other writes that overlap this one.
    fn overlapping(&self, write: &DonorWrite, number: u64) -> impl Iterator<Item = u64> + '_ {
        let (start, end) = (write.offset, write.end());
        let places = self.donors.get(&write.donor).map(|of| &of.places);
        let near = places.into_iter().flat_map(move |places| {
            places.range((start.saturating_sub(self.longest), 0)..(end, 0)).filter(move |(_, until)| **until > start)
        });
        near.map(|((_, other), _)| *other).filter(move |other| *other != number)
    }

    /// Marks a write as ready if no earlier overlapping write is in progress.
    fn look_at(&mut self, number: u64) {
        let Some(store) = self.list.get(&number) else { return };
        if self.overlapping(&store.write, number).all(|other| other > number) {
            let donor = store.write.donor;
            self.donors.entry(donor).or_default().ready.insert(number);
        }
    }

    /// Takes the writes that must be sent to a donor now; each write is returned once, and again after
    /// [`Self::dropped`].
    pub fn take_ready(&mut self, donor: Donor) -> Vec<(u64, DonorWrite)> {
        let Some(of_donor) = self.donors.get_mut(&donor) else { return Vec::new() };
        let ready = std::mem::take(&mut of_donor.ready);
        ready.into_iter().filter_map(|number| Some((number, self.list.get(&number)?.write.clone()))).collect()
    }

    /// Handles a write that was lost with its connection.
    pub fn dropped(&mut self, number: u64) {
        self.look_at(number);
    }

    /// Removes a finished write; returns its task.
    pub fn done(&mut self, number: u64) -> Option<u64> {
        let UnfinishedWrite { write, task } = self.list.remove(&number)?;
        if let Some(of_donor) = self.donors.get_mut(&write.donor) {
            of_donor.places.remove(&(write.offset, number));
            of_donor.ready.remove(&number);
        }
        let waiting: Vec<u64> = self.overlapping(&write, number).filter(|other| *other > number).collect();
        waiting.into_iter().for_each(|other| self.look_at(other));
        Some(task)
    }

    /// Removes the writes to a donor that no longer needs them; returns the task of each write.
    pub fn excuse(&mut self, donor: Donor) -> Vec<u64> {
        let Some(of_donor) = self.donors.remove(&donor) else { return Vec::new() };
        let mut numbers: Vec<u64> = of_donor.places.keys().map(|(_, number)| *number).collect();
        numbers.sort_unstable();
        numbers.into_iter().filter_map(|number| self.list.remove(&number)).map(|store| store.task).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(offset: u64, length: usize) -> DonorWrite {
        DonorWrite { donor: 1, offset, data: Bytes::from(vec![0; length]) }
    }

    fn ready(stores: &mut UnfinishedWrites) -> Vec<u64> {
        stores.take_ready(1).into_iter().map(|(number, _)| number).collect()
    }

    /// Overlapping writes are sent one after the other, and other writes at once.
    #[test]
    fn overlapping_writes_keep_order() {
        let mut stores = UnfinishedWrites::default();
        for (offset, length) in [(0, 100), (50, 10), (90, 100), (300, 10), (55, 1)] {
            stores.add(write(offset, length), offset);
        }
        assert_eq!(ready(&mut stores), [1, 4]);
        assert!(ready(&mut stores).is_empty());
        stores.dropped(1);
        assert_eq!(ready(&mut stores), [1]);
        assert_eq!(stores.done(1), Some(0));
        assert_eq!(ready(&mut stores), [2, 3]);
        assert_eq!((stores.done(2), ready(&mut stores)), (Some(50), vec![5]));
        assert_eq!((stores.done(9), stores.len()), (None, 3));
        assert_eq!((stores.excuse(1), stores.len()), (vec![90, 300, 55], 0));
    }

    /// No two overlapping writes are in flight at the same time.
    #[test]
    fn every_write_is_sent_once() {
        let mut state = 3u64;
        let mut next = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let mut stores = UnfinishedWrites::default();
        let mut sent: Vec<(u64, u64, u64)> = Vec::new();
        let mut done = 0;
        for turn in 0..4000 {
            if turn < 2000 {
                stores.add(write(next(300), 1 + next(40) as usize), 0);
            }
            for (number, write) in stores.take_ready(1) {
                let range = (write.offset, write.end());
                assert!(sent.iter().all(|(_, start, end)| *end <= range.0 || range.1 <= *start), "two at a time");
                sent.push((number, range.0, range.1));
            }
            if !sent.is_empty() && next(3) > 0 || turn >= 2000 && !sent.is_empty() {
                let (number, ..) = sent.swap_remove(next(sent.len() as u64) as usize);
                stores.done(number).unwrap();
                done += 1;
            }
        }
        assert_eq!((done, stores.len()), (2000, 0));
    }
}
