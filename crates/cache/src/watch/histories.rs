//! The histories of recently accessed blocks, for all streams that are watched: a table of fixed size.
//!
//! Owns: the records, five in a cache line. Promises: of the blocks that share a line, the four accessed last before an
//! access keep their histories; the memory does not change. Leaves to others: detection.
//!
//! A record names its block by 32 bits of a hash, so two blocks in a line are mistaken for each other once in four
//! billion pairs: nothing but a verdict that is shown depends on it.
//!
//! Cost: one cache line per access; 13 bytes per record.

use crate::StreamId;
use crate::detect::BlockHistory;
use crate::structures::hash::hash;
use crate::structures::memory::filled;

/// The number of records for each unit of capacity: a loop that is somewhat longer than the cache is still known when
/// it comes round.
const RECORDS_PER_UNIT: u64 = 2;
/// The smallest and the largest number of records.
const RECORDS: (u64, u64) = (1 << 10, 1 << 17);
/// The number of records in a cache line.
const LINE: usize = 5;

/// The history of one block.
#[derive(Debug, Clone, Copy, Default)]
struct HistoryRecord {
    /// The hash of stream and block; 0 in an empty record.
    tag: u32,
    history: BlockHistory,
}

/// One cache line, the block accessed last first.
#[derive(Debug, Clone, Copy, Default)]
#[repr(align(64))]
struct HistoryLine([HistoryRecord; LINE]);

/// The histories.
pub(super) struct HistoryCache {
    lines: Vec<HistoryLine>,
}

fn lines(capacity: u64) -> usize {
    (capacity.saturating_mul(RECORDS_PER_UNIT).clamp(RECORDS.0, RECORDS.1) / LINE as u64) as usize
}

impl HistoryCache {
    /// Empty histories for a cache of `capacity` units of weight.
    pub(super) fn new(capacity: u64) -> HistoryCache {
        HistoryCache { lines: filled(HistoryLine::default(), lines(capacity)) }
    }

    /// The memory of the histories for a cache of `capacity` units of weight. *Units*: bytes.
    pub(super) fn bytes_of(capacity: u64) -> u64 {
        (lines(capacity) * size_of::<HistoryLine>()) as u64
    }

    /// Makes the histories fit another capacity; if their number changes, all are forgotten.
    pub(super) fn set_capacity(&mut self, capacity: u64) {
        if lines(capacity) != self.lines.len() {
            *self = HistoryCache::new(capacity);
        }
    }

    /// The history of a block that `stream` accesses; a default history if none is known.
    pub(super) fn refer(&mut self, id: u64, stream: StreamId) -> &mut BlockHistory {
        let hash = hash(id ^ u64::from(stream.0).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let tag = (hash >> 32) as u32 | 1;
        let line = (((hash & 0xffff_ffff) * self.lines.len() as u64) >> 32) as usize;
        let HistoryLine(records) = &mut self.lines[line];
        let place = records.iter().position(|record| record.tag == tag).unwrap_or_else(|| {
            records[LINE - 1] = HistoryRecord { tag, history: BlockHistory::default() };
            LINE - 1
        });
        records[..=place].rotate_right(1);
        &mut records[0].history
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detect::{Detector, DetectorParameters};

    #[test]
    fn longer_loop_is_known() {
        let mut histories = HistoryCache::new(4000);
        let mut detector = Detector::new(DetectorParameters::default());
        for round in 0..3 {
            let mut is_known = |id: u64| {
                let history = histories.refer(id, StreamId(1));
                let is_known = history.frequency() == round;
                _ = detector.observe(history);
                is_known
            };
            let known = (0..6000).filter(|id| is_known(*id)).count();
            assert!(known > 5500, "round {round}: {known}");
        }
        assert_eq!(histories.refer(1, StreamId(2)).frequency(), 0, "streams are apart");
    }

    #[test]
    fn memory_is_fixed_by_the_capacity() {
        for capacity in [0, 1000, 100_000, u64::MAX] {
            let bytes = HistoryCache::new(capacity).lines.capacity() * size_of::<HistoryLine>();
            assert_eq!(bytes as u64, HistoryCache::bytes_of(capacity));
        }
    }
}
