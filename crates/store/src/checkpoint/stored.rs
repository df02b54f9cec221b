//! Reading a checkpoint: its header, its index shard by shard, and its hot list.
//!
//! Owns: how much is read at once. Promises: a chunk that several shards share is read once, if these shards are read in
//! order. Leaves to others: which checkpoint is used, and in which order its shards are loaded (`recover`).

use std::ops::Range;

use nectary_block::{Buffer, IoContext, SharedDevice, read};

use super::{CHUNK_BYTES, CheckpointHeader, HOT_CHUNKS_MAX, PAYLOAD_BYTES_MAX};
use crate::format::layout::SpanLayout;
use crate::format::{
    self, BLOCK_BYTES, CHUNK_HEADER_BYTES, COUNTER_MAX, CheckpointBody, ChunkBody, FrameMagic, FramePlace, LogEnd,
    LogPosition,
};
use crate::index::SlotTable;
use crate::memory::hot::HotPlace;

/// The largest number of chunks in one read while a shard is loaded. A checkpoint that has no more is read at once.
const READ_CHUNKS: u64 = 32;
/// A read for one shard of a larger checkpoint has this many times the chunks of the shard.
const AHEAD_FACTOR: u64 = 4;

/// The headers of the two areas.
pub(crate) struct CheckpointHeaders {
    /// The intact ones, newest first.
    pub intact: Vec<CheckpointHeader>,
    /// No checkpoint on the device has a higher number. The number after it belongs to the area whose header is not
    /// intact, if there is one.
    pub number: u64,
}

/// Reads the headers of the two areas.
pub(crate) async fn read_headers(device: &SharedDevice, layout: &SpanLayout) -> CheckpointHeaders {
    let (mut intact, mut has_broken) = (Vec::new(), false);
    for (area, &address) in layout.checkpoint_offset.iter().enumerate() {
        let bytes = read(&**device, address, BLOCK_BYTES as usize).await.ok();
        let header = bytes.as_ref().and_then(|bytes| decode_header(bytes, layout, area, address));
        // A header that cannot be read may be intact.
        has_broken |= header.is_none() && bytes.is_none_or(|bytes| bytes.iter().any(|&byte| byte != 0));
        intact.extend(header);
    }
    intact.sort_by_key(|header| std::cmp::Reverse(header.number));
    // The numbers of the two areas differ by one. The number of a broken header may be the higher one: it is skipped, and
    // no chunk of that checkpoint can be mistaken for one of the next checkpoint.
    let number = intact.first().map_or(0, |header| header.number) + if has_broken { 2 } else { 0 };
    CheckpointHeaders { intact, number }
}

fn decode_header(bytes: &[u8], layout: &SpanLayout, area: usize, address: u64) -> Option<CheckpointHeader> {
    let number = format::open_unplaced(bytes, FrameMagic::CheckpointHeader).ok()?.epoch.get();
    let place = FramePlace { identity: layout.identity, epoch: number, address };
    let body =
        format::open(bytes, FrameMagic::CheckpointHeader, place).and(format::body::<CheckpointBody>(bytes)).ok()?;
    let chunk_count = u64::from(body.chunk_count.get());
    let hot_chunk_count = u64::from(body.hot_chunk_count.get());
    let offset = u64::from(body.position_offset.get());
    let bounded = body.number.get() == number
        && number % 2 == area as u64
        && body.last_sequence.get() <= COUNTER_MAX
        && offset <= layout.segment_bytes
        && chunk_count <= (layout.checkpoint_bytes - BLOCK_BYTES).div_ceil(CHUNK_BYTES as u64);
    bounded.then(|| CheckpointHeader {
        number,
        position: LogPosition { epoch: body.position_epoch.get(), offset },
        last_sequence: body.last_sequence.get(),
        purge_end: LogEnd { cycle: body.purge_cycle.get(), blocks: body.purge_blocks.get() },
        entry_count: body.entry_count.get(),
        chunk_count,
        hot_chunk_count: hot_chunk_count.min(HOT_CHUNKS_MAX),
        homes: body.homes.map(|homes| homes.get()),
    })
}

/// Chunks in a row that were read at once.
pub(crate) struct HeldChunks {
    /// The number of the checkpoint, and that of the first chunk.
    place: (u64, u64),
    buffer: Buffer,
}

impl HeldChunks {
    /// The bytes of some chunks, if all of them are here.
    fn get(&self, number: u64, chunks: &Range<u64>) -> Option<&[u8]> {
        let (held, first) = self.place;
        if held != number || first > chunks.start {
            return None;
        }
        let start = (chunks.start - first) as usize * CHUNK_BYTES;
        let end = (chunks.end - first) as usize * CHUNK_BYTES;
        // The last chunk of an area may be shorter.
        let whole = end <= self.buffer.len().next_multiple_of(CHUNK_BYTES);
        self.buffer.get(start..end.min(self.buffer.len())).filter(|_| whole)
    }
}

/// The number of chunks to read at once, of which `needed` are needed now and `left` are there: shards that follow are
/// probably needed next, so many small ones are read at once.
fn chunks_at_once(header: &CheckpointHeader, needed: u64, left: u64) -> u64 {
    let wanted = if header.chunk_count <= READ_CHUNKS { READ_CHUNKS } else { (needed * AHEAD_FACTOR).min(READ_CHUNKS) };
    wanted.min(left).max(needed)
}

/// Reads the slots of one shard of a checkpoint. The checkpoint must [fit](CheckpointHeader::fits) the index. Returns
/// `None` if a chunk of the shard is damaged.
///
/// The result is put into `slots`, which must be empty and have enough room. `held` keeps what was read for the next
/// call: shards share chunks, and zeroing new memory costs more than a read.
pub(crate) async fn read_shard(
    device: &SharedDevice,
    layout: &SpanLayout,
    header: &CheckpointHeader,
    shard: usize,
    mut slots: SlotTable,
    held: &mut Option<HeldChunks>,
) -> Option<SlotTable> {
    let area = layout.checkpoint_offset[(header.number % 2) as usize];
    let (start, end) = (header.shard_start(shard), header.shard_start(shard + 1));
    let chunks = start / PAYLOAD_BYTES_MAX..end.div_ceil(PAYLOAD_BYTES_MAX);
    for first in chunks.clone().step_by(READ_CHUNKS as usize) {
        let needed = first..(first + READ_CHUNKS).min(chunks.end);
        if held.as_ref().and_then(|held| held.get(header.number, &needed)).is_none() {
            let at_once = chunks_at_once(header, needed.end - first, header.chunk_count.saturating_sub(first));
            let ahead = first..first + at_once;
            *held = Some(match read_chunks(device, layout, header, &ahead, held.take()).await {
                Some(held) => held,
                // Chunks that are not needed now must not hide those that are.
                None => read_chunks(device, layout, header, &needed, None).await?,
            });
        }
        let bytes = held.as_ref()?.get(header.number, &needed)?;
        for (chunk, bytes) in (first..).zip(bytes.chunks(CHUNK_BYTES)) {
            let address = area + BLOCK_BYTES + chunk * CHUNK_BYTES as u64;
            let place = FramePlace { identity: layout.identity, epoch: header.number, address };
            let payload = payload(bytes, FrameMagic::CheckpointChunk, place, chunk)?;
            // All chunks are full except the last one.
            let from = chunk * PAYLOAD_BYTES_MAX;
            let wanted = start.saturating_sub(from) as usize..(end - from).min(PAYLOAD_BYTES_MAX) as usize;
            if !slots.add(payload.get(wanted)?) {
                return None;
            }
        }
    }
    Some(slots)
}

async fn read_chunks(
    device: &SharedDevice,
    layout: &SpanLayout,
    header: &CheckpointHeader,
    chunks: &Range<u64>,
    spare: Option<HeldChunks>,
) -> Option<HeldChunks> {
    let area = layout.checkpoint_offset[(header.number % 2) as usize];
    let offset = BLOCK_BYTES + chunks.start * CHUNK_BYTES as u64;
    let length = CHUNK_BYTES as u64 * (chunks.end - chunks.start);
    let length = length.min(layout.checkpoint_bytes.saturating_sub(offset)) as usize;
    let spare = spare.map(|held| held.buffer).filter(|buffer| buffer.capacity() >= length);
    let mut buffer = spare.unwrap_or_else(|| Buffer::zeroed(length));
    buffer.set_len(length);
    let read = device.read_at(area + offset, vec![buffer], IoContext::default()).await;
    let buffer = read.ok().and_then(|mut buffers| buffers.pop())?;
    Some(HeldChunks { place: (header.number, chunks.start), buffer })
}

/// The hot list of a checkpoint, with the most requested objects first, and the number of damaged chunks of the list.
pub(crate) async fn load_hot(
    device: &SharedDevice,
    layout: &SpanLayout,
    header: &CheckpointHeader,
) -> (Vec<HotPlace>, u64) {
    let area = layout.checkpoint_offset[(header.number % 2) as usize];
    let (mut places, mut damaged) = (Vec::new(), 0);
    let hot_offset = header.hot_offset();
    for number in 0..HOT_CHUNKS_MAX {
        let chunk = header.chunk_count + number;
        let offset = hot_offset + number * CHUNK_BYTES as u64;
        let length = (CHUNK_BYTES as u64).min(layout.checkpoint_bytes.saturating_sub(offset));
        let place = FramePlace { identity: layout.identity, epoch: header.number, address: area + offset };
        let payload = match read(&**device, place.address, length as usize).await {
            Ok(frame) => payload(&frame, FrameMagic::HotChunk, place, chunk).map(<[u8]>::to_vec),
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
fn payload(frame: &[u8], magic: FrameMagic, place: FramePlace, chunk: u64) -> Option<&[u8]> {
    let body = format::open(frame, magic, place).and(format::body::<ChunkBody>(frame)).ok()?;
    let payload = CHUNK_HEADER_BYTES..CHUNK_HEADER_BYTES + body.payload_bytes.get() as usize;
    frame.get(payload).filter(|_| body.number.get() == chunk)
}
