//! The traces of the ARC paper (`.lis`): each line has four numbers, which are the first block of a request, its count
//! of blocks, a number that is ignored, and the number of the request. Blocks have 512 bytes.
//!
//! Owns: the expansion of a request into its blocks. All references are reads of one stream.

use super::input::DecompressedInput;
use super::{BLOCKS_PER_RECORD_MAX, ReferenceReader, TraceReference, digits};
use crate::error::{Result, quote};

const BLOCK_BYTES: u32 = 512;

/// A reader of `.lis` files.
pub struct ArcReader {
    input: DecompressedInput,
}

impl ArcReader {
    /// Reads `input` from its current position.
    pub fn new(input: DecompressedInput) -> ArcReader {
        ArcReader { input }
    }

    /// Whether the first lines of a file look like this format.
    pub fn is_likely(head: &[u8]) -> bool {
        super::lines_of_head(head).all(|line| numbers(line).is_some())
    }
}

impl ReferenceReader for ArcReader {
    fn read(&mut self, to: &mut Vec<TraceReference>) -> Result<bool> {
        loop {
            let Some(line) = self.input.line()? else { return Ok(false) };
            let line = line.trim_ascii();
            if line.is_empty() || line[0] == b'*' {
                continue;
            }
            let Some([first, count, _, _]) = numbers(line) else {
                let found = quote(line);
                return Err(self.input.bad_line("four numbers: first block, count, ignored, request", found));
            };
            if count == 0 || count > BLOCKS_PER_RECORD_MAX || first.checked_add(count).is_none() {
                let expected = format!("a request of 1 to {BLOCKS_PER_RECORD_MAX} blocks below 2^64");
                return Err(self.input.bad_line(expected, format!("{count} blocks from {first}")));
            }
            let reference = |block| TraceReference { block, bytes: BLOCK_BYTES, ..TraceReference::default() };
            to.extend((first..first + count).map(reference));
            return Ok(true);
        }
    }
}

/// The four numbers of a line.
fn numbers(line: &[u8]) -> Option<[u64; 4]> {
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let numbers = [digits(words.next()?)?, digits(words.next()?)?, digits(words.next()?)?, digits(words.next()?)?];
    words.next().is_none().then_some(numbers)
}
