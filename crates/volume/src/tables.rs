//! The records of a volume in memory, as runs and journal together define them.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::format::{Action, Key, Mutation, Table};

/// All tables. Keys and values are in the form of the disk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tables {
    records: [BTreeMap<Vec<u8>, Vec<u8>>; Table::ALL.len()],
}

impl Tables {
    /// The value of a key.
    pub fn get(&self, key: &Key) -> Option<&[u8]> {
        self.table(key.table()).get(&key.encode()).map(Vec::as_slice)
    }

    /// Applies a change; applying it twice changes nothing.
    pub fn apply(&mut self, mutation: &Mutation) {
        let table = &mut self.records[usize::from(mutation.table.number()) - 1];
        match &mutation.action {
            Action::Put(value) => table.insert(mutation.key.clone(), value.clone()),
            Action::Delete => table.remove(&mutation.key),
        };
    }

    /// The records of a table, in order.
    pub fn table(&self, table: Table) -> &BTreeMap<Vec<u8>, Vec<u8>> {
        &self.records[usize::from(table.number()) - 1]
    }

    /// The records of one table from a key on, in order.
    pub fn from(&self, key: &Key) -> impl Iterator<Item = (&[u8], &[u8])> {
        let range = (Bound::Included(key.encode()), Bound::Unbounded);
        self.table(key.table()).range(range).map(|(key, value)| (key.as_slice(), value.as_slice()))
    }
}
