//! Rewriting: an object that is on disk is queued to be written again, at another location.
//!
//! Owns: the step that queues an object, and the state that its three users share. `regroup` moves objects that are
//! requested together next to each other. `keep` rewrites objects that are also in memory, before their segment is
//! reclaimed. `reinsert` does the same for objects that it must read from the disk first. Leaves to others: writing the object, and its index
//! entry (`write/publish.rs`).
//!
//! # Invariants
//! 1. A purged object does not reappear: the old generation is compared with the purges under the lock that orders
//!    sequences. The record keeps the old generation, so a later purge applies to it like to any other record.
//! 2. A replaced object does not reappear: under the same lock, the old location must be the only one that the index
//!    has for the hash, and memory must not have another version. A later put has a higher sequence.
//! 3. The old location is not overwritten yet when its record is queued, so a location never refers to newer bytes.
//! 4. Puts go first: while more than half of the queue's capacity waits to be written, nothing is rewritten.

pub mod keep;
pub mod regroup;
pub mod reinsert;
pub mod views;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::disk::span::SpanDisk;
use crate::format::RecordLocation;
use crate::intake::SpanIntake;
use crate::intake::queue::{QueueRefusal, UnwrittenEntry};
use crate::locality::hints::{HintId, PendingHints};
use crate::memory::entry::{EntryParts, MemoryEntry};
use crate::planted::{Bug, planted};
use crate::purge::rules::PurgeVerdict;
use crate::rewrite::views::RunningViews;
use crate::state::SpanState;

/// The parts that rewrite objects of a span.
pub(crate) struct ObjectRewriter {
    pub span: Arc<SpanDisk>,
    pub state: Arc<SpanState>,
    pub intake: Arc<SpanIntake>,
    pub hints: PendingHints,
    pub views: RunningViews,
    /// The largest number of bytes that may be rewritten from memory, in percent of the admitted bytes.
    pub percent: u32,
    /// The largest part of a segment that may be re-inserted, in percent.
    pub reinsert_percent: u32,
    /// The newest epoch that was harvested for re-insertion, or 0.
    pub harvested: AtomicU64,
}

/// Why an object is not rewritten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RewriteRefusal {
    /// The object was purged or replaced; or, in a store with admission rules, the object is already queued for
    /// rewriting.
    Outdated,
    /// The object's location was overwritten.
    Overtaken,
    /// The queue is too full; puts go first.
    Full,
    /// The store takes no more writes.
    Closed,
}

impl From<QueueRefusal> for RewriteRefusal {
    fn from(refused: QueueRefusal) -> RewriteRefusal {
        match refused {
            QueueRefusal::Full => RewriteRefusal::Full,
            QueueRefusal::Closed => RewriteRefusal::Closed,
        }
    }
}

impl ObjectRewriter {
    /// Queues the entry at `from`, in the segment of `epoch`, for rewriting next to `tie`. Returns the entry's new
    /// sequence. *Errors*: the entry was purged, replaced or overwritten, or cannot be queued.
    pub fn rewrite(
        &self,
        entry: &Arc<MemoryEntry>,
        from: RecordLocation,
        epoch: u64,
        tie: Option<HintId>,
    ) -> Result<u64, RewriteRefusal> {
        let SpanState { index, memory, .. } = &*self.state;
        let SpanIntake { queue, admission, .. } = &*self.intake;
        let mut sequence = 0;
        queue.push_if_idle::<RewriteRefusal>(|| {
            let verdict = self.state.verdict(entry);
            if self.span.is_overtaken(epoch) {
                return Err(RewriteRefusal::Overtaken);
            }
            let purged = verdict != PurgeVerdict::Live;
            let ignored = (planted(Bug::ReinsertionIgnoresPurge) && purged)
                || (planted(Bug::ReinsertionIgnoresTagPurge) && verdict == PurgeVerdict::Tag);
            if ignored {
                // The planted bug: the purged object is written as if it were put now.
                let parts = EntryParts {
                    key: entry.key.clone(),
                    primary_hash: entry.primary_hash,
                    hash: entry.hash,
                    kind: entry.kind,
                    metadata: entry.metadata.clone(),
                    body: entry.body.clone(),
                    object_bytes: entry.object_bytes,
                    generation: self.state.draw(),
                    tags: entry.tags.clone(),
                };
                let entry = Arc::new(MemoryEntry::new(parts, self.state.draw()));
                let previous = memory.put_unwritten(&entry);
                sequence = entry.sequence;
                return Ok(UnwrittenEntry::of(entry, previous));
            }
            let alone = index.candidates(entry.hash).iter().all(|other| other.granule == from.granule)
                && index.contains(entry.hash, from);
            let replaced = !alone || memory.has_other_version(entry);
            if purged || (replaced && !planted(Bug::ReinsertionIgnoresReplacement)) {
                return Err(RewriteRefusal::Outdated);
            }
            if !admission.is_open() && !admission.doubt.move_begins(entry.hash) {
                return Err(RewriteRefusal::Outdated);
            }
            let entry = Arc::clone(entry);
            sequence = self.state.draw();
            Ok(UnwrittenEntry { sequence, entry, previous: None, moved_from: Some(from), tie })
        })?;
        Ok(sequence)
    }
}
