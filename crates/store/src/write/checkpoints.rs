//! The decisions when to write an index checkpoint, and when to rewrite its hot list.
//!
//! Owns: these decisions, and the callers that wait for a checkpoint. Leaves to others: the contents of checkpoints
//! (`checkpoint`).

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::stream::StreamExt;
use tokio::task::JoinError;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::{SpanWriter, task};
use crate::checkpoint::{CheckpointHeader, rewrite_hot, write_checkpoint};
use crate::counters::Counters;
use crate::error::{Error, StoreErrorKind};
use crate::planted::{Bug, planted};

/// A checkpoint is due when the bytes appended since the last one exceed a threshold: this many times the size of the
/// index, but at least `CHECKPOINT_BYTES_MIN` and at most `CHECKPOINT_BYTES_MAX`.
const CHECKPOINT_INDEX_FACTOR: u64 = 32;
/// The smallest and the largest value of this threshold, in bytes.
const CHECKPOINT_BYTES_MIN: u64 = 64 << 20;
const CHECKPOINT_BYTES_MAX: u64 = 2 << 30;
/// A checkpoint is due after this many appends since the last one.
const CHECKPOINT_APPENDS_MAX: u64 = 4096;
/// A checkpoint is due after this many appended records, because a restart would have to replay them. But this rule
/// applies only if the appended bytes are at least `CHECKPOINT_SHARE_MIN` times the size of the index.
const CHECKPOINT_RECORDS_MAX: u64 = 1 << 18;
const CHECKPOINT_SHARE_MIN: u64 = 4;

/// A checkpoint that failed is tried again after this time.
const CHECKPOINT_DELAY: Duration = Duration::from_secs(10);

/// The interval at which the writer checks whether to rewrite the hot list.
pub(super) const HOT_INTERVAL: Duration = Duration::from_secs(10);
/// The hot list is rewritten if the memory tier has inserted 1/`HOT_SHARE` of its capacity since the list was last
/// written.
const HOT_SHARE: u64 = 16;

impl SpanWriter {
    /// Starts a checkpoint if enough was appended since the last one, or if one was requested.
    pub(super) async fn checkpoint_if_due(&mut self) {
        if self.state.stopped().is_some() {
            for reply in self.checkpoints_asked.drain(..) {
                let _ = reply.send(Err(self.state.stopped_error()));
            }
            return;
        }
        if self.trouble.is_on() {
            if self.trouble.is_told(&self.span) {
                let error = Error::new(StoreErrorKind::Io, self.span.health.trouble().unwrap_or_default());
                self.checkpoints_asked.drain(..).for_each(|reply| drop(reply.send(Err(error.clone()))));
            }
            return;
        }
        self.begin_checkpoint_if_due().await;
    }

    /// Writes a checkpoint of what is written now, and waits for it.
    pub(super) async fn checkpoint_now(&mut self) -> Result<(), Error> {
        if let Some(task) = self.checkpoint.as_mut() {
            let ended = task.await;
            self.checkpoint_ended(ended)?;
        }
        self.is_cut = true;
        self.checkpoint_at = None;
        self.begin_checkpoint_if_due().await;
        match self.checkpoint.as_mut() {
            Some(task) => {
                let ended = task.await;
                self.checkpoint_ended(ended)
            }
            None => Ok(()),
        }
    }

    async fn begin_checkpoint_if_due(&mut self) {
        let index_bytes = self.state.index.bytes();
        let bytes_due = (index_bytes * CHECKPOINT_INDEX_FACTOR).clamp(CHECKPOINT_BYTES_MIN, CHECKPOINT_BYTES_MAX);
        let due = self.appended_bytes >= bytes_due
            || self.appended_count >= CHECKPOINT_APPENDS_MAX
            || (self.appended_records >= CHECKPOINT_RECORDS_MAX
                && self.appended_bytes >= index_bytes * CHECKPOINT_SHARE_MIN)
            || (self.is_cut && !planted(Bug::CutNotSettled))
            || !self.checkpoints_asked.is_empty();
        let is_early = self.checkpoint_at.is_some_and(|at| at > Instant::now()) && self.checkpoints_asked.is_empty();
        if !due || is_early || self.checkpoint.is_some() {
            return;
        }
        while !planted(Bug::CheckpointAheadOfAppends)
            && let Some(written) = self.in_flight.next().await
        {
            self.complete(written).await;
        }
        // A task may still be writing a hot list, possibly into the area that this checkpoint overwrites.
        self.end_hot().await;
        let checkpoints = self.checkpoints.clone();
        let (position, purge_end) = (self.position, self.purge_end);
        let last_sequence = self.last_sequence();
        self.checkpoint_number += 1;
        self.checkpoint_at = None;
        let number = self.checkpoint_number;
        self.appended_bytes = 0;
        self.appended_count = 0;
        self.appended_records = 0;
        self.checkpoint_waiting = std::mem::take(&mut self.checkpoints_asked);
        self.checkpoint =
            Some(task(async move { write_checkpoint(&checkpoints, number, position, last_sequence, purge_end).await }));
    }

    /// The highest sequence in the log before the writer's position.
    ///
    /// After a crash that cut the log, there are records beyond the recovered sequence. The position is after them, so
    /// they count. Otherwise the next open would read on from the position with a lower sequence. It would accept
    /// records there that an earlier open wrote and that this open does not accept, so lost objects would reappear.
    pub(super) fn last_sequence(&self) -> u64 {
        self.state.progress.written.load(Ordering::Acquire).max(self.logged_sequence)
    }

    /// If a crash had cut the log, waits until a checkpoint contains everything before the cut. Recovery verifies
    /// records only in the last two segments, so the next recovery must not need the part of the log with the cut any
    /// more.
    pub(super) async fn settle_cut(&mut self) -> Result<(), Error> {
        if self.is_cut && self.state.stopped().is_none() && !planted(Bug::CutNotSettled) {
            self.checkpoint_now().await?;
        }
        Ok(())
    }

    /// Starts rewriting the hot list if memory has changed enough since it was last written.
    pub(super) fn rewrite_hot_if_due(&mut self) {
        if self.hot_at.elapsed() < HOT_INTERVAL {
            return;
        }
        self.hot_at = Instant::now();
        let inserted_bytes = self.state.memory.inserted_bytes();
        let is_changed = inserted_bytes - self.hot_inserted_bytes >= self.state.memory.capacity() / HOT_SHARE;
        let is_busy = self.checkpoint.is_some() || self.hot.as_ref().is_some_and(|task| !task.is_finished());
        let is_warm = self.warming.as_ref().is_none_or(AbortOnDropHandle::is_finished);
        let Some(header) = self.newest_checkpoint.filter(|_| is_changed && !is_busy && is_warm) else { return };
        if self.state.stopped().is_some() {
            return;
        }
        self.hot_inserted_bytes = inserted_bytes;
        let checkpoints = self.checkpoints.clone();
        self.hot = Some(task(async move {
            if let Err(error) = rewrite_hot(&checkpoints, &header).await {
                let span = &checkpoints.state.span;
                span.note(format!("{}: the hot list is not written: {error}", span.device.spec()));
            }
        }));
    }

    pub(super) async fn end_hot(&mut self) {
        if let Some(task) = self.hot.take() {
            let _ = task.await;
        }
    }

    /// Processes the end of the checkpoint's task. *Errors*: it was not written; it is tried again later.
    pub(super) fn checkpoint_ended(
        &mut self,
        ended: Result<Result<Option<CheckpointHeader>, Error>, JoinError>,
    ) -> Result<(), Error> {
        self.checkpoint = None;
        let result = match ended {
            Ok(Ok(written)) => {
                match written {
                    Some(header) => {
                        self.newest_checkpoint = Some(header);
                        self.hot_at = Instant::now();
                        self.hot_inserted_bytes = self.state.memory.inserted_bytes();
                    }
                    None => self
                        .span
                        .note("the index does not fit its checkpoint area; a restart will scan the store".into()),
                }
                Ok(())
            }
            Ok(Err(error)) => Err(error),
            Err(error) => Err(Error::stopped(format!("the checkpoint task failed: {error}"))),
        };
        match &result {
            Ok(()) => (self.is_cut, self.checkpoint_at) = (false, None),
            Err(error) if self.is_of_latch(error) => self.in_trouble(error),
            Err(error) if error.kind == StoreErrorKind::Stopped => self.fail(error),
            Err(error) => {
                Counters::add(&self.span.counters.writes_failed, 1);
                self.span.note(format!("the checkpoint is not written: {}", error.message));
                // The next one goes into the same area, so that the last good checkpoint stays.
                self.checkpoint_number += 1;
                self.checkpoint_at = Some(Instant::now() + CHECKPOINT_DELAY);
                self.appended_count = CHECKPOINT_APPENDS_MAX;
            }
        }
        for reply in self.checkpoint_waiting.drain(..) {
            let _ = reply.send(result.clone());
        }
        result
    }
}
