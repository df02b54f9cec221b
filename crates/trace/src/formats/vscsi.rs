//! VSCSI traces, as VMware's vscsiStats and libCacheSim write them: binary records without a head, in two versions.
//!
//! | version 1 | version 2 | bytes | field |
//! |---|---|---|---|
//! | 0 | 4 | 4 | serial number |
//! | 4 | 8 | 4 | length of the request, in bytes |
//! | 8 | 12 | 4 | scatter-gather entries |
//! | 12 | 0 | 2 | SCSI operation |
//! | 14 | 2 | 2 | version, in the upper byte |
//! | 16 | 16 | 8 | first sector, of 512 bytes |
//! | 24 | 24 | 8 | time, in microseconds |
//! | | 32 | 8 | response time (version 2 only) |
//!
//! Owns: this layout, which is little-endian, and the expansion of a request into blocks. Operations that neither read
//! nor write are skipped. There is one stream: the format does not record the origin of a request.

use super::input::DecompressedInput;
use super::{BLOCKS_PER_RECORD_MAX, ReadOptions, ReferenceReader, TraceOperation, TraceReference, blocks_of};
use crate::error::{Error, Result, TracePosition, quote};

const SECTOR_BYTES: u64 = 512;
const RECORD_BYTES: [usize; 2] = [32, 40];
const VERSION_AT: [usize; 2] = [14, 2];

/// A reader of VSCSI files.
pub struct VscsiReader {
    input: DecompressedInput,
    block_bytes: u64,
    /// 0 for version 1, 1 for version 2.
    layout: usize,
}

impl VscsiReader {
    /// Reads `input` from its current position. The first records tell the version.
    ///
    /// *Errors*: the first records have neither version.
    pub fn new(input: DecompressedInput, options: &ReadOptions) -> Result<VscsiReader> {
        let layout = match layout(input.head()) {
            Some(layout) => layout,
            None => {
                let found = quote(&input.head()[..input.head().len().min(16)]);
                let expected = "records of VSCSI version 1 or 2";
                return Err(Error::malformed(input.path(), TracePosition::Offset(0), expected, found));
            }
        };
        Ok(VscsiReader { input, block_bytes: options.block_bytes(), layout })
    }

    /// Whether a file begins with records of this format.
    pub fn is_likely(head: &[u8]) -> bool {
        head.len() >= 2 * RECORD_BYTES[1] && layout(head).is_some()
    }
}

/// The version of the first two records, or of the first record if there is only one.
fn layout(head: &[u8]) -> Option<usize> {
    (0..2).find(|&layout| {
        let mut records = head.chunks_exact(RECORD_BYTES[layout]).take(2).peekable();
        records.peek().is_some() && records.all(|record| version(record, layout) == layout + 1)
    })
}

fn version(record: &[u8], layout: usize) -> usize {
    usize::from(record[VERSION_AT[layout] + 1])
}

impl ReferenceReader for VscsiReader {
    fn read(&mut self, to: &mut Vec<TraceReference>) -> Result<bool> {
        let mut buffer = [0; RECORD_BYTES[1]];
        let record = &mut buffer[..RECORD_BYTES[self.layout]];
        if !self.input.record(record)? {
            return Ok(false);
        }
        let found = version(record, self.layout);
        if found != self.layout + 1 {
            let expected = format!("a record of version {}", self.layout + 1);
            return Err(self.input.bad_record(record.len(), expected, format!("version {found}")));
        }
        let (length_at, operation_at) = if self.layout == 0 { (4, 12) } else { (8, 0) };
        let length = u32::from_le_bytes([0, 1, 2, 3].map(|byte| record[length_at + byte]));
        let operation = u16::from_le_bytes([record[operation_at], record[operation_at + 1]]);
        let long = |at: usize| u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|byte| record[at + byte]));
        let (sector, time_us) = (long(16), long(24));
        let operation = match operation {
            0x08 | 0x28 | 0xa8 | 0x88 => TraceOperation::Read,
            0x0a | 0x2a | 0xaa | 0x8a => TraceOperation::Write,
            _ => return Ok(true),
        };
        if length == 0 {
            return Ok(true);
        }
        let offset = sector.checked_mul(SECTOR_BYTES);
        let blocks = offset.and_then(|offset| blocks_of(offset, length.into(), self.block_bytes));
        let Some((first, count)) = blocks.filter(|blocks| blocks.1 <= BLOCKS_PER_RECORD_MAX) else {
            let expected = format!("a request of at most {BLOCKS_PER_RECORD_MAX} blocks below 2^64 bytes");
            return Err(self.input.bad_record(record.len(), expected, format!("{length} bytes at sector {sector}")));
        };
        let bytes = u32::try_from(self.block_bytes).unwrap_or(u32::MAX);
        let time_s = time_us / 1_000_000;
        let reference = |block| TraceReference { block, bytes, operation, time_s, ..TraceReference::default() };
        to.extend((first..first + count).map(reference));
        Ok(true)
    }

    fn has_times(&self) -> bool {
        true
    }
}
