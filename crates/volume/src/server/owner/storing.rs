//! Storing what was applied, and answers that wait until it is stored.
//!
//! Owns: the append in flight, what the next one has, and checkpoints between two appends. Promises: those of `owner`
//! that say when an answer may be given. Leaves to others: room for the journal (`room`).

use std::sync::atomic::Ordering;

use super::super::ServerError;
use super::super::batch::AppendBatch;
use super::super::request::HeldAnswer;
use super::super::room::why;
use super::super::waits::InFlight;
use super::{APPENDS_MAX, MetadataOwner};
use crate::journal::{self, LeaderJournal};

/// The journal of the owner, and the answers that wait for it.
pub(super) struct OwnerJournal {
    /// `None` while an append is in flight.
    pub log: Option<LeaderJournal>,
    pub in_flight: Option<InFlight>,
    /// Answers that wait for the append in flight.
    pub held: Vec<HeldAnswer>,
    /// The transactions applied since the append in flight began; `next_held` has the answers that wait for them.
    pub next: AppendBatch,
    pub next_held: Vec<HeldAnswer>,
    /// The number of the last durable append.
    pub sequence: u64,
}

impl OwnerJournal {
    pub fn new(log: LeaderJournal, sequence: u64) -> OwnerJournal {
        let (held, next, next_held) = (Vec::new(), AppendBatch::default(), Vec::new());
        OwnerJournal { log: Some(log), in_flight: None, held, next, next_held, sequence }
    }
}

impl MetadataOwner {
    /// Whether an append begins now: somebody waits for it, or what it has is old enough.
    pub(super) fn is_append_due(&self) -> bool {
        !self.journal.next_held.is_empty() || !self.behind.is_empty() || self.journal.next.is_due()
    }

    /// Begins an append if none is in flight and there is something to store or to answer.
    pub(super) fn begin_append(&mut self) -> Result<(), ServerError> {
        let Some(mut log) = self.journal.log.take() else { return Ok(()) };
        self.journal.next.extend(self.room.feed(&mut self.image, &log));
        if self.journal.next.is_empty() {
            // Everything that was applied is durable.
            self.early.begin_append();
            self.early.settle();
            self.local.begin_append();
            self.local.settle();
            self.answer_those_behind();
            self.journal.next_held.drain(..).for_each(HeldAnswer::release);
            self.shared.drained_to.store(self.journal.sequence + APPENDS_MAX, Ordering::Release);
            self.journal.log = Some(log);
            return Ok(());
        }
        let transactions = self.journal.next.take();
        self.journal.held = std::mem::take(&mut self.journal.next_held);
        self.early.begin_append();
        self.local.begin_append();
        self.journal.in_flight = Some(Box::pin(async move {
            let result = log.append(transactions).await;
            (log, result)
        }));
        Ok(())
    }

    pub(super) fn settle(
        &mut self,
        mut log: LeaderJournal,
        result: Result<u64, journal::Error>,
    ) -> Result<(), ServerError> {
        self.journal.in_flight = None;
        self.journal.sequence = result.map_err(|error| why(error, &self.image))?;
        self.room.stored(&mut log);
        self.room.tell(&mut self.image, &log);
        self.journal.log = Some(log);
        self.overview.appends += 1;
        self.shared.drained_to.store(self.journal.sequence, Ordering::Release);
        self.early.settle();
        self.local.settle();
        self.journal.held.drain(..).for_each(HeldAnswer::release);
        self.answer_those_behind();
        Ok(())
    }

    /// Gives an answer when everything that was applied so far is durable.
    pub(super) fn hold(&mut self, held: HeldAnswer) {
        match (&self.journal.in_flight, self.journal.next.is_empty()) {
            (Some(_), true) => self.journal.held.push(held),
            _ => self.journal.next_held.push(held),
        }
    }

    /// Gives an answer at once if it may be early, else when everything that was applied so far is durable.
    pub(super) fn give(&mut self, held: HeldAnswer, is_early: bool) {
        match is_early {
            true => held.release(),
            false => self.hold(held),
        }
    }

    /// Renewals, checkpoints, and what the image has to do by itself.
    pub(super) async fn background(&mut self) -> Result<(), ServerError> {
        let transactions = self.image.background(self.stamp())?;
        self.journal.next.extend(transactions);
        let Some(mut log) = self.journal.log.take() else { return Ok(()) };
        let done = self.with_log(&mut log).await;
        self.room.tell(&mut self.image, &log);
        self.journal.log = Some(log);
        done
    }

    async fn with_log(&mut self, log: &mut LeaderJournal) -> Result<(), ServerError> {
        self.room.renew(log).await?;
        self.journal.next.extend(self.image.set_aside()?);
        let is_awaited = self.is_space_awaited();
        let segments = self.room.for_checkpoint(&mut self.image, log, &mut self.journal.next, is_awaited)?;
        let Some(segments) = segments else { return Ok(()) };
        // The tables are those of the appends so far.
        self.early.begin_append();
        self.local.begin_append();
        let stored = log.append(self.journal.next.take()).await;
        self.journal.sequence = stored.map_err(|error| why(error, &self.image))?;
        self.early.settle();
        self.local.settle();
        self.journal.next_held.drain(..).for_each(HeldAnswer::release);
        self.answer_those_behind();
        self.room.stored(log);
        let left = match log.checkpoint(self.image.tables(), segments.clone()).await {
            Ok(left) => {
                self.overview.checkpoints += 1;
                left
            }
            Err(journal::Error::NoSegment) => {
                self.room.postpone(&self.image);
                segments
            }
            Err(error) => return Err(error.into()),
        };
        for block in left {
            self.journal.next.push(self.image.retire_segment(block)?);
        }
        Ok(())
    }
}
