//! Writes to donors: each is repeated on every new connection until the donor has it or is left.
//!
//! Owns: the list of writes that are not done. Promises: two writes of the same bytes go one after the other, in the
//! order in which they were made. Leaves to `tasks`: what to write, and what to do when a write has ended.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::mirror::Donor;

/// What to write where.
#[derive(Debug, Clone)]
pub(super) struct Write {
    pub donor: Donor,
    pub offset: u64,
    pub data: Bytes,
}

impl Write {
    fn overlaps(&self, other: &Write) -> bool {
        let end = |write: &Write| write.offset + write.data.len() as u64;
        self.donor == other.donor && self.offset < end(other) && other.offset < end(self)
    }
}

/// A write under way.
#[derive(Debug)]
pub(super) struct Store {
    pub write: Write,
    /// The task that waits for it.
    pub task: u64,
    pub is_sent: bool,
}

/// All writes that are not done, by number.
#[derive(Debug, Default)]
pub(super) struct Stores {
    pub list: BTreeMap<u64, Store>,
    next: u64,
}

impl Stores {
    pub fn add(&mut self, write: Write, task: u64) {
        self.next += 1;
        self.list.insert(self.next, Store { write, task, is_sent: false });
    }

    /// Writes that may be sent as far as others are concerned, for donors that can be asked.
    pub fn sendable(&self, can_be_asked: impl Fn(Donor) -> bool) -> Vec<u64> {
        let is_free = |(number, store): &(&u64, &Store)| {
            let mut earlier = self.list.range(..**number);
            !store.is_sent
                && can_be_asked(store.write.donor)
                && !earlier.any(|(_, other)| other.write.overlaps(&store.write))
        };
        self.list.iter().filter(is_free).map(|(number, _)| *number).collect()
    }

    /// Takes away the writes of donors that need not have them; returns the tasks, one for each.
    pub fn excuse(&mut self, is_excused: impl Fn(Donor) -> bool) -> Vec<u64> {
        let excused: Vec<u64> =
            self.list.iter().filter(|(_, store)| is_excused(store.write.donor)).map(|(number, _)| *number).collect();
        excused.into_iter().filter_map(|number| self.list.remove(&number)).map(|store| store.task).collect()
    }
}
