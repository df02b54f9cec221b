//! Replaying the log after a checkpoint.
//!
//! Owns: finding the end of the log after a checkpoint, and reading the log ahead of the replay.
//!
//! *Circle*: `roll_forward` calls this step, and this step uses the state of `roll_forward`: both are one algorithm in
//! two files.

use std::sync::{Arc, Mutex, MutexGuard};

use futures_util::future::{OptionFuture, join};
use futures_util::stream::{self, StreamExt};
use nectary_block::SharedDevice;
use tokio::sync::mpsc;

use super::loading::CheckpointLoading;
use super::opening::IndexReadLimits;
use super::roll_forward::RollForward;
use crate::background;
use crate::checkpoint::CheckpointHeader;
use crate::disk::ahead::{ScanMemory, SegmentReadAhead};
use crate::disk::segment::{ScanMode, SegmentScan};
use crate::format::layout::SpanLayout;
use crate::format::{COUNTER_MAX, GRANULE_BYTES, LogPosition};
use crate::index::ValidLocations;
use crate::planted::{Bug, planted};

/// The number of segments that are read at the same time.
const SEGMENTS_AT_ONCE: usize = 4;
/// If at least this many segments follow the first one, segments are read on a separate thread.
const APART_SEGMENTS_MIN: u64 = 4;
/// Decides how thoroughly a segment is read: only the last two segments may be unflushed, so only their records are
/// verified.
pub fn care(epoch: u64, newest: u64) -> ScanMode {
    if epoch + 1 >= newest { ScanMode::Verify } else { ScanMode::Search }
}

/// The part of the log to replay.
struct ReplayLog {
    /// The first epoch of this part; `end` is the last epoch.
    oldest: u64,
    end: u64,
    /// The checkpoint's log position. This part of the log begins there, except if that segment was overwritten.
    position: LogPosition,
    /// The last sequence before this part of the log.
    floor: u64,
    /// Memory of replayed segments, for reuse.
    spares: Mutex<Vec<ScanMemory>>,
}

impl ReplayLog {
    /// Reads a segment while the contents of earlier segments are not known yet.
    async fn segment(&self, device: &SharedDevice, layout: &SpanLayout, epoch: u64) -> SegmentReadAhead {
        let offset = if epoch == self.position.epoch { self.position.offset } else { 0 };
        let spare = self.spares().pop().unwrap_or_default();
        SegmentReadAhead::read(device, layout, epoch, offset, self.floor, care(epoch, self.end), spare).await
    }

    fn spares(&self) -> MutexGuard<'_, Vec<ScanMemory>> {
        self.spares.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Reads all segments in order, until the receiver is gone.
    async fn read(&self, device: &SharedDevice, layout: &SpanLayout, sender: mpsc::Sender<SegmentReadAhead>) {
        let segments = stream::iter(self.oldest..=self.end);
        let mut segments = segments.map(|epoch| self.segment(device, layout, epoch)).buffered(SEGMENTS_AT_ONCE);
        while let Some(ahead) = segments.next().await {
            if sender.send(ahead).await.is_err() {
                return;
            }
        }
    }
}

impl RollForward<'_> {
    /// Replays the log after a checkpoint. Returns false if that is impossible, or the checkpoint turns out to be
    /// damaged.
    pub async fn replay_checkpoint(&mut self, header: &CheckpointHeader, opening: IndexReadLimits) -> bool {
        if !header.fits(&self.index) {
            return false;
        }
        if header.position.epoch == 0 || header.position.epoch > COUNTER_MAX {
            return false;
        }
        // First, the end of the log is searched. If the segments after the checkpoint show that a cycle or more was
        // written since then, the log cannot be followed from the checkpoint, and all segments are scanned instead.
        // Entries of the checkpoint in segments that were opened since then are of an earlier cycle, and are not used.
        let first = header.position.epoch;
        let mut end = first;
        loop {
            // Each segment has one epoch, so no log that can be followed is longer than a cycle.
            if end - first > self.layout.segment_count {
                return false;
            }
            match self.epoch_found(end + 1).await {
                Some(found) if found == end + 1 => end += 1,
                Some(found) if found > end + 1 => return false,
                // Each segment is flushed before the next one is opened. So if the segment after this one is there, this
                // one was written, and the heads of all its appends are lost.
                _ if self.is_beheaded(end + 1).await => end += 2,
                _ => break,
            }
        }
        if self.epoch_found(first).await.is_some_and(|found| found > first) {
            return false;
        }
        let layout = self.layout;
        let same_cycle = |segment| layout.epoch_of(segment, end) == layout.epoch_of(segment, first);
        let kept: Vec<bool> =
            (0..layout.segment_count).map(|segment| planted(Bug::FormerFrameAccepted) || same_cycle(segment)).collect();
        let loading = CheckpointLoading::of(*header, ValidLocations::of(kept, layout.segment_bytes / GRANULE_BYTES));
        let loading = self.loading.insert(loading);
        if header.index_bytes() >= opening.apart_bytes_min {
            loading.read_ahead(self.device, layout);
        }
        self.from_checkpoint = true;
        self.scanned.last_sequence = header.last_sequence;
        self.scanned.flushed_sequence = header.last_sequence;
        // If more than a cycle was written since the checkpoint, the oldest part of the log is gone.
        let oldest = layout.tail(end).max(first);
        self.position = header.position;
        let (position, floor) = (header.position, header.last_sequence);
        let log = Arc::new(ReplayLog { oldest, end, position, floor, spares: Mutex::default() });
        let (sender, mut segments) = mpsc::channel(SEGMENTS_AT_ONCE);
        let device = self.device;
        let is_apart = opening.has_threads && end - oldest >= APART_SEGMENTS_MIN && {
            let (log, device, layout, sender) = (Arc::clone(&log), device.clone(), *layout, sender.clone());
            background::spawn(move || async move { log.read(&device, &layout, sender).await })
        };
        let here = match is_apart {
            true => {
                drop(sender);
                None
            }
            false => Some(log.read(device, layout, sender)),
        };
        let log = &log;
        let take = async move {
            for epoch in oldest..=end {
                // If the other thread is gone, the segment is read here.
                let ahead = match segments.recv().await {
                    Some(ahead) => ahead,
                    None => log.segment(device, layout, epoch).await,
                };
                let Some(spare) = self.segment(ahead, layout.is_next(epoch, end)).await else { return false };
                log.spares().push(spare);
                // The first segment may be read only from its middle on, so the number of records is estimated after
                // the second segment.
                if epoch == oldest + 1 {
                    let bytes_max = (end - oldest + 1) * layout.segment_bytes;
                    let SegmentScan { append_bytes, .. } = self.scanned;
                    self.replay.reserve((self.records * bytes_max).checked_div(append_bytes).unwrap_or(0));
                }
            }
            true
        };
        join(OptionFuture::from(here), take).await.1
    }
}
