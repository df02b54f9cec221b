//! The intake of objects to be written: the queue, and admission to it.
//!
//! Owns: the steps by which an object is admitted, at its put or later, and the handling of waiting objects when the
//! store stops. Leaves to others: the rules of admission (`admission`), the order of waiting objects (`queue`), and
//! replacing older versions (`put/commit.rs`).

pub mod admission;
pub mod queue;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::counters::{Counters, PutSequence, PutSequences};
use crate::disk::span::SpanDisk;
use crate::intake::admission::{Admission, AdmissionDecision};
use crate::intake::queue::{QueueRefusal, UnwrittenEntry, WriteQueue};
use crate::memory::entry::MemoryEntry;
use crate::names::key::KeyHash;
use crate::planted::{Bug, planted};
use crate::purge::rules::PurgeVerdict;
use crate::state::SpanState;

/// The queue of a span, and admission to it.
pub(crate) struct SpanIntake {
    pub span: Arc<SpanDisk>,
    pub state: Arc<SpanState>,
    pub queue: Arc<WriteQueue>,
    pub admission: Admission,
}

/// Why an entry was not committed.
pub(crate) enum NotCommitted {
    /// A purge or a newer version came after its put or fill began.
    Stale,
    /// There is no room for the entry, or the queue is closed.
    Refused(QueueRefusal),
}

impl From<QueueRefusal> for NotCommitted {
    fn from(refused: QueueRefusal) -> NotCommitted {
        NotCommitted::Refused(refused)
    }
}

impl SpanIntake {
    /// Decides whether an object is written; `bytes` is its length, if it is known.
    pub fn decide(&self, hash: KeyHash, bytes: Option<u64>) -> AdmissionDecision {
        if self.admission.is_open() {
            AdmissionDecision::Admitted
        } else if self.may_be_on_disk(hash) {
            AdmissionDecision::Replaces
        } else {
            let waiting_bytes = self.state.memory.unwritten_bytes();
            self.admission.judge(hash, bytes, self.span.counters.written_bytes(), waiting_bytes)
        }
    }

    /// Decides about a copy of what the caller has elsewhere.
    pub fn decide_on_copy(&self, hash: KeyHash) -> AdmissionDecision {
        // Without the option, nothing would drop purged objects that are only in memory.
        if self.admission.is_open() || self.may_be_on_disk(hash) {
            AdmissionDecision::Replaces
        } else {
            AdmissionDecision::Copy
        }
    }

    /// Whether a record with this hash is on the disk, may be on the disk, or waits to be written.
    ///
    /// The order of the checks matters, because entries move while this runs. A new entry moves from memory into the
    /// index. A rewritten entry moves from the index to the waiting entries and back. Code that removes a record from
    /// the index first reports this to `doubt`. After a restart, no shard of the index is consulted before the whole
    /// shard is loaded.
    pub fn may_be_on_disk(&self, hash: KeyHash) -> bool {
        if planted(Bug::UnadmittedLeavesOlder) {
            return false;
        }
        let SpanState { memory, presence, index, .. } = &*self.state;
        let doubt = &self.admission.doubt;
        memory.peek(hash).is_some_and(|entry| !entry.is_in_memory_alone())
            || !presence.has(hash)
            || doubt.is_moving(hash)
            || !index.candidates(hash).is_empty()
            || doubt.is_in_doubt(hash, index.evictions(), self.span.head(), self.span.layout.segment_count)
    }

    /// Counts a hit in memory. If the object was not admitted, this is its second request: it is written now if the
    /// rules allow it.
    pub fn note_hit(&self, entry: &Arc<MemoryEntry>) {
        Counters::add(&self.span.counters.hits_memory, 1);
        if entry.take_in_memory_alone() {
            self.admit_later(entry);
        }
    }

    /// Writes an object that is only in memory and was requested again, if the other rules allow it.
    ///
    /// *Cost*: takes the lock that puts also take, once per object.
    fn admit_later(&self, entry: &Arc<MemoryEntry>) {
        let counters = &self.span.counters;
        let (written_bytes, waiting_bytes) = (counters.written_bytes(), self.state.memory.unwritten_bytes());
        let bytes = entry.object_bytes;
        if !self.admission.has_size(bytes) || !self.admission.is_in_budget(bytes, written_bytes, waiting_bytes) {
            return;
        }
        let queued = self.queue.push(entry.weight(), || {
            if self.state.verdict(entry) != PurgeVerdict::Live || !self.state.memory.pin_kept(entry) {
                return Err(NotCommitted::Stale);
            }
            let entry = Arc::clone(entry);
            Ok(UnwrittenEntry { sequence: self.state.draw(), entry, previous: None, moved_from: None, tie: None })
        });
        if queued.is_ok() {
            self.state.memory.settle(entry);
            Counters::add(&counters.admitted, 1);
            Counters::add(&counters.admitted_bytes, bytes);
            Counters::add(&counters.admitted_later, 1);
        }
    }

    /// Drops purged objects that are only in memory. A purge is forgotten when all segments older than it are
    /// overwritten; objects that are only in memory are in no segment, so they are dropped first. *Cost*: visits every
    /// entry in memory if there are purges and not everything is admitted.
    pub fn drop_purged_in_memory(&self) {
        if !self.admission.is_open() && self.state.purges.len() > 0 {
            self.state.memory.sweep(|entry| entry.is_in_memory_alone() && self.state.is_purged(entry));
        }
    }

    /// Begins a new era of names if `epoch`, which is about to be written, is the first epoch of an era.
    pub fn begin_era(&self, epoch: u64) {
        let names = &self.state.names;
        if !names.begins_era(epoch) {
            return;
        }
        if !self.admission.is_open() && !planted(Bug::UnadmittedNameForgotten) {
            self.state.memory.sweep(|entry| {
                if entry.is_in_memory_alone() {
                    names.note(entry.primary_hash);
                }
                false
            });
        }
        self.queue.begin_era(epoch);
    }

    /// The sequences that puts have reached.
    pub fn sequences(&self) -> PutSequences {
        let progress = &self.state.progress;
        let flushed = PutSequence(progress.flushed.load(Ordering::Acquire));
        let written = PutSequence(progress.written.load(Ordering::Acquire));
        PutSequences { last: PutSequence(self.queue.last_sequence()).max(written), written, flushed }
    }

    /// Stops writes permanently: after a failed write or flush, nothing may be reported as stored.
    pub fn stop(&self, reason: impl Into<String>) {
        self.state.set_stopped(reason.into());
        self.queue.close().iter().for_each(|item| self.give_up(item));
        self.queue.wake.notify_one();
    }

    /// Drops an object that will not be written. An object that is also on the disk (it was to be rewritten) stays in
    /// memory.
    pub fn give_up(&self, item: &UnwrittenEntry) {
        if item.moved_from.is_none() {
            self.state.memory.drop_unwritten(&item.entry);
        }
    }
}
