//! The owners of programs' locks, as the session names them.
//!
//! Owns: the numbers of owners, and which of them are being released. The kernel names an owner by the address of an open
//! file (`flock`, `F_OFD_SETLK`) or of a process's table of files (`F_SETLK`), and uses an address again at once. It says
//! that an open file is closed after `close` has returned, so that the next open file at the same address may have a
//! lock by then.
//!
//! Promises: the end of an open file releases its locks, and no lock of a later one; a request for a lock waits for the
//! releases of the same file of which the kernel has told before.
//!
//! | lock | number of the owner | released by |
//! |---|---|---|
//! | `flock` | the handle, which is never used again | the end of the handle |
//! | `F_SETLK`, `F_OFD_SETLK` | one for each node and address, until that owner is released | a close by a process; the end of the last handle that it was used with, as the kernel tells of no close by an open file; what was locked through a handle, by its end |

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
    granted: Vec<GrantedRange>,
}

/// A range that an owner locked last through this handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct GrantedRange {
    handle: u64,
    start: u64,
    last: u64,
}

impl RangeOwner {
    /// Notes that a range is locked.
    fn lock(&mut self, lock: &LockRange) {
        self.unlock(lock);
        let mut added = GrantedRange { handle: lock.handle, start: lock.start, last: lock.end };
        self.granted.retain(|held| {
            let is_next = held.handle == added.handle
                && (held.last.checked_add(1) == Some(added.start) || added.last.checked_add(1) == Some(held.start));
            if is_next {
                (added.start, added.last) = (added.start.min(held.start), added.last.max(held.last));
            }
            !is_next
        });
        self.granted.push(added);
    }

    /// Notes that a range is not locked.
    fn unlock(&mut self, lock: &LockRange) {
        let mut left = Vec::new();
        self.granted.retain(|held| {
            if held.last < lock.start || lock.end < held.start {
                return true;
            }
            if held.start < lock.start {
                left.push(GrantedRange { last: lock.start - 1, ..*held });
            }
            if held.last > lock.end {
                left.push(GrantedRange { start: lock.end + 1, ..*held });
            }
            false
        });
        self.granted.extend(left);
    }

    /// Removes what was locked through handles that have ended: each range with its last byte. An owner that is still used
    /// is another open file, or a process, which has lost its locks with the close of such a handle.
    fn take_ended(&mut self) -> Vec<(u64, u64)> {
        let granted = std::mem::take(&mut self.granted);
        let (open, ended): (Vec<GrantedRange>, Vec<GrantedRange>) =
            granted.into_iter().partition(|held| self.handles.contains(&held.handle));
        self.granted = open;
        ended.into_iter().map(|held| (held.start, held.last)).collect()
    }
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

    /// Notes that the lock was granted.
    pub fn granted(&self, lock: &LockRange) {
        let mut table = self.owners.table();
        if let Some(owner) = self.ranges.and_then(|key| table.ranges.get_mut(&key)) {
            owner.lock(lock);
        }
    }

    /// Ends the request. Returns what earlier open files at the same address had locked that ended during requests.
    pub fn finish(self) -> Option<LockRelease> {
        let (owners, ranges) = (self.owners.clone(), self.ranges);
        drop(self);
        owners.release_ended(ranges?)
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
    /// The ranges to release, each with its last byte; `None`: all.
    pub ranges: Option<Vec<(u64, u64)>>,
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

/// Returns what handles that have ended had locked for an owner that is still used, if they had anything.
fn ranges_of_ended(owner: &mut RangeOwner) -> Option<EndedOwner> {
    let ranges = owner.take_ended();
    let handles = BTreeSet::new();
    (!ranges.is_empty()).then_some(EndedOwner { number: owner.number, is_flock: false, handles, ranges: Some(ranges) })
}

impl LockOwners {
    fn table(&self) -> MutexGuard<'_, OwnerTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the owner of a lock that is requested. The lock counts as held until its owner is released. `None`: a
    /// release of the node's locks is under way, and may be of this lock.
    pub fn begin(self: &Arc<LockOwners>, node: u64, lock: &LockRange) -> Option<LockWish> {
        let mut table = self.table();
        if table.releases.contains_key(&node) {
            return None;
        }
        if lock.is_flock {
            return Some(LockWish { owners: self.clone(), ranges: None, number: lock.handle });
        }
        let key = (node, lock.owner);
        let number = table.last + 1;
        let new = RangeOwner { number, handles: BTreeSet::new(), requests: 0, granted: Vec::new() };
        let owner = table.ranges.entry(key).or_insert(new);
        owner.handles.insert(lock.handle);
        owner.requests += 1;
        let number = owner.number;
        table.last = table.last.max(number);
        table.by_handle.entry(lock.handle).or_default().insert(lock.owner);
        Some(LockWish { owners: self.clone(), ranges: Some(key), number })
    }

    /// Notes that a program releases a range.
    pub fn unlocked(&self, node: u64, lock: &LockRange) {
        if let Some(owner) = self.table().ranges.get_mut(&(node, lock.owner)).filter(|_| !lock.is_flock) {
            owner.unlock(lock);
        }
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
        let found = table.ranges.get_mut(&(node, owner))?;
        let (number, handles) = (found.number, found.handles.clone());
        let ended = EndedOwner { number, is_flock: false, handles, ranges: None };
        found.granted.clear();
        // A request of another thread may still be granted to it.
        if found.requests == 0 {
            table.ranges.remove(&(node, owner));
            ended.handles.iter().for_each(|handle| table.forget(*handle, owner));
        }
        Some(self.releasing(&mut table, node, vec![ended]))
    }

    /// Handles the end of a handle; `has_flock`: `flock` was called with it. An owner that was also used with another
    /// handle stays: that is a later open file at the same address. What was locked through this handle is released, but not
    /// during a request: that may be granted the same range.
    pub fn ended(self: &Arc<LockOwners>, node: u64, handle: u64, has_flock: bool) -> Option<LockRelease> {
        let mut table = self.table();
        let mut ended = Vec::new();
        for owner in table.by_handle.remove(&handle).unwrap_or_default() {
            let Entry::Occupied(mut found) = table.ranges.entry((node, owner)) else { continue };
            found.get_mut().handles.remove(&handle);
            if found.get().handles.is_empty() {
                let number = found.remove().number;
                ended.push(EndedOwner { number, is_flock: false, handles: BTreeSet::new(), ranges: None });
            } else if found.get().requests == 0 {
                ended.extend(ranges_of_ended(found.get_mut()));
            }
        }
        if has_flock {
            ended.push(EndedOwner { number: handle, is_flock: true, handles: BTreeSet::new(), ranges: None });
        }
        (!ended.is_empty()).then(|| self.releasing(&mut table, node, ended))
    }

    /// Releases what handles that have ended had locked, unless a request of the owner is without an answer.
    fn release_ended(self: &Arc<LockOwners>, key: (u64, u64)) -> Option<LockRelease> {
        let mut table = self.table();
        let ended = ranges_of_ended(table.ranges.get_mut(&key).filter(|owner| owner.requests == 0)?)?;
        Some(self.releasing(&mut table, key.0, vec![ended]))
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

    fn begin(owners: &Arc<LockOwners>, lock: &LockRange) -> LockWish {
        owners.begin(NODE, lock).expect("no release is under way")
    }

    fn numbers(release: Option<LockRelease>) -> Vec<(u64, bool)> {
        let ended = release.iter().flat_map(|release| &release.ended);
        ended.map(|owner| (owner.number, owner.is_flock)).collect()
    }

    #[test]
    fn flock_of_each_handle_is_apart() {
        let owners = Arc::new(LockOwners::default());
        assert_eq!([5, 6].map(|handle| begin(&owners, &whole(handle)).number()), [5, 6]);
        assert_eq!(numbers(owners.ended(NODE, 5, true)), [(5, true)]);
        assert_eq!(numbers(owners.ended(NODE, 6, false)), [], "nobody called it");
    }

    #[test]
    fn later_file_at_address_keeps_lock() {
        let owners = Arc::new(LockOwners::default());
        let first = begin(&owners, &range(1)).number();
        assert_eq!(numbers(owners.ended(NODE, 1, false)), [(first, false)]);
        let second = begin(&owners, &range(2)).number();
        assert!(second != first && owners.known(NODE, &range(2)) == Some(second));
        // The kernel tells of the end of the second file when the third one has a lock.
        assert_eq!(begin(&owners, &range(3)).number(), second);
        assert_eq!(numbers(owners.ended(NODE, 2, false)), []);
        assert_eq!(numbers(owners.ended(NODE, 3, false)), [(second, false)]);
        assert_eq!(owners.known(NODE, &range(3)), None);
        let table = owners.table();
        assert!(table.ranges.is_empty() && table.by_handle.is_empty() && table.releases.is_empty(), "{table:?}");
    }

    /// What an open file had locked is released at its end, although a later one at its address has locked something.
    #[test]
    fn ended_file_keeps_no_range() {
        let owners = Arc::new(LockOwners::default());
        let part = |handle, start, end| LockRange { start, end, ..range(handle) };
        let lock = |lock: LockRange| {
            let wish = begin(&owners, &lock);
            wish.granted(&lock);
            wish
        };
        let first = lock(part(1, 0, 99));
        let number = first.number();
        assert!(first.finish().is_none());
        assert!(lock(part(2, 20, 29)).finish().is_none());
        let release = owners.ended(NODE, 1, false).expect("it had a lock");
        let ranges = Some(vec![(0, 19), (30, 99)]);
        assert_eq!(release.ended, [EndedOwner { number, is_flock: false, handles: BTreeSet::new(), ranges }]);
        assert!(owners.begin(NODE, &range(2)).is_none(), "the release is under way");
        drop(release);
        // The second one ends while the third one requests a lock.
        let wish = lock(part(3, 25, 49));
        assert!(owners.ended(NODE, 2, false).is_none(), "the third one may be granted what the second one had");
        let release = wish.finish().expect("the second one had a lock");
        assert_eq!(release.ended[0].ranges, Some(vec![(20, 24)]));
        drop(release);
        owners.unlocked(NODE, &part(3, 0, 45));
        assert!(lock(part(4, 60, 69)).finish().is_none());
        let release = owners.ended(NODE, 3, false).expect("it had a lock");
        assert_eq!(release.ended[0].ranges, Some(vec![(46, 49)]));
        drop(release);
        assert_eq!(numbers(owners.ended(NODE, 4, false)), [(number, false)]);
    }

    #[test]
    fn close_by_process_ends_its_owner() {
        let owners = Arc::new(LockOwners::default());
        let number = begin(&owners, &range(1)).number();
        assert_eq!(begin(&owners, &range(2)).number(), number, "a process may open a file twice");
        assert!(
            owners.begin(NODE + 1, &range(2)).is_some_and(|wish| wish.number() != number),
            "a close releases locks of one file"
        );
        let release = owners.closed(NODE, ADDRESS).expect("it has an owner");
        let ended = EndedOwner { number, is_flock: false, handles: [1, 2].into(), ranges: None };
        assert_eq!(release.ended, [ended]);
        drop(release);
        assert!(owners.closed(NODE, ADDRESS).is_none() && owners.ended(NODE, 1, false).is_none());
        // The request of another thread is granted after the close.
        let wish = begin(&owners, &range(1));
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
