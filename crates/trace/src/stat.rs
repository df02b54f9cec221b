//! Computes the contents of a trace: counts of references, blocks, streams, reads and writes, and the distances of
//! reuses.
//!
//! Owns: the figures and their definitions. Promises: counting reads the trace once, and needs memory only for distinct
//! blocks (32 bytes each), at most [`KEPT_MAX`] of them. If there are more, the figures that depend on distinct blocks
//! are estimates from a sample of them.

use std::path::Path;

use hashbrown::{HashMap, HashSet};
use nectary_cache::StreamId;

use crate::error::{Error, Result, TracePosition};
use crate::formats::{ReferenceReader, TraceOperation, TraceReference};
use crate::simulate::distinct::is_kept;

/// The maximum number of distinct blocks that are kept; they take 4 GiB of memory.
pub const KEPT_MAX: usize = 1 << 27;

/// The contents of a trace.
#[derive(Debug, Clone, PartialEq)]
pub struct TraceStat {
    /// The number of references to blocks; a request for several blocks counts once for each block.
    pub references: u64,
    /// The number of blocks that were referenced at least once.
    pub distinct: u64,
    /// The number of streams with at least one reference.
    pub streams: u64,
    /// The number of references that write.
    pub writes: u64,
    /// The number of deletes, which are no references.
    pub deletes: u64,
    /// The number of blocks that were referenced exactly once.
    pub once: u64,
    /// The number of references to the block that was referenced just before; a cache of one block hits them.
    pub repeats: u64,
    /// The median distance of reuses, in references since the previous reference to the same block, rounded up to a
    /// power of two; 0 if there are no reuses.
    pub reuse_median: u64,
    /// The sum of the sizes of all distinct blocks, as far as the trace gives sizes. *Units*: bytes.
    pub distinct_bytes: u64,
    /// The smallest and the largest block number.
    pub range: (u64, u64),
    /// Whether the figures of distinct blocks and reuses are estimates.
    pub is_estimate: bool,
}

impl TraceStat {
    /// The number of references to blocks that were referenced before.
    pub fn reuses(&self) -> u64 {
        self.references.saturating_sub(self.distinct)
    }

    /// Counts all references of a trace. `path` is used in messages; `progress` is called with the number of references
    /// so far.
    ///
    /// *Errors*: those of the reader; the trace has no reference.
    pub fn count(path: &Path, reader: &mut dyn ReferenceReader, progress: &dyn Fn(u64)) -> Result<TraceStat> {
        TraceStat::count_with(path, reader, KEPT_MAX, progress)
    }

    /// Like [`TraceStat::count`], with at most `kept_max` distinct blocks in memory.
    pub fn count_with(
        path: &Path,
        reader: &mut dyn ReferenceReader,
        kept_max: usize,
        progress: &dyn Fn(u64),
    ) -> Result<TraceStat> {
        let mut counter = DistinctCounter::new(kept_max.max(1));
        let mut batch = Vec::new();
        loop {
            batch.clear();
            if !reader.read(&mut batch)? {
                break;
            }
            for reference in &batch {
                counter.add(reference);
            }
            progress(counter.references);
        }
        if counter.references == 0 {
            return Err(Error::malformed(&path.into(), TracePosition::Whole, "at least one reference", "none"));
        }
        Ok(counter.finish())
    }
}

struct DistinctCounter {
    /// For each block that is kept, the time of its last reference, the number of its references, and its size.
    blocks: HashMap<u64, (u64, u32, u32)>,
    kept_max: usize,
    /// How often the share of blocks that are kept was halved.
    halvings: u32,
    range: (u64, u64),
    streams: HashSet<StreamId>,
    references: u64,
    writes: u64,
    deletes: u64,
    repeats: u64,
    last: Option<u64>,
    /// The numbers of reuses by the binary logarithm of their distance, rounded up.
    reuses: [u64; 65],
}

impl DistinctCounter {
    fn new(kept_max: usize) -> DistinctCounter {
        DistinctCounter {
            blocks: HashMap::new(),
            kept_max,
            halvings: 0,
            range: (u64::MAX, 0),
            streams: HashSet::new(),
            references: 0,
            writes: 0,
            deletes: 0,
            repeats: 0,
            last: None,
            reuses: [0; 65],
        }
    }

    fn add(&mut self, reference: &TraceReference) {
        if reference.operation == TraceOperation::Delete {
            self.deletes += 1;
            return;
        }
        let now = self.references;
        self.references += 1;
        self.writes += u64::from(reference.operation == TraceOperation::Write);
        self.repeats += u64::from(self.last == Some(reference.block));
        self.last = Some(reference.block);
        self.streams.insert(reference.stream);
        self.range = (self.range.0.min(reference.block), self.range.1.max(reference.block));
        if !is_kept(reference.block, self.halvings) {
            return;
        }
        let block = self.blocks.entry(reference.block).or_insert((now, 0, reference.bytes));
        if block.1 > 0 {
            self.reuses[(now - block.0).next_power_of_two().trailing_zeros() as usize] += 1;
        }
        *block = (now, block.1.saturating_add(1), block.2.max(reference.bytes));
        while self.blocks.len() > self.kept_max && self.halvings < 63 {
            self.halvings += 1;
            let halvings = self.halvings;
            self.blocks.retain(|&block, _| is_kept(block, halvings));
        }
    }

    fn finish(self) -> TraceStat {
        let all = |kept: u64| kept.saturating_mul(1 << self.halvings);
        let distinct = all(self.blocks.len() as u64);
        let half = self.reuses.iter().sum::<u64>().div_ceil(2);
        let mut below = 0;
        let median = self.reuses.iter().position(|&count| {
            below += count;
            half > 0 && below >= half
        });
        TraceStat {
            references: self.references,
            distinct,
            streams: self.streams.len() as u64,
            writes: self.writes,
            deletes: self.deletes,
            once: all(self.blocks.values().filter(|block| block.1 == 1).count() as u64),
            repeats: self.repeats,
            reuse_median: median.map_or(0, |power| 1_u64.checked_shl(power as u32).unwrap_or(u64::MAX)),
            distinct_bytes: all(self.blocks.values().map(|block| u64::from(block.2)).sum()),
            range: self.range,
            is_estimate: self.halvings > 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::input::DecompressedInput;
    use crate::formats::{ReadOptions, from_input};

    #[test]
    fn counts_are_those_of_the_trace() {
        let path = Path::new("t.txt");
        let input = DecompressedInput::from_reader(path, Box::new(&b"5\n5\n*\n7\n9\n5\n"[..])).expect("text");
        let mut reader = from_input(input, &ReadOptions::default()).expect("text");
        let stat = TraceStat::count(path, &mut *reader, &|_| {}).expect("five references");
        assert_eq!((stat.references, stat.distinct, stat.streams, stat.writes), (5, 3, 1, 0));
        assert_eq!((stat.once, stat.repeats, stat.reuses(), stat.range), (2, 1, 2, (5, 9)));
        assert_eq!((stat.reuse_median, stat.is_estimate), (1, false));
    }

    #[test]
    fn excess_distinct_blocks_are_estimated() {
        let path = Path::new("t.txt");
        let text: String = (0..90_000).map(|turn| format!("{}\n", turn % 30_000 * 7)).collect();
        let input =
            DecompressedInput::from_reader(path, Box::new(std::io::Cursor::new(text.into_bytes()))).expect("text");
        let mut reader = from_input(input, &ReadOptions::default()).expect("text");
        let stat = TraceStat::count_with(path, &mut *reader, 4000, &|_| {}).expect("references");
        assert!(stat.is_estimate && stat.distinct.abs_diff(30_000) < 3000, "{stat:?}");
        assert_eq!((stat.references, stat.once, stat.range), (90_000, 0, (0, 209_993)));
        assert_eq!(stat.reuse_median, 32_768);
    }
}
