//! Tests that miss counts equal those of other programs.
//!
//! The traces of the literature are not part of the project; if `../shared/traces` is absent, each test that needs them
//! prints `NOT RUN` and the reason. The golden counts on generated traces need no files.

use std::path::{Path, PathBuf};

use nectary_cache::StreamId;
use nectary_trace::formats::ReadOptions;
use nectary_trace::simulate::{LoadOptions, SimulationRun, TraceWorkload, run_all};

use super::generated::generated;
use super::golden::{COLUMNS, GoldenTrace, LIRS, TRACES};

/// The folder of traces. If it is absent, prints a line that says so, and returns `None`.
pub fn folder() -> Option<PathBuf> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/traces"));
    if !folder.is_dir() {
        println!("NOT RUN: ../shared/traces is absent");
        return None;
    }
    Some(folder.to_owned())
}

/// Loads a trace by its name in the golden counts. A name such as `a+b` is a mix of the traces `a` and `b`.
pub fn load(folder: &Path, name: &str) -> TraceWorkload {
    let parts: Vec<TraceWorkload> = name
        .split('+')
        .map(|part| {
            let path = folder.join(format!("{part}.trace.gz"));
            TraceWorkload::load(&path, &ReadOptions::default(), &LoadOptions::default()).expect("a sound trace")
        })
        .collect();
    match &parts[..] {
        [one] => one.clone(),
        parts => TraceWorkload::mix(&parts.iter().collect::<Vec<_>>()).expect("a mix"),
    }
}

fn misses(workload: &TraceWorkload, points: &[(&'static str, u64)]) -> Vec<u64> {
    let run = |&(policy, size): &(&'static str, u64)| SimulationRun::new(workload, policy, size);
    let rows = run_all(&points.iter().map(run).collect::<Vec<_>>(), None, &|_| {}).expect("policies that there are");
    rows.into_iter().map(|row| row.counts.misses).collect()
}

/// Compares one trace with its golden counts. *Returns* the number of points, all of which are equal.
#[track_caller]
fn compare(workload: &TraceWorkload, trace: &GoldenTrace) -> usize {
    assert_eq!((workload.references(), workload.distinct()), (trace.references, trace.distinct), "{}", trace.name);
    let points: Vec<(&str, u64, u64)> = trace
        .rows
        .iter()
        .flat_map(|(size, counts)| COLUMNS.iter().zip(counts).map(|(policy, count)| (*policy, *size, *count)))
        .collect();
    let found = misses(workload, &points.iter().map(|&(policy, size, _)| (policy, size)).collect::<Vec<_>>());
    let differ: Vec<String> = points
        .iter()
        .zip(&found)
        .filter(|(point, found)| point.2 != **found)
        .map(|((policy, size, count), found)| format!("{} {policy} {size}: {found}, expected {count}", trace.name))
        .collect();
    assert!(differ.is_empty(), "{} of {} points differ\n{}", differ.len(), points.len(), differ.join("\n"));
    println!("{}: {} points equal", trace.name, points.len());
    points.len()
}

/// The misses on generated traces equal those of another program.
#[test]
fn generated_trace_misses_match_reference() {
    for (seed, trace) in (1..).zip(TRACES.iter().filter(|trace| trace.name.starts_with("gen"))) {
        compare(&generated(trace.name, seed), trace);
    }
}

/// The misses on the traces of the literature equal those of another program.
#[test]
fn literature_trace_misses_match_reference() {
    let Some(folder) = folder() else { return };
    let traces = TRACES.iter().filter(|trace| !trace.name.starts_with("gen"));
    let points: usize = traces.map(|trace| compare(&load(&folder, trace.name), trace)).sum();
    println!("{points} points equal");
    assert!(points >= 300, "{points} points");
}

/// LIRS misses as often as its authors' program, with and without duplicates.
#[test]
fn lirs_misses_match_authors_program() {
    let Some(folder) = folder() else { return };
    for &(name, size, expected) in LIRS {
        let trace = load(&folder, name);
        let mut blocks = trace.blocks().to_vec();
        blocks.dedup();
        let collapsed = TraceWorkload::new(name, blocks.into_iter().map(|block| (block, StreamId(0))));
        assert_eq!(misses(&collapsed, &[("lirs", size)]), [expected], "{name} {size}");
        // The policy itself counts consecutive references to a block as one.
        assert_eq!(misses(&trace, &[("lirs", size)]), [expected], "{name} {size} as it is");
    }
}
