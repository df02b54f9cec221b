//! The order of operations on the same blocks.
//!
//! Owns: the ranges of operations, in their order of arrival. Promises: if two operations overlap and at least one of
//! them is a change, the later one waits for the earlier one. *Cost*: each start or end of an operation checks every
//! operation in progress.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::planted::{MirrorBug, planted};

/// The range of an operation.
#[derive(Debug)]
struct LockedRange {
    blocks: Range<u64>,
    is_exclusive: bool,
    /// The number of earlier operations that it waits for.
    blockers: usize,
}

/// The ranges of all operations, by the operation's number; earlier operations have smaller numbers.
#[derive(Debug, Default)]
pub(crate) struct OperationLocks {
    entries: BTreeMap<u64, LockedRange>,
}

impl LockedRange {
    fn conflicts(&self, other: &LockedRange) -> bool {
        let overlap = self.blocks.start < other.blocks.end && other.blocks.start < self.blocks.end;
        let is_ordered = self.is_exclusive || other.is_exclusive;
        overlap && is_ordered && !(planted(MirrorBug::OverlapUnordered) && self.is_exclusive && other.is_exclusive)
    }
}

impl OperationLocks {
    /// Adds an operation; returns whether it may run now.
    pub fn take(&mut self, operation: u64, blocks: Range<u64>, is_exclusive: bool) -> bool {
        let mut entry = LockedRange { blocks, is_exclusive, blockers: 0 };
        entry.blockers = self.entries.values().filter(|other| other.conflicts(&entry)).count();
        let is_free = entry.blockers == 0;
        self.entries.insert(operation, entry);
        is_free
    }

    /// Whether an operation may run.
    pub fn has(&self, operation: u64) -> bool {
        self.entries.get(&operation).is_some_and(|entry| entry.blockers == 0)
    }

    /// Removes an operation; returns the operations that may run now.
    pub fn release(&mut self, operation: u64) -> Vec<u64> {
        let Some(gone) = self.entries.remove(&operation) else { return Vec::new() };
        let mut free = Vec::new();
        for (number, entry) in self.entries.range_mut(operation..) {
            if entry.conflicts(&gone) {
                entry.blockers -= 1;
                if entry.blockers == 0 {
                    free.push(*number);
                }
            }
        }
        free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A later read does not overtake a change that waits.
    #[test]
    fn changes_wait_for_earlier_operations() {
        let mut locks = OperationLocks::default();
        assert!(locks.take(1, 0..4, false));
        assert!(locks.take(2, 2..6, false));
        assert!(!locks.take(3, 3..5, true));
        assert!(!locks.take(4, 4..8, false), "a read does not pass a change that waits");
        assert!(locks.take(5, 6..8, false));
        assert!(locks.release(1).is_empty());
        assert_eq!(locks.release(2), [3]);
        assert!(locks.has(3) && !locks.has(4));
        assert_eq!(locks.release(3), [4]);
    }

    #[test]
    fn cancelled_wait_frees_later_operations() {
        let mut locks = OperationLocks::default();
        assert!(locks.take(1, 0..1, true));
        assert!(!locks.take(2, 0..2, true));
        assert!(!locks.take(3, 1..2, true));
        assert_eq!(locks.release(2), [3]);
    }
}
