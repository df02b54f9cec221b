//! The checks that do not run the project's code: formatting, lints, what users build, advisories, dependency direction,
//! rooms, licences, names, files and documents.
//!
//! Owns: the order of the checks, and their count: each check counts as one test.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Result;

use crate::metadata::{Workspace, cargo};
use crate::process;
use crate::report::TestReport;
use crate::rules::{circles, features, fields, floors, house, licences, names, rooms};

/// The longest time of a check; one that takes longer is assumed to hang. Lints need the most time, because they
/// compile everything.
const LIMIT: Duration = Duration::from_secs(3600);

/// The longest time in which the database of advisories is fetched.
const ADVISORIES_LIMIT: Duration = Duration::from_secs(60);

/// Runs the checks without the tests; returns whether all passed.
pub fn command() -> Result<bool> {
    let workspace = Workspace::load()?;
    let mut report = TestReport::default();
    run(&workspace, &mut report);
    print!("{}", report.summary());
    Ok(report.is_good())
}

/// Runs the checks and counts them in `report`.
pub fn run(workspace: &Workspace, report: &mut TestReport) {
    read_only(workspace, report);
    lints(workspace, &["--workspace"], report);
    let mut alone = cargo();
    alone.current_dir(&workspace.root);
    alone.args(["check", "--release", "--quiet", "--package", "nectary", "--package", "nectary-capi"]);
    executed(report, "what users build, with its own features", &mut alone);
    advisories(workspace, report);
}

/// Runs the checks that compile nothing, and the lints of some crates.
pub fn run_some(workspace: &Workspace, crates: &[String], report: &mut TestReport) {
    read_only(workspace, report);
    if !crates.is_empty() {
        let packages: Vec<&str> = crates.iter().flat_map(|name| ["--package", name]).collect();
        lints(workspace, &packages, report);
    }
}

/// Runs the checks that compile nothing.
fn read_only(workspace: &Workspace, report: &mut TestReport) {
    listed(report, "dependency direction", &floors::problems(&workspace.members()));
    listed(report, "one set of features", &features::problems(workspace));
    listed(report, "rooms", &rooms::problems(&workspace.root));
    listed(report, "licences", &licences::problems(&workspace.packages));
    listed(report, "circles of files", &circles::problems(&workspace.root));
    listed(report, "fields of structs", &fields::problems(&workspace.root));
    listed(report, "names of types and tests", &names::problems(&workspace.root));
    listed(report, "files and documents", &house::problems(&workspace.root));
    executed(report, "formatting", cargo().current_dir(&workspace.root).args(["fmt", "--all", "--check"]));
}

/// Runs cargo-deny over the database of advisories (`deny.toml`), where both can be had.
fn advisories(workspace: &Workspace, report: &mut TestReport) {
    const NAME: &str = "advisories";
    let deny = |arguments: &[&str]| {
        let mut command = cargo();
        command.current_dir(&workspace.root).arg("deny").args(arguments).stderr(Stdio::null());
        command
    };
    let succeeds = |arguments: &[&str]| {
        process::run(&mut deny(arguments), ADVISORIES_LIMIT, process::silent).is_ok_and(|ended| ended.success)
    };
    if !succeeds(&["--version"]) {
        return report.not_run(format!("{NAME}: cargo-deny is not installed: run `cargo install --locked cargo-deny`"));
    }
    if !succeeds(&["fetch", "db"]) {
        return report.not_run(format!("{NAME}: their database cannot be fetched: see `cargo deny fetch db`"));
    }
    executed(report, NAME, deny(&["--offline", "check", "advisories"]).stderr(Stdio::inherit()));
}

fn lints(workspace: &Workspace, packages: &[&str], report: &mut TestReport) {
    let mut lints = cargo();
    lints.current_dir(&workspace.root).args(["clippy", "--release", "--all-targets", "--quiet"]).args(packages);
    executed(report, "lints", lints.args(["--", "-D", "warnings"]));
}

fn listed(report: &mut TestReport, name: &str, problems: &[String]) {
    println!("== {name}: {}", if problems.is_empty() { "good" } else { "FAILED" });
    for problem in problems {
        println!("  {problem}");
    }
    match problems {
        [] => report.passed(1),
        [only] => report.failed(format!("{name}: {only}")),
        [first, rest @ ..] => report.failed(format!("{name}: {first} (and {} more)", rest.len())),
    }
}

fn executed(report: &mut TestReport, name: &str, command: &mut Command) {
    println!("== {name}");
    match process::run(command, LIMIT, process::shown) {
        Ok(ended) if ended.success => {
            println!("== {name}: good, {:.1} s", ended.taken.as_secs_f64());
            report.passed(1);
        }
        Ok(ended) => report.failed(format!("{name}: {}", ended.how)),
        Err(error) => report.failed(format!("{name}: {error:#}")),
    }
}
