//! Checksums of the bytes that the client wrote, so that a donor's wrong bytes are detected.
//!
//! Owns: a checksum for each block, in the client's memory only. Promises: a read of a block with a known checksum
//! never returns other bytes. A block that this client has not written has no checksum; its bytes are trusted unless they
//! are those that a donor returns for damaged memory (`format`). A device without redundancy has no checksums here, because
//! its requests may go past the machine.
//! *Cost*: 4 bytes for each block, allocated at the start.

use xxhash_rust::xxh3::xxh3_64;

use crate::format::is_damaged;
use crate::planted::{MirrorBug, planted};

/// A checksum for each block; 0 means unknown.
#[derive(Debug)]
pub(super) struct BlockChecksums {
    blocks: Vec<u32>,
    block_bytes: usize,
    zero: u32,
}

fn checksum(block: &[u8]) -> u32 {
    let hash = xxh3_64(block);
    ((hash ^ (hash >> 32)) as u32).max(1)
}

impl BlockChecksums {
    pub fn new(blocks: u64, block_bytes: u32) -> BlockChecksums {
        let block_bytes = block_bytes as usize;
        BlockChecksums { blocks: vec![0; blocks as usize], block_bytes, zero: checksum(&vec![0; block_bytes]) }
    }

    /// Stores the checksums of data written from block `first` on.
    pub fn wrote(&mut self, first: u64, data: &[u8]) {
        let known = self.blocks.get_mut(first as usize..).unwrap_or_default();
        for (known, block) in known.iter_mut().zip(data.chunks(self.block_bytes)) {
            *known = checksum(block);
        }
    }

    /// Stores the checksums of zeroed blocks.
    pub fn zeroed(&mut self, blocks: std::ops::Range<u64>) {
        let zero = self.zero;
        self.all_of(blocks).fill(zero);
    }

    /// Forgets checksums, after a change that may or may not have happened.
    pub fn forget(&mut self, blocks: std::ops::Range<u64>) {
        self.all_of(blocks).fill(0);
    }

    fn all_of(&mut self, blocks: std::ops::Range<u64>) -> &mut [u32] {
        self.blocks.get_mut(blocks.start as usize..blocks.end as usize).unwrap_or_default()
    }

    /// Whether a block's checksum is known.
    pub fn knows(&self, block: u64) -> bool {
        self.blocks.get(block as usize).is_some_and(|known| *known != 0)
    }

    /// Whether `data` are the bytes of a block; `None`: its checksum is not known.
    pub fn is_right(&self, block: u64, data: &[u8]) -> Option<bool> {
        match self.blocks.get(block as usize).filter(|known| **known != 0) {
            Some(known) => Some(*known == checksum(data)),
            None => is_damaged(data).then_some(false),
        }
    }

    /// Whether `data`, read from block `first` on, matches all known checksums.
    pub fn fits(&self, first: u64, data: &[u8]) -> bool {
        if planted(MirrorBug::ChecksumIgnored) {
            return true;
        }
        let known = self.blocks.get(first as usize..).unwrap_or_default().iter().copied();
        known.chain(std::iter::repeat(0)).zip(data.chunks(self.block_bytes)).all(|(known, block)| match known {
            0 => !is_damaged(block),
            known => known == checksum(block),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A block without a known checksum accepts any bytes.
    #[test]
    fn checksum_refuses_other_bytes() {
        let mut checksums = BlockChecksums::new(4, 16);
        assert!(checksums.fits(1, &[9; 32]) && !checksums.knows(1));
        checksums.wrote(1, &[1; 32]);
        assert!(checksums.fits(1, &[1; 32]) && !checksums.fits(2, &[9; 16]) && checksums.knows(2));
        checksums.zeroed(2..3);
        assert!(checksums.fits(2, &[0; 16]) && !checksums.fits(2, &[1; 16]));
        checksums.forget(1..2);
        assert!(checksums.fits(1, &[5; 16]) && !checksums.knows(4));
    }
}
