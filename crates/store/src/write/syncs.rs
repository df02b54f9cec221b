//! Flushes, and the syncs that they answer.
//!
//! Owns: when the device is flushed for callers or because of the interval. At most one flush runs at a time, while
//! appends continue. A flush does not cover bytes that are written after it began.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;

use super::{Reply, SpanWriter};
use crate::error::{Error, StoreErrorKind};
use crate::planted::{Bug, planted};

/// The result of a flush, and the syncs that it answers.
pub(super) struct FlushResult {
    result: Result<(), Error>,
    replies: Vec<Reply>,
}

/// The flushes of a writer, and the syncs that wait for one.
pub(super) struct FlushWrites {
    /// The syncs that wait, each with the sequence up to which entries must be written first.
    waiting: Vec<(u64, Reply)>,
    /// The syncs that the next flush answers; empty while a flush is running.
    due: Vec<Reply>,
    /// The running flush, at most one, with the syncs that it answers.
    running: JoinSet<FlushResult>,
    interval: Option<Duration>,
    flushed_at: Instant,
}

impl FlushWrites {
    pub fn new(interval: Option<Duration>) -> FlushWrites {
        let (waiting, due, running) = (Vec::new(), Vec::new(), JoinSet::new());
        FlushWrites { waiting, due, running, interval, flushed_at: Instant::now() }
    }

    /// Notes a sync of everything up to `sequence`.
    pub fn ask(&mut self, sequence: u64, reply: Reply) {
        self.waiting.push((sequence, reply));
    }

    /// Whether a sync waits for entries behind `written`.
    pub fn wait_for_more_than(&self, written: u64) -> bool {
        self.waiting.iter().any(|(sequence, _)| *sequence > written)
    }

    /// Makes all syncs wait for `sequence`: what they wait for is written under a sequence up to this one.
    pub fn wait_for(&mut self, sequence: u64) {
        self.waiting.iter_mut().for_each(|(waited, _)| *waited = sequence);
    }

    /// Answers the syncs that wait for entries with an error.
    pub fn refuse_waiting(&mut self, error: &Error) {
        self.waiting.drain(..).for_each(|(_, reply)| drop(reply.send(Err(error.clone()))));
    }

    /// Whether no flush is running.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    /// Waits for the running flush; `None` if there is none. *Cancel safety*: nothing is lost.
    pub async fn next_ended(&mut self) -> Option<Result<FlushResult, JoinError>> {
        self.running.join_next().await
    }

    /// When the interval asks for the next flush; `None` while one is running.
    pub fn due_at(&self) -> Option<Instant> {
        self.interval.filter(|_| self.is_idle()).map(|interval| self.flushed_at + interval)
    }

    /// Whether the interval since the last flush is over.
    pub fn interval_is_over(&self) -> bool {
        self.interval.is_some_and(|interval| self.flushed_at.elapsed() >= interval)
    }

    /// Begins the interval again.
    pub fn restart_interval(&mut self) {
        self.flushed_at = Instant::now();
    }
}

impl SpanWriter {
    /// Starts a flush for the syncs whose entries are all written. If a flush is already running, these syncs wait,
    /// because that flush does not cover later writes.
    pub(super) fn serve_syncs(&mut self) {
        if self.state.stopped().is_some() {
            return self.syncs.refuse_waiting(&self.state.stopped_error());
        }
        if self.trouble.is_told(&self.span) {
            let reason = self.span.health.trouble().unwrap_or_else(|| "a flush failed".into());
            let error = Error::new(StoreErrorKind::Io, format!("{}: {reason}", self.span.device.spec()));
            self.syncs.refuse_waiting(&error);
            std::mem::take(&mut self.syncs.due).into_iter().for_each(|reply| drop(reply.send(Err(error.clone()))));
            return;
        }
        if !self.syncs.is_idle() && !planted(Bug::SyncOfRunningFlush) {
            return;
        }
        let written = self.state.progress.written.load(Ordering::Acquire);
        let due = self.syncs.waiting.extract_if(.., |(sequence, _)| *sequence <= written);
        self.syncs.due.extend(due.map(|(_, reply)| reply));
        if !self.syncs.due.is_empty() && self.syncs.is_idle() {
            self.begin_flush();
        }
    }

    pub(super) fn flush_if_written(&mut self) {
        if !self.syncs.is_idle() || self.span.health.is_latched() {
            return;
        }
        self.syncs.restart_interval();
        if self.state.progress.written.load(Ordering::Acquire) > self.state.progress.flushed.load(Ordering::Acquire) {
            self.begin_flush();
        }
    }

    /// Starts a flush, while appends continue. When the flush is done, the due syncs are answered.
    pub(super) fn begin_flush(&mut self) {
        self.syncs.restart_interval();
        let (state, replies) = (Arc::clone(&self.state), std::mem::take(&mut self.syncs.due));
        self.syncs.running.spawn(async move { FlushResult { result: state.flush().await, replies } });
    }

    pub(super) fn flush_ended(&mut self, ended: Result<FlushResult, JoinError>) {
        let (result, mut replies) = match ended {
            Ok(flushed) => (flushed.result, flushed.replies),
            Err(error) => (Err(Error::stopped(format!("the flush's task failed: {error}"))), Vec::new()),
        };
        if let Err(error) = &result {
            self.in_trouble(error);
        }
        if planted(Bug::SyncOfRunningFlush) {
            replies.append(&mut self.syncs.due);
        }
        for reply in replies.drain(..) {
            let _ = reply.send(result.clone());
        }
        // The empty list is kept, so that the next flush allocates no list.
        self.syncs.due = replies;
    }

    pub(super) async fn end_flushing(&mut self) {
        while let Some(ended) = self.syncs.next_ended().await {
            self.flush_ended(ended);
        }
    }
}
