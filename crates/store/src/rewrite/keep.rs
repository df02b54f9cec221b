//! Keeping: requested objects in memory are rewritten before their segment is reclaimed.
//!
//! Owns: which entries are kept, and the bound on all bytes rewritten from memory. Leaves to others: rewriting
//! (`rewrite`), and objects that must be read first (`reinsert`).
//!
//! When a segment is opened, objects of the segment that is overwritten next are kept. This needs no read, but it
//! visits every entry in memory: if memory has more than [`KEEP_ENTRIES_MAX`] entries, nothing is kept.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::counters::Counters;
use crate::format::{GRANULE_BYTES, RecordLocation};
use crate::locality::hints::HintId;
use crate::memory::entry::MemoryEntry;
use crate::rewrite::ObjectRewriter;

/// The largest limit that may be set on the bytes rewritten from memory, in percent of the admitted bytes.
pub const REWRITE_PERCENT_MAX: u32 = 100;
/// The default limit, in percent. With it, at most 1.25 bytes are written per admitted byte, headers included.
pub(crate) const REWRITE_PERCENT_DEFAULT: u32 = 19;
/// Objects are kept only if memory has at most this many entries.
const KEEP_ENTRIES_MAX: usize = 1 << 16;

impl ObjectRewriter {
    /// Queues objects for rewriting: the requested objects in memory that are in the segment of `epoch`, which is
    /// overwritten next.
    pub fn keep_resident(&self, epoch: u64) {
        let memory = &self.state.memory;
        if self.percent == 0 || memory.count() > KEEP_ENTRIES_MAX {
            return;
        }
        let layout = &self.span.layout;
        let segment = layout.segment_of(epoch);
        let here = |location: RecordLocation| location.granule * GRANULE_BYTES / layout.segment_bytes == segment;
        for (entry, from) in memory.asked_for_at(here) {
            if self.rewrite_from_memory(&entry, from, epoch, None).is_some() {
                Counters::add(&self.span.counters.kept, 1);
                Counters::add(&self.span.counters.kept_bytes, entry.body.len() as u64);
            }
        }
    }

    /// Queues an entry for rewriting and returns its sequence; `None` if the bytes rewritten from memory would exceed
    /// their share of the admitted bytes, or if the entry cannot be rewritten.
    pub fn rewrite_from_memory(
        &self,
        entry: &Arc<MemoryEntry>,
        from: RecordLocation,
        epoch: u64,
        tie: Option<HintId>,
    ) -> Option<u64> {
        let bytes = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.span.counters;
        let rewritten = bytes(&counters.regrouped_bytes) + bytes(&counters.kept_bytes);
        let most = bytes(&counters.admitted_bytes) / 100 * u64::from(self.percent);
        if rewritten + entry.body.len() as u64 > most {
            return None;
        }
        self.rewrite(entry, from, epoch, tie).ok()
    }
}
