//! Segments that are read before the contents of the segments before them are known.
//!
//! Owns: what such a reading found, whether it holds, and the memory that goes from one to the next. Leaves to others:
//! reading (`segment`), and which segments are read (`recover`).

use nectary_block::{Buffer, SharedDevice};

use crate::disk::segment::{Care, LoggedRecord, Scanned, SegmentReader};
use crate::format::TableEntry;
use crate::format::layout::Layout;

/// Memory that reading a segment takes, to be used again for another: new memory takes longer to fill than all the
/// rest.
#[derive(Default)]
pub struct Spare {
    records: Vec<LoggedRecord>,
    table: Vec<TableEntry>,
    buffer: Option<Buffer>,
}

/// The contents of a segment from an offset on, read before those of the segments before it are known.
pub struct Ahead {
    pub epoch: u64,
    pub offset: u64,
    pub care: Care,
    pub records: Vec<LoggedRecord>,
    pub scanned: Scanned,
    spare: Spare,
}

impl Ahead {
    /// Reads the appends that are there; `last_sequence` is the sequence before them, or higher.
    pub async fn read(
        device: &SharedDevice,
        layout: &Layout,
        epoch: u64,
        offset: u64,
        last_sequence: u64,
        care: Care,
        spare: Spare,
    ) -> Ahead {
        let Spare { mut records, table, buffer } = spare;
        let mut reader = SegmentReader::ahead(device, layout, epoch);
        reader.take_memory(table, buffer);
        let scanned = reader.scan(offset, last_sequence, care, |record| records.push(record)).await;
        let (table, buffer) = reader.into_memory();
        let spare = Spare { records: Vec::new(), table, buffer };
        Ahead { epoch, offset, care, records, scanned, spare }
    }

    /// Gives back the memory that it took.
    pub fn into_spare(self) -> Spare {
        let Ahead { mut records, spare, .. } = self;
        records.clear();
        Spare { records, ..spare }
    }

    /// Whether it would have been read the same had it been known that the sequence before it is `last_sequence`.
    ///
    /// The first append is judged by that sequence; each further one by the append before it. If anything is missing or
    /// damaged, that sequence decides what else is believed.
    pub fn holds_after(&self, last_sequence: u64) -> bool {
        let clean = self.scanned.holes.is_empty() && self.scanned.salvaged == 0 && !self.scanned.damaged;
        clean && self.scanned.first_sequence.is_none_or(|first| first > last_sequence)
    }
}
