//! Computes the contents of a trace: counts of references, blocks, streams, reads and writes, and the distances of
//! reuses.
//!
//! Owns: the figures and their definitions. Promises: counting reads the trace once, and needs memory only for distinct
//! blocks (32 bytes each), so the trace may be longer than a simulation accepts. The number of distinct blocks is
//! bounded.

use std::path::Path;

use hashbrown::{HashMap, HashSet};
use nectary_cache::Stream;

use crate::error::{Error, Place, Result};
use crate::formats::{Reader, Reference};

/// The maximum number of distinct blocks that can be counted; they take 4 GiB of memory.
pub const DISTINCT_MAX: usize = 1 << 27;

/// The contents of a trace.
#[derive(Debug, Clone, PartialEq)]
pub struct Stat {
    /// The number of references to blocks; a request for several blocks counts once for each block.
    pub references: u64,
    /// The number of blocks that were referenced at least once.
    pub distinct: u64,
    /// The number of streams with at least one reference.
    pub streams: u64,
    /// The number of references that write.
    pub writes: u64,
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
}

impl Stat {
    /// The number of references to blocks that were referenced before.
    pub fn reuses(&self) -> u64 {
        self.references - self.distinct
    }

    /// Counts all references of a trace. `path` is used in messages; `progress` is called with the number of references
    /// so far.
    ///
    /// *Errors*: those of the reader; the trace has no reference, or more than [`DISTINCT_MAX`] distinct blocks.
    pub fn count(path: &Path, reader: &mut dyn Reader, progress: &dyn Fn(u64)) -> Result<Stat> {
        let mut counter = Counter::new();
        let mut batch = Vec::new();
        loop {
            batch.clear();
            if !reader.read(&mut batch)? {
                break;
            }
            for reference in &batch {
                counter.add(reference);
            }
            if counter.blocks.len() > DISTINCT_MAX {
                let what = format!("more than {DISTINCT_MAX} distinct blocks; use larger ones with --block");
                return Err(Error::TooLarge { path: path.to_owned(), place: Place::Whole, what });
            }
            progress(counter.references);
        }
        if counter.references == 0 {
            return Err(Error::malformed(&path.into(), Place::Whole, "at least one reference", "none"));
        }
        Ok(counter.finish())
    }
}

struct Counter {
    /// For each block, the time of its last reference, the number of its references, and its size.
    blocks: HashMap<u64, (u64, u32, u32)>,
    streams: HashSet<Stream>,
    references: u64,
    writes: u64,
    repeats: u64,
    last: Option<u64>,
    /// The numbers of reuses by the binary logarithm of their distance, rounded up.
    reuses: [u64; 65],
}

impl Counter {
    fn new() -> Counter {
        Counter {
            blocks: HashMap::new(),
            streams: HashSet::new(),
            references: 0,
            writes: 0,
            repeats: 0,
            last: None,
            reuses: [0; 65],
        }
    }

    fn add(&mut self, reference: &Reference) {
        let now = self.references;
        self.references += 1;
        self.writes += u64::from(reference.is_write);
        self.repeats += u64::from(self.last == Some(reference.block));
        self.last = Some(reference.block);
        self.streams.insert(reference.stream);
        let block = self.blocks.entry(reference.block).or_insert((now, 0, reference.bytes));
        if block.1 > 0 {
            self.reuses[(now - block.0).next_power_of_two().trailing_zeros() as usize] += 1;
        }
        *block = (now, block.1.saturating_add(1), block.2.max(reference.bytes));
    }

    fn finish(self) -> Stat {
        let distinct = self.blocks.len() as u64;
        let half = (self.references - distinct).div_ceil(2);
        let mut below = 0;
        let median = self.reuses.iter().position(|&count| {
            below += count;
            half > 0 && below >= half
        });
        let range = self.blocks.keys().fold((u64::MAX, 0), |range, &block| (block.min(range.0), block.max(range.1)));
        Stat {
            references: self.references,
            distinct,
            streams: self.streams.len() as u64,
            writes: self.writes,
            once: self.blocks.values().filter(|block| block.1 == 1).count() as u64,
            repeats: self.repeats,
            reuse_median: median.map_or(0, |power| 1_u64.checked_shl(power as u32).unwrap_or(u64::MAX)),
            distinct_bytes: self.blocks.values().map(|block| u64::from(block.2)).sum(),
            range,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::input::Input;
    use crate::formats::{ReadOptions, from_input};

    #[test]
    fn counts_are_those_of_the_trace() {
        let path = Path::new("t.txt");
        let input = Input::from_reader(path, Box::new(&b"5\n5\n*\n7\n9\n5\n"[..])).expect("text");
        let mut reader = from_input(input, &ReadOptions::default()).expect("text");
        let stat = Stat::count(path, &mut *reader, &|_| {}).expect("five references");
        assert_eq!((stat.references, stat.distinct, stat.streams, stat.writes), (5, 3, 1, 0));
        assert_eq!((stat.once, stat.repeats, stat.reuses(), stat.range), (2, 1, 2, (5, 9)));
        assert_eq!(stat.reuse_median, 1);
    }
}
