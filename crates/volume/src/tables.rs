//! The records of a volume in memory, as the runs and the journal define them.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::format::{Mutation, MutationAction, TableKey, TableKind};

/// The length of a record's header, before its key. *Units*: bytes.
const RECORD_HEADER_BYTES: usize = 8;

/// The records of all tables. Keys and values are encoded as on the disk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MetadataTables {
    records: [BTreeMap<Vec<u8>, Vec<u8>>; TableKind::ALL.len()],
    bytes: u64,
}

/// Returns the length of a record in a transaction or run. *Units*: bytes.
pub(crate) fn record_bytes(key: usize, value: usize) -> usize {
    (RECORD_HEADER_BYTES + key + value).next_multiple_of(8)
}

impl MetadataTables {
    /// Returns the value of a key.
    pub fn get(&self, key: &TableKey) -> Option<&[u8]> {
        self.table(key.table()).get(&key.encode()).map(Vec::as_slice)
    }

    /// Applies a change; applying it twice has the same effect as applying it once.
    pub fn apply(&mut self, mutation: &Mutation) {
        let table = &mut self.records[usize::from(mutation.table.number()) - 1];
        let length = |value: &Vec<u8>| record_bytes(mutation.key.len(), value.len()) as u64;
        let before = match &mutation.action {
            MutationAction::Put(value) => {
                self.bytes += length(value);
                table.insert(mutation.key.clone(), value.clone())
            }
            MutationAction::Delete => table.remove(&mutation.key),
        };
        self.bytes -= before.as_ref().map_or(0, length);
    }

    /// Returns the length that all records have in runs. *Units*: bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the records of a table, in order.
    pub fn table(&self, table: TableKind) -> &BTreeMap<Vec<u8>, Vec<u8>> {
        &self.records[usize::from(table.number()) - 1]
    }

    /// Returns the records of one table from a key on, in order.
    pub fn from(&self, key: &TableKey) -> impl Iterator<Item = (&[u8], &[u8])> {
        let range = (Bound::Included(key.encode()), Bound::Unbounded);
        self.table(key.table()).range(range).map(|(key, value)| (key.as_slice(), value.as_slice()))
    }
}
