//! What the client knows of each block.
//!
//! Owns: the sequence of its newest copy, and its contents if they are in no slot yet.

use std::collections::BTreeMap;

use bytes::Bytes;

/// What the client knows of each block.
#[derive(Debug)]
pub(super) struct BlockContents {
    /// The sequence of each block's newest copy or trim.
    pub newest: Vec<u64>,
    /// The sequence of each block's newest trim. It is kept after a later write, because stored parity may not cover
    /// that write yet.
    pub trims: Vec<u64>,
    /// Contents of blocks that are in no slot yet; `None`: they are lost.
    pub held: BTreeMap<u32, Option<Bytes>>,
    /// Blocks that are being fetched, each with the task that fetches it.
    pub fetching: BTreeMap<u32, u64>,
    /// Fetches whose slot is in memory: the task, the row and the sequence.
    pub fetched_from_memory: Vec<(u64, u32, u64)>,
    /// Blocks that were sent by the steps in progress.
    pub sent: Vec<u32>,
}

impl BlockContents {
    /// Blocks of which nothing is known.
    pub fn new(blocks: u32) -> BlockContents {
        BlockContents {
            newest: vec![0; blocks as usize],
            trims: vec![0; blocks as usize],
            held: BTreeMap::new(),
            fetching: BTreeMap::new(),
            fetched_from_memory: Vec::new(),
            sent: Vec::new(),
        }
    }
}
