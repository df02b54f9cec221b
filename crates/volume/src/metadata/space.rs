//! Used and free blocks of the disk.
//!
//! Owns: the table *space*; in memory, the free extents (blocks without a record in *space*), and the set of draining
//! extents.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use super::change::{Result, TableChange, damaged};
use super::records::spaces;
use crate::format::{ExtentState, Mutation, MutationAction, SPACE_START, SpaceRecord, TableKey, TableKind};
use crate::protocol::GrantedSpace;
use crate::tables::MetadataTables;

/// Free extents. *Cost*: each call takes steps in proportion to the extents that it changes, times the logarithm of the
/// number of free extents; undoing costs the same.
#[derive(Debug, Clone)]
pub(super) struct FreeExtents {
    segment_blocks: u64,
    /// Lengths of free extents, by first block.
    extents: BTreeMap<u64, u64>,
    /// Free extents by size, then first block.
    sizes: BTreeSet<(u64, u64)>,
    /// Free extents by the largest piece that can be taken from them without breaking a whole segment, then first
    /// block.
    loose: BTreeSet<(u64, u64)>,
    blocks: u64,
    /// The number of whole aligned segments in free extents.
    segments: u64,
    /// The former state of extents that changed since the last [`keep`](Self::keep): first block and size.
    before: Vec<(u64, Option<u64>)>,
}

/// The parts of a free extent: loose blocks, whole segments, loose blocks.
struct ExtentSplit {
    head: u64,
    segments: u64,
    tail: u64,
}

impl ExtentSplit {
    fn largest_loose(&self) -> u64 {
        self.head.max(self.tail)
    }
}

impl FreeExtents {
    /// Makes a set without free extents.
    pub fn new(segment_blocks: u64) -> FreeExtents {
        FreeExtents {
            segment_blocks,
            extents: BTreeMap::new(),
            sizes: BTreeSet::new(),
            loose: BTreeSet::new(),
            blocks: 0,
            segments: 0,
            before: Vec::new(),
        }
    }

    /// Computes the free extents: all blocks that have no record in *space*.
    pub fn load(tables: &MetadataTables, blocks: u64, segment_blocks: u64) -> Result<FreeExtents> {
        let mut free = FreeExtents::new(segment_blocks);
        let mut at = SPACE_START;
        for (key, value) in tables.table(TableKind::Space) {
            let TableKey::Space(start) = TableKey::decode(TableKind::Space, key).map_err(damaged)? else { continue };
            let space = SpaceRecord::decode(value).map_err(damaged)?;
            if start < at {
                return Err(damaged(format!("space: block {start} is used twice")));
            }
            free.add(at, start - at);
            at = start.saturating_add(space.blocks);
        }
        if at > blocks {
            return Err(damaged("space: an extent is outside of the disk"));
        }
        free.add(at, blocks - at);
        free.keep();
        Ok(free)
    }

    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Returns the number of whole aligned segments that are free.
    pub fn segments(&self) -> u64 {
        self.segments
    }

    /// Returns how many blocks may be taken while `kept` whole segments stay free.
    pub fn blocks_beside(&self, kept: u64) -> u64 {
        self.blocks - kept.min(self.segments) * self.segment_blocks
    }

    fn part(&self, start: u64, count: u64) -> ExtentSplit {
        let size = self.segment_blocks;
        let (first, end) = (start.next_multiple_of(size), (start + count) / size * size);
        match first < end {
            true => ExtentSplit { head: first - start, segments: (end - first) / size, tail: start + count - end },
            false => ExtentSplit { head: count, segments: 0, tail: 0 },
        }
    }

    /// Makes the changes permanent.
    pub fn keep(&mut self) {
        self.before.clear();
    }

    /// Undoes all changes since the last [`keep`](Self::keep).
    pub fn undo(&mut self) {
        for (start, count) in std::mem::take(&mut self.before).into_iter().rev() {
            self.replace(start, count);
        }
    }

    /// Sets the length of the extent at a block; returns the former length.
    fn replace(&mut self, start: u64, count: Option<u64>) -> Option<u64> {
        let old = match count {
            Some(count) => self.extents.insert(start, count),
            None => self.extents.remove(&start),
        };
        if let Some(old) = old {
            let parted = self.part(start, old);
            self.sizes.remove(&(old, start));
            self.loose.remove(&(parted.largest_loose(), start));
            self.segments -= parted.segments;
        }
        if let Some(count) = count {
            let parted = self.part(start, count);
            self.sizes.insert((count, start));
            self.loose.insert((parted.largest_loose(), start));
            self.segments += parted.segments;
        }
        self.blocks = self.blocks - old.unwrap_or(0) + count.unwrap_or(0);
        old
    }

    fn set(&mut self, start: u64, count: Option<u64>) -> Option<u64> {
        let old = self.replace(start, count);
        self.before.push((start, old));
        old
    }

    pub fn add(&mut self, start: u64, blocks: u64) {
        if blocks == 0 {
            return;
        }
        let (mut start, mut blocks) = (start, blocks);
        if let Some((&before, &count)) = self.extents.range(..start).next_back()
            && before + count == start
        {
            self.set(before, None);
            (start, blocks) = (before, blocks + count);
        }
        if self.extents.contains_key(&(start + blocks)) {
            blocks += self.set(start + blocks, None).unwrap_or(0);
        }
        self.set(start, Some(blocks));
    }

    /// Removes a range from one free extent.
    fn cut(&mut self, extent: u64, start: u64, blocks: u64) {
        let Some(count) = self.set(extent, None) else { return };
        if start > extent {
            self.set(extent, Some(start - extent));
        }
        let (end, stop) = (start + blocks, extent + count);
        if stop > end {
            self.set(end, Some(stop - end));
        }
    }

    /// Takes up to `blocks` blocks from one extent: the smallest that is large enough, otherwise the largest. `kept`
    /// whole segments stay free, if at least as many are free now; before less than requested is returned, all other
    /// segments may be broken up.
    pub fn take(&mut self, blocks: u64, kept: u64) -> Option<GrantedSpace> {
        let spare = self.segments.saturating_sub(kept);
        let fits = self.sizes.range((blocks, 0)..).next();
        let &(count, start) = fits.or_else(|| self.sizes.last())?;
        let parted = self.part(start, count);
        let most = if parted.segments <= spare { count } else { parted.head + spare * self.segment_blocks };
        if most >= blocks.min(count) || spare > 0 {
            let blocks = blocks.min(most);
            self.cut(start, start, blocks);
            return Some(GrantedSpace { block: start, blocks });
        }
        let fits = self.loose.range((blocks, 0)..).next();
        let &(piece, extent) = fits.or_else(|| self.loose.last()).filter(|(piece, _)| *piece > 0)?;
        let count = self.extents.get(&extent).copied().unwrap_or(0);
        let start = if self.part(extent, count).head == piece { extent } else { extent + count - piece };
        let blocks = blocks.min(piece);
        self.cut(extent, start, blocks);
        Some(GrantedSpace { block: start, blocks })
    }

    /// Takes an aligned piece of this size from the end of the disk, so that file data stays contiguous.
    pub fn take_aligned(&mut self, size: u64) -> Option<u64> {
        let found = self.sizes.range((size, 0)..).filter_map(|&(count, start)| {
            let at = (start + count).checked_sub(size)? / size * size;
            (at >= start).then_some((at, start))
        });
        let (at, extent) = found.max()?;
        self.cut(extent, at, size);
        Some(at)
    }
}

/// Draining extents, by the append that freed them.
#[derive(Debug, Default)]
pub(super) struct DrainingExtents {
    by_append: BTreeSet<(u64, u64)>,
    /// The append that freed an extent, and its length, by first block.
    by_block: BTreeMap<u64, (u64, u64)>,
    blocks: u64,
}

impl DrainingExtents {
    pub fn load(tables: &MetadataTables) -> Result<DrainingExtents> {
        let mut draining = DrainingExtents::default();
        for (start, space) in spaces(tables)? {
            draining.learn(start, Some(space));
        }
        Ok(draining)
    }

    /// Updates the set after the record of a block changed.
    fn learn(&mut self, start: u64, space: Option<SpaceRecord>) {
        if let Some((append, blocks)) = self.by_block.remove(&start) {
            self.by_append.remove(&(append, start));
            self.blocks -= blocks;
        }
        if let Some(space) = space.filter(|space| space.state == ExtentState::Draining) {
            self.by_block.insert(start, (space.owner, space.blocks));
            self.by_append.insert((space.owner, start));
            self.blocks += space.blocks;
        }
    }

    /// Updates the set after these mutations.
    pub fn learn_all(&mut self, mutations: &[Mutation]) {
        for mutation in mutations.iter().filter(|mutation| mutation.table == TableKind::Space) {
            let Ok(TableKey::Space(start)) = TableKey::decode(TableKind::Space, &mutation.key) else { continue };
            let space = match &mutation.action {
                MutationAction::Put(value) => SpaceRecord::decode(value).ok(),
                MutationAction::Delete => None,
            };
            self.learn(start, space);
        }
    }

    /// Returns the newest append that freed a draining extent.
    pub fn newest(&self) -> Option<u64> {
        self.by_append.last().map(|(append, _)| *append)
    }

    /// Returns the length of all of them. *Units*: blocks.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Whether no extent is draining.
    pub fn is_empty(&self) -> bool {
        self.by_append.is_empty()
    }

    /// Returns up to `count` draining extents that were freed by appends up to `append`.
    pub fn ready(&self, append: u64, count: usize) -> Vec<u64> {
        self.by_append.range(..=(append, u64::MAX)).take(count).map(|(_, start)| *start).collect()
    }
}

fn at(tables: &MetadataTables, key: &[u8], value: &[u8]) -> Result<(u64, SpaceRecord)> {
    let _ = tables;
    match TableKey::decode(TableKind::Space, key).map_err(damaged)? {
        TableKey::Space(start) => Ok((start, SpaceRecord::decode(value).map_err(damaged)?)),
        _ => Err(damaged("space: a key of another table")),
    }
}

impl TableChange<'_> {
    pub(super) fn space_before(&self, block: u64) -> Result<Option<(u64, SpaceRecord)>> {
        let table = self.tables.table(TableKind::Space);
        let range = (Bound::Unbounded, Bound::Excluded(TableKey::Space(block).encode()));
        let found = table.range::<Vec<u8>, _>(range).next_back();
        found.map(|(key, value)| at(self.tables, key, value)).transpose()
    }

    fn put_space(&mut self, start: u64, space: SpaceRecord) {
        self.put(&TableKey::Space(start), space.encode());
    }

    /// Gives a free range a state and an owner in *space*.
    pub fn use_space(&mut self, start: u64, blocks: u64, state: ExtentState, owner: u64, since: u64) -> Result<()> {
        let (mut first, mut count) = (start, blocks);
        let is_like = |space: &SpaceRecord| {
            space.state == state && space.owner == owner && (state != ExtentState::Draining || space.since == since)
        };
        if let Some((before, space)) = self.space_before(start)?
            && before + space.blocks == start
            && is_like(&space)
        {
            (first, count) = (before, count + space.blocks);
        }
        if let Some(value) = self.tables.get(&TableKey::Space(start + blocks)) {
            let space = SpaceRecord::decode(value).map_err(damaged)?;
            if is_like(&space) {
                count += space.blocks;
                self.delete(&TableKey::Space(start + blocks));
            }
        }
        self.put_space(first, SpaceRecord { blocks: count, state, owner, since });
        Ok(())
    }

    /// Removes a range from *space*, if the whole range has this state and owner; returns whether it was removed.
    pub fn unuse_space(&mut self, start: u64, blocks: u64, state: ExtentState, owner: u64) -> Result<bool> {
        let end = start.saturating_add(blocks);
        let mut at_block = start;
        let mut pieces = Vec::new();
        while at_block < end {
            let Some((first, space)) = self.space_before(at_block + 1)? else { return Ok(false) };
            let stop = first + space.blocks;
            if stop <= at_block || space.state != state || space.owner != owner {
                return Ok(false);
            }
            pieces.push((first, space));
            at_block = stop;
        }
        for (first, space) in pieces {
            self.delete(&TableKey::Space(first));
            if first < start {
                self.put_space(first, SpaceRecord { blocks: start - first, ..space });
            }
            let stop = first + space.blocks;
            if stop > end {
                self.put_space(end, SpaceRecord { blocks: stop - end, ..space });
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn undo_restores_free_extents() {
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let mut free = FreeExtents::new(256);
        free.add(1000, 100_000);
        let mut taken: Vec<GrantedSpace> = Vec::new();
        for round in 0..2000 {
            free.keep();
            let state = |free: &FreeExtents| (free.extents.clone(), free.sizes.clone(), free.blocks, free.segments);
            let (before, held) = (state(&free), taken.clone());
            for _ in 0..random(6) {
                match random(3) {
                    0 => {
                        let (kept, segments) = (random(500), free.segments);
                        let granted = free.take(1 + random(300), kept);
                        assert!(free.segments >= kept.min(segments), "round {round}");
                        assert!(granted.is_some() || free.blocks_beside(kept) == 0, "round {round}");
                        taken.extend(granted);
                    }
                    1 => taken.extend(free.take_aligned(256).map(|block| GrantedSpace { block, blocks: 256 })),
                    _ if taken.is_empty() => {}
                    _ => {
                        let given = taken.swap_remove(random(taken.len() as u64) as usize);
                        free.add(given.block, given.blocks);
                    }
                }
            }
            let sum: u64 = taken.iter().map(|granted| granted.blocks).sum();
            assert_eq!(free.blocks + sum, 100_000, "round {round}");
            let by_size: BTreeSet<(u64, u64)> = free.extents.iter().map(|(start, count)| (*count, *start)).collect();
            assert_eq!(by_size, free.sizes, "round {round}");
            let is_whole = |at: &u64| {
                free.extents.range(..=at).next_back().is_some_and(|(start, count)| start + count >= at + 256)
            };
            assert_eq!((0..500).map(|at| at * 256).filter(is_whole).count() as u64, free.segments, "round {round}");
            if random(2) == 0 {
                free.undo();
                taken = held;
                assert_eq!(state(&free), before, "round {round}");
            }
        }
    }

    /// Whole segments are kept, and every loose block beside them is found.
    #[test]
    fn loose_blocks_precede_whole_segments() {
        let mut free = FreeExtents::new(256);
        // The free extents: loose blocks before and behind whole segments, and an extent without a whole segment.
        free.add(200, 56 + 3 * 256 + 7);
        free.add(3000, 300);
        free.add(5 * 1024, 256);
        assert_eq!((free.segments(), free.blocks_beside(9)), (4, 56 + 7 + 300));
        let taken: Vec<GrantedSpace> = std::iter::from_fn(|| free.take(1000, 4)).collect();
        let place = |granted: &GrantedSpace| (granted.block, granted.blocks);
        assert_eq!(taken.iter().map(place).collect::<Vec<_>>(), [(3000, 300), (200, 56), (1024, 7)]);
        assert_eq!((free.segments(), free.blocks_beside(4), free.blocks_beside(3)), (4, 0, 256));
        let piece = free.take(1000, 3).map(|granted| granted.blocks);
        assert_eq!((piece, free.take(1, 3), free.segments()), (Some(256), None, 3));
    }
}
