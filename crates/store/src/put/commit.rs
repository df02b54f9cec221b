//! Committing an entry: the order in which memory, index and purges are checked and changed. Reading is in
//! `get/lookup.rs`.
//!
//! Owns: the steps under the lock that orders sequences. An object that is put is compared with purges and newer
//! versions, gets its sequence, and replaces the older version in memory. An object that is not admitted is only in
//! memory, and is lost when the policy evicts it. Leaves to others: which objects are admitted (`intake`).

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::counters::Counters;
use crate::disk::span::SpanDisk;
use crate::error::{Error, StoreErrorKind};
use crate::format::RECORD_HEADER_BYTES;
use crate::get::lookup::ObjectLookup;
use crate::intake::admission::{self, AdmissionDecision};
use crate::intake::queue::{QueueRefusal, QueueReservation, UnwrittenEntry};
use crate::intake::{NotCommitted, SpanIntake};
use crate::memory::entry::{EntryKind, EntryParts, MemoryEntry};
use crate::planted::{Bug, planted};
use crate::purge::rules::PurgeVerdict;
use crate::put::fill::table::FillTable;
use crate::rewrite::ObjectRewriter;
use crate::state::SpanState;

/// The part that commits puts, fills and purges.
pub(crate) struct PutCommitter {
    pub span: Arc<SpanDisk>,
    pub state: Arc<SpanState>,
    pub intake: Arc<SpanIntake>,
    pub rewriting: Arc<ObjectRewriter>,
    /// With this, a fill finds the objects that other callers put, and its own fragments.
    pub lookup: Arc<ObjectLookup>,
    pub fills: FillTable,
    /// The largest number of purges that are remembered.
    pub purge_rules_max: u64,
    /// The number of purges that wait until older purges are forgotten.
    pub purges_waiting: AtomicU64,
}

/// The result for an object that is not admitted.
enum UnadmittedOutcome {
    /// The object is in memory.
    InMemory(Arc<MemoryEntry>),
    /// The object must be written, because an older version may be on the disk.
    MustBeWritten(EntryParts),
}

impl PutCommitter {
    /// Gives an entry its sequence, makes it visible and queues it for writing; or, if it is a whole object that is
    /// not admitted, keeps it only in memory.
    ///
    /// If the object is written, it takes the room in `reserved`; without reserved room, the queue must have free room
    /// for the object.
    pub fn commit(
        &self,
        parts: EntryParts,
        decision: AdmissionDecision,
        reserved: Option<QueueReservation>,
    ) -> Result<Arc<MemoryEntry>, Error> {
        let described = RECORD_HEADER_BYTES + parts.key.len() + parts.tags.record_bytes();
        let record_bytes = (described + parts.metadata.len() + parts.body.len()) as u64;
        let record_bytes_max = self.span.layout.record_bytes_max();
        if record_bytes > record_bytes_max {
            return Err(Error::invalid(format!(
                "a record of {record_bytes} bytes does not fit: this store takes {record_bytes_max} at most"
            )));
        }
        let (kind, body_bytes, mut decision) = (parts.kind, parts.object_bytes, decision);
        let committed = if decision.is_admitted() || kind != EntryKind::Whole {
            self.queue_entry(parts, record_bytes, reserved)
        } else {
            match self.keep_in_memory(parts, decision == AdmissionDecision::Copy) {
                Ok(UnadmittedOutcome::InMemory(entry)) => Ok(entry),
                Ok(UnadmittedOutcome::MustBeWritten(parts)) => {
                    decision = AdmissionDecision::Replaces;
                    self.queue_entry(parts, record_bytes, reserved)
                }
                Err(refused) => Err(refused),
            }
        };
        let entry = committed.map_err(|refused| self.refusal(refused))?;
        if kind.is_object() {
            self.accepted(decision, body_bytes);
            if !entry.is_in_memory_alone() {
                self.rewriting.note_put(&entry);
            }
        }
        Ok(entry)
    }

    /// Counts an accepted version.
    pub fn accepted(&self, decision: AdmissionDecision, body_bytes: u64) {
        let counters = &self.span.counters;
        Counters::add(&counters.puts, 1);
        Counters::add(&counters.put_bytes, body_bytes);
        admission::count(counters, decision, body_bytes);
    }

    fn queue_entry(
        &self,
        parts: EntryParts,
        weight: u64,
        reserved: Option<QueueReservation>,
    ) -> Result<Arc<MemoryEntry>, NotCommitted> {
        let SpanState { memory, .. } = &*self.state;
        let make = || {
            let stale = self.is_stale(&parts);
            if stale && !planted(Bug::StaleGenerationAccepted) {
                return Err(NotCommitted::Stale);
            }
            if planted(Bug::StaleGenerationAccepted) && stale {
                // The planted bug: a stale fill is accepted as if it had begun now.
                let parts = EntryParts { generation: self.state.draw(), ..parts };
                let entry = Arc::new(MemoryEntry::new(parts, self.state.draw()));
                let previous = memory.put_unwritten(&entry);
                return Ok(UnwrittenEntry::of(entry, previous));
            }
            self.supersede_older(&parts);
            let entry = Arc::new(MemoryEntry::new(parts, self.state.draw()));
            let previous = memory.put_unwritten(&entry).filter(|previous| previous.hash == entry.hash);
            Ok(UnwrittenEntry::of(entry, previous))
        };
        let entry = match reserved {
            Some(reserved) => self.intake.queue.push_reserved(reserved, make),
            None => self.intake.queue.push(weight, make),
        }?;
        memory.settle(&entry);
        Ok(entry)
    }

    /// Puts a whole object only into memory, except if an older version may be on the disk. A copy is never written.
    fn keep_in_memory(&self, parts: EntryParts, is_copy: bool) -> Result<UnadmittedOutcome, NotCommitted> {
        let SpanState { memory, names, .. } = &*self.state;
        let kept = self.intake.queue.in_order(|| {
            if self.is_stale(&parts) {
                return Err(NotCommitted::Stale);
            }
            if self.intake.may_be_on_disk(parts.hash) {
                return Ok(UnadmittedOutcome::MustBeWritten(parts));
            }
            self.supersede_older(&parts);
            if !planted(Bug::UnadmittedNameForgotten) {
                names.note(parts.primary_hash);
            }
            let make = if is_copy { MemoryEntry::copy_in_memory } else { MemoryEntry::in_memory_alone };
            let entry = Arc::new(make(parts, self.state.draw()));
            memory.put_kept(&entry);
            Ok(UnadmittedOutcome::InMemory(entry))
        })?;
        if let UnadmittedOutcome::InMemory(entry) = &kept {
            memory.settle(entry);
        }
        Ok(kept)
    }

    /// Draws the sequence of an object that is neither written nor kept in memory. The version that it replaces, which
    /// is only in memory, is removed.
    ///
    /// If an object of this key may be on the disk, that object stays, and the call fails.
    pub fn let_go_by(&self, parts: EntryParts) -> Result<u64, NotCommitted> {
        let SpanState { memory, .. } = &*self.state;
        let (sequence, older) = self.intake.queue.in_order(|| {
            if self.is_stale(&parts) || self.intake.may_be_on_disk(parts.hash) {
                return Err(NotCommitted::Stale);
            }
            self.supersede_older(&parts);
            let older = memory.peek(parts.hash);
            // From here on, a hit must not queue the older version for writing.
            older.iter().for_each(|older| older.set_replaced());
            Ok((self.state.draw(), older))
        })?;
        if let Some(older) = older {
            memory.remove_same(&older);
        }
        Ok(sequence)
    }

    /// Notes, under the lock of the queue, that an object is committed: fills that began before must not replace it.
    fn supersede_older(&self, parts: &EntryParts) {
        if parts.kind.is_object() {
            self.fills.supersede_older(parts.primary_hash, parts.hash, parts.generation);
        }
    }

    /// Whether an entry must not be committed: a purge, also a soft one, or a newer version came after its put or fill
    /// began.
    fn is_stale(&self, parts: &EntryParts) -> bool {
        let (name, tags) = (parts.key.as_ref().primary, parts.tags.hashes());
        self.state.purges.verdict(parts.primary_hash, parts.generation, name, tags) != PurgeVerdict::Live
            || (parts.kind.is_object()
                && self.fills.is_superseded(parts.hash, parts.generation)
                && !planted(Bug::OlderFillReplaces))
    }

    /// Counts an object that was not committed, and makes the error with the reason.
    pub fn refusal(&self, refused: NotCommitted) -> Error {
        let counters = &self.span.counters;
        match refused {
            NotCommitted::Stale => {
                Counters::add(&counters.puts_stale, 1);
                let reason = "a purge or a newer version came after this fill began; nothing is stored";
                Error::new(StoreErrorKind::Busy, reason)
            }
            NotCommitted::Refused(QueueRefusal::Full) => {
                Counters::add(&counters.puts_refused, 1);
                let spec = self.span.device.spec();
                Error::new(
                    StoreErrorKind::Busy,
                    format!("{spec}: the disk is too slow for what is put; nothing is stored"),
                )
            }
            NotCommitted::Refused(QueueRefusal::Closed) => self.state.stopped_error(),
        }
    }

    /// Notes that fills use `bytes` more bytes; the memory tier makes room for them.
    pub fn fills_grow(&self, bytes: u64) {
        self.state.memory.set_fill_bytes(self.fills.add(bytes));
    }

    /// Notes that fills use `bytes` fewer bytes.
    pub fn fills_shrink(&self, bytes: u64) {
        self.state.memory.set_fill_bytes(self.fills.sub(bytes));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nectary_block::{MemoryDevice, SharedDevice};

    use crate::{AdmissionOptions, AdmitRule, CreateOptions, KeyRef, OpenOptions, Store};

    /// A key that the index does not tell yet after a restart is admitted.
    #[tokio::test]
    async fn unknown_key_is_admitted() {
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
        store.state().presence.begin_again();
        assert_eq!(put("before").await, 1, "it is in memory alone, and may be on the disk for all that is known");
        assert_eq!(put("while").await, 2);
        store.state().presence.arrive(u64::MAX);
        assert_eq!(put("after").await, 2);
    }

    /// Puts an object in another thread while this thread has the memory tier's lock. Although the put waits for that
    /// lock, it must have released the queue's lock, and the object must already be in memory.
    fn commits_without_the_tier(admission: AdmissionOptions) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let store = runtime.block_on(async {
            let device: SharedDevice = Arc::new(MemoryDevice::new(1 << 20));
            Store::create(device.clone(), &CreateOptions::default()).await.unwrap();
            let options = OpenOptions { memory_bytes: 16 << 20, admission, ..OpenOptions::default() };
            Store::open(device, options).await.unwrap()
        });
        let key = KeyRef::new(b"key", b"");
        let (state, intake) = (store.state(), &store.puts().intake);
        let (_, hash) = state.span.hash(key);
        let (queue_is_free, is_free) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let held = state.memory.hold();
            let put = scope.spawn(|| runtime.block_on(store.put(key, "m".into(), "body".into())));
            scope.spawn(move || {
                while state.memory.peek(hash).is_none() {
                    std::thread::yield_now();
                }
                intake.queue.ordered(|_| ());
                queue_is_free.send(()).unwrap();
            });
            let free = is_free.recv_timeout(std::time::Duration::from_secs(20));
            drop(held);
            put.join().unwrap().unwrap();
            assert!(free.is_ok(), "the queue waits for the memory tier");
        });
        runtime.block_on(store.close()).unwrap();
    }

    /// No commit holds the queue while it waits for the memory tier.
    #[test]
    fn commit_does_not_block_queue() {
        commits_without_the_tier(AdmissionOptions::default());
        commits_without_the_tier(AdmissionOptions { rule: AdmitRule::SecondRequest, ..AdmissionOptions::default() });
    }
}
