//! Runs: writing all tables as sorted chunks with an index, and reading them.
//!
//! Owns: the positions of chunks in the segments of a checkpoint. Promises: a run is read completely or not at all; the
//! counts that it stores are compared with the records found. In version 1 each checkpoint consists of full runs that
//! replace all earlier ones. A checkpoint has several runs only because an index has a bound.

use super::disk::BlockDisk;
use super::error::Error;
use crate::format::{
    BLOCK_BYTES, ChunkPlace, Mutation, MutationAction, RunChunk, RunIndex, RunRecord, SegmentHeader, SegmentUse,
    TableKind, VolumeLabel,
};
use crate::tables::{MetadataTables, record_bytes};

/// The maximum number of bytes of a chunk. *Units*: bytes.
const CHUNK_BYTES_MAX: usize = 128 << 10;
/// The length of a chunk's header, before its records. *Units*: bytes.
const CHUNK_HEADER_BYTES: usize = 80;
/// The maximum number of records of a chunk.
const CHUNK_RECORDS_MAX: usize = 8192;
/// The maximum number of chunks of a run: an index of this many chunks fits its bound, however long the keys are.
const RUN_CHUNKS_MAX: usize = 7000;
/// The length of an index's header, before its chunks. *Units*: bytes.
const INDEX_HEADER_BYTES: usize = 88;
/// The length of a chunk's entry before its key. *Units*: bytes.
const INDEX_ENTRY_BYTES: usize = 16;
/// The maximum number of bytes of a key. *Units*: bytes.
const KEY_BYTES_MAX: usize = 512;

/// The chunks of one run, each with its numbers of records and blocks, and the length of the index.
struct RunShape {
    chunks: Vec<(usize, u64)>,
    index_blocks: u64,
}

/// Returns the records of all tables that runs hold.
fn records(tables: &MetadataTables) -> impl Iterator<Item = (TableKind, &Vec<u8>, &Vec<u8>)> {
    let kept = TableKind::ALL.into_iter().filter(|table| *table != TableKind::Runs);
    kept.flat_map(|table| tables.table(table).iter().map(move |(key, value)| (table, key, value)))
}

fn shapes(tables: &MetadataTables) -> Vec<RunShape> {
    let mut shapes = Vec::new();
    let (mut chunks, mut index_bytes) = (Vec::new(), INDEX_HEADER_BYTES);
    let (mut count, mut bytes) = (0, CHUNK_HEADER_BYTES);
    let blocks = |bytes: usize| bytes.div_ceil(BLOCK_BYTES) as u64;
    for (_, key, value) in records(tables) {
        let length = record_bytes(key.len(), value.len());
        if count == CHUNK_RECORDS_MAX || bytes + length > CHUNK_BYTES_MAX {
            chunks.push((count, blocks(bytes)));
            (count, bytes) = (0, CHUNK_HEADER_BYTES);
        }
        if count == 0 {
            if chunks.len() == RUN_CHUNKS_MAX {
                shapes.push(RunShape { chunks: std::mem::take(&mut chunks), index_blocks: blocks(index_bytes) });
                index_bytes = INDEX_HEADER_BYTES;
            }
            index_bytes += INDEX_ENTRY_BYTES + key.len().next_multiple_of(8);
        }
        (count, bytes) = (count + 1, bytes + length);
    }
    if count > 0 {
        chunks.push((count, blocks(bytes)));
        shapes.push(RunShape { chunks, index_blocks: blocks(index_bytes) });
    }
    shapes
}

/// Allocates positions for frames in segments: behind the segment's header, and never across the end of a segment.
struct FrameAllocator<'a> {
    segment_blocks: u64,
    segments: std::slice::Iter<'a, u64>,
    segment: u64,
    next: u64,
    used: Vec<u64>,
}

impl FrameAllocator<'_> {
    fn take(&mut self, blocks: u64) -> Result<u64, Error> {
        if self.used.is_empty() || self.next + blocks > self.segment + self.segment_blocks {
            self.segment = *self.segments.next().ok_or(Error::NoSegment)?;
            self.next = self.segment + 1;
            self.used.push(self.segment);
        }
        let block = self.next;
        self.next += blocks;
        Ok(block)
    }
}

/// Returns how many segments a checkpoint of these tables needs.
pub(super) fn segments_needed(tables: &MetadataTables, segment_blocks: u64) -> usize {
    let (mut segments, mut free) = (0, 0);
    for shape in shapes(tables) {
        for blocks in shape.chunks.iter().map(|chunk| chunk.1).chain([shape.index_blocks]) {
            if blocks > free {
                (segments, free) = (segments + 1, segment_blocks - 1);
            }
            free -= blocks;
        }
    }
    segments
}

/// Returns the most segments that a checkpoint of tables with this many bytes can need, without reading their records.
///
/// Two adjacent chunks have more than [`CHUNK_BYTES_MAX`] bytes together; otherwise they would be one chunk. A chunk is
/// rounded up to whole blocks. At the end of a segment, less than the length of one chunk stays unused; before an
/// index, less than the length of the index.
pub fn segments_at_most(bytes: u64, segment_blocks: u64) -> u64 {
    let block = BLOCK_BYTES as u64;
    let chunks = 2 * bytes / (CHUNK_BYTES_MAX - CHUNK_HEADER_BYTES) as u64 + 1;
    let runs = chunks / RUN_CHUNKS_MAX as u64 + 1;
    let chunk_blocks = (bytes + chunks * CHUNK_HEADER_BYTES as u64) / block + chunks;
    let entries = chunks * (INDEX_ENTRY_BYTES + KEY_BYTES_MAX) as u64;
    let index_blocks = (entries + runs * INDEX_HEADER_BYTES as u64) / block + runs;
    let room = segment_blocks.saturating_sub((CHUNK_BYTES_MAX / BLOCK_BYTES) as u64).max(1);
    (chunk_blocks + 2 * index_blocks).div_ceil(room)
}

/// The leader of an epoch as the writer of runs.
pub(super) struct RunWriter<'a> {
    pub label: &'a VolumeLabel,
    pub epoch: u64,
    /// The number of the first run.
    pub number: u64,
    /// The runs contain the effect of all appends before this one.
    pub replay_sequence: u64,
}

/// A frame of a run, and the block that it goes to.
pub(super) type Placed = (u64, Vec<u8>);

/// Makes the frames of a checkpoint's runs one by one, so that the caller can do other work in between.
pub(super) struct RunFrames<'a> {
    writing: &'a RunWriter<'a>,
    places: FrameAllocator<'a>,
    shapes: std::vec::IntoIter<RunShape>,
    records: Box<dyn Iterator<Item = (TableKind, &'a Vec<u8>, &'a Vec<u8>)> + Send + 'a>,
    current: Option<CurrentRun>,
    number: u64,
    headers: usize,
    pub runs: Vec<(u64, RunRecord)>,
}

/// The run that is being written.
struct CurrentRun {
    chunks: std::vec::IntoIter<(usize, u64)>,
    index_blocks: u64,
    index: RunIndex,
    blocks: u64,
}

impl<'a> RunFrames<'a> {
    pub fn new(writing: &'a RunWriter<'a>, tables: &'a MetadataTables, segments: &'a [u64]) -> RunFrames<'a> {
        let places = FrameAllocator {
            segment_blocks: writing.label.segment_blocks,
            segments: segments.iter(),
            segment: 0,
            next: 0,
            used: Vec::new(),
        };
        RunFrames {
            writing,
            places,
            shapes: shapes(tables).into_iter(),
            records: Box::new(records(tables)),
            current: None,
            number: writing.number,
            headers: 0,
            runs: Vec::new(),
        }
    }

    /// Returns the segments that were used.
    pub fn used(&self) -> &[u64] {
        &self.places.used
    }

    /// Makes the next frames: a chunk or an index, preceded by a segment's header if a segment begins there. The list
    /// is empty at the end.
    pub fn next(&mut self) -> Result<Vec<Placed>, Error> {
        let volume = self.writing.label.volume;
        if self.current.is_none() {
            let Some(shape) = self.shapes.next() else { return Ok(Vec::new()) };
            let index = RunIndex { run: self.number, records: 0, chunks: Vec::new() };
            let chunks = shape.chunks.into_iter();
            self.current = Some(CurrentRun { chunks, index_blocks: shape.index_blocks, index, blocks: 0 });
            self.number += 1;
        }
        let Some(current) = self.current.as_mut() else { return Ok(Vec::new()) };
        let frame = match current.chunks.next() {
            Some((count, blocks)) => {
                let block = self.places.take(blocks)?;
                let record = |(table, key, value): (TableKind, &Vec<u8>, &Vec<u8>)| Mutation {
                    table,
                    key: key.clone(),
                    action: MutationAction::Put(value.clone()),
                };
                let records: Vec<Mutation> = self.records.by_ref().take(count).map(record).collect();
                let Some(first) = records.first() else { return Err(Error::NoSegment) };
                let place = ChunkPlace { block, blocks: blocks as u32, table: first.table, key: first.key.clone() };
                current.index.chunks.push(place);
                current.index.records += count as u64;
                current.blocks += blocks;
                let chunk = RunChunk { run: current.index.run, records };
                (block, chunk.encode(volume, self.writing.epoch, block).map_err(Error::Bounds)?)
            }
            None => {
                let block = self.places.take(current.index_blocks)?;
                let record = RunRecord {
                    index: block,
                    index_blocks: current.index_blocks as u32,
                    level: 0,
                    replay_sequence: self.writing.replay_sequence,
                    records: current.index.records,
                    blocks: current.blocks,
                };
                self.runs.push((current.index.run, record));
                let bytes = current.index.encode(volume, self.writing.epoch, block).map_err(Error::Bounds)?;
                self.current = None;
                (block, bytes)
            }
        };
        let mut frames = Vec::new();
        if let Some(segment) = self.places.used.get(self.headers).copied() {
            self.headers += 1;
            frames.push((segment, self.header(segment)?));
        }
        frames.push(frame);
        Ok(frames)
    }

    fn header(&self, segment: u64) -> Result<Vec<u8>, Error> {
        let header = SegmentHeader {
            epoch: self.writing.epoch,
            segment_use: SegmentUse::Runs,
            number: self.number - 1,
            previous: 0,
            first_sequence: self.writing.replay_sequence,
            manifest_sequence: 0,
            manifest_block: 0,
            chain: 0,
            manifest_chain: 0,
        };
        header.encode(self.writing.label.volume, segment).map_err(Error::Bounds)
    }
}

/// Reads the index of a run.
async fn index(disk: &BlockDisk, label: &VolumeLabel, number: u64, run: &RunRecord) -> Result<RunIndex, Error> {
    let bytes = disk.read(run.index, run.index_blocks.into()).await?;
    let index = RunIndex::decode(label.volume, run.index, &bytes);
    let index = index.map_err(|error| Error::damaged(run.index, format!("run {number}: {error}")))?;
    match index.run == number && index.records == run.records {
        true => Ok(index),
        false => Err(Error::damaged(run.index, format!("run {number}: another index is here"))),
    }
}

/// Returns the segments that a run is in.
pub(super) async fn segments(
    disk: &BlockDisk,
    label: &VolumeLabel,
    number: u64,
    run: &RunRecord,
) -> Result<Vec<u64>, Error> {
    let index = index(disk, label, number, run).await?;
    let blocks = index.chunks.iter().map(|chunk| chunk.block).chain([run.index]);
    let mut segments: Vec<u64> = blocks.map(|block| segment_of(label, block)).collect();
    segments.sort_unstable();
    segments.dedup();
    Ok(segments)
}

/// Reads a run into tables; returns the segments that it is in.
pub(super) async fn load(
    disk: &BlockDisk,
    label: &VolumeLabel,
    number: u64,
    run: &RunRecord,
    tables: &mut MetadataTables,
) -> Result<Vec<u64>, Error> {
    let mut records = 0;
    for place in &index(disk, label, number, run).await?.chunks {
        let bytes = disk.read(place.block, place.blocks.into()).await?;
        let chunk = RunChunk::decode(label.volume, place.block, &bytes);
        let chunk = chunk.map_err(|error| Error::damaged(place.block, format!("run {number}: {error}")))?;
        let is_first = chunk.records.first().is_some_and(|first| first.table == place.table && first.key == place.key);
        if chunk.run != number || !is_first {
            return Err(Error::damaged(place.block, format!("run {number}: another chunk is here")));
        }
        records += chunk.records.len() as u64;
        chunk.records.iter().filter(|record| record.table != TableKind::Runs).for_each(|record| tables.apply(record));
    }
    if records != run.records {
        let what = format!("run {number} has {records} records, its index says {}", run.records);
        return Err(Error::damaged(run.index, what));
    }
    segments(disk, label, number, run).await
}

/// Returns the first block of the segment that a block is in.
pub(super) fn segment_of(label: &VolumeLabel, block: u64) -> u64 {
    block - block % label.segment_blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bound is computed from counts, without reading the records.
    #[test]
    fn checkpoint_segment_bound_holds() {
        let mut state = 0x5851_f42d_4c95_7f2d_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for round in 0..18 {
            let mut tables = MetadataTables::default();
            // Some rounds have records so long that only one fits a chunk, and some have keys so long that the index is
            // long.
            let (records, key_bytes, value_bytes) = match round % 3 {
                0 => (random(60_000), 16, 1 + random(200)),
                1 => (random(600), 16, 60_000 + random(5000)),
                _ => (random(2000), 264, 1 + random(40_000)),
            };
            for number in 0..records {
                let mut key = number.to_be_bytes().to_vec();
                key.resize(key_bytes, 1);
                let value = vec![0; (1 + random(value_bytes)) as usize];
                let table = if number % 2 == 0 { TableKind::Xattrs } else { TableKind::Entries };
                tables.apply(&Mutation { table, key: key.clone(), action: MutationAction::Put(value) });
                if random(8) == 0 {
                    tables.apply(&Mutation { table, key, action: MutationAction::Delete });
                }
            }
            let counted: usize =
                super::records(&tables).map(|(_, key, value)| record_bytes(key.len(), value.len())).sum();
            assert_eq!(tables.bytes(), counted as u64, "round {round}");
            let (needed, most) = (segments_needed(&tables, 2048) as u64, segments_at_most(tables.bytes(), 2048));
            assert!(needed <= most && most <= needed + needed / 4 + 1, "round {round}: {needed}, at most {most}");
        }
    }
}
