//! File locks of all hosts: `flock` and `fcntl`.
//!
//! Owns: the ranges that are held, their owners, and the waiting requests. Promises: two owners never hold conflicting
//! ranges that overlap; an unlock grants waiters in the order of their requests; a wait that could never end is
//! refused. `flock` and `fcntl` locks do not conflict with each other. An owner is identified by its session and a
//! number within the session.

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::protocol::{FileId, FileLockRange};

/// The maximum number of ranges that are held on one file, and of those of one session.
const HELD_MAX: usize = 65_536;
const SESSION_HELD_MAX: usize = 1 << 18;
/// The maximum number of requests that wait for locks on one file.
const WAITERS_MAX: usize = 4096;
/// The maximum number of owners that the search for a deadlock visits.
const SEARCH_MAX: usize = 4096;

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockOutcome {
    /// The lock is held.
    Granted,
    /// Another owner holds a conflicting lock, and the request does not wait.
    Refused,
    /// The request waits.
    Waits,
    /// The request would wait for its own owner.
    Deadlock,
    /// The file or the session has too many locks, or the file too many requests.
    TooMany,
}

/// Locked ranges, each with its session.
#[derive(Debug, Default, Clone)]
pub struct LockedRanges(Vec<(u64, FileLockRange)>);

impl LockedRanges {
    /// Returns the first range that conflicts.
    fn in_the_way(&self, session: u64, lock: &FileLockRange) -> Option<&(u64, FileLockRange)> {
        self.0.iter().find(|(of, held)| conflict((*of, held), (session, lock)))
    }

    /// Sets a range of an owner; it replaces the owner's earlier locks in that range.
    pub fn set(&mut self, session: u64, lock: FileLockRange) {
        self.clear(session, &lock);
        let mut lock = lock;
        // The range is merged with adjacent ranges of the same kind.
        self.0.retain(|(of, held)| {
            let is_neighbour = is_same(*of, held, session, &lock)
                && held.is_exclusive == lock.is_exclusive
                && (held.last.checked_add(1) == Some(lock.start) || lock.last.checked_add(1) == Some(held.start));
            if is_neighbour {
                (lock.start, lock.last) = (lock.start.min(held.start), lock.last.max(held.last));
            }
            !is_neighbour
        });
        self.0.push((session, lock));
    }

    /// Releases a range of an owner.
    pub fn clear(&mut self, session: u64, lock: &FileLockRange) {
        let mut left = Vec::new();
        self.0.retain(|(of, held)| {
            if !is_same(*of, held, session, lock) || held.last < lock.start || lock.last < held.start {
                return true;
            }
            if held.start < lock.start {
                left.push((*of, FileLockRange { last: lock.start - 1, ..*held }));
            }
            if held.last > lock.last {
                left.push((*of, FileLockRange { start: lock.last + 1, ..*held }));
            }
            false
        });
        self.0.extend(left);
    }

    /// Returns what an owner holds in a range.
    pub fn within(&self, session: u64, lock: &FileLockRange) -> Vec<FileLockRange> {
        let held = self.0.iter().filter(|(of, held)| {
            is_same(*of, held, session, lock) && held.start <= lock.last && lock.start <= held.last
        });
        let cut = |held: &FileLockRange| FileLockRange {
            start: held.start.max(lock.start),
            last: held.last.min(lock.last),
            ..*held
        };
        held.map(|(_, held)| cut(held)).collect()
    }

    /// Whether the release of a range of an owner splits a range.
    fn splits(&self, session: u64, lock: &FileLockRange) -> bool {
        let is_split = |held: &FileLockRange| held.start < lock.start && lock.last < held.last;
        self.0.iter().any(|(of, held)| is_same(*of, held, session, lock) && is_split(held))
    }

    /// Whether this `flock` replaces one of the other kind.
    pub fn converts(&self, session: u64, lock: &FileLockRange) -> bool {
        let is_other = |held: &FileLockRange| held.is_exclusive != lock.is_exclusive;
        lock.is_flock && self.0.iter().any(|(of, held)| is_same(*of, held, session, lock) && is_other(held))
    }

    /// Whether an owner holds any range.
    pub fn has(&self, session: u64, owner: u64, is_flock: bool) -> bool {
        self.0.iter().any(|(of, held)| *of == session && held.owner == owner && held.is_flock == is_flock)
    }

    /// Returns all ranges.
    pub fn iter(&self) -> impl Iterator<Item = &FileLockRange> {
        self.0.iter().map(|(_, held)| held)
    }

    /// Whether no range is held.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn is_same(of: u64, held: &FileLockRange, session: u64, lock: &FileLockRange) -> bool {
    of == session && held.owner == lock.owner && held.is_flock == lock.is_flock
}

fn conflict((of, held): (u64, &FileLockRange), (session, lock): (u64, &FileLockRange)) -> bool {
    held.is_flock == lock.is_flock
        && (of, held.owner) != (session, lock.owner)
        && (held.is_exclusive || lock.is_exclusive)
        && held.start <= lock.last
        && lock.start <= held.last
}

#[derive(Debug, Clone, Copy)]
struct RangeWaiter {
    session: u64,
    ticket: u64,
    lock: FileLockRange,
}

#[derive(Debug, Default)]
struct FileRanges {
    held: LockedRanges,
    waiters: VecDeque<RangeWaiter>,
}

/// All locks of a volume.
#[derive(Debug, Default)]
pub struct VolumeLocks {
    files: HashMap<FileId, FileRanges>,
    /// The number of ranges that each session holds.
    held_of: HashMap<u64, usize>,
    /// Sessions whose locks conflicted with requests that did not wait.
    met: BTreeMap<u64, ()>,
}

/// Whether a session may hold no more ranges.
fn is_full(held_of: &HashMap<u64, usize>, session: u64) -> bool {
    held_of.get(&session).is_some_and(|count| *count >= SESSION_HELD_MAX)
}

/// Changes what a session holds of a file, and counts it.
fn count_change(
    held_of: &mut HashMap<u64, usize>,
    (session, held): (u64, &mut LockedRanges),
    change: impl FnOnce(&mut LockedRanges),
) {
    let before = held.0.len();
    change(held);
    let count = held_of.entry(session).or_default();
    *count = (*count + held.0.len()).saturating_sub(before);
    if *count == 0 {
        held_of.remove(&session);
    }
}

impl VolumeLocks {
    /// Handles a session's request for a lock. If it is repeated after a lost connection, the caller has
    /// [cancelled](Self::cancel) the first one. What the owner held before may be shared or free after that, so the caller
    /// [wakes](Self::wake) those that wait.
    pub fn lock(&mut self, session: u64, ticket: u64, lock: FileLockRange, waits: bool) -> LockOutcome {
        let file = self.files.entry(lock.file).or_default();
        // As in the kernel, which releases it even if the request is refused.
        if file.held.converts(session, &lock) {
            count_change(&mut self.held_of, (session, &mut file.held), |held| held.clear(session, &lock));
        }
        let Some((other, _)) = file.held.in_the_way(session, &lock) else {
            if file.held.0.len() >= HELD_MAX || is_full(&self.held_of, session) {
                if file.held.is_empty() && file.waiters.is_empty() {
                    self.files.remove(&lock.file);
                }
                return LockOutcome::TooMany;
            }
            count_change(&mut self.held_of, (session, &mut file.held), |held| held.set(session, lock));
            return LockOutcome::Granted;
        };
        if !waits {
            self.met.insert(*other, ());
            return LockOutcome::Refused;
        }
        if file.waiters.len() >= WAITERS_MAX {
            return LockOutcome::TooMany;
        }
        if !lock.is_flock && self.waits_for_itself(session, &lock) {
            return LockOutcome::Deadlock;
        }
        if let Some(file) = self.files.get_mut(&lock.file) {
            file.waiters.push_back(RangeWaiter { session, ticket, lock });
        }
        LockOutcome::Waits
    }

    /// Releases a range of a session. Returns the waiting requests that are granted by that. `None`: it would split a
    /// range, and there are too many, so nothing is released.
    pub fn unlock(&mut self, session: u64, lock: &FileLockRange) -> Option<Vec<u64>> {
        let Some(file) = self.files.get_mut(&lock.file) else { return Some(Vec::new()) };
        let is_full = file.held.0.len() >= HELD_MAX || is_full(&self.held_of, session);
        if is_full && file.held.splits(session, lock) {
            return None;
        }
        count_change(&mut self.held_of, (session, &mut file.held), |held| held.clear(session, lock));
        Some(self.wake(lock.file))
    }

    /// Cancels a waiting request. Returns whether it was still waiting.
    pub fn cancel(&mut self, ticket: u64) -> bool {
        self.files.values_mut().any(|file| {
            let before = file.waiters.len();
            file.waiters.retain(|waiter| waiter.ticket != ticket);
            file.waiters.len() != before
        })
    }

    /// Returns a lock that conflicts.
    pub fn test(&self, session: u64, lock: &FileLockRange) -> Option<FileLockRange> {
        self.files.get(&lock.file)?.held.in_the_way(session, lock).map(|(_, held)| *held)
    }

    /// Releases all locks of a session that is over. Returns the waiting requests that are granted by that.
    pub fn forget(&mut self, session: u64) -> Vec<u64> {
        let files: Vec<FileId> = self.files.keys().copied().collect();
        let mut granted = Vec::new();
        for id in files {
            let Some(file) = self.files.get_mut(&id) else { continue };
            file.held.0.retain(|(of, _)| *of != session);
            file.waiters.retain(|waiter| waiter.session != session);
            granted.extend(self.wake(id));
        }
        self.met.remove(&session);
        self.held_of.remove(&session);
        granted
    }

    /// Returns the sessions that hold locks which others wanted since the last call, or want now.
    pub fn awaited(&mut self) -> Vec<u64> {
        let mut awaited = std::mem::take(&mut self.met);
        for file in self.files.values() {
            for waiter in &file.waiters {
                let holders =
                    file.held.0.iter().filter(|(of, held)| conflict((*of, held), (waiter.session, &waiter.lock)));
                awaited.extend(holders.map(|(of, _)| (*of, ())));
            }
        }
        awaited.into_keys().collect()
    }

    /// Returns the numbers of locks held and of requests that wait.
    pub fn counts(&self) -> (usize, usize) {
        let held = self.files.values().map(|file| file.held.0.len()).sum();
        (held, self.files.values().map(|file| file.waiters.len()).sum())
    }

    /// Grants the waiting requests of a file that can be granted, in their order; returns them.
    pub fn wake(&mut self, id: FileId) -> Vec<u64> {
        let Some(file) = self.files.get_mut(&id) else { return Vec::new() };
        let (mut granted, mut left) = (Vec::new(), VecDeque::new());
        for waiter in std::mem::take(&mut file.waiters) {
            if file.held.in_the_way(waiter.session, &waiter.lock).is_none() {
                let RangeWaiter { session, lock, .. } = waiter;
                count_change(&mut self.held_of, (session, &mut file.held), |held| held.set(session, lock));
                granted.push(waiter.ticket);
            } else {
                left.push_back(waiter);
            }
        }
        file.waiters = left;
        if file.held.is_empty() && file.waiters.is_empty() {
            self.files.remove(&id);
        }
        granted
    }

    /// Whether a holder of a conflicting lock waits, directly or through others, for the owner that now wants to wait.
    fn waits_for_itself(&self, session: u64, lock: &FileLockRange) -> bool {
        let holders = |session: u64, lock: &FileLockRange| -> Vec<(u64, u64)> {
            let held = self.files.get(&lock.file).map(|file| file.held.0.as_slice()).unwrap_or_default();
            let held = held.iter().filter(|(of, held)| conflict((*of, held), (session, lock)));
            held.map(|(of, held)| (*of, held.owner)).collect()
        };
        let (mut seen, mut next) = (Vec::new(), holders(session, lock));
        while let Some(owner) = next.pop() {
            if owner == (session, lock.owner) {
                return true;
            }
            if seen.contains(&owner) || seen.len() >= SEARCH_MAX {
                continue;
            }
            seen.push(owner);
            let waiters = self.files.values().flat_map(|file| &file.waiters);
            let waits = waiters.filter(|waiter| (waiter.session, waiter.lock.owner) == owner && !waiter.lock.is_flock);
            waits.for_each(|waiter| next.extend(holders(waiter.session, &waiter.lock)));
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileId = FileId { inode: 7, generation: 1 };
    const OTHER: FileId = FileId { inode: 8, generation: 1 };

    fn lock(owner: u64, range: std::ops::RangeInclusive<u64>, is_exclusive: bool) -> FileLockRange {
        let (start, last) = range.into_inner();
        FileLockRange { file: FILE, owner, process: 1, is_flock: false, is_exclusive, start, last }
    }

    /// Ranges of different owners or sessions conflict; those of one owner are split and joined.
    #[test]
    fn lock_ranges_split_and_join() {
        let mut locks = VolumeLocks::default();
        assert_eq!(locks.lock(1, 1, lock(5, 0..=99, true), false), LockOutcome::Granted);
        // The same number in another session is a different owner.
        assert_eq!(locks.lock(2, 2, lock(5, 99..=100, false), false), LockOutcome::Refused);
        assert_eq!(locks.awaited(), [1]);
        assert_eq!(locks.test(2, &lock(5, 50..=50, false)), Some(lock(5, 0..=99, true)));
        assert_eq!(locks.lock(1, 3, lock(5, 40..=59, false), false), LockOutcome::Granted);
        assert_eq!(locks.lock(2, 4, lock(5, 45..=50, false), false), LockOutcome::Granted);
        assert_eq!(locks.lock(2, 5, lock(5, 39..=39, false), false), LockOutcome::Refused);
        assert_eq!(locks.counts(), (4, 0));
        assert_eq!(locks.unlock(2, &lock(5, 0..=99, false)), Some(Vec::new()));
        assert_eq!(locks.lock(1, 6, lock(5, 40..=59, true), false), LockOutcome::Granted);
        assert_eq!(locks.counts(), (1, 0));
        // `flock` locks do not conflict with `fcntl` locks.
        let flock = FileLockRange { is_flock: true, ..lock(9, 0..=u64::MAX, true) };
        assert_eq!(locks.lock(3, 7, flock, false), LockOutcome::Granted);
    }

    /// Unlocks wake waiters, and so does the end of a session.
    #[test]
    fn lock_waiters_wake_in_order() {
        let mut locks = VolumeLocks::default();
        assert_eq!(locks.lock(1, 1, lock(1, 0..=9, true), false), LockOutcome::Granted);
        for (ticket, is_exclusive) in [(2, false), (3, false), (4, true)] {
            assert_eq!(locks.lock(ticket, ticket, lock(1, 0..=9, is_exclusive), true), LockOutcome::Waits);
        }
        assert_eq!(locks.awaited(), [1]);
        assert_eq!(locks.unlock(1, &lock(1, 0..=9, true)), Some(vec![2, 3]));
        assert!(locks.cancel(4) && !locks.cancel(4));
        assert_eq!(locks.lock(5, 5, lock(1, 5..=5, true), true), LockOutcome::Waits);
        assert!(locks.forget(2).is_empty());
        assert_eq!(locks.forget(3), [5]);
    }

    #[test]
    fn deadlocking_wait_is_refused() {
        let mut locks = VolumeLocks::default();
        assert_eq!(locks.lock(1, 1, lock(1, 0..=9, true), false), LockOutcome::Granted);
        let other = FileLockRange { file: OTHER, ..lock(1, 0..=9, true) };
        assert_eq!(locks.lock(2, 2, other, false), LockOutcome::Granted);
        assert_eq!(locks.lock(2, 3, lock(1, 0..=0, true), true), LockOutcome::Waits);
        assert_eq!(locks.lock(1, 4, FileLockRange { start: 3, ..other }, true), LockOutcome::Deadlock);
        assert_eq!(locks.lock(1, 5, FileLockRange { start: 3, ..other }, false), LockOutcome::Refused);
    }

    /// The ranges of a session are bounded, also those that a release splits off.
    #[test]
    fn ranges_of_session_are_bounded() {
        let mut locks = VolumeLocks::default();
        let of = |inode: u64, range: std::ops::RangeInclusive<u64>| FileLockRange {
            file: FileId { inode, generation: 1 },
            ..lock(1, range, true)
        };
        for count in 0..SESSION_HELD_MAX as u64 {
            let (inode, start) = (count / 64, count % 64 * 10);
            assert_eq!(locks.lock(1, count, of(inode, start..=start + 8), false), LockOutcome::Granted);
        }
        let next = of(u64::MAX, 0..=9);
        assert_eq!(locks.lock(1, 0, next, false), LockOutcome::TooMany);
        assert_eq!(locks.unlock(1, &of(0, 3..=4)), None);
        assert_eq!(locks.counts(), (SESSION_HELD_MAX, 0));
        assert!(!locks.files.contains_key(&next.file), "what is refused leaves nothing");
        assert_eq!(locks.lock(2, 0, next, false), LockOutcome::Granted, "it is another session");
        // What needs no further range is released, and makes room for one.
        for range in [5..=8, 0..=4] {
            assert_eq!(locks.unlock(1, &of(0, range)), Some(Vec::new()));
        }
        assert_eq!(locks.unlock(1, &of(1, 3..=4)), Some(Vec::new()));
        assert_eq!(locks.unlock(1, &of(1, 13..=14)), None);
        assert!(locks.forget(1).is_empty());
        assert_eq!(locks.lock(1, 0, of(1, 0..=9), false), LockOutcome::Granted);
        assert_eq!((locks.counts(), locks.held_of.len()), ((2, 0), 2));
    }

    #[test]
    fn parts_within_a_range_are_found() {
        let mut ranges = LockedRanges::default();
        ranges.set(0, lock(5, 0..=99, true));
        ranges.set(0, lock(5, 120..=129, false));
        ranges.set(0, lock(6, 0..=9, true));
        let cut = lock(5, 40..=124, true);
        assert_eq!(ranges.within(0, &cut), [lock(5, 40..=99, true), lock(5, 120..=124, false)]);
        let before = ranges.within(0, &lock(5, 0..=u64::MAX, true));
        let parts = ranges.within(0, &cut);
        ranges.clear(0, &cut);
        parts.into_iter().for_each(|part| ranges.set(0, part));
        let mut after = ranges.within(0, &lock(5, 0..=u64::MAX, true));
        after.sort_by_key(|held| held.start);
        assert_eq!(after, before);
    }
}
