//! Making purges durable.
//!
//! Owns: which purges share a block of the log and a flush, and room in the log. Leaves to others: the log (`purge_log`)
//! and the rules in memory (`purges`).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::stream::StreamExt;

use super::{Command, Writer};
use crate::error::Error;
use crate::format::{BLOCK_BYTES, PurgeRecord};
use crate::stat::Counters;

impl Writer {
    pub(super) fn gather_purges(&mut self) {
        while self.purges_waiting.len() < crate::format::PURGE_RECORDS_PER_BLOCK {
            match self.commands.try_recv() {
                Ok(Command::Purge(record, reply)) => self.purges_waiting.push((record, reply)),
                Ok(Command::Sync(reply)) => self.syncs_waiting.push((self.shared.queue.last_sequence(), reply)),
                Ok(Command::Checkpoint(reply)) => self.checkpoints_asked.push(reply),
                Ok(Command::Membership(change)) => self.membership_changes.push(change),
                // Closing comes after the purges that were gathered.
                Ok(Command::Close(reply)) => {
                    self.closing = Some(reply);
                    return;
                }
                Err(_) => return,
            }
        }
    }

    /// Makes the gathered purges durable, one block and one flush for all of them.
    pub(super) async fn serve_purges(&mut self) -> Result<(), Error> {
        if self.purges_waiting.is_empty() {
            return Ok(());
        }
        if self.shared.stopped().is_some() {
            return Err(self.shared.stopped_error());
        }
        if self.purge_log.is_full() {
            self.compact_purges().await?;
        }
        let count = self.purges_waiting.len().min(crate::format::PURGE_RECORDS_PER_BLOCK);
        let batch: Vec<_> = self.purges_waiting.drain(..count).collect();
        let records: Vec<PurgeRecord> = batch.iter().map(|(record, _)| *record).collect();
        let written = self.shared.written.load(Ordering::Acquire);
        let result = self.purge_log.commit(&records).await;
        Counters::add(&self.shared.counters.metadata_bytes, 2 * BLOCK_BYTES);
        Counters::add(&self.shared.counters.flushes, 1);
        if result.is_ok() {
            self.shared.admission.doubt.purges_are_durable(count as u64);
            self.shared.flushed.fetch_max(written, Ordering::AcqRel);
            self.purge_end = self.purge_log.end();
        }
        for (_, reply) in batch {
            let _ = reply.send(result.clone());
        }
        result
    }

    /// Begins a new lap of the purge log; reclaims the oldest segments where too many records are still needed.
    pub(super) async fn compact_purges(&mut self) -> Result<(), Error> {
        let shared = Arc::clone(&self.shared);
        let ahead = (2 * shared.queue.bytes_max()).div_ceil(shared.layout.segment_bytes);
        let mut rounds = shared.layout.segment_count + ahead + 4;
        while shared.purges.len() > self.purge_log.live_records_max() && rounds > 0 {
            self.open_next_segment().await?;
            self.start(Vec::new(), self.appended_sequence).await;
            rounds -= 1;
        }
        if shared.purges.len() > self.purge_log.live_records_max() {
            // A fill that began before them and never ends keeps them all: the log has no room for that.
            shared.purges.collapse(shared.draw(), shared.purge_position());
        }
        while let Some(written) = self.in_flight.next().await {
            self.complete(written).await;
        }
        self.purge_log.compact(&self.shared.purges).await?;
        self.purge_end = self.purge_log.end();
        Ok(())
    }
}
