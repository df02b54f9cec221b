//! One change of the tables that can be undone.
//!
//! Owns: the mutations so far, and the former values of the changed records.

use crate::format::{Mutation, MutationAction, TableKey};
use crate::protocol::{RefusalCode, ServerRefusal};
use crate::tables::MetadataTables;

/// A change in progress.
pub(super) struct TableChange<'a> {
    pub tables: &'a mut MetadataTables,
    pub mutations: Vec<Mutation>,
    before: Vec<Mutation>,
}

pub(super) type Result<T> = std::result::Result<T, ServerRefusal>;

/// The error for stored records that contradict each other.
pub(super) fn damaged(what: impl std::fmt::Display) -> ServerRefusal {
    ServerRefusal { code: RefusalCode::Damaged, errno: libc::EIO, words: what.to_string() }
}

impl<'a> TableChange<'a> {
    pub fn new(tables: &'a mut MetadataTables) -> TableChange<'a> {
        TableChange { tables, mutations: Vec::new(), before: Vec::new() }
    }

    fn act(&mut self, key: &TableKey, action: MutationAction) {
        let (table, encoded) = (key.table(), key.encode());
        let before = match self.tables.get(key) {
            Some(value) => MutationAction::Put(value.to_vec()),
            None => MutationAction::Delete,
        };
        self.before.push(Mutation { table, key: encoded.clone(), action: before });
        let mutation = Mutation { table, key: encoded, action };
        self.tables.apply(&mutation);
        self.mutations.push(mutation);
    }

    pub fn put(&mut self, key: &TableKey, value: Vec<u8>) {
        self.act(key, MutationAction::Put(value));
    }

    pub fn delete(&mut self, key: &TableKey) {
        self.act(key, MutationAction::Delete);
    }

    /// Restores all former values.
    pub fn undo(self) {
        for mutation in self.before.iter().rev() {
            self.tables.apply(mutation);
        }
    }
}
