//! Index checkpoints: copies of the index's slots, written alternately to two areas.
//!
//! Owns: writing a checkpoint while the store runs; `stored` reads one, shard by shard. The index changes while its
//! checkpoint is written. So a checkpoint has all changes before its log position, and may also have some of the
//! changes after it. Replaying the log from that position makes the loaded index correct. Each checkpoint has a hot
//! list, if the area has room: the locations of the objects in memory. The hot list is advice (`warm`): damaged parts
//! of it are skipped and counted.

mod stored;
pub mod warm;

use std::sync::Arc;

use nectary_block::{Buffer, write};
use zerocopy::IntoBytes;

use crate::background::BackgroundRuntime;
use crate::counters::Counters;
use crate::disk::span::SpanDisk;
use crate::error::Error;
use crate::format::LogEnd;
use crate::format::{
    self, BLOCK_BYTES, CHUNK_HEADER_BYTES, CheckpointBody, ChunkBody, FrameMagic, FramePlace, HEADER_BYTES,
    INDEX_SHARDS, LogPosition,
};
use crate::index::{ObjectIndex, slots_bytes};
use crate::memory::warm_list::WarmList;
use crate::state::SpanState;
pub(crate) use stored::{CheckpointHeaders, HeldChunks, load_hot, read_headers, read_shard};

/// Size of a chunk on disk, header included, in bytes.
const CHUNK_BYTES: usize = 64 << 10;
/// The largest payload of a chunk, in bytes.
const PAYLOAD_BYTES_MAX: u64 = (CHUNK_BYTES - CHUNK_HEADER_BYTES) as u64;
/// The largest number of object locations in a hot list, and the number of chunks that they take.
const HOT_PLACES_MAX: usize = 1 << 20;
const HOT_CHUNKS_MAX: u64 = (HOT_PLACES_MAX as u64).div_ceil(PAYLOAD_BYTES_MAX / 8);

/// The header of a checkpoint.
#[derive(Debug, Clone, Copy)]
pub struct CheckpointHeader {
    pub number: u64,
    pub position: LogPosition,
    pub last_sequence: u64,
    pub purge_end: LogEnd,
    entry_count: u64,
    chunk_count: u64,
    hot_chunk_count: u64,
    homes: [u32; INDEX_SHARDS],
}

/// The parts of the store from which a checkpoint is made.
#[derive(Clone)]
pub(crate) struct CheckpointSources {
    pub state: Arc<SpanState>,
    /// The objects that warming up still has to read into memory.
    pub warm_list: Arc<WarmList>,
    /// Decides on which thread the hot list is collected from memory.
    pub background: BackgroundRuntime,
}

/// Writes the index as checkpoint `number`, and flushes. Returns the checkpoint's header; `None` if the index does not
/// fit into the area.
///
/// `last_sequence` is the highest sequence before `position`.
pub(crate) async fn write_checkpoint(
    from: &CheckpointSources,
    number: u64,
    position: LogPosition,
    last_sequence: u64,
    purge_end: LogEnd,
) -> Result<Option<CheckpointHeader>, Error> {
    let CheckpointSources { state, .. } = from;
    let SpanDisk { device, layout, counters, .. } = &*state.span;
    let area = layout.checkpoint_offset[(number % 2) as usize];
    let payload = Vec::with_capacity(CHUNK_BYTES);
    let mut writer =
        ChunkWriter { from, number, area, magic: FrameMagic::CheckpointChunk, chunk: 0, offset: BLOCK_BYTES, payload };
    let mut homes = [0; INDEX_SHARDS];
    let entry_count = state.index.len();
    for (shard, homes) in homes.iter_mut().enumerate() {
        let (shard_homes, bytes) = state.index.dump(shard);
        *homes = shard_homes;
        if !writer.add(&bytes).await? {
            return Ok(None);
        }
    }
    if !writer.write_chunk().await? {
        return Ok(None);
    }
    let chunk_count = writer.chunk;
    writer.write_hot().await?;
    let hot_chunk_count = writer.chunk - chunk_count;
    state.flush().await?;
    let body = CheckpointBody {
        number: number.into(),
        position_epoch: position.epoch.into(),
        position_offset: (position.offset as u32).into(),
        chunk_count: (chunk_count as u32).into(),
        entry_count: entry_count.into(),
        last_sequence: last_sequence.into(),
        purge_cycle: purge_end.cycle.into(),
        purge_blocks: purge_end.blocks.into(),
        hot_chunk_count: (hot_chunk_count as u32).into(),
        homes: homes.map(Into::into),
    };
    let mut buffer = Buffer::zeroed(BLOCK_BYTES as usize);
    buffer[HEADER_BYTES..HEADER_BYTES + size_of::<CheckpointBody>()].copy_from_slice(body.as_bytes());
    let place = FramePlace { identity: layout.identity, epoch: number, address: area };
    format::seal(&mut buffer, FrameMagic::CheckpointHeader, place, BLOCK_BYTES as usize);
    write(&**device, area, buffer).await?;
    state.flush().await?;
    Counters::add(&counters.checkpoints, 1);
    let chunks = chunk_count + hot_chunk_count;
    Counters::add(&counters.metadata_bytes, BLOCK_BYTES + chunks * CHUNK_BYTES as u64);
    Ok(Some(CheckpointHeader {
        number,
        position,
        last_sequence,
        purge_end,
        entry_count,
        chunk_count,
        hot_chunk_count,
        homes,
    }))
}

/// Rewrites the hot list of the newest checkpoint from the objects that are in memory now. The list is not flushed,
/// because it is only advice.
pub(crate) async fn rewrite_hot(from: &CheckpointSources, header: &CheckpointHeader) -> Result<(), Error> {
    let (number, area) = (header.number, from.state.span.layout.checkpoint_offset[(header.number % 2) as usize]);
    let (magic, chunk, offset) = (FrameMagic::HotChunk, header.chunk_count, header.hot_offset());
    let mut writer = ChunkWriter { from, number, area, magic, chunk, offset, payload: Vec::new() };
    writer.write_hot().await?;
    Counters::add(&from.state.span.counters.metadata_bytes, (writer.chunk - chunk) * CHUNK_BYTES as u64);
    Ok(())
}

struct ChunkWriter<'a> {
    from: &'a CheckpointSources,
    number: u64,
    area: u64,
    magic: FrameMagic,
    chunk: u64,
    /// The offset of the next chunk in the area, in bytes.
    offset: u64,
    payload: Vec<u8>,
}

impl ChunkWriter<'_> {
    async fn add(&mut self, mut bytes: &[u8]) -> Result<bool, Error> {
        while !bytes.is_empty() {
            let taken = bytes.len().min(CHUNK_BYTES - CHUNK_HEADER_BYTES - self.payload.len());
            self.payload.extend_from_slice(&bytes[..taken]);
            bytes = &bytes[taken..];
            if self.payload.len() == CHUNK_BYTES - CHUNK_HEADER_BYTES && !self.write_chunk().await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes the locations of the objects that are in memory, or that warming up still has to read, as far as the area
    /// has room.
    async fn write_hot(&mut self) -> Result<(), Error> {
        self.magic = FrameMagic::HotChunk;
        // Visiting all entries in memory takes time, and this thread also writes appends. So another thread visits
        // them, if the store may use threads.
        let mut hot = match self.from.background {
            BackgroundRuntime::Caller => self.from.state.memory.hot_places(HOT_PLACES_MAX),
            BackgroundRuntime::Threads => {
                let state = Arc::clone(&self.from.state);
                let places = tokio::task::spawn_blocking(move || state.memory.hot_places(HOT_PLACES_MAX)).await;
                places.map_err(|error| Error::stopped(format!("the hot list cannot be made: {error}")))?
            }
        };
        let room = HOT_PLACES_MAX - hot.len();
        hot.extend(self.from.warm_list.left(room).await);
        for places in hot.chunks((PAYLOAD_BYTES_MAX / 8) as usize) {
            self.payload.extend(places.iter().flat_map(|place| place.packed().to_le_bytes()));
            if !self.write_chunk().await? {
                break;
            }
        }
        Ok(())
    }

    /// Writes the collected payload as a chunk. Returns false if the area has no room for it.
    async fn write_chunk(&mut self) -> Result<bool, Error> {
        let offset = self.offset;
        let length = (CHUNK_HEADER_BYTES + self.payload.len()).next_multiple_of(BLOCK_BYTES as usize);
        if self.payload.is_empty() {
            return Ok(true);
        }
        if offset + length as u64 > self.from.state.span.layout.checkpoint_bytes {
            return Ok(false);
        }
        let mut buffer = Buffer::zeroed(length);
        let body = ChunkBody {
            number: self.chunk.into(),
            payload_bytes: (self.payload.len() as u32).into(),
            reserved: 0.into(),
        };
        buffer[HEADER_BYTES..CHUNK_HEADER_BYTES].copy_from_slice(body.as_bytes());
        let end = CHUNK_HEADER_BYTES + self.payload.len();
        buffer[CHUNK_HEADER_BYTES..end].copy_from_slice(&self.payload);
        let address = self.area + offset;
        let place = FramePlace { identity: self.from.state.span.layout.identity, epoch: self.number, address };
        format::seal(&mut buffer, self.magic, place, end);
        write(&*self.from.state.span.device, address, buffer).await?;
        self.payload.clear();
        self.chunk += 1;
        self.offset += length as u64;
        Ok(true)
    }
}

impl CheckpointHeader {
    /// Whether the checkpoint's shards fit `index`, and the stated number of chunks is the one that these shards need.
    pub fn fits(&self, index: &ObjectIndex) -> bool {
        self.homes.iter().all(|&homes| index.can_have(homes))
            && self.shard_start(INDEX_SHARDS).div_ceil(PAYLOAD_BYTES_MAX) == self.chunk_count
    }

    /// The number of home slots of a shard.
    pub fn homes(&self, shard: usize) -> u32 {
        self.homes[shard]
    }

    /// The number of entries that the header states, but at most the number of slots in the checkpoint.
    pub fn entries(&self) -> u64 {
        self.entry_count.min(self.index_bytes() / 8)
    }

    /// The size of the slots of all shards, in bytes.
    pub fn index_bytes(&self) -> u64 {
        self.shard_start(INDEX_SHARDS)
    }

    /// The size of the slots of a shard, in bytes.
    pub fn slots_bytes(&self, shard: usize) -> usize {
        slots_bytes(self.homes[shard])
    }

    /// The start of the hot list, in bytes from the start of the area.
    fn hot_offset(&self) -> u64 {
        // The last chunk of the index may be shorter.
        let index_bytes = self.index_bytes();
        let whole = index_bytes / PAYLOAD_BYTES_MAX;
        let rest = Some(index_bytes % PAYLOAD_BYTES_MAX).filter(|&rest| rest > 0);
        let rest_bytes = rest.map_or(0, |rest| (CHUNK_HEADER_BYTES as u64 + rest).next_multiple_of(BLOCK_BYTES));
        BLOCK_BYTES + whole * CHUNK_BYTES as u64 + rest_bytes
    }

    /// The offset of a shard's slots in the payloads of all chunks joined together, in bytes.
    fn shard_start(&self, shard: usize) -> u64 {
        self.homes[..shard].iter().map(|&homes| slots_bytes(homes) as u64).sum()
    }
}
