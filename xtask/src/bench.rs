//! Runs the benchmarks one after another; they are built together with all other programs, and measure the program that
//! users build.
//!
//! Owns: the list of campaigns that are benchmarks. Leaves to others: the measurements and their output.

use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::binaries::BuiltPrograms;
use crate::metadata::Workspace;
use crate::process;

/// The program of `crates/e2e` that has the benchmarks.
const PROGRAM: &str = "e2e-campaigns";
/// Its campaigns that are benchmarks.
const BENCHMARKS: &[&str] = &["bench-memory", "bench-large", "bench-pressure"];

/// The longest time of a benchmark; one that takes longer is assumed to hang.
const LIMIT: Duration = Duration::from_secs(3600);

/// Runs the benchmark named by the first argument (`memory`, `large`, `pressure`) with the other arguments, or all benchmarks
/// without arguments; returns whether all succeeded.
pub fn command(arguments: &[String]) -> Result<bool> {
    let chosen = arguments.first().map(|name| format!("bench-{name}"));
    if let Some(unknown) = chosen.as_deref().filter(|name| !BENCHMARKS.contains(name)) {
        bail!("there is no {unknown}; there are {}", BENCHMARKS.join(", "));
    }
    let workspace = Workspace::load()?;
    let binaries = BuiltPrograms::build(&workspace, &[])?.with_dist(&workspace)?;
    let program = binaries.program(PROGRAM).with_context(|| format!("there is no program {PROGRAM}"))?;
    let mut good = true;
    for name in BENCHMARKS.iter().filter(|name| chosen.as_deref().is_none_or(|chosen| chosen == **name)) {
        println!("== {name}");
        let mut command = binaries.command(program, &workspace);
        command.arg(name).args(arguments.get(1..).unwrap_or_default());
        let ended = process::run(&mut command, LIMIT, process::shown)?;
        println!("== {name}: {}, {:.1} s", ended.how, ended.taken.as_secs_f64());
        good &= ended.success;
    }
    Ok(good)
}
