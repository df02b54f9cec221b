//! What an image of a store has where, found with the byte maps in `docs/formats/store.md` alone.
//!
//! Owns: the areas of an image, and the blocks that each object occupies. It shares no code with the store.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use super::device::BLOCK_BYTES;

const GRANULE_BYTES: usize = 64;
const RECORD_HEADER_BYTES: usize = 144;

/// The areas of an image, in bytes.
#[derive(Debug, Clone)]
pub struct ImageAreas {
    /// The two copies of the purge log.
    pub purge_logs: [Range<u64>; 2],
    /// The two checkpoint areas.
    pub checkpoints: [Range<u64>; 2],
    /// All segments.
    pub segments: Range<u64>,
}

/// Where a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum BlockArea {
    /// A copy of the superblock.
    Superblock,
    /// A state slot.
    State,
    /// A copy of the purge log.
    PurgeLog,
    /// A checkpoint.
    Checkpoint,
    /// A segment.
    Segment,
    /// Nothing is stored here.
    Nothing,
}

impl BlockArea {
    /// The printed name.
    pub fn name(self) -> &'static str {
        match self {
            BlockArea::Superblock => "superblock",
            BlockArea::State => "state",
            BlockArea::PurgeLog => "purge log",
            BlockArea::Checkpoint => "checkpoint",
            BlockArea::Segment => "segments",
            BlockArea::Nothing => "no area",
        }
    }
}

fn number(bytes: &[u8], at: usize, length: usize) -> u64 {
    bytes[at..at + length].iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

impl ImageAreas {
    /// Reads the superblock of an image.
    pub fn of(image: &[u8]) -> ImageAreas {
        let (log_bytes, checkpoint_bytes) = (number(image, 112, 8), number(image, 136, 8));
        let area = |at, bytes| number(image, at, 8)..number(image, at, 8) + bytes;
        let segment_bytes = number(image, 80, 4) * number(image, 84, 4);
        ImageAreas {
            purge_logs: [area(96, log_bytes), area(104, log_bytes)],
            checkpoints: [area(120, checkpoint_bytes), area(128, checkpoint_bytes)],
            segments: area(88, segment_bytes),
        }
    }

    /// The area of a block.
    pub fn area(&self, block: u64) -> BlockArea {
        let at = block * BLOCK_BYTES;
        match block {
            0 | 1 => BlockArea::Superblock,
            2 | 3 => BlockArea::State,
            _ if self.purge_logs.iter().any(|log| log.contains(&at)) => BlockArea::PurgeLog,
            _ if self.checkpoints.iter().any(|checkpoint| checkpoint.contains(&at)) => BlockArea::Checkpoint,
            _ if self.segments.contains(&at) => BlockArea::Segment,
            _ => BlockArea::Nothing,
        }
    }

    /// All pairs of blocks of which one is the copy of the other.
    pub fn pairs(&self) -> Vec<[u64; 2]> {
        let mut pairs = vec![[0, 1], [2, 3]];
        for [first, second] in [&self.purge_logs, &self.checkpoints] {
            let blocks = (first.end - first.start) / BLOCK_BYTES;
            pairs.extend(
                (0..blocks).map(|block| [first.start / BLOCK_BYTES + block, second.start / BLOCK_BYTES + block]),
            );
        }
        pairs
    }

    /// Whether the loss of both copies of this block of the purge log may take purges: it is the first one of a half, or
    /// one of the newest cycle, or the one after these.
    pub fn may_have_purges(&self, image: &[u8], block: u64) -> bool {
        let log = &self.purge_logs[0];
        let (first, half_blocks) = (log.start / BLOCK_BYTES, (log.end - log.start) / BLOCK_BYTES / 2);
        let cycle = |block: u64| {
            let bytes = &image[(block * BLOCK_BYTES) as usize..][..BLOCK_BYTES as usize];
            if bytes.starts_with(b"NPRG") { number(bytes, 32, 8) } else { 0 }
        };
        let (half, at) = ((block - first) / half_blocks, (block - first) % half_blocks);
        let newest = cycle(first).max(cycle(first + half_blocks));
        let start = first + half * half_blocks;
        let used = (0..half_blocks).take_while(|at| cycle(start + at) == newest).count() as u64;
        at == 0 || newest % 2 == half && at <= used
    }
}

/// What is wrong with the state slots: they hold the counts of the last two opens, each in the slot of its parity.
pub fn wrong_states(image: &[u8]) -> Option<String> {
    let count = |slot: usize| {
        let bytes = &image[(2 + slot) * BLOCK_BYTES as usize..];
        if bytes.starts_with(b"NSTA") { number(bytes, 64, 8) } else { 0 }
    };
    let counts = [count(0), count(1)];
    let is_right = counts[0] % 2 == 0 && counts[1] % 2 == 1 && counts[0].abs_diff(counts[1]) == 1;
    (!is_right).then(|| format!("the state slots have the open counts {counts:?}"))
}

/// The blocks with the heads and tables of appends.
pub fn blocks_of_heads(image: &[u8], areas: &ImageAreas) -> HashSet<u64> {
    let mut blocks = HashSet::new();
    for block in areas.segments.start / BLOCK_BYTES..areas.segments.end / BLOCK_BYTES {
        let bytes = &image[(block * BLOCK_BYTES) as usize..];
        if bytes.starts_with(b"NAPP") {
            let head_bytes = 128 + 64 * number(bytes, 84, 4).min(1 << 16);
            blocks.extend(block..block + head_bytes.div_ceil(BLOCK_BYTES));
        }
    }
    blocks
}

/// The blocks of each object: its newest record, and its fragments.
pub fn blocks_of_objects(image: &[u8], areas: &ImageAreas) -> HashMap<Vec<u8>, Vec<Range<u64>>> {
    let identity = &image[16..32];
    let mut newest: HashMap<Vec<u8>, (u64, Range<u64>, u64)> = HashMap::new();
    let mut fragments: HashMap<u64, Vec<Range<u64>>> = HashMap::new();
    for at in (areas.segments.start as usize..areas.segments.end as usize).step_by(GRANULE_BYTES) {
        let bytes = &image[at..];
        let is_record = bytes.starts_with(b"NREC") && bytes[16..32] == *identity && number(bytes, 40, 8) == at as u64;
        if !is_record {
            continue;
        }
        let (primary_bytes, kind) = (number(bytes, 112, 2) as usize, bytes[124]);
        let length = RECORD_HEADER_BYTES
            + primary_bytes
            + number(bytes, 114, 2) as usize
            + 8 * number(bytes, 136, 2) as usize
            + number(bytes, 116, 4) as usize
            + number(bytes, 100, 4) as usize;
        let blocks = at as u64 / BLOCK_BYTES..((at + length) as u64).div_ceil(BLOCK_BYTES);
        let (sequence, generation) = (number(bytes, 64, 8), number(bytes, 128, 8));
        if kind == 3 {
            fragments.entry(generation).or_default().push(blocks);
            continue;
        }
        let primary = bytes[RECORD_HEADER_BYTES..][..primary_bytes].to_vec();
        let generation = if kind == 2 { generation } else { 0 };
        let is_newer = newest.get(&primary).is_none_or(|(held, ..)| *held < sequence);
        if is_newer {
            newest.insert(primary, (sequence, blocks, generation));
        }
    }
    let whole = |(primary, (_, blocks, generation)): (Vec<u8>, (u64, Range<u64>, u64))| {
        let fragments = fragments.get(&generation).cloned().unwrap_or_default();
        (primary, fragments.into_iter().chain([blocks]).collect())
    };
    newest.into_iter().map(whole).collect()
}
