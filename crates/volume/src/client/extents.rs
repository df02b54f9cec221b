//! A client's knowledge of where a file's blocks are on the disk.
//!
//! Owns: ranges of blocks and the place of each, without I/O. Promises: ranges never overlap, and adjacent ranges that
//! continue each other are merged. A block that is in no range is unknown (in a map), or not written (among uncommitted
//! data).

use std::collections::BTreeMap;
use std::ops::Range;

/// The place of a range of a file's blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExtentPlace {
    /// No blocks of the disk: the range reads as zeroes.
    Hole,
    /// Blocks of the disk from this one on; they read as zeroes until data is committed to them.
    Unwritten(u64),
    /// Blocks with data, from this block of the disk on.
    Data(u64),
}

impl ExtentPlace {
    /// Returns the place `blocks` blocks further on.
    fn skip(self, blocks: u64) -> ExtentPlace {
        match self {
            ExtentPlace::Hole => ExtentPlace::Hole,
            ExtentPlace::Unwritten(block) => ExtentPlace::Unwritten(block + blocks),
            ExtentPlace::Data(block) => ExtentPlace::Data(block + blocks),
        }
    }
}

/// A part of a range that was looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExtentPiece {
    /// The first block in the file. *Units*: blocks.
    pub start: u64,
    /// The length. *Units*: blocks.
    pub blocks: u64,
    /// The place; `None`: the blocks are in no range.
    pub place: Option<ExtentPlace>,
}

/// Ranges of a file's blocks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FileExtents {
    /// The end and the place of each range, by its first block.
    ranges: BTreeMap<u64, (u64, ExtentPlace)>,
}

impl FileExtents {
    /// Whether there is no range.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns the number of ranges.
    pub fn count(&self) -> usize {
        self.ranges.len()
    }

    /// Returns the number of blocks in ranges that have a place on the disk.
    pub fn blocks(&self) -> u64 {
        let on_disk = self.ranges.iter().filter(|(_, (_, place))| *place != ExtentPlace::Hole);
        on_disk.map(|(start, (end, _))| end - start).sum()
    }

    /// Returns all ranges, in order.
    pub fn iter(&self) -> impl Iterator<Item = ExtentPiece> {
        self.ranges.iter().map(|(&start, &(end, place))| ExtentPiece { start, blocks: end - start, place: Some(place) })
    }

    /// Removes all ranges.
    pub fn clear(&mut self) {
        self.ranges.clear();
    }

    /// Returns the pieces of a range, in order and without gaps.
    pub fn look(&self, range: Range<u64>) -> Vec<ExtentPiece> {
        let mut pieces = Vec::new();
        let mut at = range.start;
        let before = self.ranges.range(..range.start).next_back();
        let further = before.into_iter().chain(self.ranges.range(range.clone()));
        for (&start, &(end, place)) in further {
            if end <= at {
                continue;
            }
            if start > at {
                pieces.push(ExtentPiece { start: at, blocks: start - at, place: None });
                at = start;
            }
            let stop = end.min(range.end);
            pieces.push(ExtentPiece { start: at, blocks: stop - at, place: Some(place.skip(at - start)) });
            at = stop;
        }
        if at < range.end {
            pieces.push(ExtentPiece { start: at, blocks: range.end - at, place: None });
        }
        pieces
    }

    /// Removes a range of blocks.
    pub fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let before = self.ranges.range(..range.start).next_back().map(|(&start, &value)| (start, value));
        if let Some((start, (end, place))) = before.filter(|&(_, (end, _))| end > range.start) {
            self.ranges.insert(start, (range.start, place));
            if end > range.end {
                self.ranges.insert(range.end, (end, place.skip(range.end - start)));
            }
        }
        let inside: Vec<u64> = self.ranges.range(range.clone()).map(|(&start, _)| start).collect();
        for start in inside {
            if let Some((end, place)) = self.ranges.remove(&start).filter(|&(end, _)| end > range.end) {
                self.ranges.insert(range.end, (end, place.skip(range.end - start)));
            }
        }
    }

    /// Sets the place of a range; this replaces what was known about the range.
    pub fn set(&mut self, range: Range<u64>, place: ExtentPlace) {
        if range.is_empty() {
            return;
        }
        self.remove(range.clone());
        let (mut start, mut end, mut place) = (range.start, range.end, place);
        if let Some((&before, &(stop, of_before))) = self.ranges.range(..start).next_back()
            && stop == start
            && of_before.skip(start - before) == place
        {
            (start, place) = (before, of_before);
        }
        if let Some(&(stop, of_next)) = self.ranges.get(&end)
            && place.skip(end - start) == of_next
        {
            self.ranges.remove(&end);
            end = stop;
        }
        self.ranges.insert(start, (end, place));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only ranges that continue each other on the disk are merged.
    #[test]
    fn adjacent_ranges_are_merged() {
        let mut extents = FileExtents::default();
        extents.set(0..4, ExtentPlace::Data(100));
        extents.set(8..12, ExtentPlace::Data(108));
        extents.set(4..8, ExtentPlace::Data(104));
        assert_eq!(
            extents.iter().collect::<Vec<_>>(),
            [ExtentPiece { start: 0, blocks: 12, place: Some(ExtentPlace::Data(100)) }]
        );
        extents.set(12..14, ExtentPlace::Data(300));
        assert_eq!((extents.count(), extents.blocks()), (2, 14));
    }

    #[test]
    fn random_changes_agree_with_an_array() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for round in 0..200 {
            let mut extents = FileExtents::default();
            let mut model = [None; 64];
            for _ in 0..60 {
                let start = random(64);
                let end = start + random(64 - start + 1);
                let place = match random(4) {
                    0 => None,
                    1 => Some(ExtentPlace::Hole),
                    2 => Some(ExtentPlace::Unwritten(1000 + random(8) * 64)),
                    _ => Some(ExtentPlace::Data(1000 + random(8) * 64)),
                };
                match place {
                    None => extents.remove(start..end),
                    Some(place) => extents.set(start..end, place),
                }
                for block in start..end {
                    model[block as usize] = place.map(|place| place.skip(block - start));
                }
                let mut found = Vec::new();
                let (from, to) = (random(32), 32 + random(33));
                for piece in extents.look(from..to) {
                    assert_eq!(piece.start, from + found.len() as u64, "round {round}");
                    found.extend((0..piece.blocks).map(|block| piece.place.map(|place| place.skip(block))));
                }
                assert_eq!(found, model[from as usize..to as usize], "round {round}");
            }
        }
    }
}
