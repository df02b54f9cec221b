//! Reads: a hit is served from memory, and all readers that miss a block share one read of the source.
//!
//! Promises: a hit copies nothing and takes only the state's mutex; a failed read fails the readers that wait for the
//! block, and does not cache it. Adjacent missing blocks are read together; if that read fails, each block is read
//! separately.

use std::ops::Range;
use std::sync::Arc;

use nectary_block::{AccessStream, Buffer, DeviceErrorKind, DeviceOperation, Error, IoContext};
use tokio::sync::OwnedSemaphorePermit;

use crate::frame::{BlockFrame, PinnedBytes};
use crate::names::id_of;
use crate::planted::{Bug, planted};
use crate::shared::{FileRange, IoTicket, SharedCache};
use crate::source::ByteSource;
use crate::state::{BlockEntry, BlockLoad, CacheState, EntryContent};

/// A block of a read: it is in memory, or it is being loaded.
pub(crate) enum ReadBlock {
    Ready(Arc<BlockFrame>),
    Wait(Arc<BlockLoad>),
}

/// Adjacent blocks that are being read. If the task ends early, the reads of these blocks fail.
pub(crate) struct LoadBatch {
    shared: Arc<SharedCache>,
    source: Arc<dyn ByteSource>,
    first: u64,
    first_id: u64,
    loads: Vec<Arc<BlockLoad>>,
    places: OwnedSemaphorePermit,
}

impl SharedCache {
    /// References and returns all blocks of a range, if all of them are in memory; otherwise does nothing.
    pub(crate) fn hit(
        &self,
        state: &mut CacheState,
        span: &FileRange,
        stream: AccessStream,
    ) -> Option<Vec<PinnedBytes>> {
        let frame = |state: &CacheState, block| state.entries.get(&id_of(span.file, block))?.frame().cloned();
        if span.blocks.end - span.blocks.start == 1 {
            let frame = frame(state, span.blocks.start)?;
            self.refer_ready(state, id_of(span.file, span.blocks.start), &frame, stream);
            return Some(vec![PinnedBytes::new(frame, span.part(span.blocks.start, self.block_bytes))]);
        }
        let frames: Option<Vec<_>> = span.blocks.clone().map(|block| frame(state, block)).collect();
        let pins = frames?.into_iter().zip(span.blocks.clone()).map(|(frame, block)| {
            self.refer_ready(state, id_of(span.file, block), &frame, stream);
            PinnedBytes::new(frame, span.part(block, self.block_bytes))
        });
        Some(pins.collect())
    }

    /// References a block that was in memory when the read began; an earlier reference of the same read may have
    /// evicted it.
    fn refer_ready(&self, state: &mut CacheState, id: u64, frame: &Arc<BlockFrame>, stream: AccessStream) {
        let referred = state.refer(id, stream, false);
        if !referred.is_resident {
            state.settle(id);
        } else if !state.entries.contains_key(&id) {
            state.put(id, frame.clone(), true);
        }
    }

    /// References all blocks of a range, and begins to read the missing blocks into the frames `places`.
    pub(crate) fn begin_read(
        self: &Arc<SharedCache>,
        state: &mut CacheState,
        span: &FileRange,
        stream: AccessStream,
        places: OwnedSemaphorePermit,
    ) -> Vec<ReadBlock> {
        let mut missing = Vec::new();
        let mut slots = Vec::with_capacity((span.blocks.end - span.blocks.start) as usize);
        for block in span.blocks.clone() {
            let id = id_of(span.file, block);
            let slot = match state.entries.get(&id).map(|entry| &entry.content) {
                Some(EntryContent::Ready(frame)) => {
                    let frame = frame.clone();
                    self.refer_ready(state, id, &frame, stream);
                    ReadBlock::Ready(frame)
                }
                Some(EntryContent::Loading(load)) => {
                    let load = load.clone();
                    state.counts.joined += 1;
                    state.refer(id, stream, false);
                    ReadBlock::Wait(load)
                }
                None => {
                    let load = Arc::new(BlockLoad::default());
                    state.entries.insert(id, BlockEntry::new(EntryContent::Loading(load.clone()), false));
                    state.refer(id, stream, false);
                    missing.push((block, load.clone()));
                    ReadBlock::Wait(load)
                }
            };
            slots.push(slot);
        }
        self.begin_loads(state, span, missing, places);
        slots
    }

    /// Begins to read blocks that already have a loading entry; `missing` is in ascending order.
    pub(crate) fn begin_loads(
        self: &Arc<SharedCache>,
        state: &mut CacheState,
        span: &FileRange,
        missing: Vec<(u64, Arc<BlockLoad>)>,
        mut places: OwnedSemaphorePermit,
    ) {
        let mut missing = missing.into_iter().peekable();
        while let Some((first, load)) = missing.next() {
            let mut loads = vec![load];
            while let Some((_, load)) = missing.next_if(|(block, _)| *block == first + loads.len() as u64) {
                loads.push(load);
            }
            let count = loads.len();
            // The caller acquired one frame per block.
            let Some(places) = places.split(count) else { return };
            let first_id = id_of(span.file, first);
            let is_ordered = !planted(Bug::ReadKeptOverWrite);
            let ticket = is_ordered.then(|| IoTicket::draw(self, state, first_id..first_id + count as u64));
            state.counts.source_reads += 1;
            state.counts.source_read_blocks += count as u64;
            let (shared, source) = (self.clone(), span.source.clone());
            let loading = LoadBatch { shared, source, first, first_id, loads, places };
            self.tasks.spawn(async move {
                let mut ticket = ticket;
                if let Some(ticket) = &mut ticket {
                    ticket.granted().await;
                }
                loading.run().await;
            });
        }
    }

    /// Starts readahead for a stream, without waiting.
    pub(crate) fn begin_ahead(self: &Arc<SharedCache>, state: &mut CacheState, span: &FileRange, stream: AccessStream) {
        let blocks = span.source.size_bytes().div_ceil(self.block_bytes as u64);
        let ids = state.read_ahead(span.file, span.blocks.clone(), stream, blocks);
        let mut missing = Vec::new();
        let mut places: Option<OwnedSemaphorePermit> = None;
        for id in ids.filter(|id| *id >> crate::names::BLOCK_BITS == u64::from(span.file)) {
            if state.entries.contains_key(&id) {
                continue;
            }
            let Ok(place) = self.memory.clone().try_acquire_owned() else { break };
            let Some(number) = state.ahead_place() else { break };
            match &mut places {
                Some(places) => places.merge(place),
                None => places = Some(place),
            }
            let load = Arc::new(BlockLoad::default());
            let entry =
                BlockEntry { ahead: Some(number), ..BlockEntry::new(EntryContent::Loading(load.clone()), false) };
            state.entries.insert(id, entry);
            state.ahead_taken(number, id);
            state.counts.ahead_blocks += 1;
            missing.push((crate::names::block_of(id), load));
        }
        if let Some(places) = places {
            self.begin_loads(state, span, missing, places);
        }
    }
}

/// Waits until all blocks of a read are loaded.
pub(crate) async fn collect(
    slots: Vec<ReadBlock>,
    span: FileRange,
    block_bytes: usize,
) -> Result<Vec<PinnedBytes>, Error> {
    let mut pins = Vec::with_capacity(slots.len());
    for (slot, block) in slots.into_iter().zip(span.blocks.clone()) {
        let frame = match slot {
            ReadBlock::Ready(frame) => frame,
            ReadBlock::Wait(load) => load.wait().await?,
        };
        pins.push(PinnedBytes::new(frame, span.part(block, block_bytes)));
    }
    Ok(pins)
}

impl LoadBatch {
    async fn run(mut self) {
        let count = self.loads.len();
        match self.read(0..count).await {
            Ok(buffer) => self.end(0..count, Ok(&buffer)),
            Err(error) if count == 1 => self.end(0..1, Err(error)),
            // Each block is read separately, so that only readers of an unreadable block fail.
            Err(_) => {
                for index in 0..count {
                    match self.read(index..index + 1).await {
                        Ok(buffer) => self.end(index..index + 1, Ok(&buffer)),
                        Err(error) => self.end(index..index + 1, Err(error)),
                    }
                }
            }
        }
    }

    async fn read(&self, part: Range<usize>) -> Result<Buffer, Error> {
        let block = self.shared.block_bytes as u64;
        let offset = (self.first + part.start as u64) * block;
        let wanted = part.len() as u64 * block;
        let length = wanted.min(self.source.size_bytes().saturating_sub(offset));
        if length == 0 {
            return Ok(Buffer::zeroed(0));
        }
        let buffers = vec![Buffer::recycled(length as usize)];
        let buffers = self.source.read_at(offset, buffers, IoContext::default()).await?;
        let lost =
            || Error::new(DeviceErrorKind::Io, &self.source.name(), DeviceOperation::Read, "it gave no buffer back");
        buffers.into_iter().next().ok_or_else(lost)
    }

    /// Ends the reads of the blocks in `part`, with the bytes or the error.
    fn end(&mut self, part: Range<usize>, read: Result<&Buffer, Error>) {
        let block_bytes = self.shared.block_bytes;
        let results: Vec<Result<Arc<BlockFrame>, Error>> = part
            .clone()
            .map(|index| {
                let buffer = read.as_ref().map_err(|error| (*error).clone())?;
                let start = ((index - part.start) * block_bytes).min(buffer.len());
                let end = (start + block_bytes).min(buffer.len());
                Ok(Arc::new(BlockFrame::new(&buffer[start..end], block_bytes, self.places.split(1))))
            })
            .collect();
        let mut state = self.shared.lock();
        for (index, result) in part.clone().zip(&results) {
            state.counts.read_errors += u64::from(result.is_err());
            state.loaded(self.first_id + index as u64, &self.loads[index], result);
        }
        drop(state);
        for (index, result) in part.zip(results) {
            self.loads[index].end(result);
        }
    }
}

impl Drop for LoadBatch {
    fn drop(&mut self) {
        if self.loads.iter().all(|load| load.is_ended()) {
            return;
        }
        let error = Error::new(
            DeviceErrorKind::Io,
            &self.source.name(),
            DeviceOperation::Read,
            "the runtime that read it has ended",
        );
        let mut state = self.shared.lock();
        for (index, load) in self.loads.iter().enumerate().filter(|(_, load)| !load.is_ended()) {
            state.loaded(self.first_id + index as u64, load, &Err(error.clone()));
        }
        drop(state);
        self.loads.iter().for_each(|load| load.end(Err(error.clone())));
    }
}
