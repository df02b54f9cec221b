//! Queries of a cache: the ranges of a file in memory, and the memory that each stream takes.
//!
//! Owns: these queries. Promises: a query changes no state and counts as no reference.

use hashbrown::HashMap;
use nectary_block::{AccessStream, Error};

use crate::cache::BufferCache;
use crate::names::{FileId, block_of};
use crate::state::CacheState;

/// The largest number of entries that are counted by stream. There is a limit, because the mutex is held during the
/// count.
const COUNTED_MAX: usize = 1 << 20;

/// A range of adjacent blocks that are in the same state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldRange {
    /// The start of the range in the file. *Units*: bytes.
    pub offset: u64,
    /// The length of the range, which ends at the latest at the end of the file. *Units*: bytes.
    pub length: u64,
    /// Whether the range is in memory.
    pub is_cached: bool,
    /// Whether the range is dirty.
    pub is_dirty: bool,
    /// Whether the range is pinned; a pinned block that is not cached is read at its next reference.
    pub is_pinned: bool,
}

/// The parts of a range of a file that are in memory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RangeResidency {
    /// The size of the file. *Units*: bytes.
    pub size_bytes: u64,
    /// The size of the blocks in memory. *Units*: bytes.
    pub cached_bytes: u64,
    /// The size of the dirty blocks. *Units*: bytes.
    pub dirty_bytes: u64,
    /// The size of the dirty blocks whose last write-back failed. *Units*: bytes.
    pub unwritten_bytes: u64,
    /// The size of the pinned blocks, in memory or not. *Units*: bytes.
    pub pinned_bytes: u64,
    /// The size of the blocks that were read ahead and not referenced yet. *Units*: bytes.
    pub ahead_bytes: u64,
    /// The cached or pinned ranges, in order.
    pub ranges: Vec<HeldRange>,
    /// The number of further ranges, which the list leaves out.
    pub ranges_left_out: u64,
}

impl BufferCache {
    /// Finds the parts of a range of a file that are in memory, and lists up to `ranges_max` of them.
    ///
    /// *Errors*: [`ErrorKind::Invalid`](nectary_block::ErrorKind::Invalid) for a file that is not in the cache. *Cost*:
    /// one step per block of the range or of the cache, whichever has fewer, under the mutex.
    pub fn holding(&self, file: FileId, offset: u64, length: u64, ranges_max: usize) -> Result<RangeResidency, Error> {
        let state = self.shared.lock();
        let wanted = self.clipped(&state, file, offset, length)?;
        let size_bytes = state.files.get(&file.0).map_or(0, |file| file.source.size_bytes());
        let block = self.block_bytes() as u64;
        let mut ids = state.present(&wanted);
        ids.extend(state.pins.range(wanted));
        ids.sort_unstable();
        ids.dedup();
        let mut holding = RangeResidency { size_bytes, ..RangeResidency::default() };
        let mut before: Option<(u64, HeldRange)> = None;
        for id in ids {
            let offset = block_of(id) * block;
            let length = block.min(size_bytes.saturating_sub(offset));
            let entry = state.entries.get(&id);
            let is_cached = entry.is_some_and(|entry| entry.frame().is_some());
            let dirty = entry.and_then(|entry| entry.dirty.as_deref());
            let is_pinned = state.pins.contains(&id);
            let add = |to: &mut u64, is_it: bool| *to += if is_it { length } else { 0 };
            add(&mut holding.cached_bytes, is_cached);
            add(&mut holding.dirty_bytes, dirty.is_some());
            add(&mut holding.unwritten_bytes, dirty.is_some_and(|dirty| dirty.failed.is_some()));
            add(&mut holding.pinned_bytes, is_pinned);
            add(&mut holding.ahead_bytes, is_cached && entry.is_some_and(|entry| entry.ahead.is_some()));
            if length == 0 || !(is_cached || is_pinned) {
                continue;
            }
            let one = HeldRange { offset, length, is_cached, is_dirty: dirty.is_some(), is_pinned };
            match &mut before {
                Some((next, range)) if *next == id && range.is_same(&one) => {
                    range.length += length;
                    *next += 1;
                }
                _ => holding.add(before.replace((id + 1, one)), ranges_max),
            }
        }
        holding.add(before, ranges_max);
        Ok(holding)
    }

    /// The memory that each stream takes; a block belongs to the stream of its last reference. *Returns* `None` if the
    /// cache has too many blocks to count them under the mutex. *Units*: bytes.
    pub fn resident_bytes(&self) -> Option<HashMap<AccessStream, u64>> {
        let state = self.shared.lock();
        CacheState::counted(&state, self.block_bytes() as u64)
    }
}

impl HeldRange {
    fn is_same(&self, other: &HeldRange) -> bool {
        (self.is_cached, self.is_dirty, self.is_pinned) == (other.is_cached, other.is_dirty, other.is_pinned)
    }
}

impl RangeResidency {
    fn add(&mut self, range: Option<(u64, HeldRange)>, ranges_max: usize) {
        match range {
            Some((_, range)) if self.ranges.len() < ranges_max => self.ranges.push(range),
            Some(_) => self.ranges_left_out += 1,
            None => {}
        }
    }
}

impl CacheState {
    fn counted(&self, block_bytes: u64) -> Option<HashMap<AccessStream, u64>> {
        if self.entries.len() > COUNTED_MAX {
            return None;
        }
        let mut bytes = HashMap::new();
        for entry in self.entries.values().filter(|entry| entry.frame().is_some()) {
            *bytes.entry(entry.stream).or_insert(0) += block_bytes;
        }
        Some(bytes)
    }
}
