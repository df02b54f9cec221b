//! The state of an open span: which objects are in memory, where objects are on disk, and which objects are purged.
//!
//! Owns: these tables, the clock that orders their changes, and the progress of puts. Leaves to others: changing
//! several tables together. These rules make such changes correct:
//! 1. An entry is in the memory map from its commit until it is in the index; so it can be found at every moment.
//! 2. Removal from the map, admission to the policy, and insertion of entries read from disk happen under the memory
//!    tier's lock. A version is removed from the index before its successor may leave memory. So an old version is
//!    never put back into memory.
//! 3. A generation is drawn when a put or fill begins. It is compared with the purges when the entry is committed,
//!    before its index entry is made, and at every hit.
//! 4. The newest version of a key decides: if it was purged by tag, the version that it replaced must not be found
//!    instead. So the newest version stays in memory until the index has it, and the index has it as long as it has any
//!    older version.
//! 5. A purge is forgotten only after the segments that can hold its objects were reclaimed: these objects have left
//!    index and memory, and the head was advanced. So a reader first compares an object with the purges, and then
//!    checks that its location was not overwritten. If it was, a purge of the object may already be forgotten, so the
//!    object is a miss.
//! 6. A softly purged version is found and is stale. It is not written again, so that rule 5 also holds for soft
//!    purges; and its entry in memory is marked as stale before the purge can be forgotten.

pub mod record;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use nectary_host::fleet::AppliedMark;

use crate::disk::span::SpanDisk;
use crate::error::Error;
use crate::format::RecordLocation;
use crate::index::held_names::SpanNames;
use crate::index::referenced::ReferencedBits;
use crate::index::{ObjectIndex, ShardPresence};
use crate::memory::entry::MemoryEntry;
use crate::memory::tier::MemoryTier;
use crate::names::key::KeyHash;
use crate::planted::{Bug, planted};
use crate::purge::log::PurgeOrder;
use crate::purge::purge_table::PurgeTable;
use crate::purge::rules::PurgeVerdict;

/// The state of an open span's objects.
pub(crate) struct SpanState {
    pub span: Arc<SpanDisk>,
    pub index: ObjectIndex,
    /// The shards of the index that are loaded.
    pub presence: ShardPresence,
    pub memory: MemoryTier,
    pub purges: PurgeTable,
    /// The names that the ring of segments may hold.
    pub names: Arc<SpanNames>,
    /// Bits that tell which records were requested since they were written.
    pub referenced: ReferencedBits,
    /// The progress of puts, flushes and purges.
    pub progress: SpanProgress,
    stopped: OnceLock<String>,
}

/// The progress of puts, flushes and purges.
pub(crate) struct SpanProgress {
    /// The last generation or sequence that was drawn.
    clock: AtomicU64,
    /// All sequences up to this one are written.
    pub written: AtomicU64,
    /// All sequences up to this one are flushed.
    pub flushed: AtomicU64,
    /// The value of the clock when a span of the store last returned after an absence.
    pub since: AtomicU64,
    /// The number of the last purge of the store that is durable on this span; 0 in a store of one span.
    pub purge_number: AtomicU64,
    /// What the store has applied of its fleet's purges. The next block of the purge log records it.
    mark: Mutex<AppliedMark>,
}

impl SpanProgress {
    /// The progress of a span after recovery.
    pub fn new(clock: u64, recovered_sequence: u64, since: u64, order: PurgeOrder) -> SpanProgress {
        SpanProgress {
            clock: AtomicU64::new(clock),
            written: AtomicU64::new(recovered_sequence),
            flushed: AtomicU64::new(recovered_sequence),
            since: AtomicU64::new(since),
            purge_number: AtomicU64::new(order.number),
            mark: Mutex::new(order.mark),
        }
    }

    /// What the store has applied of its fleet's purges.
    pub fn mark(&self) -> AppliedMark {
        *self.mark.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what the store has applied.
    pub fn set_mark(&self, mark: AppliedMark) {
        *self.mark.lock().unwrap_or_else(PoisonError::into_inner) = mark;
    }
}

/// The tables of a state.
pub(crate) struct StateTables {
    pub index: ObjectIndex,
    pub presence: ShardPresence,
    pub memory: MemoryTier,
    pub purges: PurgeTable,
    pub names: Arc<SpanNames>,
    pub referenced: ReferencedBits,
}

impl SpanState {
    /// Makes the state of a span that accepts writes.
    pub fn new(span: &Arc<SpanDisk>, tables: StateTables, progress: SpanProgress) -> SpanState {
        let StateTables { index, presence, memory, purges, names, referenced } = tables;
        let span = Arc::clone(span);
        SpanState { span, index, presence, memory, purges, names, referenced, progress, stopped: OnceLock::new() }
    }

    /// Draws the next generation or sequence.
    pub fn draw(&self) -> u64 {
        self.progress.clock.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// The effect of purges on an entry. If the entry was softly purged, it is marked as stale, so that it stays stale
    /// when the purge is forgotten.
    pub fn verdict(&self, entry: &MemoryEntry) -> PurgeVerdict {
        let primary = entry.key.as_ref().primary;
        let verdict = self.purges.verdict(entry.primary_hash, entry.generation, primary, entry.tags.hashes());
        match (verdict, entry.stale_since_s()) {
            (PurgeVerdict::Stale(since_s), _) => {
                entry.set_stale_since(since_s);
                verdict
            }
            (PurgeVerdict::Live, Some(since_s)) => PurgeVerdict::Stale(since_s),
            _ => verdict,
        }
    }

    /// Whether an entry has been purged, and not only softly.
    pub fn is_purged(&self, entry: &MemoryEntry) -> bool {
        self.verdict(entry).is_gone()
    }

    /// Whether the index has this location, in the segment of `epoch`, and no newer location for the same hash.
    ///
    /// A newer location may belong to the same key, or to another key with an equal hash in the index.
    pub fn is_newest(&self, hash: KeyHash, location: RecordLocation, epoch: u64) -> bool {
        let head = self.span.head();
        let age = |location: RecordLocation| (self.span.epoch_at(location, head), location.granule);
        age(location).0 == epoch && self.index.leads_last_to(hash, location, age)
    }

    /// Removes a purged version from the index, except if the index has older versions under its hash. In that case the
    /// purged version must hide these, because the purge may be by tag, or not durable yet.
    pub fn forget_purged(&self, hash: KeyHash, location: RecordLocation) {
        if self.index.leads_only_to(hash, location) {
            self.index.remove(hash, location);
        }
    }

    /// Removes a location and all older locations of its hash from the index, the newest last. Does nothing if the
    /// index has a newer location, or does not have this one any more: the caller may have found it long ago.
    pub fn forget_from(&self, hash: KeyHash, location: RecordLocation) {
        let head = self.span.head();
        let age = |location: RecordLocation| (self.span.epoch_at(location, head), location.granule);
        if !self.index.leads_last_to(hash, location, age) {
            return;
        }
        let mut candidates = self.index.candidates(hash);
        candidates.sort_by_key(|location| age(*location));
        for location in candidates {
            self.index.remove(hash, location);
        }
    }

    /// Flushes the device, and notes that all sequences written before the call are flushed.
    pub async fn flush(&self) -> Result<(), Error> {
        let written = self.progress.written.load(Ordering::Acquire);
        if !planted(Bug::FlushDropped) {
            self.span.flush().await?;
        }
        self.progress.flushed.fetch_max(written, Ordering::AcqRel);
        Ok(())
    }

    /// Why the store takes no more writes.
    pub fn stopped(&self) -> Option<&str> {
        self.stopped.get().map(String::as_str)
    }

    /// Notes why the store takes no more writes; the first reason is kept.
    pub fn set_stopped(&self, reason: String) {
        let _ = self.stopped.set(reason);
    }

    pub fn stopped_error(&self) -> Error {
        Error::stopped(format!(
            "{}: the store takes no more writes: {}",
            self.span.device.spec(),
            self.stopped().unwrap_or("it is closed")
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nectary_block::{MemoryDevice, SharedDevice};

    use crate::{CreateOptions, KeyRef, OpenOptions, Store};

    /// A partial read of a replaced object removes nothing newer from the index.
    #[tokio::test]
    async fn partial_read_keeps_newer_index() {
        let device: SharedDevice = Arc::new(MemoryDevice::new(1 << 20));
        Store::create(device.clone(), &CreateOptions::default()).await.unwrap();
        let store =
            Store::open(device, OpenOptions { memory_bytes: 16 << 20, ..OpenOptions::default() }).await.unwrap();
        let (key, state) = (KeyRef::new(b"key", b""), store.state());
        let (_, hash) = state.span.hash(key);
        let mut places = Vec::new();
        for body in ["older", "newer"] {
            store.put(key, "m".into(), body.into()).await.unwrap();
            store.sync().await.unwrap();
            places.extend(state.index.candidates(hash));
        }
        let [older, newer] = places[..] else { panic!("one place each: {places:?}") };
        // The index has both locations until the writer has compared the older version.
        state.index.insert(hash, older);
        state.forget_from(hash, older);
        assert!(state.index.contains(hash, newer), "what is newer stays");
        state.forget_from(hash, newer);
        assert!(state.index.candidates(hash).is_empty(), "what is older goes with it");
        state.index.insert(hash, newer);
        state.forget_from(hash, older);
        assert!(state.index.contains(hash, newer), "the index does not lead there any more");
        store.close().await.unwrap();
    }
}
