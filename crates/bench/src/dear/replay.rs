//! The recorded references of a program: replays of them show the effect of other cache sizes and parameters, the
//! misses of the optimal policy (MIN), and the processor time of each policy.
//!
//! Owns: the record, its file, and the replay. The record has the references of the programs' own reads and writes, and
//! the ranges of blocks that the cache dropped between them (files that were deleted, cut, or changed by others). So a
//! replay of the same policy at the same size has exactly the counts of the recorded execution ([`ReplayAgreement`]). A
//! miss of a reference that reads counts as a read.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use nectary_cache::{AccessResult, Dear, Min, NextReferences, Policy, StreamId, by_name, dear};
use serde::Serialize;

use super::BLOCKS;
use crate::statistics::median;
use crate::{Error, sys};

/// The size of a step in the file, in bytes: block, stream or end of the range, and the kind.
const STEP_BYTES: usize = 17;
/// The kinds of steps in the file.
const READ: u8 = 0;
const WRITE: u8 = 1;
const DROP: u8 = 2;
/// The number of measurements of a policy's time.
const TIMES: usize = 5;
/// The cache sizes of the paper as shares of its 6 MB, in twelfths: 2, 4, 6 and 8 MB.
const SIZES: [u64; 4] = [4, 8, 12, 16];
/// The periods of detection and numbers of sublists in the paper.
const PERIODS: [u32; 4] = [100, 250, 500, 1000];
const SUBLISTS: [usize; 3] = [3, 5, 10];

/// A recorded reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordedReference {
    /// The block.
    pub id: u64,
    /// The stream.
    pub stream: u32,
    /// Whether the reference was a write.
    pub is_write: bool,
}

/// A step of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordStep {
    /// A reference.
    Refer(RecordedReference),
    /// The blocks from `first` to before `end` were dropped.
    Drop {
        /// The first block.
        first: u64,
        /// The block behind the last one.
        end: u64,
    },
}

/// The steps of an execution.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReferenceRecord {
    steps: Vec<RecordStep>,
    /// The distinct blocks that were referenced, in ascending order.
    blocks: Vec<u64>,
}

impl ReferenceRecord {
    /// Makes a record of steps.
    pub fn new(steps: Vec<RecordStep>) -> ReferenceRecord {
        let mut record = ReferenceRecord { steps, blocks: Vec::new() };
        record.blocks = record.ids();
        record.blocks.sort_unstable();
        record.blocks.dedup();
        record
    }

    /// The referenced block of each reference.
    fn ids(&self) -> Vec<u64> {
        let ids = self.steps.iter().filter_map(|step| match step {
            RecordStep::Refer(reference) => Some(reference.id),
            RecordStep::Drop { .. } => None,
        });
        ids.collect()
    }

    /// The number of distinct blocks.
    pub fn distinct(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// The referenced blocks in a range.
    fn within(&self, first: u64, end: u64) -> &[u64] {
        let at = |id: u64| self.blocks.partition_point(|block| *block < id);
        &self.blocks[at(first)..at(end.max(first))]
    }
}

/// Writes steps to a file.
pub fn write(path: &Path, steps: &[RecordStep]) -> Result<(), Error> {
    let mut bytes = Vec::with_capacity(steps.len() * STEP_BYTES);
    for step in steps {
        let (first, second, kind) = match step {
            RecordStep::Refer(reference) if reference.is_write => (reference.id, u64::from(reference.stream), WRITE),
            RecordStep::Refer(reference) => (reference.id, u64::from(reference.stream), READ),
            RecordStep::Drop { first, end } => (*first, *end, DROP),
        };
        bytes.extend_from_slice(&first.to_le_bytes());
        bytes.extend_from_slice(&second.to_le_bytes());
        bytes.push(kind);
    }
    let written = std::fs::File::create(path).and_then(|mut file| file.write_all(&bytes));
    written.map_err(|error| Error::failed(path.display(), error))
}

/// Reads the steps that [`write`] wrote.
pub fn read(path: &Path) -> Result<ReferenceRecord, Error> {
    let bytes = std::fs::read(path).map_err(|error| Error::failed(path.display(), error))?;
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    let step = |bytes: &[u8]| {
        let (first, second) = (number(&bytes[..8]), number(&bytes[8..16]));
        match bytes[16] {
            DROP => RecordStep::Drop { first, end: second },
            kind => RecordStep::Refer(RecordedReference { id: first, stream: second as u32, is_write: kind == WRITE }),
        }
    };
    Ok(ReferenceRecord::new(bytes.chunks_exact(STEP_BYTES).map(step).collect()))
}

/// The counters of a replay.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ReplayCounts {
    /// The number of references.
    pub references: u64,
    /// The number of misses.
    pub misses: u64,
    /// The number of misses of references that read.
    pub reads: u64,
}

/// Replays a record on a policy.
pub fn replay(policy: &mut dyn Policy, record: &ReferenceRecord) -> ReplayCounts {
    let mut counts = ReplayCounts::default();
    for step in &record.steps {
        match *step {
            RecordStep::Refer(reference) => {
                let access = policy.reference(reference.id, 1, StreamId(reference.stream), &mut |_| true);
                counts.references += 1;
                counts.misses += u64::from(access != AccessResult::Hit);
                counts.reads += u64::from(access != AccessResult::Hit && !reference.is_write);
            }
            RecordStep::Drop { first, end } => {
                for id in record.within(first, end) {
                    // As in the live cache, a policy still remembers blocks that it does not hold.
                    if policy.contains(*id) {
                        policy.remove(*id);
                    }
                }
            }
        }
    }
    counts
}

/// The results that replays of a program's references give.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ReplayResults {
    /// The number of distinct blocks.
    pub distinct: u64,
    /// The counters under LRU.
    pub lru: ReplayCounts,
    /// The counters under MIN, the optimum.
    pub min: ReplayCounts,
    /// The counters of each policy at the size of the live caches.
    pub policies: Vec<(String, ReplayCounts)>,
    /// The processor time of each policy. *Units*: microseconds per reference.
    pub policy_us: Vec<(String, f64)>,
    /// The replays with other sizes and parameters.
    pub sensitivity: Vec<ParameterReplay>,
}

/// A replay with one parameter changed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ParameterReplay {
    /// The parameter: `size`, `period` or `sublists`.
    pub parameter: &'static str,
    /// The value of the parameter: a number of blocks, of references, or of sublists.
    pub value: u64,
    /// The policy.
    pub policy: &'static str,
    /// The counters.
    pub counts: ReplayCounts,
}

/// The counts of a replay beside those of an execution, for the same policy and size.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReplayAgreement {
    /// The lane of the execution, or `record` for the execution that was recorded.
    pub lane: String,
    /// The misses and the read blocks of the replay.
    pub replayed: (u64, u64),
    /// The misses and the read blocks of the execution; the means over several executions.
    pub live: (f64, f64),
    /// The largest accepted difference, as a share of the replay's count.
    pub accepted: f64,
}

impl ReplayAgreement {
    /// Whether both counts differ by no more than what is accepted.
    pub fn holds(&self) -> bool {
        let pairs = [(self.replayed.0, self.live.0), (self.replayed.1, self.live.1)];
        pairs.iter().all(|(replayed, live)| {
            let replayed = *replayed as f64;
            (replayed - live).abs() <= replayed * self.accepted
        })
    }
}

/// Computes all results from a record for caches of `blocks` blocks, and measures the time of each of the `policies`.
pub fn know(record: &ReferenceRecord, policies: &[&str], blocks: u64) -> ReplayResults {
    let counts = |policy: &str, blocks: u64| {
        by_name(policy, blocks).map_or(ReplayCounts::default(), |mut policy| replay(&mut *policy, record))
    };
    let future = NextReferences::of(&record.ids());
    let min = future.map(|future| replay(&mut Min::new(blocks, &future), record)).unwrap_or_default();
    let mut sensitivity = Vec::new();
    for twelfths in SIZES {
        let value = blocks * twelfths / 12;
        for policy in ["lru", "dear"] {
            sensitivity.push(ParameterReplay { parameter: "size", value, policy, counts: counts(policy, value) });
        }
    }
    let mut vary = |parameter, value, detection| {
        let parameters = dear::DearParameters { detection, ..dear::DearParameters::default() };
        let counts = replay(&mut Dear::with_parameters(blocks, parameters), record);
        sensitivity.push(ParameterReplay { parameter, value, policy: "dear", counts });
    };
    let usual = dear::DearParameters::default().detection;
    for period in PERIODS {
        vary("period", period.into(), nectary_cache::detect::DetectorParameters { period, ..usual });
    }
    for sublists in SUBLISTS {
        vary("sublists", sublists as u64, nectary_cache::detect::DetectorParameters { sublists, ..usual });
    }
    let at_size = policies.iter().map(|&policy| (policy.to_owned(), counts(policy, blocks))).collect();
    // At the large sizes one replay takes so long that its time needs no repetition.
    let times = if blocks > BLOCKS { 1 } else { TIMES };
    let took = policies.iter().map(|&policy| (policy.to_owned(), policy_us(policy, record, blocks, times))).collect();
    let (distinct, lru) = (record.distinct(), counts("lru", blocks));
    ReplayResults { distinct, lru, min, policies: at_size, policy_us: took, sensitivity }
}

/// The processor time of a policy per reference: the median of several replays. *Units*: microseconds.
fn policy_us(policy: &str, record: &ReferenceRecord, blocks: u64, times: usize) -> f64 {
    let timed = |_| {
        let Some(mut policy) = by_name(policy, blocks) else { return f64::NAN };
        let began = sys::thread_time();
        let counts = std::hint::black_box(replay(&mut *policy, record));
        let took: Duration = sys::thread_time().saturating_sub(began);
        took.as_secs_f64() * 1e6 / counts.references.max(1) as f64
    };
    median(&(0..times).map(timed).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_of(id: u64) -> RecordStep {
        RecordStep::Refer(RecordedReference { id, stream: 1, is_write: false })
    }

    fn loop_of(blocks: u64, times: u64) -> ReferenceRecord {
        ReferenceRecord::new((0..times).flat_map(|_| 0..blocks).map(read_of).collect())
    }

    #[test]
    fn records_are_read_back() {
        let path = std::env::temp_dir().join(format!("nectary-bench-record-{}", std::process::id()));
        let mut steps: Vec<RecordStep> = [(u64::MAX, 7, true), (0, u32::MAX, false)]
            .map(|(id, stream, is_write)| RecordStep::Refer(RecordedReference { id, stream, is_write }))
            .to_vec();
        steps.push(RecordStep::Drop { first: 3, end: 1 << 40 });
        write(&path, &steps).unwrap();
        assert_eq!(read(&path).unwrap(), ReferenceRecord::new(steps));
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn dropped_blocks_leave_room_in_replays() {
        let misses = |steps: Vec<RecordStep>| {
            let mut lru = by_name("lru", 10).expect("a policy");
            replay(&mut *lru, &ReferenceRecord::new(steps)).misses
        };
        // A temporary file of five blocks comes between two passes over others, and is deleted or not.
        let pass = |blocks: std::ops::Range<u64>| blocks.map(read_of);
        let before: Vec<RecordStep> = pass(0..5).chain(pass(100..105)).collect();
        let after: Vec<RecordStep> = pass(200..205).chain(pass(0..5)).collect();
        let deleted = [before.clone(), vec![RecordStep::Drop { first: 100, end: 200 }], after.clone()].concat();
        assert_eq!((misses([before, after].concat()), misses(deleted)), (20, 15));
        // A dropped block is read again.
        assert_eq!(misses(vec![read_of(1), RecordStep::Drop { first: 0, end: 2 }, read_of(1)]), 2);
    }

    #[test]
    fn disagreements_above_the_bound_are_found() {
        let agreement =
            |live, accepted| ReplayAgreement { lane: "lru".to_owned(), replayed: (3803, 2673), live, accepted };
        assert!(agreement((3803.0, 2673.0), 0.0).holds());
        assert!(!agreement((3803.0, 2672.0), 0.0).holds() && agreement((3800.0, 2672.0), 0.01).holds());
        assert!(!agreement((2665.0, 1535.0), 0.01).holds());
        assert!(!agreement((3803.0, f64::NAN), 0.01).holds(), "what was not measured agrees with nothing");
    }

    /// A loop larger than the cache is the case that `dear` is for.
    #[test]
    fn dear_gains_on_oversized_loop() {
        let known = know(&loop_of(1000, 8), &["lru", "dear"], BLOCKS);
        assert_eq!((known.distinct, known.lru.misses, known.lru.references), (1000, 8000, 8000));
        let of = |parameter: &str, value: u64, policy: &str| {
            let found = known
                .sensitivity
                .iter()
                .find(|varied| varied.parameter == parameter && varied.value == value && varied.policy == policy);
            found.expect("it was varied").counts.misses
        };
        // The default value of each parameter gives the same replay.
        assert_eq!(of("size", BLOCKS, "dear"), of("period", 500, "dear"));
        assert_eq!(of("period", 500, "dear"), of("sublists", 5, "dear"));
        assert!(of("size", BLOCKS, "dear") < 5000 && of("size", 1024, "lru") == 1000, "{known:?}");
        assert!(known.min.misses <= of("size", BLOCKS, "dear"));
        assert_eq!(known.policies[1].1.misses, of("size", BLOCKS, "dear"));
        assert!(known.policy_us.iter().all(|entry| entry.1 >= 0.0));
    }
}
