//! The purge log on disk. It has two copies, each with two halves. Blocks are never rewritten within a cycle.
//!
//! Owns: writing purge records so that they are durable when a purge returns, and deciding which of them a log that is
//! opened has, and whether some are lost. Leaves to others: reading the blocks (`log_blocks`). The layout is in
//! `docs/formats/store.md`. One commit writes one block to both copies and flushes, so block n+1 is on
//! disk only if block n is durable: a gap in the log is damage, never an unfinished commit.

use std::sync::Arc;

use nectary_block::{Buffer, SharedDevice, write};
use nectary_host::fleet::AppliedMark;
use zerocopy::IntoBytes;

use crate::disk::span::SpanDisk;
use crate::error::{Error, StoreErrorKind};
use crate::format::layout::SpanLayout;
use crate::format::{
    self, BLOCK_BYTES, COUNTER_MAX, FrameMagic, FramePlace, HEADER_BYTES, LogEnd, PURGE_RECORDS_PER_BLOCK,
    PURGE_TAIL_OFFSET, PurgeBlockBody, PurgeBlockTail, PurgeRecord,
};
use crate::planted::{Bug, planted};
pub use crate::purge::log_blocks::PurgeOrder;
use crate::purge::log_blocks::{
    FoundBlock, LogSurvey, PurgeLogBlock, RECORDS_OFFSET, half_address, read_cycle, survey,
};
use crate::purge::purge_table::PurgeTable;

/// No log reaches this cycle: even with one cycle per microsecond, that takes more than ten thousand years. So this
/// program did not write a block with a higher cycle. If a new cycle got a number above such a block's, readers would
/// treat the number as damage.
const CYCLE_MAX: u64 = COUNTER_MAX / 2;

/// The purge log of a span, ready for writing.
pub struct PurgeLog {
    device: SharedDevice,
    layout: SpanLayout,
    end: LogEnd,
    /// Both halves may have blocks of cycles up to this one, including unfinished or damaged cycles.
    cycle_seen: u64,
    snapshot_blocks: u32,
    order: PurgeOrder,
    /// Whether the next records need a new cycle, because a write or a flush of this one failed.
    must_turn: bool,
}

/// The state of the log when the store was opened.
pub struct RecoveredPurgeLog {
    /// The log, ready for further records.
    pub log: PurgeLog,
    /// The records in the log.
    pub records: Vec<PurgeRecord>,
    /// For each record, the number of the last purge in its block.
    pub numbers: Vec<u64>,
    /// Whether durable records are missing.
    pub lost: bool,
    /// Whether a block is intact in only one of the two copies. If so, a new cycle should be begun.
    pub one_copy: bool,
}

impl RecoveredPurgeLog {
    /// The position of the log in the order of its store's purges.
    pub fn order(&self) -> PurgeOrder {
        self.log.order
    }

    /// Returns all records that another span may lack if it has the purges up to `number`; `None` if this log has lost
    /// some of its records.
    pub fn since(&self, number: u64) -> Option<impl Iterator<Item = &PurgeRecord>> {
        let records = self.records.iter().zip(&self.numbers);
        (!self.lost).then(|| {
            records
                .filter(move |(_, own)| **own + u64::from(planted(Bug::KnownPurgeRepeated)) > number)
                .map(|(record, _)| record)
        })
    }
}

impl PurgeLog {
    /// Writes the first cycle of a new store, without a flush.
    pub async fn create(device: &SharedDevice, layout: &SpanLayout) -> Result<(), Error> {
        let mut log = PurgeLog {
            device: Arc::clone(device),
            layout: *layout,
            end: LogEnd { cycle: 1, blocks: 0 },
            cycle_seen: 1,
            snapshot_blocks: 1,
            order: PurgeOrder::default(),
            must_turn: false,
        };
        log.write_block(&[]).await
    }

    fn at(
        device: &SharedDevice,
        layout: &SpanLayout,
        end: LogEnd,
        cycle_seen: u64,
        snapshot_blocks: u32,
        order: PurgeOrder,
    ) -> PurgeLog {
        let (device, layout) = (Arc::clone(device), *layout);
        PurgeLog { device, layout, end, cycle_seen, snapshot_blocks, order, must_turn: false }
    }

    /// The end of the log.
    pub fn end(&self) -> LogEnd {
        self.end
    }

    /// The position of the log in the order of its store's purges.
    pub fn order(&self) -> PurgeOrder {
        self.order
    }

    /// Raises the purge numbers that every later block records, if those in `order` are higher; a mark in it replaces the
    /// one that they record.
    pub fn advance(&mut self, order: PurgeOrder) {
        let number = self.order.number.max(order.number);
        self.order = self.order.max(PurgeOrder { number, ..order });
    }

    /// Forgets what the store has applied of its fleet's purges, as some of them may be lost.
    pub fn forget_mark(&mut self) {
        self.order.mark = AppliedMark::NONE;
    }

    /// The number of blocks for which a cycle has room.
    pub fn blocks_max(&self) -> u32 {
        (self.layout.purge_log_bytes / 2 / BLOCK_BYTES) as u32
    }

    /// Whether the cycle takes no other block: it has no room, or a write or flush of it failed.
    pub fn is_full(&self) -> bool {
        self.must_turn || self.end.blocks >= self.blocks_max()
    }

    /// The largest number of live records. A new cycle begins with the live records, and this limit leaves at least a
    /// quarter of the cycle's blocks free.
    pub fn live_records_max(&self) -> usize {
        (self.blocks_max() as usize * 3 / 4).max(1) * PURGE_RECORDS_PER_BLOCK
    }

    /// Appends up to one block of records, and flushes the span. The records are durable when this returns.
    ///
    /// *Errors*: those of the device; then no later record goes into this cycle.
    pub async fn commit(&mut self, records: &[PurgeRecord], span: &SpanDisk) -> Result<(), Error> {
        self.must_turn = true;
        self.write_block(records).await?;
        if !planted(Bug::FlushDropped) {
            span.flush().await?;
        }
        self.must_turn = false;
        Ok(())
    }

    /// Begins a new cycle with the table's live records, and flushes: through `span` if it is given, otherwise the
    /// device.
    ///
    /// *Errors*: those of the device; `Corrupt` if no higher cycle is allowed, and then nothing was written. After an
    /// error the log is as before, but the next records need a new cycle. That cycle goes into the same half as the
    /// failed one, so that the last good cycle stays.
    pub async fn compact(&mut self, table: &PurgeTable, span: Option<&SpanDisk>) -> Result<(), Error> {
        let before = (self.end, self.snapshot_blocks);
        self.must_turn = true;
        let begun = self.begin_cycle(table, span).await;
        match &begun {
            Ok(()) => self.must_turn = false,
            Err(_) => (self.end, self.snapshot_blocks) = before,
        }
        begun
    }

    async fn begin_cycle(&mut self, table: &PurgeTable, span: Option<&SpanDisk>) -> Result<(), Error> {
        // A record is retired only after the data that overwrote its segments were flushed
        // (`SpanWriter::open_next_segment`). So no object that can reappear after a crash needs a record that is missing
        // here.
        let records = table.records();
        self.end = LogEnd { cycle: checked(self.next_cycle())?, blocks: 0 };
        self.cycle_seen = self.end.cycle;
        self.snapshot_blocks = records.len().div_ceil(PURGE_RECORDS_PER_BLOCK).max(1) as u32;
        if records.is_empty() {
            self.write_block(&[]).await?;
        }
        for chunk in records.chunks(PURGE_RECORDS_PER_BLOCK) {
            self.write_block(chunk).await?;
        }
        match span {
            _ if planted(Bug::CompactionUnflushed) => Ok(()),
            Some(span) => span.flush().await,
            None => Ok(self.device.flush(Default::default()).await?),
        }
    }

    /// The number of the next cycle. It selects the other half of the log. It is higher than the numbers of all blocks
    /// that may still be there, so no old block is mistaken for one of the new cycle.
    fn next_cycle(&self) -> u64 {
        let seen = if planted(Bug::PurgeCycleReused) { 0 } else { self.cycle_seen };
        let next = self.end.cycle.max(seen) + 1;
        if next % 2 == self.end.cycle % 2 { next + 1 } else { next }
    }

    /// Reads the log of an existing store.
    ///
    /// *Errors*: `Corrupt` if a block has a cycle that no log reaches.
    pub async fn recover(device: &SharedDevice, layout: &SpanLayout) -> Result<RecoveredPurgeLog, Error> {
        let LogSurvey { newest, cycles, has_unknown_head } = survey(device, layout).await;
        let newest = checked(newest)?;
        let mut lost = cycles.is_empty();
        for &cycle in &cycles {
            let blocks = read_cycle(device, layout, cycle).await;
            let snapshot_blocks =
                blocks.iter().filter_map(FoundBlock::intact).map(|block| block.snapshot_blocks).next();
            let snapshot_blocks = snapshot_blocks.unwrap_or(1);
            let whole = blocks.iter().take_while(|block| block.intact().is_some()).count();
            let beyond = blocks.iter().skip(whole).filter_map(FoundBlock::intact).count();
            // The first block that is missing ends the log, except if it may be there and cannot be read.
            let is_unknown = matches!(blocks.get(whole), Some(FoundBlock::Unknown));
            let snapshot_is_whole = whole >= snapshot_blocks as usize;
            let beyond_snapshot = blocks.iter().skip(snapshot_blocks as usize).filter_map(FoundBlock::intact).count();
            if !snapshot_is_whole && beyond_snapshot == 0 && !is_unknown {
                // A crash interrupted the beginning of this cycle; the cycle before it is complete.
                continue;
            }
            lost |= beyond > 0 || !snapshot_is_whole || is_unknown || has_unknown_head;
            let blocks: Vec<PurgeLogBlock> = blocks.into_iter().filter_map(FoundBlock::into_intact).collect();
            let one_copy = blocks.iter().any(|block| block.copies == 1);
            let order = blocks.iter().fold(PurgeOrder::default(), |order, block| order.max(block.order));
            let numbered =
                |block: PurgeLogBlock| block.records.into_iter().map(move |record| (record, block.order.number));
            let (records, numbers) = blocks.into_iter().flat_map(numbered).unzip();
            let end = LogEnd { cycle, blocks: whole as u32 };
            let cycle_seen = newest.max(cycle);
            let log = PurgeLog::at(device, layout, end, cycle_seen, snapshot_blocks, order);
            return Ok(RecoveredPurgeLog { log, records, numbers, lost, one_copy });
        }
        lost |= !cycles.is_empty();
        let cycle = cycles.first().copied().unwrap_or(0);
        let end = LogEnd { cycle, blocks: 0 };
        let cycle_seen = newest.max(cycle);
        let (order, snapshot_blocks) = (PurgeOrder::default(), 1);
        let log = PurgeLog::at(device, layout, end, cycle_seen, snapshot_blocks, order);
        Ok(RecoveredPurgeLog { log, records: Vec::new(), numbers: Vec::new(), lost, one_copy: true })
    }

    async fn write_block(&mut self, records: &[PurgeRecord]) -> Result<(), Error> {
        for copy in 0..2 {
            let address =
                half_address(&self.layout, copy, self.end.cycle % 2) + u64::from(self.end.blocks) * BLOCK_BYTES;
            let mut buffer = Buffer::zeroed(BLOCK_BYTES as usize);
            let body = PurgeBlockBody {
                number: self.end.blocks.into(),
                snapshot_blocks: self.snapshot_blocks.into(),
                record_count: (records.len() as u32).into(),
                reserved: 0.into(),
            };
            buffer[HEADER_BYTES..RECORDS_OFFSET].copy_from_slice(body.as_bytes());
            for (slot, record) in buffer[RECORDS_OFFSET..].chunks_exact_mut(size_of::<PurgeRecord>()).zip(records) {
                slot.copy_from_slice(record.as_bytes());
            }
            let PurgeOrder { number, held, mark } = self.order;
            let tail = PurgeBlockTail {
                purge_number: number.into(),
                purge_held: held.into(),
                fleet_revision: mark.revision.into(),
                fleet_identity: mark.fleet.into(),
                fleet_rules: mark.rules.current.into(),
                fleet_missed: mark.rules.missed.into(),
            };
            buffer[PURGE_TAIL_OFFSET..][..size_of::<PurgeBlockTail>()].copy_from_slice(tail.as_bytes());
            let place = FramePlace { identity: self.layout.identity, epoch: self.end.cycle, address };
            format::seal(&mut buffer, FrameMagic::Purge, place, BLOCK_BYTES as usize);
            write(&*self.device, address, buffer).await?;
        }
        self.end.blocks += 1;
        Ok(())
    }
}

/// Returns `cycle` itself. *Errors*: `Corrupt` if it is higher than any cycle that a log can reach.
fn checked(cycle: u64) -> Result<u64, Error> {
    let message = || format!("the purge log says cycle {cycle}, which no log gets to: make a new store");
    if cycle <= CYCLE_MAX { Ok(cycle) } else { Err(Error::new(StoreErrorKind::Corrupt, message())) }
}
