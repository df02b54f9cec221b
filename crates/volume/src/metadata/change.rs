//! One change of the tables that can be undone.
//!
//! Owns: the mutations so far, and the former values of the changed records.

use crate::format::{Action, Key, Mutation};
use crate::protocol::{Code, Failure};
use crate::tables::Tables;

/// A change in progress.
pub(super) struct Change<'a> {
    pub tables: &'a mut Tables,
    pub mutations: Vec<Mutation>,
    before: Vec<Mutation>,
}

pub(super) type Result<T> = std::result::Result<T, Failure>;

/// The error for stored records that contradict each other.
pub(super) fn damaged(what: impl std::fmt::Display) -> Failure {
    Failure { code: Code::Damaged, errno: libc::EIO, words: what.to_string() }
}

impl<'a> Change<'a> {
    pub fn new(tables: &'a mut Tables) -> Change<'a> {
        Change { tables, mutations: Vec::new(), before: Vec::new() }
    }

    fn act(&mut self, key: &Key, action: Action) {
        let (table, encoded) = (key.table(), key.encode());
        let before = match self.tables.get(key) {
            Some(value) => Action::Put(value.to_vec()),
            None => Action::Delete,
        };
        self.before.push(Mutation { table, key: encoded.clone(), action: before });
        let mutation = Mutation { table, key: encoded, action };
        self.tables.apply(&mutation);
        self.mutations.push(mutation);
    }

    pub fn put(&mut self, key: &Key, value: Vec<u8>) {
        self.act(key, Action::Put(value));
    }

    pub fn delete(&mut self, key: &Key) {
        self.act(key, Action::Delete);
    }

    /// Restores all former values.
    pub fn undo(self) {
        for mutation in self.before.iter().rev() {
            self.tables.apply(mutation);
        }
    }
}
