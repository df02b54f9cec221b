//! Turns a server's extents into the extents of a device. These consist of whole blocks, are in order and without gaps,
//! and are limited in number.

use nectary_block::{DeviceExtent, EXTENTS_MAX};

use crate::wire::{STATE_HOLE, STATE_ZERO};

/// Collects the answers of a server, and records for which range an answer is still missing.
pub(super) struct ExtentList {
    extents: Vec<DeviceExtent>,
    start: u64,
    /// The offset up to which answers have arrived.
    position: u64,
    end: u64,
    block_bytes: u64,
}

impl ExtentList {
    pub fn new(offset: u64, length: u64, block_bytes: u32) -> ExtentList {
        let block_bytes = u64::from(block_bytes);
        ExtentList { extents: Vec::new(), start: offset, position: offset, end: offset + length, block_bytes }
    }

    /// Whether the list has no room for more extents.
    pub fn is_full(&self) -> bool {
        self.extents.len() + 2 >= EXTENTS_MAX
    }

    /// The offset and the length of the range for which an answer is still missing; `None` if no answer is missing.
    pub fn left(&self) -> Option<(u64, u64)> {
        (self.position < self.end).then_some((self.position, self.end - self.position))
    }

    /// Adds an answer, which may cover more or less than the requested range. A partly mapped block counts as mapped.
    pub fn add(&mut self, extents: &[(u64, u32)]) {
        let whole = STATE_HOLE | STATE_ZERO;
        for &(length, flags) in extents {
            let end = self.position.saturating_add(length).min(self.end);
            if flags & whole == whole {
                let end = if end == self.end { end } else { end / self.block_bytes * self.block_bytes };
                self.push(self.position.next_multiple_of(self.block_bytes), true);
                self.push(end, false);
            }
            self.position = end;
            if self.position == self.end || self.is_full() {
                break;
            }
        }
    }

    /// Returns the list, whose last extent gets `padding` more bytes. A range without an answer counts as mapped.
    pub fn finish(mut self, padding: u64) -> Vec<DeviceExtent> {
        self.push(self.end, true);
        if let Some(last) = self.extents.last_mut() {
            last.length += padding;
        }
        self.extents
    }

    /// Extends the list up to the offset `until`, with an extent that is mapped or unmapped.
    fn push(&mut self, until: u64, mapped: bool) {
        let covered = self.covered();
        if until <= covered {
            return;
        }
        match self.extents.last_mut() {
            Some(last) if last.mapped == mapped => last.length += until - covered,
            _ => self.extents.push(DeviceExtent { offset: covered, length: until - covered, mapped }),
        }
    }

    fn covered(&self) -> u64 {
        self.extents.last().map_or(self.start, |last| last.offset + last.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The server's answers may describe less or more than the requested range.
    #[test]
    fn holes_shrink_to_whole_blocks() {
        let hole = STATE_HOLE | STATE_ZERO;
        let mut list = ExtentList::new(4096, 8 * 512, 512);
        assert_eq!(list.left(), Some((4096, 4096)));
        list.add(&[(100, 0), (1500, hole), (200, STATE_ZERO)]);
        assert_eq!(list.left(), Some((4096 + 1800, 4096 - 1800)));
        list.add(&[(248, 0), (1 << 30, hole)]);
        assert_eq!(list.left(), None);
        let found: Vec<_> = list.finish(0).iter().map(|e| (e.offset - 4096, e.length, e.mapped)).collect();
        assert_eq!(found, [(0, 512, true), (512, 1024, false), (1536, 512, true), (2048, 2048, false)]);
    }

    #[test]
    fn what_nobody_answers_is_mapped() {
        let list = ExtentList::new(0, 4096, 512);
        assert_eq!(list.finish(0), [DeviceExtent { offset: 0, length: 4096, mapped: true }]);
        assert_eq!(ExtentList::new(0, 0, 512).finish(0), []);
    }
}
