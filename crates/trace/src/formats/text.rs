//! Plain text, as the programs of the LIRS authors read it: one block number per line; blank lines and lines that begin
//! with `*` are skipped.
//!
//! Owns: reading one number. Sizes and operations are unknown: every reference is a read of 0 bytes.

use super::input::DecompressedInput;
use super::{ReferenceReader, TraceReference, digits};
use crate::error::{Result, quote};

/// A reader of plain text.
pub struct TextReader {
    input: DecompressedInput,
}

impl TextReader {
    /// Reads `input` from its current position.
    pub fn new(input: DecompressedInput) -> TextReader {
        TextReader { input }
    }

    /// Whether the first lines of a file look like this format.
    pub fn is_likely(head: &[u8]) -> bool {
        super::lines_of_head(head).all(|line| digits(line).is_some())
    }
}

impl ReferenceReader for TextReader {
    fn read(&mut self, to: &mut Vec<TraceReference>) -> Result<bool> {
        loop {
            let Some(line) = self.input.line()? else { return Ok(false) };
            let line = line.trim_ascii();
            if line.is_empty() || line[0] == b'*' {
                continue;
            }
            let Some(block) = digits(line) else {
                let found = quote(line);
                return Err(self.input.bad_line("a block number from 0 to 2^64-1", found));
            };
            to.push(TraceReference { block, ..TraceReference::default() });
            return Ok(true);
        }
    }
}
