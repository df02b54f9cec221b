//! The benchmarks: built like everything else, run one after another.
//!
//! Owns: which programs are benchmarks. Leaves to others: what they measure and print.

use std::time::Duration;

use anyhow::{Context, Result};

use crate::binaries::Binaries;
use crate::metadata::Workspace;
use crate::process;

/// The programs of `crates/e2e` that measure.
const PROGRAMS: &[&str] = &["bench-memory", "bench-pressure"];

/// A benchmark that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(3600);

/// Runs all benchmarks, with `arguments` given to each; tells whether all succeeded.
pub fn command(arguments: &[String]) -> Result<bool> {
    let workspace = Workspace::load()?;
    let binaries = Binaries::build(&workspace)?;
    let mut good = true;
    for name in PROGRAMS {
        let program = binaries.program(name).with_context(|| format!("there is no program {name}"))?;
        println!("== {name}");
        let ended = process::run(binaries.command(program, &workspace).args(arguments), LIMIT, true)?;
        println!("== {name}: {}, {:.1} s", ended.how, ended.taken.as_secs_f64());
        good &= ended.success;
    }
    Ok(good)
}
