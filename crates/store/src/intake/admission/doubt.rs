//! Records that may be on the disk though the index does not lead to them.
//!
//! An object that is not admitted must not replace anything on the disk: a crash would bring that back. A hash that the
//! index knows is certain; this file owns the rest, where only something old and intact is behind a key that the index
//! has lost:
//!
//! | why the index does not lead there | what is remembered |
//! |---|---|
//! | a purge that is not durable yet took it out | how many such purges there are: while there is one, everything is admitted |
//! | it waits to be rewritten, and its old place was reclaimed in the meantime | its hash, until it is written |
//! | a newer version of it was found damaged, and nothing older may be believed | its hash, for a cycle of the ring |
//! | the index gave it up at its bound | that: for a cycle of the ring everything is admitted |
//! | parts of the index were made again, as their checkpoint is damaged | likewise |
//! | its part of the index has not come yet after a restart | `Presence` knows: objects of that part are admitted |
//!
//! An object that a durable purge killed, or a newer record replaced, does not come back. A head whose fragments are
//! not all there any more stays in the index where admission is on (`Store::get`). Before a cycle is over the ring has
//! overwritten whatever was meant.
//!
//! A restart forgets all this, and needs none of it: recovery begins where this open's checkpoint or replay ended, so
//! what the index lost it does not find again, unless both checkpoints are damaged later too.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use crate::names::key::KeyHash;

/// The number of damaged keys that are remembered one by one; beyond it, everything is admitted for a cycle.
const DAMAGED_MAX: usize = 1024;

/// What is remembered.
#[derive(Default)]
pub struct Doubt {
    /// Purges that hold in memory and are not durable yet. An object that was given up before it was written counts for
    /// ever.
    purges: AtomicU64,
    /// Objects that wait to be rewritten.
    moving: Mutex<HashSet<KeyHash>>,
    /// Keys with a damaged record, and the epoch with which the cycle is over.
    damaged: Mutex<HashMap<KeyHash, u64>>,
    /// Entries that the index had given up when it was last looked at.
    evictions: AtomicU64,
    /// Everything is in doubt until this epoch is written.
    all_until: AtomicU64,
}

impl Doubt {
    /// Notes that a purge begins. Call it before the purge removes anything from the index.
    pub fn purge_begins(&self) {
        self.purges.fetch_add(1, Ordering::AcqRel);
    }

    /// Notes that this many purges are durable.
    pub fn purges_are_durable(&self, count: u64) {
        self.purges.fetch_sub(count, Ordering::AcqRel);
    }

    /// Notes that an object is to be queued to be rewritten; while the index still leads to its old place. False if
    /// it is queued already: the later of two copies would be one that the index does not lead to, and outlive the one
    /// that it does.
    pub fn move_begins(&self, hash: KeyHash) -> bool {
        lock(&self.moving).insert(hash)
    }

    /// Notes that it was written. A rewritten entry is noted only when the index leads to its new place.
    pub fn move_ends(&self, hash: KeyHash) {
        lock(&self.moving).remove(&hash);
    }

    /// Whether an object waits to be rewritten. Asked before the index, so that it is found in one of the two.
    pub fn is_moving(&self, hash: KeyHash) -> bool {
        lock(&self.moving).contains(&hash)
    }

    /// Remembers that a record of a key is damaged; `head` is the epoch that is being written, in a ring of
    /// `segment_count` segments. Call it before entries of the key leave the index.
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

    /// Puts everything in doubt for a cycle from `head`.
    pub fn is_everywhere(&self, head: u64, segment_count: u64) {
        self.all_until.fetch_max(head + segment_count, Ordering::AcqRel);
    }

    /// Whether the index may have lost something of this key. Asked after the index.
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
    fn doubt_lasts_until_a_purge_is_durable_or_a_lap_is_over() {
        let doubt = Doubt::default();
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
        // Given up by the index: everything, for a cycle from when it is noticed.
        assert!(in_doubt(other, 3, 20) && in_doubt(other, 3, 29) && !in_doubt(other, 3, 30));
        doubt.is_everywhere(40, 10);
        assert!(in_doubt(other, 3, 49) && !in_doubt(other, 3, 50));
        assert!(doubt.move_begins(one) && !doubt.move_begins(one));
        assert!(doubt.is_moving(one) && !doubt.is_moving(other));
        doubt.move_ends(one);
        assert!(!doubt.is_moving(one));
    }

    #[test]
    fn more_damage_than_is_remembered_puts_everything_in_doubt() {
        let doubt = Doubt::default();
        (0..DAMAGED_MAX as u128).for_each(|key| doubt.is_damaged(KeyHash(key), 5, 10));
        let unknown = KeyHash(1 << 100);
        assert!(!doubt.is_in_doubt(unknown, 0, 6, 10));
        doubt.is_damaged(KeyHash(1 << 99), 6, 10);
        assert!(doubt.is_in_doubt(unknown, 0, 15, 10) && !doubt.is_in_doubt(unknown, 0, 16, 10));
    }
}
