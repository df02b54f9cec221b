//! Used and free blocks of the disk.
//!
//! Owns: the table *space*, and free extents in memory, which are what is in no record of it.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::change::{Change, Result, damaged};
use crate::format::{ExtentState, Key, SPACE_START, Space, Table};
use crate::protocol::Granted;
use crate::tables::Tables;

/// Free extents, by first block.
#[derive(Debug, Clone, Default)]
pub(super) struct Free {
    extents: BTreeMap<u64, u64>,
    blocks: u64,
}

impl Free {
    /// What no record of *space* has.
    pub fn load(tables: &Tables, blocks: u64) -> Result<Free> {
        let mut free = Free::default();
        let mut at = SPACE_START;
        for (key, value) in tables.table(Table::Space) {
            let Key::Space(start) = Key::decode(Table::Space, key).map_err(damaged)? else { continue };
            let space = Space::decode(value).map_err(damaged)?;
            if start < at {
                return Err(damaged(format!("space: block {start} is used twice")));
            }
            free.add(at, start - at);
            at = start + space.blocks;
        }
        if at > blocks {
            return Err(damaged("space: an extent is outside of the disk"));
        }
        free.add(at, blocks - at);
        Ok(free)
    }

    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    pub fn add(&mut self, start: u64, blocks: u64) {
        if blocks == 0 {
            return;
        }
        self.blocks += blocks;
        let (mut start, mut blocks) = (start, blocks);
        if let Some((&before, &count)) = self.extents.range(..start).next_back()
            && before + count == start
        {
            self.extents.remove(&before);
            (start, blocks) = (before, blocks + count);
        }
        if let Some(count) = self.extents.remove(&(start + blocks)) {
            blocks += count;
        }
        self.extents.insert(start, blocks);
    }

    /// Takes a part of one free extent out.
    fn cut(&mut self, extent: u64, start: u64, blocks: u64) {
        let Some(count) = self.extents.remove(&extent) else { return };
        self.blocks -= blocks;
        if start > extent {
            self.extents.insert(extent, start - extent);
        }
        let (end, stop) = (start + blocks, extent + count);
        if stop > end {
            self.extents.insert(end, stop - end);
        }
    }

    /// Takes up to so many blocks: of the first extent that has them all, else of the largest.
    pub fn take(&mut self, blocks: u64) -> Option<Granted> {
        let fits = self.extents.iter().find(|(_, count)| **count >= blocks);
        let (&start, &count) = fits.or_else(|| self.extents.iter().max_by_key(|(_, count)| **count))?;
        let blocks = blocks.min(count);
        self.cut(start, start, blocks);
        Some(Granted { block: start, blocks })
    }

    /// Takes an aligned piece of this size, from the end of the disk, so that data stays in one piece.
    pub fn take_aligned(&mut self, size: u64) -> Option<u64> {
        let found = self.extents.iter().rev().find_map(|(&start, &count)| {
            let at = (start + count).checked_sub(size)? / size * size;
            (at >= start).then_some((start, at))
        });
        let (extent, at) = found?;
        self.cut(extent, at, size);
        Some(at)
    }
}

fn at(tables: &Tables, key: &[u8], value: &[u8]) -> Result<(u64, Space)> {
    let _ = tables;
    match Key::decode(Table::Space, key).map_err(damaged)? {
        Key::Space(start) => Ok((start, Space::decode(value).map_err(damaged)?)),
        _ => Err(damaged("space: a key of another table")),
    }
}

impl Change<'_> {
    fn space_before(&self, block: u64) -> Result<Option<(u64, Space)>> {
        let table = self.tables.table(Table::Space);
        let range = (Bound::Unbounded, Bound::Excluded(Key::Space(block).encode()));
        let found = table.range::<Vec<u8>, _>(range).next_back();
        found.map(|(key, value)| at(self.tables, key, value)).transpose()
    }

    fn put_space(&mut self, start: u64, space: Space) {
        self.put(&Key::Space(start), space.encode());
    }

    /// Says what a free range is from now on.
    pub fn use_space(&mut self, start: u64, blocks: u64, state: ExtentState, owner: u64, since: u64) -> Result<()> {
        let (mut first, mut count) = (start, blocks);
        let is_like = |space: &Space| {
            space.state == state && space.owner == owner && (state != ExtentState::Draining || space.since == since)
        };
        if let Some((before, space)) = self.space_before(start)?
            && before + space.blocks == start
            && is_like(&space)
        {
            (first, count) = (before, count + space.blocks);
        }
        if let Some(value) = self.tables.get(&Key::Space(start + blocks)) {
            let space = Space::decode(value).map_err(damaged)?;
            if is_like(&space) {
                count += space.blocks;
                self.delete(&Key::Space(start + blocks));
            }
        }
        self.put_space(first, Space { blocks: count, state, owner, since });
        Ok(())
    }

    /// Takes a range out of *space*; all of it must be of this state and owner. Whether it was.
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
            self.delete(&Key::Space(first));
            if first < start {
                self.put_space(first, Space { blocks: start - first, ..space });
            }
            let stop = first + space.blocks;
            if stop > end {
                self.put_space(end, Space { blocks: stop - end, ..space });
            }
        }
        Ok(true)
    }
}
