//! The recorded references of a program: replays of them show the effect of other cache sizes and parameters, the
//! misses of the optimal policy (MIN), and the processor time of each policy.
//!
//! Owns: the record's file and the replay. A replay does not know which files were truncated or deleted, but the live
//! cache drops their blocks. So the misses of a replay are exact only for programs that only read. A miss of a
//! reference that reads counts as a read.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use nectary_cache::{Access, Dear, Future, Min, Policy, Stream, by_name, dear};
use serde::Serialize;

use super::BLOCKS;
use crate::statistics::median;
use crate::{Error, sys};

/// The size of a reference in the file, in bytes: block, stream, and whether it writes.
const REFERENCE_BYTES: usize = 13;
/// The number of measurements of a policy's time.
const TIMES: usize = 5;
/// The cache sizes, periods of detection and numbers of sublists in the paper.
const SIZES_MB: [u64; 4] = [2, 4, 6, 8];
const PERIODS: [u32; 4] = [100, 250, 500, 1000];
const SUBLISTS: [usize; 3] = [3, 5, 10];
/// The number of blocks per MB.
const BLOCKS_MB: u64 = BLOCKS / 6;

/// A recorded reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reference {
    /// The block.
    pub id: u64,
    /// The stream.
    pub stream: u32,
    /// Whether the reference was a write.
    pub is_write: bool,
}

/// Writes references to a file.
pub fn write(path: &Path, references: &[Reference]) -> Result<(), Error> {
    let mut bytes = Vec::with_capacity(references.len() * REFERENCE_BYTES);
    for reference in references {
        bytes.extend_from_slice(&reference.id.to_le_bytes());
        bytes.extend_from_slice(&reference.stream.to_le_bytes());
        bytes.push(u8::from(reference.is_write));
    }
    let written = std::fs::File::create(path).and_then(|mut file| file.write_all(&bytes));
    written.map_err(|error| Error::failed(path.display(), error))
}

/// Reads the references that [`write`] wrote.
pub fn read(path: &Path) -> Result<Vec<Reference>, Error> {
    let bytes = std::fs::read(path).map_err(|error| Error::failed(path.display(), error))?;
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    let reference = |bytes: &[u8]| Reference {
        id: number(&bytes[..8]),
        stream: number(&bytes[8..12]) as u32,
        is_write: bytes[12] != 0,
    };
    Ok(bytes.chunks_exact(REFERENCE_BYTES).map(reference).collect())
}

/// The counters of a replay.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// The number of references.
    pub references: u64,
    /// The number of misses.
    pub misses: u64,
    /// The number of misses of references that read.
    pub reads: u64,
}

/// Replays references on a policy.
pub fn replay(policy: &mut dyn Policy, references: &[Reference]) -> Counts {
    let mut counts = Counts::default();
    for reference in references {
        let access = policy.reference(reference.id, 1, Stream(reference.stream), &mut |_| true);
        counts.references += 1;
        counts.misses += u64::from(access != Access::Hit);
        counts.reads += u64::from(access != Access::Hit && !reference.is_write);
    }
    counts
}

/// The results that replays of a program's references give.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Known {
    /// The number of distinct blocks.
    pub distinct: u64,
    /// The counters under LRU.
    pub lru: Counts,
    /// The counters under MIN, the optimum.
    pub min: Counts,
    /// The processor time of each policy. *Units*: microseconds per reference.
    pub policy_us: Vec<(String, f64)>,
    /// The replays with other sizes and parameters.
    pub sensitivity: Vec<Varied>,
}

/// A replay with one parameter changed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Varied {
    /// The parameter: `size`, `period` or `sublists`.
    pub parameter: &'static str,
    /// The value of the parameter: MB, a number of references, or a number of sublists.
    pub value: u64,
    /// The policy.
    pub policy: &'static str,
    /// The counters.
    pub counts: Counts,
}

/// Computes all results from references, and measures the time of each of the `policies`.
pub fn know(references: &[Reference], policies: &[&str]) -> Known {
    let ids: Vec<u64> = references.iter().map(|reference| reference.id).collect();
    let mut sorted = ids.clone();
    sorted.sort_unstable();
    sorted.dedup();
    let counts = |policy: &str, blocks: u64| {
        by_name(policy, blocks).map_or(Counts::default(), |mut policy| replay(&mut *policy, references))
    };
    let min = Future::of(&ids).map(|future| replay(&mut Min::new(BLOCKS, &future), references)).unwrap_or_default();
    let mut sensitivity = Vec::new();
    for value in SIZES_MB {
        for policy in ["lru", "dear"] {
            sensitivity.push(Varied { parameter: "size", value, policy, counts: counts(policy, value * BLOCKS_MB) });
        }
    }
    let mut vary = |parameter, value, detection| {
        let parameters = dear::Parameters { detection, ..dear::Parameters::default() };
        let counts = replay(&mut Dear::with_parameters(BLOCKS, parameters), references);
        sensitivity.push(Varied { parameter, value, policy: "dear", counts });
    };
    let usual = dear::Parameters::default().detection;
    for period in PERIODS {
        vary("period", period.into(), nectary_cache::detect::Parameters { period, ..usual });
    }
    for sublists in SUBLISTS {
        vary("sublists", sublists as u64, nectary_cache::detect::Parameters { sublists, ..usual });
    }
    let policy_us = policies.iter().map(|policy| ((*policy).to_owned(), policy_us(policy, references))).collect();
    Known { distinct: sorted.len() as u64, lru: counts("lru", BLOCKS), min, policy_us, sensitivity }
}

/// The processor time of a policy per reference: the median of several replays. *Units*: microseconds.
fn policy_us(policy: &str, references: &[Reference]) -> f64 {
    let timed = |_| {
        let Some(mut policy) = by_name(policy, BLOCKS) else { return f64::NAN };
        let began = sys::thread_time();
        std::hint::black_box(replay(&mut *policy, references));
        let took: Duration = sys::thread_time().saturating_sub(began);
        took.as_secs_f64() * 1e6 / references.len().max(1) as f64
    };
    median(&(0..TIMES).map(timed).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loop_of(blocks: u64, times: u64) -> Vec<Reference> {
        let ids = (0..times).flat_map(|_| 0..blocks);
        ids.map(|id| Reference { id, stream: 1, is_write: false }).collect()
    }

    #[test]
    fn records_are_read_back() {
        let path = std::env::temp_dir().join(format!("nectary-bench-record-{}", std::process::id()));
        let references = [(u64::MAX, 7, true), (0, u32::MAX, false)].map(|(id, stream, is_write)| Reference {
            id,
            stream,
            is_write,
        });
        write(&path, &references).unwrap();
        assert_eq!(read(&path).unwrap(), references);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_loop_larger_than_the_cache_is_what_dear_is_for() {
        let known = know(&loop_of(1000, 8), &["lru", "dear"]);
        assert_eq!((known.distinct, known.lru.misses, known.lru.references), (1000, 8000, 8000));
        let of = |parameter: &str, value: u64, policy: &str| {
            let found = known
                .sensitivity
                .iter()
                .find(|varied| varied.parameter == parameter && varied.value == value && varied.policy == policy);
            found.expect("it was varied").counts.misses
        };
        // The default value of each parameter gives the same replay.
        assert_eq!(of("size", 6, "dear"), of("period", 500, "dear"));
        assert_eq!(of("period", 500, "dear"), of("sublists", 5, "dear"));
        assert!(of("size", 6, "dear") < 5000 && of("size", 8, "lru") == 1000, "{known:?}");
        assert!(known.min.misses <= of("size", 6, "dear"));
        assert!(known.policy_us.iter().all(|entry| entry.1 >= 0.0));
    }
}
