//! Resuming after failed writes and flushes.
//!
//! Owns: what happens to the entries of a failed append, when the writer tries again, and when it gives up.
//!
//! A failed *write* leaves only its own range undefined. The rest of its segment is set aside, and its entries go back
//! to the front of the queue, for the next segment. Appends behind the failed one may be on the disk already. So all
//! waiting entries get new sequences in the same order, which keeps the log ordered: what is on the disk under an old
//! sequence is then an older copy of the same version. Before the first append into the next segment
//! 1. the device is flushed (as at the end of every segment),
//! 2. purges that cover waiting entries are logged again if their entries now go into a later segment than expected,
//! 3. a checkpoint is written, so that no recovery from a checkpoint has to find its way past the set-aside segment.
//!
//! A failed *flush* leaves everything that followed the last good flush in doubt. The kernel may have dropped these
//! writes, and the next flush would not say so. So no append, purge or sync succeeds until
//! 1. the appends since the last good flush are read back, verified, and written again in their places (a record that is
//!    not there any more becomes a damaged one, which hides what it replaced),
//! 2. the device is flushed,
//! 3. all remembered purges are written into a new cycle of the purge log.
//!
//! Attempts are repeated, at growing intervals. After [`FAILURES_MAX`] failures in a row the store takes no more writes.
//! A device that is only full does not count: it may get room at any time.

use std::time::Duration;

use nectary_block::{Buffer, CLEAR_LATCH, DeviceErrorKind as DeviceError, read, write};
use tokio::time::Instant;

use super::SpanWriter;
use crate::counters::Counters;
use crate::disk::span::SpanDisk;
use crate::error::{Error, StoreErrorKind};
use crate::format::{APPEND_HEADER_BYTES, DecodedAppend, DecodedRecord, FramePlace, GRANULE_BYTES, RecordLocation};
use crate::intake::queue::UnwrittenEntry;
use crate::put::purge::purge_position;

/// The store takes no more writes after this many failures in a row.
pub const FAILURES_MAX: u32 = 8;
/// The same while the store is being closed: the end of the process waits for this.
const FAILURES_MAX_CLOSING: u32 = 2;
/// The time until the first repeated attempt; each further failure makes it four times as long.
const DELAY: Duration = Duration::from_millis(10);
/// The longest time between two attempts.
const DELAY_MAX: Duration = Duration::from_secs(10);

/// An append that was written and not flushed yet.
pub(super) struct UnflushedAppend {
    pub epoch: u64,
    /// The start of the append in its segment, in bytes.
    pub offset: u64,
    pub bytes: u64,
    pub last_sequence: u64,
    /// The header and the table of the append.
    pub head: Vec<u8>,
}

/// What the writer has to do before it writes again, after failures.
#[derive(Default)]
pub(super) struct WriterTrouble {
    /// The entries of failed appends and of those behind them, in the order of their sequences.
    failed: Vec<UnwrittenEntry>,
    /// The failures since the last success that count, and all attempts since then.
    failures: u32,
    attempts: u32,
    /// The writes of purges that failed in a row.
    purge_failures: u32,
    /// When the writer tries again; `None` if nothing failed.
    retry_at: Option<Instant>,
    /// Whether the segment being written is set aside, so that the next one must be opened.
    is_set_aside: bool,
    /// Whether positions of purges were raised that the purge log does not have yet.
    log_is_old: bool,
    /// Whether a checkpoint must be written before the next append.
    needs_checkpoint: bool,
    /// Until an append with this sequence is written, no later sequence counts as written: entries with lower numbers
    /// got higher ones.
    held_sequence: u64,
    /// Everything on the disk up to this sequence was flushed, or will be written again up to `held_sequence`.
    aside_sequence: u64,
    /// Everything on the disk up to this sequence was flushed, or was written again under a higher one.
    pub settled_sequence: u64,
    /// Whether an append of this open was written.
    has_written: bool,
    /// The appends that no flush covers, oldest first.
    unflushed: Vec<UnflushedAppend>,
}

impl WriterTrouble {
    /// Whether the writer waits before it writes again.
    pub fn is_on(&self) -> bool {
        self.retry_at.is_some()
    }

    /// When the writer tries again.
    pub fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Whether callers that wait for the disk get an error now. After the first failed write they wait for the second
    /// attempt, which usually succeeds.
    pub fn is_told(&self, span: &SpanDisk) -> bool {
        span.health.is_latched() || (self.is_on() && self.attempts > 1)
    }

    /// Ends all attempts. Returns the entries that will not be written.
    pub fn end(&mut self) -> Vec<UnwrittenEntry> {
        self.retry_at = None;
        std::mem::take(&mut self.failed)
    }

    /// Notes that purges could not be written; returns whether this happened too often in a row.
    pub fn purge_failed(&mut self) -> bool {
        self.purge_failures += 1;
        self.purge_failures > FAILURES_MAX
    }

    /// Notes that purges were written.
    pub fn purge_succeeded(&mut self) {
        self.purge_failures = 0;
    }

    /// Keeps entries that cannot be written now.
    pub fn keep(&mut self, items: impl IntoIterator<Item = UnwrittenEntry>) {
        self.failed.extend(items);
    }

    /// Forgets the appends that a flush covers.
    pub fn forget_flushed(&mut self, flushed_sequence: u64) {
        self.unflushed.retain(|append| append.last_sequence > flushed_sequence);
    }
}

impl SpanWriter {
    /// Whether the entries of an append that has ended belong behind those of a failed one.
    pub(super) fn is_behind_failure(&self) -> bool {
        !self.trouble.failed.is_empty()
    }

    /// Processes a failed append, or one behind it.
    pub(super) fn append_failed(
        &mut self,
        items: Vec<(UnwrittenEntry, RecordLocation)>,
        append: &UnflushedAppend,
        error: Option<&Error>,
    ) {
        let is_first = self.trouble.failed.is_empty();
        self.trouble.keep(items.into_iter().map(|(item, _)| item));
        let Some(error) = error else { return };
        if is_first {
            // A device without room can have room for the same place later, so no further segment is given up for it.
            let is_kept = append.offset == 0 && is_full(error);
            self.appends.position.offset = if is_kept { 0 } else { self.span.layout.segment_bytes };
            self.trouble.is_set_aside |= !is_kept;
            if !is_kept {
                Counters::add(&self.span.counters.segments_set_aside, 1);
            }
        }
        Counters::add(&self.span.counters.writes_failed, 1);
        self.in_trouble(error);
    }

    /// Processes a successful append that no failed one precedes.
    pub(super) fn append_succeeded(&mut self, append: UnflushedAppend) -> bool {
        let is_counted = append.last_sequence >= self.trouble.held_sequence;
        let flushed = self.state.progress.flushed.load(std::sync::atomic::Ordering::Acquire);
        self.trouble.forget_flushed(flushed);
        self.trouble.unflushed.push(append);
        self.trouble.has_written = true;
        if is_counted {
            self.trouble.settled_sequence = self.trouble.aside_sequence;
        }
        if !self.trouble.is_on() && self.trouble.attempts > 0 {
            self.trouble.attempts = 0;
            self.trouble.failures = 0;
            self.span.health.set_trouble(None);
            self.span.note(format!("{}: it takes writes again", self.span.device.spec()));
        }
        is_counted
    }

    /// Forgets all appends that no flush covered, because one covers them now.
    pub(super) fn all_flushed(&mut self) {
        self.trouble.unflushed.clear();
    }

    /// Notes a failure after which the writer tries again later, or gives up.
    pub(super) fn in_trouble(&mut self, error: &Error) {
        if self.state.stopped().is_some() {
            // Those that still wait get the error.
            return self.fail(error);
        }
        if !self.is_of_latch(error) && error.kind == StoreErrorKind::Stopped {
            return self.fail(error);
        }
        let closing = self.is_closing;
        self.trouble.attempts += 1;
        self.trouble.failures += u32::from(closing || !is_full(error));
        let most = if closing { FAILURES_MAX_CLOSING } else { FAILURES_MAX };
        if self.trouble.failures > most {
            return self.fail(error);
        }
        let times = 4_u32.saturating_pow(self.trouble.attempts - 1);
        let delay = DELAY.saturating_mul(times).min(DELAY_MAX);
        self.trouble.retry_at = Some(Instant::now() + delay);
        let what = if self.span.health.is_latched() { "a flush failed" } else { "a write failed" };
        let reason = format!("{what}, attempt {}; it is tried again: {}", self.trouble.attempts, error.message);
        self.span.note(reason.clone());
        self.span.health.set_trouble(Some(reason));
    }

    /// Whether a failed flush is the cause of an error. A device that refuses writes after a failed flush may say so
    /// before the flush itself has been answered.
    pub(super) fn is_of_latch(&self, error: &Error) -> bool {
        if error.device_kind() == Some(DeviceError::Latched) {
            self.span.health.latch();
        }
        self.span.health.is_latched()
    }

    /// Tries to write again, if it is time.
    pub(super) async fn resume_if_due(&mut self) {
        if self.state.stopped().is_some() || self.trouble.retry_at.is_none_or(|at| at > Instant::now()) {
            return;
        }
        match self.resume().await {
            // A write that failed meanwhile has set the next attempt.
            Ok(()) if self.trouble.failed.is_empty() => self.trouble.retry_at = None,
            Ok(()) => {}
            Err(error) => self.in_trouble(&error),
        }
    }

    async fn resume(&mut self) -> Result<(), Error> {
        while let Some(written) = self.appends.next_written().await {
            self.complete(written).await;
        }
        let failed = std::mem::take(&mut self.trouble.failed);
        let generation = match failed.is_empty() {
            true => u64::MAX,
            false => {
                let (last, generation) = self.intake.queue.put_back(failed, || self.state.draw());
                // Who waits for an old sequence waits for the new ones.
                self.trouble.held_sequence = last;
                self.syncs.wait_for(last);
                generation
            }
        };
        if self.span.health.is_latched() {
            self.rewrite_unflushed().await?;
        }
        if self.trouble.is_set_aside {
            self.trouble.needs_checkpoint = true;
            let aside_sequence = self.appends.started_sequence();
            self.open_next_segment().await?;
            self.trouble.is_set_aside = false;
            // The first append of an open states where the last crash cut the log, so it is no other sequence.
            if self.trouble.has_written {
                self.trouble.aside_sequence = aside_sequence;
            }
            self.read_tables_ahead();
            self.begin_harvest();
        }
        if generation != u64::MAX {
            let position = self.intake.queue.ordered(|waiting_bytes| purge_position(&self.span, waiting_bytes));
            // Entries in a running fill have no position yet; their purges are kept until they end.
            self.trouble.log_is_old |= self.state.purges.raise(generation, position);
        }
        if self.trouble.log_is_old {
            self.log_purges_again(true).await?;
            self.trouble.log_is_old = false;
        }
        if self.trouble.needs_checkpoint {
            self.checkpoint_now().await?;
            self.trouble.needs_checkpoint = false;
        }
        Ok(())
    }

    /// Writes all remembered purges into a new cycle of the log.
    async fn log_purges_again(&mut self, through_span: bool) -> Result<(), Error> {
        self.end_purging().await;
        self.purges.log_again(&self.state, through_span.then_some(&*self.span)).await
    }

    /// After a failed flush: writes again what followed the last good one, and flushes.
    async fn rewrite_unflushed(&mut self) -> Result<(), Error> {
        self.end_flushing().await;
        self.end_purging().await;
        if let Some(ended) = self.checkpoints.ended().await {
            // Its error is that of the flush.
            let _ = self.checkpoint_ended(ended);
        }
        self.checkpoints.end_hot().await;
        // A device that does not latch does not know the option.
        let _ = self.span.device.set_option(CLEAR_LATCH.0, CLEAR_LATCH.1).await;
        let written = self.state.progress.written.load(std::sync::atomic::Ordering::Acquire);
        for append in &self.trouble.unflushed {
            let lost = rewrite_append(&self.span, append).await?;
            Counters::add(&self.span.counters.appends_rewritten, 1);
            if lost > 0 {
                let spec = self.span.device.spec();
                self.span.note(format!("{spec}: a failed flush lost {lost} records; their objects are misses"));
            }
        }
        Counters::add(&self.span.counters.flushes, 1);
        let flushed = self.span.device.flush(Default::default()).await;
        if let Err(error) = flushed {
            Counters::add(&self.span.counters.flushes_failed, 1);
            return Err(error.into());
        }
        self.log_purges_again(false).await?;
        self.span.health.unlatch();
        self.state.progress.flushed.fetch_max(written, std::sync::atomic::Ordering::AcqRel);
        self.all_flushed();
        self.trouble.failures = 0;
        Ok(())
    }
}

/// Whether the device only has no room.
fn is_full(error: &Error) -> bool {
    error.device_kind() == Some(DeviceError::Full)
}

/// Writes an append again in its place, from what the device still has of it. Returns the number of records that are
/// lost; their places get zeroes, so that their objects are misses and what they replaced stays hidden.
async fn rewrite_append(span: &SpanDisk, append: &UnflushedAppend) -> Result<u64, Error> {
    let layout = &span.layout;
    let address = layout.segment_start(append.epoch) + append.offset;
    let mut buffer = match read(&*span.device, address, append.bytes as usize).await {
        Ok(buffer) => buffer,
        Err(_) => Buffer::zeroed(append.bytes as usize),
    };
    buffer[..append.head.len()].copy_from_slice(&append.head);
    let place = |at: usize| FramePlace { identity: layout.identity, epoch: append.epoch, address: address + at as u64 };
    let room = layout.segment_bytes - append.offset;
    let table = DecodedAppend::decode(&append.head, place(0), room).map(|append| append.table).unwrap_or_default();
    debug_assert!(!table.is_empty() || append.head.len() == APPEND_HEADER_BYTES);
    let mut lost = 0;
    for entry in table {
        let start = (u64::from(entry.start_granules.get()) * GRANULE_BYTES) as usize;
        let Some(bytes) = buffer.get_mut(start..start + entry.record_bytes.get() as usize) else { continue };
        let is_there = DecodedRecord::decode(bytes, place(start)).is_ok_and(|record| {
            record.fields.key_hash == entry.key_hash
                && record.fields.sequence == entry.sequence
                && record.body_is_whole(bytes)
        });
        if !is_there {
            bytes.fill(0);
            lost += 1;
        }
    }
    write(&*span.device, address, buffer).await?;
    Ok(lost)
}
