//! Runs the project's checks, tests, campaigns and benchmarks, and prints one summary.
//!
//! Owns: the work of `make test`, `make soak` and `make bench` after the set-up. Promises: everything is built once, in
//! the release profile; the exit code is 0 only if everything passed; the last line of `test` has the counts. Leaves to
//! others: the tests themselves, and system packages (`ci/setup`).
#![forbid(unsafe_code)]

mod bench;
mod binaries;
mod budgets;
mod checks;
mod failed_output;
mod libtest;
mod load;
mod metadata;
mod process;
mod quick;
mod report;
mod rules;
mod soak;
mod tests;
mod workshop;

use std::process::ExitCode;

use anyhow::Result;

const USAGE: &str = "\
cargo xtask check                 formatting, lints, floors, rooms, licences, names, files and documents
cargo xtask test [CRATE]... [--name PART] [--setup]
                                  the checks, then every test, crate by crate, within its time budget; or the tests of
                                  some crates, or those whose names have a part; --setup installs what they need during
                                  the build
cargo xtask quick [--since REVISION]
                                  the checks and tests of what differs from a revision (the upstream branch, or else
                                  the last commit), and of the crates that use it; long ones are left out and named
cargo xtask soak [--seed N] [--rounds N] [--shard I/K] [--only NAME] [--sample] [--log FILE]
                                  long campaigns, or samples of them; a round that FILE already has is not run again
cargo xtask workshop [--before REVISION] [FIGURE | CRATE]...
                                  measures the build and the tests themselves in clones of the last commit (clone,
                                  line, quick, program, names, planted; line in all its crates or in those named),
                                  compares with a revision, and fails where one is short
cargo xtask names [--json]        how many types share their name or have one of one word, and the words of tests' names
cargo xtask bench [NAME [ARGUMENT]...]
                                  the benchmarks (memory, pressure), beside the peers that are installed

Exit codes: 0 everything passed, 1 something failed, 2 the command line is wrong.";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let rest = arguments.get(1..).unwrap_or_default();
    let outcome = match arguments.first().map(String::as_str) {
        Some("check") if rest.is_empty() => checks::command(),
        Some("test") => match tests::TestOptions::parse(rest) {
            Ok(options) => tests::command(&options),
            Err(error) => return usage(&error.to_string()),
        },
        Some("quick") => match rest {
            [] => tests::quick(None),
            [name, since] if name == "--since" => tests::quick(Some(since)),
            _ => return usage("quick takes --since REVISION"),
        },
        Some("soak") => match soak::SoakOptions::parse(rest) {
            Ok(options) => soak::command(&options),
            Err(error) => return usage(&error.to_string()),
        },
        Some("workshop") => match workshop::WorkshopOptions::parse(rest) {
            Ok(options) => workshop::command(&options),
            Err(error) => return usage(&error.to_string()),
        },
        Some("names") => match rules::names::command(rest) {
            Err(error) if !rest.is_empty() => return usage(&error.to_string()),
            outcome => outcome,
        },
        Some("bench") => bench::command(rest),
        Some("help" | "--help" | "-h") => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Some(other) => return usage(&format!("{other} is not understood")),
        None => return usage("which command?"),
    };
    finish(outcome)
}

fn usage(problem: &str) -> ExitCode {
    eprintln!("xtask: {problem}\n{USAGE}");
    ExitCode::from(2)
}

fn finish(outcome: Result<bool>) -> ExitCode {
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
