//! Measures the workshop itself: how long a clone and a changed line take to their tests, and what a build leaves.
//!
//! Owns: the figures, their bounds, and the clones in which they are measured (`target/workshop`, removed by `make
//! clean`). Everything is measured on what is committed. Two revisions are measured in turns, so that both meet the same
//! machine. Leaves to others: the tests and the builds themselves, which are run as a contributor runs them.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::binaries;
use crate::metadata::{Workspace, cargo};
use crate::process;
use crate::rules::house;

/// The longest time of one command; one that takes longer is assumed to hang.
const LIMIT: Duration = Duration::from_secs(2 * 3600);

/// The bounds of the figures.
const CLONE_SECONDS_MAX: f64 = 900.0;
const TARGET_MEBIBYTES_MAX: f64 = 3072.0;
const PROGRAM_MEGABYTES_MAX: f64 = 25.0;
const TEST_PROGRAMS_MAX: f64 = 40.0;
const LINE_SHARE_MAX: f64 = 0.5;
const QUICK_SECONDS_MAX: f64 = 120.0;

/// A crate and one of its files in which a line is changed, and where that file was before, if elsewhere.
const LINES: [(&str, &str); 3] = [
    ("nectary-store", "crates/store/src/get/mod.rs"),
    ("nectary-ram", "crates/ram/src/lib.rs"),
    ("nectary-proxy", "crates/proxy/src/lib.rs"),
];
/// A crate that few others use, for `make quick`.
const LEAF: &str = "crates/proxy/src/lib.rs";

/// The name of the test that fails in every test program of a clone.
const PLANTED: &str = "planted_failure_of_the_workshop";

/// The figures by their names on the command line.
pub const NAMES: &[&str] = &["clone", "line", "quick", "program", "names", "planted"];

/// What to measure.
#[derive(Debug, PartialEq, Eq)]
pub struct WorkshopOptions {
    /// The revision to compare with.
    before: Option<String>,
    /// The figures; all of them if it is empty.
    names: Vec<String>,
    /// The crates in which a line is changed; all of [`LINES`] if it is empty.
    crates: Vec<String>,
}

impl WorkshopOptions {
    /// Reads the command line.
    ///
    /// *Errors*: an unknown figure or crate, or `--before` without a revision.
    pub fn parse(arguments: &[String]) -> Result<WorkshopOptions> {
        let mut options = WorkshopOptions { before: None, names: Vec::new(), crates: Vec::new() };
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            match argument.as_str() {
                "--before" => options.before = Some(rest.next().context("--before needs a revision")?.clone()),
                name if NAMES.contains(&name) => options.names.push(name.to_owned()),
                name if LINES.iter().any(|(of, _)| *of == name) => options.crates.push(name.to_owned()),
                other => bail!(
                    "workshop has no figure {other}; there are {}, and for line the crates {}",
                    NAMES.join(", "),
                    LINES.map(|(name, _)| name).join(", ")
                ),
            }
        }
        Ok(options)
    }

    fn has(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|chosen| chosen == name)
    }
}

/// Measures, prints each figure with its bound and command, and returns whether all are within their bounds.
pub fn command(options: &WorkshopOptions) -> Result<bool> {
    let root = &Workspace::load()?.root;
    let mut figures = WorkshopFigures::default();
    if options.has("clone") {
        from_clone(root, &mut figures)?;
    }
    let after = RevisionClone::of(root, "after", "HEAD")?;
    let before = match &options.before {
        Some(revision) => Some(RevisionClone::of(root, "before", revision)?),
        None => None,
    };
    if options.has("line") {
        changed_lines(&options.crates, &after, before.as_ref(), &mut figures)?;
    }
    if options.has("quick") {
        quick(&after, &mut figures)?;
    }
    if options.has("program") {
        program(&after, &mut figures)?;
    }
    if options.has("names") {
        match &before {
            Some(before) => names(&after, before, &mut figures)?,
            None => println!("== names: not compared, since no --before names a revision"),
        }
    }
    if options.has("planted") {
        planted(&after, &mut figures)?;
    }
    print!("{}", figures.text);
    Ok(figures.short == 0)
}

/// The figures so far.
#[derive(Debug, Default)]
struct WorkshopFigures {
    text: String,
    short: usize,
}

impl WorkshopFigures {
    fn add(&mut self, what: &str, value: f64, max: f64, unit: &str, command: &str) {
        let is_short = value > max;
        self.short += usize::from(is_short);
        let verdict = if is_short { "SHORT" } else { "good" };
        let line = format!("{what}: {value:.2} {unit} of at most {max} ({command}): {verdict}\n");
        print!("== {line}");
        self.text += &line;
    }
}

/// A clone of the repository at one revision, with its own target directory.
struct RevisionClone {
    directory: PathBuf,
}

impl RevisionClone {
    /// Takes the clone called `name`, makes it if it is not there, and brings it to `revision`.
    fn of(root: &Path, name: &str, revision: &str) -> Result<RevisionClone> {
        let revision =
            process::output(Command::new("git").current_dir(root).args(["rev-parse", "--verify", revision]))?;
        let directory = root.join("target/workshop").join(name);
        let clone = RevisionClone { directory };
        if !clone.directory.exists() {
            fs::create_dir_all(root.join("target/workshop"))?;
            process::output(Command::new("git").args(["clone", "--quiet"]).arg(root).arg(&clone.directory))?;
        }
        clone.git(&["fetch", "--quiet", "origin"])?;
        clone.git(&["checkout", "--quiet", "--force", "--detach", revision.trim()])?;
        Ok(clone)
    }

    fn git(&self, arguments: &[&str]) -> Result<String> {
        process::output(Command::new("git").current_dir(&self.directory).args(arguments))
    }

    /// Adds text at the end of a file.
    fn append(&self, file: &str, text: &str) -> Result<()> {
        let path = self.directory.join(file);
        let mut file = fs::OpenOptions::new().append(true).open(&path).with_context(|| path.display().to_string())?;
        Ok(file.write_all(text.as_bytes())?)
    }

    /// Runs a command as from a shell; returns how long it took, whether it succeeded, and its output.
    fn run(&self, program: &str, arguments: &[&str]) -> Result<(f64, bool, String)> {
        println!("== {}: {program} {}", self.directory.display(), arguments.join(" "));
        let mut command = Command::new(program);
        command.current_dir(&self.directory).args(arguments);
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(binaries::is_set_by_cargo) {
                command.env_remove(name);
            }
        }
        let started = Instant::now();
        let ended = process::run(&mut command, LIMIT, process::silent)?;
        Ok((started.elapsed().as_secs_f64(), ended.success, ended.output))
    }

    /// [`RevisionClone::run`] of a command that must succeed.
    fn timed(&self, program: &str, arguments: &[&str]) -> Result<f64> {
        let (seconds, succeeded, output) = self.run(program, arguments)?;
        if !succeeded {
            let tail: Vec<&str> = output.lines().rev().take(20).collect();
            bail!(
                "{program} {} failed:\n{}",
                arguments.join(" "),
                tail.into_iter().rev().collect::<Vec<_>>().join("\n")
            );
        }
        Ok(seconds)
    }
}

/// From a fresh clone to the summary of `make test`; then what its build left. The clone stays, for the other figures.
#[expect(clippy::cast_precision_loss, reason = "counts of programs and tests")]
fn from_clone(root: &Path, figures: &mut WorkshopFigures) -> Result<()> {
    let old = root.join("target/workshop/after");
    if old.exists() {
        fs::remove_dir_all(&old)?;
    }
    let started = Instant::now();
    let clone = RevisionClone::of(root, "after", "HEAD")?;
    let (_, succeeded, output) = clone.run("make", &["test"])?;
    figures.add("clone to summary", started.elapsed().as_secs_f64(), CLONE_SECONDS_MAX, "s", "git clone, make test");
    let size = process::output(Command::new("du").arg("-sm").arg(clone.directory.join("target/release")))?;
    let mebibytes = size.split_whitespace().next().and_then(|size| size.parse().ok()).context("du prints a size")?;
    figures.add("target", mebibytes, TARGET_MEBIBYTES_MAX, "MiB", "du -sm target/release");
    let count = test_programs(&clone)?.len();
    figures.add("test programs", count as f64, TEST_PROGRAMS_MAX, "programs", "cargo build --tests");
    if !succeeded {
        // The time to the summary counts; the run does not.
        let failed = output.lines().filter(|line| line.trim_start().starts_with("FAILED"));
        figures.add("tests that failed", failed.clone().count().max(1) as f64, 0.0, "tests", "make test");
        failed.for_each(|line| println!("{line}"));
    }
    Ok(())
}

/// The source files that are roots of test programs.
fn test_programs(clone: &RevisionClone) -> Result<Vec<(String, PathBuf)>> {
    let mut command = cargo();
    command.current_dir(&clone.directory).args(["metadata", "--no-deps", "--format-version", "1"]);
    let metadata: serde_json::Value = serde_json::from_str(&process::output(&mut command)?)?;
    let mut programs = Vec::new();
    for package in metadata["packages"].as_array().context("packages")? {
        for target in package["targets"].as_array().context("targets")? {
            if target["test"] == true
                && let (Some(package), Some(path)) = (package["name"].as_str(), target["src_path"].as_str())
            {
                programs.push((package.to_owned(), PathBuf::from(path)));
            }
        }
    }
    Ok(programs)
}

/// From a changed line to the end of its crate's tests, before and after.
fn changed_lines(
    crates: &[String],
    after: &RevisionClone,
    before: Option<&RevisionClone>,
    figures: &mut WorkshopFigures,
) -> Result<()> {
    for (name, file) in LINES {
        if !crates.is_empty() && !crates.iter().any(|chosen| chosen == name) {
            continue;
        }
        let mut seconds = Vec::new();
        let command = ["xtask", "test", name];
        let (_, is_warm, _) = after.run("cargo", &command)?;
        after.append(file, "// A line.\n")?;
        let (time, succeeded, output) = after.run("cargo", &command)?;
        seconds.push(time);
        if !(is_warm && succeeded) {
            // The time counts; the run does not, and the other figures are still wanted.
            println!("{output}");
            figures.add(&format!("runs of {name} that failed"), 1.0, 0.0, "runs", "cargo xtask test");
        }
        if let Some(before) = before {
            // An earlier revision may have tests that fail on a busy machine, which says nothing about its time.
            before.run("cargo", &command)?;
            before.append(file, "// A line.\n")?;
            seconds.push(before.run("cargo", &command)?.0);
        }
        println!("== a line of {file} to its tests: {seconds:.1?} s");
        if let [after, before] = seconds[..] {
            let what = format!("a line of {file} to its tests, {after:.0} s before {before:.0} s");
            figures.add(&what, after / before, LINE_SHARE_MAX, "of before", &format!("cargo xtask test {name}"));
        }
    }
    Ok(())
}

/// `make quick` after a change of a leaf.
fn quick(after: &RevisionClone, figures: &mut WorkshopFigures) -> Result<()> {
    after.append(LEAF, "// Another line.\n")?;
    after.timed("make", &["quick", "ARGS=--since HEAD"])?;
    after.append(LEAF, "// A third line.\n")?;
    let seconds = after.timed("make", &["quick", "ARGS=--since HEAD"])?;
    figures.add("make quick for a leaf", seconds, QUICK_SECONDS_MAX, "s", &format!("make quick, {LEAF} changed"));
    Ok(())
}

/// The size of the program that users build.
fn program(after: &RevisionClone, figures: &mut WorkshopFigures) -> Result<()> {
    after.timed("make", &["program"])?;
    let bytes = fs::metadata(after.directory.join("target/dist/nectary"))?.len();
    #[expect(clippy::cast_precision_loss, reason = "a program's size")]
    figures.add("program", bytes as f64 / 1e6, PROGRAM_MEGABYTES_MAX, "MB", "make program");
    Ok(())
}

/// Every test of the earlier revision exists: its crate and the name of its function.
fn names(after: &RevisionClone, before: &RevisionClone, figures: &mut WorkshopFigures) -> Result<()> {
    let (after, before) = (test_names(after)?, test_names(before)?);
    let new: Vec<&(String, String)> = after.difference(&before).collect();
    let gone = before.difference(&after);
    let (moved, missing): (Vec<_>, Vec<_>) = gone.partition(|gone| new.iter().any(|new| new.1 == gone.1));
    for (package, name) in moved {
        println!("  in another crate: {package}: {name}");
    }
    for (package, name) in &missing {
        println!("  missing: {package}: {name}");
    }
    println!("== names: {} tests before, {} after", before.len(), after.len());
    #[expect(clippy::cast_precision_loss, reason = "a count of tests")]
    figures.add(
        "tests that are no longer there",
        missing.len() as f64,
        0.0,
        "tests",
        "crate and name of each function",
    );
    Ok(())
}

fn test_names(clone: &RevisionClone) -> Result<BTreeSet<(String, String)>> {
    let mut names = BTreeSet::new();
    for file in clone.git(&["ls-files", "*.rs"])?.lines() {
        let mut parts = file.split('/');
        let package = match (parts.next(), parts.next()) {
            (Some("crates"), Some(package)) => package.to_owned(),
            (Some(first), _) => first.to_owned(),
            (None, _) => continue,
        };
        let text = fs::read_to_string(clone.directory.join(file)).with_context(|| file.to_owned())?;
        names.extend(house::tests_in(&text).map(|name| (package.clone(), name.to_owned())));
    }
    Ok(names)
}

/// A failing test in each test program fails the run, and is named.
fn planted(after: &RevisionClone, figures: &mut WorkshopFigures) -> Result<()> {
    let programs = test_programs(after)?;
    for (_, path) in &programs {
        let path = path.strip_prefix(&after.directory).unwrap_or(path).display().to_string();
        after.append(&path, &format!("#[cfg(test)]\n#[test]\nfn {PLANTED}() {{\n    panic!(\"planted\")\n}}\n"))?;
    }
    let (_, succeeded, output) = after.run("cargo", &["xtask", "test", "--name", PLANTED])?;
    let named = output.lines().filter(|line| line.contains(PLANTED) && line.trim_start().starts_with("FAILED")).count();
    if succeeded {
        bail!("the run with {} planted failures passed", programs.len());
    }
    #[expect(clippy::cast_precision_loss, reason = "a handful")]
    let missed = programs.len() as f64 - named as f64;
    figures.add("planted failures that are not named", missed, 0.0, "failures", "cargo xtask test --name");
    after.git(&["checkout", "--quiet", "--force", "HEAD"])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figure_above_bound_is_short() {
        let mut figures = WorkshopFigures::default();
        figures.add("a", 2.0, 2.0, "s", "sleep 2");
        assert_eq!(figures.short, 0);
        figures.add("b", 2.1, 2.0, "s", "sleep 2");
        assert_eq!(figures.short, 1);
        assert!(figures.text.ends_with("b: 2.10 s of at most 2 (sleep 2): SHORT\n"), "{}", figures.text);
    }

    #[test]
    fn unknown_figures_are_refused() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert!(WorkshopOptions::parse(&words("--before HEAD clone")).is_ok_and(|options| !options.has("line")));
        assert!(
            WorkshopOptions::parse(&words("line nectary-proxy"))
                .is_ok_and(|options| options.crates == ["nectary-proxy"])
        );
        assert!(WorkshopOptions::parse(&words("clones")).is_err());
        assert!(WorkshopOptions::parse(&words("--before")).is_err());
    }
}
