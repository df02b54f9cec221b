//! Regrouping: objects wanted together but stored apart are rewritten side by side.
//!
//! Owns: which reads belong to the view of a page, and when its group is rewritten. Leaves to others: rewriting
//! (`rewriting`), its bound (`keep`), and laying records down side by side (`arrange`).
//!
//! A page's group are the objects that hints tied to it when it was written. An object that another page embedded
//! before is stored with that page, and one that an append cut off is in the next append: each costs its own read
//! whenever the page is viewed. Such an object is *misplaced*. At the first one of a view the page and the objects that
//! its group brought are queued to be rewritten, tied to each other; later ones follow while the page waits. The next
//! view takes one read.
//!
//! | the page | an object of it is | what happens |
//! |---|---|---|
//! | waits to be written | read from disk | the object is written beside it |
//! | was put and is written | read from disk | both are, and the other objects put for it |
//! | was read from disk | read from disk or put | both are, and the objects of the page's group |
//! | was put and is written | put | nothing: few pages are viewed again, and the next view of the page finds that it is missing |
//! | is in memory for long, or unknown | read from disk | nothing: the page's next read is not near |
//!
//! The index leads to the new place. The old record stays where it is until its segment is reclaimed.

use super::Rewriting;
use super::views::View;
use crate::counters::Counters;
use crate::locality::hints::HintId;
use crate::memory::entry::{Entry, EntryKind};
use crate::names::key::KeyHash;

/// Members of a group that are rewritten with it at most.
const MEMBERS_MAX: usize = 32;

impl Rewriting {
    /// Notes that an object was put.
    pub fn note_put(&self, entry: &Entry) {
        if !self.views.regroups || entry.kind != EntryKind::Whole {
            return;
        }
        let Some(page) = self.hints.seed_of(entry.primary_hash) else {
            let page = HintId::of(entry.primary_hash);
            self.views.begin(View::put(page, entry.hash, entry.sequence));
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
    pub fn note_read(&self, entry: &Entry, members: Vec<KeyHash>) {
        if !self.views.regroups || entry.kind != EntryKind::Whole {
            return;
        }
        let Some(page) = self.hints.seed_of(entry.primary_hash) else {
            let page = HintId::of(entry.primary_hash);
            self.views.begin(View::read(page, entry.hash, members));
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

    /// Queues a page and the known members of its group to be rewritten, once a view, if it does not wait already.
    fn gather(&self, view: &mut View) {
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
    fn waits(&self, view: &View) -> bool {
        view.sequence.is_some_and(|sequence| self.intake.queue.waits(sequence))
    }

    /// Queues an object that is in memory to be rewritten beside a page; returns its sequence.
    fn write_beside(&self, hash: KeyHash, page: HintId) -> Option<u64> {
        // Read before the place: an object whose segment is reclaimed in between is then seen to be of an old epoch.
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
