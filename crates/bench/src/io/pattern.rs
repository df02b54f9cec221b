//! The contents of a file of `bench io`: a pattern that shows which write wrote each block.
//!
//! Owns: the bytes of a block. Each block of 4 KiB begins with a stamp (its offset in the stream, the generation of the
//! write, the stream); the rest is the same in all blocks. So a lost, misplaced or torn block is detected, and
//! preparing a write touches one cache line per block, like fio's own buffers.

use nectary_block::Buffer;

use crate::random::SeededRandom;
use crate::{Error, ExperimentErrorKind};

/// The unit of the pattern and of request sizes. *Units*: bytes.
pub const BLOCK_BYTES: usize = 4096;
/// The size of the stamp at the start of a block. *Units*: bytes.
const STAMP_BYTES: usize = 32;
/// The first bytes of each block that this command writes.
const MAGIC: u64 = 0x4f49_5952_4154_434e;

/// The place of a block, and the write that wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// The block's offset in the stream. *Units*: bytes.
    pub offset: u64,
    /// The number of the write pass; no pass has the number 0.
    pub generation: u32,
    /// The number of the stream, from 0.
    pub stream: u32,
}

impl Stamp {
    fn encode(self) -> [u8; STAMP_BYTES] {
        let mut bytes = [0; STAMP_BYTES];
        bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.offset.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.generation.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.stream.to_le_bytes());
        bytes
    }

    /// Decodes the stamp of a block; `None` if the block has none.
    pub fn decode(block: &[u8]) -> Option<Stamp> {
        let word = |at: usize| block.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes);
        let half = |at: usize| block.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes);
        let stamp = Stamp { offset: word(8)?, generation: half(16)?, stream: half(20)? };
        (word(0)? == MAGIC && word(24)? == 0).then_some(stamp)
    }
}

/// The contents of a block after its stamp, which are the same in all blocks.
pub struct BlockPattern {
    block: Vec<u8>,
}

impl BlockPattern {
    /// Makes the pattern. It is the same in every run, so that files of earlier runs are recognised.
    pub fn new() -> BlockPattern {
        let mut random = SeededRandom::new(u64::from_le_bytes(*b"nectario"));
        let words = (0..BLOCK_BYTES / 8).flat_map(|_| random.next_u64().to_le_bytes());
        BlockPattern { block: words.collect() }
    }

    /// Makes a buffer of whole blocks, which still have no stamps.
    pub fn buffer(&self, bytes: u64) -> Buffer {
        let mut buffer = Buffer::zeroed(bytes as usize);
        buffer.chunks_mut(BLOCK_BYTES).for_each(|block| block.copy_from_slice(&self.block[..block.len()]));
        buffer
    }

    /// Stamps each block of a buffer; `first` is the stamp of its first block. *Cost*: a cache line per block.
    pub fn stamp(buffer: &mut [u8], first: Stamp) {
        for (index, block) in buffer.chunks_exact_mut(BLOCK_BYTES).enumerate() {
            let offset = first.offset + (index * BLOCK_BYTES) as u64;
            block[..STAMP_BYTES].copy_from_slice(&Stamp { offset, ..first }.encode());
        }
    }

    /// Compares all bytes of a buffer; `first` is the expected stamp of its first block.
    ///
    /// *Errors*: [`ExperimentErrorKind::Void`], with the offset of the first wrong block and the fault in it.
    pub fn check(&self, buffer: &[u8], first: Stamp) -> Result<(), Error> {
        for (index, block) in buffer.chunks(BLOCK_BYTES).enumerate() {
            let expected = Stamp { offset: first.offset + (index * BLOCK_BYTES) as u64, ..first };
            let rest = STAMP_BYTES.min(block.len());
            if block[..rest] == expected.encode()[..rest] && block[rest..] == self.block[rest..block.len()] {
                continue;
            }
            let found = match Stamp::decode(block) {
                Some(found) if found != expected => format!("a block of {found:?}"),
                Some(_) => "its stamp, and other bytes behind it".to_owned(),
                None => "bytes that this command did not write".to_owned(),
            };
            let message = format!("the run is void: expected a block of {expected:?}, found {found}");
            return Err(Error::new(ExperimentErrorKind::Void, message));
        }
        Ok(())
    }

    /// Whether a block was written by this command, in any run.
    pub fn is_own(&self, block: &[u8]) -> bool {
        block.len() == BLOCK_BYTES
            && Stamp::decode(block).is_some()
            && block[STAMP_BYTES..] == self.block[STAMP_BYTES..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lost, misplaced and torn blocks are found.
    #[test]
    fn damaged_blocks_are_found() {
        let pattern = BlockPattern::new();
        let first = Stamp { offset: 8192, generation: 3, stream: 1 };
        let mut buffer = pattern.buffer(3 * BLOCK_BYTES as u64);
        assert!(!pattern.is_own(&buffer[..BLOCK_BYTES]));
        BlockPattern::stamp(&mut buffer, first);
        pattern.check(&buffer, first).unwrap();
        assert!(pattern.is_own(&buffer[BLOCK_BYTES..2 * BLOCK_BYTES]));
        for wrong in [Stamp { offset: 0, ..first }, Stamp { generation: 2, ..first }, Stamp { stream: 0, ..first }] {
            let error = pattern.check(&buffer, wrong).unwrap_err();
            assert!(error.kind == ExperimentErrorKind::Void && error.message.contains("found a block of"), "{error}");
        }
        buffer[2 * BLOCK_BYTES + 4000] ^= 1;
        let error = pattern.check(&buffer, first).unwrap_err();
        assert!(error.message.contains("offset: 16384") && error.message.contains("other bytes"), "{error}");
        buffer[0] ^= 1;
        assert!(pattern.check(&buffer, first).unwrap_err().message.contains("did not write"));
    }
}
