//! The owner's file locks: requests that wait for a lock, and requests that came too early after a restart.
//!
//! Owns: which request each ticket of `tokens::VolumeLocks` belongs to. Promises: after a restart no lock is granted until
//! every earlier session has named its locks or has ended. Such a session names them by lock requests that do not wait.
//!
//! *Circle*: as `request`: requests have the replies of `connection`.

use std::collections::HashMap;

use super::connection::ReplySender;
use super::long_waits::WaitSubject;
use crate::protocol::{FileLockRange, RefusalCode, ServerAnswer, ServerRefusal, VolumeMessage};
use crate::tokens::{LockOutcome, VolumeLocks};

/// What a session wants from a file lock.
pub(super) enum LockRequest {
    /// To get the lock; the flag says whether to wait for it.
    Lock(FileLockRange, bool),
    /// To release the lock.
    Unlock(FileLockRange),
    /// To learn which lock conflicts.
    Test(FileLockRange),
    /// To cancel a request that waits.
    Cancel(u64),
}

struct LockWaiter {
    session: u64,
    inode: u64,
    reply: ReplySender,
}

/// The locks, and the requests that wait for them.
#[derive(Default)]
pub(super) struct LockQueue {
    locks: VolumeLocks,
    next_ticket: u64,
    waiting: HashMap<u64, LockWaiter>,
    /// Requests that came before every earlier session had named its locks.
    early: Vec<(u64, LockRequest, ReplySender)>,
}

fn refusal(code: RefusalCode, errno: i32, words: &str) -> ServerRefusal {
    ServerRefusal { code, errno, words: words.to_owned() }
}

fn too_many() -> ServerRefusal {
    let words = "the file or the session has too many locks, or the file too many waiters for them";
    refusal(RefusalCode::Limit, libc::ENOLCK, words)
}

impl LockQueue {
    /// Handles what a session wants. `is_grace`: some session from before a restart has not named its locks yet;
    /// `is_expected`: this session has not.
    pub fn wish(&mut self, session: u64, wish: LockRequest, reply: ReplySender, is_grace: bool, is_expected: bool) {
        let waits_for_others = match &wish {
            LockRequest::Lock(_, waits) => !is_expected || *waits,
            LockRequest::Test(_) => true,
            LockRequest::Unlock(_) | LockRequest::Cancel(_) => false,
        };
        if matches!(wish, LockRequest::Lock(..)) {
            self.forget_repeated(session, reply.request());
        }
        if is_grace && waits_for_others {
            return self.early.push((session, wish, reply));
        }
        match wish {
            LockRequest::Lock(lock, waits) => self.lock(session, lock, waits, reply),
            LockRequest::Unlock(lock) => match self.locks.unlock(session, &lock) {
                Some(granted) => {
                    reply.send(Ok(ServerAnswer::Done));
                    self.grant(granted);
                }
                None => reply.send(Err(too_many())),
            },
            LockRequest::Test(lock) => reply.say(&VolumeMessage::LockFound { lock: self.locks.test(session, &lock) }),
            LockRequest::Cancel(request) => {
                self.cancel(session, request);
                reply.send(Ok(ServerAnswer::Done));
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
    pub fn waiting(&self) -> impl Iterator<Item = (WaitSubject, u64, &ReplySender)> {
        let waiting = self.waiting.values().map(|waiting| (WaitSubject::Lock, waiting.inode, &waiting.reply));
        let early = self.early.iter().map(|(_, wish, reply)| {
            let inode = match wish {
                LockRequest::Lock(lock, _) | LockRequest::Unlock(lock) | LockRequest::Test(lock) => lock.file.inode,
                LockRequest::Cancel(_) => 0,
            };
            (WaitSubject::EarlyLock, inode, reply)
        });
        waiting.chain(early)
    }

    /// Returns the numbers of locks held and of requests that wait.
    pub fn counts(&self) -> (usize, usize) {
        self.locks.counts()
    }

    fn lock(&mut self, session: u64, lock: FileLockRange, waits: bool, reply: ReplySender) {
        self.next_ticket += 1;
        let ticket = self.next_ticket;
        let outcome = self.locks.lock(session, ticket, lock, waits);
        match outcome {
            LockOutcome::Granted => reply.send(Ok(ServerAnswer::Done)),
            LockOutcome::Waits => {
                drop(self.waiting.insert(ticket, LockWaiter { session, inode: lock.file.inode, reply }));
            }
            LockOutcome::Refused => {
                reply.send(Err(refusal(RefusalCode::Conflict, libc::EAGAIN, "another owner holds the lock")))
            }
            LockOutcome::Deadlock => {
                reply.send(Err(refusal(RefusalCode::Posix, libc::EDEADLK, "the lock would be waited for without end")));
            }
            LockOutcome::TooMany => reply.send(Err(too_many())),
        }
        // What the owner held before may be shared or free now.
        if outcome == LockOutcome::Granted || lock.is_flock {
            let granted = self.locks.wake(lock.file);
            self.grant(granted);
        }
    }

    /// Removes a request that came on an earlier connection and is repeated now.
    fn forget_repeated(&mut self, session: u64, request: u64) {
        let is_this = |of: u64, reply: &ReplySender| of == session && reply.request() == request;
        self.early.retain(|(of, _, reply)| !is_this(*of, reply));
        let locks = &mut self.locks;
        self.waiting.retain(|ticket, waiting| {
            let is_repeated = is_this(waiting.session, &waiting.reply);
            if is_repeated {
                locks.cancel(*ticket);
            }
            !is_repeated
        });
    }

    fn cancel(&mut self, session: u64, request: u64) {
        let interrupted = || Err(refusal(RefusalCode::Posix, libc::EINTR, "the wait for the lock was given up"));
        let of = |waiting: &LockWaiter| waiting.session == session && waiting.reply.request() == request;
        let found = self.waiting.iter().find(|(_, waiting)| of(waiting)).map(|(ticket, _)| *ticket);
        if let Some(ticket) = found
            && self.locks.cancel(ticket)
            && let Some(waiting) = self.waiting.remove(&ticket)
        {
            waiting.reply.send(interrupted());
        }
        let is_early = |(of, _, reply): &(u64, LockRequest, ReplySender)| *of == session && reply.request() == request;
        if let Some(index) = self.early.iter().position(is_early) {
            self.early.remove(index).2.send(interrupted());
        }
    }

    fn grant(&mut self, tickets: Vec<u64>) {
        for ticket in tickets {
            if let Some(waiting) = self.waiting.remove(&ticket) {
                waiting.reply.send(Ok(ServerAnswer::Done));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;
    use crate::protocol::FileId;
    use crate::server::connection::Frames;

    fn lock(owner: u64) -> FileLockRange {
        let file = FileId { inode: 7, generation: 1 };
        FileLockRange { file, owner, process: 1, is_flock: false, is_exclusive: true, start: 0, last: 9 }
    }

    /// Requests of session 1 on one connection.
    struct Requests {
        queue: LockQueue,
        frames: Frames,
        sent: mpsc::UnboundedReceiver<Vec<u8>>,
    }

    impl Requests {
        fn new() -> Requests {
            let (frames, sent) = mpsc::unbounded_channel();
            Requests { queue: LockQueue::default(), frames, sent }
        }

        fn ask(&mut self, request: u64, wish: LockRequest, is_grace: bool) {
            let reply = ReplySender::of_request(&self.frames, (1, 1, request));
            self.queue.wish(1, wish, reply, is_grace, false);
        }

        /// The requests that were answered since the last call, each with the error number or 0.
        fn answers(&mut self) -> Vec<(u64, i32)> {
            let mut answers = Vec::new();
            while let Ok(frame) = self.sent.try_recv() {
                let (header, message) = VolumeMessage::decode(&frame).expect("it decodes");
                let errno = if let VolumeMessage::Failure(failure) = message { failure.errno } else { 0 };
                answers.push((header.request, errno));
            }
            answers
        }
    }

    /// Two threads of a process wait for the same range.
    #[test]
    fn equal_requests_are_all_answered() {
        let mut requests = Requests::new();
        requests.ask(1, LockRequest::Lock(lock(5), false), false);
        for request in [2, 3] {
            requests.ask(request, LockRequest::Lock(lock(6), true), false);
        }
        assert_eq!(requests.answers(), [(1, 0)]);
        requests.ask(4, LockRequest::Cancel(2), false);
        assert_eq!(requests.answers(), [(2, libc::EINTR), (4, 0)]);
        requests.ask(5, LockRequest::Lock(lock(6), true), false);
        requests.ask(6, LockRequest::Unlock(lock(5)), false);
        assert_eq!(requests.answers(), [(6, 0), (3, 0), (5, 0)]);
        assert_eq!(requests.queue.counts(), (1, 0));
    }

    /// An owner that shares what it had alone lets others in that wait.
    #[test]
    fn shared_lock_wakes_waiters() {
        let mut requests = Requests::new();
        let shared = |owner| FileLockRange { is_exclusive: false, ..lock(owner) };
        requests.ask(1, LockRequest::Lock(lock(5), false), false);
        requests.ask(2, LockRequest::Lock(shared(6), true), false);
        requests.ask(3, LockRequest::Lock(lock(7), true), false);
        assert_eq!(requests.answers(), [(1, 0)]);
        requests.ask(4, LockRequest::Lock(shared(5), false), false);
        assert_eq!(requests.answers(), [(4, 0), (2, 0)]);
        assert_eq!(requests.queue.counts(), (2, 1));
    }

    /// Two owners that share a `flock` both want it alone: the first releases what it has, so the second gets it.
    #[test]
    fn shared_flocks_become_exclusive() {
        let mut requests = Requests::new();
        let whole = |owner, is_exclusive| FileLockRange { is_flock: true, is_exclusive, ..lock(owner) };
        requests.ask(1, LockRequest::Lock(whole(5, false), false), false);
        requests.ask(2, LockRequest::Lock(whole(6, false), false), false);
        requests.ask(3, LockRequest::Lock(whole(5, true), true), false);
        assert_eq!(requests.answers(), [(1, 0), (2, 0)]);
        requests.ask(4, LockRequest::Lock(whole(6, true), true), false);
        assert_eq!(requests.answers(), [(4, 0)]);
        // The same kind again is held all the time.
        requests.ask(5, LockRequest::Lock(whole(6, true), false), false);
        assert_eq!(requests.answers(), [(5, 0)]);
        requests.ask(6, LockRequest::Unlock(whole(6, true)), false);
        assert_eq!(requests.answers(), [(6, 0), (3, 0)]);
        assert_eq!(requests.queue.counts(), (1, 0));
    }

    /// A request that is repeated on a new connection is there once, so that its cancellation finds it.
    #[test]
    fn repeated_request_waits_once() {
        for is_grace in [false, true] {
            let mut requests = Requests::new();
            requests.ask(1, LockRequest::Lock(lock(5), false), false);
            for _ in 0..20 {
                requests.ask(2, LockRequest::Lock(lock(6), true), is_grace);
                let (frames, sent) = mpsc::unbounded_channel();
                (requests.frames, requests.sent) = (frames, sent);
            }
            requests.ask(2, LockRequest::Lock(lock(6), true), is_grace);
            assert_eq!(requests.queue.waiting().count(), 1);
            requests.ask(3, LockRequest::Cancel(2), is_grace);
            assert_eq!(requests.answers(), [(2, libc::EINTR), (3, 0)], "grace: {is_grace}");
            requests.queue.end_grace();
            requests.ask(4, LockRequest::Unlock(lock(5)), false);
            assert_eq!((requests.queue.counts(), requests.queue.waiting().count()), ((0, 0), 0));
        }
    }
}
