//! Programs' file locks, and the check that no two programs hold one at the same time.
//!
//! Owns: who holds which lock. A program holds a lock from the return of its call until its unlock call begins, or until
//! its client's session is over; while its client's lease has ended it cannot act on the lock. It follows
//! `client/locks.rs`. Leaves to others: the server's side (`locking`).

use std::cell::RefCell;

use nectary_volume::protocol::{FileId, FileLockRange};

use super::bugs::{VolumeModelBug, planted};
use super::client::{ModelCallAnswer, ModelCallFailure, MountModel, VolumeClientModel};
use super::executor::MS;
use super::network::{ClientMessage, ModelLockRequest};
use super::servers::image::ModelRefusal;
use super::world::VolumeWorld;

/// The number of files that programs lock. They are used for nothing else.
const LOCKED_FILES: u64 = 2;
/// The first inode of these files.
const FIRST_INODE: u64 = 200;

/// A lock of a whole file: the file and the owner.
pub type Lock = (u64, u64);

/// Returns the lock as the protocol has it.
pub fn whole((file, owner): Lock) -> FileLockRange {
    let file = FileId { inode: FIRST_INODE + file, generation: 1 };
    FileLockRange { file, owner, process: 1, is_flock: true, is_exclusive: true, start: 0, last: u64::MAX }
}

/// Returns the lock as the model has it.
pub fn locked(lock: &FileLockRange) -> Lock {
    (lock.file.inode - FIRST_INODE, lock.owner)
}

/// The programs that hold locks: the client, and the lock.
#[derive(Debug, Default)]
pub struct LockHolders(RefCell<Vec<(usize, Lock)>>);

impl LockHolders {
    /// Forgets a client whose programs or whose session are over.
    pub fn forget(&self, client: usize) {
        self.0.borrow_mut().retain(|(of, _)| *of != client);
    }

    fn remove(&self, client: usize, lock: Lock) {
        self.0.borrow_mut().retain(|held| *held != (client, lock));
    }
}

impl VolumeWorld {
    /// Checks that of the programs that may act now no two hold the same lock.
    pub fn check_locks(&self) {
        for file in 0..LOCKED_FILES {
            let holders = self.holders.0.borrow();
            let holders = holders.iter().filter(|(_, (of, _))| *of == file);
            let acting: Vec<usize> =
                holders.map(|(client, _)| *client).filter(|client| self.client(*client).may_act(self)).collect();
            if acting.len() > 1 {
                self.break_with(format!("clients {acting:?} hold the lock of file {file} at the same time"));
            }
        }
    }

    /// Records that a program's call has returned with a lock, whatever its client's lease is.
    fn hold_lock(&self, client: &VolumeClientModel, lock: Lock) {
        let acts = |other: &&(usize, Lock)| other.1.0 == lock.0 && self.client(other.0).may_act(self);
        let other = self.holders.0.borrow().iter().find(acts).copied();
        if let Some((other, _)) = other.filter(|_| !client.is_blind()) {
            let (client, file) = (client.number, lock.0);
            self.break_with(format!("client {client} gets the lock of file {file}, which client {other} holds"));
        }
        self.holders.0.borrow_mut().push((client.number, lock));
    }
}

impl MountModel {
    async fn wish(&self, wish: ModelLockRequest) -> Result<(), ModelCallFailure> {
        match self.call(false, |request| Some((ClientMessage::Wish { request, wish }, None))).await? {
            ModelCallAnswer::Reply(Ok(_)) => Ok(()),
            ModelCallAnswer::Reply(Err(refusal)) => Err(ModelCallFailure::Refused(refusal)),
            _ => Err(ModelCallFailure::Ended),
        }
    }

    /// Locks a file, holds the lock for a while, and releases it.
    pub async fn lock_once(&self) -> Result<(), ModelCallFailure> {
        let lock = (self.world.below(LOCKED_FILES), self.world.next_value());
        let tried = self.wish(ModelLockRequest::Lock(whole(lock), false)).await;
        match tried {
            Err(ModelCallFailure::Refused(ModelRefusal::Locked)) => {
                self.wish(ModelLockRequest::Lock(whole(lock), true)).await?
            }
            tried => tried?,
        }
        self.believe().await?;
        self.world.hold_lock(&self.client, lock);
        let us = if self.world.chance(30) { self.world.below(60 * MS) } else { self.world.below(6 * MS) };
        self.world.sleep(us).await;
        // The list is changed first, so that a new server is not told of the lock.
        self.client.locks.borrow_mut().remove(&lock);
        self.world.holders.remove(self.client.number, lock);
        self.wish(ModelLockRequest::Unlock(whole(lock))).await
    }

    /// Waits until the lease holds: only then the answer that a lock is granted counts.
    async fn believe(&self) -> Result<(), ModelCallFailure> {
        let holds =
            || self.client.lease().holds(self.client.clock(&self.world)) || planted(VolumeModelBug::LockWithoutLease);
        if !holds() {
            self.world.coverage.met("16: the answer to a lock's request waits for the lease");
        }
        self.wait(|| holds() || self.client.ended.get()).await;
        self.failure()
    }
}
