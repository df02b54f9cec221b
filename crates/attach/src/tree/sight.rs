//! What is known of a file's size and times: whether others have changed the file, and what of it in memory is old.
//!
//! Owns: the size that reads use, and the comparison of size, time of modification and time of change with those last
//! seen. Promises: a change by others that any call has seen is followed by reads of the new bytes; changes through
//! this mount leave the cache as it is; a read that returns bytes of the cache while they become old is repeated
//! ([`SourceState::epoch`]). Not promised: if others change a file at the same moment as a program changes it through this
//! mount, and its size is as if only the program had changed it, the change is noticed only with the next one.
//!
//! All `invalidate` closures drop a range of the file from the cache: offset and length.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nectary_fuse::Errno;

use super::sys::Stat;

/// Size, and times of modification and of change.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct FileStamp {
    size: u64,
    modified: (i64, u64),
    changed: (i64, u64),
}

impl FileStamp {
    fn of(stat: &Stat) -> FileStamp {
        FileStamp {
            size: stat.st_size as u64,
            modified: (stat.st_mtime, stat.st_mtime_nsec),
            changed: (stat.st_ctime, stat.st_ctime_nsec),
        }
    }
}

/// A change of a file through this mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileChange {
    /// Bytes were written through the cache, up to this offset.
    Written(u64),
    /// Attributes other than the size have changed.
    Attributes,
    /// Bytes in this range (offset and length) have changed, or the size has; the cache has the old ones.
    Bytes(u64, u64),
    /// The change failed halfway.
    Failed,
}

#[derive(Default)]
struct StampState {
    stamp: FileStamp,
    /// The number of changes through this mount that are under way.
    changing: u32,
    /// The size that the file has after these changes if others do not change it; `None` if that is not known.
    size_expected: Option<u64>,
}

/// What is known of a file.
pub struct SourceState {
    size: AtomicU64,
    /// The number of times that bytes became old, times two; odd while the cache drops them.
    epoch: AtomicU32,
    is_exclusive: bool,
    seen: Mutex<StampState>,
}

impl SourceState {
    /// Makes the value for a file that is not cached yet. `is_exclusive`: only this mount changes it.
    pub fn new(is_exclusive: bool) -> SourceState {
        SourceState { size: AtomicU64::new(0), epoch: AtomicU32::new(0), is_exclusive, seen: Mutex::default() }
    }

    fn seen(&self) -> MutexGuard<'_, StampState> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The size of the file as last seen. *Units*: bytes.
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// The number of the state in which the cache is. A read takes it before and after; if they differ, or one is odd,
    /// the bytes may be old.
    pub fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Whether bytes that were taken from the cache since `epoch` are current.
    pub fn is_since(&self, epoch: u32) -> bool {
        epoch.is_multiple_of(2) && self.epoch() == epoch
    }

    /// Stores the attributes of a file of which nothing is cached.
    pub fn begin(&self, stat: &Stat) {
        self.adopt(&mut self.seen(), stat, None, |_, _| {});
    }

    fn adopt(&self, seen: &mut StampState, stat: &Stat, old: Option<(u64, u64)>, invalidate: impl FnOnce(u64, u64)) {
        seen.stamp = FileStamp::of(stat);
        let Some((offset, length)) = old else { return self.size.store(seen.stamp.size, Ordering::Release) };
        self.epoch.fetch_add(1, Ordering::AcqRel);
        self.size.store(seen.stamp.size, Ordering::Release);
        invalidate(offset, length);
        self.epoch.fetch_add(1, Ordering::AcqRel);
    }

    /// Examines the file; if others have changed it, its bytes in memory are dropped. `found` are attributes that were
    /// read before; the current ones are returned.
    pub fn look(
        &self,
        found: Option<&Stat>,
        stat: impl FnOnce() -> Result<Stat, Errno>,
        invalidate: impl FnOnce(u64, u64),
    ) -> Result<Stat, Errno> {
        let mut seen = self.seen();
        if let Some(found) = found
            && (seen.changing > 0 || FileStamp::of(found) == seen.stamp)
        {
            return Ok(*found);
        }
        // The file is examined under the lock, so that the later of two concurrent calls determines the stored size.
        let stat = stat()?;
        if seen.changing == 0 && FileStamp::of(&stat) != seen.stamp {
            self.adopt(&mut seen, &stat, Some((0, u64::MAX)), invalidate);
        }
        Ok(stat)
    }

    /// Begins a change through this mount.
    pub fn begin_change(&self, stat: impl FnOnce() -> Result<Stat, Errno>, invalidate: impl FnOnce(u64, u64)) {
        let mut seen = self.seen();
        if seen.changing == 0 && !self.is_exclusive {
            let stat = stat();
            if let Ok(stat) = &stat
                && FileStamp::of(stat) != seen.stamp
            {
                self.adopt(&mut seen, stat, Some((0, u64::MAX)), invalidate);
            }
            seen.size_expected = stat.ok().map(|stat| stat.st_size as u64);
        }
        seen.changing += 1;
    }

    /// Ends a change through this mount.
    pub fn end_change(
        &self,
        change: FileChange,
        stat: impl FnOnce() -> Result<Stat, Errno>,
        invalidate: impl FnOnce(u64, u64),
    ) {
        let mut seen = self.seen();
        seen.changing = seen.changing.saturating_sub(1);
        let mut old = None;
        match change {
            FileChange::Written(end) => seen.size_expected = seen.size_expected.map(|size| size.max(end)),
            FileChange::Attributes => {}
            FileChange::Bytes(offset, length) => (seen.size_expected, old) = (None, Some((offset, length))),
            FileChange::Failed => seen.size_expected = None,
        }
        let Ok(stat) = stat() else {
            if let Some((offset, length)) = old {
                invalidate(offset, length);
            }
            return;
        };
        let is_other = seen.size_expected.is_some_and(|size| size != stat.st_size as u64);
        if seen.changing == 0 && !self.is_exclusive && is_other {
            old = Some((0, u64::MAX));
        }
        self.adopt(&mut seen, &stat, old, invalidate);
    }
}

#[cfg(test)]
mod tests {
    use super::super::sys;
    use super::*;
    use std::cell::Cell;

    fn stat(size: i64, modified: i64, changed: i64) -> Stat {
        let mut stat = sys::stat(&std::fs::File::open("/").unwrap()).unwrap();
        (stat.st_size, stat.st_mtime, stat.st_ctime) = (size, modified, changed);
        (stat.st_mtime_nsec, stat.st_ctime_nsec) = (0, 0);
        stat
    }

    fn sight(first: &Stat) -> SourceState {
        let sight = SourceState::new(false);
        sight.begin(first);
        sight
    }

    #[test]
    fn stamp_difference_drops_bytes() {
        for other in [stat(11, 1, 1), stat(9, 1, 1), stat(10, 2, 1), stat(10, 1, 2)] {
            let sight = sight(&stat(10, 1, 1));
            let dropped = Cell::new(0);
            for _ in 0..2 {
                let found = sight.look(Some(&other), || Ok(other), |_, _| dropped.set(dropped.get() + 1));
                assert_eq!(found.map(|stat| stat.st_size), Ok(other.st_size));
            }
            assert_eq!((dropped.get(), sight.size(), sight.epoch()), (1, other.st_size as u64, 2));
        }
    }

    #[test]
    fn own_changes_drop_nothing() {
        let sight = sight(&stat(10, 1, 1));
        let never = |_, _| panic!("nothing is old");
        sight.begin_change(|| Ok(stat(10, 1, 1)), never);
        sight.begin_change(|| Ok(stat(15, 2, 2)), never);
        // A look during the changes.
        assert!(sight.look(Some(&stat(15, 2, 2)), || Ok(stat(15, 2, 2)), never).is_ok());
        sight.end_change(FileChange::Written(20), || Ok(stat(20, 3, 3)), never);
        sight.end_change(FileChange::Written(15), || Ok(stat(20, 3, 3)), never);
        assert_eq!((sight.size(), sight.epoch()), (20, 0));
        // These attributes were read before the changes ended.
        assert!(sight.look(Some(&stat(15, 2, 2)), || Ok(stat(20, 3, 3)), never).is_ok());
        sight.begin_change(|| Ok(stat(20, 3, 3)), never);
        sight.end_change(FileChange::Attributes, || Ok(stat(20, 3, 4)), never);
        assert!(sight.look(None, || Ok(stat(20, 3, 4)), never).is_ok());
        assert_eq!((sight.size(), sight.epoch()), (20, 0));
    }

    #[test]
    fn changes_around_own_ones_drop_bytes() {
        let sight = sight(&stat(10, 1, 1));
        let dropped = Cell::new(Vec::new());
        let note = |offset, length| {
            let mut all = dropped.take();
            all.push((offset, length));
            dropped.set(all);
        };
        sight.begin_change(|| Ok(stat(10, 2, 2)), note);
        sight.end_change(FileChange::Written(12), || Ok(stat(30, 3, 3)), note);
        sight.begin_change(|| Ok(stat(30, 3, 3)), note);
        sight.end_change(FileChange::Bytes(4, 8), || Ok(stat(4, 4, 4)), note);
        assert_eq!(dropped.take(), [(0, u64::MAX), (0, u64::MAX), (4, 8)]);
        assert_eq!((sight.size(), sight.epoch()), (4, 6));
        assert!(sight.is_since(6) && !sight.is_since(5) && !sight.is_since(4));
    }

    #[test]
    fn epoch_is_odd_during_drop() {
        let sight = sight(&stat(10, 1, 1));
        let before = sight.epoch();
        let drops = |_, _| assert!(!sight.is_since(sight.epoch()) && sight.size() == 12);
        sight.look(None, || Ok(stat(12, 2, 2)), drops).unwrap();
        assert!(!sight.is_since(before));
    }
}
