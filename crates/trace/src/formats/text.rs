//! Plain text, as the programs of the LIRS authors read it: one block number per line; blank lines and lines that begin
//! with `*` are skipped.
//!
//! Owns: reading one number. Sizes and operations are unknown: every reference is a read of 0 bytes.

use super::input::Input;
use super::{Reader, Reference, digits};
use crate::error::{Result, quote};

/// A reader of plain text.
pub struct Text {
    input: Input,
}

impl Text {
    /// Reads `input` from its current position.
    pub fn new(input: Input) -> Text {
        Text { input }
    }

    /// Whether the first lines of a file look like this format.
    pub fn is_likely(head: &[u8]) -> bool {
        super::lines_of_head(head).all(|line| digits(line).is_some())
    }
}

impl Reader for Text {
    fn read(&mut self, to: &mut Vec<Reference>) -> Result<bool> {
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
            to.push(Reference { block, ..Reference::default() });
            return Ok(true);
        }
    }
}
