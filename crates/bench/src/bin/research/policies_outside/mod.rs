//! Compares the policies' miss counts with those of an outside program: `libcachesim` from PyPI, which runs as a
//! separate process.
//!
//! Owns: the comparison, and the Python environment in the build directory. Some traces are generated from a seed,
//! others are read from the folder `--traces`; every count is printed. To show that the comparison can fail, each
//! policy is also compared with the outside counts of another policy, and must differ.
//!
//! The program exits with 1 if a count differs or a wrong policy passes, with 2 for any other error, and with 77 if the
//! outside program is not available.

mod outside;
mod traces;

use std::path::PathBuf;
use std::process::ExitCode;

use nectary_trace::simulate::{Run, Workload, run_all};

use outside::Outside;

const HELP: &str = "\
Usage: research policies-outside [--seed N] [--traces DIR]

  --seed N      of the generated traces [default: 1]
  --traces DIR  where NAME.trace.gz are [default: ../shared/traces beside the workspace]

Exit codes: 0 all counts are equal, 1 one differs, 2 the command line is wrong, 77 libcachesim cannot be had";

/// The policies of both programs, each with another policy that it must differ from.
const POLICIES: [(&str, &str); 9] = [
    ("fifo", "lru"),
    ("lru", "clock"),
    ("lfu", "sieve"),
    ("clock", "fifo"),
    ("sieve", "lfu"),
    ("arc", "2q"),
    ("s3fifo", "arc"),
    ("2q", "s3fifo"),
    ("min", "arc"),
];
/// Cache sizes, as a share of a trace's distinct blocks. *Units*: percent.
const PERCENT: [u64; 8] = [1, 3, 6, 12, 25, 40, 60, 85];
/// The smallest cache size: in smaller caches some parts of the policies would have less than one block.
const SIZE_MIN: u64 = 20;

/// The exit code if the outside program is not available.
const NOT_RUN: u8 = 77;

/// Runs the subcommand with the arguments after its name.
pub fn main(words: &[String]) -> ExitCode {
    compare(words).unwrap_or_else(|what| {
        eprintln!("policies-outside: {what}");
        ExitCode::from(2)
    })
}

/// Reads the command line: the seed and the folder of traces.
fn options(words: &[String]) -> Result<(u64, PathBuf), String> {
    let mut seed = 1;
    let mut folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/traces"));
    let mut rest = words.iter();
    while let Some(name) = rest.next() {
        let value = rest.next().ok_or_else(|| format!("{name} needs a value\n\n{HELP}"))?;
        match name.as_str() {
            "--seed" => seed = value.parse().map_err(|_| format!("--seed {value}: expected a number"))?,
            "--traces" => folder = value.into(),
            other => return Err(format!("{other} is not understood\n\n{HELP}")),
        }
    }
    Ok((seed, folder))
}

fn compare(words: &[String]) -> Result<ExitCode, String> {
    let (seed, folder) = options(words)?;
    let outside = match Outside::prepare() {
        Ok(outside) => outside,
        Err(what) => {
            println!("NOT RUN: libcachesim cannot be had: {what}");
            return Ok(NOT_RUN.into());
        }
    };
    println!("seed {seed}, {}", outside.version());
    let mut workloads = traces::generated(seed);
    workloads.extend(traces::of_literature(&folder)?);
    let (mut equal, mut different) = (0, 0);
    let mut told_apart = [false; POLICIES.len()];
    for workload in &workloads {
        let mut sizes = PERCENT.map(|percent| (workload.distinct() * percent / 100).max(SIZE_MIN)).to_vec();
        sizes.dedup();
        let theirs = outside.misses(workload, &points(&sizes))?;
        let ours = ours(workload, &points(&sizes))?;
        for (((policy, size), ours), theirs) in points(&sizes).iter().zip(&ours).zip(&theirs) {
            let verdict = if ours == theirs { "equal" } else { "DIFFERENT" };
            println!("{} {policy} {size}: {ours} here, {theirs} outside, {verdict}", workload.name());
            *if ours == theirs { &mut equal } else { &mut different } += 1;
        }
        for (index, columns) in ours.chunks(sizes.len()).enumerate() {
            let other = POLICIES.iter().position(|(name, _)| *name == POLICIES[index].1).unwrap_or(index);
            told_apart[index] |= columns != &theirs[other * sizes.len()..(other + 1) * sizes.len()];
        }
    }
    let planted = told_apart.iter().filter(|is_told_apart| **is_told_apart).count();
    println!("{equal} counts equal, {different} different; {planted} of {} planted policies caught", POLICIES.len());
    let is_good = different == 0 && planted == POLICIES.len();
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// All pairs of a policy and a size, ordered by policy.
fn points(sizes: &[u64]) -> Vec<(&'static str, u64)> {
    POLICIES.iter().flat_map(|(policy, _)| sizes.iter().map(|size| (*policy, *size))).collect()
}

fn ours(workload: &Workload, points: &[(&'static str, u64)]) -> Result<Vec<u64>, String> {
    let runs: Vec<Run<'_>> =
        points.iter().map(|&(policy, size)| Run { workload, policy, size, is_explained: false }).collect();
    let rows = run_all(&runs, None, &|_| {}).map_err(|error| error.to_string())?;
    Ok(rows.into_iter().map(|row| row.misses).collect())
}
