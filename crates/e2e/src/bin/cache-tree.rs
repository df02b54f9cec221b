//! Runs file-system exercisers and programs over `nectary cache mount`: `cache-tree --operations 1000000 --seed 7`.
//!
//! Runs fsx with memory maps, pjdfstest outside of the mount and in it, a compiler, git and a database. At the end the
//! source and the mount must have the same files. The exit code is 0 only if everything ran and passed.

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use nectary_e2e::cache_tree::{compare, exercise, is_the_source, mounted, run_programs};
use nectary_e2e::live::missing;
use nectary_e2e::report::{not_run, seed_or_new};

/// Runs exercisers and programs in a cached directory.
#[derive(Parser)]
struct Arguments {
    /// Operations of fsx on each mount
    #[arg(long, default_value_t = 1_000_000)]
    operations: u64,
    /// The seed of fsx and of the programs' input; a new one is drawn and printed by default
    #[arg(long)]
    seed: Option<u64>,
}

/// The options of the mounts.
const MOUNTS: [&[&str]; 2] = [&[], &["--policy", "dear"]];

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    if let Some(reason) = missing(false) {
        not_run(format!("cache-tree: {reason}"));
        return Ok(ExitCode::FAILURE);
    }
    let seed = seed_or_new(arguments.seed);
    let mut problems = 0;
    for options in MOUNTS {
        let live = mounted(options, false)?;
        let options = options.join(" ");
        println!("cache-tree: seed {seed}, cache mount {options}");
        match exercise(&live, arguments.operations, seed) {
            Ok(Some(())) => println!("  {} operations of fsx", arguments.operations),
            Ok(None) => problems += 1,
            Err(error) => {
                problems += 1;
                println!("PROBLEM: {error:#}");
            }
        }
        match run_programs(&live, seed) {
            Ok(done) => println!("  {done}"),
            Err(error) => {
                problems += 1;
                println!("PROBLEM: {error:#}");
            }
        }
        match is_the_source(&live) {
            Ok(files) => println!("  {files} files are the same in the source and in the mount"),
            Err(error) => {
                problems += 1;
                println!("PROBLEM: {error:#}");
            }
        }
        match compare(&live) {
            Ok(Some(found)) => {
                println!(
                    "  pjdfstest: {} tests ended as beside the mount, {} of them passed; {} known exceptions, {} others",
                    found.alike,
                    found.passed,
                    found.excepted,
                    found.differing.len()
                );
                found.differing.iter().for_each(|line| println!("PROBLEM: {line}"));
                problems += found.differing.len();
            }
            Ok(None) => problems += 1,
            Err(error) => {
                problems += 1;
                println!("PROBLEM: {error:#}");
            }
        }
    }
    println!("cache-tree: {} mounts, {problems} problems", MOUNTS.len());
    Ok(ExitCode::from(u8::from(problems > 0)))
}
