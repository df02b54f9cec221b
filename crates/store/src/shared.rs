//! What every part of an open store shares, and the way into it: committing an entry. The way out of it is `lookup`.
//!
//! Owns: the order of things between memory, index, purges and sequences. The rules that make it correct:
//! 1. An entry is in the memory map from its commit until it is in the index; so it is found at every moment between.
//! 2. Replacement in the map, admission and insertion of what was read happen under the memory tier's lock; a version is
//!    removed from the index before its successor may leave memory. So nothing old is put back into memory.
//! 3. Generations are drawn when a fill begins and compared with purges at its commit, before its index entry is made, and
//!    at every hit.
//! 4. The newest version of a key decides: where a purge by tag killed it, what it replaced is not found in its place. So it
//!    stays in memory until the index leads to it, and the index leads to it while it leads to anything older.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use nectary_block::{Buffer, Context, SharedDevice};

use crate::admission::{self, Admission, Decision, Kept};
use crate::arrange::PackEnd;
use crate::clusters::Clusters;
use crate::entry::{Entry, EntryParts, Piece};
use crate::error::{Error, ErrorKind};
use crate::fill::FillTable;
use crate::format::{Place, Record, RecordKind, UNIT_BYTES};
use crate::groups::Groups;
use crate::hints::Hints;
use crate::index::{Index, Location};
use crate::key::{KeyHash, KeyRef, PrimaryHash, hash_key};
use crate::layout::Layout;
use crate::loading::Presence;
use crate::marks::Marks;
use crate::memory::MemoryTier;
use crate::names::Names;
use crate::options::Background;
use crate::pace::Pace;
use crate::planted::{Bug, planted};
use crate::purges::{PurgeTable, Verdict};
use crate::queue::{Queue, Refused, Reserved, Unwritten};
use crate::reads::Reads;
use crate::regroup::Views;
use crate::stat::{Counters, Recovery, Sequence};
use crate::tags::{TagHash, TagLedger, Tags, hash_tag};
use crate::twins::Twins;
use crate::warm::WarmList;

/// A body that uses less than this share of the buffer it was read into is copied out of it, in percent …
const BUFFER_USE_PERCENT_MIN: usize = 85;
/// … and so is one of so few bytes: the buffer then serves the next read, and memory holds what the body takes.
const COPIED_BYTES_MAX: usize = 32 << 10;

/// The parts of an open store.
pub(crate) struct Shared {
    pub device: SharedDevice,
    pub layout: Layout,
    pub index: Index,
    /// Which shards of the index are there.
    pub presence: Presence,
    /// How many entries the checkpoint has that the index is loaded from.
    pub checkpoint_entries: u64,
    pub memory: MemoryTier,
    pub reads: Reads,
    pub purges: PurgeTable,
    /// How many purges are remembered at most.
    pub purge_rules_max: u64,
    /// Purges that wait until others are forgotten.
    pub purges_waiting: AtomicU64,
    /// What the ring may hold.
    pub names: Arc<Names>,
    pub queue: Arc<Queue>,
    pub admission: Admission,
    pub marks: Marks,
    /// The share of a segment that may be re-inserted, in percent.
    pub reinsert_percent: u32,
    /// The newest incarnation that was harvested for re-insertion, or 0.
    pub harvested: AtomicU64,
    /// How fast the ring turns.
    pub pace: Pace,
    pub hints: Hints,
    pub groups: Groups,
    pub twins: Twins,
    pub views: Views,
    pub clusters: Clusters,
    pub pack_end: PackEnd,
    pub background: Background,
    pub fills: FillTable,
    pub counters: Counters,
    pub recovery: Recovery,
    /// The incarnation being written.
    pub head: AtomicU64,
    pub written: AtomicU64,
    pub flushed: AtomicU64,
    /// The clock when a span of the store last came back.
    pub since: AtomicU64,
    /// The number of the last purge of the store that is durable here; 0 in a store of one span.
    pub purge_number: AtomicU64,
    pub damage: Mutex<Vec<String>>,
    /// What tags take in memory, in bytes.
    pub tag_ledger: TagLedger,
    /// Whether what was in memory in the life before is still being read.
    pub warming: AtomicBool,
    pub warm_list: WarmList,
    clock: AtomicU64,
    stopped: OnceLock<String>,
}

/// What a place on disk held.
pub(crate) enum Found {
    /// The record that was looked for.
    Entry(Arc<Entry>),
    /// An intact record of another key.
    Other,
    /// The segment has been overwritten since.
    Reclaimed,
    /// Nothing that can be believed.
    Damaged,
    /// The device failed the read.
    Failed,
}

/// What is read at once: whole blocks of the device, in bytes from its start.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Extent {
    pub start: u64,
    pub end: u64,
    /// The incarnation that its segment had before the read.
    pub incarnation: u64,
}

/// The parts that `Shared` is made of.
pub(crate) struct Parts {
    pub device: SharedDevice,
    pub layout: Layout,
    pub index: Index,
    pub presence: Presence,
    pub checkpoint_entries: u64,
    pub memory: MemoryTier,
    pub purges: PurgeTable,
    pub purge_rules_max: u64,
    pub names: Arc<Names>,
    pub queue: Queue,
    pub admission: Admission,
    pub marks: Marks,
    pub reinsert_percent: u32,
    pub hints: Hints,
    pub groups: Groups,
    pub twins: Twins,
    pub views: Views,
    pub clusters: Clusters,
    pub pack_end: PackEnd,
    pub background: Background,
    pub fills: FillTable,
    pub recovery: Recovery,
    pub head: u64,
    pub clock: u64,
    pub recovered_sequence: u64,
    pub since: u64,
    pub purge_number: u64,
}

impl Shared {
    pub fn new(parts: Parts) -> Shared {
        Shared {
            device: parts.device,
            layout: parts.layout,
            index: parts.index,
            presence: parts.presence,
            checkpoint_entries: parts.checkpoint_entries,
            memory: parts.memory,
            reads: Reads::new(),
            purges: parts.purges,
            purge_rules_max: parts.purge_rules_max,
            purges_waiting: AtomicU64::new(0),
            names: parts.names,
            queue: Arc::new(parts.queue),
            admission: parts.admission,
            marks: parts.marks,
            reinsert_percent: parts.reinsert_percent,
            harvested: AtomicU64::new(0),
            pace: Pace::new(),
            hints: parts.hints,
            groups: parts.groups,
            twins: parts.twins,
            views: parts.views,
            clusters: parts.clusters,
            pack_end: parts.pack_end,
            background: parts.background,
            fills: parts.fills,
            counters: Counters::default(),
            recovery: parts.recovery,
            head: AtomicU64::new(parts.head),
            written: AtomicU64::new(parts.recovered_sequence),
            flushed: AtomicU64::new(parts.recovered_sequence),
            since: AtomicU64::new(parts.since),
            purge_number: AtomicU64::new(parts.purge_number),
            damage: Mutex::default(),
            tag_ledger: TagLedger::default(),
            warming: AtomicBool::new(true),
            warm_list: WarmList::default(),
            clock: AtomicU64::new(parts.clock),
            stopped: OnceLock::new(),
        }
    }

    /// Draws the next generation or sequence.
    pub fn draw(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::AcqRel) + 1
    }

    pub fn hash(&self, key: KeyRef<'_>) -> (PrimaryHash, KeyHash) {
        hash_key(self.layout.hash_seed, key)
    }

    /// What purges have made of an entry.
    pub fn verdict(&self, entry: &Entry) -> Verdict {
        let primary = entry.key.as_ref().primary;
        self.purges.verdict(entry.primary_hash, entry.generation, primary, entry.tags.hashes())
    }

    /// Whether an entry has been purged.
    pub fn is_purged(&self, entry: &Entry) -> bool {
        self.verdict(entry) != Verdict::Live
    }

    /// Hashes the tags of a caller. *Errors*: `Invalid` where one or all are out of bounds.
    pub fn tags<'a>(&self, tags: impl IntoIterator<Item = &'a [u8]>) -> Result<Tags, Error> {
        let hashes = tags.into_iter().map(|tag| hash_tag(self.layout.hash_seed, tag));
        Tags::new(hashes.collect::<Result<Vec<TagHash>, Error>>()?, &self.tag_ledger)
    }

    /// The tags of a record.
    pub fn tags_of(&self, record: &Record, bytes: &[u8]) -> Tags {
        // No more than the bound, as every record that was decoded.
        Tags::new(record.tags(bytes).collect(), &self.tag_ledger).unwrap_or_default()
    }

    /// The last segment incarnation into which anything that waits, `waiting_bytes`, may be written, but for what is being packed: where a
    /// purge says that nothing lies that it kills.
    ///
    /// Appends leave less than half of a segment empty, so what waits takes at most twice its bytes.
    pub fn purge_position(&self, waiting_bytes: u64) -> u64 {
        self.head.load(Ordering::Acquire) + (2 * waiting_bytes).div_ceil(self.layout.segment_bytes)
    }

    /// Why the store takes no more writes.
    pub fn stopped(&self) -> Option<&str> {
        self.stopped.get().map(String::as_str)
    }

    /// Stops writes for good: after a failed write or flush nothing may pretend to be stored.
    pub fn stop(&self, reason: impl Into<String>) {
        let _ = self.stopped.set(reason.into());
        self.queue.close().iter().for_each(|item| self.give_up(item));
        self.queue.wake.notify_one();
    }

    /// Gives up what will not be written; what lies elsewhere already stays in memory.
    pub fn give_up(&self, item: &Unwritten) {
        if item.moved_from.is_none() {
            self.memory.drop_unwritten(&item.entry);
        }
    }

    pub fn stopped_error(&self) -> Error {
        Error::stopped(format!(
            "{}: the store takes no more writes: {}",
            self.device.spec(),
            self.stopped().unwrap_or("it is closed")
        ))
    }

    /// Gives an entry its sequence, makes it visible and queues it for writing; or, where it is a whole object that is not
    /// admitted, keeps it in memory alone.
    ///
    /// What is to be written takes the room that is `reserved` for it, or else what there is.
    pub fn commit(
        &self,
        parts: EntryParts,
        decision: Decision,
        reserved: Option<Reserved>,
    ) -> Result<Arc<Entry>, Error> {
        let described = crate::format::RECORD_HEADER_BYTES + parts.key.len() + parts.tags.record_bytes();
        let record_bytes = (described + parts.metadata.len() + parts.body.len()) as u64;
        if record_bytes > self.layout.record_bytes_max() {
            return Err(Error::invalid(format!(
                "a record of {record_bytes} bytes does not fit: this store takes {} at most",
                self.layout.record_bytes_max()
            )));
        }
        let (piece, body_bytes, mut decision) = (parts.piece, parts.object_bytes, decision);
        let committed = if decision.is_admitted() || piece != Piece::Whole {
            self.queue_entry(parts, record_bytes, reserved)
        } else {
            match self.keep_in_memory(parts) {
                Ok(Kept::InMemory(entry)) => Ok(entry),
                Ok(Kept::MustBeWritten(parts)) => {
                    decision = Decision::Replaces;
                    self.queue_entry(parts, record_bytes, reserved)
                }
                Err(refused) => Err(refused),
            }
        };
        let entry = committed.map_err(|refused| self.refusal(refused))?;
        if piece.is_object() {
            self.accepted(entry.hash, entry.generation, decision, body_bytes);
            if !entry.is_in_memory_alone() {
                self.note_put(&entry);
            }
        }
        Ok(entry)
    }

    /// Notes that a version of a key was accepted.
    pub fn accepted(&self, hash: KeyHash, generation: u64, decision: Decision, body_bytes: u64) {
        self.fills.supersede_older(hash, generation);
        Counters::add(&self.counters.puts, 1);
        Counters::add(&self.counters.put_bytes, body_bytes);
        admission::count(&self.counters, decision, body_bytes);
    }

    fn queue_entry(
        &self,
        parts: EntryParts,
        weight: u64,
        reserved: Option<Reserved>,
    ) -> Result<Arc<Entry>, NotCommitted> {
        let make = || {
            let stale = self.is_stale(&parts);
            if stale && !planted(Bug::StaleGenerationAccepted) {
                return Err(NotCommitted::Stale);
            }
            if planted(Bug::StaleGenerationAccepted) && stale {
                // The bug: the late fill is taken as if it had begun now.
                let parts = EntryParts { generation: self.draw(), ..parts };
                let entry = Arc::new(Entry::new(parts, self.draw()));
                let previous = self.memory.put_unwritten(&entry);
                return Ok(Unwritten::of(entry, previous));
            }
            let entry = Arc::new(Entry::new(parts, self.draw()));
            let previous = self.memory.put_unwritten(&entry).filter(|previous| previous.hash == entry.hash);
            Ok(Unwritten::of(entry, previous))
        };
        let entry = match reserved {
            Some(reserved) => self.queue.push_reserved(reserved, make),
            None => self.queue.push(weight, make),
        }?;
        self.memory.settle(&entry);
        Ok(entry)
    }

    /// Counts what was not committed and says why.
    pub fn refusal(&self, refused: NotCommitted) -> Error {
        match refused {
            NotCommitted::Stale => {
                Counters::add(&self.counters.puts_stale, 1);
                let reason = "a purge or a newer version came after this fill began; nothing is stored";
                Error::new(ErrorKind::Busy, reason)
            }
            NotCommitted::Refused(Refused::Full) => {
                Counters::add(&self.counters.puts_refused, 1);
                let spec = self.device.spec();
                Error::new(ErrorKind::Busy, format!("{spec}: the disk is too slow for what is put; nothing is stored"))
            }
            NotCommitted::Refused(Refused::Closed) => self.stopped_error(),
        }
    }

    /// The incarnation of the segment that a location is in.
    pub fn incarnation_at(&self, location: Location, head: u64) -> u64 {
        self.layout.incarnation_of(location.unit * UNIT_BYTES / self.layout.segment_bytes, head)
    }

    /// Whether the index leads to a location, which is of that incarnation, and to nothing younger for its hash.
    ///
    /// Where it leads to something younger that need not be the same key's, but it may be.
    pub fn is_newest(&self, hash: KeyHash, location: Location, incarnation: u64) -> bool {
        let head = self.head.load(Ordering::Acquire);
        let age = |location: Location| (self.incarnation_at(location, head), location.unit);
        age(location).0 == incarnation && self.index.leads_last_to(hash, location, age)
    }

    /// The blocks that a record at a location may take; `None` where there is no such place.
    pub fn extent(&self, location: Location) -> Option<Extent> {
        let incarnation = self.incarnation_at(location, self.head.load(Ordering::Acquire));
        let offset = location.unit * UNIT_BYTES;
        let segment_end = (offset / self.layout.segment_bytes + 1) * self.layout.segment_bytes;
        if segment_end > self.layout.segment_count * self.layout.segment_bytes {
            return None;
        }
        let address = self.layout.segments_offset + offset;
        let end = self.layout.segments_offset + (offset + location.bytes_max()).min(segment_end);
        let block = u64::from(self.device.geometry().block_bytes);
        Some(Extent { start: address / block * block, end: end.next_multiple_of(block), incarnation })
    }

    /// Reads an extent; a failure is counted and noted.
    pub async fn read_extent(&self, extent: Extent) -> Option<Buffer> {
        self.read_extent_into(extent, Buffer::recycled((extent.end - extent.start) as usize)).await
    }

    /// The same, into a buffer of its length.
    pub async fn read_extent_into(&self, extent: Extent, buffer: Buffer) -> Option<Buffer> {
        Counters::add(&self.counters.device_reads, 1);
        Counters::add(&self.counters.device_read_bytes, extent.end - extent.start);
        match self.device.read_at(extent.start, vec![buffer], Context::default()).await {
            Ok(mut buffers) => buffers.pop(),
            Err(error) => {
                Counters::add(&self.counters.device_read_errors, 1);
                self.note(error.to_string());
                None
            }
        }
    }

    /// Reads what stands at a location and decides whether it is the record of `hash`.
    pub async fn read_record(&self, hash: KeyHash, key: Option<KeyRef<'_>>, location: Location) -> Found {
        let Some(extent) = self.extent(location) else { return Found::Damaged };
        match self.read_extent(extent).await {
            Some(buffer) => self.decode(hash, key, location, extent, buffer).0,
            None => Found::Failed,
        }
    }

    /// Decides whether what was read is the record of `hash`; gives the buffer back where the entry has bytes of its own.
    pub fn decode(
        &self,
        hash: KeyHash,
        key: Option<KeyRef<'_>>,
        location: Location,
        extent: Extent,
        buffer: Buffer,
    ) -> (Found, Option<Buffer>) {
        let Extent { start, incarnation, .. } = extent;
        let address = self.layout.segments_offset + location.unit * UNIT_BYTES;
        let reclaimed = || {
            self.incarnation_at(location, self.head.load(Ordering::Acquire)) != incarnation
                || !self.index.contains(hash, location)
        };
        let bad = || if reclaimed() { Found::Reclaimed } else { Found::Damaged };
        let bytes = &buffer[(address - start) as usize..];
        let place = Place { identity: self.layout.identity, incarnation, address };
        let Ok(record) = Record::decode(bytes, place) else { return (bad(), None) };
        if record.fields.key_hash.get() != hash.0 {
            return (Found::Other, None);
        }
        let found_key = KeyRef::new(record.primary(bytes), record.variant(bytes));
        if key.is_some_and(|key| key != found_key) {
            return (Found::Other, None);
        }
        if !record.body_is_whole(bytes) {
            return (bad(), None);
        }
        let fields = record.fields;
        let piece = match record.kind {
            RecordKind::Whole => Piece::Whole,
            RecordKind::Head => {
                Piece::Head { generation: fields.fragment_generation.get(), count: fields.fragment.get() }
            }
            RecordKind::Fragment => {
                Piece::Fragment { generation: fields.fragment_generation.get(), number: fields.fragment.get() }
            }
        };
        let (primary_hash, _) = self.hash(found_key);
        let owned_key = found_key.to_owned();
        let tags = self.tags_of(&record, bytes);
        let skip = (address - start) as usize;
        let used = record.bytes() - record.metadata_range().start;
        let (metadata_range, body_range) = (record.metadata_range(), record.body_start..record.bytes());
        let (metadata, body, buffer) = if used <= COPIED_BYTES_MAX || used * 100 < buffer.len() * BUFFER_USE_PERCENT_MIN
        {
            let copy = |range: std::ops::Range<usize>| bytes::Bytes::copy_from_slice(&bytes[range]);
            (copy(metadata_range), copy(body_range), Some(buffer))
        } else {
            let all = buffer.into_bytes();
            let slice = |range: std::ops::Range<usize>| all.slice(range.start + skip..range.end + skip);
            (slice(metadata_range), slice(body_range), None)
        };
        let parts = EntryParts {
            key: owned_key,
            primary_hash,
            hash,
            piece,
            metadata,
            body,
            object_bytes: fields.object_bytes.get(),
            generation: fields.generation.get(),
            tags,
        };
        let mut entry = Entry::new(parts, fields.sequence.get());
        entry.cluster = fields.cluster.get();
        entry.set_location(location);
        (Found::Entry(Arc::new(entry)), buffer)
    }

    /// Fills hold so many bytes more; memory makes room for them.
    pub fn fills_grow(&self, bytes: u64) {
        self.memory.set_fill_bytes(self.fills.add(bytes));
    }

    /// Fills hold so many bytes less.
    pub fn fills_shrink(&self, bytes: u64) {
        self.memory.set_fill_bytes(self.fills.sub(bytes));
    }

    /// Flushes the device; what was written before is then flushed.
    pub async fn flush(&self) -> Result<(), Error> {
        let written = self.written.load(Ordering::Acquire);
        Counters::add(&self.counters.flushes, 1);
        if !planted(Bug::FlushDropped) {
            self.device.flush(Context::default()).await?;
        }
        self.flushed.fetch_max(written, Ordering::AcqRel);
        Ok(())
    }

    pub fn sequences(&self) -> crate::stat::Sequences {
        let flushed = Sequence(self.flushed.load(Ordering::Acquire));
        let written = Sequence(self.written.load(Ordering::Acquire));
        crate::stat::Sequences { last: Sequence(self.queue.last_sequence()).max(written), written, flushed }
    }

    pub(crate) fn note_damage(&self, location: Location) {
        let address = self.layout.segments_offset + location.unit * UNIT_BYTES;
        self.note(format!("{}: damaged record at offset {address}; its object is a miss", self.device.spec()));
    }

    /// Keeps a message for whoever logs; a bounded number of them.
    pub fn note(&self, message: String) {
        let mut damage = self.damage.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if damage.len() < 100 {
            damage.push(message);
        }
    }
}

/// Why an entry was not committed.
pub(crate) enum NotCommitted {
    /// A purge or a newer version came since it began.
    Stale,
    /// There is no room for it, or nothing is taken any more.
    Refused(Refused),
}
