//! Which files each session has open, and inodes without a name (orphans).
//!
//! Owns: which inodes each session has open; this is in memory only. Promises: an inode without a name is freed only
//! when no session has it open. After a restart, an inode that a session may have open is freed only when every earlier
//! session has listed its open files or has ended. There is no time limit: a mount that was away for long still finds
//! its files.

use super::change::Result;
use super::image::MetadataImage;
use crate::format::{OrphanRecord, OrphanState, TableKey, TableKind};
use crate::protocol::{MetadataOperation, ServerAnswer, ServerRefusal};

impl MetadataImage {
    /// Notes that a session has an inode open.
    pub(super) fn open(&mut self, session: u64, inode: u64) {
        self.opened.entry(inode).or_default().insert(session);
        self.dying.remove(&inode);
    }

    /// Whether an inode has no name and no session has it open: what was written to it may be dropped, and it is only not
    /// freed yet. After a restart any session that has not listed its open files may have it open.
    pub(super) fn is_removed(&self, inode: u64) -> bool {
        let is_orphan = self.tables.get(&TableKey::Orphan(inode)).is_some();
        is_orphan && self.awaited.is_empty() && !self.opened.contains_key(&inode)
    }

    pub(super) fn close(&mut self, session: u64, inode: u64) {
        if let Some(sessions) = self.opened.get_mut(&inode) {
            sessions.remove(&session);
            if !sessions.is_empty() {
                return;
            }
            self.opened.remove(&inode);
        }
        if self.awaited.is_empty() && self.tables.get(&TableKey::Orphan(inode)).is_some() {
            self.dying.insert(inode);
        }
    }

    /// Closes all inodes of a session that has ended.
    pub(super) fn close_all(&mut self, session: u64) {
        let inodes: Vec<u64> = self.opened.keys().copied().collect();
        inodes.into_iter().for_each(|inode| self.close(session, inode));
        if self.awaited.remove(&session) {
            self.collect_orphans();
        }
    }

    /// Notes that a session from before the restart has listed all inodes that it has open.
    ///
    /// *Errors*: the session has ended.
    pub fn reclaimed(&mut self, session: u64) -> Result<()> {
        self.session(session)?;
        if self.awaited.remove(&session) {
            self.collect_orphans();
        }
        Ok(())
    }

    /// Frees orphans that no session has open, in the background. While earlier sessions have not listed their open
    /// files, frees only orphans that none of these sessions can have open.
    pub(super) fn collect_orphans(&mut self) {
        let is_known = self.awaited.is_empty();
        let found = self.tables.table(TableKind::Orphans).iter().filter_map(|(key, value)| {
            let Ok(TableKey::Orphan(inode)) = TableKey::decode(TableKind::Orphans, key) else { return None };
            let is_being_freed =
                OrphanRecord::decode(value).is_ok_and(|orphan| orphan.state == OrphanState::BeingFreed);
            let is_free = is_known || is_being_freed;
            (is_free && !self.opened.contains_key(&inode)).then_some(inode)
        });
        let found: Vec<u64> = found.collect();
        self.dying.extend(found);
    }

    /// Returns the stored answer of an operation that is sent again. If the operation opened an inode, the inode is
    /// marked as open again, because open files are in memory only.
    pub fn repeat(
        &mut self,
        session: u64,
        number: u64,
        operation: &MetadataOperation,
    ) -> Option<std::result::Result<ServerAnswer, ServerRefusal>> {
        let stored = self.stored_reply(session, number);
        if let (MetadataOperation::Create { open: true, .. }, Some(Ok(ServerAnswer::Attributes(made)))) =
            (operation, &stored)
        {
            self.open(session, made.number);
        }
        stored
    }
}
