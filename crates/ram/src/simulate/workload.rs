//! Workloads: which blocks are written, in which order, and when they are flushed.
//!
//! Owns: files, writers and their interleaving. Promises: the same seed repeats a workload exactly.
//!
//! The device is filled with files of 1 to [`FILE_BLOCKS_MAX`] blocks, with equally many files for each power of two. A
//! writer rewrites a whole file in requests of random length, up to the largest request, then another file; which
//! writer is next is random.

use std::ops::Range;

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use super::SimulationSettings;

/// The number of classes of file sizes: equally many files have 1 block, 2 to 3, 4 to 7, and so on.
const FILE_POWERS: u32 = 8;
/// The size of the largest file. *Units*: blocks.
pub const FILE_BLOCKS_MAX: u32 = (1 << FILE_POWERS) - 1;
/// The length of each write that first fills the device; the last one may be shorter. *Units*: blocks.
const FILLING_BLOCKS: u32 = 8;

/// A kind of workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlacementWorkload {
    /// Writes the whole device from its beginning to its end, repeatedly.
    Sequential,
    /// Several writers rewrite whole files.
    Files {
        /// The number of writers.
        writers: usize,
        /// Whether each file is flushed after it is written.
        is_flushed: bool,
    },
    /// Four such writers, mixed with random single blocks.
    Mixed {
        /// The percentage of written blocks that are random single ones.
        random_percent: u64,
    },
    /// Writes random single blocks.
    Uniform,
}

impl PlacementWorkload {
    /// The workloads of the report: `streams` are the numbers of writers.
    pub fn all(streams: &[usize]) -> Vec<PlacementWorkload> {
        let files = |is_flushed| streams.iter().map(move |&writers| PlacementWorkload::Files { writers, is_flushed });
        let mut all = vec![PlacementWorkload::Sequential];
        all.extend(files(false));
        all.extend(files(true));
        all.extend([PlacementWorkload::Mixed { random_percent: 30 }, PlacementWorkload::Uniform]);
        all
    }

    /// Returns the name of the workload in tables.
    pub fn name(&self) -> String {
        match self {
            PlacementWorkload::Sequential => "sequential".to_owned(),
            PlacementWorkload::Files { writers, is_flushed: false } => format!("files-{writers}"),
            PlacementWorkload::Files { writers, is_flushed: true } => format!("files-{writers}-flushed"),
            PlacementWorkload::Mixed { random_percent } => format!("files-4-random-{random_percent}%"),
            PlacementWorkload::Uniform => "uniform".to_owned(),
        }
    }

    /// Whether `adaptive` has a target for this workload: one to sixteen streams of whole files.
    pub(super) fn is_targeted(&self) -> bool {
        match self {
            PlacementWorkload::Sequential => true,
            PlacementWorkload::Files { writers, .. } => (1..=16).contains(writers),
            _ => false,
        }
    }

    /// Returns the operations of the workload.
    pub(super) fn operations(&self, settings: &SimulationSettings) -> WorkloadOperations {
        let mut random = SplitMix64::seed_from_u64(settings.seed);
        let files = files(settings.blocks, &mut random);
        let writers = match *self {
            PlacementWorkload::Files { writers, .. } => writers,
            PlacementWorkload::Mixed { .. } => 4,
            _ => 1,
        };
        let writers = vec![0..0; writers.max(1)];
        WorkloadOperations {
            workload: *self,
            blocks: settings.blocks,
            request_blocks: settings.request_blocks,
            files,
            random,
            writers,
            filled: 0,
            single: 0,
            is_flush_due: false,
        }
    }
}

/// One operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum WorkloadOperation {
    /// Writes blocks.
    Write(Range<u32>),
    /// Flushes everything that was written.
    Flush,
}

/// An endless sequence of operations, which begins with filling the device.
pub(super) struct WorkloadOperations {
    workload: PlacementWorkload,
    blocks: u32,
    request_blocks: u32,
    files: Vec<Range<u32>>,
    random: SplitMix64,
    /// The rest of each writer's present file.
    writers: Vec<Range<u32>>,
    filled: u32,
    /// The number of random single blocks written.
    single: u64,
    is_flush_due: bool,
}

impl WorkloadOperations {
    /// Returns the next operation, after `written` blocks have been written.
    pub fn next(&mut self, written: u64) -> WorkloadOperation {
        if std::mem::take(&mut self.is_flush_due) {
            return WorkloadOperation::Flush;
        }
        if self.filled < self.blocks {
            let end = (self.filled + FILLING_BLOCKS).min(self.blocks);
            self.is_flush_due = end == self.blocks;
            return WorkloadOperation::Write(std::mem::replace(&mut self.filled, end)..end);
        }
        match self.workload {
            PlacementWorkload::Sequential => self.of_writer(),
            PlacementWorkload::Files { is_flushed, .. } => {
                let request = self.of_writer();
                let WorkloadOperation::Write(blocks) = &request else { return request };
                let is_written = |left: &Range<u32>| left.is_empty() && left.end == blocks.end;
                self.is_flush_due = is_flushed && self.writers.iter().any(is_written);
                request
            }
            PlacementWorkload::Mixed { random_percent } => {
                let since = written - u64::from(self.blocks);
                if self.single * 100 <= since * random_percent { self.of_random() } else { self.of_writer() }
            }
            PlacementWorkload::Uniform => self.of_random(),
        }
    }

    fn of_random(&mut self) -> WorkloadOperation {
        self.single += 1;
        let block = below(&mut self.random, self.blocks);
        WorkloadOperation::Write(block..block + 1)
    }

    /// Returns the next request of a writer.
    fn of_writer(&mut self) -> WorkloadOperation {
        let writer = below(&mut self.random, self.writers.len() as u32) as usize;
        if self.writers[writer].is_empty() {
            self.writers[writer] = match self.workload {
                PlacementWorkload::Sequential => 0..self.blocks,
                _ => self.file(),
            };
        }
        let length = 1 + below(&mut self.random, self.request_blocks);
        let left = &mut self.writers[writer];
        let end = left.end.min(left.start + length);
        WorkloadOperation::Write(std::mem::replace(&mut left.start, end)..end)
    }

    /// Returns a random file that no other writer is writing, unless there are too few files.
    fn file(&mut self) -> Range<u32> {
        let mut file = 0..0;
        for _ in 0..64 {
            file = self.files[below(&mut self.random, self.files.len() as u32) as usize].clone();
            if self.writers.iter().all(|left| left.is_empty() || left.end != file.end) {
                break;
            }
        }
        file
    }
}

/// Returns files that fill a device.
fn files(blocks: u32, random: &mut SplitMix64) -> Vec<Range<u32>> {
    let mut files = Vec::new();
    let mut start = 0;
    while start < blocks {
        let power = below(random, FILE_POWERS);
        let length = (1 << power) + below(random, 1 << power);
        let end = blocks.min(start + length);
        files.push(start..end);
        start = end;
    }
    files
}

fn below(random: &mut SplitMix64, bound: u32) -> u32 {
    (random.next_u64() % u64::from(bound.max(1))) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A workload fills the device first, and the same seed repeats the workload.
    #[test]
    fn workloads_fill_device_first() {
        for workload in PlacementWorkload::all(&[1, 8]) {
            let run = |seed| {
                let mut source =
                    workload.operations(&SimulationSettings { blocks: 1000, seed, ..SimulationSettings::default() });
                let mut written = 0;
                let mut seen = vec![false; 1000];
                let mut operations = Vec::new();
                while written < 5000 {
                    let operation = source.next(written);
                    if let WorkloadOperation::Write(blocks) = &operation {
                        assert!(blocks.start < blocks.end && blocks.end <= 1000, "{workload:?}: {blocks:?}");
                        seen[blocks.start as usize..blocks.end as usize].fill(true);
                        written += u64::from(blocks.end - blocks.start);
                        assert!(written < 1000 || seen.iter().all(|&seen| seen));
                    }
                    operations.push(operation);
                }
                operations
            };
            assert_eq!(run(3), run(3));
            assert_ne!(run(3), run(4), "{workload:?}");
        }
    }

    /// With `random_percent: 30`, three of ten written blocks are single ones.
    #[test]
    fn mixed_workload_has_stated_share() {
        let mut source = PlacementWorkload::Mixed { random_percent: 30 }
            .operations(&SimulationSettings { blocks: 4096, ..SimulationSettings::default() });
        let mut written = 0;
        while written < 5 * 4096 {
            if let WorkloadOperation::Write(blocks) = source.next(written) {
                written += u64::from(blocks.end - blocks.start);
            }
        }
        let share = source.single as f64 / (4.0 * 4096.0);
        assert!((0.29..0.31).contains(&share), "{share}");
    }
}
