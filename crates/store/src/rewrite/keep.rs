//! Keeping: requested objects in memory are rewritten before their segment is reclaimed.
//!
//! Owns: which entries that are, and the bound on all that is rewritten from memory. Leaves to others: rewriting
//! (`rewriting`), and objects that would have to be read for it (`reinsert`).
//!
//! It happens when a segment is opened, for the one that is overwritten next. It needs no read. It looks at every entry
//! in memory: if there are more than [`KEEP_ENTRIES_MAX`], nothing is kept.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::counters::Counters;
use crate::format::{GRANULE_BYTES, Location};
use crate::locality::hints::HintId;
use crate::memory::entry::Entry;
use crate::rewrite::Rewriting;

/// The largest share of the bytes put that may be rewritten, in percent.
pub const REWRITE_PERCENT_MAX: u32 = 100;
/// The usual share: with headers it writes at most 1.25 bytes for each that is put.
pub(crate) const REWRITE_PERCENT_DEFAULT: u32 = 19;
/// The most entries in memory that are considered for keeping each time a segment is opened.
const KEEP_ENTRIES_MAX: usize = 1 << 16;

impl Rewriting {
    /// Queues what is in memory of an epoch that is overwritten next, and was requested, to be rewritten.
    pub fn keep_resident(&self, epoch: u64) {
        let memory = &self.state.memory;
        if self.percent == 0 || memory.count() > KEEP_ENTRIES_MAX {
            return;
        }
        let layout = &self.span.layout;
        let segment = layout.segment_of(epoch);
        let here = |location: Location| location.granule * GRANULE_BYTES / layout.segment_bytes == segment;
        for (entry, from) in memory.asked_for_at(here) {
            if self.rewrite_from_memory(&entry, from, epoch, None).is_some() {
                Counters::add(&self.span.counters.kept, 1);
                Counters::add(&self.span.counters.kept_bytes, entry.body.len() as u64);
            }
        }
    }

    /// Queues an entry to be rewritten, as long as all that is rewritten from memory stays inside its share of the
    /// bytes that were put and admitted; returns its sequence.
    pub fn rewrite_from_memory(
        &self,
        entry: &Arc<Entry>,
        from: Location,
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
