//! Tells the kernels of other hosts where a file ends.
//!
//! Owns: which sessions read which file with `O_DIRECT`, and end-of-file pushes that they have not confirmed. A kernel
//! answers asynchronous direct reads beyond the end of file that it knows without a request, as empty. Promises: a
//! session that wrote beyond the end gets its answer only when all these kernels know the new end, or their sessions
//! are over. Leaves to others: the decision that a session is over (`grants`).
//!
//! *Circle*: as `request`: requests have the replies of `connection`.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::connection::ReplySender;
use super::long_waits::WaitSubject;
use crate::protocol::{FileId, ServerAnswer, VolumeMessage};

/// A push that at least one session has not confirmed.
struct PendingPush {
    file: FileId,
    size: u64,
    waits_for: BTreeSet<u64>,
    reply: ReplySender,
}

/// The sessions that watch each file, and the pushes sent to them.
#[derive(Default)]
pub(super) struct SizePushes {
    /// Sessions that watch a file, by inode.
    watchers: HashMap<u64, BTreeSet<u64>>,
    last: u64,
    pending: BTreeMap<u64, PendingPush>,
    /// Pushes that came after a restart, before every earlier session had said what it has open.
    early: Vec<(u64, FileId, u64, ReplySender)>,
}

impl SizePushes {
    /// Notes that a session reads a file with `O_DIRECT`.
    pub fn watch(&mut self, session: u64, inode: u64) {
        self.watchers.entry(inode).or_default().insert(session);
    }

    /// Notes that a session no longer reads the file with `O_DIRECT`.
    pub fn unwatch(&mut self, session: u64, inode: u64) {
        if let Some(sessions) = self.watchers.get_mut(&inode) {
            sessions.remove(&session);
            if sessions.is_empty() {
                self.watchers.remove(&inode);
            }
        }
        let own = self.pending.iter_mut().filter(|(_, pending)| pending.file.inode == inode);
        own.for_each(|(_, pending)| _ = pending.waits_for.remove(&session));
        self.answer();
    }

    /// Whether a session other than `except` reads the file with `O_DIRECT`.
    pub fn is_watched(&self, inode: u64, except: u64) -> bool {
        self.watchers.get(&inode).is_some_and(|sessions| sessions.iter().any(|session| *session != except))
    }

    /// Handles a session's write beyond the end of a file. Returns the messages to send, with the session that each is
    /// for. `is_grace`: sessions from before a restart may still have to name files that they watch.
    pub fn push(
        &mut self,
        session: u64,
        (file, size): (FileId, u64),
        reply: ReplySender,
        is_grace: bool,
    ) -> Vec<(u64, VolumeMessage)> {
        if is_grace {
            self.early.push((session, file, size, reply));
            return Vec::new();
        }
        let mut waits_for = self.watchers.get(&file.inode).cloned().unwrap_or_default();
        waits_for.remove(&session);
        self.last += 1;
        let number = self.last;
        let told = waits_for.iter().map(|watcher| (*watcher, VolumeMessage::Push { file, size, number })).collect();
        self.pending.insert(number, PendingPush { file, size, waits_for, reply });
        self.answer();
        told
    }

    /// Handles early pushes: every session from before a restart has said what it has open.
    pub fn end_grace(&mut self) -> Vec<(u64, VolumeMessage)> {
        let early = std::mem::take(&mut self.early);
        early
            .into_iter()
            .flat_map(|(session, file, size, reply)| self.push(session, (file, size), reply, false))
            .collect()
    }

    /// Notes that a session's kernel knows the new size of the file of push `number`.
    pub fn pushed(&mut self, session: u64, number: u64) {
        if let Some(pending) = self.pending.get_mut(&number) {
            pending.waits_for.remove(&session);
            self.answer();
        }
    }

    /// Returns the pushes that a session has not confirmed, to be sent on its new connection.
    pub fn repeat(&self, session: u64) -> Vec<VolumeMessage> {
        let own = self.pending.iter().filter(|(_, pending)| pending.waits_for.contains(&session));
        own.map(|(number, PendingPush { file, size, .. })| VolumeMessage::Push {
            file: *file,
            size: *size,
            number: *number,
        })
        .collect()
    }

    /// Whether pushes wait until the sessions from before a restart have reconnected or ended.
    pub fn is_early(&self) -> bool {
        !self.early.is_empty()
    }

    /// Returns the pushes that wait: what each is about, the inode, and its reply.
    pub fn waiting(&self) -> impl Iterator<Item = (WaitSubject, u64, &ReplySender)> {
        let pending = self.pending.values().map(|pending| (pending.file, &pending.reply));
        let early = self.early.iter().map(|(_, file, _, reply)| (*file, reply));
        pending.chain(early).map(|(file, reply)| (WaitSubject::Push, file.inode, reply))
    }

    /// Returns the sessions whose confirmation others wait for.
    pub fn awaited(&self) -> impl Iterator<Item = u64> {
        self.pending.values().flat_map(|pending| pending.waits_for.iter().copied())
    }

    /// Removes a session that is over.
    pub fn forget(&mut self, session: u64) {
        self.watchers.retain(|_, sessions| {
            sessions.remove(&session);
            !sessions.is_empty()
        });
        self.early.retain(|(of, ..)| *of != session);
        self.pending.values_mut().for_each(|pending| _ = pending.waits_for.remove(&session));
        self.answer();
    }

    fn answer(&mut self) {
        let done = self.pending.iter().filter(|(_, pending)| pending.waits_for.is_empty()).map(|(number, _)| *number);
        for number in done.collect::<Vec<_>>() {
            if let Some(pending) = self.pending.remove(&number) {
                pending.reply.send(Ok(ServerAnswer::Done));
            }
        }
    }
}
