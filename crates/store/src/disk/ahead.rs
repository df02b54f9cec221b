//! Reading a segment ahead, while the contents of the segments before it are not known yet.
//!
//! Owns: the result of reading ahead, the check whether this result is valid, and the memory that is reused from one
//! read to the next. Leaves to others: reading (`segment`), and which segments are read (`recover`).

use nectary_block::{Buffer, SharedDevice};

use crate::disk::segment::{LoggedRecord, ScanMode, SegmentReader, SegmentScan};
use crate::format::TableEntry;
use crate::format::layout::SpanLayout;

/// Memory for reading a segment, reused for the next segment: the page faults of new memory would take longer than all
/// the other work.
#[derive(Default)]
pub struct ScanMemory {
    records: Vec<LoggedRecord>,
    table: Vec<TableEntry>,
    buffer: Option<Buffer>,
}

/// The contents of a segment from an offset on, read while the earlier segments are not known yet.
pub struct SegmentReadAhead {
    pub epoch: u64,
    pub offset: u64,
    pub care: ScanMode,
    pub records: Vec<LoggedRecord>,
    pub scanned: SegmentScan,
    spare: ScanMemory,
}

impl SegmentReadAhead {
    /// Reads the appends in a segment; only those whose first sequence is above `last_sequence` are accepted.
    pub async fn read(
        device: &SharedDevice,
        layout: &SpanLayout,
        epoch: u64,
        offset: u64,
        last_sequence: u64,
        care: ScanMode,
        spare: ScanMemory,
    ) -> SegmentReadAhead {
        let ScanMemory { mut records, table, buffer } = spare;
        let mut reader = SegmentReader::ahead(device, layout, epoch);
        reader.take_memory(table, buffer);
        let scanned = reader.scan(offset, last_sequence, care, |record| records.push(record)).await;
        let (table, buffer) = reader.into_memory();
        let spare = ScanMemory { records: Vec::new(), table, buffer };
        SegmentReadAhead { epoch, offset, care, records, scanned, spare }
    }

    /// Returns the memory for reuse.
    pub fn into_spare(self) -> ScanMemory {
        let SegmentReadAhead { mut records, spare, .. } = self;
        records.clear();
        ScanMemory { records, ..spare }
    }

    /// Whether the result is valid if `last_sequence` is the last sequence before the segment.
    ///
    /// The first append must have a higher sequence than `last_sequence`; each further append was compared with the
    /// append before it. If anything in the segment is missing or damaged, the result may depend on `last_sequence`, so
    /// it is not valid.
    pub fn holds_after(&self, last_sequence: u64) -> bool {
        let SegmentScan { holes, salvaged, damaged, unreadable, .. } = &self.scanned;
        let clean = holes.is_empty() && *salvaged == 0 && !damaged && !unreadable;
        clean && self.scanned.first_sequence.is_none_or(|first| first > last_sequence)
    }
}
