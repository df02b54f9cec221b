//! Writing anew what is in memory: what is wanted together and lies apart is laid together, and what is asked for is kept.
//!
//! Owns: which reads belong to the view of a page, when its group is written anew, what is kept of a segment, and the bound on
//! both. Leaves to others: writing anew (`reinsert`, with what it promises of purges and replacements), laying down side by
//! side (`arrange`), copies (`twins`).
//!
//! # Regrouping
//! A page's group is what hints tied to it when it was written. What another page embedded before lies with that one, and
//! what an append cut off lies in the next: each costs a read of its own whenever the page is viewed. Such a read is a
//! *stray*. At the first stray of a view the page and what its group brought are queued to be written anew, tied to each
//! other; the strays follow for as long as the page waits. The next view takes one read.
//!
//! | the page | an object of it is | what happens |
//! |---|---|---|
//! | waits to be written | read from disk | the object is written beside it |
//! | was put and is written | read from disk | both are, and what else was put for it |
//! | was read from disk | read from disk or put | both are, and what the page's group brought |
//! | was put and is written | put | nothing: few pages are viewed again, and a view finds it out |
//! | is in memory for long, or unknown | read from disk | nothing: the page's next read is not near |
//!
//! What is written anew is a copy: its former place stays good for the group that lies there, and the index leads to the new one.
//!
//! # Keeping
//! When a segment is opened, what the next one will overwrite, is in memory and was asked for since it was written is written anew.
//! It needs no read, as re-insertion of what is not in memory does. Looked at is every entry in memory: where they are
//! more than [`KEEP_ENTRIES_MAX`], nothing is kept.
//!
//! # The bound
//! Both together write at most a share of the bytes that were put and admitted, and only while less than half of the queue is used.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::entry::{Entry, Piece};
use crate::format::UNIT_BYTES;
use crate::hints::HintId;
use crate::index::Location;
use crate::key::{Hashed, KeyHash};
use crate::shared::Shared;
use crate::stat::Counters;

/// The largest share of what is put that may be written anew, in percent.
pub const REWRITE_PERCENT_MAX: u32 = 100;
/// The usual share: with headers it writes at most 1.25 bytes for each that is put.
pub(crate) const REWRITE_PERCENT_DEFAULT: u32 = 19;
/// A view for so many bytes of the memory budget.
const BYTES_PER_VIEW: u64 = 128 << 10;
/// The fewest and the most views under way that are known; beyond, the oldest are forgotten.
const VIEWS: (u64, u64) = (64, 1024);
/// Members of a group that are written anew with it at most.
const MEMBERS_MAX: usize = 32;
/// Entries in memory that are looked at for those to be kept, at most, each time a segment is opened.
const KEEP_ENTRIES_MAX: usize = 1 << 16;

/// The view of a page that was put or read from disk lately.
struct View {
    page: HintId,
    hash: KeyHash,
    /// What its group brought, or what was put for it since.
    members: Vec<KeyHash>,
    /// The sequence under which the page was queued to be written in this view, once it was.
    sequence: Option<u64>,
    /// The page was put, not read.
    was_put: bool,
    /// It was written anew.
    was_gathered: bool,
    /// Which of all views it is.
    number: u64,
}

impl View {
    fn put(page: HintId, hash: KeyHash, sequence: u64) -> View {
        let members = Vec::new();
        View { page, hash, members, sequence: Some(sequence), was_put: true, was_gathered: false, number: 0 }
    }

    fn read(page: HintId, hash: KeyHash, members: Vec<KeyHash>) -> View {
        View { page, hash, members, sequence: None, was_put: false, was_gathered: false, number: 0 }
    }
}

/// The views under way, each under its page.
#[derive(Default)]
struct Known {
    views: HashMap<HintId, View, BuildHasherDefault<Hashed>>,
    /// The order in which they began, also of those that have begun anew since.
    order: VecDeque<(HintId, u64)>,
    begun: u64,
}

/// The views under way.
pub struct Views {
    known: Mutex<Known>,
    count_max: usize,
    /// How much may be written anew, in percent of what is put.
    percent: u32,
    /// Whether hints are followed.
    regroups: bool,
}

impl Views {
    /// Knows of no view. `percent` of what is put may be written anew.
    pub fn new(memory_bytes: u64, percent: u32, regroups: bool) -> Views {
        let count_max = (memory_bytes / BYTES_PER_VIEW).clamp(VIEWS.0, VIEWS.1) as usize;
        Views { known: Mutex::default(), count_max, percent, regroups: regroups && percent > 0 }
    }

    fn begin(&self, mut view: View) {
        let mut known = self.lock();
        known.begun += 1;
        view.number = known.begun;
        known.order.push_back((view.page, view.number));
        known.views.insert(view.page, view);
        // Twice as many, as some have begun anew.
        while known.views.len() > self.count_max || known.order.len() > 2 * self.count_max {
            let Some((page, number)) = known.order.pop_front() else { return };
            if known.views.get(&page).is_some_and(|view| view.number == number) {
                known.views.remove(&page);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Shared {
    /// Notes that an object was put.
    pub fn note_put(&self, entry: &Entry) {
        if !self.views.regroups || entry.piece != Piece::Whole {
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
        if !self.views.regroups || entry.piece != Piece::Whole {
            return;
        }
        let Some(page) = self.hints.seed_of(entry.primary_hash) else {
            let page = HintId::of(entry.primary_hash);
            self.views.begin(View::read(page, entry.hash, members));
            return;
        };
        Counters::add(&self.counters.strays, 1);
        if let Some(view) = self.views.lock().views.get_mut(&page) {
            self.gather(view);
            if self.waits(view) {
                self.write_beside(entry.hash, page);
            }
        }
    }

    /// Queues a page and what is known of its group to be written anew, once a view, where it does not wait already.
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
        view.sequence.is_some_and(|sequence| self.queue.waits(sequence))
    }

    /// Queues an object that is in memory to be written anew beside a page; tells its sequence.
    fn write_beside(&self, hash: KeyHash, page: HintId) -> Option<u64> {
        let head = self.head.load(Ordering::Acquire);
        let entry = self.memory.peek(hash).filter(|entry| entry.piece == Piece::Whole)?;
        let from = entry.location()?;
        let sequence = self.rewrite(&entry, from, self.incarnation_at(from, head), Some(page))?;
        Counters::add(&self.counters.regrouped, 1);
        Counters::add(&self.counters.regrouped_bytes, entry.body.len() as u64);
        Some(sequence)
    }

    /// Queues what is in memory of an incarnation that is overwritten next, and was asked for, to be written anew.
    pub fn keep_resident(&self, incarnation: u64) {
        if self.views.percent == 0 || self.memory.count() > KEEP_ENTRIES_MAX {
            return;
        }
        let segment = self.layout.segment_of(incarnation);
        let here = |location: Location| location.unit * UNIT_BYTES / self.layout.segment_bytes == segment;
        for (entry, from) in self.memory.asked_for_at(here) {
            if self.rewrite(&entry, from, incarnation, None).is_some() {
                Counters::add(&self.counters.kept, 1);
                Counters::add(&self.counters.kept_bytes, entry.body.len() as u64);
            }
        }
    }

    /// Queues an entry to be written anew, inside the bound; tells its sequence.
    fn rewrite(&self, entry: &Arc<Entry>, from: Location, incarnation: u64, tie: Option<HintId>) -> Option<u64> {
        let bytes = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let rewritten = bytes(&self.counters.regrouped_bytes) + bytes(&self.counters.kept_bytes);
        let most = bytes(&self.counters.admitted_bytes) / 100 * u64::from(self.views.percent);
        if rewritten + entry.body.len() as u64 > most {
            return None;
        }
        self.write_anew(entry, from, incarnation, tie).ok()
    }
}
