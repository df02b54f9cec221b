//! libCacheSim's `oracleGeneral`: binary records of 24 bytes without a head.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | time, in seconds |
//! | 4 | 8 | object |
//! | 12 | 4 | size, in bytes |
//! | 16 | 8 | place of the object's next reference in the trace, signed; -1 or the largest number if there is none |
//!
//! Owns: this layout, which is little-endian. Objects count as blocks; all references are reads of one stream. The
//! format has no magic, so only the file's name or `--format` selects it; a next reference below -1 shows that the file
//! has another format.

use super::input::DecompressedInput;
use super::{ReferenceReader, TraceReference};
use crate::error::Result;

/// The size of a record. *Units*: bytes.
pub const RECORD_BYTES: usize = 24;

/// A reader of `oracleGeneral` files.
pub struct OracleGeneral {
    input: DecompressedInput,
}

impl OracleGeneral {
    /// Reads `input` from its current position.
    pub fn new(input: DecompressedInput) -> OracleGeneral {
        OracleGeneral { input }
    }
}

impl ReferenceReader for OracleGeneral {
    fn read(&mut self, to: &mut Vec<TraceReference>) -> Result<bool> {
        let mut record = [0; RECORD_BYTES];
        if !self.input.record(&mut record)? {
            return Ok(false);
        }
        let [_, _, _, _, object @ .., _, _, _, _, _, _, _, _, _, _, _, _] = record;
        let size = [record[12], record[13], record[14], record[15]];
        let mut next = [0; 8];
        next.copy_from_slice(&record[16..]);
        let next = i64::from_le_bytes(next);
        if next < -1 {
            let expected = "a next reference of -1 or more";
            return Err(self.input.bad_record(RECORD_BYTES, expected, next.to_string()));
        }
        to.push(TraceReference {
            block: u64::from_le_bytes(object),
            bytes: u32::from_le_bytes(size),
            time_s: u64::from(u32::from_le_bytes([record[0], record[1], record[2], record[3]])),
            ..TraceReference::default()
        });
        Ok(true)
    }

    fn has_objects(&self) -> bool {
        true
    }

    fn has_times(&self) -> bool {
        true
    }
}
