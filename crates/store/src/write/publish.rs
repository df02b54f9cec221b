//! Making a written entry findable on disk.
//!
//! Owns: the index entry of a written object, and the removal of the versions that it replaces.

use std::sync::Arc;

use super::SpanWriter;
use crate::format::RecordLocation;
use crate::intake::queue::UnwrittenEntry;
use crate::memory::entry::{EntryKind, MemoryEntry};
use crate::planted::{Bug, planted};
use crate::purge::rules::PurgeVerdict;
use crate::recover::replay::{SUSPECTS_MAX, SuspectLocation};
use crate::state::record::{RecordLookup, read_record};

/// The number of suspects (possible older versions, whose keys are compared on disk) that are read in one turn of the
/// writer.
const SUSPECTS_AT_ONCE: usize = 16;

impl SpanWriter {
    /// Makes written entries findable on disk, and removes their older versions from the index.
    pub(super) fn publish(&mut self, items: Vec<(UnwrittenEntry, RecordLocation)>) {
        let (mut admitted, mut purged) = (Vec::with_capacity(items.len()), Vec::new());
        for (item, location) in items {
            let Some((entry, verdict)) = self.publish_one(item, location) else { continue };
            if verdict.is_gone() {
                purged.push(Arc::clone(&entry));
            }
            admitted.push(entry);
        }
        self.state.memory.admit(&admitted);
        purged.iter().for_each(|entry| self.state.memory.remove_same(entry));
    }

    /// Adds a written entry to the index. Returns the entry and the verdict of purges; `None` if the memory tier needs
    /// no change.
    fn publish_one(
        &mut self,
        item: UnwrittenEntry,
        location: RecordLocation,
    ) -> Option<(Arc<MemoryEntry>, PurgeVerdict)> {
        let state = &self.state;
        let entry = &item.entry;
        if let Some(from) = item.moved_from {
            self.publish_moved(entry, from, location);
            if !self.intake.admission.is_open() {
                self.intake.admission.doubt.move_ends(entry.hash);
            }
            return None;
        }
        // A purged version also gets an index entry: until the purge is durable, it hides the versions that it
        // replaced.
        let verdict = state.verdict(entry);
        if verdict == PurgeVerdict::Tag && planted(Bug::TagPurgeUncovers) {
            state.memory.drop_unwritten(entry);
            return None;
        }
        let known = item.previous.as_ref().and_then(|previous| previous.location());
        let older = if matches!(entry.kind, EntryKind::Fragment { .. }) {
            Vec::new()
        } else {
            state.index.candidates(entry.hash)
        };
        state.index.insert(entry.hash, location);
        for older in older {
            if known.is_some_and(|known| known.granule == older.granule) {
                state.index.remove(entry.hash, older);
            } else if older.granule != location.granule && self.suspects.len() < SUSPECTS_MAX {
                self.suspects.push(SuspectLocation { hash: entry.hash, newer: location, older });
            }
        }
        // A lookup that sees the entry's location may remove a purged entry from memory. That is allowed from here on:
        // the index has the entry, and every version that the entry hides is either out of the index or older than the
        // entry there.
        entry.set_location(location);
        if entry.was_asked_for() {
            state.referenced.set(location);
        }
        Some((item.entry, verdict))
    }

    /// Makes a rewritten entry findable at its new location, except if it was purged or replaced since.
    fn publish_moved(&self, entry: &MemoryEntry, from: RecordLocation, to: RecordLocation) {
        let state = &self.state;
        let alone = state.index.candidates(entry.hash).iter().all(|other| other.granule == from.granule);
        let outdated = state.is_purged(entry) || state.memory.has_other_version(entry);
        if (outdated || !alone) && !planted(Bug::ReinsertionIgnoresReplacement) {
            return;
        }
        state.index.insert(entry.hash, to);
        state.index.remove(entry.hash, from);
        state.memory.relocate(entry.hash, from, to);
    }

    /// Reads some suspects, and removes from the index those that are older versions of the same key.
    pub(super) async fn compare_suspects(&mut self) {
        let from = self.suspects.len().saturating_sub(SUSPECTS_AT_ONCE);
        for suspect in self.suspects.split_off(from) {
            if !self.state.index.contains(suspect.hash, suspect.newer) {
                continue;
            }
            if let RecordLookup::Entry(_) = read_record(&self.state, suspect.hash, None, suspect.older).await {
                self.state.index.remove(suspect.hash, suspect.older);
            }
        }
    }
}
