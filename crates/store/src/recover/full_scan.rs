//! Recovering without a checkpoint: every segment is scanned.
//!
//! Owns: finding which segments have contents, and their order.
//!
//! *Circle*: `roll_forward` calls this step, and this step uses the state of `roll_forward`: both are one algorithm in
//! two files.

use super::replay_log::care;
use super::roll_forward::RollForward;
use crate::disk::ahead::{ScanMemory, SegmentReadAhead};
use crate::format::{INDEX_SHARDS, LogPosition};

impl RollForward<'_> {
    /// Finds the epochs of all segments, and replays all segments in order.
    pub async fn replay_all_segments(&mut self) {
        let mut epochs = Vec::new();
        for segment in 0..self.layout.segment_count {
            // Any epoch that maps to this segment selects the segment.
            let nominal = if segment == 0 { self.layout.segment_count } else { segment };
            epochs.extend(self.epoch_found(nominal).await);
        }
        let Some(mut newest) = epochs.iter().copied().max() else { return };
        // If a crash lost the first append of a segment, the segment still begins with an append of the cycle before.
        // Only a later block states the segment's current epoch, and only a search for exactly this epoch finds it.
        while self.epoch_found(newest + 1).await == Some(newest + 1) {
            newest += 1;
            epochs.push(newest);
        }
        epochs.sort_unstable();
        let is_missing = |epoch: &u64| epochs.binary_search(epoch).is_err();
        let missing: Vec<u64> = (self.layout.tail(newest)..newest).filter(is_missing).collect();
        for epoch in missing {
            let is_there = self.epoch_found(epoch).await == Some(epoch) || self.is_beheaded(epoch).await;
            epochs.extend(Some(epoch).filter(|_| is_there));
        }
        epochs.sort_unstable();
        let mut spare = ScanMemory::default();
        for epoch in epochs.into_iter().filter(|&epoch| epoch >= self.layout.tail(newest)) {
            self.position = LogPosition { epoch, offset: 0 };
            let care = care(epoch, newest);
            let last_sequence = self.scanned.last_sequence;
            let ahead = SegmentReadAhead::read(self.device, self.layout, epoch, 0, last_sequence, care, spare).await;
            spare = self.segment(ahead, self.layout.is_next(epoch, newest)).await.unwrap_or_default();
            // Records are applied after each segment, not all at the end, because together they would take much memory.
            (0..INDEX_SHARDS).for_each(|shard| self.replay.apply(shard, &self.index));
        }
        self.load_all().await;
    }
}
