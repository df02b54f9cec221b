//! The frames of the on-disk format, exactly as in `docs/formats/store.md`.
//!
//! Owns: encoding, decoding and every check of a frame before its fields are used. Leaves to others: the locations of
//! frames, and the effects of their contents. Nothing here does I/O, and no input makes a decoder panic.
//!
//! *Circle*: `layout` and `location` count in blocks and granules, which are defined here.

pub mod layout;
pub mod location;
mod position;

use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::names::tag::{TAGS_MAX, TagHash};
use crate::planted::{Bug, planted};

pub use location::RecordLocation;
pub use position::{LogEnd, LogPosition, OPEN_COUNT_SHIFT, open_count_of};

/// The alignment of areas and appends, in bytes.
pub const BLOCK_BYTES: u64 = 4096;
/// The size of a granule, in bytes. Records begin at multiples of it.
pub const GRANULE_BYTES: u64 = 64;
/// The format version that this code reads and writes.
pub const VERSION: u16 = 1;
/// The longest metadata of an object, in bytes.
pub const METADATA_BYTES_MAX: usize = 64 * 1024;
/// The feature "records have tags" in a superblock.
pub const FEATURE_TAGS: u64 = 1;
/// The largest number of records in one purge block.
pub const PURGE_RECORDS_PER_BLOCK: usize = 99;
/// No sequence, generation, epoch or cycle becomes larger than this; a larger value on disk is damage. The sum of two
/// valid values does not overflow.
pub const COUNTER_MAX: u64 = 1 << 62;
/// The number of shards of the index and of a checkpoint.
pub const INDEX_SHARDS: usize = 64;

/// The kinds of frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameMagic {
    /// The superblock.
    Superblock,
    /// A state slot.
    State,
    /// A block of the purge log.
    Purge,
    /// The header of an index checkpoint.
    CheckpointHeader,
    /// A chunk of an index checkpoint.
    CheckpointChunk,
    /// A chunk of the hot list after a checkpoint.
    HotChunk,
    /// An append.
    Append,
    /// A record.
    Record,
}

impl FrameMagic {
    /// The four bytes that mark a frame of this kind on disk.
    pub const fn bytes(self) -> [u8; 4] {
        match self {
            FrameMagic::Superblock => *b"NSUP",
            FrameMagic::State => *b"NSTA",
            FrameMagic::Purge => *b"NPRG",
            FrameMagic::CheckpointHeader => *b"NCKH",
            FrameMagic::CheckpointChunk => *b"NCKC",
            FrameMagic::HotChunk => *b"NHOT",
            FrameMagic::Append => *b"NAPP",
            FrameMagic::Record => *b"NREC",
        }
    }
}

/// The header of every frame.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct FrameHeader {
    pub magic: [u8; 4],
    pub version: U16,
    pub span: U16,
    pub length: U32,
    pub checksum: U32,
    pub identity: U128,
    pub epoch: U64,
    pub address: U64,
    pub reserved: [u8; 16],
}

/// The body of the superblock.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SuperblockBody {
    pub span_bytes: U64,
    pub hash_seed: U64,
    pub segment_bytes: U32,
    pub segment_count: U32,
    pub segments_offset: U64,
    pub purge_log_offset: [U64; 2],
    pub purge_log_bytes: U64,
    pub checkpoint_offset: [U64; 2],
    pub checkpoint_bytes: U64,
    pub fragment_bytes: U32,
    pub whole_bytes_max: U32,
    pub index_home_bits: U32,
    pub span_count: U32,
    pub features: U64,
    pub created_s: U64,
    pub set: U128,
    pub span_number: U32,
    pub reserved: U32,
    pub weights: [U32; 16],
}

/// The body of a state slot.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct StateBody {
    pub open_count: U64,
    pub clean: U32,
    pub reserved: U32,
    pub membership: U64,
    pub membership_id: U64,
    pub membership_before: U64,
    pub since: U64,
    pub present: U64,
    pub membership_before_number: U64,
}

/// The body of an append's header.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct AppendBody {
    pub first_sequence: U64,
    pub last_sequence: U64,
    pub append_bytes: U32,
    pub record_count: U32,
    pub purge_cycle: U64,
    pub purge_blocks: U32,
    pub reserved: U32,
    pub flushed_sequence: U64,
    pub reserved_tail: [u8; 16],
}

/// One entry of an append's table.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct TableEntry {
    pub key_hash: U128,
    pub primary_hash: U128,
    pub generation: U64,
    pub sequence: U64,
    pub start_granules: U32,
    pub record_bytes: U32,
    pub kind: u8,
    pub reserved: [u8; 7],
}

/// The body of a record's header.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RecordBody {
    pub sequence: U64,
    pub generation: U64,
    pub key_hash: U128,
    pub body_checksum: U32,
    pub body_bytes: U32,
    pub object_bytes: U64,
    pub primary_bytes: U16,
    pub variant_bytes: U16,
    pub metadata_bytes: U32,
    pub fragment: U32,
    pub kind: u8,
    pub reserved: u8,
    pub cluster: U16,
    pub fragment_generation: U64,
    pub tag_count: U16,
    pub reserved_tail: [u8; 6],
}

/// The body of a checkpoint's header.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CheckpointBody {
    pub number: U64,
    pub position_epoch: U64,
    pub position_offset: U32,
    pub chunk_count: U32,
    pub entry_count: U64,
    pub last_sequence: U64,
    pub purge_cycle: U64,
    pub purge_blocks: U32,
    pub hot_chunk_count: U32,
    pub homes: [U32; INDEX_SHARDS],
}

/// The bytes before the payload of a checkpoint's chunk.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ChunkBody {
    pub number: U64,
    pub payload_bytes: U32,
    pub reserved: U32,
}

/// The body of a purge block's header.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct PurgeBlockBody {
    pub number: U32,
    pub snapshot_blocks: U32,
    pub record_count: U32,
    pub reserved: U32,
}

/// The tail of a purge block, after its records. The first two fields are those of a store of several spans, the others
/// those of a store whose purges are a fleet's; all of them are zero otherwise.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct PurgeBlockTail {
    pub purge_number: U64,
    pub purge_held: U64,
    pub fleet_revision: U64,
    pub fleet_identity: U128,
    pub fleet_rules: U64,
    pub fleet_missed: U64,
}

/// The record of one purge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct PurgeRecord {
    pub rule: u8,
    /// Whether the purged objects are gone (0) or stale (1).
    pub effect: u8,
    /// For a purge by prefix: the length of the prefix.
    pub prefix_bytes: U16,
    /// For a soft purge: the time since which the objects are stale, in seconds since 1970.
    pub since_s: U32,
    pub generation: U64,
    pub position: U64,
    pub primary_hash: U128,
}

/// Bytes of a frame header.
pub const HEADER_BYTES: usize = size_of::<FrameHeader>();
/// Bytes of an append before its table.
pub const APPEND_HEADER_BYTES: usize = HEADER_BYTES + size_of::<AppendBody>();
/// Bytes of a table entry.
pub const TABLE_ENTRY_BYTES: usize = size_of::<TableEntry>();
/// Bytes of a record before its key.
pub const RECORD_HEADER_BYTES: usize = HEADER_BYTES + size_of::<RecordBody>();
/// Bytes of a tag in a record.
pub const TAG_HASH_BYTES: usize = size_of::<TagHash>();
/// The start of the tail of a purge block.
pub const PURGE_TAIL_OFFSET: usize =
    HEADER_BYTES + size_of::<PurgeBlockBody>() + PURGE_RECORDS_PER_BLOCK * size_of::<PurgeRecord>();
/// Bytes of a checkpoint's chunk before its payload.
pub const CHUNK_HEADER_BYTES: usize = HEADER_BYTES + size_of::<ChunkBody>();

const _: () = {
    assert!(HEADER_BYTES == 64);
    assert!(APPEND_HEADER_BYTES == 128);
    assert!(TABLE_ENTRY_BYTES == 64);
    assert!(RECORD_HEADER_BYTES == 144);
    assert!(TAG_HASH_BYTES == 8);
    assert!(size_of::<PurgeRecord>() == 40);
    assert!(PURGE_TAIL_OFFSET == 4040 && PURGE_TAIL_OFFSET + size_of::<PurgeBlockTail>() <= BLOCK_BYTES as usize);
    assert!(size_of::<CheckpointBody>() == 56 + 4 * INDEX_SHARDS);
};

/// The kind of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordKind {
    /// A whole object.
    Whole,
    /// The key and metadata of an object whose body is in fragments.
    Head,
    /// A fragment of a body.
    Fragment,
}

impl RecordKind {
    /// The number of the kind on disk.
    pub fn code(self) -> u8 {
        match self {
            RecordKind::Whole => 1,
            RecordKind::Head => 2,
            RecordKind::Fragment => 3,
        }
    }

    /// The kind with this number on disk; `None` if this version does not know the number.
    pub fn from_code(code: u8) -> Option<RecordKind> {
        match code {
            1 => Some(RecordKind::Whole),
            2 => Some(RecordKind::Head),
            3 => Some(RecordKind::Fragment),
            _ => None,
        }
    }
}

/// The place of a frame: a frame is valid only in the place that its header states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FramePlace {
    /// The store's identity.
    pub identity: u128,
    /// The epoch of the frame's area.
    pub epoch: u64,
    /// The frame's offset from the start of the span, in bytes.
    pub address: u64,
}

/// Why a frame is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameMismatch {
    /// Another magic, or too few bytes to hold a header.
    Magic,
    /// A version that this code does not know.
    Version(u16),
    /// A length beyond the available bytes.
    Length,
    /// A checksum that does not match.
    Checksum,
    /// The frame belongs to another store, to another epoch of its area, or to another address.
    Place,
    /// A field outside its bounds.
    Field,
}

/// Seals a frame of `length` bytes: writes its header, with the checksum of the frame, at the start of `bytes`.
///
/// # Panics
/// If `bytes` is shorter than `length` or than a header; this is a bug of the caller.
pub fn seal(bytes: &mut [u8], magic: FrameMagic, place: FramePlace, length: usize) {
    let mut header = FrameHeader {
        magic: magic.bytes(),
        version: VERSION.into(),
        span: 0.into(),
        length: (length as u32).into(),
        checksum: 0.into(),
        identity: place.identity.into(),
        epoch: place.epoch.into(),
        address: place.address.into(),
        reserved: [0; 16],
    };
    bytes[..HEADER_BYTES].copy_from_slice(header.as_bytes());
    header.checksum = crc32c::crc32c(&bytes[..length]).into();
    bytes[..HEADER_BYTES].copy_from_slice(header.as_bytes());
}

/// Reads a frame's header and checks its magic, version, length and checksum, but not its place.
pub fn open_unplaced(bytes: &[u8], magic: FrameMagic) -> Result<FrameHeader, FrameMismatch> {
    let header = header(bytes, magic)?;
    check_sum(bytes, &header, magic)?;
    Ok(header)
}

/// Reads a frame's header and checks the bounds of its values, but not its checksum.
fn header(bytes: &[u8], magic: FrameMagic) -> Result<FrameHeader, FrameMismatch> {
    let Ok((header, _)) = FrameHeader::read_from_prefix(bytes) else { return Err(FrameMismatch::Magic) };
    if header.magic != magic.bytes() {
        return Err(FrameMismatch::Magic);
    }
    if header.version.get() != VERSION {
        return Err(FrameMismatch::Version(header.version.get()));
    }
    let length = header.length.get() as usize;
    if length < HEADER_BYTES || length > bytes.len() || header.span.get() != 0 {
        return Err(FrameMismatch::Length);
    }
    if header.epoch.get() > COUNTER_MAX {
        return Err(FrameMismatch::Field);
    }
    Ok(header)
}

fn check_sum(bytes: &[u8], header: &FrameHeader, magic: FrameMagic) -> Result<(), FrameMismatch> {
    let skip = planted(Bug::ChecksumSkipped)
        || (planted(Bug::TornHeaderAccepted) && matches!(magic, FrameMagic::Append | FrameMagic::Purge));
    if !skip {
        let mut zeroed = *header;
        zeroed.checksum = 0.into();
        let covered = &bytes[HEADER_BYTES..header.length.get() as usize];
        let sum = crc32c::crc32c_append(crc32c::crc32c(zeroed.as_bytes()), covered);
        if sum != header.checksum.get() {
            return Err(FrameMismatch::Checksum);
        }
    }
    Ok(())
}

/// Reads a frame's header and checks all of it, including the place. *Cost*: the checksum is computed last, so that
/// bytes that only look like a frame (in a body, for example) cost little.
pub fn open(bytes: &[u8], magic: FrameMagic, place: FramePlace) -> Result<FrameHeader, FrameMismatch> {
    let header = header(bytes, magic)?;
    let same_store = header.identity.get() == place.identity && header.address.get() == place.address;
    let same_epoch = header.epoch.get() == place.epoch;
    if (same_store && same_epoch) || (planted(Bug::FormerFrameAccepted) && magic != FrameMagic::Superblock) {
        check_sum(bytes, &header, magic)?;
        Ok(header)
    } else {
        Err(FrameMismatch::Place)
    }
}

/// The length in a frame's header, if `bytes` look like a frame of this kind and of this store at `address`. The
/// checksum, version and epoch are not checked.
pub fn apparent_bytes(bytes: &[u8], magic: FrameMagic, identity: u128, address: u64) -> Option<u64> {
    let (header, _) = FrameHeader::read_from_prefix(bytes).ok()?;
    let looks = header.magic == magic.bytes() && header.identity.get() == identity && header.address.get() == address;
    looks.then(|| header.length.get().into())
}

/// Reads the fixed body that follows the frame header.
pub fn body<T: FromBytes + KnownLayout + Immutable>(bytes: &[u8]) -> Result<T, FrameMismatch> {
    let tail = bytes.get(HEADER_BYTES..).ok_or(FrameMismatch::Length)?;
    T::read_from_prefix(tail).map(|(body, _)| body).map_err(|_| FrameMismatch::Length)
}

/// The checksum of a record's body.
pub fn body_checksum(body: &[u8]) -> u32 {
    crc32c::crc32c(body)
}

/// A decoded record: its header, and the positions of its parts in the bytes.
#[derive(Debug, Clone, Copy)]
pub struct DecodedRecord {
    /// The fields after the frame header.
    pub fields: RecordBody,
    /// The kind of the record.
    pub kind: RecordKind,
    /// Bytes before the body.
    pub body_start: usize,
}

impl DecodedRecord {
    /// Decodes a record that was read at `place`; the body is not checked here.
    ///
    /// *Errors*: the record was not written for this place, or its header is wrong.
    pub fn decode(bytes: &[u8], place: FramePlace) -> Result<DecodedRecord, FrameMismatch> {
        let header = open(bytes, FrameMagic::Record, place)?;
        let fields: RecordBody = body(bytes)?;
        let kind = RecordKind::from_code(fields.kind).ok_or(FrameMismatch::Field)?;
        let body_start = RECORD_HEADER_BYTES
            + usize::from(fields.primary_bytes.get())
            + usize::from(fields.variant_bytes.get())
            + usize::from(fields.tag_count.get()) * TAG_HASH_BYTES
            + fields.metadata_bytes.get() as usize;
        let bounded = header.length.get() as usize == body_start
            && body_start <= bytes.len()
            && usize::from(fields.tag_count.get()) <= TAGS_MAX;
        let counted = fields.sequence.get() <= COUNTER_MAX && fields.generation.get() <= COUNTER_MAX;
        if !counted || (!bounded && !planted(Bug::RecordBoundUnchecked)) {
            return Err(FrameMismatch::Field);
        }
        Ok(DecodedRecord { fields, kind, body_start })
    }

    /// The record's length without padding, in bytes.
    pub fn bytes(&self) -> usize {
        self.body_start + self.fields.body_bytes.get() as usize
    }

    /// The primary part of the key.
    pub fn primary<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        let start = RECORD_HEADER_BYTES;
        &bytes[start..start + usize::from(self.fields.primary_bytes.get())]
    }

    /// The variant part of the key.
    pub fn variant<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        let start = RECORD_HEADER_BYTES + usize::from(self.fields.primary_bytes.get());
        &bytes[start..start + usize::from(self.fields.variant_bytes.get())]
    }

    /// The hashes of the object's tags.
    pub fn tags<'a>(&self, bytes: &'a [u8]) -> impl Iterator<Item = TagHash> + use<'a> {
        let end = self.metadata_range().start;
        let start = end - usize::from(self.fields.tag_count.get()) * TAG_HASH_BYTES;
        bytes[start..end].as_chunks().0.iter().map(|bytes| TagHash(u64::from_le_bytes(*bytes)))
    }

    /// The range of the metadata in the bytes.
    pub fn metadata_range(&self) -> std::ops::Range<usize> {
        self.body_start - self.fields.metadata_bytes.get() as usize..self.body_start
    }

    /// Whether the body in `bytes` matches its checksum.
    pub fn body_is_whole(&self, bytes: &[u8]) -> bool {
        match bytes.get(self.body_start..self.bytes()) {
            Some(body) => planted(Bug::ChecksumSkipped) || body_checksum(body) == self.fields.body_checksum.get(),
            None => false,
        }
    }
}

/// A decoded header and table of an append.
#[derive(Debug, Clone)]
pub struct DecodedAppend {
    /// The fields after the frame header.
    pub fields: AppendBody,
    /// The entries of its records.
    pub table: Vec<TableEntry>,
}

impl DecodedAppend {
    /// Decodes an append's header and table. `room` is the number of bytes from the start of the append to the end of
    /// the segment.
    ///
    /// *Errors*: [`FrameMismatch::Length`] if `bytes` is too short for the table ([`DecodedAppend::header_bytes`] tells how many
    /// bytes are needed); otherwise the reason why the append is invalid.
    pub fn decode(bytes: &[u8], place: FramePlace, room: u64) -> Result<DecodedAppend, FrameMismatch> {
        DecodedAppend::decode_into(bytes, place, room, Vec::new())
    }

    /// Decodes like [`decode`](Self::decode), but reuses the memory of an earlier table.
    pub fn decode_into(
        bytes: &[u8],
        place: FramePlace,
        room: u64,
        mut table: Vec<TableEntry>,
    ) -> Result<DecodedAppend, FrameMismatch> {
        let header = open(bytes, FrameMagic::Append, place)?;
        let fields: AppendBody = body(bytes)?;
        let count = fields.record_count.get() as usize;
        let table_end = count.checked_mul(TABLE_ENTRY_BYTES).and_then(|table| table.checked_add(APPEND_HEADER_BYTES));
        let append_bytes = u64::from(fields.append_bytes.get());
        let bounded = table_end == Some(header.length.get() as usize)
            && append_bytes >= u64::from(header.length.get())
            && append_bytes <= room
            && append_bytes % BLOCK_BYTES == 0
            && fields.first_sequence.get() <= fields.last_sequence.get()
            && fields.last_sequence.get() <= COUNTER_MAX;
        let Some(table_bytes) = table_end.filter(|_| bounded).and_then(|end| bytes.get(APPEND_HEADER_BYTES..end))
        else {
            return Err(FrameMismatch::Field);
        };
        table.clear();
        table.reserve(count);
        for chunk in table_bytes.chunks_exact(TABLE_ENTRY_BYTES) {
            let entry = TableEntry::read_from_bytes(chunk).map_err(|_| FrameMismatch::Length)?;
            let start = u64::from(entry.start_granules.get()) * GRANULE_BYTES;
            let end = start + u64::from(entry.record_bytes.get());
            let bounded = end <= append_bytes && start >= u64::from(header.length.get());
            let counted = entry.sequence.get() <= COUNTER_MAX && entry.generation.get() <= COUNTER_MAX;
            if !counted || (!bounded && !planted(Bug::AppendBoundUnchecked)) {
                return Err(FrameMismatch::Field);
            }
            table.push(entry);
        }
        Ok(DecodedAppend { fields, table })
    }

    /// The size of the header and table, in bytes, if `bytes` look like an append of this store at `address`; `None` if
    /// they do not, or if the size is larger than `room`.
    pub fn header_bytes(bytes: &[u8], identity: u128, address: u64, room: u64) -> Option<usize> {
        let length = apparent_bytes(bytes, FrameMagic::Append, identity, address)?;
        (APPEND_HEADER_BYTES as u64..=room).contains(&length).then_some(length as usize)
    }
}

#[cfg(test)]
mod tests;
