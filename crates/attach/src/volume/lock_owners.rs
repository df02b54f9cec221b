//! The owners of programs' locks, as the session names them.
//!
//! Owns: the numbers of owners, and which of them are being released. The kernel names an owner by the address of an open
//! file (`flock`, `F_OFD_SETLK`) or of a process's table of files (`F_SETLK`), and uses an address again at once. It says
//! that an open file is closed after `close` has returned, so that the next open file at the same address may have a
//! lock by then.
//!
//! Promises: the end of an open file releases no lock of a later one; a request for a lock waits for the releases of the
//! same file of which the kernel has told before.
//!
//! | lock | number of the owner | released by |
//! |---|---|---|
//! | `flock` | the handle, which is never used again | the end of the handle |
//! | `F_SETLK`, `F_OFD_SETLK` | one for each node and address, until that owner is released | a close by a process; the end of the last handle that it was used with, as the kernel tells of no close by an open file |

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nectary_fuse::LockRange;
use tokio::sync::Notify;

/// The owner of locks by `fcntl` on a node.
#[derive(Debug)]
struct RangeOwner {
    number: u64,
    /// The handles that it was used with.
    handles: BTreeSet<u64>,
    /// The number of requests for locks without an answer.
    requests: usize,
}

#[derive(Debug, Default)]
struct OwnerTable {
    /// By node, and by what the kernel calls the owner.
    ranges: HashMap<(u64, u64), RangeOwner>,
    /// What the kernel calls the owners that each handle was used with.
    by_handle: HashMap<u64, BTreeSet<u64>>,
    last: u64,
    /// The number of releases of a node's locks under way.
    releases: HashMap<u64, usize>,
}

impl OwnerTable {
    /// Forgets that a handle was used with an owner.
    fn forget(&mut self, handle: u64, owner: u64) {
        if let Entry::Occupied(mut of) = self.by_handle.entry(handle) {
            of.get_mut().remove(&owner);
            if of.get().is_empty() {
                of.remove();
            }
        }
    }
}

/// The owners of the locks of a mount.
#[derive(Debug, Default)]
pub struct LockOwners {
    table: Mutex<OwnerTable>,
    /// Notified when a release has ended.
    released: Notify,
}

/// A request for a lock, until it is answered.
#[derive(Debug)]
pub struct LockWish {
    owners: Arc<LockOwners>,
    /// The key of an owner of ranges.
    ranges: Option<(u64, u64)>,
    number: u64,
}

impl LockWish {
    /// Returns the number of the owner.
    pub fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for LockWish {
    fn drop(&mut self) {
        let mut table = self.owners.table();
        if let Some(owner) = self.ranges.and_then(|key| table.ranges.get_mut(&key)) {
            owner.requests = owner.requests.saturating_sub(1);
        }
    }
}

/// An owner whose locks are to be released.
#[derive(Debug, PartialEq, Eq)]
pub struct EndedOwner {
    pub number: u64,
    pub is_flock: bool,
    /// The handles that it was used with and that are open.
    pub handles: BTreeSet<u64>,
}

/// Owners whose locks are to be released. Requests for locks of the same node wait until this is dropped.
#[derive(Debug)]
pub struct LockRelease {
    owners: Arc<LockOwners>,
    node: u64,
    /// The owners.
    pub ended: Vec<EndedOwner>,
}

impl Drop for LockRelease {
    fn drop(&mut self) {
        let mut table = self.owners.table();
        if let Some(count) = table.releases.get_mut(&self.node) {
            *count -= 1;
            if *count == 0 {
                table.releases.remove(&self.node);
            }
        }
        drop(table);
        self.owners.released.notify_waiters();
    }
}

impl LockOwners {
    fn table(&self) -> MutexGuard<'_, OwnerTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the owner of a lock that is requested. The lock counts as held until its owner is released.
    pub fn begin(self: &Arc<LockOwners>, node: u64, lock: &LockRange) -> LockWish {
        if lock.is_flock {
            return LockWish { owners: self.clone(), ranges: None, number: lock.handle };
        }
        let key = (node, lock.owner);
        let mut table = self.table();
        let next = table.last + 1;
        let owner =
            table.ranges.entry(key).or_insert(RangeOwner { number: next, handles: BTreeSet::new(), requests: 0 });
        owner.handles.insert(lock.handle);
        owner.requests += 1;
        let number = owner.number;
        table.last = table.last.max(number);
        table.by_handle.entry(lock.handle).or_default().insert(lock.owner);
        LockWish { owners: self.clone(), ranges: Some(key), number }
    }

    /// Returns the owner of locks that may be held; `None`: it has none.
    pub fn known(&self, node: u64, lock: &LockRange) -> Option<u64> {
        match lock.is_flock {
            true => Some(lock.handle),
            false => self.table().ranges.get(&(node, lock.owner)).map(|owner| owner.number),
        }
    }

    /// Handles a close by a process, which releases its locks of the file.
    pub fn closed(self: &Arc<LockOwners>, node: u64, owner: u64) -> Option<LockRelease> {
        let mut table = self.table();
        let found = table.ranges.get(&(node, owner))?;
        let ended = EndedOwner { number: found.number, is_flock: false, handles: found.handles.clone() };
        // A request of another thread may still be granted to it.
        if found.requests == 0 {
            table.ranges.remove(&(node, owner));
            ended.handles.iter().for_each(|handle| table.forget(*handle, owner));
        }
        Some(self.releasing(&mut table, node, vec![ended]))
    }

    /// Handles the end of a handle; `has_flock`: `flock` was called with it. An owner that was also used with another
    /// handle stays: that is a later open file at the same address.
    pub fn ended(self: &Arc<LockOwners>, node: u64, handle: u64, has_flock: bool) -> Option<LockRelease> {
        let mut table = self.table();
        let mut ended = Vec::new();
        for owner in table.by_handle.remove(&handle).unwrap_or_default() {
            let Entry::Occupied(mut found) = table.ranges.entry((node, owner)) else { continue };
            found.get_mut().handles.remove(&handle);
            if found.get().handles.is_empty() {
                let number = found.remove().number;
                ended.push(EndedOwner { number, is_flock: false, handles: BTreeSet::new() });
            }
        }
        if has_flock {
            ended.push(EndedOwner { number: handle, is_flock: true, handles: BTreeSet::new() });
        }
        (!ended.is_empty()).then(|| self.releasing(&mut table, node, ended))
    }

    fn releasing(self: &Arc<LockOwners>, table: &mut OwnerTable, node: u64, ended: Vec<EndedOwner>) -> LockRelease {
        *table.releases.entry(node).or_default() += 1;
        LockRelease { owners: self.clone(), node, ended }
    }

    /// Waits until no release of a node's locks is under way.
    pub async fn settled(&self, node: u64) {
        loop {
            let released = self.released.notified();
            tokio::pin!(released);
            released.as_mut().enable();
            if !self.table().releases.contains_key(&node) {
                return;
            }
            released.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    const NODE: u64 = 7;
    /// What the kernel calls the owner of every lock in these tests.
    const ADDRESS: u64 = 0x5eed;

    fn range(handle: u64) -> LockRange {
        LockRange { handle, owner: ADDRESS, end: 9, kind: libc::F_WRLCK, process: 1, ..LockRange::default() }
    }

    fn whole(handle: u64) -> LockRange {
        LockRange { is_flock: true, ..range(handle) }
    }

    fn numbers(release: Option<LockRelease>) -> Vec<(u64, bool)> {
        let ended = release.iter().flat_map(|release| &release.ended);
        ended.map(|owner| (owner.number, owner.is_flock)).collect()
    }

    #[test]
    fn flock_of_each_handle_is_apart() {
        let owners = Arc::new(LockOwners::default());
        assert_eq!([5, 6].map(|handle| owners.begin(NODE, &whole(handle)).number()), [5, 6]);
        assert_eq!(numbers(owners.ended(NODE, 5, true)), [(5, true)]);
        assert_eq!(numbers(owners.ended(NODE, 6, false)), [], "nobody called it");
    }

    #[test]
    fn later_file_at_address_keeps_lock() {
        let owners = Arc::new(LockOwners::default());
        let first = owners.begin(NODE, &range(1)).number();
        assert_eq!(numbers(owners.ended(NODE, 1, false)), [(first, false)]);
        let second = owners.begin(NODE, &range(2)).number();
        assert!(second != first && owners.known(NODE, &range(2)) == Some(second));
        // The kernel tells of the end of the second file when the third one has a lock.
        assert_eq!(owners.begin(NODE, &range(3)).number(), second);
        assert_eq!(numbers(owners.ended(NODE, 2, false)), []);
        assert_eq!(numbers(owners.ended(NODE, 3, false)), [(second, false)]);
        assert_eq!(owners.known(NODE, &range(3)), None);
        let table = owners.table();
        assert!(table.ranges.is_empty() && table.by_handle.is_empty() && table.releases.is_empty(), "{table:?}");
    }

    #[test]
    fn close_by_process_ends_its_owner() {
        let owners = Arc::new(LockOwners::default());
        let number = owners.begin(NODE, &range(1)).number();
        assert_eq!(owners.begin(NODE, &range(2)).number(), number, "a process may open a file twice");
        assert!(owners.begin(NODE + 1, &range(2)).number() != number, "a close releases locks of one file");
        let release = owners.closed(NODE, ADDRESS).expect("it has an owner");
        let ended = EndedOwner { number, is_flock: false, handles: [1, 2].into() };
        assert_eq!(release.ended, [ended]);
        drop(release);
        assert!(owners.closed(NODE, ADDRESS).is_none() && owners.ended(NODE, 1, false).is_none());
        // The request of another thread is granted after the close.
        let wish = owners.begin(NODE, &range(1));
        assert!(wish.number() > number);
        assert_eq!(numbers(owners.closed(NODE, ADDRESS)), [(wish.number(), false)]);
        assert_eq!(owners.known(NODE, &range(1)), Some(wish.number()));
    }

    #[test]
    fn request_waits_for_earlier_release() {
        let owners = Arc::new(LockOwners::default());
        let releases = [1, 2].map(|handle| owners.ended(NODE, handle, true));
        let mut settled = pin!(owners.settled(NODE));
        let mut poll = || settled.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        for release in releases {
            assert_eq!(poll(), Poll::Pending);
            drop(release);
        }
        assert_eq!(poll(), Poll::Ready(()));
    }
}
