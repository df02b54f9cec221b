//! An object, or a fragment of an object, in memory.
//!
//! Owns: the immutable content of an entry, and its location on disk after it was written. A user of the bytes holds an
//! `Arc` of the entry, so the bytes never change and never move.

use std::any::Any;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

use bytes::Bytes;

use crate::format::{RecordKind, RecordLocation};
use crate::names::key::{KeyHash, KeyRef, ObjectKey, PrimaryHash};
use crate::names::tag::EntryTags;

/// The memory of an entry in addition to its key, metadata and body: the struct, its slots in the map and in the
/// policy, and the allocator's overhead. *Units*: bytes.
const ENTRY_BYTES: u64 = 432;

/// The entry is on disk, or waits to be written.
const NOT_ALONE: u8 = 0;
/// The entry is only in memory.
const ALONE: u8 = 1;
/// The entry is only in memory, and was requested again.
const ALONE_SEEN: u8 = 2;
/// The entry is only in memory, and a newer version was accepted; the entry is never written.
const ALONE_REPLACED: u8 = 3;

/// The kind of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A whole object.
    Whole,
    /// The head of an object in `count` fragments written under `generation`.
    Head { generation: u64, count: u32 },
    /// Fragment `number` written under `generation`.
    Fragment { generation: u64, number: u32 },
}

impl EntryKind {
    /// Whether the entry represents an object: it is a whole object or a head, not a fragment.
    pub fn is_object(self) -> bool {
        !matches!(self, EntryKind::Fragment { .. })
    }

    /// The kind of the entry's record on disk.
    pub fn record_kind(self) -> RecordKind {
        match self {
            EntryKind::Whole => RecordKind::Whole,
            EntryKind::Head { .. } => RecordKind::Head,
            EntryKind::Fragment { .. } => RecordKind::Fragment,
        }
    }
}

/// The reason why an unrequested entry was read together with another record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NeighbourKind {
    /// Both records were packed together because hints tie them.
    Tied,
    /// The records are only close to each other.
    Untied,
}

/// The content of an entry.
#[derive(Debug)]
pub struct MemoryEntry {
    pub key: ObjectKey,
    pub primary_hash: PrimaryHash,
    pub hash: KeyHash,
    pub kind: EntryKind,
    pub metadata: Bytes,
    pub body: Bytes,
    /// Length of the whole body, in bytes.
    pub object_bytes: u64,
    pub generation: u64,
    pub sequence: u64,
    pub tags: EntryTags,
    /// The number that all records of the entry's group share on disk; 0 if the entry is in no group.
    pub cluster: u16,
    location: AtomicU64,
    /// If the entry was read together with another record and was not requested since: 1 plus the [`NeighbourKind`], which
    /// tells why; otherwise 0.
    neighbour: AtomicU8,
    /// Whether the entry was requested since it was written.
    asked_for: AtomicBool,
    /// Whether the entry is only in memory: `NOT_ALONE`, or one of the `ALONE` constants.
    alone: AtomicU8,
    /// Since when the entry is stale because of a soft purge, in seconds since 1970; 0 if it is not.
    stale_since_s: AtomicU32,
    decoded: OnceLock<Box<dyn Any + Send + Sync>>,
}

/// The parts of an entry.
pub struct EntryParts {
    pub key: ObjectKey,
    pub primary_hash: PrimaryHash,
    pub hash: KeyHash,
    pub kind: EntryKind,
    pub metadata: Bytes,
    pub body: Bytes,
    pub object_bytes: u64,
    pub generation: u64,
    pub tags: EntryTags,
}

impl MemoryEntry {
    /// Makes an entry that is not on disk yet.
    pub fn new(parts: EntryParts, sequence: u64) -> MemoryEntry {
        MemoryEntry {
            key: parts.key,
            primary_hash: parts.primary_hash,
            hash: parts.hash,
            kind: parts.kind,
            metadata: parts.metadata,
            body: parts.body,
            object_bytes: parts.object_bytes,
            generation: parts.generation,
            sequence,
            tags: parts.tags,
            cluster: 0,
            location: AtomicU64::new(0),
            neighbour: AtomicU8::new(0),
            asked_for: AtomicBool::new(false),
            alone: AtomicU8::new(NOT_ALONE),
            stale_since_s: AtomicU32::new(0),
            decoded: OnceLock::new(),
        }
    }

    /// Makes an entry that is only in memory.
    pub fn in_memory_alone(parts: EntryParts, sequence: u64) -> MemoryEntry {
        let entry = MemoryEntry::new(parts, sequence);
        entry.alone.store(ALONE, Ordering::Release);
        entry
    }

    /// The same, and it is not written when it is requested again.
    pub fn copy_in_memory(parts: EntryParts, sequence: u64) -> MemoryEntry {
        let entry = MemoryEntry::new(parts, sequence);
        entry.alone.store(ALONE_SEEN, Ordering::Release);
        entry
    }

    /// Whether the entry is only in memory: it is not on disk, and does not wait to be written.
    pub fn is_in_memory_alone(&self) -> bool {
        self.alone.load(Ordering::Acquire) != NOT_ALONE
    }

    /// Whether the entry is only in memory. Returns true only once, so that only one caller queues the entry for
    /// writing. *Cost*: one load if the entry is not only in memory.
    pub fn take_in_memory_alone(&self) -> bool {
        self.alone.load(Ordering::Relaxed) == ALONE
            && self.alone.compare_exchange(ALONE, ALONE_SEEN, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Marks an entry that is only in memory as one to be written; returns whether it was marked. A replaced entry is
    /// not written.
    pub fn set_to_be_written(&self) -> bool {
        let may_be = |alone| matches!(alone, ALONE | ALONE_SEEN).then_some(NOT_ALONE);
        self.alone.fetch_update(Ordering::AcqRel, Ordering::Acquire, may_be).is_ok()
    }

    /// Notes that a newer version was accepted: an entry that is only in memory will then never be written.
    pub fn set_replaced(&self) {
        let replaced = |alone| (alone != NOT_ALONE).then_some(ALONE_REPLACED);
        let _ = self.alone.fetch_update(Ordering::AcqRel, Ordering::Acquire, replaced);
    }

    /// Marks the entry as stale since this time, in seconds since 1970; the earliest time stays.
    pub fn set_stale_since(&self, since_s: u32) {
        // 0 stands for an entry that is not stale.
        let since_s = since_s.max(1);
        let earlier = |known| (known == 0 || since_s < known).then_some(since_s);
        let _ = self.stale_since_s.fetch_update(Ordering::AcqRel, Ordering::Acquire, earlier);
    }

    /// Since when the entry is stale because of a soft purge, in seconds since 1970.
    pub fn stale_since_s(&self) -> Option<u32> {
        Some(self.stale_since_s.load(Ordering::Acquire)).filter(|&since_s| since_s > 0)
    }

    /// The id of the entry in the memory tier.
    pub fn id(&self) -> u64 {
        self.hash.0 as u64
    }

    /// The memory of the entry, in bytes.
    pub fn weight(&self) -> u64 {
        let bytes = self.key.len() + self.metadata.len() + self.body.len();
        // The server also keeps a decoded copy of the metadata, for which twice the length of the metadata is counted.
        (bytes + self.metadata.len() * 2) as u64 + self.tags.memory_bytes() + ENTRY_BYTES
    }

    /// The entry's location on disk; `None` before the entry is written.
    pub fn location(&self) -> Option<RecordLocation> {
        match self.location.load(Ordering::Acquire) {
            0 => None,
            packed => Some(RecordLocation::unpack(packed)),
        }
    }

    /// Sets the entry's location on disk.
    pub fn set_location(&self, location: RecordLocation) {
        self.location.store(location.pack(), Ordering::Release);
    }

    /// Notes a request; returns whether it is the first request since the entry was written. *Cost*: one load for later
    /// requests.
    pub fn ask(&self) -> bool {
        !self.asked_for.load(Ordering::Relaxed) && !self.asked_for.swap(true, Ordering::Relaxed)
    }

    /// Whether the entry was requested since it was written.
    pub fn was_asked_for(&self) -> bool {
        self.asked_for.load(Ordering::Relaxed)
    }

    /// Notes why the entry was read together with another record.
    pub fn set_neighbour(&self, neighbour: NeighbourKind) {
        self.neighbour.store(1 + neighbour as u8, Ordering::Relaxed);
    }

    /// Whether the entry was read together with another record and has not been requested since.
    pub fn is_neighbour(&self) -> bool {
        self.neighbour.load(Ordering::Relaxed) != 0
    }

    /// Returns why the entry was read together with another record, and clears this note: later calls return `None`.
    pub fn take_neighbour(&self) -> Option<NeighbourKind> {
        match self.neighbour.swap(0, Ordering::Relaxed) {
            1 => Some(NeighbourKind::Tied),
            2 => Some(NeighbourKind::Untied),
            _ => None,
        }
    }

    /// Notes the new location after the entry was rewritten. The entry is rewritten again only after a new request.
    pub fn move_to(&self, location: RecordLocation) {
        self.set_location(location);
        self.asked_for.store(false, Ordering::Relaxed);
    }

    /// Whether this is the entry of `key`.
    pub fn is(&self, hash: KeyHash, key: KeyRef<'_>) -> bool {
        self.hash == hash && self.key.as_ref() == key
    }

    /// The decoded form of the metadata, made at the first call.
    ///
    /// A later call with another type returns `None`.
    pub fn decoded<T: Send + Sync + 'static>(&self, decode: impl FnOnce(&Bytes) -> T) -> Option<&T> {
        self.decoded.get_or_init(|| Box::new(decode(&self.metadata))).downcast_ref()
    }
}
