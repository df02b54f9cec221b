//! Images of a crashed device: one base per epoch, and changes to copies of it.
//!
//! Promises: a state takes memory only for its changes, not for the image. The hash of an image is the sum of the xxh3
//! hashes of its pieces, each seeded with its position; each change updates it. Pieces of zeroes add nothing.

use std::collections::{BTreeMap, BTreeSet};

use nectary_block::DeviceSnapshot;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::history::{RangeEffect, RecordedWrite};

/// The unit that a write never tears, in bytes.
pub(super) const SECTOR_BYTES: u64 = 512;

/// The size of a hashed piece, in bytes.
const PIECE_BYTES: u64 = 4096;

/// The part of an operation that reached the disk, in sectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WrittenPart {
    /// All sectors.
    Whole,
    /// This many sectors from the beginning.
    Head(u64),
    /// All sectors except this many from the beginning.
    Tail(u64),
    /// Some sectors, chosen by this seed.
    Some(u64),
}

impl WrittenPart {
    fn has(self, sector: u64) -> bool {
        match self {
            WrittenPart::Whole => true,
            WrittenPart::Head(count) => sector < count,
            WrittenPart::Tail(count) => sector >= count,
            WrittenPart::Some(seed) => xxh3_64_with_seed(&sector.to_le_bytes(), seed) & 1 == 1,
        }
    }
}

/// An image and its hash.
#[derive(Debug, Clone)]
pub(super) struct CrashImage {
    pub snapshot: DeviceSnapshot,
    pub hash: u64,
}

impl CrashImage {
    pub fn new(snapshot: DeviceSnapshot) -> CrashImage {
        let pieces = snapshot.size_bytes().div_ceil(PIECE_BYTES);
        let hash = (0..pieces).fold(0u64, |sum, piece| sum.wrapping_add(piece_hash(&snapshot, piece)));
        CrashImage { snapshot, hash }
    }

    /// Applies operations to the image, in the order in which they began.
    pub fn apply(&mut self, operations: &[(&RecordedWrite, WrittenPart)], size_bytes: u64) {
        let mut ranges: BTreeMap<u64, u64> = BTreeMap::new();
        let mut size = size_bytes;
        for (operation, _) in operations {
            let end = operation.offset + operation.length();
            size = size.max(end);
            let longest = ranges.entry(operation.offset).or_insert(end);
            *longest = end.max(*longest);
        }
        self.snapshot.grow(size);
        let touched: BTreeSet<u64> =
            ranges.iter().flat_map(|(&start, &end)| start / PIECE_BYTES..end.div_ceil(PIECE_BYTES)).collect();
        for &piece in &touched {
            self.hash = self.hash.wrapping_sub(piece_hash(&self.snapshot, piece));
        }
        for &(operation, part) in operations {
            lay(&mut self.snapshot, operation, part);
        }
        for &piece in &touched {
            self.hash = self.hash.wrapping_add(piece_hash(&self.snapshot, piece));
        }
    }
}

fn lay(snapshot: &mut DeviceSnapshot, operation: &RecordedWrite, part: WrittenPart) {
    let (length, zeroes) = (operation.length(), [0u8; SECTOR_BYTES as usize]);
    if let (WrittenPart::Whole, RangeEffect::Data(data)) = (part, &operation.change) {
        return snapshot.write(operation.offset, data);
    }
    for sector in 0..length.div_ceil(SECTOR_BYTES) {
        if !part.has(sector) {
            continue;
        }
        let start = sector * SECTOR_BYTES;
        let end = (start + SECTOR_BYTES).min(length);
        let bytes = match &operation.change {
            RangeEffect::Data(data) => &data[start as usize..end as usize],
            RangeEffect::Zeroes(_) => &zeroes[..(end - start) as usize],
        };
        snapshot.write(operation.offset + start, bytes);
    }
}

fn piece_hash(snapshot: &DeviceSnapshot, piece: u64) -> u64 {
    let start = piece * PIECE_BYTES;
    let mut bytes = [0u8; PIECE_BYTES as usize];
    let length = PIECE_BYTES.min(snapshot.size_bytes().saturating_sub(start)) as usize;
    snapshot.read(start, &mut bytes[..length]);
    if bytes.iter().all(|&byte| byte == 0) { 0 } else { xxh3_64_with_seed(&bytes, piece) }
}
