//! The decisions when to write an index checkpoint, and when to rewrite its hot list.
//!
//! Owns: these decisions, and the callers that wait for a checkpoint. Leaves to others: the contents of checkpoints
//! (`checkpoint`).

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::JoinError;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::{Reply, SpanWriter, WriterStart, task};
use crate::checkpoint::{CheckpointHeader, CheckpointSources, rewrite_hot, write_checkpoint};
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
const HOT_INTERVAL: Duration = Duration::from_secs(10);
/// The hot list is rewritten if the memory tier has inserted 1/`HOT_SHARE` of its capacity since the list was last
/// written.
const HOT_SHARE: u64 = 16;

/// The result of a checkpoint's task: the header of the checkpoint, or `None` if the index does not fit its area.
type CheckpointEnd = Result<Result<Option<CheckpointHeader>, Error>, JoinError>;

/// What was appended since the last checkpoint, which a restart would replay.
struct AppendedAmount {
    bytes: u64,
    count: u64,
    records: u64,
}

/// The hot list of the newest checkpoint.
struct HotListWrites {
    /// The newest checkpoint.
    newest: Option<CheckpointHeader>,
    /// The task that rewrites the list.
    task: Option<AbortOnDropHandle<()>>,
    looked_at: Instant,
    /// The number of bytes that the memory tier had inserted when the list was last written.
    inserted_bytes: u64,
}

/// The checkpoints of a writer: the running one, who waits for it, and what makes the next one due.
pub(super) struct CheckpointWrites {
    sources: CheckpointSources,
    running: Option<AbortOnDropHandle<Result<Option<CheckpointHeader>, Error>>>,
    number: u64,
    /// When a checkpoint that failed is tried again.
    retry_at: Option<Instant>,
    /// The callers that requested a checkpoint after the running one had begun, and the callers that wait for the
    /// running one.
    asked: Vec<Reply>,
    waiting: Vec<Reply>,
    appended: AppendedAmount,
    /// The last sequence that was in the log when the store was opened, found or lost.
    logged_sequence: u64,
    /// Whether recovery found that a crash had cut the log, and no checkpoint has been written since.
    is_cut: bool,
    hot: HotListWrites,
}

impl CheckpointWrites {
    pub fn new(sources: CheckpointSources, start: &WriterStart) -> CheckpointWrites {
        CheckpointWrites {
            sources,
            running: None,
            number: start.checkpoint_number,
            retry_at: None,
            asked: Vec::new(),
            waiting: Vec::new(),
            // Replayed records count as appended, because the next restart would replay them again.
            appended: AppendedAmount {
                bytes: start.replayed.append_bytes,
                count: start.replayed.appends,
                records: start.replayed.records,
            },
            logged_sequence: start.logged_sequence,
            is_cut: start.is_cut,
            hot: HotListWrites {
                newest: start.warm.checkpoint,
                task: None,
                looked_at: Instant::now(),
                inserted_bytes: 0,
            },
        }
    }

    /// Where checkpoints take their contents from.
    pub fn sources(&self) -> &CheckpointSources {
        &self.sources
    }

    /// The number of the next checkpoint.
    pub fn next_number(&self) -> u64 {
        self.number + 1
    }

    /// Whether no checkpoint is being written.
    pub fn is_idle(&self) -> bool {
        self.running.is_none()
    }

    /// Waits for the running checkpoint; `None` if there is none. *Cancel safety*: nothing is lost.
    pub async fn ended(&mut self) -> Option<CheckpointEnd> {
        match self.running.as_mut() {
            Some(task) => Some(task.await),
            None => None,
        }
    }

    /// Waits for the running checkpoint, whose outcome nobody needs any more.
    pub async fn end(&mut self) {
        if let Some(task) = self.running.take() {
            let _ = task.await;
        }
    }

    /// Notes a caller that wants a checkpoint.
    pub fn ask(&mut self, reply: Reply) {
        self.asked.push(reply);
    }

    /// Answers the callers that want a checkpoint with an error.
    fn refuse_asked(&mut self, error: &Error) {
        self.asked.drain(..).for_each(|reply| drop(reply.send(Err(error.clone()))));
    }

    /// Notes an append.
    pub fn count_append(&mut self, bytes: u64, records: u64) {
        let AppendedAmount { bytes: all_bytes, count, records: all_records } = &mut self.appended;
        *all_bytes += bytes;
        *count += 1;
        *all_records += records;
    }

    /// When a checkpoint that failed is tried again.
    pub fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Tries no failed checkpoint again.
    pub fn give_up(&mut self) {
        self.retry_at = None;
    }

    /// When the hot list is looked at next.
    pub fn hot_due_at(&self) -> Option<Instant> {
        self.hot.newest.map(|_| self.hot.looked_at + HOT_INTERVAL)
    }

    /// Whether a checkpoint is due, of an index of `index_bytes`.
    fn is_due(&self, index_bytes: u64) -> bool {
        let bytes_due = (index_bytes * CHECKPOINT_INDEX_FACTOR).clamp(CHECKPOINT_BYTES_MIN, CHECKPOINT_BYTES_MAX);
        let AppendedAmount { bytes, count, records } = self.appended;
        bytes >= bytes_due
            || count >= CHECKPOINT_APPENDS_MAX
            || (records >= CHECKPOINT_RECORDS_MAX && bytes >= index_bytes * CHECKPOINT_SHARE_MIN)
            || (self.is_cut && !planted(Bug::CutNotSettled))
            || !self.asked.is_empty()
    }

    /// Notes that the next checkpoint begins; returns its number. Those who requested one wait for it.
    fn begin(&mut self) -> u64 {
        self.number += 1;
        self.retry_at = None;
        self.appended = AppendedAmount { bytes: 0, count: 0, records: 0 };
        self.waiting = std::mem::take(&mut self.asked);
        self.number
    }

    pub async fn end_hot(&mut self) {
        if let Some(task) = self.hot.task.take() {
            let _ = task.await;
        }
    }
}

impl SpanWriter {
    /// Starts a checkpoint if enough was appended since the last one, or if one was requested.
    pub(super) async fn checkpoint_if_due(&mut self) {
        if self.state.stopped().is_some() {
            return self.checkpoints.refuse_asked(&self.state.stopped_error());
        }
        if self.trouble.is_on() {
            if self.trouble.is_told(&self.span) {
                let error = Error::new(StoreErrorKind::Io, self.span.health.trouble().unwrap_or_default());
                self.checkpoints.refuse_asked(&error);
            }
            return;
        }
        self.begin_checkpoint_if_due().await;
    }

    /// Writes a checkpoint of what is written now, and waits for it.
    pub(super) async fn checkpoint_now(&mut self) -> Result<(), Error> {
        if let Some(ended) = self.checkpoints.ended().await {
            self.checkpoint_ended(ended)?;
        }
        self.checkpoints.is_cut = true;
        self.checkpoints.retry_at = None;
        self.begin_checkpoint_if_due().await;
        match self.checkpoints.ended().await {
            Some(ended) => self.checkpoint_ended(ended),
            None => Ok(()),
        }
    }

    async fn begin_checkpoint_if_due(&mut self) {
        let due = self.checkpoints.is_due(self.state.index.bytes());
        let is_early =
            self.checkpoints.retry_at.is_some_and(|at| at > Instant::now()) && self.checkpoints.asked.is_empty();
        if !due || is_early || self.checkpoints.running.is_some() {
            return;
        }
        while !planted(Bug::CheckpointAheadOfAppends)
            && let Some(written) = self.appends.next_written().await
        {
            self.complete(written).await;
        }
        // A task may still be writing a hot list, possibly into the area that this checkpoint overwrites.
        self.checkpoints.end_hot().await;
        let sources = self.checkpoints.sources.clone();
        let (position, purge_end) = (self.appends.position, self.purges.end());
        let last_sequence = self.last_sequence();
        let number = self.checkpoints.begin();
        self.checkpoints.running =
            Some(task(async move { write_checkpoint(&sources, number, position, last_sequence, purge_end).await }));
    }

    /// The highest sequence in the log before the writer's position.
    ///
    /// After a crash that cut the log, there are records beyond the recovered sequence. The position is after them, so
    /// they count. Otherwise the next open would read on from the position with a lower sequence. It would accept
    /// records there that an earlier open wrote and that this open does not accept, so lost objects would reappear.
    pub(super) fn last_sequence(&self) -> u64 {
        self.state.progress.written.load(Ordering::Acquire).max(self.checkpoints.logged_sequence)
    }

    /// If a crash had cut the log, waits until a checkpoint contains everything before the cut. Recovery verifies
    /// records only in the last two segments, so the next recovery must not need the part of the log with the cut any
    /// more.
    pub(super) async fn settle_cut(&mut self) -> Result<(), Error> {
        if self.checkpoints.is_cut && self.state.stopped().is_none() && !planted(Bug::CutNotSettled) {
            self.checkpoint_now().await?;
        }
        Ok(())
    }

    /// Starts rewriting the hot list if memory has changed enough since it was last written.
    pub(super) fn rewrite_hot_if_due(&mut self) {
        if self.checkpoints.hot.looked_at.elapsed() < HOT_INTERVAL {
            return;
        }
        self.checkpoints.hot.looked_at = Instant::now();
        let inserted_bytes = self.state.memory.inserted_bytes();
        let is_changed =
            inserted_bytes - self.checkpoints.hot.inserted_bytes >= self.state.memory.capacity() / HOT_SHARE;
        let is_busy = self.checkpoints.running.is_some()
            || self.checkpoints.hot.task.as_ref().is_some_and(|task| !task.is_finished());
        let is_free = is_changed && !is_busy && self.opening.is_warm();
        let Some(header) = self.checkpoints.hot.newest.filter(|_| is_free) else { return };
        if self.state.stopped().is_some() {
            return;
        }
        self.checkpoints.hot.inserted_bytes = inserted_bytes;
        let checkpoints = self.checkpoints.sources.clone();
        self.checkpoints.hot.task = Some(task(async move {
            if let Err(error) = rewrite_hot(&checkpoints, &header).await {
                let span = &checkpoints.state.span;
                span.note(format!("{}: the hot list is not written: {error}", span.device.spec()));
            }
        }));
    }

    /// Processes the end of the checkpoint's task. *Errors*: it was not written; it is tried again later.
    pub(super) fn checkpoint_ended(&mut self, ended: CheckpointEnd) -> Result<(), Error> {
        self.checkpoints.running = None;
        let result = match ended {
            Ok(Ok(written)) => {
                match written {
                    Some(header) => {
                        self.checkpoints.hot.newest = Some(header);
                        self.checkpoints.hot.looked_at = Instant::now();
                        self.checkpoints.hot.inserted_bytes = self.state.memory.inserted_bytes();
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
            Ok(()) => (self.checkpoints.is_cut, self.checkpoints.retry_at) = (false, None),
            Err(error) if self.is_of_latch(error) => self.in_trouble(error),
            Err(error) if error.kind == StoreErrorKind::Stopped => self.fail(error),
            Err(error) => {
                Counters::add(&self.span.counters.writes_failed, 1);
                self.span.note(format!("the checkpoint is not written: {}", error.message));
                // The next one goes into the same area, so that the last good checkpoint stays.
                self.checkpoints.number += 1;
                self.checkpoints.retry_at = Some(Instant::now() + CHECKPOINT_DELAY);
                self.checkpoints.appended.count = CHECKPOINT_APPENDS_MAX;
            }
        }
        for reply in self.checkpoints.waiting.drain(..) {
            let _ = reply.send(result.clone());
        }
        result
    }
}
