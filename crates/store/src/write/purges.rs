//! Making purges durable.
//!
//! Owns: which purges share a block of the log and a flush, and making room for more purges. Promises: appends continue
//! while the log is written; a purge is answered when its block is durable. Leaves to others: the log (`purge/log.rs`)
//! and the rules in memory (`purge/rules.rs`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;

use super::{Reply, SpanWriter, WaitingPurge, WriterCommand};
use crate::counters::Counters;
use crate::disk::span::SpanDisk;
use crate::error::{Error, StoreErrorKind};
use crate::format::{BLOCK_BYTES, LogEnd, PURGE_RECORDS_PER_BLOCK, PurgeRecord};
use crate::planted::{Bug, planted};
use crate::purge::log::{PurgeLog, PurgeOrder};
use crate::state::SpanState;

/// A purge waits at most this long for fills that prevent older purges from being forgotten.
const FILLS_WAIT: Duration = Duration::from_secs(5);
/// The interval at which the writer checks whether these fills have ended.
const FILLS_STEP: Duration = Duration::from_millis(50);

/// The result of writing one block of purges, and the log, which the task gives back.
pub(super) struct PurgesWritten {
    log: PurgeLog,
    /// How many purges were to be written.
    count: u64,
    records: Vec<PurgeRecord>,
    replies: Vec<Reply>,
    result: Result<(), Error>,
}

/// The purges of a writer: the log, the running write, and who waits.
pub(super) struct PurgeWrites {
    /// The purge log; `None` while the running write has it.
    log: Option<PurgeLog>,
    /// The durable end of the log.
    end: LogEnd,
    /// The running write: at most one task, which has the log.
    running: JoinSet<PurgesWritten>,
    waiting: Vec<WaitingPurge>,
    /// Empty lists, whose memory the next write reuses.
    lists: (Vec<PurgeRecord>, Vec<Reply>),
    /// The callers that wait for room for a purge, and since when they wait.
    room_waiting: Vec<(Instant, Reply)>,
    /// The time when the writer next tries to make room for purges; `None` if no caller waits for room.
    room_at: Option<Instant>,
}

impl PurgeWrites {
    pub fn new(log: PurgeLog) -> PurgeWrites {
        PurgeWrites {
            end: log.end(),
            log: Some(log),
            running: JoinSet::new(),
            waiting: Vec::new(),
            lists: Default::default(),
            room_waiting: Vec::new(),
            room_at: None,
        }
    }

    /// The durable end of the log.
    pub fn end(&self) -> LogEnd {
        self.end
    }

    /// When the writer next tries to make room for purges.
    pub fn room_at(&self) -> Option<Instant> {
        self.room_at
    }

    /// Whether no purge is being written.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    /// Waits for the running write; `None` if there is none. *Cancel safety*: nothing is lost.
    pub async fn next_ended(&mut self) -> Option<Result<PurgesWritten, JoinError>> {
        self.running.join_next().await
    }

    /// Notes a purge that is to be written.
    pub fn ask(&mut self, purge: WaitingPurge) {
        self.waiting.push(purge);
    }

    /// Notes a caller that waits for room for a purge.
    pub fn ask_room(&mut self, reply: Reply) {
        self.room_waiting.push((Instant::now(), reply));
        self.room_at = Some(Instant::now());
    }

    /// Answers the purges that wait with an error.
    pub fn refuse_waiting(&mut self, error: &Error) {
        self.waiting.drain(..).for_each(|(_, reply)| drop(reply.send(Err(error.clone()))));
    }

    /// Answers the callers that wait for room with an error.
    pub fn refuse_room(&mut self, error: &Error) {
        self.room_waiting.drain(..).for_each(|(_, reply)| drop(reply.send(Err(error.clone()))));
    }

    /// Writes all remembered purges into a new cycle of the log; nothing may be running.
    pub async fn log_again(&mut self, state: &SpanState, span: Option<&SpanDisk>) -> Result<(), Error> {
        let Some(mut log) = self.log.take() else { return Err(state.stopped_error()) };
        let result = log.compact(&state.purges, span).await;
        if result.is_ok() {
            self.end = log.end();
        }
        self.log = Some(log);
        result
    }
}

impl SpanWriter {
    pub(super) fn gather_purges(&mut self) {
        while self.purges.waiting.len() < PURGE_RECORDS_PER_BLOCK {
            match self.commands.try_recv() {
                // The gathered purges are written before the store is closed.
                Ok(command @ WriterCommand::Close(_)) => return self.accept(command),
                Ok(command) => self.accept(command),
                Err(_) => return,
            }
        }
    }

    /// Starts making the gathered purges durable, with one block and one flush for all of them. Does nothing while
    /// other purges are being written.
    pub(super) async fn serve_purges(&mut self) -> Result<(), Error> {
        if self.purges.waiting.is_empty() || !self.purges.running.is_empty() {
            return Ok(());
        }
        if self.state.stopped().is_some() {
            return Err(self.state.stopped_error());
        }
        if self.span.health.is_latched() {
            // A purge does not wait for the device to recover.
            self.purges.refuse_waiting(&self.span.latched_error());
            return Ok(());
        }
        let Some(mut log) = self.purges.log.take() else { return Err(self.state.stopped_error()) };
        let count = self.purges.waiting.len().min(PURGE_RECORDS_PER_BLOCK);
        // The lists of the previous purges are reused: usually there is only one purge, and new lists would be most of
        // the allocations that it needs.
        let (mut records, mut replies) = std::mem::take(&mut self.purges.lists);
        for ((record, order), reply) in self.purges.waiting.drain(..count) {
            log.advance(order);
            records.extend(record);
            replies.push(reply);
        }
        // Every purge up to the mark is durable before the mark is set, so any block may record it.
        log.advance(PurgeOrder { mark: self.state.progress.mark(), ..PurgeOrder::default() });
        let count = records.len() as u64;
        if planted(Bug::PurgeOfManyUnlogged) && records.len() > 8 {
            records.pop();
        }
        let state = Arc::clone(&self.state);
        self.purges.running.spawn(async move {
            let result = write_purges(&state, &mut log, &records).await;
            PurgesWritten { log, count, records, replies, result }
        });
        Ok(())
    }

    /// Takes the log back and answers the purges that were written.
    pub(super) fn purges_written(&mut self, ended: Result<PurgesWritten, JoinError>) {
        let PurgesWritten { log, count, mut records, mut replies, result } = match ended {
            Ok(written) => written,
            // The waiters notice that their reply was dropped.
            Err(error) => return self.fail(&Error::stopped(format!("the purge log's task failed: {error}"))),
        };
        match &result {
            Ok(()) => {
                self.intake.admission.doubt.purges_are_durable(count);
                self.purges.end = log.end();
                self.trouble.purge_succeeded();
                self.state.progress.purge_number.store(log.order().number, Ordering::Release);
            }
            // The purge log has begun no new block, so only these purges fail; the next ones begin a new cycle.
            Err(error) if !self.is_of_latch(error) && error.kind != StoreErrorKind::Stopped => {
                Counters::add(&self.span.counters.writes_failed, 1);
                self.span.note(format!("{} purges are not durable: {}", replies.len(), error.message));
                if self.trouble.purge_failed() {
                    self.fail(error);
                }
            }
            Err(error) => self.in_trouble(error),
        }
        self.purges.log = Some(log);
        for reply in replies.drain(..) {
            let _ = reply.send(result.clone());
        }
        records.clear();
        self.purges.lists = (records, replies);
    }

    /// Waits until no purge is being written.
    pub(super) async fn end_purging(&mut self) {
        while let Some(ended) = self.purges.next_ended().await {
            self.purges_written(ended);
        }
    }

    /// If purges wait, makes room for them: forgets records that are not needed any more, or otherwise reclaims the
    /// oldest segment. Appends get a turn before the next segment is reclaimed.
    pub(super) async fn make_purge_room(&mut self) -> Result<(), Error> {
        if self.purges.room_at.is_none_or(|at| at > Instant::now()) {
            return Ok(());
        }
        let (state, puts) = (Arc::clone(&self.state), Arc::clone(&self.puts));
        if state.stopped().is_some() {
            self.purges.room_at = None;
            return Err(state.stopped_error());
        }
        if self.trouble.is_on() {
            if self.trouble.is_told(&self.span) {
                let error = Error::new(StoreErrorKind::Io, self.span.health.trouble().unwrap_or_default());
                self.purges.refuse_room(&error);
            }
            self.purges.room_at = self.trouble.retry_at().filter(|_| !self.purges.room_waiting.is_empty());
            return Ok(());
        }
        self.retire_purges();
        let most = puts.purge_rules_max;
        if (state.purges.len() as u64) < most {
            self.purges.room_at = None;
            self.purges.room_waiting.drain(..).for_each(|(_, reply)| drop(reply.send(Ok(()))));
            return Ok(());
        }
        // Purges that running fills still need are not forgotten, however many segments are reclaimed.
        let kept = state.purges.count_from(puts.fills.generation_min()) as u64;
        if kept >= most {
            self.purges.room_at = Some(Instant::now() + FILLS_STEP);
            let error = self.too_many_purges(kept);
            let due = |waiting: &mut (Instant, Reply)| waiting.0.elapsed() >= FILLS_WAIT;
            for (_, reply) in self.purges.room_waiting.extract_if(.., due) {
                let _ = reply.send(Err(error.clone()));
            }
        } else if self.intake.queue.backlog().1.is_some() {
            // Waiting objects are written before a new segment is opened: the positions of the purge rules assume that
            // these objects are in the next segments.
            if !self.append().await?
                && let Some(written) = self.appends.next_written().await
            {
                self.complete(written).await;
            }
        } else {
            self.open_next_segment().await?;
            if self.trouble.is_on() {
                return Ok(());
            }
            self.read_tables_ahead();
            self.begin_harvest();
            self.start(Vec::new(), self.appends.started_sequence()).await;
            Counters::add(&self.span.counters.purge_segments_reclaimed, 1);
            self.purges.room_at = Some(Instant::now());
        }
        if self.purges.room_waiting.is_empty() {
            self.purges.room_at = None;
        }
        Ok(())
    }

    fn too_many_purges(&self, kept: u64) -> Error {
        let (spec, most) = (self.span.device.spec(), self.puts.purge_rules_max);
        Error::new(
            StoreErrorKind::Busy,
            format!(
                "{spec}: {most} purges are remembered, which is all there may be, and fills under way keep {kept} of them; nothing is \
                 purged: try again when these fills have ended, or purge everything"
            ),
        )
    }
}

/// Writes one block of records and flushes it; if the current cycle of the log is full, begins a new one first.
async fn write_purges(state: &SpanState, log: &mut PurgeLog, records: &[PurgeRecord]) -> Result<(), Error> {
    if log.is_full() {
        log.compact(&state.purges, Some(&state.span)).await?;
        Counters::add(&state.span.counters.metadata_bytes, 2 * BLOCK_BYTES * u64::from(log.end().blocks));
    }
    // Bytes written before the flush begins are flushed with it.
    let written = state.progress.written.load(Ordering::Acquire);
    let result = log.commit(records, &state.span).await;
    Counters::add(&state.span.counters.metadata_bytes, 2 * BLOCK_BYTES);
    if result.is_ok() {
        state.progress.flushed.fetch_max(written, Ordering::AcqRel);
    }
    result
}
