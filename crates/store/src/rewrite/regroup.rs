//! Regrouping: objects that are requested together but stored apart are rewritten side by side.
//!
//! Owns: which reads belong to the view of a page (the requests for the page and its objects), and when the page's
//! group is rewritten. Leaves to others: rewriting (`rewrite`), its bound (`keep`), and placing records side by side
//! (`arrange`).
//!
//! The group of a page consists of the page and the objects that hints tied to it when it was written. An object that
//! another page embedded before is stored with that other page. An object that the end of an append cut off is in the
//! next append. Such an object is *misplaced*: it costs a separate read in every view of the page. At the first
//! misplaced object of a view, the page and the objects read with its group are queued for rewriting, tied to each
//! other. Further misplaced objects are added while the page waits. The next view needs one read.
//!
//! | the page | an object of the page | what happens |
//! |---|---|---|
//! | waits to be written | is read from disk | the object is rewritten next to the page |
//! | was put and is written | is read from disk | both are rewritten, with the other objects put for the page |
//! | was read from disk | is read from disk or put | both are rewritten, with the objects of the page's group |
//! | was put and is written | is put | nothing: few pages are viewed again, and the next view finds the object misplaced |
//! | has been in memory for long, or is unknown | is read from disk | nothing: the page is not read from disk soon |
//!
//! After an object was rewritten, the index points to the new location. The old record stays on disk until its segment
//! is reclaimed.

use super::ObjectRewriter;
use super::views::RunningView;
use crate::counters::Counters;
use crate::locality::hints::HintId;
use crate::memory::entry::{EntryKind, MemoryEntry};
use crate::names::key::KeyHash;

/// At most this many members of a group are rewritten with it.
const MEMBERS_MAX: usize = 32;

impl ObjectRewriter {
    /// Notes that an object was put.
    pub fn note_put(&self, entry: &MemoryEntry) {
        if !self.views.regroups || entry.kind != EntryKind::Whole {
            return;
        }
        let Some(page) = self.hints.seed_of(entry.primary_hash) else {
            let page = HintId::of(entry.primary_hash);
            self.views.begin(RunningView::put(page, entry.hash, entry.sequence));
            return;
        };
        if let Some(view) = self.views.lock().views.get_mut(&page) {
            if !view.was_put {
                self.gather(view);
            }
            if view.members.len() < MEMBERS_MAX {
                view.members.push(entry.hash);
            }
        }
    }

    /// Notes that an object was read from disk, and which members of its group came with it.
    pub fn note_read(&self, entry: &MemoryEntry, members: Vec<KeyHash>) {
        if !self.views.regroups || entry.kind != EntryKind::Whole {
            return;
        }
        let Some(page) = self.hints.seed_of(entry.primary_hash) else {
            let page = HintId::of(entry.primary_hash);
            self.views.begin(RunningView::read(page, entry.hash, members));
            return;
        };
        Counters::add(&self.span.counters.misplaced, 1);
        if let Some(view) = self.views.lock().views.get_mut(&page) {
            self.gather(view);
            if self.waits(view) {
                self.write_beside(entry.hash, page);
            }
        }
    }

    /// Queues a page and the known members of its group for rewriting, once per view, if the page does not already
    /// wait.
    fn gather(&self, view: &mut RunningView) {
        if view.was_gathered || self.waits(view) {
            return;
        }
        view.was_gathered = true;
        view.sequence = self.write_beside(view.hash, view.page);
        if view.sequence.is_some() {
            view.members.iter().take(MEMBERS_MAX).for_each(|&member| _ = self.write_beside(member, view.page));
        }
    }

    /// Whether the page of a view waits to be written.
    fn waits(&self, view: &RunningView) -> bool {
        view.sequence.is_some_and(|sequence| self.intake.queue.waits(sequence))
    }

    /// Queues an object in memory for rewriting next to a page; returns its sequence.
    fn write_beside(&self, hash: KeyHash, page: HintId) -> Option<u64> {
        // The head is read before the location: if the segment is reclaimed between the two reads, the object gets an
        // old epoch and is refused.
        let head = self.span.head();
        let entry = self.state.memory.peek(hash).filter(|entry| entry.kind == EntryKind::Whole)?;
        let from = entry.location()?;
        let epoch = self.span.epoch_at(from, head);
        let sequence = self.rewrite_from_memory(&entry, from, epoch, Some(page))?;
        Counters::add(&self.span.counters.regrouped, 1);
        Counters::add(&self.span.counters.regrouped_bytes, entry.body.len() as u64);
        Some(sequence)
    }
}
