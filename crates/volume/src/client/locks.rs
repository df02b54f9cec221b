//! Locks of programs: `flock` and `fcntl`.
//!
//! Owns: the translation of programs' calls to the server's locks, and which locks this host holds, for a server that
//! has restarted. Promises: a released lock is never claimed again.

use nectary_host::log::{Level, write as log};

use super::error::Error;
use super::{Client, OpenFile};
use crate::protocol::Locked;

/// A lock of a program, or what is in its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileLock {
    /// Who holds it, within this mount.
    pub owner: u64,
    /// The process.
    pub process: u32,
    /// It comes from `flock`.
    pub is_flock: bool,
    /// It excludes others.
    pub is_exclusive: bool,
    /// *Units*: bytes.
    pub start: u64,
    /// Its last byte. *Units*: bytes.
    pub last: u64,
}

impl OpenFile {
    fn locked(&self, lock: FileLock) -> Locked {
        let FileLock { owner, process, is_flock, is_exclusive, start, last } = lock;
        Locked { file: self.id(), owner, process, is_flock, is_exclusive, start, last }
    }

    /// Locks a range; with `given_up` it waits until that is over.
    ///
    /// *Errors*: EAGAIN, if another owner holds it and it does not wait; EINTR, if it was given up; EDEADLK.
    pub async fn lock(&self, lock: FileLock, given_up: Option<impl Future<Output = ()>>) -> Result<(), Error> {
        let (client, file) = self.parts();
        let locked = self.locked(lock);
        let session = &client.shared.session;
        // A request that waits and one that does not are different calls of the session.
        let tried = session.try_lock(locked).await;
        match (tried, given_up) {
            (Err(error), Some(given_up)) if error.errno() == libc::EAGAIN => session.lock(locked, given_up).await?,
            (tried, _) => tried?,
        }
        file.locks().set(0, locked);
        Ok(())
    }

    /// Gives a range up.
    pub async fn unlock(&self, lock: FileLock) -> Result<(), Error> {
        let (client, file) = self.parts();
        let locked = self.locked(lock);
        // This comes first, so that a server that restarts meanwhile is not told of the lock.
        file.locks().clear(0, &locked);
        client.shared.session.unlock(locked).await
    }

    /// Gives up whatever an owner holds.
    pub async fn unlock_all(&self, owner: u64, is_flock: bool) -> Result<(), Error> {
        let (_, file) = self.parts();
        if !file.locks().has(0, owner, is_flock) {
            return Ok(());
        }
        let all = FileLock { owner, process: 0, is_flock, is_exclusive: false, start: 0, last: u64::MAX };
        self.unlock(all).await
    }

    /// What is in the way of a lock.
    pub async fn test_lock(&self, lock: FileLock) -> Result<Option<FileLock>, Error> {
        let (client, _) = self.parts();
        let found = client.shared.session.test_lock(self.locked(lock)).await?;
        Ok(found.map(|found| {
            let Locked { owner, process, is_flock, is_exclusive, start, last, .. } = found;
            FileLock { owner, process, is_flock, is_exclusive, start, last }
        }))
    }
}

impl Client {
    /// A lock could not be claimed from a server that was started.
    pub(super) fn note_lost_lock(&self, lock: &Locked, error: &Error) {
        let (inode, process) = (lock.file.inode, lock.process);
        log(Level::Error, "volume", format_args!("inode {inode}: the lock of process {process} is lost: {error}"));
    }
}
