//! Reading the names of all objects in the ring, after an open.
//!
//! Owns: reading the tables of all segments once, one after the other, in the background. Until all tables have been
//! read, every purge of a key gets a record.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::SpanWriter;
use crate::disk::segment::{ScanMode, SegmentReader};
use crate::disk::span::SpanDisk;
use crate::format::{COUNTER_MAX, LogPosition};
use crate::index::held_names::{MARGIN_SEGMENTS, SpanNames};
use crate::planted::{Bug, planted};

impl SpanWriter {
    /// Starts reading names when `begin` resolves or is dropped.
    pub(super) fn read_names(&mut self, begin: oneshot::Receiver<()>) {
        let (span, names, position) = (Arc::clone(&self.span), Arc::clone(&self.state.names), self.appends.position);
        self.opening.read_names(async move {
            let _ = begin.await;
            read_names(&span, &names, position).await;
        });
    }
}

/// Notes the names of all records before `position` that a scan may find.
async fn read_names(span: &SpanDisk, names: &SpanNames, position: LogPosition) {
    if planted(Bug::NamesNotRead) {
        return names.are_read(0);
    }
    let layout = &span.layout;
    let tail = layout.tail(position.epoch);
    let mut damaged_through = 0;
    for epoch in tail.saturating_sub(MARGIN_SEGMENTS).max(1)..=position.epoch {
        // If a whole segment was damaged, this open may have ended the log before that segment, although segments of
        // later epochs follow on disk. A scan of all segments would find these later epochs.
        let found = SegmentReader::new(&span.device, layout, epoch).find_epoch().await;
        let beyond = found.filter(|&found| found > epoch && epoch >= tail && found <= COUNTER_MAX);
        damaged_through = damaged_through.max(beyond.unwrap_or(0));
        let is_whole = read_segment(span, names, epoch, position).await;
        // Segments before `tail` may be partly overwritten; gaps in these are not damage.
        if !is_whole && epoch >= tail {
            damaged_through = damaged_through.max(epoch);
        }
        tokio::task::yield_now().await;
    }
    names.are_read(damaged_through);
}

/// Notes the names in a segment; returns whether all were read.
async fn read_segment(span: &SpanDisk, names: &SpanNames, epoch: u64, position: LogPosition) -> bool {
    let is_last = epoch == position.epoch;
    let end = if is_last { position.offset } else { span.layout.segment_bytes };
    let mut reader = SegmentReader::new(&span.device, &span.layout, epoch).until(end);
    let note = |record: crate::disk::segment::LoggedRecord| names.note_at(record.primary_hash, epoch);
    let scanned = reader.scan(0, 0, ScanMode::Search, note).await;
    // An invalid append that no valid append follows looks like the end of the segment, so the blocks after the end are
    // searched for frames.
    let rest = reader.frames_from(scanned.end).await;
    let is_damaged = scanned.damaged || scanned.salvaged > 0 || !scanned.holes.is_empty() || !rest.is_empty();
    !is_damaged && !reader.has_failed()
}
