//! The speed of the ring, measured by the times at which the last segments were opened.
//!
//! Owns: the decision whether a segment stays long enough to be read. If the ring turns slowly, all segments stay long
//! enough except the oldest ones, which are a fixed share of the ring
//! ([`SpanLayout::stays`](crate::format::layout::SpanLayout::stays)). If the ring turns within seconds, time decides: let n be
//! the number of segments that will be opened before this segment is overwritten; the segment stays long enough if the
//! last n openings took at least [`READING_MS`]. So the margin grows with the load, and shrinks when the load ends.
//! Re-inserted bytes count like put bytes, because they also open segments.
//!
//! *Cost*: the clock is read only for records in the oldest quarter of the ring.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::Instant;

use crate::format::layout::SpanLayout;

/// When a body is opened for reading, its segment must stay for at least this time, in milliseconds.
const READING_MS: u64 = 100;
/// The number of opening times that are kept, one for each of the last epochs. Time decides only for the oldest
/// segments: at most a quarter of all, and fewer than this number. All others stay long enough.
const OPENINGS: u64 = 64;

/// The times at which the last segments were opened.
pub struct RingPace {
    begun: Instant,
    /// For each of the last epochs: the time at which it was opened, in milliseconds plus one; 0 if the time is not
    /// known. An epoch's slot is the epoch modulo [`OPENINGS`].
    opened: [AtomicU64; OPENINGS as usize],
}

impl RingPace {
    /// Makes a list without openings.
    pub fn new() -> RingPace {
        RingPace { begun: Instant::now(), opened: std::array::from_fn(|_| AtomicU64::new(0)) }
    }

    /// Notes that an epoch is opened now.
    pub fn opened(&self, epoch: u64) {
        self.opened_at(epoch, self.begun.elapsed().as_millis() as u64);
    }

    /// Whether the segment of an epoch stays long enough to be read, while the epoch `head` is being written.
    pub fn stays(&self, layout: &SpanLayout, epoch: u64, head: u64) -> bool {
        let left = (epoch + layout.segment_count).saturating_sub(head);
        left > (layout.segment_count / 4).min(OPENINGS - 1)
            || self.took(left, head, self.begun.elapsed().as_millis() as u64) >= READING_MS
    }

    fn opened_at(&self, epoch: u64, now_ms: u64) {
        self.opened[(epoch % OPENINGS) as usize].store(now_ms + 1, Ordering::Relaxed);
    }

    /// The time since the first of the last `count` openings, in milliseconds; `u64::MAX` if there were fewer openings.
    fn took(&self, count: u64, head: u64, now_ms: u64) -> u64 {
        let Some(first) = (head + 1).checked_sub(count) else { return u64::MAX };
        match self.opened[(first % OPENINGS) as usize].load(Ordering::Relaxed) {
            0 => u64::MAX,
            opened => (now_ms + 1).saturating_sub(opened),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The margin grows with the pace of the ring, and falls when the ring rests.
    #[test]
    fn margin_follows_ring_pace() {
        let pace = RingPace::new();
        assert_eq!(pace.took(1, 100, 0), u64::MAX, "nothing was opened yet");
        for epoch in 1..=100 {
            pace.opened_at(epoch, epoch * 25);
        }
        assert_eq!(pace.took(1, 100, 2500), 0);
        assert_eq!((pace.took(20, 100, 2500), pace.took(21, 100, 2500)), (475, 500));
        assert_eq!(pace.took(1, 100, 3000), 500);
        assert_eq!(pace.took(63, 100, 2500), 62 * 25);
    }

    /// At most a quarter of the ring counts as about to be overwritten.
    #[test]
    fn margin_is_quarter_at_most() {
        let layout = SpanLayout::plan(8 << 20, Some(256 << 10), 1, 2, 3).unwrap();
        let (pace, head, count) = (RingPace::new(), 100, layout.segment_count);
        (1..=head).for_each(|epoch| pace.opened(epoch));
        assert!(!pace.stays(&layout, head + 1 - count, head));
        assert!(!pace.stays(&layout, head + count / 4 - count, head));
        assert!(pace.stays(&layout, head + count / 4 + 1 - count, head));
    }
}
