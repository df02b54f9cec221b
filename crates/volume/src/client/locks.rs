//! Locks of programs: `flock` and `fcntl`.
//!
//! Owns: the translation of programs' calls to the server's locks, a session's requests for them, and the list of locks
//! that this host holds, which is needed when the server restarts. Promises: a released lock is never claimed again after
//! a restart of the server; a lock is granted to a program only under the session's lease.

use std::collections::HashSet;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::OptionFuture;
use nectary_host::log::{LogLevel, write as log};
use tokio::time::sleep;

use super::calls::{CallAnswer, CallShare, SessionCalls};
use super::error::Error;
use super::file::ActiveFile;
use super::session::{ClientSession, LaterAnswer, answered};
use super::wait_kinds::WaitKind;
use super::{OpenFile, VolumeClient};
use crate::protocol::{FileLockRange, VolumeMessage};

/// The time for which a request for a file lock waits for its turn, while as many as the server takes wait; it is longer
/// by as much for each [`LOCK_TURN_REQUESTS`] requests that wait for one.
const LOCK_TURN: Duration = Duration::from_millis(500);
const LOCK_TURN_REQUESTS: u32 = 256;

/// A lock of a program, or a conflicting lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileLock {
    /// The owner of the lock within this mount.
    pub owner: u64,
    /// The process that holds the lock.
    pub process: u32,
    /// Whether the lock comes from `flock`.
    pub is_flock: bool,
    /// Whether the lock excludes all others.
    pub is_exclusive: bool,
    /// The first locked byte. *Units*: bytes.
    pub start: u64,
    /// The last locked byte. *Units*: bytes.
    pub last: u64,
}

impl OpenFile {
    fn locked(&self, lock: FileLock) -> FileLockRange {
        let FileLock { owner, process, is_flock, is_exclusive, start, last } = lock;
        FileLockRange { file: self.id(), owner, process, is_flock, is_exclusive, start, last }
    }

    /// Locks a range for a program. With `given_up`, the call waits for the lock until that future ends; without it, it
    /// does not wait. A `flock` of the other kind is released first, as in the kernel: two owners that share a lock and
    /// both want it alone would wait for each other else.
    ///
    /// *Errors*: EAGAIN if another owner holds the lock and the call does not wait; EINTR if `given_up` ended first;
    /// EDEADLK.
    pub async fn lock(&self, lock: FileLock, given_up: Option<impl Future<Output = ()>>) -> Result<(), Error> {
        let (client, file) = self.parts();
        let locked = self.locked(lock);
        let session = &client.shared.session;
        let waits = given_up.is_some();
        let given_up = OptionFuture::from(given_up).then(ended).shared();
        let is_taken = |tried: &Result<(), Error>| tried.as_ref().is_err_and(|error| error.errno() == libc::EAGAIN);
        let is_converted = file.locks().converts(0, &locked);
        if is_converted {
            // Before the server releases it, so that a restarted one is not told of it after that.
            file.locks().clear(0, &locked);
        }
        let mut may_give_up = !is_converted;
        loop {
            let epoch = session.epoch();
            // The session has different calls for a request that waits and for one that does not. The server may hold what
            // the list does not have, after a conversion and after a request to an earlier server: then it must answer.
            let mut locking = match std::mem::replace(&mut may_give_up, false) {
                true => session.try_lock(locked, given_up.clone()).await,
                false => session.try_lock(locked, std::future::pending()).await,
            };
            if waits && is_taken(&locking) {
                locking = WaitKind::Lock.during(locked.file.inode, session.lock(locked, given_up.clone())).await;
                if is_taken(&locking) {
                    continue;
                }
            }
            locking?;
            // A newer server that was told which locks are held does not know of one that is granted after that.
            if session.at_epoch(epoch, || file.locks().set(0, locked)) {
                break;
            }
        }
        // The answer may have been late: the lock counts only while the session lives.
        session.leased().await
    }

    /// Releases a range.
    ///
    /// *Errors*: ENOLCK if that splits a range, and the file or the session has as many as it may have.
    pub async fn unlock(&self, lock: FileLock) -> Result<(), Error> {
        let (client, file) = self.parts();
        let (locked, session) = (self.locked(lock), &client.shared.session);
        let epoch = session.epoch();
        // The list is changed first, so that a server that restarts in the meantime is not told of the lock.
        let released = {
            let mut locks = file.locks();
            let released = locks.within(0, &locked);
            locks.clear(0, &locked);
            released
        };
        let unlocked = session.unlock(locked).await;
        if unlocked.as_ref().is_err_and(|error| error.errno() == libc::ENOLCK) {
            // Nothing was released.
            session.at_epoch(epoch, || released.into_iter().for_each(|held| file.locks().set(0, held)));
        }
        unlocked
    }

    /// Releases all locks of an owner.
    pub async fn unlock_all(&self, owner: u64, is_flock: bool) -> Result<(), Error> {
        let (_, file) = self.parts();
        if !file.locks().has(0, owner, is_flock) {
            return Ok(());
        }
        let all = FileLock { owner, process: 0, is_flock, is_exclusive: false, start: 0, last: u64::MAX };
        self.unlock(all).await
    }

    /// Returns a lock that conflicts.
    pub async fn test_lock(&self, lock: FileLock) -> Result<Option<FileLock>, Error> {
        let (client, _) = self.parts();
        let found = client.shared.session.test_lock(self.locked(lock)).await?;
        Ok(found.map(|found| {
            let FileLockRange { owner, process, is_flock, is_exclusive, start, last, .. } = found;
            FileLock { owner, process, is_flock, is_exclusive, start, last }
        }))
    }
}

impl ClientSession {
    /// Requests a lock without waiting for its holders. A restarted server answers once it knows what all hosts hold.
    ///
    /// *Errors*: EAGAIN if it is held; EINTR if `given_up` ended first.
    pub async fn try_lock(&self, lock: FileLockRange, given_up: impl Future<Output = ()>) -> Result<(), Error> {
        tokio::pin!(given_up);
        let begun = tokio::select! {
            biased;
            begun = self.send(CallShare::TryLocks, |_| (VolumeMessage::Lock { lock, waits: false }, None)) => begun,
            () = &mut given_up => Err(Error::posix(libc::EINTR)),
        };
        let (request, answer) = begun?;
        WaitKind::Server.during(0, self.lock_answer(request, answer, given_up)).await
    }

    /// Waits for a lock, until `given_up` ends.
    ///
    /// *Errors*: EINTR if `given_up` ended before the lock was granted; EAGAIN if the request had no turn for some
    /// time, because others wait for other locks: the lock may be free meanwhile.
    pub async fn lock(&self, lock: FileLockRange, given_up: impl Future<Output = ()>) -> Result<(), Error> {
        tokio::pin!(given_up);
        let begin = self.send(CallShare::Locks, |_| (VolumeMessage::Lock { lock, waits: true }, None));
        let queued = self.lock_queue.fetch_add(1, Ordering::Relaxed);
        let begun = tokio::select! {
            biased;
            begun = begin => begun,
            () = &mut given_up => Err(Error::posix(libc::EINTR)),
            () = sleep(LOCK_TURN * (1 + queued / LOCK_TURN_REQUESTS)) => Err(Error::posix(libc::EAGAIN)),
        };
        self.lock_queue.fetch_sub(1, Ordering::Relaxed);
        let (request, answer) = begun?;
        self.lock_answer(request, answer, given_up).await
    }

    /// Waits for the answer to a request for a lock, which is cancelled when `given_up` ends.
    async fn lock_answer(
        &self,
        request: u64,
        mut answer: LaterAnswer,
        given_up: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<(), Error> {
        tokio::select! {
            biased;
            said = &mut answer => return answered(self.said(said)?).map(drop),
            () = given_up => {}
        }
        // The lock may have been granted before the cancellation; then it is held.
        if !self.give_up(request) {
            self.call(CallShare::Questions, |_| (VolumeMessage::CancelLock { request }, None)).await?;
        }
        answered(self.said(answer.await)?).map(drop)
    }

    /// Releases a lock.
    pub async fn unlock(&self, lock: FileLockRange) -> Result<(), Error> {
        answered(self.call(CallShare::Operations, |_| (VolumeMessage::Unlock { lock }, None)).await?).map(drop)
    }

    /// Returns a lock that conflicts.
    pub async fn test_lock(&self, lock: FileLockRange) -> Result<Option<FileLockRange>, Error> {
        match self.call(CallShare::TryLocks, |_| (VolumeMessage::TestLock { lock }, None)).await? {
            CallAnswer::Found(found) => Ok(found),
            _ => Err(Error::posix(libc::EIO)),
        }
    }

    /// Tells a restarted server of a lock, if it is still held when that is sent: the release of a lock is sent after it
    /// is held no more. `is_held` is called with the state of the session locked.
    pub async fn reclaim_lock(&self, lock: FileLockRange, is_held: impl FnOnce() -> bool) -> Result<(), Error> {
        let make = |_: &mut SessionCalls| match is_held() {
            true => (VolumeMessage::Lock { lock, waits: false }, None),
            // The server does not know of it.
            false => (VolumeMessage::Unlock { lock }, None),
        };
        answered(self.call(CallShare::Restart, make).await?).map(drop)
    }
}

/// Ends when a wait is given up: never, if nothing can give it up.
async fn ended(given_up: Option<()>) {
    if given_up.is_none() {
        std::future::pending().await
    }
}

impl VolumeClient {
    /// Tells the server of this epoch which locks of a file are held. What programs release meanwhile is not claimed; what
    /// is left of a lock of which they release a part is claimed, too.
    pub(super) async fn reclaim_locks(&self, file: &ActiveFile, epoch: u64) {
        let session = &self.shared.session;
        let mut claimed = HashSet::new();
        loop {
            let held: Vec<FileLockRange> = file.locks().iter().copied().collect();
            let left: Vec<FileLockRange> = held.into_iter().filter(|lock| claimed.insert(*lock)).collect();
            if left.is_empty() {
                return;
            }
            for lock in left {
                let is_held = || file.locks().iter().any(|held| *held == lock);
                let claim = session.reclaim_lock(lock, is_held).await;
                if session.epoch() != epoch {
                    // The next server is told all of it.
                    return;
                }
                if let Err(error) = claim {
                    self.note_lost_lock(&lock, &error);
                }
            }
        }
    }

    /// Logs that a restarted server did not accept the claim of a lock.
    fn note_lost_lock(&self, lock: &FileLockRange, error: &Error) {
        let (inode, process) = (lock.file.inode, lock.process);
        log(LogLevel::Error, "volume", format_args!("inode {inode}: the lock of process {process} is lost: {error}"));
    }
}
