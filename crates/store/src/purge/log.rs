//! The purge log on disk. It has two copies, each with two halves. Blocks are never rewritten within a cycle.
//!
//! Owns: writing purge records so that they are durable when a purge returns, and reading them when a store is opened.
//! The layout is in `docs/formats/store.md`. One commit writes one block to both copies and flushes, so block n+1 is on
//! disk only if block n is durable: a gap in the log is damage, never an unfinished commit.

use std::sync::Arc;

use nectary_block::{Buffer, SharedDevice, read, write};
use zerocopy::{FromBytes, IntoBytes};

use crate::disk::span::Span;
use crate::error::{Error, ErrorKind};
use crate::format::layout::Layout;
use crate::format::{
    self, BLOCK_BYTES, COUNTER_MAX, HEADER_BYTES, LogEnd, Magic, PURGE_RECORDS_PER_BLOCK, PURGE_TAIL_OFFSET, Place,
    PurgeBlockBody, PurgeBlockTail, PurgeRecord,
};
use crate::names::key::PRIMARY_BYTES_MAX;
use crate::planted::{Bug, planted};
use crate::purge::rules::{PurgeTable, RULE_ALL, RULE_KEY, RULE_PREFIX, RULE_TAG};

/// The size of a read of the log, in bytes.
const CHUNK_BYTES: u64 = 256 << 10;
const RECORDS_OFFSET: usize = HEADER_BYTES + size_of::<PurgeBlockBody>();

/// No log reaches this cycle: even with one cycle per microsecond, that takes more than ten thousand years. So this
/// program did not write a block with a higher cycle. If a new cycle got a number above such a block's, readers would
/// treat the number as damage.
const CYCLE_MAX: u64 = COUNTER_MAX / 2;

/// The position of a span in the order of its store's purges. Purges are numbered, and go to every span in the same
/// order. In a store of one span, both numbers are 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PurgeOrder {
    /// The number of the last purge that is in the log.
    pub number: u64,
    /// The highest purge number that is known to be durable on every present span.
    pub held: u64,
}

impl PurgeOrder {
    /// Returns the larger value of each field.
    pub fn max(self, other: PurgeOrder) -> PurgeOrder {
        PurgeOrder { number: self.number.max(other.number), held: self.held.max(other.held) }
    }
}

/// The purge log of a span, ready for writing.
pub struct PurgeLog {
    device: SharedDevice,
    layout: Layout,
    end: LogEnd,
    /// Both halves may have blocks of cycles up to this one, including unfinished or damaged cycles.
    cycle_seen: u64,
    snapshot_blocks: u32,
    order: PurgeOrder,
    /// Whether the next records need a new cycle, because a write or a flush of this one failed.
    must_turn: bool,
}

/// The state of the log when the store was opened.
pub struct Recovered {
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

impl Recovered {
    /// The position of the log in the order of its store's purges.
    pub fn order(&self) -> PurgeOrder {
        self.log.order
    }

    /// Returns all records that another span may lack if it has the purges up to `number`; `None` if this log has lost
    /// some of its records.
    pub fn since(&self, number: u64) -> Option<impl Iterator<Item = &PurgeRecord>> {
        let records = self.records.iter().zip(&self.numbers);
        (!self.lost).then(|| records.filter(move |(_, own)| **own > number).map(|(record, _)| record))
    }
}

impl PurgeLog {
    /// Writes the first cycle of a new store, without a flush.
    pub async fn create(device: &SharedDevice, layout: &Layout) -> Result<(), Error> {
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
        layout: &Layout,
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

    /// Raises the purge numbers that every later block records, if those in `order` are higher.
    pub fn advance(&mut self, order: PurgeOrder) {
        self.order = self.order.max(order);
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
    pub async fn commit(&mut self, records: &[PurgeRecord], span: &Span) -> Result<(), Error> {
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
    pub async fn compact(&mut self, table: &PurgeTable, span: Option<&Span>) -> Result<(), Error> {
        let before = (self.end, self.snapshot_blocks);
        self.must_turn = true;
        let begun = self.begin_cycle(table, span).await;
        match &begun {
            Ok(()) => self.must_turn = false,
            Err(_) => (self.end, self.snapshot_blocks) = before,
        }
        begun
    }

    async fn begin_cycle(&mut self, table: &PurgeTable, span: Option<&Span>) -> Result<(), Error> {
        // A record is retired only after the data that overwrote its segments were flushed
        // (`Writer::open_next_segment`). So no object that can reappear after a crash needs a record that is missing
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
        let next = self.end.cycle.max(self.cycle_seen) + 1;
        if next % 2 == self.end.cycle % 2 { next + 1 } else { next }
    }

    /// Reads the log of an existing store.
    ///
    /// *Errors*: `Corrupt` if a block has a cycle that no log reaches.
    pub async fn recover(device: &SharedDevice, layout: &Layout) -> Result<Recovered, Error> {
        let newest = checked(newest_cycle(device, layout).await)?;
        let mut cycles: Vec<u64> = Vec::new();
        for half in 0..2 {
            for copy in 0..2 {
                let address = half_address(layout, copy, half);
                let cycle = read_block(device, address).await.and_then(|bytes| {
                    let header = format::open_unplaced(&bytes, Magic::Purge).ok()?;
                    let cycle = header.epoch.get();
                    (header.identity.get() == layout.identity && cycle % 2 == half).then_some(cycle)
                });
                cycles.extend(cycle);
            }
        }
        cycles.sort_unstable_by(|a, b| b.cmp(a));
        cycles.dedup();
        let mut lost = cycles.is_empty();
        for &cycle in &cycles {
            let blocks = read_cycle(device, layout, cycle).await;
            let snapshot_blocks = blocks.iter().flatten().map(|block| block.snapshot_blocks).next().unwrap_or(1);
            let whole = blocks.iter().take_while(|block| block.is_some()).count();
            let beyond = blocks.iter().skip(whole).flatten().count();
            let snapshot_is_whole = whole >= snapshot_blocks as usize;
            if !snapshot_is_whole && blocks.iter().skip(snapshot_blocks as usize).flatten().count() == 0 {
                // A crash interrupted the beginning of this cycle; the cycle before it is complete.
                continue;
            }
            lost |= beyond > 0 || !snapshot_is_whole;
            let one_copy = blocks.iter().flatten().any(|block| block.copies == 1);
            let order = blocks.iter().flatten().fold(PurgeOrder::default(), |order, block| order.max(block.order));
            let blocks = blocks.into_iter().flatten();
            let numbered = |block: Block| block.records.into_iter().map(move |record| (record, block.order.number));
            let (records, numbers) = blocks.flat_map(numbered).unzip();
            let end = LogEnd { cycle, blocks: whole as u32 };
            let cycle_seen = newest.max(cycle);
            let log = PurgeLog::at(device, layout, end, cycle_seen, snapshot_blocks, order);
            return Ok(Recovered { log, records, numbers, lost, one_copy });
        }
        lost |= !cycles.is_empty();
        let cycle = cycles.first().copied().unwrap_or(0);
        let end = LogEnd { cycle, blocks: 0 };
        let cycle_seen = newest.max(cycle);
        let (order, snapshot_blocks) = (PurgeOrder::default(), 1);
        let log = PurgeLog::at(device, layout, end, cycle_seen, snapshot_blocks, order);
        Ok(Recovered { log, records: Vec::new(), numbers: Vec::new(), lost, one_copy: true })
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
            let tail = PurgeBlockTail { purge_number: self.order.number.into(), purge_held: self.order.held.into() };
            buffer[PURGE_TAIL_OFFSET..][..size_of::<PurgeBlockTail>()].copy_from_slice(tail.as_bytes());
            let place = Place { identity: self.layout.identity, epoch: self.end.cycle, address };
            format::seal(&mut buffer, Magic::Purge, place, BLOCK_BYTES as usize);
            write(&*self.device, address, buffer).await?;
        }
        self.end.blocks += 1;
        Ok(())
    }
}

/// Returns `cycle` itself. *Errors*: `Corrupt` if it is higher than any cycle that a log can reach.
fn checked(cycle: u64) -> Result<u64, Error> {
    let message = || format!("the purge log says cycle {cycle}, which no log gets to: make a new store");
    if cycle <= CYCLE_MAX { Ok(cycle) } else { Err(Error::new(ErrorKind::Corrupt, message())) }
}

struct Block {
    copies: u32,
    snapshot_blocks: u32,
    order: PurgeOrder,
    records: Vec<PurgeRecord>,
}

fn half_address(layout: &Layout, copy: usize, half: u64) -> u64 {
    layout.purge_log_offset[copy] + half * (layout.purge_log_bytes / 2)
}

async fn read_block(device: &SharedDevice, address: u64) -> Option<Buffer> {
    read(&**device, address, BLOCK_BYTES as usize).await.ok()
}

/// The highest cycle with an intact block in either half; 0 if there is none.
async fn newest_cycle(device: &SharedDevice, layout: &Layout) -> u64 {
    let mut newest = 0;
    for start in layout.purge_log_offset {
        for offset in (0..layout.purge_log_bytes).step_by(CHUNK_BYTES as usize) {
            let length = CHUNK_BYTES.min(layout.purge_log_bytes - offset);
            let Ok(bytes) = read(&**device, start + offset, length as usize).await else { continue };
            for block in bytes.chunks(BLOCK_BYTES as usize) {
                let header = format::open_unplaced(block, Magic::Purge).ok();
                let cycle = header.filter(|header| header.identity.get() == layout.identity);
                newest = newest.max(cycle.map_or(0, |header| header.epoch.get()));
            }
        }
    }
    newest
}

/// Reads all blocks of a cycle, each from a copy in which the block is intact.
async fn read_cycle(device: &SharedDevice, layout: &Layout, cycle: u64) -> Vec<Option<Block>> {
    let half_bytes = layout.purge_log_bytes / 2;
    let mut blocks = Vec::new();
    let mut offset = 0;
    while offset < half_bytes {
        let length = CHUNK_BYTES.min(half_bytes - offset);
        let mut copies = Vec::new();
        for copy in 0..2 {
            let start = half_address(layout, copy, cycle % 2);
            copies.push((start, read(&**device, start + offset, length as usize).await.ok()));
        }
        let before = blocks.len();
        for at in (0..length).step_by(BLOCK_BYTES as usize) {
            let number = ((offset + at) / BLOCK_BYTES) as u32;
            let mut found: Option<Block> = None;
            for (start, bytes) in &copies {
                let bytes = bytes.as_ref().and_then(|bytes| bytes.get(at as usize..(at + BLOCK_BYTES) as usize));
                let place = Place { identity: layout.identity, epoch: cycle, address: start + offset + at };
                match (bytes.and_then(|bytes| decode_block(bytes, place, number)), &mut found) {
                    (Some(_), Some(block)) => block.copies += 1,
                    (Some(block), None) => found = Some(block),
                    (None, _) => {}
                }
            }
            blocks.push(found);
        }
        offset += length;
        if blocks[before..].iter().all(Option::is_none) {
            break;
        }
    }
    blocks
}

fn decode_block(bytes: &[u8], place: Place, number: u32) -> Option<Block> {
    format::open(bytes, Magic::Purge, place).ok()?;
    let body: PurgeBlockBody = format::body(bytes).ok()?;
    let count = body.record_count.get() as usize;
    let (tail, _) = PurgeBlockTail::read_from_prefix(bytes.get(PURGE_TAIL_OFFSET..)?).ok()?;
    let order = PurgeOrder { number: tail.purge_number.get(), held: tail.purge_held.get() };
    if body.number.get() != number || count > PURGE_RECORDS_PER_BLOCK || order.held.max(order.number) > COUNTER_MAX {
        return None;
    }
    let records = bytes[RECORDS_OFFSET..].chunks_exact(size_of::<PurgeRecord>()).take(count);
    let records = records.map(PurgeRecord::read_from_bytes).collect::<Result<Vec<_>, _>>().ok()?;
    let known = |record: &PurgeRecord| {
        let counted = record.generation.get() <= COUNTER_MAX && record.position.get() <= COUNTER_MAX;
        let bounded = (1..=PRIMARY_BYTES_MAX).contains(&usize::from(record.prefix_bytes.get()));
        let known = match record.rule {
            RULE_KEY | RULE_ALL => true,
            RULE_TAG => record.primary_hash.get() >> 64 == 0,
            RULE_PREFIX => bounded,
            _ => false,
        };
        counted && known
    };
    if !records.iter().all(known) {
        return None;
    }
    Some(Block { copies: 1, snapshot_blocks: body.snapshot_blocks.get(), order, records })
}
