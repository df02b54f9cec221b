//! Which files each session has open, and inodes without a name (orphans).
//!
//! Owns: which inodes each session has open; this is in memory only. Promises: an inode without a name is freed only
//! when no session has it open, and no further session opens it. After a restart, an inode that a session may have open is freed only when every earlier
//! session has listed its open files or has ended. There is no time limit: a mount that was away for long still finds
//! its files.

use std::collections::BTreeSet;

use super::change::Result;
use super::image::MetadataImage;
use crate::format::{LOST_TO_OTHERS, OrphanRecord, OrphanState, TableKey, TableKind};
use crate::protocol::{InodeAttributes, MetadataOperation, ServerAnswer, ServerRefusal};
use crate::tables::MetadataTables;

/// Whether no session had an inode open when it lost its last name. It may be gone at any time, also after a restart
/// before sessions repeat what they were told is done. So nothing of it may be opened or changed.
pub(super) fn is_being_freed(tables: &MetadataTables, inode: u64) -> bool {
    let orphan = tables.get(&TableKey::Orphan(inode)).and_then(|value| OrphanRecord::decode(value).ok());
    orphan.is_some_and(|orphan| orphan.state == OrphanState::BeingFreed)
}

impl MetadataImage {
    /// Notes that a session has an inode open.
    pub(super) fn open(&mut self, session: u64, inode: u64) {
        self.opened.entry(inode).or_default().insert(session);
        self.dying.remove(&inode);
    }

    /// Whether a session may open an inode. One without a name stays open only where it is: the session that removed the
    /// name may have dropped what it had written, and an inode that is being freed is freed after a restart, too. After a
    /// restart a session lists what it has open.
    pub(super) fn may_open(&self, session: u64, inode: u64) -> bool {
        if self.tables.get(&TableKey::Orphan(inode)).is_none() {
            return true;
        }
        let has_it_open = self.opened.get(&inode).is_some_and(|sessions| sessions.contains(&session));
        !is_being_freed(&self.tables, inode) && (has_it_open || self.awaited.contains(&session))
    }

    /// Sets the flag in attributes that says whether the inode is lost to all other sessions: it has no name, and none of
    /// them has it open or may open it.
    pub fn flag_lost(&self, session: u64, attributes: &mut InodeAttributes) {
        let of_others = |sessions: &BTreeSet<u64>| sessions.iter().any(|other| *other != session);
        let is_used = self.opened.get(&attributes.number).is_some_and(of_others);
        if attributes.inode.links == 0 && self.awaited.is_empty() && !is_used {
            attributes.inode.flags |= LOST_TO_OTHERS;
        }
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
        let found = self.tables.table(TableKind::Orphans).keys().filter_map(|key| {
            let Ok(TableKey::Orphan(inode)) = TableKey::decode(TableKind::Orphans, key) else { return None };
            let is_free = is_known || is_being_freed(&self.tables, inode);
            (is_free && !self.opened.contains_key(&inode)).then_some(inode)
        });
        let found: Vec<u64> = found.collect();
        self.dying.extend(found);
    }

    /// Returns the stored answer of an operation that is sent again. If the operation opened an inode and `opens` is set,
    /// the inode is marked as open again, because open files are in memory only.
    pub fn repeat(
        &mut self,
        (session, number): (u64, u64),
        operation: &MetadataOperation,
        opens: bool,
    ) -> Option<std::result::Result<ServerAnswer, ServerRefusal>> {
        let stored = self.stored_reply(session, number);
        if let (MetadataOperation::Create { open: true, .. }, Some(Ok(ServerAnswer::Attributes(made)))) =
            (operation, &stored)
            && opens
        {
            self.open(session, made.number);
        }
        stored
    }
}
