//! Campaigns: many runs of a target.
//!
//! Owns: the replay of a corpus, the short run of mutants in the tests, the long run of the soak, the choice of a small
//! corpus, and the planted bugs. The long run adds inputs that reach new code to its corpus.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nectary_sim::random::SimulationRandom;
use nectary_store::planted::{Bug, plant};

use crate::corpus;
use crate::coverage::{self, FeatureCoverage};
use crate::guard::{TargetFailure, TargetGuard};
use crate::mutate::mutate;
use crate::targets::{FuzzTarget, by_name};

/// The seed of the mutants that the default tests run.
pub const DEFAULT_SEED: u64 = 1;
/// The largest number of inputs that a long run holds in memory and mutates.
const POOL_MAX: usize = 4096;

/// An input for which a target fails.
#[derive(Debug, Clone)]
pub struct FailingInput {
    /// The input.
    pub input: Vec<u8>,
    /// The failure that it causes.
    pub finding: TargetFailure,
    /// The number of runs until the input was found.
    pub runs: u64,
}

/// The progress of a long run.
#[derive(Debug, Default)]
pub struct FuzzProgress {
    /// The number of runs.
    pub runs: u64,
    /// The number of inputs that were kept because they reached new code.
    pub kept: u64,
    /// The number of features that the runs reached.
    pub features: usize,
}

/// Runs every committed input. *Returns* their number.
///
/// *Errors*: the first finding, with the file of its input.
pub fn replay(target: &FuzzTarget, guard: &TargetGuard) -> Result<usize, (PathBuf, TargetFailure)> {
    let folder = corpus::folder(target);
    let inputs = corpus::read(&folder).map_err(|error| (folder, TargetFailure { what: error.to_string() }))?;
    let count = inputs.len();
    for (path, input) in inputs {
        guard.run(target, &input).map_err(|finding| (path, finding))?;
    }
    Ok(count)
}

/// Runs `count` mutants of the committed inputs; returns the first finding.
pub fn mutants(target: &FuzzTarget, guard: &TargetGuard, seed: u64, count: u64) -> io::Result<Option<FailingInput>> {
    let pool: Vec<Vec<u8>> = corpus::read(&corpus::folder(target))?.into_iter().map(|(_, input)| input).collect();
    let mut random = SimulationRandom::new(seed);
    for run in 0..count {
        let input = mutant(&mut random, &pool, target);
        if let Err(finding) = guard.run(target, &input) {
            return Ok(Some(FailingInput { input, finding, runs: run + 1 }));
        }
    }
    Ok(None)
}

fn mutant(random: &mut SimulationRandom, pool: &[Vec<u8>], target: &FuzzTarget) -> Vec<u8> {
    let (first, second) = (random.below(pool.len() as u64), random.below(pool.len() as u64));
    let [input, other] = [first, second].map(|at| pool.get(at as usize).map_or(&[][..], Vec::as_slice));
    mutate(random, input, other, target.words, target.input_bytes_max)
}

/// Runs mutants of the committed inputs and of those in `folder`, for a time. Inputs that reach new code are written to
/// `folder`.
pub fn soak(
    target: &FuzzTarget,
    guard: &TargetGuard,
    seed: u64,
    time: Duration,
    folder: &Path,
) -> io::Result<(FuzzProgress, Option<FailingInput>)> {
    let started = Instant::now();
    let mut random = SimulationRandom::new(seed);
    let mut pool: Vec<Vec<u8>> = Vec::new();
    let (mut reached, mut progress) = (FeatureCoverage::new(), FuzzProgress::default());
    let mut found = corpus::read(&corpus::folder(target))?;
    found.extend(corpus::read(folder)?);
    coverage::clear();
    for (_, input) in found {
        progress.runs += 1;
        if let Err(finding) = guard.run(target, &input) {
            return Ok((progress, Some(FailingInput { input, finding, runs: 0 })));
        }
        if reached.take() > 0 || !coverage::IS_COUNTED {
            pool.push(input);
        }
    }
    while started.elapsed() < time {
        // Half of the mutants come from the newest inputs, which have been mutated the least.
        let newest = pool.len().saturating_sub(16);
        let recent = if random.chance(50) { &pool[newest..] } else { &pool[..] };
        let mut input = mutant(&mut random, recent, target);
        if random.chance(25) {
            let other = mutant(&mut random, &pool, target);
            input = mutant(&mut random, &[input, other], target);
        }
        progress.runs += 1;
        coverage::clear();
        if let Err(finding) = guard.run(target, &input) {
            let runs = progress.runs;
            progress.features = reached.features();
            return Ok((progress, Some(FailingInput { input, finding, runs })));
        }
        if reached.take() > 0 {
            corpus::write(folder, &input)?;
            progress.kept += 1;
            if pool.len() < POOL_MAX {
                pool.push(input);
            } else {
                let at = random.below(POOL_MAX as u64) as usize;
                pool[at] = input;
            }
        }
    }
    progress.features = reached.features();
    Ok((progress, None))
}

/// Replaces the unnamed inputs of the committed corpus (those with a checksum as name) by a few inputs of at most
/// `bytes_max` in total, which reach as many features as possible that the named inputs do not. *Returns* the number
/// and the total size of the chosen inputs.
pub fn minimise(
    target: &FuzzTarget,
    guard: &TargetGuard,
    folder: &Path,
    bytes_max: usize,
) -> io::Result<(usize, usize)> {
    let committed = corpus::folder(target);
    let mut known = corpus::read(&committed)?;
    known.extend(corpus::read(folder)?);
    let mut candidates = Vec::new();
    for (path, input) in known {
        coverage::clear();
        if guard.run(target, &input).is_ok() {
            let is_named = path.parent() == Some(&committed) && !path.ends_with(corpus::name(&input));
            candidates.push((is_named, coverage::features(), input));
        }
    }
    let (mut covered, mut chosen, mut bytes) = (BTreeSet::new(), Vec::new(), 0);
    for (_, features, _) in candidates.iter().filter(|candidate| candidate.0) {
        covered.extend(features.iter().copied());
    }
    candidates.retain(|candidate| !candidate.0);
    loop {
        // The gain of an input: its new features per byte. Each file has a fixed cost in addition to its bytes.
        let gain = |features: &[(u32, u8)], input: &[u8]| {
            let new = features.iter().filter(|feature| !covered.contains(*feature)).count();
            new * 1_000_000 / (input.len() + 64)
        };
        let best = candidates
            .iter()
            .filter(|(_, _, input)| bytes + input.len() <= bytes_max)
            .max_by_key(|(_, features, input)| gain(features, input));
        let Some((_, features, input)) = best.filter(|(_, features, input)| gain(features, input) > 0) else { break };
        covered.extend(features.iter().copied());
        bytes += input.len();
        chosen.push(input.clone());
    }
    for (path, input) in corpus::read(&committed)? {
        if path.ends_with(corpus::name(&input)) {
            std::fs::remove_file(path)?;
        }
    }
    for input in &chosen {
        corpus::write(&committed, input)?;
    }
    Ok((chosen.len(), bytes))
}

/// The planted bugs, each with the target that must find it.
pub const PLANTED: [(Bug, &str); 3] = [
    (Bug::RecordBoundUnchecked, "store-record"),
    (Bug::AppendBoundUnchecked, "store-append"),
    (Bug::CheckpointSlotUnchecked, "store-checkpoint"),
];

/// Plants each bug, runs the default mutants of its target, and prints the result. *Returns* `false` if a bug is not
/// found, or if a run without a bug finds something.
pub fn planted(guard: &TargetGuard) -> io::Result<bool> {
    let mut good = Bug::DECODERS.iter().all(|bug| PLANTED.iter().any(|planted| planted.0 == *bug));
    for (bug, name) in PLANTED {
        let Some(target) = by_name(name) else { return Ok(false) };
        let before = mutants(target, guard, DEFAULT_SEED, target.mutants)?;
        plant(Some(bug));
        let found = mutants(target, guard, DEFAULT_SEED, target.mutants);
        plant(None);
        let outcome = match (&before, &found?) {
            (Some(guilty), _) => format!("NOT SHOWN, it fails without: {}", guilty.finding.what),
            (None, None) => "SURVIVED".to_owned(),
            (None, Some(guilty)) => {
                println!("planted: {}: {name} found it in {} runs: {}", bug.name(), guilty.runs, guilty.finding.what);
                continue;
            }
        };
        good = false;
        println!("planted: {}: {name}: {outcome}", bug.name());
    }
    Ok(good)
}
