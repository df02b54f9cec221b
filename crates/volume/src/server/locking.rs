//! The owner's file locks: requests that wait for a lock, and requests that came too early after a restart.
//!
//! Owns: which request each ticket of `tokens::Locks` belongs to. Promises: after a restart no lock is granted until
//! every earlier session has named its locks or has ended. Such a session names them by lock requests that do not wait.
//!
//! *Circle*: as `request`: requests have the replies of `connection`.

use std::collections::HashMap;

use super::connection::Reply;
use super::long_waits::WaitSubject;
use crate::protocol::{Answer, Code, Failure, Locked, Message};
use crate::tokens::{Locks, Outcome};

/// What a session wants from a file lock.
pub(super) enum Wish {
    /// To get the lock; the flag says whether to wait for it.
    Lock(Locked, bool),
    /// To release the lock.
    Unlock(Locked),
    /// To learn which lock conflicts.
    Test(Locked),
    /// To cancel a request that waits.
    Cancel(u64),
}

struct Waiting {
    session: u64,
    inode: u64,
    reply: Reply,
}

/// The locks, and the requests that wait for them.
#[derive(Default)]
pub(super) struct Locking {
    locks: Locks,
    next_ticket: u64,
    waiting: HashMap<u64, Waiting>,
    /// Requests that came before every earlier session had named its locks.
    early: Vec<(u64, Wish, Reply)>,
}

fn refusal(code: Code, errno: i32, words: &str) -> Failure {
    Failure { code, errno, words: words.to_owned() }
}

impl Locking {
    /// Handles what a session wants. `is_grace`: some session from before a restart has not named its locks yet;
    /// `is_expected`: this session has not.
    pub fn wish(&mut self, session: u64, wish: Wish, reply: Reply, is_grace: bool, is_expected: bool) {
        let waits_for_others = match &wish {
            Wish::Lock(_, waits) => !is_expected || *waits,
            Wish::Test(_) => true,
            Wish::Unlock(_) | Wish::Cancel(_) => false,
        };
        if is_grace && waits_for_others {
            return self.early.push((session, wish, reply));
        }
        match wish {
            Wish::Lock(lock, waits) => self.lock(session, lock, waits, reply),
            Wish::Unlock(lock) => {
                let granted = self.locks.unlock(session, &lock);
                reply.send(Ok(Answer::Done));
                self.grant(granted);
            }
            Wish::Test(lock) => reply.say(&Message::LockFound { lock: self.locks.test(session, &lock) }),
            Wish::Cancel(request) => {
                self.cancel(session, request);
                reply.send(Ok(Answer::Done));
            }
        }
    }

    /// Handles early requests, once every session from before a restart has named its locks.
    pub fn end_grace(&mut self) {
        for (session, wish, reply) in std::mem::take(&mut self.early) {
            self.wish(session, wish, reply, false, false);
        }
    }

    /// Removes a session that is over.
    pub fn forget(&mut self, session: u64) {
        self.early.retain(|(of, ..)| *of != session);
        self.waiting.retain(|_, waiting| waiting.session != session);
        let granted = self.locks.forget(session);
        self.grant(granted);
    }

    /// Returns the sessions that hold locks which others want.
    pub fn awaited(&mut self) -> Vec<u64> {
        self.locks.awaited()
    }

    /// Whether requests still wait for sessions from before a restart.
    pub fn is_early(&self) -> bool {
        !self.early.is_empty()
    }

    /// Returns the requests that wait: what each is about, the inode, and its reply.
    pub fn waiting(&self) -> impl Iterator<Item = (WaitSubject, u64, &Reply)> {
        let waiting = self.waiting.values().map(|waiting| (WaitSubject::Lock, waiting.inode, &waiting.reply));
        let early = self.early.iter().map(|(_, wish, reply)| {
            let inode = match wish {
                Wish::Lock(lock, _) | Wish::Unlock(lock) | Wish::Test(lock) => lock.file.inode,
                Wish::Cancel(_) => 0,
            };
            (WaitSubject::EarlyLock, inode, reply)
        });
        waiting.chain(early)
    }

    /// Returns the numbers of locks held and of requests that wait.
    pub fn counts(&self) -> (usize, usize) {
        self.locks.counts()
    }

    fn lock(&mut self, session: u64, lock: Locked, waits: bool, reply: Reply) {
        self.next_ticket += 1;
        let ticket = self.next_ticket;
        let refused = match self.locks.lock(session, ticket, lock, waits) {
            Outcome::Granted => return reply.send(Ok(Answer::Done)),
            Outcome::Waits => {
                return drop(self.waiting.insert(ticket, Waiting { session, inode: lock.file.inode, reply }));
            }
            Outcome::Refused => refusal(Code::Conflict, libc::EAGAIN, "another owner holds the lock"),
            Outcome::Deadlock => refusal(Code::Posix, libc::EDEADLK, "the lock would be waited for without end"),
            Outcome::TooMany => refusal(Code::Limit, libc::ENOLCK, "the file has too many locks, or waiters for them"),
        };
        reply.send(Err(refused));
    }

    fn cancel(&mut self, session: u64, request: u64) {
        let interrupted = || Err(refusal(Code::Posix, libc::EINTR, "the wait for the lock was given up"));
        let of = |waiting: &Waiting| waiting.session == session && waiting.reply.request() == request;
        let found = self.waiting.iter().find(|(_, waiting)| of(waiting)).map(|(ticket, _)| *ticket);
        if let Some(ticket) = found
            && self.locks.cancel(ticket)
            && let Some(waiting) = self.waiting.remove(&ticket)
        {
            waiting.reply.send(interrupted());
        }
        let is_early = |(of, _, reply): &(u64, Wish, Reply)| *of == session && reply.request() == request;
        if let Some(index) = self.early.iter().position(is_early) {
            self.early.remove(index).2.send(interrupted());
        }
    }

    fn grant(&mut self, tickets: Vec<u64>) {
        for ticket in tickets {
            if let Some(waiting) = self.waiting.remove(&ticket) {
                waiting.reply.send(Ok(Answer::Done));
            }
        }
    }
}
