//! Opening segments: the steps that flush data, and forget or keep objects, before the oldest segment is overwritten.
//!
//! Owns: the order of these steps, and reading the tables of the oldest segment in advance. Leaves to others: the
//! contents of the new segment.

use std::sync::Arc;

use tokio_util::task::AbortOnDropHandle;

use super::{SpanWriter, task};
use crate::counters::Counters;
use crate::disk::segment::{ScanMode, SegmentReader};
use crate::disk::span::SpanDisk;
use crate::error::Error;
use crate::format::{GRANULE_BYTES, LogPosition, RecordLocation};
use crate::names::key::KeyHash;
use crate::rewrite::reinsert::harvest;
use crate::state::SpanState;

/// If the index has at most this many bytes, searching it and the objects in memory costs less than reading the tables
/// of a segment.
const SWEEP_INDEX_BYTES_MAX: u64 = 512 << 10;

/// Tables that are read ahead take at most 1/`TABLES_SHARE` of the memory budget.
const TABLES_SHARE: u64 = 64;

/// The number of records that are collected and then removed from index and memory together.
const FORGOTTEN_AT_ONCE: usize = 1024;

/// A record: its hash and its location.
type Standing = (KeyHash, RecordLocation);

/// The contents of a segment.
struct SegmentTables {
    epoch: u64,
    standing: Vec<Standing>,
    /// Whether `standing` has all records of the segment.
    is_whole: bool,
}

/// Visits the records in the segment of `epoch`; returns whether all were visited.
async fn visit_standing(span: &SpanDisk, epoch: u64, mut visit: impl FnMut(Standing)) -> bool {
    let mut reader = SegmentReader::new(&span.device, &span.layout, epoch);
    let scanned = reader.scan(0, 0, ScanMode::Search, |record| visit((record.hash, record.location))).await;
    !scanned.damaged && !scanned.unreadable
}

/// Removes records from index and memory, and clears the list. Returns the number of records that the index had.
fn forget(state: &SpanState, standing: &mut Vec<Standing>) -> u64 {
    let removed = standing.iter().filter(|(hash, location)| state.index.remove(*hash, *location)).count();
    state.memory.remove_at(standing);
    standing.clear();
    removed as u64
}

/// The tasks that prepare the segments that are overwritten next.
#[derive(Default)]
pub(super) struct ReclaimAhead {
    /// The task that reads the tables of the segment that is overwritten next.
    tables: Option<AbortOnDropHandle<SegmentTables>>,
    /// The task that re-inserts objects from the segments that are overwritten next.
    harvest: Option<AbortOnDropHandle<()>>,
}

impl SpanWriter {
    /// Opens the next segment if the current one has no room for `bytes` more bytes.
    pub(super) async fn make_room(&mut self, bytes: u64) -> Result<(), Error> {
        if self.appends.position.offset + bytes > self.span.layout.segment_bytes {
            self.open_next_segment().await?;
            self.read_tables_ahead();
            self.begin_harvest();
        }
        Ok(())
    }

    pub(super) async fn open_next_segment(&mut self) -> Result<(), Error> {
        self.settle_cut().await?;
        while let Some(written) = self.appends.next_written().await {
            self.complete(written).await;
        }
        if self.state.stopped().is_some() {
            return Err(self.state.stopped_error());
        }
        if self.is_behind_failure() {
            // The caller tries again when these entries are back in the queue.
            return Ok(());
        }
        let next = self.appends.position.epoch + 1;
        let tables = self.tables_ahead(next).await;
        // The flush and the reclaiming both wait for the disk, but not for each other, so they run at the same time.
        let (flushed, ()) = tokio::join!(self.state.flush(), reclaim(&self.state, next, tables, self.sweeps()));
        flushed?;
        self.all_flushed();
        self.syncs.restart_interval();
        self.intake.begin_era(next);
        self.span.set_head(next);
        self.span.pace.opened(next);
        self.appends.position = LogPosition { epoch: next, offset: 0 };
        self.retire_purges();
        Ok(())
    }

    /// Forgets purges that cannot affect any object any more.
    pub(super) fn retire_purges(&self) {
        self.intake.drop_purged_in_memory();
        let tail = self.span.layout.tail(self.appends.position.epoch);
        self.state.purges.retire(tail, self.puts.fills.generation_min());
    }

    /// Continues re-inserting requested objects of the segments that are overwritten next.
    pub(super) fn begin_harvest(&mut self) {
        // A running harvest looks for further due segments before it ends, so no second one is started.
        if self.rewriting.reinsert_percent == 0 {
            let next = self.appends.position.epoch + 1;
            if let Some(old) = next.checked_sub(self.span.layout.segment_count).filter(|&old| old > 0) {
                self.rewriting.keep_resident(old);
            }
        } else if self.reclaim.harvest.as_ref().is_none_or(AbortOnDropHandle::is_finished) {
            self.reclaim.harvest = Some(task(harvest(Arc::clone(&self.rewriting))));
        }
    }

    /// Aborts a running re-insertion.
    pub(super) async fn end_harvest(&mut self) {
        if let Some(task) = self.reclaim.harvest.take() {
            task.abort();
            let _ = task.await;
        }
    }

    /// Starts reading the tables of the segment that is overwritten next, so that they are known in time.
    pub(super) fn read_tables_ahead(&mut self) {
        let old = (self.appends.position.epoch + 1).checked_sub(self.span.layout.segment_count).filter(|&old| old > 0);
        let Some(old) = old.filter(|_| !self.sweeps()) else { return };
        // A growing list allocates up to twice the size of its contents.
        let most = self.tables_bytes_max() as usize / (2 * size_of::<Standing>());
        let span = Arc::clone(&self.span);
        self.reclaim.tables = Some(task(async move {
            let (mut standing, mut fits) = (Vec::new(), true);
            let is_whole = visit_standing(&span, old, |record| {
                fits &= standing.len() < most;
                if fits {
                    standing.push(record);
                }
            });
            let is_whole = is_whole.await && fits;
            SegmentTables { epoch: old, standing, is_whole }
        }));
    }

    /// The tables of the segment that `epoch` will overwrite, if they were read ahead and are complete.
    async fn tables_ahead(&mut self, epoch: u64) -> Option<SegmentTables> {
        let tables = self.reclaim.tables.take()?.await.ok()?;
        let is_next = tables.epoch + self.span.layout.segment_count == epoch;
        Some(tables).filter(|tables| is_next && tables.is_whole)
    }

    /// The limit on the memory of tables that are read ahead, in bytes; 0 if none are read ahead.
    pub(super) fn tables_bytes_max(&self) -> u64 {
        if self.sweeps() { 0 } else { self.memory.bytes() / TABLES_SHARE }
    }

    /// Whether searching index and memory costs less than reading tables.
    fn sweeps(&self) -> bool {
        self.state.index.bytes() <= SWEEP_INDEX_BYTES_MAX
    }
}

/// Forgets the objects of the segment that `epoch` will overwrite. `tables` lists them if they were read ahead. With
/// `sweeps`, index and memory are searched instead.
async fn reclaim(state: &SpanState, epoch: u64, tables: Option<SegmentTables>, mut sweeps: bool) {
    let layout = &state.span.layout;
    let Some(old) = epoch.checked_sub(layout.segment_count).filter(|&old| old > 0) else { return };
    let segment = layout.segment_of(old);
    let mut removed = 0;
    if !sweeps {
        let mut standing = match tables {
            Some(tables) => tables.standing,
            None => {
                let mut some = Vec::with_capacity(FORGOTTEN_AT_ONCE);
                let is_whole = visit_standing(&state.span, old, |record| {
                    some.push(record);
                    if some.len() == FORGOTTEN_AT_ONCE {
                        removed += forget(state, &mut some);
                    }
                });
                sweeps = !is_whole.await;
                some
            }
        };
        removed += forget(state, &mut standing);
    }
    if sweeps {
        let here = |location: RecordLocation| location.granule * GRANULE_BYTES / layout.segment_bytes == segment;
        removed += state.index.sweep(here);
        state.memory.sweep(|entry| entry.location().is_some_and(here));
    }
    let granules = layout.segment_bytes / GRANULE_BYTES;
    state.referenced.clear(segment * granules..(segment + 1) * granules);
    Counters::add(&state.span.counters.segments_reclaimed, 1);
    Counters::add(&state.span.counters.entries_reclaimed, removed);
}
