//! The position of the next append, and the blocks that a group of appends becomes.
//!
//! Owns: the position of the next append, and the change to the next segment. Promises: a plan neither writes nor
//! changes the cursor; when a plan is written completely, in order, it continues the chain. Each segment keeps one
//! block free for the append that names the next segment.

use std::collections::VecDeque;

use super::error::Error;
use super::transactions::append_bytes;
use crate::format::{BLOCK_BYTES, JournalAppend, SegmentHeader, SegmentUse, Transaction, VolumeLabel};

/// The blocks at the end of an epoch's first segment that hold the two checkpoint pointers and no append.
pub(super) const POINTERS: u64 = 2;

/// The newest manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ManifestPlace {
    /// The number of the append with the manifest; 0: there is no manifest.
    pub sequence: u64,
    /// The first block of that append.
    pub block: u64,
    /// The chain checksum before that append.
    pub chain: u32,
}

/// The position of the next append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AppendCursor {
    pub epoch: u64,
    pub segment: u64,
    /// The number of the present segment in its epoch.
    pub number: u64,
    pub block: u64,
    pub sequence: u64,
    pub chain: u32,
    /// Appends up to this one are flushed.
    pub flushed: u64,
}

/// Frames to write, in this order, and the cursor after they are written.
pub(super) struct AppendPlan {
    pub frames: Vec<(u64, Vec<u8>)>,
    pub cursor: AppendCursor,
    /// The next segments that the plan begins.
    pub segments: Vec<u64>,
    /// The position of the last append.
    pub last: ManifestPlace,
}

/// Returns the end of the part of a segment that appends may use. *Units*: blocks.
pub(super) fn end_of(label: &VolumeLabel, segment: u64, number: u64) -> u64 {
    segment + label.segment_blocks - if number == 0 { POINTERS } else { 0 }
}

impl AppendCursor {
    /// Plans the appends of these groups of transactions.
    pub fn plan(
        &self,
        label: &VolumeLabel,
        groups: Vec<Vec<Transaction>>,
        spare: &VecDeque<u64>,
        manifest: ManifestPlace,
        time_ns: u64,
    ) -> Result<AppendPlan, Error> {
        let mut spare = spare.iter().copied();
        let mut plan = AppendPlan { frames: Vec::new(), cursor: *self, segments: Vec::new(), last: manifest };
        for transactions in groups {
            let append = plan.cursor.append(transactions, time_ns);
            let blocks = append_bytes(&append.transactions).div_ceil(BLOCK_BYTES) as u64;
            if plan.cursor.block + blocks + 1 > end_of(label, plan.cursor.segment, plan.cursor.number) {
                plan.move_on(label, spare.next().ok_or(Error::NoSegment)?, manifest, time_ns)?;
            }
            plan.put(label, JournalAppend { sequence: plan.cursor.sequence, ..append })?;
        }
        Ok(plan)
    }

    fn append(&self, transactions: Vec<Transaction>, time_ns: u64) -> JournalAppend {
        let (epoch, sequence, flushed_sequence) = (self.epoch, self.sequence, self.flushed);
        JournalAppend { epoch, sequence, flushed_sequence, next_segment: 0, time_ns, transactions }
    }
}

impl AppendPlan {
    fn put(&mut self, label: &VolumeLabel, append: JournalAppend) -> Result<(), Error> {
        let AppendCursor { block, chain, sequence, .. } = self.cursor;
        let (bytes, next) = append.encode(label.volume, block, chain).map_err(Error::Bounds)?;
        self.last = ManifestPlace { sequence, block, chain };
        self.cursor.block += (bytes.len() / BLOCK_BYTES) as u64;
        self.cursor.chain = next;
        self.cursor.sequence += 1;
        self.frames.push((block, bytes));
        Ok(())
    }

    /// Writes an append without transactions that names the next segment, and begins that segment.
    fn move_on(&mut self, label: &VolumeLabel, next: u64, manifest: ManifestPlace, time_ns: u64) -> Result<(), Error> {
        let link = JournalAppend { next_segment: next, ..self.cursor.append(Vec::new(), time_ns) };
        self.put(label, link)?;
        let previous = self.cursor.segment;
        let header = first_block(&self.cursor, self.cursor.number + 1, previous, manifest);
        self.frames.push((next, header.encode(label.volume, next).map_err(Error::Bounds)?));
        self.cursor = AppendCursor { segment: next, number: self.cursor.number + 1, block: next + 1, ..self.cursor };
        self.segments.push(next);
        Ok(())
    }
}

/// Returns the header of a journal segment whose first append has the cursor's sequence.
pub(super) fn first_block(cursor: &AppendCursor, number: u64, previous: u64, manifest: ManifestPlace) -> SegmentHeader {
    SegmentHeader {
        epoch: cursor.epoch,
        segment_use: SegmentUse::Journal,
        number,
        previous,
        first_sequence: cursor.sequence,
        manifest_sequence: manifest.sequence,
        manifest_block: manifest.block,
        chain: cursor.chain,
        manifest_chain: manifest.chain,
    }
}
