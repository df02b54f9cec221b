//! Records that may be on the disk although the index does not point to them.
//!
//! An object that is not admitted must not replace anything on the disk: after a crash, the replaced version would be
//! found again. If the index has the hash of the object, a replaced version may be on the disk, so the object is
//! admitted. This file owns the other case: the index has lost a key, and an old intact record of that key may still be
//! on the disk:
//!
//! | why the index has no entry | what is remembered |
//! |---|---|
//! | a purge that is not durable yet removed it | the number of such purges: as long as it is not 0, all is admitted |
//! | the object waits to be rewritten, and its old location was reclaimed | its hash, until it is written |
//! | a newer version was found damaged, so no older version may be returned | its hash, for one cycle of the ring |
//! | the index was full and dropped the entry | that this happened: everything is admitted for one cycle of the ring |
//! | parts of the index were rebuilt, because their checkpoint is damaged | that this happened, as in the case above |
//! | its shard is not loaded yet after a restart | nothing: `ShardPresence` knows such shards; their objects are admitted |
//!
//! An object that was purged durably, or replaced by a newer record, is never found again. If admission rules are set,
//! a head whose fragments are incomplete stays in the index (`Store::get`). One cycle of the ring overwrites every
//! record that was in doubt.
//!
//! A restart forgets these cases and does not need them: the index then has every record that recovery found, and a
//! later recovery starts from the same checkpoint or a newer one. So a later recovery finds no record that the recovery
//! after this restart did not find, except if both checkpoints are damaged.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use crate::names::key::KeyHash;

/// The number of damaged keys that are remembered one by one; if there are more, everything is admitted for a cycle.
const DAMAGED_MAX: usize = 1024;

/// The remembered cases in which the index may have lost a record.
#[derive(Default)]
pub struct IndexDoubt {
    /// The number of purges that are valid in memory and not durable yet. A purge that never becomes durable stays
    /// counted.
    purges: AtomicU64,
    /// The hashes of objects that wait to be rewritten.
    moving: Mutex<HashSet<KeyHash>>,
    /// Keys with a damaged record, and the epoch at which their cycle ends.
    damaged: Mutex<HashMap<KeyHash, u64>>,
    /// The number of entries that the index had dropped at the last check.
    evictions: AtomicU64,
    /// The index may have lost records of any key, until this epoch is written.
    all_until: AtomicU64,
}

impl IndexDoubt {
    /// Notes that a purge begins. Call it before the purge removes anything from the index.
    pub fn purge_begins(&self) {
        self.purges.fetch_add(1, Ordering::AcqRel);
    }

    /// Notes that `count` purges have become durable.
    pub fn purges_are_durable(&self, count: u64) {
        self.purges.fetch_sub(count, Ordering::AcqRel);
    }

    /// Notes that an object will be queued for rewriting. Call it while the index still points to the old place.
    /// Returns false if the object is already queued: the index would not point to a second copy, and the second copy
    /// would live longer than the first.
    pub fn move_begins(&self, hash: KeyHash) -> bool {
        lock(&self.moving).insert(hash)
    }

    /// Notes that the object was rewritten. Call it only after the index points to the new place.
    pub fn move_ends(&self, hash: KeyHash) {
        lock(&self.moving).remove(&hash);
    }

    /// Whether an object waits to be rewritten. Check this before the index is searched: then at least one of the two
    /// has the object.
    pub fn is_moving(&self, hash: KeyHash) -> bool {
        lock(&self.moving).contains(&hash)
    }

    /// Remembers that a record of a key is damaged; `head` is the epoch that is being written, in a ring of
    /// `segment_count` segments. Call it before entries of the key are removed from the index.
    pub fn is_damaged(&self, hash: KeyHash, head: u64, segment_count: u64) {
        let mut damaged = lock(&self.damaged);
        damaged.retain(|_, until| *until > head);
        let until = head + segment_count;
        if damaged.len() < DAMAGED_MAX {
            damaged.insert(hash, until);
        } else {
            self.all_until.fetch_max(until, Ordering::AcqRel);
        }
    }

    /// Notes that the index may have lost records of any key. This is remembered for one cycle from `head` on.
    pub fn is_everywhere(&self, head: u64, segment_count: u64) {
        self.all_until.fetch_max(head + segment_count, Ordering::AcqRel);
    }

    /// Whether the index may have lost a record of this key. Check this after the index was searched.
    pub fn is_in_doubt(&self, hash: KeyHash, evictions: u64, head: u64, segment_count: u64) -> bool {
        if self.evictions.fetch_max(evictions, Ordering::AcqRel) < evictions {
            self.is_everywhere(head, segment_count);
        }
        self.purges.load(Ordering::Acquire) > 0
            || self.all_until.load(Ordering::Acquire) > head
            || lock(&self.damaged).get(&hash).is_some_and(|until| *until > head)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubt_ends_after_purge_or_lap() {
        let doubt = IndexDoubt::default();
        let (one, other) = (KeyHash(1), KeyHash(2));
        let in_doubt = |hash, evictions, head| doubt.is_in_doubt(hash, evictions, head, 10);
        assert!(!in_doubt(one, 0, 5));
        doubt.purge_begins();
        doubt.purge_begins();
        doubt.purges_are_durable(1);
        assert!(in_doubt(one, 0, 5));
        doubt.purges_are_durable(1);
        assert!(!in_doubt(one, 0, 5));
        doubt.is_damaged(one, 5, 10);
        assert!(in_doubt(one, 0, 14) && !in_doubt(other, 0, 14) && !in_doubt(one, 0, 15));
        // The index dropped entries: every key is in doubt, for one cycle after the loss is noticed.
        assert!(in_doubt(other, 3, 20) && in_doubt(other, 3, 29) && !in_doubt(other, 3, 30));
        doubt.is_everywhere(40, 10);
        assert!(in_doubt(other, 3, 49) && !in_doubt(other, 3, 50));
        assert!(doubt.move_begins(one) && !doubt.move_begins(one));
        assert!(doubt.is_moving(one) && !doubt.is_moving(other));
        doubt.move_ends(one);
        assert!(!doubt.is_moving(one));
    }

    #[test]
    fn excess_damage_doubts_everything() {
        let doubt = IndexDoubt::default();
        (0..DAMAGED_MAX as u128).for_each(|key| doubt.is_damaged(KeyHash(key), 5, 10));
        let unknown = KeyHash(1 << 100);
        assert!(!doubt.is_in_doubt(unknown, 0, 6, 10));
        doubt.is_damaged(KeyHash(1 << 99), 6, 10);
        assert!(doubt.is_in_doubt(unknown, 0, 15, 10) && !doubt.is_in_doubt(unknown, 0, 16, 10));
    }
}
