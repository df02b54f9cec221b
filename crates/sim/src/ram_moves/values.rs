//! The contents that each block may have.
//!
//! One change of a block is in progress at a time, so its versions are in order. Promises: a version that was
//! acknowledged, and that survives what happened since, is the oldest that a read may return.

use crate::ram::blocks::{contents, number_of};

#[derive(Debug, Clone)]
struct MovedBlock {
    /// The numbers of all changes, in order; 0: zeroes.
    versions: Vec<u64>,
    acknowledged: usize,
    flushed: usize,
    is_busy: bool,
    /// Parity in place lost it with the client and a donor; anything is possible until it is written again.
    is_unknown: bool,
}

/// All blocks.
#[derive(Debug)]
pub struct MovedBlocks {
    blocks: Vec<MovedBlock>,
}

impl MovedBlocks {
    pub fn new(count: u64) -> MovedBlocks {
        let block = MovedBlock { versions: vec![0], acknowledged: 0, flushed: 0, is_busy: false, is_unknown: false };
        MovedBlocks { blocks: vec![block; count as usize] }
    }

    pub fn count(&self) -> u64 {
        self.blocks.len() as u64
    }

    pub fn is_busy(&self, block: u64) -> bool {
        self.blocks[block as usize].is_busy
    }

    /// A change begins; returns its version.
    pub fn begin(&mut self, block: u64, number: u64) -> usize {
        let of = &mut self.blocks[block as usize];
        of.is_busy = true;
        of.versions.push(number);
        of.versions.len() - 1
    }

    /// A change has ended.
    pub fn end(&mut self, block: u64, version: usize, is_done: bool, survives_client: bool) {
        let of = &mut self.blocks[block as usize];
        of.is_busy = false;
        if is_done {
            of.acknowledged = of.acknowledged.max(version);
            of.is_unknown = false;
        }
        if is_done && survives_client {
            of.flushed = of.flushed.max(version);
        }
    }

    /// The versions that a flush, which begins now, makes survive the client.
    pub fn acknowledged(&self) -> Vec<usize> {
        self.blocks.iter().map(|block| block.acknowledged).collect()
    }

    pub fn flushed(&mut self, versions: &[usize]) {
        for (block, version) in self.blocks.iter_mut().zip(versions) {
            block.flushed = block.flushed.max(*version);
        }
    }

    /// The client is gone, and with it what was not flushed.
    pub fn crash(&mut self) {
        for block in &mut self.blocks {
            (block.acknowledged, block.is_busy) = (block.flushed, false);
        }
    }

    pub fn forget(&mut self, block: u64) {
        self.blocks[block as usize].is_unknown = true;
    }

    /// The oldest version that a read, which begins now, may return.
    pub fn floor(&self, block: u64) -> usize {
        self.blocks[block as usize].acknowledged
    }

    /// *Errors*: what was read is not possible.
    pub fn check(&self, block: u64, floor: usize, bytes: &[u8]) -> Result<(), String> {
        let of = &self.blocks[block as usize];
        let found = number_of(bytes, block);
        let is_zero = bytes == contents(0, block);
        let may_be = |number: &u64| Some(*number) == found || *number == 0 && is_zero;
        match of.is_unknown || of.versions[floor.min(of.acknowledged)..].iter().any(may_be) {
            true => Ok(()),
            false => Err(format!("block {block} is {found:?} where one of {:?} belongs", &of.versions[floor..])),
        }
    }
}
