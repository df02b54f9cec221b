//! The misses of `dear`, compared with those in the table of its paper.
//!
//! Owns: the table. Leaves to others: the traces.

use std::collections::BTreeMap;

use nectary_trace::simulate::{SimulationRun, TraceWorkload, run_all};

use super::{CacheFiguresOptions, known};

/// The rows of the table: the trace, the size in blocks, and the most misses that `dear` may have.
const DEAR: [(&str, u64, u64); 6] = [
    ("cs", 512, 4730),
    ("cs", 768, 3717),
    ("cs", 1024, 2738),
    ("gli", 768, 3484),
    ("cpp", 768, 1233),
    ("ps", 768, 4038),
];
const DEAR_BELOW_LRU_PERCENT: f64 = 27.0;

/// Runs `dear` and LRU for each row of the table; returns a line for each limit that `dear` does not reach.
pub fn dear(
    singles: &BTreeMap<String, TraceWorkload>,
    options: &CacheFiguresOptions,
) -> Result<Vec<String>, nectary_trace::Error> {
    if known("dear").is_err() {
        return Ok(vec!["dear: there is no such policy".to_owned()]);
    }
    let rows: Vec<_> = DEAR.iter().filter(|row| singles.contains_key(row.0)).collect();
    let run = |policy, row: &&(&str, u64, u64)| SimulationRun::new(&singles[row.0], policy, row.1);
    let runs: Vec<SimulationRun<'_>> = rows.iter().flat_map(|row| [run("dear", row), run("lru", row)]).collect();
    let results = run_all(&runs, options.threads, &|_| {})?;
    let mut short = Vec::new();
    let mut saved = Vec::new();
    println!("dear against its table");
    for (&&(name, size, misses_max), result) in rows.iter().zip(results.chunks_exact(2)) {
        let (dear, lru) = (result[0].counts.misses, result[1].counts.misses);
        let below = 100.0 * (1.0 - dear as f64 / lru as f64);
        let verdict = if dear <= misses_max { "ok" } else { "SHORT" };
        println!(
            "  {name:8} {size:5}  dear {dear:6}  at most {misses_max:6}  lru {lru:6}  {below:5.1} % below  {verdict}"
        );
        if dear > misses_max {
            short.push(format!("dear {name} {size}: {dear} misses, at most {misses_max}"));
        }
        if size == 768 {
            saved.push(below);
        }
    }
    if saved.len() == 4 {
        let mean = saved.iter().sum::<f64>() / saved.len() as f64;
        println!("  on average at 768 {mean:.1} % below LRU, at least {DEAR_BELOW_LRU_PERCENT} %");
        if mean < DEAR_BELOW_LRU_PERCENT {
            short.push(format!("dear at 768: {mean:.1} % below LRU, at least {DEAR_BELOW_LRU_PERCENT} %"));
        }
    }
    Ok(short)
}
