//! Index checkpoints: copies of the index's slots, written alternately to two areas.
//!
//! Owns: writing a checkpoint while the store runs, and reading one, shard by shard. The index changes while its
//! checkpoint is written. So a checkpoint has all changes before its log position, and may also have some of the
//! changes after it. Replaying the log from that position makes the loaded index correct. Each checkpoint has a hot
//! list, if the area has room: the locations of the objects in memory. The hot list is advice (`warm`): damaged parts
//! of it are skipped and counted.

pub mod warm;

use std::sync::Arc;

use nectary_block::{Buffer, Context, SharedDevice, read, write};
use zerocopy::IntoBytes;

use crate::background::Background;
use crate::counters::Counters;
use crate::disk::span::Span;
use crate::error::Error;
use crate::format::LogEnd;
use crate::format::layout::Layout;
use crate::format::{
    self, BLOCK_BYTES, CHUNK_HEADER_BYTES, COUNTER_MAX, CheckpointBody, ChunkBody, HEADER_BYTES, INDEX_SHARDS,
    LogPosition, Magic, Place,
};
use crate::index::{Index, Slots, slots_bytes};
use crate::memory::hot::HotPlace;
use crate::memory::warm_list::WarmList;
use crate::state::State;

/// Size of a chunk on disk, header included, in bytes.
const CHUNK_BYTES: usize = 64 << 10;
/// The largest payload of a chunk, in bytes.
const PAYLOAD_BYTES_MAX: u64 = (CHUNK_BYTES - CHUNK_HEADER_BYTES) as u64;
/// The number of chunks in one read while a shard is loaded.
const READ_CHUNKS: u64 = 32;
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
pub(crate) struct Checkpoints {
    pub state: Arc<State>,
    /// The objects that warming up still has to read into memory.
    pub warm_list: Arc<WarmList>,
    /// Decides on which thread the hot list is collected from memory.
    pub background: Background,
}

/// Writes the index as checkpoint `number`, and flushes. Returns the checkpoint's header; `None` if the index does not
/// fit into the area.
///
/// `last_sequence` is the highest sequence before `position`.
pub(crate) async fn write_checkpoint(
    from: &Checkpoints,
    number: u64,
    position: LogPosition,
    last_sequence: u64,
    purge_end: LogEnd,
) -> Result<Option<CheckpointHeader>, Error> {
    let Checkpoints { state, .. } = from;
    let Span { device, layout, counters, .. } = &*state.span;
    let area = layout.checkpoint_offset[(number % 2) as usize];
    let payload = Vec::with_capacity(CHUNK_BYTES);
    let mut writer =
        ChunkWriter { from, number, area, magic: Magic::CheckpointChunk, chunk: 0, offset: BLOCK_BYTES, payload };
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
    let place = Place { identity: layout.identity, epoch: number, address: area };
    format::seal(&mut buffer, Magic::CheckpointHeader, place, BLOCK_BYTES as usize);
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
pub(crate) async fn rewrite_hot(from: &Checkpoints, header: &CheckpointHeader) -> Result<(), Error> {
    let (number, area) = (header.number, from.state.span.layout.checkpoint_offset[(header.number % 2) as usize]);
    let (magic, chunk, offset) = (Magic::HotChunk, header.chunk_count, header.hot_offset());
    let mut writer = ChunkWriter { from, number, area, magic, chunk, offset, payload: Vec::new() };
    writer.write_hot().await?;
    Counters::add(&from.state.span.counters.metadata_bytes, (writer.chunk - chunk) * CHUNK_BYTES as u64);
    Ok(())
}

struct ChunkWriter<'a> {
    from: &'a Checkpoints,
    number: u64,
    area: u64,
    magic: Magic,
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
        self.magic = Magic::HotChunk;
        // Visiting all entries in memory takes time, and this thread also writes appends. So another thread visits
        // them, if the store may use threads.
        let mut hot = match self.from.background {
            Background::Caller => self.from.state.memory.hot_places(HOT_PLACES_MAX),
            Background::Threads => {
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
        let place = Place { identity: self.from.state.span.layout.identity, epoch: self.number, address };
        format::seal(&mut buffer, self.magic, place, end);
        write(&*self.from.state.span.device, address, buffer).await?;
        self.payload.clear();
        self.chunk += 1;
        self.offset += length as u64;
        Ok(true)
    }
}

/// The intact headers of the two areas, newest first.
pub(crate) async fn read_headers(device: &SharedDevice, layout: &Layout) -> Vec<CheckpointHeader> {
    let mut headers = Vec::new();
    for (area, &address) in layout.checkpoint_offset.iter().enumerate() {
        let Ok(bytes) = read(&**device, address, BLOCK_BYTES as usize).await else { continue };
        let Ok(frame) = format::open_unplaced(&bytes, Magic::CheckpointHeader) else { continue };
        let number = frame.epoch.get();
        let place = Place { identity: layout.identity, epoch: number, address };
        let Ok(body) = format::open(&bytes, Magic::CheckpointHeader, place).and(format::body::<CheckpointBody>(&bytes))
        else {
            continue;
        };
        let chunk_count = u64::from(body.chunk_count.get());
        let hot_chunk_count = u64::from(body.hot_chunk_count.get());
        let offset = u64::from(body.position_offset.get());
        let bounded = body.number.get() == number
            && number % 2 == area as u64
            && body.last_sequence.get() <= COUNTER_MAX
            && offset <= layout.segment_bytes
            && chunk_count <= (layout.checkpoint_bytes - BLOCK_BYTES).div_ceil(CHUNK_BYTES as u64);
        if bounded {
            headers.push(CheckpointHeader {
                number,
                position: LogPosition { epoch: body.position_epoch.get(), offset },
                last_sequence: body.last_sequence.get(),
                purge_end: LogEnd { cycle: body.purge_cycle.get(), blocks: body.purge_blocks.get() },
                entry_count: body.entry_count.get(),
                chunk_count,
                hot_chunk_count: hot_chunk_count.min(HOT_CHUNKS_MAX),
                homes: body.homes.map(|homes| homes.get()),
            });
        }
    }
    headers.sort_by_key(|header| std::cmp::Reverse(header.number));
    headers
}

impl CheckpointHeader {
    /// Whether the checkpoint's shards fit `index`, and the stated number of chunks is the one that these shards need.
    pub fn fits(&self, index: &Index) -> bool {
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

/// Reads the slots of one shard of a checkpoint. The checkpoint must [fit](CheckpointHeader::fits) the index. Returns
/// `None` if a chunk of the shard is damaged.
///
/// The result is put into `slots`, which must be empty and have enough room. `spare` keeps the read buffer for the next
/// call, because zeroing new memory costs more than the read.
pub(crate) async fn read_shard(
    device: &SharedDevice,
    layout: &Layout,
    header: &CheckpointHeader,
    shard: usize,
    mut slots: Slots,
    spare: &mut Option<Buffer>,
) -> Option<Slots> {
    let area = layout.checkpoint_offset[(header.number % 2) as usize];
    let (start, end) = (header.shard_start(shard), header.shard_start(shard + 1));
    let chunks = start / PAYLOAD_BYTES_MAX..end.div_ceil(PAYLOAD_BYTES_MAX);
    for first in chunks.clone().step_by(READ_CHUNKS as usize) {
        let offset = BLOCK_BYTES + first * CHUNK_BYTES as u64;
        let length = CHUNK_BYTES as u64 * READ_CHUNKS.min(chunks.end - first);
        let length = length.min(layout.checkpoint_bytes.saturating_sub(offset)) as usize;
        let mut buffer = spare.take().unwrap_or_else(|| Buffer::zeroed(READ_CHUNKS as usize * CHUNK_BYTES));
        buffer.set_len(length);
        let read = device.read_at(area + offset, vec![buffer], Context::default()).await;
        let buffer = read.ok().and_then(|mut buffers| buffers.pop())?;
        for (chunk, bytes) in (first..).zip(buffer.chunks(CHUNK_BYTES)) {
            let address = area + BLOCK_BYTES + chunk * CHUNK_BYTES as u64;
            let place = Place { identity: layout.identity, epoch: header.number, address };
            let payload = payload(bytes, Magic::CheckpointChunk, place, chunk)?;
            // All chunks are full except the last one.
            let from = chunk * PAYLOAD_BYTES_MAX;
            let wanted = start.saturating_sub(from) as usize..(end - from).min(PAYLOAD_BYTES_MAX) as usize;
            if !slots.add(payload.get(wanted)?) {
                return None;
            }
        }
        *spare = Some(buffer);
    }
    Some(slots)
}

/// The hot list of a checkpoint, with the most requested objects first, and the number of damaged chunks of the list.
pub(crate) async fn load_hot(
    device: &SharedDevice,
    layout: &Layout,
    header: &CheckpointHeader,
) -> (Vec<HotPlace>, u64) {
    let area = layout.checkpoint_offset[(header.number % 2) as usize];
    let (mut places, mut damaged) = (Vec::new(), 0);
    let hot_offset = header.hot_offset();
    for number in 0..HOT_CHUNKS_MAX {
        let chunk = header.chunk_count + number;
        let offset = hot_offset + number * CHUNK_BYTES as u64;
        let length = (CHUNK_BYTES as u64).min(layout.checkpoint_bytes.saturating_sub(offset));
        let place = Place { identity: layout.identity, epoch: header.number, address: area + offset };
        let payload = match read(&**device, place.address, length as usize).await {
            Ok(frame) => payload(&frame, Magic::HotChunk, place, chunk).map(<[u8]>::to_vec),
            Err(_) => None,
        };
        match payload {
            Some(payload) => places.extend(payload.chunks_exact(8).map(|packed| {
                HotPlace::unpack(u64::from_le_bytes(packed.try_into().expect("chunks are of eight bytes")))
            })),
            None if number < header.hot_chunk_count => damaged += 1,
            // The list may have been rewritten with more chunks than the header says; it ends at the first invalid
            // chunk.
            None => break,
        }
    }
    (places, damaged)
}

/// The payload of a frame, if the frame is chunk number `chunk` and is intact.
fn payload(frame: &[u8], magic: Magic, place: Place, chunk: u64) -> Option<&[u8]> {
    let body = format::open(frame, magic, place).and(format::body::<ChunkBody>(frame)).ok()?;
    let payload = CHUNK_HEADER_BYTES..CHUNK_HEADER_BYTES + body.payload_bytes.get() as usize;
    frame.get(payload).filter(|_| body.number.get() == chunk)
}
