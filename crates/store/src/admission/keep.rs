//! Objects that are in memory alone: into it, out of it, and on to the disk at their second request.
//!
//! Owns: the steps, under the lock that orders sequences, by which [`Shared::may_be_on_disk`] is true when it is acted upon. An
//! object in memory alone is the policy's like any other: whenever it is evicted, it is gone.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Decision;
use crate::entry::{Entry, EntryParts};
use crate::key::KeyHash;
use crate::planted::{Bug, planted};
use crate::purges::Verdict;
use crate::queue::{Refused, Unwritten};
use crate::shared::{NotCommitted, Shared};
use crate::stat::Counters;

/// What became of an object that was to stay in memory.
pub(crate) enum Kept {
    /// It does.
    InMemory(Arc<Entry>),
    /// It has to be written, since something older may be on the disk.
    MustBeWritten(EntryParts),
}

impl Shared {
    /// Decides whether an object is written, of whose length as much is known.
    pub fn decide(&self, hash: KeyHash, bytes: Option<u64>) -> Decision {
        if self.admission.is_open() {
            Decision::Admitted
        } else if self.may_be_on_disk(hash) {
            Decision::Replaces
        } else {
            self.admission.judge(hash, bytes, self.counters.written_bytes(), self.memory.unwritten_bytes())
        }
    }

    /// Whether something under a hash is on the disk, waits to be written, or may be on the disk for all that is known.
    ///
    /// The order of the questions matters: an entry goes from memory into the index, one that is written anew from the index
    /// into what waits and back, and whatever takes something out of the index says so before. After a restart a shard of the
    /// index comes as a whole, and is not asked before.
    pub fn may_be_on_disk(&self, hash: KeyHash) -> bool {
        if planted(Bug::UnadmittedLeavesOlder) {
            return false;
        }
        self.memory.peek(hash).is_some_and(|entry| !entry.is_in_memory_alone())
            || !self.presence.has(hash)
            || self.admission.doubt.is_moving(hash)
            || !self.index.candidates(hash).is_empty()
            || self.admission.doubt.is_in_doubt(
                hash,
                self.index.evictions(),
                self.head.load(Ordering::Acquire),
                self.layout.segment_count,
            )
    }

    /// Puts a whole object into memory alone, unless something older may be on the disk.
    pub fn keep_in_memory(&self, parts: EntryParts) -> Result<Kept, NotCommitted> {
        let kept = self.queue.in_order(|| {
            if self.is_stale(&parts) {
                return Err(NotCommitted::Stale);
            }
            if self.may_be_on_disk(parts.hash) {
                return Ok(Kept::MustBeWritten(parts));
            }
            self.names.note(parts.primary_hash);
            let entry = Arc::new(Entry::in_memory_alone(parts, self.draw()));
            self.memory.put_kept(&entry);
            Ok(Kept::InMemory(entry))
        })?;
        if let Kept::InMemory(entry) = &kept {
            self.memory.settle(entry);
        }
        Ok(kept)
    }

    /// Lets an object go by that is neither written nor kept; returns its sequence. What it replaces, in memory alone, is gone.
    ///
    /// Where something is on the disk by now, that came while this was fetched and stays.
    pub fn let_go_by(&self, parts: EntryParts) -> Result<u64, NotCommitted> {
        let (sequence, older) = self.queue.in_order(|| {
            if self.is_stale(&parts) || self.may_be_on_disk(parts.hash) {
                return Err(NotCommitted::Stale);
            }
            let older = self.memory.peek(parts.hash);
            // A hit must not have it written from here on.
            older.iter().for_each(|older| older.set_replaced());
            Ok((self.draw(), older))
        })?;
        if let Some(older) = older {
            self.memory.remove_same(&older);
        }
        Ok(sequence)
    }

    /// Counts a hit in memory. What was not admitted was asked for again: if the rules let it, it is written now.
    pub fn note_hit(&self, entry: &Arc<Entry>) {
        Counters::add(&self.counters.hits_memory, 1);
        if entry.take_in_memory_alone() {
            self.admit_later(entry);
        }
    }

    /// Writes an object that is in memory alone and was asked for again, if the other rules let it.
    ///
    /// *Cost*: once an object; a lock that puts take too.
    fn admit_later(&self, entry: &Arc<Entry>) {
        let (written_bytes, waiting_bytes) = (self.counters.written_bytes(), self.memory.unwritten_bytes());
        let bytes = entry.object_bytes;
        if !self.admission.has_size(bytes) || !self.admission.is_in_budget(bytes, written_bytes, waiting_bytes) {
            return;
        }
        let queued = self.queue.push(entry.weight(), || {
            if self.verdict(entry) != Verdict::Live || !self.memory.pin_kept(entry) {
                return Err(NotCommitted::Stale);
            }
            let entry = Arc::clone(entry);
            Ok(Unwritten { sequence: self.draw(), entry, previous: None, moved_from: None, tie: None })
        });
        if queued.is_ok() {
            self.memory.settle(entry);
            Counters::add(&self.counters.admitted, 1);
            Counters::add(&self.counters.admitted_bytes, bytes);
            Counters::add(&self.counters.admitted_later, 1);
        }
    }

    /// Drops what is in memory alone and was purged, before purges are forgotten because all that lay on the disk then is
    /// overwritten: it goes with no segment. *Cost*: looks at every entry, where there are purges and not everything is admitted.
    pub fn drop_purged_in_memory(&self) {
        if !self.admission.is_open() && self.purges.len() > 0 {
            self.memory.sweep(|entry| entry.is_in_memory_alone() && self.is_purged(entry));
        }
    }

    /// Whether an entry must not be committed any more: a purge or a newer version came since it began.
    pub fn is_stale(&self, parts: &EntryParts) -> bool {
        let (name, tags) = (parts.key.as_ref().primary, parts.tags.hashes());
        self.purges.verdict(parts.primary_hash, parts.generation, name, tags) != Verdict::Live
            || (parts.piece.is_object() && self.fills.is_superseded(parts.hash, parts.generation))
    }
}

impl From<Refused> for NotCommitted {
    fn from(refused: Refused) -> NotCommitted {
        NotCommitted::Refused(refused)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nectary_block::{MemoryDevice, SharedDevice};

    use crate::{AdmissionOptions, AdmitRule, CreateOptions, KeyRef, OpenOptions, Store};

    #[tokio::test]
    async fn what_the_index_does_not_tell_yet_after_a_restart_is_admitted() {
        let device: SharedDevice = Arc::new(MemoryDevice::new(1 << 20));
        Store::create(device.clone(), &CreateOptions::default()).await.unwrap();
        let admission = AdmissionOptions { rule: AdmitRule::SecondRequest, ..AdmissionOptions::default() };
        let options = OpenOptions { memory_bytes: 16 << 20, admission, ..OpenOptions::default() };
        let store = Store::open(device, options).await.unwrap();
        let put = async |name: &'static str| {
            store.put(KeyRef::new(name.as_bytes(), b""), "m".into(), "body".into()).await.unwrap();
            store.stat().counts.admitted_replacing
        };
        assert_eq!(put("before").await, 0);
        store.shared().presence.begin_again();
        assert_eq!(put("before").await, 1, "it is in memory alone, and may be on the disk for all that is known");
        assert_eq!(put("while").await, 2);
        store.shared().presence.arrive(u64::MAX);
        assert_eq!(put("after").await, 2);
    }

    /// Commits `put` in a thread while this one has the memory tier's lock; then the queue must be free, and the object found.
    fn commits_without_the_tier(admission: AdmissionOptions) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let store = runtime.block_on(async {
            let device: SharedDevice = Arc::new(MemoryDevice::new(1 << 20));
            Store::create(device.clone(), &CreateOptions::default()).await.unwrap();
            let options = OpenOptions { memory_bytes: 16 << 20, admission, ..OpenOptions::default() };
            Store::open(device, options).await.unwrap()
        });
        let key = KeyRef::new(b"key", b"");
        let shared = store.shared();
        let (_, hash) = shared.hash(key);
        let (queue_is_free, is_free) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let held = shared.memory.hold();
            let put = scope.spawn(|| runtime.block_on(store.put(key, "m".into(), "body".into())));
            scope.spawn(move || {
                while shared.memory.peek(hash).is_none() {
                    std::thread::yield_now();
                }
                shared.queue.ordered(|_| ());
                queue_is_free.send(()).unwrap();
            });
            let free = is_free.recv_timeout(std::time::Duration::from_secs(20));
            drop(held);
            put.join().unwrap().unwrap();
            assert!(free.is_ok(), "the queue waits for the memory tier");
        });
        runtime.block_on(store.close()).unwrap();
    }

    #[test]
    fn no_commit_holds_the_queue_while_it_waits_for_the_memory_tier() {
        commits_without_the_tier(AdmissionOptions::default());
        commits_without_the_tier(AdmissionOptions { rule: AdmitRule::SecondRequest, ..AdmissionOptions::default() });
    }
}
