//! Replay: reads all valid appends from the newest manifest on; the result is the tables and the end of the journal.
//!
//! Promises: an append is valid only if it continues the chain, and in a sealed epoch only up to the seal. The journal
//! of the current epoch ends at the first append that is not valid. If a later append shows that the missing one was
//! flushed, the volume is damaged. An append with a correct checksum that cannot be decoded is damage, too. Leaves to
//! others: deciding who may write.

use nectary_block::Buffer;

use super::cursor::{ManifestPlace, POINTERS, end_of};
use super::disk::BlockDisk;
use super::error::Error;
use super::heads;
use super::run::{load, segment_of, segments};
use super::segments::metadata;
use super::transactions::apply;
use crate::format::{
    BLOCK_BYTES, EpochHead, FormatProblem, FrameKind, FramePosition, JournalAppend, Mutation, MutationAction,
    RunRecord, SegmentHeader, SegmentUse, TableKey, TableKind, Transaction, TransactionKind, VerifiedFrame,
    VolumeLabel,
};
use crate::planted::{Bug, planted};
use crate::tables::MetadataTables;

/// The offset of flushed_sequence in an append. *Units*: bytes.
const FLUSHED_AT: usize = 72;
/// Blocks of the first read of a part of the journal. Each read that follows has twice as many, up to a bound: most
/// epochs have few appends, and more than one of them is read.
const WINDOW_BLOCKS_MIN: u64 = 64;
const WINDOW_BLOCKS_MAX: u64 = 256;
/// Runs of a manifest, at most.
const RUNS_MAX: usize = 4096;

/// The state of the volume that replay found on the disk.
pub(super) struct ReplayResult {
    pub head: EpochHead,
    pub tables: MetadataTables,
    pub runs: Vec<(u64, RunRecord)>,
    pub run_segments: Vec<u64>,
    /// The journal segments that replay read, the oldest first.
    pub journal: Vec<u64>,
    pub manifest: ManifestPlace,
    pub next_sequence: u64,
    pub chain: u32,
    /// The number of journal blocks from the manifest on.
    pub journal_blocks: u64,
    pub notes: Vec<String>,
}

/// Reads all records.
pub(super) async fn replay(disk: &BlockDisk, label: &VolumeLabel) -> Result<ReplayResult, Error> {
    let heads = heads::read(disk, label).await?;
    let head = heads::current(&heads)?;
    let first = header(disk, label, head.journal_segment).await?;
    if first.epoch != head.epoch || first.number != 0 {
        return Err(Error::damaged(head.journal_segment, format!("epoch {} does not begin here", head.epoch)));
    }
    let manifest = newest_manifest(disk, label, &head, &first).await?;
    let segment = match manifest.sequence {
        0 => head.base_segment,
        _ => segment_of(label, manifest.block),
    };
    let base = header(disk, label, segment).await?;
    let line = heads::line(&heads, base.epoch)?;
    let (block, sequence, chain) = match manifest.sequence {
        0 => (segment + 1, base.first_sequence, base.chain),
        _ => (manifest.block, manifest.sequence, manifest.chain),
    };
    if sequence == 0 {
        return Err(Error::damaged(segment, "appends are counted from 1"));
    }
    let found = ReplayResult {
        head,
        tables: MetadataTables::default(),
        runs: Vec::new(),
        run_segments: Vec::new(),
        journal: vec![segment],
        manifest,
        next_sequence: sequence,
        chain,
        journal_blocks: 0,
        notes: Vec::new(),
    };
    let window = ReadWindow::new();
    let mut walk = JournalWalk { disk, label, found, segment, number: base.number, block, window };
    if manifest.sequence != 0 {
        walk.load_runs().await?;
    }
    for (index, head) in line.iter().enumerate() {
        if index > 0 {
            walk.enter(head).await?;
        }
        walk.epoch(head.epoch, line.get(index + 1)).await?;
    }
    let mut found = walk.found;
    if found.manifest.sequence > manifest.sequence {
        // The journal contains a newer manifest than the pointers name. Segments that only an older manifest needs are
        // not needed any more.
        let start = segment_of(label, found.manifest.block);
        let from = found.journal.iter().rposition(|segment| *segment == start).unwrap_or(0);
        found.journal.drain(..from);
        found.run_segments.clear();
        for (number, run) in found.runs.clone() {
            found.run_segments.extend(segments(disk, label, number, &run).await?);
        }
    }
    Ok(found)
}

/// Reads the header of a segment, which must belong to a journal.
async fn header(disk: &BlockDisk, label: &VolumeLabel, segment: u64) -> Result<SegmentHeader, Error> {
    let bytes = disk.read(segment, 1).await?;
    match SegmentHeader::decode(label.volume, segment, &bytes) {
        Ok(header) if header.segment_use == SegmentUse::Journal => Ok(header),
        Ok(_) => Err(Error::damaged(segment, "a segment of runs is where the journal should be")),
        Err(error) => Err(Error::damaged(segment, error.to_string())),
    }
}

/// Returns the newest manifest that the epoch's pointers or the header of its first segment name.
async fn newest_manifest(
    disk: &BlockDisk,
    label: &VolumeLabel,
    head: &EpochHead,
    first: &SegmentHeader,
) -> Result<ManifestPlace, Error> {
    let place = |header: &SegmentHeader| ManifestPlace {
        sequence: header.manifest_sequence,
        block: header.manifest_block,
        chain: header.manifest_chain,
    };
    let mut newest = (0, place(first));
    let start = head.journal_segment + label.segment_blocks - POINTERS;
    let bytes = disk.read(start, POINTERS).await?;
    for (bytes, block) in bytes.chunks_exact(BLOCK_BYTES).zip(start..) {
        let Ok(pointer) = SegmentHeader::decode(label.volume, block, bytes) else { continue };
        if pointer.epoch == head.epoch && pointer.number > newest.0 {
            newest = (pointer.number, place(&pointer));
        }
    }
    Ok(newest.1)
}

/// Blocks that were read ahead.
struct ReadWindow {
    start: u64,
    bytes: Buffer,
    /// How many blocks the last read had.
    ahead: u64,
}

impl ReadWindow {
    fn new() -> ReadWindow {
        ReadWindow { start: 0, bytes: Buffer::zeroed(0), ahead: 0 }
    }

    fn end(&self) -> u64 {
        self.start + (self.bytes.len() / BLOCK_BYTES) as u64
    }

    /// The bytes from a block on: a complete append, or everything up to `end`.
    async fn from(&mut self, disk: &BlockDisk, block: u64, end: u64) -> Result<&[u8], Error> {
        self.read(disk, block, 1, end).await?;
        let blocks = VerifiedFrame::blocks_said(FrameKind::Append, self.at(block, end));
        self.read(disk, block, blocks.min(end - block), end).await?;
        Ok(self.at(block, end))
    }

    fn at(&self, block: u64, end: u64) -> &[u8] {
        let until = self.end().min(end);
        &self.bytes[(block - self.start) as usize * BLOCK_BYTES..(until - self.start) as usize * BLOCK_BYTES]
    }

    /// Makes sure that so many blocks are there.
    async fn read(&mut self, disk: &BlockDisk, block: u64, blocks: u64, end: u64) -> Result<(), Error> {
        if block >= self.start && block + blocks <= self.end() {
            return Ok(());
        }
        let follows = (self.start..=self.end()).contains(&block);
        self.ahead = if follows { (2 * self.ahead).min(WINDOW_BLOCKS_MAX) } else { 0 }.max(WINDOW_BLOCKS_MIN);
        self.bytes = disk.read(block, self.ahead.max(blocks).min(end - block)).await?;
        self.start = block;
        Ok(())
    }
}

/// The state of reading along the journal.
struct JournalWalk<'a> {
    disk: &'a BlockDisk,
    label: &'a VolumeLabel,
    found: ReplayResult,
    segment: u64,
    number: u64,
    block: u64,
    window: ReadWindow,
}

impl JournalWalk<'_> {
    /// Loads the runs of the manifest at which the walk begins.
    async fn load_runs(&mut self) -> Result<(), Error> {
        let (block, end) = (self.block, end_of(self.label, self.segment, self.number));
        if block >= end {
            return Err(Error::damaged(block, "no manifest can be here"));
        }
        let bytes = self.window.from(self.disk, block, end).await?;
        let append = JournalAppend::decode(self.label.volume, block, self.found.chain, bytes);
        let append = append.map_err(|error| Error::damaged(block, format!("the newest manifest: {error}")))?.0;
        let manifest = append.transactions.iter().find(|transaction| transaction.kind == TransactionKind::Manifest);
        let manifest = manifest.ok_or_else(|| Error::damaged(block, "there is no manifest in this append"))?;
        let runs = runs_of(manifest).map_err(|what| Error::damaged(block, what))?;
        for (number, run) in runs.iter().rev() {
            let segments = load(self.disk, self.label, *number, run, &mut self.found.tables).await?;
            self.found.run_segments.extend(segments);
        }
        Ok(())
    }

    /// Continues with the first segment of the next epoch.
    async fn enter(&mut self, head: &EpochHead) -> Result<(), Error> {
        let first = header(self.disk, self.label, head.journal_segment).await?;
        if first.epoch != head.epoch || first.number != 0 || first.first_sequence != self.found.next_sequence {
            let what = format!("epoch {} does not begin here with append {}", head.epoch, self.found.next_sequence);
            return Err(Error::damaged(head.journal_segment, what));
        }
        (self.segment, self.number, self.block) = (head.journal_segment, 0, head.journal_segment + 1);
        self.found.journal.push(self.segment);
        Ok(())
    }

    /// Replays an epoch up to its seal, or to its end if it is the current one.
    async fn epoch(&mut self, epoch: u64, next: Option<&EpochHead>) -> Result<(), Error> {
        let sealed = next.map(|head| head.sealed_sequence).filter(|_| !planted(Bug::SealIgnored));
        while sealed.is_none_or(|sealed| self.found.next_sequence <= sealed) {
            if !self.step(epoch).await? {
                break;
            }
        }
        let last = self.found.next_sequence - 1;
        match next {
            None => self.check_end(epoch).await,
            Some(head) if last != head.sealed_sequence || self.found.chain != head.sealed_chain => {
                let what = format!(
                    "the journal of epoch {epoch} ends with append {last}, epoch {} sealed it with {}",
                    head.epoch, head.sealed_sequence
                );
                Err(Error::damaged(self.block, what))
            }
            Some(_) => Ok(()),
        }
    }

    /// Replays the next append, if there is one; returns whether there was.
    async fn step(&mut self, epoch: u64) -> Result<bool, Error> {
        let (label, block) = (self.label, self.block);
        let end = end_of(label, self.segment, self.number);
        if block >= end {
            return Ok(false);
        }
        let sequence = self.found.next_sequence;
        let bytes = self.window.from(self.disk, block, end).await?;
        let (append, blocks, chain) = match JournalAppend::decode(label.volume, block, self.found.chain, bytes) {
            Ok(decoded) if decoded.0.epoch == epoch && decoded.0.sequence == sequence => decoded,
            Ok(_) => return Ok(false),
            Err(error) => {
                let place = FramePosition { volume: Some(label.volume), address: block };
                let frame = VerifiedFrame::decode(FrameKind::Append, place, bytes).ok();
                let is_it = frame.is_some_and(|frame| frame.epoch == epoch && frame.sequence == sequence);
                return match error.problem {
                    FormatProblem::Checksum { .. } => Ok(false),
                    _ if is_it => Err(Error::damaged(block, format!("append {sequence}: {error}"))),
                    _ => Ok(false),
                };
            }
        };
        self.count(&append, block)?;
        (self.found.chain, self.found.next_sequence) = (chain, sequence + 1);
        self.block += blocks;
        self.found.journal_blocks += blocks;
        if append.next_segment != 0 {
            return self.move_on(epoch, append.next_segment).await;
        }
        Ok(true)
    }

    /// Applies an append.
    fn count(&mut self, append: &JournalAppend, block: u64) -> Result<(), Error> {
        for transaction in &append.transactions {
            if transaction.kind == TransactionKind::Manifest {
                self.found.runs = runs_of(transaction).map_err(|what| Error::damaged(block, what))?;
                self.found.manifest = ManifestPlace { sequence: append.sequence, block, chain: self.found.chain };
                self.found.journal_blocks = 0;
            }
            apply(&mut self.found.tables, transaction).map_err(|error| Error::damaged(block, error.to_string()))?;
        }
        Ok(())
    }

    /// Continues in the next segment, if a segment was begun there.
    async fn move_on(&mut self, epoch: u64, next: u64) -> Result<bool, Error> {
        let label = self.label;
        if !next.is_multiple_of(label.segment_blocks) || next + label.segment_blocks > self.disk.blocks() {
            return Err(Error::damaged(self.block, format!("it goes on in block {next}, where no segment can be")));
        }
        let bytes = self.disk.read(next, 1).await?;
        let begun = SegmentHeader::decode(label.volume, next, &bytes).is_ok_and(|header| {
            header.epoch == epoch
                && header.segment_use == SegmentUse::Journal
                && Some(header.number) == self.number.checked_add(1)
                && header.first_sequence == self.found.next_sequence
                && header.previous == self.segment
        });
        if begun {
            (self.segment, self.number, self.block) = (next, self.number + 1, next + 1);
            self.found.journal.push(next);
        }
        Ok(begun)
    }

    /// Searches behind the end for an append which proves that the missing append had been flushed.
    async fn check_end(&mut self, epoch: u64) -> Result<(), Error> {
        let (start, end) = (self.block, end_of(self.label, self.segment, self.number));
        self.check_behind(epoch, (start, end)).await?;
        // The missing append may be the last one of its segment, the one that names the next segment; so all segments
        // of the epoch are searched.
        for (segment, owner) in metadata(&self.found.tables, self.label, self.disk.blocks())? {
            if owner != epoch {
                continue;
            }
            let bytes = self.disk.read(segment, 1).await?;
            let follows = SegmentHeader::decode(self.label.volume, segment, &bytes).is_ok_and(|header| {
                header.epoch == epoch
                    && header.segment_use == SegmentUse::Journal
                    && Some(header.number) == self.number.checked_add(1)
                    && header.previous == self.segment
            });
            if follows {
                self.check_behind(epoch, (segment + 1, end_of(self.label, segment, self.number + 1))).await?;
            }
        }
        Ok(())
    }

    /// Searches a range of blocks for such an append.
    async fn check_behind(&mut self, epoch: u64, (start, end): (u64, u64)) -> Result<(), Error> {
        let missing = self.found.next_sequence;
        for block in start..end {
            let bytes = self.window.from(self.disk, block, end).await?;
            let place = FramePosition { volume: Some(self.label.volume), address: block };
            let Ok(frame) = VerifiedFrame::decode(FrameKind::Append, place, bytes) else { continue };
            let flushed = frame.bytes.get(FLUSHED_AT..FLUSHED_AT + 8).and_then(|bytes| bytes.try_into().ok());
            let flushed = flushed.map_or(0, u64::from_le_bytes);
            if frame.epoch == epoch && frame.sequence > missing && flushed >= missing {
                let what = format!("append {missing} had been flushed, as append {} says, and is gone", frame.sequence);
                return Err(Error::damaged(self.block, what));
            }
            if frame.epoch == epoch && frame.sequence >= missing && block > self.block {
                let note = format!("append {} in block {block} does not count: one before it is torn", frame.sequence);
                self.found.notes.push(note);
            }
        }
        Ok(())
    }
}

/// The runs of a manifest, the newest first.
fn runs_of(manifest: &Transaction) -> Result<Vec<(u64, RunRecord)>, String> {
    let mut runs = Vec::new();
    for Mutation { table, key, action } in &manifest.mutations {
        let (TableKind::Runs, MutationAction::Put(value)) = (table, action) else { continue };
        let TableKey::Run(number) = TableKey::decode(*table, key).map_err(|error| error.to_string())? else { continue };
        runs.push((number, RunRecord::decode(value).map_err(|error| format!("run {number}: {error}"))?));
    }
    match runs.len() {
        0..=RUNS_MAX => Ok(runs),
        count => Err(format!("a manifest of {count} runs, at most {RUNS_MAX} are allowed")),
    }
}
