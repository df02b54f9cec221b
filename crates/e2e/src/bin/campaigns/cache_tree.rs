//! Runs file-system exercisers and programs over `nectary cache mount`: `e2e-campaigns cache-tree --operations 1000000
//! --seed 7`.
//!
//! Runs fsx with memory maps, pjdfstest outside of the mount and in it, a compiler, git and a database. At the end the
//! source and the mount must have the same files. The exit code is 0 only if everything ran and passed.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use nectary_e2e::cache_tree::{compare, exercise, is_the_source, mounted, run_programs};
use nectary_e2e::live::missing;
use nectary_e2e::report::seed_or_new;

use crate::rounds::{NotRunPolicy, ProblemCounter};

/// Runs exercisers and programs in a cached directory.
#[derive(Args)]
pub struct CacheTreeArguments {
    /// Operations of fsx on each mount
    #[arg(long, default_value_t = 1_000_000)]
    operations: u64,
    /// The seed of fsx and of the programs' input; a new one is drawn and printed by default
    #[arg(long)]
    seed: Option<u64>,
}

/// The options of the mounts.
const MOUNTS: [&[&str]; 3] = [&[], &["--policy", "dear"], &["--passthrough", "1G"]];

/// Runs the campaign.
pub fn campaign(arguments: &CacheTreeArguments) -> Result<ExitCode> {
    if let Some(reason) = missing(false) {
        return Ok(NotRunPolicy::Fails.exit("cache-tree", reason));
    }
    let seed = seed_or_new(arguments.seed);
    let mut problems = ProblemCounter::default();
    for options in MOUNTS {
        let live = mounted(options, false)?;
        let options = options.join(" ");
        println!("cache-tree: seed {seed}, cache mount {options}");
        match exercise(&live, arguments.operations, seed) {
            Ok(Some(())) => println!("  {} operations of fsx", arguments.operations),
            Ok(None) => problems.add("fsx was not run"),
            Err(error) => problems.add(format!("{error:#}")),
        }
        match run_programs(&live, seed) {
            Ok(done) => println!("  {done}"),
            Err(error) => problems.add(format!("{error:#}")),
        }
        match is_the_source(&live) {
            Ok(files) => println!("  {files} files are the same in the source and in the mount"),
            Err(error) => problems.add(format!("{error:#}")),
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
                problems.extend(found.differing);
            }
            Ok(None) => problems.add("pjdfstest was not run"),
            Err(error) => problems.add(format!("{error:#}")),
        }
    }
    println!("cache-tree: {} mounts, {} problems", MOUNTS.len(), problems.count());
    Ok(problems.exit())
}
