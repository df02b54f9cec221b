//! Visits very many files in a cached directory whose process may open few: `e2e-campaigns cache-files --files 1000000`.
//!
//! Runs `ls`, `grep`, `find`, `mv` and `rm` over all files, under a hard limit of 1,024 descriptors: with file handles,
//! with names only, and with files that the kernel reads itself. Each program must find exactly what there is. The exit
//! code is 0 only if everything passed.

use std::process::ExitCode;

use clap::Args;
use nectary_e2e::cache_tree::{DESCRIPTORS, visit};
use nectary_e2e::live::missing;

use crate::rounds::{NotRunPolicy, ProblemCounter};

/// Visits very many files in a cached directory.
#[derive(Args)]
pub struct CacheFilesArguments {
    /// Files in the directory
    #[arg(long, default_value_t = 1_000_000)]
    files: u64,
    /// Files that are open at once
    #[arg(long, default_value_t = 5000)]
    open: u64,
}

/// The options of the mounts.
const MOUNTS: [&[&str]; 3] =
    [&["--memory", "64M"], &["--memory", "64M", "--by-names"], &["--memory", "64M", "--passthrough", "64K"]];

/// Runs the campaign.
pub fn campaign(arguments: &CacheFilesArguments) -> ExitCode {
    if let Some(reason) = missing(false) {
        return NotRunPolicy::Fails.exit("cache-files", reason);
    }
    let mut problems = ProblemCounter::default();
    for options in MOUNTS {
        println!(
            "cache-files: {} files, {DESCRIPTORS} descriptors, cache mount {}",
            arguments.files,
            options.join(" ")
        );
        if let Err(error) = visit(arguments.files, arguments.open, false, options) {
            problems.add(format!("{error:#}"));
        }
    }
    println!("cache-files: {} mounts, {} problems", MOUNTS.len(), problems.count());
    problems.exit()
}
