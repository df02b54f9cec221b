//! Flushes, and the syncs that they answer.
//!
//! Owns: when the device is flushed for callers or because of the interval. At most one flush runs at a time, while
//! appends continue. A flush does not cover bytes that are written after it began.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::task::JoinError;
use tokio::time::Instant;

use super::{Reply, SpanWriter};
use crate::error::{Error, StoreErrorKind};
use crate::planted::{Bug, planted};

/// The result of a flush, and the syncs that it answers.
pub(super) struct FlushResult {
    result: Result<(), Error>,
    replies: Vec<Reply>,
}

impl SpanWriter {
    /// Starts a flush for the syncs whose entries are all written. If a flush is already running, these syncs wait,
    /// because that flush does not cover later writes.
    pub(super) fn serve_syncs(&mut self) {
        if self.state.stopped().is_some() {
            for (_, reply) in self.syncs_waiting.drain(..) {
                let _ = reply.send(Err(self.state.stopped_error()));
            }
            return;
        }
        if self.trouble.is_told(&self.span) {
            let reason = self.span.health.trouble().unwrap_or_else(|| "a flush failed".into());
            let error = Error::new(StoreErrorKind::Io, format!("{}: {reason}", self.span.device.spec()));
            let waiting = self.syncs_waiting.drain(..).map(|(_, reply)| reply);
            for reply in waiting.chain(std::mem::take(&mut self.syncs_due)) {
                let _ = reply.send(Err(error.clone()));
            }
            return;
        }
        if !self.flushing.is_empty() && !planted(Bug::SyncOfRunningFlush) {
            return;
        }
        let written = self.state.progress.written.load(Ordering::Acquire);
        let due = self.syncs_waiting.extract_if(.., |(sequence, _)| *sequence <= written);
        self.syncs_due.extend(due.map(|(_, reply)| reply));
        if !self.syncs_due.is_empty() && self.flushing.is_empty() {
            self.begin_flush();
        }
    }

    pub(super) fn flush_if_written(&mut self) {
        if !self.flushing.is_empty() || self.span.health.is_latched() {
            return;
        }
        self.flushed_at = Instant::now();
        if self.state.progress.written.load(Ordering::Acquire) > self.state.progress.flushed.load(Ordering::Acquire) {
            self.begin_flush();
        }
    }

    /// Starts a flush, while appends continue. When the flush is done, the due syncs are answered.
    pub(super) fn begin_flush(&mut self) {
        self.flushed_at = Instant::now();
        let (state, replies) = (Arc::clone(&self.state), std::mem::take(&mut self.syncs_due));
        self.flushing.spawn(async move { FlushResult { result: state.flush().await, replies } });
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
            replies.append(&mut self.syncs_due);
        }
        for reply in replies.drain(..) {
            let _ = reply.send(result.clone());
        }
        // The empty list is kept, so that the next flush allocates no list.
        self.syncs_due = replies;
    }

    pub(super) async fn end_flushing(&mut self) {
        while let Some(ended) = self.flushing.join_next().await {
            self.flush_ended(ended);
        }
    }
}
