//! Opening segments: what is flushed, forgotten and kept before the oldest is overwritten.
//!
//! Owns: the order of that. Leaves to others: what is written into the new segment.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use futures_util::stream::StreamExt;
use tokio::task::JoinHandle;

use super::Writer;
use crate::checkpoint::LogPosition;
use crate::error::Error;
use crate::format::UNIT_BYTES;
use crate::index::Location;
use crate::log::{Care, SegmentReader};
use crate::reinsert::harvest;
use crate::stat::Counters;

/// To look through an index of up to so many bytes, and what of it is in memory, costs less than reading the tables of a segment.
const SWEEP_INDEX_BYTES_MAX: u64 = 512 << 10;

impl Writer {
    /// Opens the next segment where this one has no room for `bytes`.
    pub(super) async fn make_room(&mut self, bytes: u64) -> Result<(), Error> {
        if self.position.offset + bytes > self.shared.layout.segment_bytes {
            self.open_next_segment().await?;
            self.begin_harvest();
        }
        Ok(())
    }

    pub(super) async fn open_next_segment(&mut self) -> Result<(), Error> {
        while let Some(written) = self.in_flight.next().await {
            self.complete(written).await;
        }
        if self.shared.stopped().is_some() {
            return Err(self.shared.stopped_error());
        }
        let next = self.position.incarnation + 1;
        // Both wait for the disk, and neither for the other.
        let (flushed, ()) = tokio::join!(self.shared.flush(), self.reclaim(next));
        flushed?;
        self.flushed_at = Instant::now();
        self.shared.head.store(next, Ordering::Release);
        self.shared.pace.opened(next);
        self.position = LogPosition { incarnation: next, offset: 0 };
        let tail = self.shared.layout.tail(next);
        self.shared.drop_purged_in_memory();
        self.shared.purges.retire(tail, self.shared.fills.generation_min());
        Ok(())
    }

    /// Goes on re-inserting what has proved itself in the segments that are overwritten next.
    pub(super) fn begin_harvest(&mut self) {
        // One that runs still looks for what is due before it ends.
        if self.shared.reinsert_percent == 0 {
            let next = self.position.incarnation + 1;
            if let Some(old) = next.checked_sub(self.shared.layout.segment_count).filter(|&old| old > 0) {
                self.shared.keep_resident(old);
            }
        } else if self.harvest.as_ref().is_none_or(JoinHandle::is_finished) {
            self.harvest = Some(tokio::spawn(harvest(Arc::clone(&self.shared))));
        }
    }

    /// Ends re-insertion where it stands.
    pub(super) async fn end_harvest(&mut self) {
        if let Some(task) = self.harvest.take() {
            task.abort();
            let _ = task.await;
        }
    }

    /// Forgets what stands in the segment that `incarnation` will overwrite.
    pub(super) async fn reclaim(&self, incarnation: u64) {
        let shared = &self.shared;
        let layout = &shared.layout;
        let Some(old) = incarnation.checked_sub(layout.segment_count).filter(|&old| old > 0) else { return };
        let segment = layout.segment_of(old);
        let mut removed = 0;
        let mut sweeps = shared.index.bytes() <= SWEEP_INDEX_BYTES_MAX;
        if !sweeps {
            let mut reader = SegmentReader::new(&shared.device, layout, old);
            let scanned = reader
                .scan(0, 0, Care::Search, |record| {
                    removed += u64::from(shared.index.remove(record.hash, record.location));
                    shared.memory.remove_at(record.hash, record.location);
                })
                .await;
            sweeps = scanned.damaged;
        }
        if sweeps {
            let here = |location: Location| location.unit * UNIT_BYTES / layout.segment_bytes == segment;
            removed += shared.index.sweep(here);
            shared.memory.sweep(|entry| entry.location().is_some_and(here));
        }
        let units = layout.segment_bytes / UNIT_BYTES;
        shared.marks.clear(segment * units..(segment + 1) * units);
        Counters::add(&shared.counters.segments_reclaimed, 1);
        Counters::add(&shared.counters.entries_reclaimed, removed);
    }
}
