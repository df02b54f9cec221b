//! Storing what was applied, and answers that wait until it is stored.
//!
//! Owns: the append in flight, what the next one has, and checkpoints between two appends. Promises: those of `owner`
//! that say when an answer may be given. Leaves to others: room for the journal (`room`).

use std::sync::atomic::Ordering;

use super::super::ServerError;
use super::super::request::HeldAnswer;
use super::super::room::why;
use super::{APPENDS_MAX, MetadataOwner};
use crate::journal::{self, LeaderJournal};

impl MetadataOwner {
    /// Whether an append begins now: somebody waits for it, or what it has is old enough.
    pub(super) fn is_append_due(&self) -> bool {
        !self.next_held.is_empty() || !self.behind.is_empty() || self.next.is_due()
    }

    /// Begins an append if none is in flight and there is something to store or to answer.
    pub(super) fn begin_append(&mut self) -> Result<(), ServerError> {
        let Some(mut log) = self.log.take() else { return Ok(()) };
        self.next.extend(self.room.feed(&mut self.image, &log));
        if self.next.is_empty() {
            // Everything that was applied is durable.
            self.early.begin_append();
            self.early.settle();
            self.local.begin_append();
            self.local.settle();
            self.answer_those_behind();
            self.next_held.drain(..).for_each(HeldAnswer::release);
            self.shared.drained_to.store(self.sequence + APPENDS_MAX, Ordering::Release);
            self.log = Some(log);
            return Ok(());
        }
        let transactions = self.next.take();
        self.held = std::mem::take(&mut self.next_held);
        self.early.begin_append();
        self.local.begin_append();
        self.in_flight = Some(Box::pin(async move {
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
        self.in_flight = None;
        self.sequence = result.map_err(|error| why(error, &self.image))?;
        self.room.stored(&mut log);
        self.room.tell(&mut self.image, &log);
        self.log = Some(log);
        self.overview.appends += 1;
        self.shared.drained_to.store(self.sequence, Ordering::Release);
        self.early.settle();
        self.local.settle();
        self.held.drain(..).for_each(HeldAnswer::release);
        self.answer_those_behind();
        Ok(())
    }

    /// Gives an answer when everything that was applied so far is durable.
    pub(super) fn hold(&mut self, held: HeldAnswer) {
        match (&self.in_flight, self.next.is_empty()) {
            (Some(_), true) => self.held.push(held),
            _ => self.next_held.push(held),
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
        self.next.extend(transactions);
        let Some(mut log) = self.log.take() else { return Ok(()) };
        let done = self.with_log(&mut log).await;
        self.room.tell(&mut self.image, &log);
        self.log = Some(log);
        done
    }

    async fn with_log(&mut self, log: &mut LeaderJournal) -> Result<(), ServerError> {
        self.room.renew(log).await?;
        self.next.extend(self.image.set_aside()?);
        let is_awaited = self.is_space_awaited();
        let segments = self.room.for_checkpoint(&mut self.image, log, &mut self.next, is_awaited)?;
        let Some(segments) = segments else { return Ok(()) };
        // The tables are those of the appends so far.
        self.early.begin_append();
        self.local.begin_append();
        let stored = log.append(self.next.take()).await;
        self.sequence = stored.map_err(|error| why(error, &self.image))?;
        self.early.settle();
        self.local.settle();
        self.next_held.drain(..).for_each(HeldAnswer::release);
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
            self.next.push(self.image.retire_segment(block)?);
        }
        Ok(())
    }
}
