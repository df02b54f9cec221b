//! Ends of files that kernels of other hosts are told.
//!
//! Owns: which sessions read what with `O_DIRECT`, and pushes that they have not confirmed. A kernel answers asynchronous
//! direct reads behind the end that it knows by itself, with nothing. Promises: who wrote behind the end hears that all
//! these kernels know the new one, or that their sessions are over. Leaves to others: when a session is over (`grants`).
//!
//! *Circle*: as `request`: requests have the replies of `connection`.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::connection::Reply;
use crate::protocol::{Answer, FileId, Message};

/// A push that somebody has not confirmed.
struct Pending {
    file: FileId,
    size: u64,
    waits_for: BTreeSet<u64>,
    reply: Reply,
}

/// Who watches what, and what they were told.
#[derive(Default)]
pub(super) struct Pushes {
    /// By inode.
    watchers: HashMap<u64, BTreeSet<u64>>,
    last: u64,
    pending: BTreeMap<u64, Pending>,
    /// Those that came before every session of before a restart had said what it has open.
    early: Vec<(u64, FileId, u64, Reply)>,
}

impl Pushes {
    /// A session reads a file with `O_DIRECT`.
    pub fn watch(&mut self, session: u64, inode: u64) {
        self.watchers.entry(inode).or_default().insert(session);
    }

    /// It does not any more.
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

    /// Whether another session than this one reads a file with `O_DIRECT`.
    pub fn is_watched(&self, inode: u64, except: u64) -> bool {
        self.watchers.get(&inode).is_some_and(|sessions| sessions.iter().any(|session| *session != except))
    }

    /// A session wrote behind the end. Returns whom to tell, and what. `is_grace`: watchers may be missing still.
    pub fn push(
        &mut self,
        session: u64,
        (file, size): (FileId, u64),
        reply: Reply,
        is_grace: bool,
    ) -> Vec<(u64, Message)> {
        if is_grace {
            self.early.push((session, file, size, reply));
            return Vec::new();
        }
        let mut waits_for = self.watchers.get(&file.inode).cloned().unwrap_or_default();
        waits_for.remove(&session);
        self.last += 1;
        let number = self.last;
        let told = waits_for.iter().map(|watcher| (*watcher, Message::Push { file, size, number })).collect();
        self.pending.insert(number, Pending { file, size, waits_for, reply });
        self.answer();
        told
    }

    /// Every session of before a restart has said what it has open.
    pub fn end_grace(&mut self) -> Vec<(u64, Message)> {
        let early = std::mem::take(&mut self.early);
        early
            .into_iter()
            .flat_map(|(session, file, size, reply)| self.push(session, (file, size), reply, false))
            .collect()
    }

    /// A session's kernel knows.
    pub fn pushed(&mut self, session: u64, number: u64) {
        if let Some(pending) = self.pending.get_mut(&number) {
            pending.waits_for.remove(&session);
            self.answer();
        }
    }

    /// What a session has not confirmed, for its new connection.
    pub fn repeat(&self, session: u64) -> Vec<Message> {
        let own = self.pending.iter().filter(|(_, pending)| pending.waits_for.contains(&session));
        own.map(|(number, Pending { file, size, .. })| Message::Push { file: *file, size: *size, number: *number })
            .collect()
    }

    /// Sessions that others wait for.
    pub fn awaited(&self) -> impl Iterator<Item = u64> {
        self.pending.values().flat_map(|pending| pending.waits_for.iter().copied())
    }

    /// A session is over.
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
                pending.reply.send(Ok(Answer::Done));
            }
        }
    }
}
