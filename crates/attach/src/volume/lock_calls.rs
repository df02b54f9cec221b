//! The effect of requests for locks of programs, and of closes, which release locks.
//!
//! Owns: the order of requests and releases of the locks of a file. Leaves to others: who the owners of locks are
//! (`lock_owners`), the locks (`nectary-volume`).
//!
//! *Circle*: `serve` dispatches to these calls, and they work on its file system.

use std::sync::Arc;

use nectary_fuse::LockRange;
use nectary_volume::client::{Error, FileLock, OpenFile};
use tokio::sync::Notify;

use super::calls::{Result, This, refused};
use super::lock_owners::{EndedOwner, LockRelease};

fn of_volume(lock: LockRange, owner: u64) -> FileLock {
    let LockRange { process, is_flock, start, end, kind, .. } = lock;
    FileLock { owner, process, is_flock, is_exclusive: kind == libc::F_WRLCK, start, last: end }
}

pub async fn test_lock(this: This, node: u64, lock: LockRange) -> Result<LockRange> {
    // No owner has the number 0.
    let owner = this.lock_owners.known(node, &lock).unwrap_or(0);
    let found = this.file(lock.handle)?.test_lock(of_volume(lock, owner)).await.map_err(refused)?;
    Ok(match found {
        Some(FileLock { process, is_exclusive, start, last, .. }) => {
            let kind = if is_exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
            LockRange { kind, process, start, end: last.min(i64::MAX as u64), ..lock }
        }
        None => LockRange { kind: libc::F_UNLCK, ..lock },
    })
}

pub async fn set_lock(this: This, node: u64, lock: LockRange, given_up: Option<Arc<Notify>>) -> Result<()> {
    let file = this.file(lock.handle)?;
    if lock.kind == libc::F_UNLCK {
        let Some(owner) = this.lock_owners.known(node, &lock) else { return Ok(()) };
        this.given_up.ended().await;
        this.lock_owners.unlocked(node, &lock);
        return file.unlock(of_volume(lock, owner)).await.map_err(refused);
    }
    let wish = loop {
        // The program knows that it has closed a file, so the lock of that file must be free.
        this.lock_owners.settled(node).await;
        if let Some(wish) = this.lock_owners.begin(node, &lock) {
            break wish;
        }
    };
    let given_up = given_up.map(|given_up| async move { given_up.notified().await });
    let locked = file.lock(of_volume(lock, wish.number()), given_up).await.map_err(refused);
    if locked.is_ok() {
        wish.granted(&lock);
    }
    if let Some(release) = wish.finish() {
        // An error means that the session has ended, and the locks with it.
        let _ = release_locks(&file, &release, &[]).await;
    }
    locked
}

/// Releases the locks of owners that have ended. `file` is the handle whose end or close that is, and `others` are open.
pub async fn release_locks(
    file: &OpenFile,
    release: &LockRelease,
    others: &[Arc<OpenFile>],
) -> std::result::Result<(), Error> {
    let mut released = Ok(());
    for EndedOwner { number, is_flock, ranges, .. } in &release.ended {
        for (start, last) in ranges.iter().flatten().copied() {
            let lock = FileLock { owner: *number, process: 0, is_flock: *is_flock, is_exclusive: false, start, last };
            released = released.and(file.unlock(lock).await);
        }
        if ranges.is_some() {
            continue;
        }
        for other in others {
            // A handle of another session has its own locks.
            let _ = other.unlock_all(*number, *is_flock).await;
        }
        released = released.and(file.unlock_all(*number, *is_flock).await);
    }
    released
}

/// Handles the close of a descriptor by a process.
pub async fn flush(this: This, handle: u64, ended: Option<LockRelease>) -> Result<()> {
    let file = this.file(handle)?;
    // When a program closes any descriptor of a file, it loses its locks on the file: before the flush, which may take
    // long, as requests for other locks of the file wait for it. Others see what was written, flushed or not.
    let unlocked = match &ended {
        Some(release) => {
            // A change in which the program was killed is done before another program gets the locks.
            this.given_up.ended().await;
            let handles = release.ended.iter().flat_map(|owner| &owner.handles);
            let others: Vec<_> = handles.filter_map(|other| this.file(*other).ok()).collect();
            release_locks(&file, release, &others).await
        }
        None => Ok(()),
    };
    drop(ended);
    file.flush().await.and(unlocked).map_err(refused)
}
