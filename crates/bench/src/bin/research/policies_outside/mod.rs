//! Compares the policies' miss counts with those of an outside program: `libcachesim` from PyPI, which runs as a
//! separate process.
//!
//! The policies of [`OBJECT_POLICIES`] are also compared on objects with text keys and sizes, with capacities in bytes, by
//! misses and missed bytes, once with keys that have quotes, and once with plain keys in a file that `libcachesim` reads
//! itself. `gdsf` is compared with a plain form of it in Python, because that of `libcachesim` chooses other victims than
//! the paper. Sampled curves of LRU must be within their printed error of the outside counts (`curves`).
//!
//! Owns: the comparison, and the Python environment in the build directory. Some traces are generated from a seed,
//! others are read from the folder `--traces`; every count is printed. To show that the comparison can fail, each
//! policy is also compared with the outside counts of another policy, and must differ.
//!
//! The program exits with 1 if a count differs, a wrong policy passes, or fewer counts were compared than there should be,
//! with 2 for any other error, and with 77 if the
//! outside program is not available.

mod curves;
mod outside;
mod traces;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use nectary_trace::formats::ReadOptions;
use nectary_trace::simulate::sizes::CapacityUnit;
use nectary_trace::simulate::{LoadOptions, SimulationRow, SimulationRun, TraceWorkload, run_all};

use curves::CurveComparison;
use outside::{MissCounts, SimulatorEnvironment};
use traces::ObjectKeyForm;

const HELP: &str = "\
Usage: research policies-outside [--seed N] [--traces DIR]

  --seed N      of the generated traces [default: 1]
  --traces DIR  where NAME.trace.gz are [default: ../shared/traces beside the workspace]

Exit codes: 0 all counts are equal, 1 one differs or some are missing, 2 the command line is wrong, 77 libcachesim cannot be had";

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
/// The policies that are compared on objects with sizes, each with another policy that it must differ from.
const OBJECT_POLICIES: [(&str, &str); 7] = [
    ("fifo", "lru"),
    ("lru", "clock"),
    ("lfu", "sieve"),
    ("clock", "fifo"),
    ("sieve", "lfu"),
    ("min", "sieve"),
    ("gdsf", "lfu"),
];
/// Cache sizes, as a share of a trace's distinct blocks. *Units*: percent.
const PERCENT: [u64; 8] = [1, 3, 6, 12, 25, 40, 60, 85];
/// The smallest cache size: in smaller caches some parts of the policies would have less than one block.
const SIZE_MIN: u64 = 20;

/// The least numbers of counts of blocks and of objects, and of points of curves. The traces of the literature are not in
/// them, because they may be absent.
const BLOCKS_MIN: usize = 400;
const OBJECTS_MIN: usize = 300;
const POINTS_MIN: usize = 500;

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
    let outside = match SimulatorEnvironment::prepare() {
        Ok(outside) => outside,
        Err(what) => {
            println!("NOT RUN: libcachesim cannot be had: {what}");
            return Ok(NOT_RUN.into());
        }
    };
    println!("seed {seed}, {}", outside.version());
    let mut workloads = traces::generated(seed);
    workloads.extend(traces::of_literature(&folder)?);
    let mut blocks = PolicyComparison::new(&POLICIES);
    let mut curves = CurveComparison::default();
    for workload in &workloads {
        let mut sizes = PERCENT.map(|percent| (workload.distinct() * percent / 100).max(SIZE_MIN)).to_vec();
        sizes.dedup();
        let trace = outside.write(workload)?;
        let theirs = blocks.compare(workload, CapacityUnit::Blocks, &sizes, &outside, &trace)?;
        let of = |policy| blocks.of(&theirs, policy, sizes.len());
        curves.compare(workload, &trace, &sizes, of("lru"), of("min"))?;
    }
    let mut objects = PolicyComparison::new(&OBJECT_POLICIES);
    for (keys, ending) in [(ObjectKeyForm::Quoted, ".csv"), (ObjectKeyForm::Plain, ".own.csv")] {
        for (name, text) in traces::objects(seed, keys) {
            let trace = outside.trace_file(ending);
            std::fs::write(&trace, text).map_err(|error| error.to_string())?;
            let loaded = TraceWorkload::load(&trace, &ReadOptions::default(), &LoadOptions::default());
            let mut workload = loaded.map_err(|error| error.to_string())?;
            workload.rename(&format!("{name}{ending}"));
            let sizes = PERCENT.map(|percent| workload.distinct_bytes() * percent / 100);
            let theirs = objects.compare(&workload, CapacityUnit::Bytes, &sizes, &outside, &trace)?;
            let of = |policy| objects.of(&theirs, policy, sizes.len());
            // The curve is for caches that are larger than the largest object.
            let largest = (0..workload.blocks().len()).map(|index| workload.bytes(index)).max().unwrap_or(0);
            let first = sizes.iter().position(|&size| size >= u64::from(largest)).unwrap_or(sizes.len());
            curves.compare(&workload, &trace, &sizes[first..], &of("lru")[first..], &of("min")[first..])?;
        }
    }
    for ending in [".txt", ".csv", ".own.csv"] {
        _ = std::fs::remove_file(outside.trace_file(ending));
    }
    let is_good = [
        blocks.report("blocks", BLOCKS_MIN),
        objects.report("objects by bytes", OBJECTS_MIN),
        curves.report(POINTS_MIN),
    ];
    Ok(if is_good == [true; 3] { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A comparison of some policies over several traces.
struct PolicyComparison {
    policies: &'static [(&'static str, &'static str)],
    equal: usize,
    different: usize,
    /// For each policy, whether its counts differ from the outside counts of its relative.
    told_apart: Vec<bool>,
}

impl PolicyComparison {
    fn new(policies: &'static [(&'static str, &'static str)]) -> PolicyComparison {
        PolicyComparison { policies, equal: 0, different: 0, told_apart: vec![false; policies.len()] }
    }

    /// The counts of one policy among those that [`PolicyComparison::compare`] has returned.
    fn of<'a>(&self, counts: &'a [MissCounts], policy: &str, sizes: usize) -> &'a [MissCounts] {
        let index = self.policies.iter().position(|(name, _)| *name == policy).unwrap_or(0);
        &counts[index * sizes..(index + 1) * sizes]
    }

    /// Compares all policies at `sizes` over a workload; `trace` is its file. *Returns* the outside counts.
    fn compare(
        &mut self,
        workload: &TraceWorkload,
        unit: CapacityUnit,
        sizes: &[u64],
        outside: &SimulatorEnvironment,
        trace: &Path,
    ) -> Result<Vec<MissCounts>, String> {
        let points: Vec<(&'static str, u64)> =
            self.policies.iter().flat_map(|(policy, _)| sizes.iter().map(|size| (*policy, *size))).collect();
        let theirs = outside.misses(trace, &points)?;
        let ours = ours(workload, unit, &points)?;
        for (((policy, size), ours), theirs) in points.iter().zip(&ours).zip(&theirs) {
            let verdict = if ours == theirs { "equal" } else { "DIFFERENT" };
            println!("{} {policy} {size}: {ours} here, {theirs} outside, {verdict}", workload.name());
            *if ours == theirs { &mut self.equal } else { &mut self.different } += 1;
        }
        for (index, columns) in ours.chunks(sizes.len()).enumerate() {
            let relative = self.policies[index].1;
            let other = self.policies.iter().position(|(name, _)| *name == relative).unwrap_or(index);
            self.told_apart[index] |= columns != &theirs[other * sizes.len()..(other + 1) * sizes.len()];
        }
        Ok(theirs)
    }

    /// Prints the result. *Returns* whether at least `least` counts were compared, all are equal, and every planted policy
    /// was caught.
    fn report(&self, what: &str, least: usize) -> bool {
        let PolicyComparison { policies, equal, different, told_apart } = self;
        let planted = told_apart.iter().filter(|is_told_apart| **is_told_apart).count();
        let all = policies.len();
        println!(
            "{what}: {equal} counts equal, {different} different, at least {least} wanted; {planted} of {all} planted \
             policies caught"
        );
        *different == 0 && *equal >= least && planted == all
    }
}

fn ours(
    workload: &TraceWorkload,
    unit: CapacityUnit,
    points: &[(&'static str, u64)],
) -> Result<Vec<MissCounts>, String> {
    let run = |&(policy, size)| SimulationRun { unit, ..SimulationRun::new(workload, policy, size) };
    let runs: Vec<SimulationRun<'_>> = points.iter().map(run).collect();
    let rows = run_all(&runs, None, &|_| {}).map_err(|error| error.to_string())?;
    let misses = |row: &SimulationRow| MissCounts {
        count: row.counts.misses,
        bytes: if unit == CapacityUnit::Bytes { row.counts.missed_bytes } else { row.counts.misses },
    };
    Ok(rows.iter().map(misses).collect())
}
