//! Reading segments: append by append, or record by record if an append's header is damaged.
//!
//! Owns: the rules that decide which parts of a segment are valid. In log order, the first sequence of each append is
//! higher than all sequences before it. So bytes that an earlier open wrote, and that a crash cut off from the log, are
//! never mistaken for current ones. A record without its append's header is valid only if its sequence fits between the
//! sequences before and after it. Leaves to others: the exact rule for such records (`alone`), the size of reads
//! (`window`), and the effect of a record on the index.

use nectary_block::{Buffer, SharedDevice};

use crate::disk::alone::{HeaderlessContext, NextAppend};
use crate::disk::window::SegmentWindow;
use crate::format::layout::SpanLayout;
use crate::format::{
    self, BLOCK_BYTES, DecodedAppend, DecodedRecord, FrameMagic, FramePlace, GRANULE_BYTES, HEADER_BYTES, RecordKind,
    TABLE_ENTRY_BYTES, TableEntry, open_count_of,
};
use crate::format::{LogEnd, RecordLocation};
use crate::names::key::{KeyHash, PrimaryHash};
use crate::planted::{Bug, planted};

/// The size of a read if appends are small, in bytes.
const WINDOW_BYTES: u64 = 1 << 20;
/// The size of a read while a store is opened, in bytes. Reads are larger then, because requests wait for the open.
const WINDOW_BYTES_AHEAD: u64 = 4 << 20;
/// The size of a read if appends are large and only their headers are needed, in bytes.
const HEADER_WINDOW_BYTES: u64 = 16 << 10;
/// A segment that begins with so many zeroes was never used.
const BLANK_BYTES: u64 = 16 * BLOCK_BYTES;
/// Appends of at least this many bytes count as large.
const LARGE_APPEND_BYTES: u64 = 128 << 10;

/// A record in the log.
#[derive(Debug, Clone, Copy)]
pub struct LoggedRecord {
    pub hash: KeyHash,
    pub primary_hash: PrimaryHash,
    pub generation: u64,
    pub sequence: u64,
    pub location: RecordLocation,
    /// The length of the record without padding, in bytes.
    pub bytes: u64,
    /// Whether the record is a whole object.
    pub whole: bool,
    /// Whether the record is a fragment.
    pub fragment: bool,
    /// Whether the record was read and found damaged.
    pub damaged: bool,
    /// If the record is the head of a fragmented object and was read: the generation and the number of its fragments.
    pub fragments: Option<(u64, u32)>,
}

/// The thoroughness with which a segment is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScanMode {
    /// Tables are read; only damaged areas are searched for records and later appends.
    Search,
    /// Every record is also read and checked, because the segment may never have been flushed.
    Verify,
}

/// The result of scanning a segment.
#[derive(Debug, Clone, Default)]
pub struct SegmentScan {
    /// Appends read.
    pub appends: u64,
    /// Bytes of the appends read.
    pub append_bytes: u64,
    /// The first sequence of the first append.
    pub first_sequence: Option<u64>,
    /// Records found one by one, without the header of their append.
    pub salvaged: u64,
    /// Whether an append before the end of the log is invalid.
    pub damaged: bool,
    /// Whether a part of the segment cannot be read: it may have appends or records that nothing else shows.
    pub unreadable: bool,
    /// The highest sequence found so far.
    pub last_sequence: u64,
    /// The position where the log continues in this segment, in bytes from the segment's start.
    pub end: u64,
    /// The end of the purge log, as recorded in the appends.
    pub purge_end: LogEnd,
    /// The highest flushed sequence, as recorded in the appends.
    pub flushed_sequence: u64,
    /// For each missing or damaged append: the last sequence before it.
    pub holes: Vec<u64>,
    /// The first append of each open whose appends begin in this segment.
    pub opens: Vec<FirstAppend>,
}

/// The first append after an open. Its flushed sequence is the last sequence that this open recovered.
#[derive(Debug, Clone, Copy)]
pub struct FirstAppend {
    pub first_sequence: u64,
    /// The last sequence before this append.
    pub before: u64,
    pub recovered_sequence: u64,
}

/// Reads one segment.
pub struct SegmentReader<'a> {
    layout: &'a SpanLayout,
    epoch: u64,
    start: u64,
    /// The offset in the segment at which reading ends, in bytes.
    end: u64,
    /// Memory to reuse for the next table.
    table: Vec<TableEntry>,
    window: SegmentWindow<'a>,
    window_bytes_max: u64,
}

impl<'a> SegmentReader<'a> {
    /// Makes a reader of the segment that has, or had, the epoch `epoch`.
    pub fn new(device: &'a SharedDevice, layout: &'a SpanLayout, epoch: u64) -> SegmentReader<'a> {
        let start = layout.segment_start(epoch);
        let end = layout.segment_bytes;
        let window = SegmentWindow::new(device, start..start + end, WINDOW_BYTES);
        SegmentReader { layout, epoch, start, end, table: Vec::new(), window, window_bytes_max: WINDOW_BYTES }
    }

    /// Limits reading to appends that begin before this offset in the segment.
    pub fn until(self, end: u64) -> SegmentReader<'a> {
        SegmentReader { end, ..self }
    }

    /// Makes a reader like [`new`](Self::new), which reads more bytes at once.
    pub fn ahead(device: &'a SharedDevice, layout: &'a SpanLayout, epoch: u64) -> SegmentReader<'a> {
        let window_bytes_max = WINDOW_BYTES_AHEAD;
        SegmentReader { window_bytes_max, ..SegmentReader::new(device, layout, epoch) }
    }

    /// Takes memory to reuse for tables and windows.
    pub(super) fn take_memory(&mut self, table: Vec<TableEntry>, buffer: Option<Buffer>) {
        self.table = table;
        self.window.take_memory(buffer);
    }

    /// Returns the memory of tables and windows, for reuse.
    pub(super) fn into_memory(self) -> (Vec<TableEntry>, Option<Buffer>) {
        (self.table, self.window.into_memory())
    }

    /// Visits every record at or after `offset` whose sequence is above `last_sequence`.
    pub async fn scan(
        &mut self,
        offset: u64,
        last_sequence: u64,
        care: ScanMode,
        mut visit: impl FnMut(LoggedRecord),
    ) -> SegmentScan {
        let mut scanned = SegmentScan { last_sequence, end: offset, ..SegmentScan::default() };
        let mut position = offset;
        // The usual size of the segment's appends is known only after the first one was read.
        self.window.read_bytes = if care == ScanMode::Verify { self.window_bytes_max } else { HEADER_WINDOW_BYTES };
        while position + BLOCK_BYTES <= self.end {
            if let Some(append) = self.append_at(position, scanned.last_sequence).await {
                if !self.visit_append(&append, position, care, &mut visit).await {
                    scanned.holes.push(scanned.last_sequence);
                }
                let (first_sequence, recovered_sequence) =
                    (append.fields.first_sequence.get(), append.fields.flushed_sequence.get());
                if open_count_of(first_sequence) > open_count_of(scanned.last_sequence) {
                    scanned.opens.push(FirstAppend {
                        first_sequence,
                        before: scanned.last_sequence,
                        recovered_sequence,
                    });
                }
                scanned.appends += 1;
                scanned.append_bytes += u64::from(append.fields.append_bytes.get());
                scanned.first_sequence.get_or_insert(append.fields.first_sequence.get());
                scanned.flushed_sequence = scanned.flushed_sequence.max(append.fields.flushed_sequence.get());
                scanned.last_sequence = append.fields.last_sequence.get();
                let purge_end =
                    LogEnd { cycle: append.fields.purge_cycle.get(), blocks: append.fields.purge_blocks.get() };
                scanned.purge_end = scanned.purge_end.max(purge_end);
                let bytes = u64::from(append.fields.append_bytes.get());
                self.window.read_bytes = match care {
                    ScanMode::Verify => self.window_bytes_max,
                    // The next append's table is probably about as long as this one; if so, one read is enough for it.
                    ScanMode::Search if bytes >= LARGE_APPEND_BYTES => {
                        let table_bytes = (append.table.len() * TABLE_ENTRY_BYTES) as u64;
                        HEADER_WINDOW_BYTES + table_bytes / 8 * 9
                    }
                    ScanMode::Search => WINDOW_BYTES,
                };
                self.table = append.table;
                position += bytes;
                scanned.end = position;
                continue;
            }
            self.window.read_bytes = self.window_bytes_max;
            let next = self.next_append(position, scanned.last_sequence).await;
            let stop = next.map_or(self.end, |next| next.offset);
            let alone = HeaderlessContext { last_sequence: scanned.last_sequence, next, begins_segment: position == 0 };
            let found = self.salvage(position..stop, alone, &mut visit).await;
            if next.is_some() || found.count > 0 {
                scanned.holes.push(scanned.last_sequence);
            }
            scanned.salvaged += found.count;
            scanned.damaged |= next.is_some() || found.count > 0;
            if found.count > 0 {
                scanned.last_sequence = scanned.last_sequence.max(found.last_sequence);
                scanned.end = found.end;
                // The open after the crash found the log in this state, and wrote its first append directly after these
                // records. So a gap before the next append means that an append of that open is missing: this is
                // another hole.
                if found.end < stop && next.is_some() {
                    scanned.holes.push(scanned.last_sequence);
                }
            }
            match next {
                Some(next) => position = next.offset,
                None => break,
            }
        }
        scanned.unreadable = self.window.has_failed();
        scanned
    }

    /// Returns the addresses, on the device, of blocks at or after `offset` that look like the beginning of an append
    /// of this epoch.
    pub async fn frames_from(&mut self, offset: u64) -> Vec<u64> {
        let mut found = Vec::new();
        let mut position = offset;
        while position + BLOCK_BYTES <= self.end {
            let place = self.place(position);
            let window = self.window.bytes_at(position, BLOCK_BYTES).await;
            let begins = |bytes: &[u8]| {
                bytes.get(..4) == Some(FrameMagic::Append.bytes().as_slice())
                    && bytes.get(16..32) == Some(place.identity.to_le_bytes().as_slice())
                    && bytes.get(32..40) == Some(place.epoch.to_le_bytes().as_slice())
            };
            if window.is_some_and(begins) {
                found.push(self.start + position);
            }
            position += BLOCK_BYTES;
        }
        found
    }

    /// Returns the epoch of the first append of this segment. If that append is damaged, or is of an earlier cycle than
    /// the requested epoch, returns the newest epoch in the segment: after a crash, the first block may be of the
    /// earlier cycle and a later block of the current one.
    pub async fn find_epoch(&mut self) -> Option<u64> {
        let layout = self.layout;
        let count = layout.segment_count;
        let segment = self.layout.segment_of(self.epoch);
        let mut newest: Option<u64> = None;
        let mut blank = true;
        let mut position = 0;
        // The first read is small, because the header of the first append is enough in most cases.
        self.window.read_bytes = HEADER_WINDOW_BYTES;
        while position + BLOCK_BYTES <= self.layout.segment_bytes {
            let room = self.layout.segment_bytes - position;
            let address = self.start + position;
            let wanted = match self.window.bytes_at(position, BLOCK_BYTES).await {
                Some(bytes) => {
                    blank &= bytes[..BLOCK_BYTES as usize].iter().all(|&byte| byte == 0);
                    DecodedAppend::header_bytes(bytes, layout.identity, address, room)
                }
                // A block that cannot be read is not blank.
                None => {
                    blank = false;
                    None
                }
            };
            if let Some(wanted) = wanted
                && let Some(bytes) = self.window.bytes_at(position, wanted as u64).await
            {
                let header = crate::format::open_unplaced(bytes, FrameMagic::Append).ok();
                let epoch = header.map(|header| header.epoch.get()).unwrap_or(0);
                let place = FramePlace { identity: layout.identity, epoch, address };
                if epoch > 0 && epoch % count == segment && DecodedAppend::decode(bytes, place, room).is_ok() {
                    if position == 0 && epoch >= self.epoch {
                        return Some(epoch);
                    }
                    newest = newest.max(Some(epoch));
                }
            }
            // A segment that was never used is blank. A segment whose first header is damaged is searched to its end,
            // because appends of an earlier cycle may follow.
            if blank && position >= BLANK_BYTES {
                return None;
            }
            self.window.read_bytes = if blank { BLANK_BYTES } else { self.window_bytes_max };
            position += BLOCK_BYTES;
        }
        newest
    }

    /// Returns the flushed sequence in the first append of this segment, if that append is intact and has exactly the
    /// reader's epoch. Everything up to this sequence was flushed before the append was written.
    pub async fn flushed_before(&mut self) -> Option<u64> {
        self.window.read_bytes = HEADER_WINDOW_BYTES;
        let append = self.append_at(0, 0).await?;
        Some(append.fields.flushed_sequence.get())
    }

    /// Whether a part of the segment was requested that cannot be read.
    pub fn has_failed(&self) -> bool {
        self.window.has_failed()
    }

    fn place(&self, position: u64) -> FramePlace {
        FramePlace { identity: self.layout.identity, epoch: self.epoch, address: self.start + position }
    }

    async fn append_at(&mut self, position: u64, last_sequence: u64) -> Option<DecodedAppend> {
        let room = self.layout.segment_bytes - position;
        let place = self.place(position);
        let bytes = self.window.bytes_at(position, BLOCK_BYTES).await?;
        let wanted = DecodedAppend::header_bytes(bytes, place.identity, place.address, room)?;
        let table = std::mem::take(&mut self.table);
        let bytes = self.window.bytes_at(position, wanted as u64).await?;
        let append = DecodedAppend::decode_into(bytes, place, room, table).ok()?;
        let first = append.fields.first_sequence.get();
        let in_order = first > last_sequence || (append.table.is_empty() && first == last_sequence);
        let in_order = in_order || planted(Bug::FormerFrameAccepted);
        in_order.then_some(append)
    }

    async fn next_append(&mut self, position: u64, last_sequence: u64) -> Option<NextAppend> {
        let mut next = position + BLOCK_BYTES;
        while next + BLOCK_BYTES <= self.end {
            if let Some(append) = self.append_at(next, last_sequence).await {
                let (first_sequence, flushed_sequence) =
                    (append.fields.first_sequence.get(), append.fields.flushed_sequence.get());
                return Some(NextAppend { offset: next, first_sequence, flushed_sequence });
            }
            next += BLOCK_BYTES;
        }
        None
    }

    /// Visits the records of an append. Returns false if records were checked and some are damaged.
    async fn visit_append(
        &mut self,
        append: &DecodedAppend,
        position: u64,
        care: ScanMode,
        visit: &mut impl FnMut(LoggedRecord),
    ) -> bool {
        let base = (self.start + position - self.layout.segments_offset) / GRANULE_BYTES;
        let mut whole = true;
        for entry in &append.table {
            let start = u64::from(entry.start_granules.get());
            let bytes = u64::from(entry.record_bytes.get());
            let hash = KeyHash(entry.key_hash.get());
            let mut fragments = None;
            let mut damaged = false;
            if care == ScanMode::Verify {
                match self.whole_record(position + start * GRANULE_BYTES, bytes, entry).await {
                    Some(record) => fragments = fragments_of(&record),
                    None => damaged = true,
                }
            }
            whole &= !damaged;
            visit(LoggedRecord {
                hash,
                primary_hash: PrimaryHash(entry.primary_hash.get()),
                generation: entry.generation.get(),
                sequence: entry.sequence.get(),
                location: RecordLocation::new(base + start, bytes),
                bytes,
                whole: entry.kind == RecordKind::Whole.code(),
                fragment: entry.kind == RecordKind::Fragment.code(),
                damaged,
                fragments,
            });
        }
        whole
    }

    /// Returns the record of an entry of a table, if it is intact. A torn append may leave a record of the same key that
    /// an earlier open wrote at the same place, and that a crash cut off from the log: its sequence is another one.
    async fn whole_record(&mut self, position: u64, length: u64, entry: &TableEntry) -> Option<DecodedRecord> {
        let place = self.place(position);
        let bytes = self.window.bytes_at(position, length).await?;
        let record = DecodedRecord::decode(bytes, place).ok()?;
        let is_it = record.fields.key_hash == entry.key_hash && record.fields.sequence == entry.sequence;
        (is_it && record.body_is_whole(bytes)).then_some(record)
    }

    async fn salvage(
        &mut self,
        range: std::ops::Range<u64>,
        alone: HeaderlessContext,
        visit: &mut impl FnMut(LoggedRecord),
    ) -> SalvageResult {
        let hash_seed = self.layout.hash_seed;
        let mut salvaged = SalvageResult::default();
        let mut position = range.start;
        // Records may be in any order on disk; their sequences order them.
        let mut found: Vec<LoggedRecord> = Vec::new();
        while position + GRANULE_BYTES * 2 < range.end {
            let place = self.place(position);
            let header = self.window.bytes_at(position, HEADER_BYTES as u64).await;
            let Some(length) = header.and_then(|bytes| record_header_bytes(bytes, place)) else {
                position += GRANULE_BYTES;
                continue;
            };
            let room = range.end - position;
            let header = match self.window.bytes_at(position, length.min(room)).await {
                Some(bytes) => DecodedRecord::decode(bytes, place).ok(),
                None => None,
            };
            let bytes = header.map(|record| record.bytes() as u64).filter(|&bytes| bytes <= room);
            let record = match (header, bytes) {
                (Some(record), Some(length)) => match self.window.bytes_at(position, length).await {
                    Some(bytes) if record.body_is_whole(bytes) => {
                        let key = crate::names::key::KeyRef::new(record.primary(bytes), record.variant(bytes));
                        Some((record, crate::names::key::hash_key(hash_seed, key).0))
                    }
                    _ => None,
                },
                _ => None,
            };
            match record {
                Some((record, primary_hash)) if alone.counts(record.fields.sequence.get()) => {
                    let granule = (self.start + position - self.layout.segments_offset) / GRANULE_BYTES;
                    found.push(LoggedRecord {
                        hash: KeyHash(record.fields.key_hash.get()),
                        primary_hash,
                        generation: record.fields.generation.get(),
                        sequence: record.fields.sequence.get(),
                        location: RecordLocation::new(granule, record.bytes() as u64),
                        bytes: record.bytes() as u64,
                        whole: record.kind == RecordKind::Whole,
                        fragment: record.kind == RecordKind::Fragment,
                        damaged: false,
                        fragments: fragments_of(&record),
                    });
                    position += (record.bytes() as u64).next_multiple_of(GRANULE_BYTES);
                    salvaged.end = position.next_multiple_of(BLOCK_BYTES);
                }
                _ => position += GRANULE_BYTES,
            }
        }
        found.sort_by_key(|record| record.sequence);
        salvaged.count = found.len() as u64;
        salvaged.last_sequence = found.last().map_or(0, |record| record.sequence);
        found.into_iter().for_each(visit);
        salvaged
    }
}

#[derive(Default)]
struct SalvageResult {
    count: u64,
    last_sequence: u64,
    end: u64,
}

fn fragments_of(record: &DecodedRecord) -> Option<(u64, u32)> {
    let fields = &record.fields;
    (record.kind == RecordKind::Head).then(|| (fields.fragment_generation.get(), fields.fragment.get()))
}

/// The length of a record up to its body; `None` if `bytes` do not look like a record at this place.
fn record_header_bytes(bytes: &[u8], place: FramePlace) -> Option<u64> {
    let length = format::apparent_bytes(bytes, FrameMagic::Record, place.identity, place.address)?;
    Some(length.max(HEADER_BYTES as u64))
}
