//! Runs: records of all tables, sorted, in chunks with an index.

use super::cursor::{BoundedReader, BoundedWriter};
use super::error::{FormatError, FormatProblem};
use super::frame::{FrameKind, FramePosition, VerifiedFrame, VolumeIdentity};
use super::journal::Mutation;
use super::table::{KEY_BYTES_MAX, TableKind};
use super::{BLOCKS_MAX, SPACE_START};

/// The maximum number of records of a chunk.
const RECORDS_MAX: u64 = 8192;
/// The maximum number of chunks of a run.
const CHUNKS_MAX: u64 = 32768;
/// The maximum number of blocks of a chunk.
const CHUNK_BLOCKS_MAX: u64 = 32;

/// A part of the records of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunChunk {
    /// The number of the run.
    pub run: u64,
    /// The records, ordered by table and key; each key occurs once.
    pub records: Vec<Mutation>,
}

/// Whether the keys are in ascending order.
fn is_in_order<'a>(keys: impl Iterator<Item = (TableKind, &'a [u8])> + Clone) -> bool {
    keys.clone().zip(keys.skip(1)).all(|(left, right)| (left.0.number(), left.1) < (right.0.number(), right.1))
}

impl RunChunk {
    fn check(&self, reader: &BoundedReader<'_>) -> Result<(), FormatError> {
        match is_in_order(self.records.iter().map(|record| (record.table, record.key.as_slice()))) {
            true => Ok(()),
            false => Err(reader.error(FormatProblem::Order)),
        }
    }

    /// Encodes the chunk for this first block.
    pub fn encode(&self, volume: VolumeIdentity, epoch: u64, block: u64) -> Result<Vec<u8>, FormatError> {
        let bounds = BoundedReader::new("run chunk", &[]);
        self.check(&bounds)?;
        bounds.within("record_count", self.records.len() as u64, 1, RECORDS_MAX)?;
        let mut writer = BoundedWriter::default();
        writer.u32(self.records.len() as u32).u32(0).u64(self.run);
        for record in &self.records {
            record.write(&mut writer)?;
        }
        VerifiedFrame::encode(FrameKind::Chunk, volume, epoch, block, 0, &writer.bytes)
    }

    /// Decodes the chunk at this first block.
    pub fn decode(volume: VolumeIdentity, block: u64, bytes: &[u8]) -> Result<RunChunk, FormatError> {
        let frame =
            VerifiedFrame::decode(FrameKind::Chunk, FramePosition { volume: Some(volume), address: block }, bytes)?;
        let mut reader = frame.body("run chunk")?;
        let count = u64::from(reader.u32()?);
        let count = reader.within("record_count", count, 1, RECORDS_MAX)?;
        reader.skip(4)?;
        let run = reader.u64()?;
        let records = (0..count).map(|_| Mutation::read(&mut reader)).collect::<Result<Vec<_>, _>>()?;
        reader.end()?;
        let chunk = RunChunk { run, records };
        chunk.check(&reader)?;
        Ok(chunk)
    }
}

/// The position of a chunk, and its first key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkPlace {
    /// The first block of the chunk.
    pub block: u64,
    /// The length of the chunk. *Units*: blocks.
    pub blocks: u32,
    /// The table of the chunk's first record.
    pub table: TableKind,
    /// The key of the chunk's first record.
    pub key: Vec<u8>,
}

/// The index of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunIndex {
    /// The number of the run.
    pub run: u64,
    /// The number of records in the run.
    pub records: u64,
    /// The chunks of the run, in order.
    pub chunks: Vec<ChunkPlace>,
}

impl RunIndex {
    fn check(&self, reader: &BoundedReader<'_>) -> Result<(), FormatError> {
        match is_in_order(self.chunks.iter().map(|chunk| (chunk.table, chunk.key.as_slice()))) {
            true => Ok(()),
            false => Err(reader.error(FormatProblem::Order)),
        }
    }

    /// Encodes the index for this first block.
    pub fn encode(&self, volume: VolumeIdentity, epoch: u64, block: u64) -> Result<Vec<u8>, FormatError> {
        let bounds = BoundedReader::new("run index", &[]);
        self.check(&bounds)?;
        bounds.within("chunk_count", self.chunks.len() as u64, 1, CHUNKS_MAX)?;
        let mut writer = BoundedWriter::default();
        writer.u32(self.chunks.len() as u32).u32(0).u64(self.run).u64(self.records);
        for chunk in &self.chunks {
            bounds.within("key_bytes", chunk.key.len() as u64, 1, KEY_BYTES_MAX)?;
            writer.u64(chunk.block).u32(chunk.blocks).u16(chunk.table.number().into()).u16(chunk.key.len() as u16);
            writer.put(&chunk.key).align();
        }
        VerifiedFrame::encode(FrameKind::Index, volume, epoch, block, 0, &writer.bytes)
    }

    /// Decodes the index at this first block.
    pub fn decode(volume: VolumeIdentity, block: u64, bytes: &[u8]) -> Result<RunIndex, FormatError> {
        let frame =
            VerifiedFrame::decode(FrameKind::Index, FramePosition { volume: Some(volume), address: block }, bytes)?;
        let mut reader = frame.body("run index")?;
        let count = u64::from(reader.u32()?);
        let count = reader.within("chunk_count", count, 1, CHUNKS_MAX)?;
        reader.skip(4)?;
        let (run, records) = (reader.u64()?, reader.u64()?);
        let mut chunks = Vec::new();
        for _ in 0..count {
            let (block, blocks, table) = (reader.u64()?, reader.u32()?, reader.u16()?);
            reader.within("block", block, SPACE_START, BLOCKS_MAX)?;
            reader.within("blocks", blocks.into(), 1, CHUNK_BLOCKS_MAX)?;
            let Some(table) = u8::try_from(table).ok().and_then(TableKind::of) else {
                return Err(reader.unknown("table", table.into()));
            };
            let key_bytes = u64::from(reader.u16()?);
            let key_bytes = reader.within("key_bytes", key_bytes, 1, KEY_BYTES_MAX)? as usize;
            let key = reader.take(key_bytes)?.to_vec();
            reader.align()?;
            chunks.push(ChunkPlace { block, blocks, table, key });
        }
        reader.end()?;
        let index = RunIndex { run, records, chunks };
        index.check(&reader)?;
        Ok(index)
    }
}
