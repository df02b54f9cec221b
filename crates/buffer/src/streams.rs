//! Counters by stream, in a bounded table.
//!
//! Owns: the numbering of streams, and one row per stream with its hits, misses, reads saved and lost, last verdict and
//! next block. At most [`STREAMS_MAX`] streams have a row. Beyond that, a new stream gets the row of a stream without
//! recent references. The counts of that stream are added to the row that counts all streams without a row, so that
//! sums stay exact.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use hashbrown::HashMap;
use nectary_block::AccessStream;
use nectary_cache::detect::{PatternVerdict, PeriodSink};

/// The maximum number of streams that have a row.
pub const STREAMS_MAX: usize = 1024;
/// The size of the region of a device that is one stream, for requests without a stream. *Units*: bytes.
const REGION_BYTES: u64 = 64 << 20;

/// The stream of a region of a device, for requests without a stream.
pub fn region_stream(offset: u64) -> AccessStream {
    AccessStream(1 << 31 | (offset / REGION_BYTES) as u32 & 0x7fff_ffff)
}

/// The start of the region of a stream from [`region_stream`]; `None` for any other stream. On devices of more than 128
/// PiB several regions have the same stream; this is then the start of the first one. *Units*: bytes.
pub fn region_of(stream: AccessStream) -> Option<u64> {
    (stream.0 & 1 << 31 != 0).then(|| u64::from(stream.0 & 0x7fff_ffff) * REGION_BYTES)
}

/// The stream of anything that two numbers identify, such as a process and a file, or a connection. It is never stream
/// 0.
pub fn stream_of(owner: u64, part: u64) -> AccessStream {
    // The mixing is the same in every process, so that records of different runs can be compared.
    let mut mixed = owner.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ part.wrapping_add(0x6a09_e667_f3bc_c908);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    AccessStream(((mixed ^ mixed >> 31) as u32 & 0x7fff_ffff).max(1))
}

/// A verdict of a detecting policy that the table does not have yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StreamVerdict {
    stream: AccessStream,
    verdict: PatternVerdict,
    period: u64,
    replacement: &'static str,
}

/// Collects verdicts from the policy.
#[derive(Clone, Default)]
pub(crate) struct VerdictCollector(Arc<(AtomicBool, Mutex<Vec<StreamVerdict>>)>);

impl VerdictCollector {
    /// The function to give to a policy; it stores the policy's verdicts here.
    pub fn sink(&self) -> PeriodSink {
        let to = self.0.clone();
        Box::new(move |event| {
            let stream = AccessStream(event.stream.0);
            let (verdict, period) = (event.report.verdict, event.report.number);
            let judged = StreamVerdict { stream, verdict, period, replacement: event.replacement };
            to.1.lock().unwrap_or_else(PoisonError::into_inner).push(judged);
            to.0.store(true, Ordering::Relaxed);
        })
    }

    /// The verdicts since the last call; `None` if there were none.
    pub fn take(&self) -> Option<Vec<StreamVerdict>> {
        let has_some = self.0.0.load(Ordering::Relaxed) && self.0.0.swap(false, Ordering::Relaxed);
        has_some.then(|| std::mem::take(&mut *self.0.1.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

/// The counters of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StreamStats {
    /// The stream; `None` for all streams without a row.
    pub stream: Option<AccessStream>,
    /// The number of references that hit.
    pub hits: u64,
    /// The number of references that missed.
    pub misses: u64,
    /// The number of hits that an LRU of the same memory over all streams would have missed.
    pub saved: u64,
    /// The number of misses that such an LRU would have hit.
    pub lost: u64,
    /// The size of the dirty blocks that this stream wrote last. *Units*: bytes.
    pub dirty_bytes: u64,
    /// The last verdict, if the policy detects patterns and a period has ended.
    pub verdict: Option<PatternVerdict>,
    /// The number of the period of that verdict, from 1; 0 without a verdict.
    pub period: u64,
    /// The replacement used for the stream since that verdict; empty without a verdict.
    pub replacement: &'static str,
}

impl StreamStats {
    fn count(&mut self, is_hit: bool, is_lru_hit: bool) {
        self.hits += u64::from(is_hit);
        self.misses += u64::from(!is_hit);
        self.saved += u64::from(is_hit && !is_lru_hit);
        self.lost += u64::from(!is_hit && is_lru_hit);
    }
}

struct StreamRow {
    stream: AccessStream,
    stats: StreamStats,
    /// Whether the stream has made a reference since the CLOCK hand last passed the row.
    is_recent: bool,
    run: SequentialRun,
}

/// The sequential run of a stream.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SequentialRun {
    /// The id of the block after the last one that the stream read.
    pub next: u64,
    /// The number of consecutive blocks that the stream has read.
    pub length: u32,
    /// The id of the block at which the readahead of the stream ends.
    pub ahead: u64,
}

/// The table of streams.
#[derive(Default)]
pub(crate) struct StreamTable {
    places: HashMap<u32, u32>,
    rows: Vec<StreamRow>,
    /// The row of the last reference; the next reference often has the same row.
    last: usize,
    hand: usize,
    others: StreamStats,
}

impl StreamTable {
    pub fn count(&mut self, stream: AccessStream, is_hit: bool, is_lru_hit: bool) {
        let row = self.row(stream);
        row.is_recent = true;
        row.stats.count(is_hit, is_lru_hit);
    }

    /// Stores a verdict; ignores it if the stream has no row.
    pub fn judge(&mut self, judged: StreamVerdict) {
        let Some(&place) = self.places.get(&judged.stream.0) else { return };
        let stats = &mut self.rows[place as usize].stats;
        (stats.verdict, stats.period) = (Some(judged.verdict), judged.period);
        stats.replacement = judged.replacement;
    }

    /// Forgets all verdicts, because the policy was replaced.
    pub fn forget_verdicts(&mut self) {
        for row in &mut self.rows {
            (row.stats.verdict, row.stats.period, row.stats.replacement) = (None, 0, "");
        }
    }

    /// The sequential run of a stream.
    pub fn run(&mut self, stream: AccessStream) -> &mut SequentialRun {
        &mut self.row(stream).run
    }

    /// One row for each stream that has one, sorted by stream; the last row is for all other streams together.
    pub fn stats(&self) -> Vec<StreamStats> {
        let mut all: Vec<StreamStats> = self.rows.iter().map(|row| row.stats).collect();
        all.sort_unstable_by_key(|stats| stats.stream.map(|stream| stream.0));
        all.push(self.others);
        all
    }

    fn row(&mut self, stream: AccessStream) -> &mut StreamRow {
        if self.rows.get(self.last).is_none_or(|row| row.stream != stream) {
            self.last = match self.places.get(&stream.0) {
                Some(&place) => place as usize,
                None => self.admit(stream),
            };
        }
        &mut self.rows[self.last]
    }

    fn admit(&mut self, stream: AccessStream) -> usize {
        let stats = StreamStats { stream: Some(stream), ..StreamStats::default() };
        let row = StreamRow { stream, stats, is_recent: true, run: SequentialRun::default() };
        let place = if self.rows.len() < STREAMS_MAX {
            self.rows.push(row);
            self.rows.len() - 1
        } else {
            while std::mem::take(&mut self.rows[self.hand].is_recent) {
                self.hand = (self.hand + 1) % STREAMS_MAX;
            }
            let place = self.hand;
            self.hand = (self.hand + 1) % STREAMS_MAX;
            let gone = std::mem::replace(&mut self.rows[place], row);
            self.places.remove(&gone.stream.0);
            self.others.hits += gone.stats.hits;
            self.others.misses += gone.stats.misses;
            self.others.saved += gone.stats.saved;
            self.others.lost += gone.stats.lost;
            place
        };
        self.places.insert(stream.0, place as u32);
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table is bounded and its sums are exact.
    #[test]
    fn stream_table_is_bounded() {
        let mut streams = StreamTable::default();
        for reference in 0..100_000_u32 {
            streams.count(AccessStream(reference % 10_000), reference % 3 == 0, reference % 2 == 0);
        }
        let stats = streams.stats();
        assert_eq!(stats.len(), STREAMS_MAX + 1);
        assert_eq!(stats.iter().map(|stats| stats.hits + stats.misses).sum::<u64>(), 100_000);
        assert!(stats.iter().any(|stats| stats.stream == Some(AccessStream(9_999))), "the last has a row");
        assert_eq!(stats.last().unwrap().stream, None);
    }

    /// The stream of a name is never the stream "none", and regions differ.
    #[test]
    fn named_stream_is_never_none() {
        assert!((0..10_000).all(|number| stream_of(number, 7) != AccessStream(0)));
        assert_eq!(stream_of(3, 4), stream_of(3, 4));
        assert_ne!(stream_of(3, 4), stream_of(4, 3));
        assert_ne!(region_stream(0), region_stream(REGION_BYTES));
        assert_eq!(region_of(region_stream(3 * REGION_BYTES + 5)), Some(3 * REGION_BYTES));
        assert_eq!(region_of(stream_of(3, 4)), None);
    }
}
