//! Which files sessions have open, and inodes without a name.
//!
//! Owns: which session has which inode open; this is in memory only. Promises: an inode without a name is freed only
//! when no session has it open. After a restart, nothing is freed that may be open, until every earlier session has
//! said what it has open, or has ended. There is no time limit: a mount that was away for long still finds its files.

use super::change::Result;
use super::image::Image;
use crate::format::{Key, Table};
use crate::protocol::{Answer, Failure, Operation};

/// The flag in the record of an orphan that nobody had open when it lost its last name.
const BEING_FREED: u8 = 2;
/// Where the flags are.
const FLAGS_AT: usize = 8;

impl Image {
    /// A session has an inode open.
    pub(super) fn open(&mut self, session: u64, inode: u64) {
        self.opened.entry(inode).or_default().insert(session);
        self.dying.remove(&inode);
    }

    pub(super) fn close(&mut self, session: u64, inode: u64) {
        if let Some(sessions) = self.opened.get_mut(&inode) {
            sessions.remove(&session);
            if !sessions.is_empty() {
                return;
            }
            self.opened.remove(&inode);
        }
        if self.awaited.is_empty() && self.tables.get(&Key::Orphan(inode)).is_some() {
            self.dying.insert(inode);
        }
    }

    /// A session is over.
    pub(super) fn close_all(&mut self, session: u64) {
        let inodes: Vec<u64> = self.opened.keys().copied().collect();
        inodes.into_iter().for_each(|inode| self.close(session, inode));
        if self.awaited.remove(&session) {
            self.collect_orphans();
        }
    }

    /// A session from before a restart has said everything that it has open.
    ///
    /// *Errors*: the session is over.
    pub fn reclaimed(&mut self, session: u64) -> Result<()> {
        self.session(session)?;
        if self.awaited.remove(&session) {
            self.collect_orphans();
        }
        Ok(())
    }

    /// Frees orphans that no session has open, in the background. While earlier sessions are still awaited, frees only
    /// those that none of them can have open.
    pub(super) fn collect_orphans(&mut self) {
        let is_known = self.awaited.is_empty();
        let found = self.tables.table(Table::Orphans).iter().filter_map(|(key, value)| {
            let Ok(Key::Orphan(inode)) = Key::decode(Table::Orphans, key) else { return None };
            let is_free = is_known || value.get(FLAGS_AT) == Some(&BEING_FREED);
            (is_free && !self.opened.contains_key(&inode)).then_some(inode)
        });
        let found: Vec<u64> = found.collect();
        self.dying.extend(found);
    }

    /// The stored answer of an operation. If the operation opened an inode, it is marked as open again, because that
    /// was in memory only.
    pub fn repeat(
        &mut self,
        session: u64,
        number: u64,
        operation: &Operation,
    ) -> Option<std::result::Result<Answer, Failure>> {
        let stored = self.stored_reply(session, number);
        if let (Operation::Create { open: true, .. }, Some(Ok(Answer::Attributes(made)))) = (operation, &stored) {
            self.open(session, made.number);
        }
        stored
    }
}
