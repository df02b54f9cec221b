//! Finding an object: in memory, or otherwise on disk at the locations that the index has.
//!
//! Owns: which of the found objects may be returned. The newest version of a key decides: if that version was purged by
//! tag, older versions are not searched (`state`, rule 4). Leaves to others: reading and identifying a record
//! (`state/record.rs`, `neighbours`).

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::counters::Counters;
use crate::disk::span::SpanDisk;
use crate::error::Error;
use crate::format::RecordLocation;
use crate::get::reads::{ReadEntry, ReadTurn, RunningReads, SecondRead};
use crate::intake::SpanIntake;
use crate::locality::clusters::ClusterChoice;
use crate::locality::groups::SpanGroups;
use crate::memory::entry::{EntryKind, MemoryEntry};
use crate::names::key::{KeyHash, KeyRef, hash_fragment};
use crate::planted::{Bug, planted};
use crate::purge::rules::PurgeVerdict;
use crate::rewrite::ObjectRewriter;
use crate::state::SpanState;
use crate::state::record::RecordLookup;

/// The result of a search for a key in memory.
pub(crate) enum MemoryLookup {
    /// The newest version, which was not purged.
    Live(Arc<MemoryEntry>),
    /// The newest version was purged: the key is a miss, whatever is on disk.
    Purged,
    /// Memory has no entry of the key.
    Absent,
}

impl MemoryLookup {
    /// The entry, if the caller may return it.
    pub fn live(self) -> Option<Arc<MemoryEntry>> {
        match self {
            MemoryLookup::Live(entry) => Some(entry),
            MemoryLookup::Purged | MemoryLookup::Absent => None,
        }
    }
}

/// Finds the objects of a span, in memory and on disk.
pub(crate) struct ObjectLookup {
    pub span: Arc<SpanDisk>,
    pub state: Arc<SpanState>,
    pub intake: Arc<SpanIntake>,
    pub rewriting: Arc<ObjectRewriter>,
    pub reads: RunningReads,
    /// The extents of groups on disk.
    pub groups: SpanGroups,
    /// Decides whether a read reads the whole cluster of an object.
    pub clusters: ClusterChoice,
    /// A permit for each fragment that may be read ahead.
    pub read_ahead: Arc<Semaphore>,
}

impl ObjectLookup {
    /// Finds an object in memory.
    pub fn find_resident(&self, key: KeyRef<'_>) -> MemoryLookup {
        let (_, hash) = self.span.hash(key);
        let (entry, verdict) = loop {
            let head = self.span.head();
            let Some(entry) = self.state.memory.get(hash, key) else { return MemoryLookup::Absent };
            let verdict = self.state.verdict(&entry);
            // If the writer opened a segment during these steps, and the entry left memory because of that, a purge of
            // the entry may already be forgotten. Then the search is repeated.
            let is_there = self.span.head() == head || self.state.memory.holds(&entry);
            if is_there || planted(Bug::PlaceBeforePurge) {
                break (entry, verdict);
            }
        };
        if verdict.is_gone() && !(verdict == PurgeVerdict::Tag && planted(Bug::MemoryIgnoresTagPurge)) {
            Counters::add(&self.span.counters.hits_purged, 1);
            let uncovers = planted(Bug::TagPurgeUncovers);
            // Before the entry is in the index, only its presence in memory hides the version that it replaced. Also, a
            // newer version must find this entry in memory when it is put: the order of records within an append does
            // not tell which of the two is newer.
            if entry.location().is_some() || entry.is_in_memory_alone() || uncovers {
                self.state.memory.remove_same(&entry);
            }
            return if uncovers { MemoryLookup::Absent } else { MemoryLookup::Purged };
        }
        if let Some(neighbour) = self.state.memory.promote(&entry) {
            self.clusters.note_hit(neighbour);
            Counters::add(&self.span.counters.neighbours_hit, 1);
        }
        if entry.ask()
            && let Some(location) = entry.location()
        {
            self.state.referenced.set(location);
        }
        MemoryLookup::Live(entry)
    }

    /// Finds an object or fragment on disk and puts it into memory. If `key` is given, only a record with this key is
    /// accepted.
    ///
    /// A caller that needs the same record during the read waits for that read. *Errors*: the read failed on the
    /// device.
    pub async fn find_on_disk(
        self: &Arc<Self>,
        hash: KeyHash,
        key: Option<KeyRef<'_>>,
    ) -> Result<Option<Arc<MemoryEntry>>, Error> {
        // The part of the index that the key needs may be loading; a slow device must not make a client wait for ever.
        if !self.state.presence.has(hash) {
            let wait = self.state.presence.wait(hash);
            match self.span.health.patience() {
                Some(limit) => tokio::time::timeout(limit, wait).await.map_err(|_| self.span.health.silent_error())?,
                None => wait.await,
            }
        }
        let candidates = self.state.index.candidates(hash);
        if candidates.is_empty() {
            return Ok(None);
        }
        let second = || -> SecondRead {
            let (lookup, key) = (Arc::clone(self), key.map(|key| key.to_owned()));
            Box::pin(async move {
                let candidates = lookup.state.index.candidates(hash);
                let key = key.as_ref().map(|key| key.as_ref());
                lookup.read_candidates(hash, key, candidates).await.ok().flatten()
            })
        };
        match self.reads.join(hash, second).await {
            ReadTurn::Read(reading) => {
                let found = self.read_candidates(hash, key, candidates).await;
                // After a failed read, each waiter reads the record itself.
                reading.end(found.as_ref().ok().cloned().flatten());
                Ok(found?.map(|read| read.entry))
            }
            ReadTurn::Shared(found) => {
                if let Some(answer) = self.shared_answer(hash, key, found) {
                    return Ok(answer);
                }
                let found = self.read_candidates(hash, key, self.state.index.candidates(hash)).await?;
                Ok(found.map(|read| read.entry))
            }
        }
    }

    /// The result of another caller's read, for a caller that waited for it; `None` if the caller has to search again.
    ///
    /// That read may have begun before a change that this caller has to see. So its result is valid only if the index
    /// still points to the location of the entry that was read, and memory has no newer version.
    fn shared_answer(
        &self,
        hash: KeyHash,
        key: Option<KeyRef<'_>>,
        found: Option<ReadEntry>,
    ) -> Option<Option<Arc<MemoryEntry>>> {
        let find = |key| match planted(Bug::WaiterIgnoresPurge) {
            true => self.state.memory.get(hash, key).map_or(MemoryLookup::Absent, MemoryLookup::Live),
            false => self.find_resident(key),
        };
        let resident = match key.map(find) {
            Some(MemoryLookup::Live(entry)) => Some(entry),
            Some(MemoryLookup::Purged) => return Some(None),
            Some(MemoryLookup::Absent) => None,
            None => self.state.memory.get_hashed(hash),
        };
        let current = match resident {
            Some(entry) => entry,
            None => {
                let ReadEntry { entry, epoch } = found?;
                // The entry is compared with the purges before its location is checked (`state`, rule 5).
                let is_purged = entry.kind.is_object() && self.state.is_purged(&entry);
                let is_newest = self.state.is_newest(hash, entry.location()?, epoch);
                if !is_newest || key.is_some_and(|key| !entry.is(hash, key)) {
                    return None;
                }
                if is_purged {
                    return Some(None);
                }
                entry
            }
        };
        Counters::add(&self.span.counters.hits_disk, 1);
        Counters::add(&self.span.counters.reads_shared, 1);
        current.ask();
        Some(Some(current))
    }

    /// Reads the locations of a hash, the newest first, until one has the requested record.
    async fn read_candidates(
        &self,
        hash: KeyHash,
        key: Option<KeyRef<'_>>,
        mut candidates: Vec<RecordLocation>,
    ) -> Result<Option<ReadEntry>, Error> {
        let head = self.span.head();
        candidates.sort_by_key(|location| std::cmp::Reverse((self.span.epoch_at(*location, head), location.granule)));
        for (position, &location) in candidates.iter().enumerate() {
            let (found, window) = self.read_with_neighbours(hash, key, location).await;
            match found {
                RecordLookup::Entry(entry) => {
                    let fragment = matches!(entry.kind, EntryKind::Fragment { .. });
                    let verdict = if fragment { PurgeVerdict::Live } else { self.state.verdict(&entry) };
                    let epoch = self.span.epoch_at(location, head);
                    // If the segment was overwritten, a purge of the entry may already be forgotten (`state`, rule 5).
                    if !fragment && self.span.is_overtaken(epoch) && !planted(Bug::PlaceBeforePurge) {
                        Counters::add(&self.span.counters.reads_wasted, 1);
                        continue;
                    }
                    if verdict.is_gone() {
                        Counters::add(&self.span.counters.hits_purged, 1);
                    }
                    if verdict == PurgeVerdict::Tag && planted(Bug::TagPurgeUncovers) {
                        self.state.index.remove(hash, location);
                        continue;
                    }
                    if verdict.is_gone() {
                        self.state.forget_purged(hash, location);
                        return Ok(None);
                    }
                    Counters::add(&self.span.counters.hits_disk, 1);
                    entry.ask();
                    self.state.referenced.set(location);
                    let in_memory = self.state.memory.put_read(&entry, || {
                        // During this read, a newer version may have been put, written, and evicted from memory.
                        self.state.is_newest(hash, location, epoch) || planted(Bug::ReadUnchecked)
                    });
                    let members = window.map_or(Vec::new(), |window| self.take_neighbours(&window, &entry));
                    self.rewriting.note_read(&entry, members);
                    let current = in_memory.filter(|current| key.is_none_or(|key| current.is(hash, key)));
                    let found = current.unwrap_or_else(|| Arc::clone(&entry));
                    // Another read may have put this version into memory before it was softly purged.
                    if let PurgeVerdict::Stale(since_s) = verdict
                        && found.generation == entry.generation
                    {
                        found.set_stale_since(since_s);
                    }
                    return Ok(Some(ReadEntry { entry: found, epoch }));
                }
                RecordLookup::Other | RecordLookup::Reclaimed => Counters::add(&self.span.counters.reads_wasted, 1),
                RecordLookup::Failed(_) if planted(Bug::FailedReadIsMiss) => return Ok(None),
                RecordLookup::Failed(error) => return Err(error),
                RecordLookup::Damaged if planted(Bug::DamageUncovers) => {
                    self.state.index.remove(hash, location);
                }
                RecordLookup::Damaged => {
                    // The damaged record may be the newest version of this key, so no older version may be returned.
                    if !self.intake.admission.is_open() {
                        self.intake.admission.doubt.is_damaged(hash, head, self.span.layout.segment_count);
                    }
                    // The newest location is removed last: a checkpoint that is written during these removals must not
                    // have an older version without the newest one.
                    for &older in candidates[position..].iter().rev() {
                        self.state.index.remove(hash, older);
                    }
                    Counters::add(&self.span.counters.damaged, 1);
                    self.span.note_damage(location);
                    return Ok(None);
                }
            }
        }
        Ok(None)
    }

    /// Finds fragment `number` of the object `key`, whose fragments were written under `generation`. *Errors*: the read
    /// failed on the device.
    pub async fn find_fragment(
        self: &Arc<Self>,
        key: KeyHash,
        generation: u64,
        number: u32,
    ) -> Result<Option<Arc<MemoryEntry>>, Error> {
        let hash = hash_fragment(key, generation, number);
        let is_it = |entry: &Arc<MemoryEntry>| entry.kind == EntryKind::Fragment { generation, number };
        if let Some(entry) = self.state.memory.get_hashed(hash).filter(is_it) {
            return Ok(Some(entry));
        }
        Ok(self.find_on_disk(hash, None).await?.filter(is_it))
    }

    /// Whether the store seems to have a fragment, and the segment of the fragment stays long enough for the object to
    /// be read. *Cost*: no I/O.
    ///
    /// A fragment in a segment that is about to be overwritten counts as missing. Otherwise a reader would get the
    /// beginning of the body and then an error.
    pub fn has_fragment(&self, key: KeyHash, generation: u64, number: u32) -> bool {
        let hash = hash_fragment(key, generation, number);
        if !self.state.presence.has(hash) {
            // The reader will wait until this part of the index is loaded.
            return true;
        }
        let mut candidates = self.state.index.candidates(hash);
        if candidates.is_empty() {
            if self.state.memory.contains(hash) {
                return true;
            }
            // The fragment may have been written and evicted from memory between the two checks.
            candidates = self.state.index.candidates(hash);
        }
        let head = self.span.head();
        let stays = |location: &RecordLocation| {
            let epoch = self.span.epoch_at(*location, head);
            self.span.layout.stays(epoch, head) && self.span.pace.stays(&self.span.layout, epoch, head)
        };
        candidates.iter().any(stays)
    }
}
