//! Builds the list of the mapped and unmapped parts of a range. The list is in order, has no gaps, and has a limited
//! length.

use crate::device::DeviceExtent;

/// The maximum number of extents of one answer. If the range has more, its rest is reported as one mapped extent.
pub const EXTENTS_MAX: usize = 65536;

/// Collects mapped ranges in ascending order and fills the gaps between them.
pub(crate) struct ExtentList {
    extents: Vec<DeviceExtent>,
    position: u64,
    end: u64,
}

impl ExtentList {
    /// Starts the answer for a range.
    pub fn new(offset: u64, length: u64) -> ExtentList {
        ExtentList { extents: Vec::new(), position: offset, end: offset + length }
    }

    /// Adds a mapped range; it must begin at or after the end of the previous one.
    pub fn mapped(&mut self, offset: u64, length: u64) {
        self.push(offset, false);
        self.push(offset + length, true);
    }

    /// Whether the list is full: it then has room for only one more extent, the last one.
    pub fn is_full(&self) -> bool {
        self.extents.len() + 2 >= EXTENTS_MAX
    }

    /// Ends the answer. The rest of the range is reported as unmapped, or as mapped if the list is full.
    pub fn finish(mut self) -> Vec<DeviceExtent> {
        let full = self.is_full();
        self.push(self.end, full);
        self.extents
    }

    fn push(&mut self, until: u64, mapped: bool) {
        let until = until.min(self.end);
        if until <= self.position {
            return;
        }
        let length = until - self.position;
        let full = self.extents.len() + 1 >= EXTENTS_MAX;
        match self.extents.last_mut() {
            Some(last) if last.mapped == mapped => last.length += length,
            Some(last) if full => {
                // A mapped answer is always safe, because it only makes the caller read a range that it could skip.
                last.length += length;
                last.mapped = true;
            }
            _ => self.extents.push(DeviceExtent { offset: self.position, length, mapped }),
        }
        self.position = until;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_filled_and_neighbours_joined() {
        let mut list = ExtentList::new(100, 100);
        list.mapped(100, 10);
        list.mapped(110, 10);
        list.mapped(150, 100);
        let extents: Vec<_> = list.finish().iter().map(|e| (e.offset, e.length, e.mapped)).collect();
        assert_eq!(extents, [(100, 20, true), (120, 30, false), (150, 50, true)]);
    }

    /// The answer covers the whole range with one extent fewer than the limit, at the limit and beyond it.
    #[test]
    fn extents_past_limit_cover_range() {
        for count in [EXTENTS_MAX as u64 / 2 - 1, EXTENTS_MAX as u64 / 2, EXTENTS_MAX as u64] {
            let mut list = ExtentList::new(0, count * 2);
            for index in 0..count {
                list.mapped(index * 2 + 1, 1);
            }
            let extents = list.finish();
            assert!(extents.len() <= EXTENTS_MAX, "{}", extents.len());
            let mut position = 0;
            for extent in &extents {
                assert_eq!(extent.offset, position);
                position += extent.length;
            }
            assert_eq!(position, count * 2);
        }
    }
}
