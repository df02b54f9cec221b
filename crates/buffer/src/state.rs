//! What is in memory, under one mutex: entries, the policy, dirty blocks, locks and counters.
//!
//! Owns: the transitions of an entry, and when it goes. Promises: nothing here waits, and no I/O is done. Leaves to
//! others: when which transition happens (`read`, `write`, `zero`, `writeback`).
//!
//! | an entry is | while |
//! |---|---|
//! | loading | it is being read from the source; all waiters share that one read |
//! | ready | it has contents |
//! | resident | the policy holds it |
//! | ahead | it was read ahead and not referenced yet |
//! | dirty | the source does not have its newest version |
//! | held | a write of a part of it is about to come |
//! | pinned | a user holds it; of what is pinned and has no entry, one comes with the next reference |
//!
//! It is dropped when it is ready and none of the others is.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, OnceLock};

use hashbrown::HashMap;
use nectary_block::{Error, Stream};
use nectary_cache::{Access, Lru, Policy};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::frame::Frame;
use crate::locks::RangeLocks;
use crate::names::Reference;
use crate::options::{Budget, Mode};
use crate::source::Source;
use crate::stats::Counts;
use crate::streams::{Streams, Verdicts};
use crate::users::history::History;

/// A read under way, and its waiters.
#[derive(Default)]
pub(crate) struct Load {
    result: OnceLock<Result<Arc<Frame>, Error>>,
    ended: Notify,
}

impl Load {
    /// Says how it ended; the first word counts.
    pub fn end(&self, result: Result<Arc<Frame>, Error>) {
        let _ = self.result.set(result);
        self.ended.notify_waiters();
    }

    pub fn is_ended(&self) -> bool {
        self.result.get().is_some()
    }

    /// Waits for the end.
    pub async fn wait(&self) -> Result<Arc<Frame>, Error> {
        loop {
            let ended = self.ended.notified();
            if let Some(result) = self.result.get() {
                return result.clone();
            }
            ended.await;
        }
    }
}

/// What an entry has.
pub(crate) enum Content {
    Loading(Arc<Load>),
    Ready(Arc<Frame>),
}

/// The bytes that the source does not have yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dirty {
    /// Its place in the order of age.
    pub number: u64,
    pub since: Instant,
    /// The version that memory has.
    pub version: u64,
    /// Who wrote last.
    pub stream: Stream,
    /// When a write-back failed last.
    pub failed: Option<Instant>,
    pub is_writing: bool,
}

pub(crate) struct Entry {
    pub content: Content,
    pub is_resident: bool,
    /// The number of the readahead that brought it, until it is referenced.
    pub ahead: Option<u64>,
    pub dirty: Option<Dirty>,
    pub holds: u32,
    /// Who referred to it last.
    pub stream: Stream,
}

impl Entry {
    pub fn new(content: Content, is_resident: bool) -> Entry {
        Entry { content, is_resident, ahead: None, dirty: None, holds: 0, stream: Stream(0) }
    }

    pub fn frame(&self) -> Option<&Arc<Frame>> {
        match &self.content {
            Content::Ready(frame) => Some(frame),
            Content::Loading(_) => None,
        }
    }
}

/// Blocks that were read ahead and not referenced yet.
#[derive(Default)]
pub(crate) struct Ahead {
    /// Number of the readahead and id, the oldest first; some are referenced already.
    pub order: VecDeque<(u64, u64)>,
    pub waiting: u64,
    pub number: u64,
}

impl Ahead {
    /// One of the blocks was referenced, or is gone.
    pub fn referenced(&mut self) {
        self.waiting = self.waiting.saturating_sub(1);
    }
}

/// A file that is cached.
#[derive(Clone)]
pub(crate) struct File {
    pub source: Arc<dyn Source>,
    /// A failed write-back that no flush has reported yet.
    pub failed: Option<Error>,
}

/// Everything under the mutex.
pub(crate) struct State {
    pub entries: HashMap<u64, Entry>,
    pub policy: Box<dyn Policy>,
    /// LRU of the same capacity over the same references: what the ledger compares with.
    pub shadow: Lru,
    pub verdicts: Verdicts,
    pub files: HashMap<u32, File>,
    pub file_next: u32,
    pub locks: RangeLocks,
    pub budget: Budget,
    pub mode: Mode,
    /// Blocks that users hold in memory: the policy does not know them.
    pub pins: BTreeSet<u64>,
    /// References that were sampled, for who asks what another cache would have done.
    pub history: History,
    /// Dirty blocks by place, and by age.
    pub dirty: BTreeSet<u64>,
    pub dirty_by_age: BTreeMap<u64, u64>,
    /// Blocks that may become dirty soon: room is kept for them.
    pub dirty_reserved: u64,
    pub next: u64,
    /// The last write-back that failed, until one ends well.
    pub write_error: Option<Error>,
    pub has_writer: bool,
    pub streams: Streams,
    pub ahead: Ahead,
    pub counts: Counts,
    pub recorder: Option<Box<dyn FnMut(Reference) + Send>>,
    victims: Vec<u64>,
}

/// The outcome of an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Referred {
    pub is_hit: bool,
    /// Whether the policy holds the block now.
    pub is_resident: bool,
}

impl State {
    pub fn new(policy: Box<dyn Policy>, verdicts: Verdicts, budget: Budget, mode: Mode) -> State {
        State {
            entries: HashMap::new(),
            shadow: Lru::new(policy.capacity()),
            policy,
            verdicts,
            files: HashMap::new(),
            file_next: 0,
            locks: RangeLocks::default(),
            budget,
            mode,
            pins: BTreeSet::new(),
            history: History::new(budget.capacity, budget.history),
            dirty: BTreeSet::new(),
            dirty_by_age: BTreeMap::new(),
            dirty_reserved: 0,
            next: 1,
            write_error: None,
            has_writer: false,
            streams: Streams::default(),
            ahead: Ahead::default(),
            counts: Counts::default(),
            recorder: None,
            victims: Vec::new(),
        }
    }

    /// The next number of an order.
    pub fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Refers to a block: the one place at which the policy decides. Its victims go, or wait until they are written
    /// back.
    pub fn refer(&mut self, id: u64, stream: Stream, is_write: bool) -> Referred {
        if self.is_pinned(id) {
            return self.refer_pinned(id, stream);
        }
        let referred = self.decide(id, stream);
        let State { shadow, streams, counts, recorder, history, .. } = self;
        let is_lru_hit = shadow.reference(id, 1, nectary_cache::Stream(stream.0), &mut |_| true) == Access::Hit;
        counts.refer(referred.is_hit, is_lru_hit);
        streams.count(stream, referred.is_hit, is_lru_hit);
        history.refer(id, stream, referred.is_hit);
        if let Some(recorder) = recorder {
            recorder(Reference { id, stream, is_write });
        }
        if let Some(verdicts) = self.verdicts.take() {
            verdicts.into_iter().for_each(|verdict| streams.judge(verdict));
        }
        self.referenced(id, stream, referred.is_resident);
        referred
    }

    /// Lets the policy decide over a reference; what it evicts goes, but for the block itself.
    pub fn decide(&mut self, id: u64, stream: Stream) -> Referred {
        let State { policy, victims, .. } = self;
        victims.clear();
        let access = policy.reference(id, 1, nectary_cache::Stream(stream.0), &mut |victim| {
            victims.push(victim);
            true
        });
        let is_resident = access != Access::Bypassed && !victims.contains(&id);
        let victims = std::mem::take(&mut self.victims);
        victims.iter().filter(|&&victim| victim != id).for_each(|&victim| self.evicted(victim));
        self.victims = victims;
        Referred { is_hit: access == Access::Hit, is_resident }
    }

    /// Lets what the policy evicted go.
    pub fn evicted(&mut self, victim: u64) {
        if let Some(entry) = self.entries.get_mut(&victim) {
            entry.is_resident = false;
            self.settle(victim);
        }
    }

    /// Notes that a block was referenced, and whether the policy holds it.
    pub fn referenced(&mut self, id: u64, stream: Stream, is_resident: bool) {
        if let Some(entry) = self.entries.get_mut(&id) {
            (entry.is_resident, entry.stream) = (is_resident, stream);
            if entry.ahead.take().is_some() {
                self.ahead.referenced();
                self.counts.ahead_used += 1;
            }
        }
    }

    /// Offers the policy a block that is in memory, as if it were referenced now; nobody counts that.
    pub fn offer(&mut self, id: u64) {
        let is_resident = self.decide(id, Stream(0)).is_resident;
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.is_resident = is_resident;
        }
        self.settle(id);
    }

    /// Lets an entry go that nothing keeps.
    pub fn settle(&mut self, id: u64) {
        let Some(entry) = self.entries.get(&id) else { return };
        let is_ready = entry.frame().is_some();
        let is_free = !entry.is_resident && entry.ahead.is_none() && entry.dirty.is_none() && entry.holds == 0;
        if is_ready && is_free && !self.is_pinned(id) {
            self.entries.remove(&id);
        }
    }

    /// Drops a block with all that is known of it, its dirty version included.
    pub fn forget(&mut self, id: u64) {
        self.clean(id);
        if let Some(entry) = self.entries.remove(&id) {
            if entry.ahead.is_some() {
                self.ahead.referenced();
            }
            if entry.is_resident || self.is_pinned(id) {
                self.policy.remove(id);
                self.shadow.remove(id);
            }
        }
    }

    /// Puts a new version into a ready entry, or makes one: memory then has bytes that the source may not have.
    pub fn put(&mut self, id: u64, frame: Arc<Frame>, is_resident: bool) {
        match self.entries.get_mut(&id) {
            Some(entry) => entry.content = Content::Ready(frame),
            None => {
                self.entries.insert(id, Entry::new(Content::Ready(frame), is_resident));
            }
        }
    }

    /// Notes that memory has a version of a block that the source has not.
    pub fn soil(&mut self, id: u64, stream: Stream, now: Instant) {
        let version = self.number();
        let Some(entry) = self.entries.get_mut(&id) else { return };
        match &mut entry.dirty {
            Some(dirty) => {
                dirty.version = version;
                dirty.stream = stream;
            }
            None => {
                let number = version;
                let dirty = Dirty { number, since: now, version, stream, failed: None, is_writing: false };
                entry.dirty = Some(dirty);
                self.dirty.insert(id);
                self.dirty_by_age.insert(number, id);
            }
        }
    }

    /// Notes that the source has the newest version of a block; the entry may go now.
    pub fn clean(&mut self, id: u64) {
        let Some(dirty) = self.entries.get_mut(&id).and_then(|entry| entry.dirty.take()) else { return };
        self.dirty.remove(&id);
        self.dirty_by_age.remove(&dirty.number);
    }

    /// Ends a read of a block: it is kept if somebody still wants it.
    pub fn loaded(&mut self, id: u64, load: &Arc<Load>, result: &Result<Arc<Frame>, Error>) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let is_same = matches!(&entry.content, Content::Loading(current) if Arc::ptr_eq(current, load));
        if !is_same {
            return;
        }
        match result {
            Ok(frame) => {
                entry.content = Content::Ready(frame.clone());
                self.settle(id);
            }
            Err(_) => self.forget(id),
        }
    }
}

impl State {
    /// The ids in a range that have an entry, in order.
    pub fn present(&self, ids: &std::ops::Range<u64>) -> Vec<u64> {
        if ids.end - ids.start <= self.entries.len() as u64 {
            return ids.clone().filter(|id| self.entries.contains_key(id)).collect();
        }
        let mut present: Vec<u64> = self.entries.keys().copied().filter(|id| ids.contains(id)).collect();
        present.sort_unstable();
        present
    }
}
