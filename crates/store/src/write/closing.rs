//! The facts that the writer records in a state slot: which spans are present, and that its span was closed.
//!
//! Owns: the order of the steps in which a span is closed. Leaves to others: the slots (`recover`).

use std::sync::atomic::Ordering;

use super::{MembershipChange, SpanWriter};
use crate::checkpoint::write_checkpoint;
use crate::error::Error;
use crate::planted::{Bug, planted};
use crate::recover::{SpanMembership, StateSlot, write_state};

/// The state slot of a span as it was last written, and the changes that are to be recorded.
pub(super) struct MembershipWrites {
    /// The number of the last written state slot.
    open_count: u64,
    /// The membership in it.
    membership: SpanMembership,
    changes: Vec<MembershipChange>,
}

impl MembershipWrites {
    pub fn new(open_count: u64, membership: SpanMembership) -> MembershipWrites {
        MembershipWrites { open_count, membership, changes: Vec::new() }
    }

    /// Notes a change that is to be recorded.
    pub fn ask(&mut self, change: MembershipChange) {
        self.changes.push(change);
    }

    /// Takes the changes that are to be recorded.
    pub fn changes(&mut self) -> Vec<MembershipChange> {
        std::mem::take(&mut self.changes)
    }
}

impl SpanWriter {
    /// Records which spans are present. The older slot is overwritten, so that the newest one survives a torn write.
    pub(super) async fn change_membership(&mut self, change: MembershipChange) {
        // A span that this change names counts as returning if this span's own last membership does not name it. The
        // store's last membership is not used for this, because this span may have missed the change in which the
        // other span returned.
        let has_missed = change.membership.number > self.members.membership.number + 1;
        let is_return = change.membership.present & !self.members.membership.present != 0
            && !(has_missed && planted(Bug::ReturnMissed));
        let since = if is_return { self.state.draw() } else { self.members.membership.since };
        let membership = SpanMembership { since, ..change.membership };
        let stated = SpanMembership { since: if planted(Bug::ReturnNotRecorded) { 0 } else { since }, ..membership };
        let state = StateSlot { open_count: self.members.open_count + 1, is_clean: false, membership: stated };
        let result = match self.state.stopped() {
            Some(_) => Err(self.state.stopped_error()),
            None => match write_state(&self.span.device, &self.span.layout, &state).await {
                Ok(()) => self.state.flush().await,
                Err(error) => Err(error),
            },
        };
        match &result {
            Ok(()) => {
                (self.members.open_count, self.members.membership) = (state.open_count, membership);
                self.state.progress.since.store(since, Ordering::Release);
            }
            Err(error) => self.fail(error),
        }
        let _ = change.reply.send(result);
    }

    /// Writes all waiting objects, a checkpoint, and the mark that the span was closed cleanly.
    pub(super) async fn close(&mut self) -> Result<(), Error> {
        // Later puts are refused; objects that were accepted before are written.
        self.intake.queue.refuse_more();
        self.end_harvest().await;
        self.opening.end(&self.checkpoints.sources().warm_list).await;
        self.is_closing = true;
        loop {
            self.write_all().await;
            self.end_purging().await;
            self.end_flushing().await;
            self.checkpoints.end().await;
            self.checkpoints.end_hot().await;
            // A flush that failed at the end is repaired, too.
            if self.state.stopped().is_some() || !self.trouble.is_on() {
                break;
            }
        }
        if self.state.stopped().is_some() {
            return Err(self.state.stopped_error());
        }
        let last_sequence = self.last_sequence();
        let (sources, number) = (self.checkpoints.sources(), self.checkpoints.next_number());
        write_checkpoint(sources, number, self.appends.position, last_sequence, self.purges.end()).await?;
        let state =
            StateSlot { open_count: self.members.open_count, is_clean: true, membership: self.members.membership };
        write_state(&self.span.device, &self.span.layout, &state).await?;
        self.state.flush().await?;
        self.intake.stop("it was closed");
        Ok(())
    }

    /// Writes all waiting objects and purges.
    async fn write_all(&mut self) {
        while self.state.stopped().is_none() {
            if let Err(error) = self.serve_purges().await {
                self.in_trouble(&error);
            }
            if let Some(at) = self.trouble.retry_at() {
                tokio::time::sleep_until(at).await;
                self.resume_if_due().await;
            } else if self.intake.queue.backlog().1.is_some() && self.may_append() {
                if let Err(error) = self.append().await {
                    self.in_trouble(&error);
                }
            } else if let Some(written) = self.appends.next_written().await {
                self.complete(written).await;
            } else if let Some(ended) = self.purges.next_ended().await {
                self.purges_written(ended);
            } else {
                break;
            }
        }
    }
}
