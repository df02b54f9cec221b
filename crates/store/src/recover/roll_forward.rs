//! Rolling forward: from a checkpoint, or from nothing, to an index of everything that was written.
//!
//! Owns: the effect of each record of the log. `replay_log` reads the log from a checkpoint on; `full_scan` reads all
//! of it if there is no checkpoint.

use nectary_block::SharedDevice;

use super::loading::{CheckpointLoading, IndexRemainder};
use super::opening::IndexReadLimits;
use super::replay::IndexReplay;
use crate::checkpoint::{self, CheckpointHeader, CheckpointHeaders};
use crate::disk::ahead::{ScanMemory, SegmentReadAhead};
use crate::disk::segment::{FirstAppend, LoggedRecord, SegmentReader, SegmentScan};
use crate::format::layout::SpanLayout;
use crate::format::{LogPosition, open_count_of};
use crate::index::{ObjectIndex, shard_of};
use crate::names::key::hash_fragment;
use crate::planted::{Bug, planted};
use crate::purge::purge_table::PurgeTable;

fn new_index(layout: &SpanLayout, bytes_max: u64) -> ObjectIndex {
    ObjectIndex::new(layout.index_home_bits, bytes_max.min(layout.index_bytes_max()))
}

/// The state of a roll forward.
pub struct RollForward<'a> {
    pub device: &'a SharedDevice,
    pub layout: &'a SpanLayout,
    pub purges: &'a PurgeTable,
    pub index: ObjectIndex,
    pub replay: IndexReplay,
    /// The source of the index, until the index is fully loaded.
    pub loading: Option<CheckpointLoading>,
    pub from_checkpoint: bool,
    pub position: LogPosition,
    pub scanned: SegmentScan,
    pub records: u64,
    /// The segments of the log that have no intact append, and for each the sequence up to which everything was flushed
    /// before the next segment was written.
    beheaded: Vec<(u64, u64)>,
}

impl<'a> RollForward<'a> {
    fn of(device: &'a SharedDevice, layout: &'a SpanLayout, purges: &'a PurgeTable, index_bytes_max: u64) -> Self {
        RollForward {
            device,
            layout,
            purges,
            index: new_index(layout, index_bytes_max),
            replay: IndexReplay::new(),
            loading: None,
            from_checkpoint: false,
            position: LogPosition { epoch: 1, offset: 0 },
            scanned: SegmentScan::default(),
            records: 0,
            beheaded: Vec::new(),
        }
    }

    /// Rolls forward from the newest intact checkpoint with a number below `number_end`, or otherwise from all
    /// segments. Also returns the checkpoint that was used, and the highest number of any checkpoint. A small index is
    /// already loaded when this returns; a larger one must be loaded later.
    pub async fn newest(
        device: &'a SharedDevice,
        layout: &'a SpanLayout,
        purges: &'a PurgeTable,
        index_bytes_max: u64,
        number_end: u64,
        opening: IndexReadLimits,
    ) -> (Self, Option<CheckpointHeader>, u64) {
        let CheckpointHeaders { intact, number } = checkpoint::read_headers(device, layout).await;
        for header in intact.into_iter().filter(|header| header.number < number_end) {
            let mut forward = RollForward::of(device, layout, purges, index_bytes_max);
            let is_whole = forward.replay_checkpoint(&header, opening).await;
            if is_whole && (header.index_bytes() > opening.whole_bytes_max || forward.load_all().await) {
                return (forward, Some(header), number);
            }
        }
        let mut forward = RollForward::of(device, layout, purges, index_bytes_max);
        forward.replay_all_segments().await;
        (forward, None, number)
    }

    /// The last sequence before the first gap that a crash made. A gap in the flushed part of the log is damage; any
    /// other gap is a place where a crash cut the log.
    pub fn recovered_sequence(&self) -> u64 {
        let flushed = self.scanned.flushed_sequence;
        let crash_hole = self.scanned.holes.iter().copied().filter(|&before| before >= flushed).min();
        crash_hole.unwrap_or(self.scanned.last_sequence)
    }

    /// Loads the missing shards and replays the log for them. Returns false if the checkpoint is damaged.
    pub async fn load_all(&mut self) -> bool {
        let recovered_sequence = self.recovered_sequence();
        let (loading, replay) = (self.loading.take(), std::mem::replace(&mut self.replay, IndexReplay::new()));
        let mut rest = IndexRemainder { loading, replay, recovered_sequence };
        let missing = rest.bring(self.device, self.layout, &self.index, |_| true).await;
        self.replay = rest.replay;
        missing == 0
    }

    /// The epoch found in the segment of this epoch, see [`SegmentReader::find_epoch`].
    pub async fn epoch_found(&self, epoch: u64) -> Option<u64> {
        SegmentReader::ahead(self.device, self.layout, epoch).find_epoch().await
    }

    /// Whether the segment of `epoch`, in which no append of this epoch is intact, was written: the segment of the next
    /// epoch is there.
    pub async fn is_beheaded(&mut self, epoch: u64) -> bool {
        let flushed = SegmentReader::ahead(self.device, self.layout, epoch + 1).flushed_before().await;
        self.beheaded.extend(flushed.map(|flushed| (epoch, flushed)));
        flushed.is_some()
    }

    /// Applies the records of a segment; `is_next` is set for the segment that is overwritten next. Returns the buffers
    /// for reuse; `None` if this needs the checkpoint, and the checkpoint is damaged.
    pub async fn segment(&mut self, ahead: SegmentReadAhead, is_next: bool) -> Option<ScanMemory> {
        let last_sequence = self.scanned.last_sequence;
        let mut ahead = if ahead.holds_after(last_sequence) {
            ahead
        } else {
            let SegmentReadAhead { epoch, offset, care, .. } = ahead;
            let spare = ahead.into_spare();
            SegmentReadAhead::read(self.device, self.layout, epoch, offset, last_sequence, care, spare).await
        };
        let SegmentReadAhead { epoch, records: found, scanned, .. } = &mut ahead;
        if let Some((_, flushed)) = self.beheaded.iter().find(|(beheaded, _)| beheaded == epoch) {
            keep_flushed(found, scanned, last_sequence, *flushed);
        }
        // A gap in the segment that is overwritten next may mean that overwriting had begun. Lost records may have
        // replaced the records found in this segment, so none of these is used.
        if is_next && scanned.damaged && !planted(Bug::TornTailKept) {
            found.clear();
        }
        scanned.opens.retain(|first| open_count_of(first.first_sequence) > open_count_of(last_sequence));
        let mut opens = scanned.opens.iter().peekable();
        for record in found.iter() {
            while let Some(first) = opens.next_if(|first| first.first_sequence <= record.sequence) {
                self.forget_given_up(first);
            }
            // An incomplete version after a crash must not replace a complete one.
            let complete = match record.fragments {
                None => true,
                Some((generation, count)) => self.has_fragments(record, generation, count).await?,
            };
            self.record(record, complete);
        }
        // The remaining opens wrote no record in this segment: an open's first append may be empty.
        opens.for_each(|first| self.forget_given_up(first));
        self.scanned.appends += scanned.appends;
        self.scanned.append_bytes += scanned.append_bytes;
        self.scanned.salvaged += scanned.salvaged;
        self.scanned.purge_end = self.scanned.purge_end.max(scanned.purge_end);
        self.scanned.flushed_sequence = self.scanned.flushed_sequence.max(scanned.flushed_sequence);
        self.scanned.holes.append(&mut scanned.holes);
        // The first open after a crash decided where the crash had cut the log, so gaps in the range that this open
        // recovered no longer matter. But a gap directly before the first append found of that open means that an
        // earlier append of the same open is missing, because an open begins writing at the end of the log.
        for first in &scanned.opens {
            let settled = first.recovered_sequence..first.before.max(last_sequence);
            self.scanned.holes.retain(|before| !settled.contains(before));
        }
        // If the segment has no append or record that is valid after the segments before it, the log does not continue
        // there.
        if scanned.appends + scanned.salvaged > 0 || *epoch == self.position.epoch {
            self.scanned.last_sequence = scanned.last_sequence.max(self.scanned.last_sequence);
            self.position = LogPosition { epoch: *epoch, offset: scanned.end };
        }
        Some(ahead.into_spare())
    }

    /// Forgets the versions that a crash lost and that the next open, whose first append this is, gave up.
    fn forget_given_up(&mut self, first: &FirstAppend) {
        if !planted(Bug::GivenUpForgotten) {
            self.replay.forget_lost_after(first.recovered_sequence);
        }
    }

    fn record(&mut self, record: &LoggedRecord, complete: bool) {
        self.records += 1;
        if self.from_checkpoint && planted(Bug::CheckpointPositionIgnored) {
            return;
        }
        // Purges by tag or prefix are applied only when an object is read; here the object still replaces its older
        // version.
        if self.purges.is_purged_by_key(record.primary_hash, record.generation, b"") {
            return;
        }
        if record.damaged || !complete {
            self.replay.add_lost(record.hash, record.sequence);
        } else {
            self.replay.add(record.hash, record.location, record.sequence, record.fragment);
        }
    }

    /// Whether log and index seem to have all fragments of a head; `None` if the checkpoint, which this needs, is
    /// damaged.
    async fn has_fragments(&mut self, head: &LoggedRecord, generation: u64, count: u32) -> Option<bool> {
        for number in 0..count {
            let hash = hash_fragment(head.hash, generation, number);
            // Most fragments were written shortly before their head.
            if self.replay.has_fragment(hash) {
                continue;
            }
            if let Some(loading) = &mut self.loading
                && !loading.load_one(self.device, self.layout, &self.index, shard_of(hash)).await
            {
                return None;
            }
            if self.index.candidates(hash).is_empty() {
                return Some(false);
            }
        }
        Some(true)
    }
}

/// Keeps only the records that were certainly in the log, of a segment without an intact append. `flushed` is the sequence
/// up to which everything was flushed before the next segment was written.
///
/// The segment may also have records of an earlier open that a crash cut off from the log: they must not reappear. If the
/// last flushed record is in this segment, the records of the same open are in the log; of other records this is not
/// known.
fn keep_flushed(found: &mut Vec<LoggedRecord>, scanned: &mut SegmentScan, before: u64, flushed: u64) {
    let has_last = found.iter().any(|record| record.sequence == flushed);
    found.retain(|record| {
        let is_of_same = open_count_of(record.sequence) == open_count_of(flushed);
        has_last && record.sequence <= flushed && (is_of_same || planted(Bug::EarlierOpenKeptAlone))
    });
    scanned.salvaged = found.len() as u64;
    scanned.last_sequence = if has_last { flushed } else { before };
    // What is missing was flushed, if there was anything.
    scanned.holes = if before < flushed { vec![before] } else { Vec::new() };
}
