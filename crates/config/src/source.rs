//! The text of a configuration file, with its name.
//!
//! Owns: the lines of the text, and places in it. Promises: a clone is cheap, and shares the text; a place costs a
//! bounded time, also in a long line.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::place::SourcePosition;

/// After so many bytes the number of characters is remembered.
const STRIDE_BYTES: usize = 1024;

/// A file's name and text. It is not part of what a configuration means, so any two are equal.
#[derive(Clone, Default)]
pub struct ConfigSource {
    inner: Arc<SourceText>,
}

#[derive(Default)]
struct SourceText {
    name: String,
    text: String,
    /// Where each line begins.
    starts: Vec<usize>,
    /// How many characters begin before every so many bytes.
    characters: Vec<usize>,
}

/// Shows the name alone: the text may be long.
impl fmt::Debug for ConfigSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ConfigSource").field(&self.inner.name).finish()
    }
}

impl PartialEq for ConfigSource {
    fn eq(&self, _: &ConfigSource) -> bool {
        true
    }
}

impl Eq for ConfigSource {}

impl ConfigSource {
    /// A text and the name of its file, as messages show it. A byte order mark at the beginning is left out.
    pub fn new(name: &str, text: &str) -> ConfigSource {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1);
        let starts = std::iter::once(0).chain(ends).collect();
        let mut characters = vec![0];
        for part in text.as_bytes().chunks(STRIDE_BYTES) {
            characters.push(characters[characters.len() - 1] + begun(part));
        }
        ConfigSource {
            inner: Arc::new(SourceText { name: name.to_owned(), text: text.to_owned(), starts, characters }),
        }
    }

    /// The name of the file, as messages show it.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// The whole text.
    pub fn text(&self) -> &str {
        &self.inner.text
    }

    /// The text of a line, counted from 1, without its end; empty if there is no such line.
    pub fn line(&self, line: u32) -> &str {
        let Some(index) = (line as usize).checked_sub(1) else { return "" };
        let Some(start) = self.inner.starts.get(index) else { return "" };
        let end = self.inner.starts.get(index + 1).copied().unwrap_or(self.inner.text.len());
        self.inner.text[*start..end].trim_end_matches(['\n', '\r'])
    }

    /// The place of a range of bytes of the text. What is beyond the first line of the range, or beyond the text, is
    /// left out.
    pub fn place(&self, bytes: Range<usize>) -> SourcePosition {
        let start = bytes.start.min(self.inner.text.len());
        let index = self.inner.starts.partition_point(|begin| *begin <= start).saturating_sub(1);
        let line_start = self.inner.starts.get(index).copied().unwrap_or(0);
        let line = bounded(index + 1);
        let line_end = line_start + self.line(line).len();
        let before = self.characters_before(start);
        let width = self.characters_before(bytes.end.min(line_end).max(start)) - before;
        SourcePosition {
            line,
            column: bounded(before - self.characters_before(line_start) + 1),
            width: bounded(width.max(1)),
        }
    }

    /// How many characters begin before a byte.
    fn characters_before(&self, byte: usize) -> usize {
        let index = byte / STRIDE_BYTES;
        let known = self.inner.characters.get(index).copied().unwrap_or(0);
        known + begun(&self.inner.text.as_bytes()[index * STRIDE_BYTES..byte])
    }
}

/// How many characters begin in a part of a text.
fn begun(bytes: &[u8]) -> usize {
    bytes.iter().filter(|byte| **byte & 0xc0 != 0x80).count()
}

fn bounded(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_count_characters() {
        let source = ConfigSource::new("a", "\u{feff}é = 1\r\nab = \"ö\"\n\nc");
        for (range, line, column, width) in [
            (0..2, 1, 1, 1),
            (3..4, 1, 3, 1),
            (8..10, 2, 1, 2),
            (13..99, 2, 6, 3),
            (18..18, 3, 1, 1),
            (19..20, 4, 1, 1),
        ] {
            assert_eq!(source.place(range.clone()), SourcePosition { line, column, width }, "{range:?}");
        }
        assert_eq!(source.place(99..100), SourcePosition { line: 4, column: 2, width: 1 });
        assert_eq!([source.line(0), source.line(1), source.line(3), source.line(9)], ["", "é = 1", "", ""]);
        assert_eq!(ConfigSource::default().place(0..4), SourcePosition { line: 1, column: 1, width: 1 });
    }

    #[test]
    fn long_lines_are_counted_alike() {
        let text = format!("\n{}x", "ä€".repeat(3000));
        let place = ConfigSource::new("a", &text).place(text.len() - 1..text.len());
        assert_eq!(place, SourcePosition { line: 2, column: 6001, width: 1 });
    }
}
