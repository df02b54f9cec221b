//! Reading a record: the bytes at a location on disk, and whether they are the requested record.
//!
//! Owns: the checks before a record becomes an entry: header and body match their checksums, the address, and the epoch
//! that the segment had before the read. Leaves to others: where to read (`index`), and whether a record may be
//! returned (`get/lookup.rs`).

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use nectary_block::Buffer;

use crate::disk::span::{ReadExtent, SpanDisk};
use crate::error::Error;
use crate::format::{DecodedRecord, FramePlace, RECORD_HEADER_BYTES, RecordKind, RecordLocation};
use crate::memory::entry::{EntryKind, EntryParts, MemoryEntry};
use crate::names::key::{KeyHash, KeyRef};
use crate::names::tag::EntryTags;
use crate::state::SpanState;

/// A record is copied if it takes less than this share of its read buffer, in percent. Then the buffer can be reused
/// for the next read, and the entry keeps only the bytes of the record in memory.
const BUFFER_USE_PERCENT_MIN: usize = 85;
/// A record of at most this many bytes is always copied, for the same reason.
const COPIED_BYTES_MAX: usize = 32 << 10;

/// The result of reading a location on disk.
pub(crate) enum RecordLookup {
    /// The requested record.
    Entry(Arc<MemoryEntry>),
    /// An intact record of another key.
    Other,
    /// The segment of the location was overwritten in the meantime.
    Reclaimed,
    /// The location has no valid record.
    Damaged,
    /// The read failed on the device.
    Failed(Error),
}

/// Reads the bytes at a location and decides whether they are the record of `hash`, and of `key` if it is given.
pub(crate) async fn read_record(
    state: &SpanState,
    hash: KeyHash,
    key: Option<KeyRef<'_>>,
    location: RecordLocation,
) -> RecordLookup {
    let Some(extent) = state.span.extent(location) else { return RecordLookup::Damaged };
    read_extent(state, hash, key, location, extent).await
}

/// Reads the location of a fragment, and decides whether it is the record of `hash`. The length of a fragment's record
/// is bounded more closely than the class in its location says.
pub(crate) async fn read_fragment(state: &SpanState, hash: KeyHash, location: RecordLocation) -> RecordLookup {
    let Some(mut extent) = state.span.extent(location) else { return RecordLookup::Damaged };
    let record_bytes_max = RECORD_HEADER_BYTES as u64 + state.span.layout.fragment_bytes;
    let end = state.span.address_of(location) + record_bytes_max;
    extent.end = extent.end.min(end.next_multiple_of(u64::from(state.span.device.geometry().block_bytes)));
    read_extent(state, hash, None, location, extent).await
}

async fn read_extent(
    state: &SpanState,
    hash: KeyHash,
    key: Option<KeyRef<'_>>,
    location: RecordLocation,
    extent: ReadExtent,
) -> RecordLookup {
    match read_at(&state.span, location, extent).await {
        Ok(buffer) => decode(state, hash, key, location, extent, buffer).0,
        Err(error) => RecordLookup::Failed(error),
    }
}

/// Reads the extent of a location. If that fails, reads no more than the record, because an extent may also have blocks
/// of the next record: the index knows lengths only roughly.
async fn read_at(span: &SpanDisk, location: RecordLocation, extent: ReadExtent) -> Result<Buffer, Error> {
    match span.read_extent(extent).await {
        Ok(buffer) => Ok(buffer),
        Err(error) => read_closely(span, location, extent).await.ok_or(error),
    }
}

/// Reads the blocks that a record occupies, and no others; `None` if they cannot be read, or have no record.
pub(crate) async fn read_closely(span: &SpanDisk, location: RecordLocation, extent: ReadExtent) -> Option<Buffer> {
    let (address, block) = (span.address_of(location), u64::from(span.device.geometry().block_bytes));
    let until = |bytes: u64| ReadExtent { end: (address + bytes).next_multiple_of(block).min(extent.end), ..extent };
    let least = until(location.bytes_min());
    let begin = span.read_extent(least).await.ok()?;
    let place = FramePlace { identity: span.layout.identity, epoch: extent.epoch, address };
    let record = DecodedRecord::decode(begin.get((address - extent.start) as usize..)?, place).ok()?;
    let whole = until(record.bytes() as u64);
    if whole.end <= least.end {
        return Some(begin);
    }
    span.read_extent(whole).await.ok()
}

/// Decides whether the read bytes are the record of `hash`. Also returns the buffer if the entry has its own copy of
/// the bytes.
pub(crate) fn decode(
    state: &SpanState,
    hash: KeyHash,
    key: Option<KeyRef<'_>>,
    location: RecordLocation,
    extent: ReadExtent,
    buffer: Buffer,
) -> (RecordLookup, Option<Buffer>) {
    let span = &state.span;
    let ReadExtent { start, epoch, .. } = extent;
    let address = span.address_of(location);
    let reclaimed = || span.epoch_at(location, span.head()) != epoch || !state.index.contains(hash, location);
    let bad = || if reclaimed() { RecordLookup::Reclaimed } else { RecordLookup::Damaged };
    let bytes = &buffer[(address - start) as usize..];
    let place = FramePlace { identity: span.layout.identity, epoch, address };
    let Ok(record) = DecodedRecord::decode(bytes, place) else { return (bad(), None) };
    if record.fields.key_hash.get() != hash.0 {
        return (RecordLookup::Other, None);
    }
    let found_key = KeyRef::new(record.primary(bytes), record.variant(bytes));
    if key.is_some_and(|key| key != found_key) {
        return (RecordLookup::Other, None);
    }
    if !record.body_is_whole(bytes) {
        return (bad(), None);
    }
    let fields = record.fields;
    let generation = fields.fragment_generation.get();
    let kind = match record.kind {
        RecordKind::Whole => EntryKind::Whole,
        RecordKind::Head => EntryKind::Head { generation, count: fields.fragment.get() },
        RecordKind::Fragment => EntryKind::Fragment { generation, number: fields.fragment.get() },
    };
    let owned_key = found_key.to_owned();
    let (primary_hash, _) = span.hash(found_key);
    let tags = tags_of(span, &record, bytes);
    let skip = (address - start) as usize;
    let used = record.bytes() - record.metadata_range().start;
    let (metadata_range, body_range) = (record.metadata_range(), record.body_start..record.bytes());
    let (metadata, body, buffer) = if used <= COPIED_BYTES_MAX || used * 100 < buffer.len() * BUFFER_USE_PERCENT_MIN {
        let copy = |range: Range<usize>| Bytes::copy_from_slice(&bytes[range]);
        (copy(metadata_range), copy(body_range), Some(buffer))
    } else {
        let all = buffer.into_bytes();
        let slice = |range: Range<usize>| all.slice(range.start + skip..range.end + skip);
        (slice(metadata_range), slice(body_range), None)
    };
    let parts = EntryParts {
        key: owned_key,
        primary_hash,
        hash,
        kind,
        metadata,
        body,
        object_bytes: fields.object_bytes.get(),
        generation: fields.generation.get(),
        tags,
    };
    let mut entry = MemoryEntry::new(parts, fields.sequence.get());
    entry.cluster = fields.cluster.get();
    entry.set_location(location);
    (RecordLookup::Entry(Arc::new(entry)), buffer)
}

/// Makes the entry of an unrequested whole object, from a copy of the read bytes; `None` if the object is damaged, or
/// if it is purged and `purged_too` is not set.
pub(crate) fn unasked(
    state: &SpanState,
    bytes: &[u8],
    record: &DecodedRecord,
    location: RecordLocation,
    purged_too: bool,
) -> Option<MemoryEntry> {
    let fields = &record.fields;
    let hash = KeyHash(fields.key_hash.get());
    let key = KeyRef::new(record.primary(bytes), record.variant(bytes));
    let (primary_hash, key_hash) = state.span.hash(key);
    let tags = tags_of(&state.span, record, bytes);
    let verdict = state.purges.verdict(primary_hash, fields.generation.get(), key.primary, tags.hashes());
    let purged = verdict.is_gone();
    if key_hash != hash || (purged && !purged_too) || !record.body_is_whole(bytes) {
        return None;
    }
    let generation = match purged {
        // The planted bug: the purged object is accepted as if it were put now.
        true => state.draw(),
        false => fields.generation.get(),
    };
    Some(copied(bytes, record, primary_hash, location, generation, tags))
}

/// Makes the entry of the whole object with this hash at `from`; `None` if `buffer`, which was read at address `start`,
/// does not have this object intact. Purges are not checked.
pub(crate) fn whole_in(
    span: &SpanDisk,
    buffer: &[u8],
    start: u64,
    epoch: u64,
    hash: KeyHash,
    from: RecordLocation,
) -> Option<Arc<MemoryEntry>> {
    let address = span.address_of(from);
    let bytes = buffer.get(address.checked_sub(start)? as usize..)?;
    let place = FramePlace { identity: span.layout.identity, epoch, address };
    let record = DecodedRecord::decode(bytes, place).ok()?;
    if record.kind != RecordKind::Whole || record.fields.key_hash.get() != hash.0 || !record.body_is_whole(bytes) {
        return None;
    }
    let (primary_hash, _) = span.hash(KeyRef::new(record.primary(bytes), record.variant(bytes)));
    let (generation, tags) = (record.fields.generation.get(), tags_of(span, &record, bytes));
    Some(Arc::new(copied(bytes, &record, primary_hash, from, generation, tags)))
}

/// Makes the entry of a whole object with copied bytes, so that it does not keep the read buffer in memory.
fn copied(
    bytes: &[u8],
    record: &DecodedRecord,
    primary_hash: crate::names::key::PrimaryHash,
    location: RecordLocation,
    generation: u64,
    tags: EntryTags,
) -> MemoryEntry {
    let copy = |range: Range<usize>| Bytes::copy_from_slice(&bytes[range]);
    let fields = &record.fields;
    let parts = EntryParts {
        key: KeyRef::new(record.primary(bytes), record.variant(bytes)).to_owned(),
        primary_hash,
        hash: KeyHash(fields.key_hash.get()),
        kind: EntryKind::Whole,
        metadata: copy(record.metadata_range()),
        body: copy(record.body_start..record.bytes()),
        object_bytes: fields.object_bytes.get(),
        generation,
        tags,
    };
    let mut entry = MemoryEntry::new(parts, fields.sequence.get());
    entry.cluster = fields.cluster.get();
    entry.set_location(location);
    entry
}

/// The tags of a record.
fn tags_of(span: &SpanDisk, record: &DecodedRecord, bytes: &[u8]) -> EntryTags {
    // A decoded record never has more tags than allowed.
    EntryTags::new(record.tags(bytes).collect(), &span.tag_ledger).unwrap_or_default()
}
