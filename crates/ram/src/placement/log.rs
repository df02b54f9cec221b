//! `parity-log`, `parity-cache` and `adaptive`: blocks are appended to open groups, and old copies die in place.
//!
//! Owns: the table of blocks, the caches, sending blocks, and covering groups by parity. Leaves to others: the table of
//! groups (`rows.rs`), choosing the cache of a write (`streams.rs`), emptying groups (`cleaning.rs`).
//!
//! A written block enters a cache. A full cache is sent as whole groups: first the members, then the parity. After that
//! the older copies of these members are dead. A flush sends the remaining blocks and stores the parity of open groups
//! in their spare slots; later members join these groups.
//!
//! | policy | caches | a cache is sent when it has |
//! |---|---|---|
//! | `parity-log` | one | 1 block; the parity follows after `S` |
//! | `parity-cache` | one | `S` times the column's blocks |
//! | `adaptive` | one for each stream, and one for victims | `S` times the column's blocks |
//!
//! One more cache, the cache of survivors, collects the blocks that cleaning moves, so that old blocks share groups.
//!
//! *Memory*: 4 bytes for each block, 4 for each slot, 10 for each group: 11 bytes for each block at S = 4 and 10 %
//! overflow. A cache holds the data of `S` times the column's blocks.

use std::collections::BTreeMap;
use std::ops::Range;

use super::cache::{OpenGroup, UnsentBlock, UnsentCache};
use super::in_place::{parity_donor, place_of_member};
use super::planted::{PlacementBug, planted};
use super::rows::{GroupTable, NOTHING};
use super::streams::{CacheChoice, WriteStreams};
use super::{
    DonorSlot, Error, MemberSet, NewestLocation, ParityCause, Placement, PlacementMemory, PlacementSettings,
    PlacementStep, RedundancyPolicy, SendCause,
};

/// The number of free groups that writes leave for cleaning, so that cleaning can always continue: it takes a group
/// before it frees one, and its first round may free none.
pub(super) const RESERVE_ROWS: u32 = 3;

/// A placement that appends blocks.
#[derive(Debug)]
pub struct LogPlacement {
    pub(super) layout: PlacementSettings,
    /// The slot of the newest copy that was sent, by block.
    pub(super) slots: Vec<u32>,
    pub(super) rows: GroupTable,
    /// The caches: one for each stream, then one for victims (`adaptive`), and the last one for survivors.
    pub(super) caches: Vec<UnsentCache>,
    /// The blocks in the caches.
    pub(super) waiting: BTreeMap<u32, UnsentBlock>,
    /// Blocks of the present request that are in no cache yet; the driver holds their new data.
    pub(super) arriving: Range<u32>,
    streams: WriteStreams,
    sequence: u64,
}

impl LogPlacement {
    /// Makes an empty device. *Errors*: the layout has too few groups. The layout must be checked before, except for
    /// the number of groups.
    pub(super) fn new(layout: PlacementSettings) -> Result<LogPlacement, Error> {
        let caches = LogPlacement::caches(&layout) as usize;
        let rows = layout.rows();
        // Every cache may have an open group; survivors from up to S groups may be waiting; two groups may be
        // uncovered.
        let spare = RESERVE_ROWS + caches as u32 + u32::from(layout.members) + 6;
        let least = layout.blocks.div_ceil(u32::from(layout.members)) + spare;
        if rows < least {
            return Err(Error::Overflow { rows, members: layout.members, blocks: layout.blocks, least });
        }
        Ok(LogPlacement {
            slots: vec![NOTHING; layout.blocks as usize],
            rows: GroupTable::new(rows, layout.members),
            caches: (0..caches).map(|_| UnsentCache::default()).collect(),
            waiting: BTreeMap::new(),
            streams: WriteStreams::new(layout.stale, layout.members, layout.streams),
            arriving: 0..0,
            sequence: 0,
            layout,
        })
    }

    /// Makes a device whose sealed groups hold these blocks; `None` is a slot that is not needed. All other groups are
    /// free.
    ///
    /// *Errors*: the layout has too few groups. *Panics* if a group, member or block is out of range, or a group or
    /// block occurs twice.
    pub fn restore(
        layout: PlacementSettings,
        groups: impl Iterator<Item = (u32, Vec<Option<u32>>)>,
    ) -> Result<LogPlacement, Error> {
        layout.check()?;
        let mut log = LogPlacement::new(layout)?;
        for (row, owners) in groups {
            assert!(owners.len() == usize::from(log.layout.members) && log.rows.is_free(row), "group {row} comes once");
            log.rows.restore(row, &owners);
            for (member, block) in owners.iter().enumerate() {
                if let Some(block) = block {
                    let slot = log.rows.slot(row, member as u8);
                    let before = std::mem::replace(&mut log.slots[*block as usize], slot);
                    assert_eq!(before, NOTHING, "block {block} is in one group");
                }
            }
        }
        Ok(log)
    }

    /// Returns the number of caches, including that of survivors; each may have an open group.
    pub fn caches(layout: &PlacementSettings) -> u32 {
        match layout.policy {
            RedundancyPolicy::Adaptive => layout.streams as u32 + 2,
            _ => 2,
        }
    }

    /// Whether no slot of a group is needed.
    pub fn is_free(&self, row: u32) -> bool {
        self.rows.is_free(row)
    }

    /// Returns the groups of which no slot is needed, in the order in which they will be opened.
    pub fn next_free(&self) -> impl Iterator<Item = u32> + '_ {
        self.rows.free()
    }

    /// Returns the number of groups of which no slot is needed. With fewer than two, a write may panic.
    pub fn free_groups(&self) -> u32 {
        self.rows.free_count()
    }

    /// Returns the block whose newest copy that was sent is in a slot.
    pub fn owner(&self, row: u32, member: u8) -> Option<u32> {
        let slot = self.rows.slot(row, member);
        self.rows.owner(slot).filter(|block| self.slots[*block as usize] == slot)
    }

    /// Returns the index of the cache of survivors.
    pub(super) fn survivors(&self) -> usize {
        self.caches.len() - 1
    }

    /// Returns the index of the victim cache.
    fn victims(&self) -> usize {
        self.caches.len() - 2
    }

    /// Returns how many blocks a cache holds before it is sent.
    fn capacity(&self, cache: usize) -> usize {
        let group = usize::from(self.layout.members);
        match self.layout.policy {
            _ if cache == self.survivors() => group,
            RedundancyPolicy::ParityLog => 1,
            _ => group * self.layout.column_blocks as usize,
        }
    }

    pub(super) fn place(&self, slot: u32) -> DonorSlot {
        let (row, member) = self.rows.member(slot);
        let member = if member == 1 && planted(PlacementBug::MembersOnOneDonor) { 0 } else { member };
        DonorSlot { donor: place_of_member(row, member, self.layout.donors()), slot: row }
    }

    /// Chooses the cache for a request.
    fn cache_for(&mut self, blocks: &Range<u32>, steps: &mut Vec<PlacementStep>) -> usize {
        if self.layout.policy != RedundancyPolicy::Adaptive {
            return 0;
        }
        match self.streams.choose(blocks) {
            CacheChoice::Continue(cache) => cache,
            CacheChoice::Victims => self.victims(),
            CacheChoice::Replace(cache) => {
                self.spill(cache, steps);
                self.claim(cache, blocks.start);
                cache
            }
        }
    }

    /// Adds a block to a cache, unless it already waits in one.
    fn take(&mut self, block: u32, cache: usize, steps: &mut Vec<PlacementStep>) {
        if let Some(waiting) = self.waiting.get_mut(&block) {
            waiting.is_copy = false;
            return;
        }
        if planted(PlacementBug::SuccessorInMemory) && self.slots[block as usize] != NOTHING {
            self.kill(self.slots[block as usize], steps);
        }
        self.put(block, cache, false);
        self.send_if_full(cache, steps);
    }

    pub(super) fn put(&mut self, block: u32, cache: usize, is_copy: bool) {
        self.caches[cache].unsent.push_back(block);
        self.waiting.insert(block, UnsentBlock { cache, is_copy });
    }

    fn send_if_full(&mut self, cache: usize, steps: &mut Vec<PlacementStep>) {
        if self.caches[cache].unsent.len() < self.capacity(cache) {
            return;
        }
        match self.layout.policy {
            RedundancyPolicy::ParityLog if cache != self.survivors() => {
                self.find_group(cache, steps);
                self.send(cache, 1, steps);
            }
            _ => self.send_whole(cache, steps),
        }
    }

    /// Sends whole groups; blocks that do not fill a group stay.
    pub(super) fn send_whole(&mut self, cache: usize, steps: &mut Vec<PlacementStep>) {
        let members = self.layout.members;
        while self.caches[cache].unsent.len() >= self.caches[cache].room(members) {
            self.find_group(cache, steps);
            let room = self.caches[cache].room(members);
            if self.caches[cache].unsent.len() >= room {
                self.send(cache, room, steps);
            }
        }
    }

    /// Makes sure that a stream cache without an open group finds a free group. This may start cleaning, which may remove blocks
    /// from the cache.
    fn find_group(&mut self, cache: usize, steps: &mut Vec<PlacementStep>) {
        if self.caches[cache].open.is_none() && cache != self.survivors() {
            self.make_room(steps);
        }
    }

    /// Sends up to `count` blocks, but not more than the group accepts, and seals the group if it is then full.
    fn send(&mut self, cache: usize, count: usize, steps: &mut Vec<PlacementStep>) {
        let count = count.min(self.caches[cache].unsent.len());
        if count == 0 {
            return;
        }
        let mut open = self.caches[cache]
            .open
            .take()
            .unwrap_or_else(|| OpenGroup::new(self.rows.take().expect("the reserve has a free group")));
        for _ in 0..count {
            let block = self.caches[cache].unsent.pop_front().expect("counted");
            let is_copy = self.waiting.remove(&block).is_some_and(|waiting| waiting.is_copy);
            let slot = self.rows.slot(open.row, open.filled);
            let old = std::mem::replace(&mut self.slots[block as usize], slot);
            if old != NOTHING {
                open.superseded.push(old);
            }
            self.rows.fill(slot, block);
            self.sequence += 1;
            steps.push(PlacementStep::Send {
                block,
                group: open.row,
                member: open.filled,
                place: self.place(slot),
                sequence: self.sequence,
                cause: if is_copy { SendCause::Cleaning } else { SendCause::Write },
            });
            open.filled += 1;
        }
        if open.filled < self.layout.members {
            self.caches[cache].open = Some(open);
            return;
        }
        self.cover(cache, &mut open, ParityCause::Sealed, steps);
        if self.rows.seal(open.row) {
            steps.push(PlacementStep::Free { group: open.row });
        }
    }

    /// Stores the parity of an open group; after that the older copies of its members are dead.
    fn cover(&mut self, cache: usize, open: &mut OpenGroup, covering: ParityCause, steps: &mut Vec<PlacementStep>) {
        let slot = match covering {
            ParityCause::Sealed => open.row,
            _ => self.layout.rows() + 2 * cache as u32 + u32::from(open.turn),
        };
        let donor = parity_donor(open.row, self.layout.donors());
        let mut members = MemberSet::first(open.filled);
        if planted(PlacementBug::DeadSlotLeftOut) {
            let is_dead = |member: &u8| self.rows.owner(self.rows.slot(open.row, *member)).is_none();
            (0..open.filled).filter(is_dead).for_each(|member| members.0 &= !(1 << member));
        }
        let store = PlacementStep::StoreParity { group: open.row, place: DonorSlot { donor, slot }, members, covering };
        if !planted(PlacementBug::DeadBeforeParity) {
            steps.push(store);
        }
        for slot in std::mem::take(&mut open.superseded) {
            self.kill(slot, steps);
        }
        if planted(PlacementBug::DeadBeforeParity) {
            steps.push(store);
        }
        open.turn = 1 - open.turn;
        open.covered = open.filled;
    }

    /// Stores the parity of every open group with members that no stored parity covers.
    pub(super) fn cover_all(&mut self, covering: ParityCause, steps: &mut Vec<PlacementStep>) {
        for cache in 0..self.caches.len() {
            self.cover_open(cache, covering, steps);
        }
    }

    fn cover_open(&mut self, cache: usize, covering: ParityCause, steps: &mut Vec<PlacementStep>) {
        if let Some(mut open) = self.caches[cache].open.take() {
            if open.covered < open.filled {
                self.cover(cache, &mut open, covering, steps);
            }
            self.caches[cache].open = Some(open);
        }
    }

    pub(super) fn kill(&mut self, slot: u32, steps: &mut Vec<PlacementStep>) {
        if self.rows.kill(slot) {
            steps.push(PlacementStep::Free { group: self.rows.member(slot).0 });
        }
    }

    /// Sends whole groups of a stale stream, and moves its other blocks to the victim cache. If the stream's open group
    /// already has members, blocks from the victim cache fill it up; if these are too few, the next stream does.
    fn spill(&mut self, cache: usize, steps: &mut Vec<PlacementStep>) {
        self.send_whole(cache, steps);
        let victims = self.victims();
        if self.caches[cache].open.is_none() {
            while let Some(block) = self.caches[cache].unsent.pop_front() {
                self.put(block, victims, false);
            }
            return self.send_if_full(victims, steps);
        }
        let lacking = self.caches[cache].room(self.layout.members) - self.caches[cache].unsent.len();
        if lacking <= self.caches[victims].unsent.len() {
            for block in self.caches[victims].unsent.drain(..lacking).collect::<Vec<_>>() {
                self.put(block, cache, false);
            }
            self.send_whole(cache, steps);
        }
    }

    /// Moves the blocks directly before `first` from the victim cache to a new stream's cache.
    fn claim(&mut self, cache: usize, first: u32) {
        let victims = self.victims();
        let is_victim =
            |log: &LogPlacement, block: u32| log.waiting.get(&block).is_some_and(|found| found.cache == victims);
        let mut begin = first;
        while begin > 0 && is_victim(self, begin - 1) {
            begin -= 1;
        }
        for block in begin..first {
            self.caches[victims].remove(block);
            self.put(block, cache, false);
        }
    }

    /// Whether a cache holds written blocks, and not only blocks that cleaning fetched.
    fn is_dirty(&self, cache: usize) -> bool {
        self.caches[cache].unsent.iter().any(|block| self.waiting.get(block).is_some_and(|waiting| !waiting.is_copy))
    }
}

impl Placement for LogPlacement {
    fn layout(&self) -> &PlacementSettings {
        &self.layout
    }

    fn write(&mut self, blocks: Range<u32>, steps: &mut Vec<PlacementStep>) -> Result<(), Error> {
        self.layout.contains(&blocks)?;
        if !blocks.is_empty() {
            self.arriving = blocks.clone();
            let cache = self.cache_for(&blocks, steps);
            while let Some(block) = self.arriving.next() {
                self.take(block, cache, steps);
            }
        }
        Ok(())
    }

    fn trim(&mut self, blocks: Range<u32>, steps: &mut Vec<PlacementStep>) -> Result<(), Error> {
        self.layout.contains(&blocks)?;
        if blocks.is_empty() {
            return Ok(());
        }
        self.sequence += 1;
        if !planted(PlacementBug::TrimNotRecorded) {
            let count = blocks.end - blocks.start;
            steps.push(PlacementStep::Forget { first: blocks.start, count, sequence: self.sequence });
        }
        for block in blocks {
            if let Some(waiting) = self.waiting.remove(&block) {
                self.caches[waiting.cache].remove(block);
            }
            let slot = std::mem::replace(&mut self.slots[block as usize], NOTHING);
            if slot != NOTHING {
                self.kill(slot, steps);
            }
        }
        Ok(())
    }

    fn flush(&mut self, steps: &mut Vec<PlacementStep>) {
        for cache in 0..self.caches.len() {
            if planted(PlacementBug::FlushMissesVictims)
                && self.layout.policy == RedundancyPolicy::Adaptive
                && cache == self.victims()
            {
                continue;
            }
            while self.is_dirty(cache) {
                self.find_group(cache, steps);
                self.send(cache, self.caches[cache].room(self.layout.members), steps);
            }
            self.cover_open(cache, ParityCause::Flush, steps);
        }
    }

    fn locate(&self, block: u32) -> NewestLocation {
        match self.slots[block as usize] {
            _ if self.waiting.contains_key(&block) => NewestLocation::Memory,
            NOTHING => NewestLocation::Unmapped,
            slot => NewestLocation::Slot(self.place(slot)),
        }
    }

    fn memory(&self) -> PlacementMemory {
        let members = usize::from(self.layout.members);
        // For a moment, a stream that takes blocks back, or the cache of survivors, holds up to one group more.
        let blocks: usize = (0..self.caches.len()).map(|cache| self.capacity(cache) + members).sum();
        let caches = self.caches.len() as u64;
        let slots_of_donor = u64::from(self.layout.rows()) + 2 * caches;
        PlacementMemory {
            tables_bytes: self.slots.len() as u64 * size_of::<u32>() as u64 + self.rows.memory_bytes(),
            // Each cache may also have the parity of an open group.
            client_blocks_max: blocks as u64 + caches,
            donor_slots: slots_of_donor * u64::from(self.layout.donors()),
        }
    }
}
