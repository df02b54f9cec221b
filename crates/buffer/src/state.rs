//! The contents of memory, under one mutex: entries, the policy, dirty blocks, locks and counters.
//!
//! Owns: the transitions of an entry, including when the entry is dropped. Promises: no function here waits or does
//! I/O. Leaves to others: starting the transitions (`read`, `write`, `zero`, `writeback`).
//!
//! | an entry is | while |
//! |---|---|
//! | loading | it is being read from the source; all its waiters share one read |
//! | ready | it has contents |
//! | resident | the policy holds it |
//! | ahead | it was read ahead and not referenced yet |
//! | dirty | the source does not have its newest version |
//! | held | a write of a part of it waits to be applied |
//! | pinned | a user pinned it; a pinned block without an entry gets one at its next reference |
//!
//! When a block is ready and none of the other states applies, its entry is removed from this table. The block stays in
//! the cache.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, OnceLock};

use hashbrown::HashMap;
use nectary_block::{AccessStream, Error};
use nectary_cache::{AccessResult, Lru, Policy};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::entries::BlockEntries;
use crate::frame::BlockFrame;
use crate::locks::RangeLocks;
use crate::names::BlockReference;
use crate::options::{BlockBudget, WriteMode};
use crate::source::ByteSource;
use crate::stats::CacheCounts;
use crate::streams::{StreamTable, VerdictCollector};
use crate::users::history::ReferenceHistory;

/// A read in flight of one block, and the tasks that wait for the read.
#[derive(Default)]
pub(crate) struct BlockLoad {
    result: OnceLock<Result<Arc<BlockFrame>, Error>>,
    ended: Notify,
}

impl BlockLoad {
    /// Sets the result; only the first call has an effect.
    pub fn end(&self, result: Result<Arc<BlockFrame>, Error>) {
        let _ = self.result.set(result);
        self.ended.notify_waiters();
    }

    pub fn is_ended(&self) -> bool {
        self.result.get().is_some()
    }

    /// Waits for the end of the read.
    pub async fn wait(&self) -> Result<Arc<BlockFrame>, Error> {
        loop {
            let ended = self.ended.notified();
            if let Some(result) = self.result.get() {
                return result.clone();
            }
            ended.await;
        }
    }
}

/// The content of an entry.
pub(crate) enum EntryContent {
    Loading(Arc<BlockLoad>),
    Ready(Arc<BlockFrame>),
}

/// The state of a block with bytes that the source does not have yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DirtyState {
    /// The position of the block in the order of age.
    pub number: u64,
    pub since: Instant,
    /// The number of the version in memory.
    pub version: u64,
    /// The stream of the last write.
    pub stream: AccessStream,
    /// The time at which a write-back of the block last failed.
    pub failed: Option<Instant>,
    pub is_writing: bool,
}

pub(crate) struct BlockEntry {
    pub content: EntryContent,
    pub is_resident: bool,
    /// The number of the readahead that read the block; `None` once the block is referenced.
    pub ahead: Option<u64>,
    pub dirty: Option<Box<DirtyState>>,
    pub holds: u32,
    /// The stream of the last reference to the block.
    pub stream: AccessStream,
}

impl BlockEntry {
    pub fn new(content: EntryContent, is_resident: bool) -> BlockEntry {
        BlockEntry { content, is_resident, ahead: None, dirty: None, holds: 0, stream: AccessStream(0) }
    }

    pub fn frame(&self) -> Option<&Arc<BlockFrame>> {
        match &self.content {
            EntryContent::Ready(frame) => Some(frame),
            EntryContent::Loading(_) => None,
        }
    }
}

/// The blocks that were read ahead and not referenced yet.
#[derive(Default)]
pub(crate) struct ReadAheadQueue {
    /// The number of the readahead and the id of each block, the oldest first; some blocks may be referenced already.
    pub order: VecDeque<(u64, u64)>,
    pub waiting: u64,
    pub number: u64,
}

impl ReadAheadQueue {
    /// Records that one of the blocks was referenced or dropped.
    pub fn referenced(&mut self) {
        self.waiting = self.waiting.saturating_sub(1);
    }
}

/// A file that is cached.
#[derive(Clone)]
pub(crate) struct SourceFile {
    pub source: Arc<dyn ByteSource>,
    /// The error of a failed write-back that no flush has reported yet.
    pub failed: Option<Error>,
    /// Held by the call that pins blocks of the file, so that such calls take turns.
    pub pinning: Arc<tokio::sync::Mutex<()>>,
}

/// All state under the mutex.
pub(crate) struct CacheState {
    pub entries: BlockEntries,
    pub policy: Box<dyn Policy>,
    /// An LRU of the same memory with the same references, for the counts of saved and lost reads.
    pub shadow: Lru,
    pub verdicts: VerdictCollector,
    pub files: HashMap<u32, SourceFile>,
    pub file_next: u32,
    pub locks: RangeLocks,
    pub budget: BlockBudget,
    pub mode: WriteMode,
    /// Blocks that users pinned; the policy does not know them.
    pub pins: BTreeSet<u64>,
    /// Sampled references, to compute how many of them would have hit in another cache.
    pub history: ReferenceHistory,
    /// The dirty blocks, by id and by age.
    pub dirty: BTreeSet<u64>,
    pub dirty_by_age: BTreeMap<u64, u64>,
    /// The number of blocks that may become dirty soon, for which room is reserved.
    pub dirty_reserved: u64,
    pub next: u64,
    /// The error of the last failed write-back, until a write-back succeeds.
    pub write_error: Option<Error>,
    pub has_writer: bool,
    pub streams: StreamTable,
    pub ahead: ReadAheadQueue,
    pub counts: CacheCounts,
    pub recorder: Option<Box<dyn FnMut(BlockReference) + Send>>,
    /// Gets each range of ids whose blocks were dropped, because the file was removed, cut, or changed by others.
    pub drop_recorder: Option<Box<dyn FnMut(std::ops::Range<u64>) + Send>>,
    victims: Vec<u64>,
}

/// The outcome of an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AccessOutcome {
    pub is_hit: bool,
    /// Whether the policy holds the block after the access.
    pub is_resident: bool,
}

impl CacheState {
    pub fn new(
        policy: Box<dyn Policy>,
        verdicts: VerdictCollector,
        budget: BlockBudget,
        mode: WriteMode,
    ) -> CacheState {
        CacheState {
            entries: BlockEntries::default(),
            shadow: Lru::new(budget.capacity_lru),
            policy,
            verdicts,
            files: HashMap::new(),
            file_next: 0,
            locks: RangeLocks::default(),
            budget,
            mode,
            pins: BTreeSet::new(),
            history: ReferenceHistory::new(budget.capacity, budget.history),
            dirty: BTreeSet::new(),
            dirty_by_age: BTreeMap::new(),
            dirty_reserved: 0,
            next: 1,
            write_error: None,
            has_writer: false,
            streams: StreamTable::default(),
            ahead: ReadAheadQueue::default(),
            counts: CacheCounts::default(),
            recorder: None,
            drop_recorder: None,
            victims: Vec::new(),
        }
    }

    /// The next number for a version or for a position in an order. No number is returned twice.
    pub fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// References a block, lets the policy decide, and counts the reference. The victims of the policy are dropped, or
    /// wait until they are written back.
    pub fn refer(&mut self, id: u64, stream: AccessStream, is_write: bool) -> AccessOutcome {
        if self.is_pinned(id) {
            return self.refer_pinned(id, stream);
        }
        let referred = self.decide(id, stream);
        let CacheState { shadow, streams, counts, recorder, history, .. } = self;
        let is_lru_hit = shadow.reference(id, 1, nectary_cache::StreamId(stream.0), &mut |_| true) == AccessResult::Hit;
        counts.refer(referred.is_hit, is_lru_hit);
        streams.count(stream, referred.is_hit, is_lru_hit);
        history.refer(id, stream, referred.is_hit);
        if let Some(recorder) = recorder {
            recorder(BlockReference { id, stream, is_write });
        }
        if let Some(verdicts) = self.verdicts.take() {
            verdicts.into_iter().for_each(|verdict| streams.judge(verdict));
        }
        self.referenced(id, stream, referred.is_resident);
        referred
    }

    /// Lets the policy decide about a reference to a block, and drops the policy's victims, except for the block
    /// itself.
    pub fn decide(&mut self, id: u64, stream: AccessStream) -> AccessOutcome {
        let CacheState { policy, victims, .. } = self;
        victims.clear();
        let access = policy.reference(id, 1, nectary_cache::StreamId(stream.0), &mut |victim| {
            victims.push(victim);
            true
        });
        let is_resident = access != AccessResult::Bypassed && !victims.contains(&id);
        let victims = std::mem::take(&mut self.victims);
        victims.iter().filter(|&&victim| victim != id).for_each(|&victim| self.evicted(victim));
        self.victims = victims;
        AccessOutcome { is_hit: access == AccessResult::Hit, is_resident }
    }

    /// Drops a block that the policy evicted, unless another state keeps the block in memory.
    pub fn evicted(&mut self, victim: u64) {
        if let Some(entry) = self.entries.get_mut(&victim) {
            entry.is_resident = false;
            self.settle(victim);
        }
    }

    /// Records that a block was referenced, and whether the policy holds the block.
    pub fn referenced(&mut self, id: u64, stream: AccessStream, is_resident: bool) {
        if let Some(entry) = self.entries.get_mut(&id) {
            (entry.is_resident, entry.stream) = (is_resident, stream);
            if entry.ahead.take().is_some() {
                self.ahead.referenced();
                self.counts.ahead_used += 1;
            }
        }
    }

    /// Offers a block in memory to the policy, as if the block were referenced now, without counting a reference.
    pub fn offer(&mut self, id: u64) {
        let is_resident = self.decide(id, AccessStream(0)).is_resident;
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.is_resident = is_resident;
        }
        self.settle(id);
    }

    /// Drops an entry if no state keeps it in memory.
    pub fn settle(&mut self, id: u64) {
        let Some(entry) = self.entries.get(&id) else { return };
        let is_ready = entry.frame().is_some();
        let is_free = !entry.is_resident && entry.ahead.is_none() && entry.dirty.is_none() && entry.holds == 0;
        if is_ready && is_free && !self.is_pinned(id) {
            self.entries.remove(&id);
        }
    }

    /// Drops a block from memory and from the policy, even if it is dirty.
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

    /// Puts a new version into the entry of a block, and creates the entry if there is none. Memory may then have bytes
    /// that the source does not have.
    pub fn put(&mut self, id: u64, frame: Arc<BlockFrame>, is_resident: bool) {
        match self.entries.get_mut(&id) {
            Some(entry) => entry.content = EntryContent::Ready(frame),
            None => {
                self.entries.insert(id, BlockEntry::new(EntryContent::Ready(frame), is_resident));
            }
        }
    }

    /// Marks a block dirty: memory has a version that the source does not have.
    pub fn soil(&mut self, id: u64, stream: AccessStream, now: Instant) {
        let version = self.number();
        let Some(entry) = self.entries.get_mut(&id) else { return };
        match &mut entry.dirty {
            Some(dirty) => {
                dirty.version = version;
                dirty.stream = stream;
            }
            None => {
                let number = version;
                let dirty = DirtyState { number, since: now, version, stream, failed: None, is_writing: false };
                entry.dirty = Some(Box::new(dirty));
                self.dirty.insert(id);
                self.dirty_by_age.insert(number, id);
            }
        }
    }

    /// Marks a block clean: the source has its newest version. The entry may now be dropped.
    pub fn clean(&mut self, id: u64) {
        let Some(dirty) = self.entries.get_mut(&id).and_then(|entry| entry.dirty.take()) else { return };
        self.dirty.remove(&id);
        self.dirty_by_age.remove(&dirty.number);
    }

    /// Ends a read of a block, and keeps the block if it is still needed.
    pub fn loaded(&mut self, id: u64, load: &Arc<BlockLoad>, result: &Result<Arc<BlockFrame>, Error>) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let is_same = matches!(&entry.content, EntryContent::Loading(current) if Arc::ptr_eq(current, load));
        if !is_same {
            return;
        }
        match result {
            Ok(frame) => {
                entry.content = EntryContent::Ready(frame.clone());
                self.settle(id);
            }
            Err(_) => self.forget(id),
        }
    }
}

impl CacheState {
    /// The ids in a range that have an entry, in ascending order.
    pub fn present(&self, ids: &std::ops::Range<u64>) -> Vec<u64> {
        if ids.end - ids.start <= self.entries.len() as u64 {
            return ids.clone().filter(|id| self.entries.contains_key(id)).collect();
        }
        let mut present: Vec<u64> = self.entries.keys().copied().filter(|id| ids.contains(id)).collect();
        present.sort_unstable();
        present
    }
}
