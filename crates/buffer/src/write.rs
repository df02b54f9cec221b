//! Executes writes: into memory, or through to the source.
//!
//! Promises, for each block: a write into memory is atomic, under the mutex. A write-through takes effect when it ends:
//! until then readers see the old bytes, and afterwards they see the new bytes. After a failed write-through, memory
//! has only bytes that the source has, except in dirty blocks.
//!
//! Before a part of a block is written into memory, the whole block is read. A write-through of a part of a block that
//! is not in memory changes only the source.
//!
//! | if a write-through meets | then the write-through |
//! |---|---|
//! | a read, write-back or zeroing of a block that is in flight | waits for its end, by the range lock |
//! | a write into memory during its own I/O | takes effect after that write, as both were in flight |
//! | a dirty block that it covers | leaves the block clean, because the source has all of it |
//! | a dirty block that it covers in part | leaves the block dirty, with the written bytes in it |

use std::ops::Range;
use std::sync::Arc;

use nectary_block::{AccessStream, Buffer, Error, IoContext, WriteFlags};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use crate::frame::BlockFrame;
use crate::names::id_of;
use crate::options::{READ_BLOCKS_MAX, WriteMode};
use crate::planted::{Bug, planted};
use crate::shared::{FileRange, IoTicket, SharedCache};
use crate::state::{BlockEntry, BlockLoad, CacheState, EntryContent};

/// The maximum number of blocks that a write covers only in part: the first and the last.
const PARTS_MAX: usize = 2;

/// The bytes of several buffers, in order.
#[derive(Clone, Copy)]
struct GatherList<'a>(&'a [Buffer]);

impl GatherList<'_> {
    /// Fills `into` with the bytes from `position` on.
    fn copy(self, position: u64, mut into: &mut [u8]) {
        let mut skipped = position as usize;
        for buffer in self.0 {
            let from = &buffer[skipped.min(buffer.len())..];
            skipped = skipped.saturating_sub(buffer.len());
            let count = from.len().min(into.len());
            into[..count].copy_from_slice(&from[..count]);
            into = &mut into[count..];
        }
    }
}

/// Reserved room for blocks that may become dirty. Dropping this value frees the room, and locks the state's mutex, so
/// do not drop it while you hold that mutex.
struct DirtyReservation(Arc<SharedCache>, u64);

impl Drop for DirtyReservation {
    fn drop(&mut self) {
        self.0.lock().dirty_reserved -= self.1;
        self.0.changed.notify_waiters();
    }
}

impl CacheState {
    /// Whether `count` more blocks may become dirty.
    fn has_room(&self, count: u64) -> bool {
        self.dirty.len() as u64 + self.dirty_reserved + count <= self.budget.dirty_max
    }

    /// Changes a part of a block in memory, or creates the block. If a reader holds the current version, a new version
    /// is made.
    pub(crate) fn change(
        &mut self,
        id: u64,
        part: Range<usize>,
        block_bytes: usize,
        place: impl FnOnce() -> Option<OwnedSemaphorePermit>,
        fill: impl FnOnce(&mut [u8]),
    ) {
        let ready = match self.entries.get_mut(&id).map(|entry| &mut entry.content) {
            Some(EntryContent::Ready(frame)) => Some(frame),
            _ => None,
        };
        if let Some(frame) = ready {
            if let Some(frame) = Arc::get_mut(frame) {
                return fill(&mut frame.bytes[part]);
            }
            let mut changed = BlockFrame::new(&frame.bytes, block_bytes, place());
            fill(&mut changed.bytes[part]);
            *frame = Arc::new(changed);
            return;
        }
        let mut made = BlockFrame::new(&[], block_bytes, place());
        fill(&mut made.bytes[part]);
        self.put(id, Arc::new(made), false);
    }
}

impl SharedCache {
    /// Writes into memory at once if this needs no wait; otherwise does nothing and returns `false`.
    pub(crate) fn write_now(
        self: &Arc<SharedCache>,
        state: &mut CacheState,
        span: &FileRange,
        buffers: &[Buffer],
        stream: AccessStream,
    ) -> bool {
        let count = (span.blocks.end - span.blocks.start) as usize;
        if count > READ_BLOCKS_MAX || !state.has_room(count as u64) || !self.parts_are_there(state, span) {
            return false;
        }
        let Ok(mut places) = self.memory.clone().try_acquire_many_owned(count as u32) else { return false };
        self.apply(state, span, GatherList(buffers), 0, stream, &mut places);
        true
    }

    /// Writes into memory, piece by piece; waits for room before each piece.
    pub(crate) async fn write_back(
        self: Arc<SharedCache>,
        span: FileRange,
        buffers: Vec<Buffer>,
        stream: AccessStream,
    ) -> Result<Vec<Buffer>, Error> {
        let block = self.block_bytes as u64;
        let mut first = span.blocks.start;
        while first < span.blocks.end {
            let last = (first + (READ_BLOCKS_MAX - PARTS_MAX) as u64).min(span.blocks.end);
            let start = span.offset.max(first * block);
            let end = (span.offset + span.length).min(last * block);
            let piece = FileRange { offset: start, length: end - start, blocks: first..last, ..span.clone() };
            let position = start - span.offset;
            let Some(_room) = self.room(last - first).await? else {
                // The mode has changed, so the rest goes to the source.
                let mut rest = Buffer::zeroed((span.length - position) as usize);
                GatherList(&buffers).copy(position, &mut rest);
                let (length, blocks) = (span.length - position, first..span.blocks.end);
                let piece = FileRange { offset: start, length, blocks, ..span };
                self.write_through(piece, vec![rest], WriteFlags::default(), stream).await?;
                return Ok(buffers);
            };
            self.write_piece(&piece, GatherList(&buffers), position, stream).await?;
            first = last;
        }
        Ok(buffers)
    }

    /// Waits until there is room for `count` more dirty blocks, and reserves the room. *Returns* `None` if the mode is
    /// no longer write-back.
    async fn room(self: &Arc<SharedCache>, count: u64) -> Result<Option<DirtyReservation>, Error> {
        loop {
            let changed = self.changed.notified();
            {
                let mut state = self.lock();
                if state.mode != WriteMode::WriteBack {
                    return Ok(None);
                }
                if state.has_room(count) {
                    state.dirty_reserved += count;
                    return Ok(Some(DirtyReservation(self.clone(), count)));
                }
                if let Some(error) = &state.write_error {
                    let detail = format!("memory is full of what cannot be written back: {}", error.detail);
                    return Err(Error { detail, ..error.clone() });
                }
                self.ensure_writer(&mut state);
            }
            self.nudge.notify_one();
            changed.await;
        }
    }

    async fn write_piece(
        self: &Arc<SharedCache>,
        piece: &FileRange,
        data: GatherList<'_>,
        position: u64,
        stream: AccessStream,
    ) -> Result<(), Error> {
        loop {
            // The frames for the blocks themselves and the frames for reading partly written blocks are acquired
            // together, so that no second wait is needed.
            let count = (piece.blocks.end - piece.blocks.start) as usize;
            let mut places = self.places(count + PARTS_MAX).await;
            let (loads, held) = {
                let mut state = self.lock();
                if self.parts_are_there(&state, piece) {
                    self.apply(&mut state, piece, data, position, stream, &mut places);
                    return Ok(());
                }
                self.hold_parts(&mut state, piece, &mut places)
            };
            let mut read = Ok(());
            for load in loads {
                read = read.and(load.wait().await.map(drop));
            }
            let mut state = self.lock();
            let is_there = read.is_ok() && self.parts_are_there(&state, piece);
            if is_there {
                self.apply(&mut state, piece, data, position, stream, &mut places);
            }
            for id in held {
                if let Some(entry) = state.entries.get_mut(&id) {
                    entry.holds = entry.holds.saturating_sub(1);
                }
                state.settle(id);
            }
            read?;
            if is_there {
                return Ok(());
            }
        }
    }

    /// The ids of the blocks that are written only in part, each once.
    fn parts(&self, span: &FileRange) -> impl Iterator<Item = u64> + use<> {
        let (first, last) = (span.blocks.start, span.blocks.end.saturating_sub(1));
        let is_part = |block| !span.is_whole(block, &span.part(block, self.block_bytes), self.block_bytes);
        let file = span.file;
        let first_is = is_part(first).then_some(id_of(file, first));
        let last_is = (last != first && is_part(last)).then_some(id_of(file, last));
        first_is.into_iter().chain(last_is)
    }

    fn parts_are_there(&self, state: &CacheState, span: &FileRange) -> bool {
        self.parts(span).all(|id| state.entries.get(&id).is_some_and(|entry| entry.frame().is_some()))
    }

    /// Keeps the partly written blocks in memory, and begins to read those that are missing.
    fn hold_parts(
        self: &Arc<SharedCache>,
        state: &mut CacheState,
        span: &FileRange,
        places: &mut OwnedSemaphorePermit,
    ) -> (Vec<Arc<BlockLoad>>, Vec<u64>) {
        let held: Vec<u64> = self.parts(span).collect();
        let (mut loads, mut missing) = (Vec::new(), Vec::new());
        for &id in &held {
            let entry = state.entries.get_or_insert_with(id, || {
                let load = Arc::new(BlockLoad::default());
                missing.push((crate::names::block_of(id), load.clone()));
                BlockEntry::new(EntryContent::Loading(load), false)
            });
            entry.holds += 1;
            if let EntryContent::Loading(load) = &entry.content {
                loads.push(load.clone());
            }
        }
        if let Some(places) = places.split(missing.len()) {
            self.begin_loads(state, span, missing, places);
        }
        (loads, held)
    }

    /// Applies a write to memory, atomically.
    fn apply(
        self: &Arc<SharedCache>,
        state: &mut CacheState,
        span: &FileRange,
        data: GatherList<'_>,
        position: u64,
        stream: AccessStream,
        places: &mut OwnedSemaphorePermit,
    ) {
        let now = Instant::now();
        // The partly written blocks are held, because a reference to one block may evict another.
        let parts: Vec<u64> = self.parts(span).collect();
        let hold = |state: &mut CacheState, by: i32| {
            for &id in &parts {
                if let Some(entry) = state.entries.get_mut(&id) {
                    entry.holds = entry.holds.saturating_add_signed(by);
                }
            }
        };
        hold(state, 1);
        for block in span.blocks.clone() {
            let (id, part) = (id_of(span.file, block), span.part(block, self.block_bytes));
            let from = position + block * self.block_bytes as u64 + part.start as u64 - span.offset;
            state.change(id, part, self.block_bytes, || places.split(1), |into| data.copy(from, into));
            state.soil(id, stream, now);
            state.refer(id, stream, true);
        }
        hold(state, -1);
        self.ensure_writer(state);
        if 2 * (state.dirty.len() as u64 + state.dirty_reserved) > state.budget.dirty_max {
            self.nudge.notify_one();
        }
    }

    /// Writes to the source, and then writes the same bytes into memory.
    pub(crate) async fn write_through(
        self: Arc<SharedCache>,
        span: FileRange,
        buffers: Vec<Buffer>,
        flags: WriteFlags,
        stream: AccessStream,
    ) -> Result<Vec<Buffer>, Error> {
        let _operation = self.operations.acquire().await;
        let count = (span.blocks.end - span.blocks.start).min(READ_BLOCKS_MAX as u64);
        let mut places = self.places(count as usize).await;
        let is_ordered = !(flags.fua && planted(Bug::ForcedWriteOvertaken));
        let mut ticket = is_ordered.then(|| IoTicket::draw(&self, &mut self.lock(), span.ids()));
        if let Some(ticket) = &mut ticket {
            ticket.granted().await;
        }
        let context = IoContext { stream, deadline: None };
        let written = span.source.write_at(span.offset, buffers, flags, context).await;
        let mut state = self.lock();
        match &written {
            Ok(buffers) => self.apply_written(&mut state, &span, GatherList(buffers), stream, &mut places),
            Err(_) => {
                for id in state.present(&span.ids()) {
                    if state.entries.get(&id).is_some_and(|entry| entry.dirty.is_none() && entry.frame().is_some()) {
                        state.forget(id);
                    }
                }
            }
        }
        drop(state);
        self.changed.notify_waiters();
        written
    }

    /// Updates memory with bytes that the caller has written to the source itself, without waiting. If no memory is
    /// free, the blocks are dropped. Reads of these blocks that are in flight are not used for later reads.
    pub(crate) fn put_written(
        &self,
        state: &mut CacheState,
        span: &FileRange,
        buffers: &[Buffer],
        stream: AccessStream,
    ) {
        let count = span.blocks.end - span.blocks.start;
        let places = u32::try_from(count).ok().filter(|count| *count as usize <= READ_BLOCKS_MAX);
        let places = places.and_then(|count| self.memory.clone().try_acquire_many_owned(count).ok());
        for id in state.present(&span.ids()) {
            let is_ready = state.entries.get(&id).is_some_and(|entry| entry.frame().is_some());
            if places.is_none() || !is_ready {
                state.forget(id);
            }
        }
        if let Some(mut places) = places {
            self.apply_written(state, span, GatherList(buffers), stream, &mut places);
        }
    }

    /// Updates memory with the bytes that the source has now.
    fn apply_written(
        &self,
        state: &mut CacheState,
        span: &FileRange,
        data: GatherList<'_>,
        stream: AccessStream,
        places: &mut OwnedSemaphorePermit,
    ) {
        let ids = span.ids();
        state.counts.written_through += ids.end - ids.start;
        let near = ids.start..ids.end.min(ids.start + READ_BLOCKS_MAX as u64);
        let far = state.present(&(near.end..ids.end));
        for id in near.clone().chain(far) {
            let block = span.blocks.start + (id - ids.start);
            let part = span.part(block, self.block_bytes);
            let is_whole = span.is_whole(block, &part, self.block_bytes);
            let is_there = match state.entries.get(&id).map(|entry| &entry.content) {
                // The block's read comes after this write.
                Some(EntryContent::Loading(_)) => continue,
                Some(EntryContent::Ready(_)) => true,
                None => false,
            };
            if !is_there && (!is_whole || !near.contains(&id)) {
                continue;
            }
            let from = block * self.block_bytes as u64 + part.start as u64 - span.offset;
            state.change(id, part, self.block_bytes, || places.split(1), |into| data.copy(from, into));
            if is_whole {
                state.clean(id);
            }
            state.refer(id, stream, true);
            state.settle(id);
        }
    }
}
