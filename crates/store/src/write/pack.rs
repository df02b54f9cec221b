//! Packing entries into an append.
//!
//! Owns: the choice of the entries for the next append, and the append's bytes. An append takes the next entries in the
//! order of their sequences. The table lists them in that order; the records are placed in the order that `arrange`
//! gives. Leaves to others: when and where the append is written.

use std::ops::Range;

use nectary_block::Buffer;
use zerocopy::IntoBytes;

use crate::format::layout::SpanLayout;
use crate::format::{
    self, APPEND_HEADER_BYTES, AppendBody, BLOCK_BYTES, FrameMagic, FramePlace, GRANULE_BYTES, HEADER_BYTES,
    RECORD_HEADER_BYTES, RecordBody, TABLE_ENTRY_BYTES, TableEntry,
};
use crate::format::{LogEnd, RecordLocation};
use crate::intake::queue::{UnwrittenEntry, WriteQueue};
use crate::locality::arrange::{self, GroupTie, PlacedRecord};
use crate::locality::hints::{HintId, PendingHints};
use crate::memory::entry::{EntryKind, MemoryEntry};

/// An append ready to be written.
pub struct PackedAppend {
    pub buffer: Buffer,
    pub items: Vec<(UnwrittenEntry, RecordLocation)>,
    pub last_sequence: u64,
    /// The number of items that are packed next to items to which they are tied.
    pub tied: u64,
    /// The extents of groups, in granules of their segment.
    pub groups: Vec<Range<u64>>,
}

/// The state of the log that an append records when it is written.
#[derive(Debug, Clone, Copy)]
pub struct AppendContext {
    pub purge_end: LogEnd,
    pub flushed_sequence: u64,
}

/// The length of an entry's record without padding, in bytes.
pub fn record_bytes(entry: &MemoryEntry) -> u64 {
    let tags_bytes = entry.tags.record_bytes();
    (RECORD_HEADER_BYTES + entry.key.len() + tags_bytes + entry.metadata.len() + entry.body.len()) as u64
}

/// Takes as many entries from the queue as fit into an append of `bytes_max`; also returns the size of that append, in
/// bytes.
pub fn take(queue: &WriteQueue, bytes_max: u64) -> (Vec<UnwrittenEntry>, u64) {
    let mut bytes = APPEND_HEADER_BYTES as u64;
    let items = queue.take(|entry| {
        let more = TABLE_ENTRY_BYTES as u64 + record_bytes(entry).next_multiple_of(GRANULE_BYTES);
        let fits = bytes + more <= bytes_max;
        if fits {
            bytes += more;
        }
        fits
    });
    (items, bytes)
}

/// The hints and the cluster size, which decide the order of records in an append.
pub struct AppendPacking<'a> {
    pub hints: &'a PendingHints,
    /// The size of a cluster; 0 for no clusters.
    pub cluster_bytes: u64,
}

impl AppendPacking<'_> {
    /// Returns the order of the items' records. The first record will be at offset `position` of the segment.
    fn order(&self, items: &[UnwrittenEntry], position: u64) -> Vec<PlacedRecord> {
        let unplaced = |item: &UnwrittenEntry| {
            let entry = &item.entry;
            let former = item.moved_from.is_some() && entry.cluster != 0;
            arrange::UnplacedRecord {
                id: (entry.kind == EntryKind::Whole).then(|| HintId::of(entry.primary_hash)),
                tie: match item.tie.or_else(|| self.hints.seed_of(entry.primary_hash)) {
                    Some(seed) => Some(GroupTie::Seed(seed)),
                    None => former.then_some(GroupTie::Former(entry.cluster)),
                },
                bytes: record_bytes(entry).next_multiple_of(GRANULE_BYTES),
            }
        };
        let records: Vec<_> = items.iter().map(unplaced).collect();
        let number = items.first().map_or(0, |item| item.sequence);
        arrange::arrange(&records, position, self.cluster_bytes, number)
    }
}

/// The length of the append of these items, in bytes.
pub fn append_bytes(items: &[UnwrittenEntry]) -> u64 {
    let table_end = (APPEND_HEADER_BYTES + items.len() * TABLE_ENTRY_BYTES) as u64;
    let records: u64 = items.iter().map(|item| record_bytes(&item.entry).next_multiple_of(GRANULE_BYTES)).sum();
    (table_end + records).next_multiple_of(BLOCK_BYTES)
}

/// Packs entries into the append at `offset` of the segment of `epoch`.
///
/// `items` are in the order of sequences. If there are no items, the append records `sequence` as its last sequence.
/// `buffer` must have room for [`append_bytes`].
#[expect(clippy::too_many_arguments)]
pub fn pack(
    layout: &SpanLayout,
    epoch: u64,
    offset: u64,
    items: Vec<UnwrittenEntry>,
    sequence: u64,
    known: AppendContext,
    packing: &AppendPacking<'_>,
    mut buffer: Buffer,
) -> PackedAppend {
    let address = layout.segment_start(epoch) + offset;
    let table_end = APPEND_HEADER_BYTES + items.len() * TABLE_ENTRY_BYTES;
    let append_bytes = append_bytes(&items);
    buffer.set_len(append_bytes as usize);
    let first_sequence = items.first().map_or(sequence, |item| item.sequence);
    let last_sequence = items.last().map_or(sequence, |item| item.sequence);
    let body = AppendBody {
        first_sequence: first_sequence.into(),
        last_sequence: last_sequence.into(),
        append_bytes: (append_bytes as u32).into(),
        record_count: (items.len() as u32).into(),
        purge_cycle: known.purge_end.cycle.into(),
        purge_blocks: known.purge_end.blocks.into(),
        reserved: 0.into(),
        flushed_sequence: known.flushed_sequence.into(),
        reserved_tail: [0; 16],
    };
    buffer[HEADER_BYTES..APPEND_HEADER_BYTES].copy_from_slice(body.as_bytes());
    let mut position = table_end;
    let mut starts = vec![0; items.len()];
    let (mut tied, mut groups, mut group) = (0, Vec::<Range<u64>>::new(), 0);
    for PlacedRecord { index, cluster } in packing.order(&items, offset + table_end as u64) {
        let item = &items[index];
        let end = position + record_bytes(&item.entry) as usize;
        let place = FramePlace { identity: layout.identity, epoch, address: address + position as u64 };
        write_record(&mut buffer[position..end], item, cluster, place);
        starts[index] = position;
        tied += u64::from(cluster != 0);
        let padded = end.next_multiple_of(GRANULE_BYTES as usize);
        buffer[end..padded].fill(0);
        let granules = (offset + position as u64) / GRANULE_BYTES..(offset + padded as u64) / GRANULE_BYTES;
        match groups.last_mut().filter(|_| cluster == group) {
            Some(last) if cluster != 0 => last.end = granules.end,
            _ if cluster != 0 => groups.push(granules),
            _ => {}
        }
        group = cluster;
        position = padded;
    }
    let mut placed = Vec::with_capacity(items.len());
    for (number, (item, start)) in items.into_iter().zip(starts).enumerate() {
        let bytes = record_bytes(&item.entry);
        let entry = &item.entry;
        let row = TableEntry {
            key_hash: entry.hash.0.into(),
            primary_hash: entry.primary_hash.0.into(),
            generation: entry.generation.into(),
            sequence: item.sequence.into(),
            start_granules: ((start as u64 / GRANULE_BYTES) as u32).into(),
            record_bytes: (bytes as u32).into(),
            kind: entry.kind.record_kind().code(),
            reserved: [0; 7],
        };
        let at = APPEND_HEADER_BYTES + number * TABLE_ENTRY_BYTES;
        buffer[at..at + TABLE_ENTRY_BYTES].copy_from_slice(row.as_bytes());
        let granule = (address + start as u64 - layout.segments_offset) / GRANULE_BYTES;
        placed.push((item, RecordLocation::new(granule, bytes)));
    }
    buffer[position..].fill(0);
    let place = FramePlace { identity: layout.identity, epoch, address };
    format::seal(&mut buffer, FrameMagic::Append, place, table_end);
    PackedAppend { buffer, items: placed, last_sequence, tied, groups }
}

fn write_record(bytes: &mut [u8], item: &UnwrittenEntry, cluster: u16, place: FramePlace) {
    let entry = &item.entry;
    let (fragment, fragment_generation) = match entry.kind {
        EntryKind::Whole => (0, 0),
        EntryKind::Head { generation, count } => (count, generation),
        EntryKind::Fragment { generation, number } => (number, generation),
    };
    let key = entry.key.as_ref();
    let fields = RecordBody {
        sequence: item.sequence.into(),
        generation: entry.generation.into(),
        key_hash: entry.hash.0.into(),
        body_checksum: format::body_checksum(&entry.body).into(),
        body_bytes: (entry.body.len() as u32).into(),
        object_bytes: entry.object_bytes.into(),
        primary_bytes: (key.primary.len() as u16).into(),
        variant_bytes: (key.variant.len() as u16).into(),
        metadata_bytes: (entry.metadata.len() as u32).into(),
        fragment: fragment.into(),
        kind: entry.kind.record_kind().code(),
        reserved: 0,
        cluster: cluster.into(),
        fragment_generation: fragment_generation.into(),
        tag_count: (entry.tags.len() as u16).into(),
        reserved_tail: [0; 6],
    };
    bytes[HEADER_BYTES..RECORD_HEADER_BYTES].copy_from_slice(fields.as_bytes());
    let mut at = RECORD_HEADER_BYTES;
    let mut put = |part: &[u8]| {
        bytes[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    };
    put(key.primary);
    put(key.variant);
    entry.tags.hashes().iter().for_each(|tag| put(&tag.0.to_le_bytes()));
    put(&entry.metadata);
    put(&entry.body);
    format::seal(bytes, FrameMagic::Record, place, at - entry.body.len());
}
