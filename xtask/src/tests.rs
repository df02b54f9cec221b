//! Runs all tests, crate by crate, each crate within its time budget.
//!
//! Owns: the order, the times and the counts. The crates of the lowest floors come first, so that a bug first fails the
//! tests of the crate that has it, and not those of a crate that depends on this crate.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::binaries::Binaries;
use crate::budgets::{self, DOCTESTS, KILL_FACTOR};
use crate::checks;
use crate::libtest::{Counts, is_told};
use crate::metadata::{Package, Workspace, cargo};
use crate::process::{self, Ended};
use crate::report::Report;

/// The crates whose tests run first, in this order; all others follow by name.
const ORDER: &[&str] = &[
    "xtask",
    "nectary-block",
    "nectary-host",
    "nectary-cache",
    "nectary-sim",
    "nectary-store",
    "nectary-proxy",
    "nectary",
    "nectary-e2e",
];

/// Runs the checks and all tests, or only the tests of `crates` if it is not empty; returns whether all passed.
pub fn command(crates: &[String]) -> Result<bool> {
    let workspace = Workspace::load()?;
    let mut members = workspace.members();
    if let Some(unknown) = crates.iter().find(|name| !members.iter().any(|member| member.name == **name)) {
        let known: Vec<&str> = members.iter().map(|member| member.name.as_str()).collect();
        bail!("there is no crate {unknown}; there are {}", known.join(", "));
    }
    members.sort_by_key(|member| ORDER.iter().position(|name| *name == member.name).unwrap_or(ORDER.len()));
    let mut report = Report::default();
    if crates.is_empty() {
        checks::run(&workspace, &mut report);
    }
    match Binaries::build(&workspace) {
        Ok(binaries) => {
            for member in members {
                if crates.is_empty() || crates.contains(&member.name) {
                    test(member, &binaries, &workspace, &mut report);
                }
            }
            if crates.is_empty() {
                doctests(&workspace, &mut report);
            }
        }
        Err(error) => report.failed(format!("{error:#}")),
    }
    report.judge_time();
    print!("{}", report.summary());
    Ok(report.is_good())
}

fn test(member: &Package, binaries: &Binaries, workspace: &Workspace, report: &mut Report) {
    let tests = binaries.tests_of(member);
    let budget_seconds = budgets::seconds(&member.name);
    let started = Instant::now();
    for binary in &tests {
        println!("== {} {}", member.name, binary.name);
        let mut command = binaries.command(binary, workspace);
        command.arg("--show-output");
        let ended = process::run(&mut command, Duration::from_secs(budget_seconds * KILL_FACTOR), is_told);
        count(&format!("{} {}", member.name, binary.name), ended, report);
    }
    if !tests.is_empty() {
        println!("== {}: {:.1} s of {budget_seconds} s", member.name, started.elapsed().as_secs_f64());
        report.timed(&member.name, started.elapsed(), budget_seconds);
    }
}

fn doctests(workspace: &Workspace, report: &mut Report) {
    println!("== {DOCTESTS}");
    let mut command = cargo();
    command.current_dir(&workspace.root).args(["test", "--release", "--workspace", "--doc", "--quiet"]);
    command.args(["--", "--show-output"]);
    let budget_seconds = budgets::seconds(DOCTESTS);
    let started = Instant::now();
    let ended = process::run(&mut command, Duration::from_secs(budget_seconds * KILL_FACTOR), is_told);
    count(DOCTESTS, ended, report);
    report.timed(DOCTESTS, started.elapsed(), budget_seconds);
}

/// Counts a test program's results. A program that failed without a failed test (it crashed, hung or did not start)
/// counts as a failure.
fn count(name: &str, ended: Result<Ended>, report: &mut Report) {
    match ended {
        Ok(ended) => {
            let counts = Counts::parse(&ended.output);
            counts.add_to(report, name);
            if !ended.success && (ended.killed || counts.failed_count == 0) {
                report.failed(format!("{name}: {}", ended.how));
            }
            if ended.success && counts.results == 0 {
                report.failed(format!("{name}: it printed no result"));
            }
        }
        Err(error) => report.failed(format!("{name}: {error:#}")),
    }
}
