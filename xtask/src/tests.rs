//! Runs all tests, crate by crate, each crate within its time budget.
//!
//! Owns: the order, the times and the counts. The crates of the lowest floors come first, so that a bug first fails the
//! tests of the crate that has it, and not those of a crate that depends on this crate. Beside them run the
//! crates whose tests mostly wait.

use std::process::Command;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::binaries::{BuiltProgram, BuiltPrograms};
use crate::budgets::{self, DOCTESTS, KILL_FACTOR};
use crate::checks;
use crate::libtest::{TestCounts, is_told};
use crate::load::LoadMeter;
use crate::metadata::{Package, Workspace, cargo};
use crate::process::{self, ChildEnd};
use crate::quick;
use crate::report::TestReport;

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

/// Crates whose tests run beside those of all others, since they mostly wait: for what they have started, and for
/// deadlines. Those that mount, or make mount namespaces with copies of all mounts, are together, one after another.
const WAITING: &[&[&str]] = &[&["nectary-attach", "nectary-fuse", "nectary-trace", "nectary-e2e"], &["nectary-ram"]];

/// The crates each of whose modules of tests is a process of its own. Their tests measure memory or time (`buffer`,
/// `e2e`), plant bugs or shorten waits for the whole process (`ram`, `sim`), mount and kill what they have started
/// (`attach`, `e2e`, `trace`), or send themselves a signal (`host`).
const PROCESS_PER_MODULE: &[&str] =
    &["nectary-attach", "nectary-buffer", "nectary-e2e", "nectary-host", "nectary-ram", "nectary-sim", "nectary-trace"];

/// The time of a process that takes longer than this is shown.
const LONG: Duration = Duration::from_secs(3);

/// The longest time of `ci/setup test`.
const SETUP_LIMIT: Duration = Duration::from_secs(1800);

/// How long its failure is waited for before anything else begins.
const SETUP_EARLY: Duration = Duration::from_secs(1);

/// The longest time in which a test program lists its tests.
const LIST_LIMIT: Duration = Duration::from_secs(60);

/// The tests to run.
#[derive(Debug, Default)]
pub struct TestOptions {
    /// The crates; all of them if it is empty.
    pub crates: Vec<String>,
    /// A part of their names.
    pub name: Option<String>,
    /// Whether `ci/setup test` runs during the checks and the build.
    pub has_setup: bool,
}

impl TestOptions {
    /// Reads the command line.
    ///
    /// *Errors*: `--name` without a text.
    pub fn parse(arguments: &[String]) -> Result<TestOptions> {
        let mut options = TestOptions::default();
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            match argument.as_str() {
                "--name" => options.name = Some(rest.next().context("--name needs a part of a test's name")?.clone()),
                "--setup" => options.has_setup = true,
                package => options.crates.push(package.to_owned()),
            }
        }
        Ok(options)
    }
}

/// Runs the checks and all tests, or only the tests that `options` choose; returns whether all passed.
pub fn command(options: &TestOptions) -> Result<bool> {
    let crates = &options.crates;
    let workspace = Workspace::load()?;
    let members = workspace.members();
    if let Some(unknown) = crates.iter().find(|name| !members.iter().any(|member| member.name == **name)) {
        let known: Vec<&str> = members.iter().map(|member| member.name.as_str()).collect();
        bail!("there is no crate {unknown}; there are {}", known.join(", "));
    }
    let mut report = TestReport::default();
    let setup = options.has_setup.then(|| setup(&workspace));
    // A user who may not install packages is told at once.
    let began = Instant::now();
    while setup.as_ref().is_some_and(|setup| !setup.is_finished()) && began.elapsed() < SETUP_EARLY {
        std::thread::sleep(Duration::from_millis(20));
    }
    let setup = match setup {
        Some(setup) if setup.is_finished() => match setup_ended(setup) {
            Ok(()) => None,
            Err(words) => bail!(words),
        },
        setup => setup,
    };
    if crates.is_empty() && options.name.is_none() {
        checks::run(&workspace, &mut report);
    }
    run(options, &workspace, setup, &mut report);
    report.judge_time();
    print!("{}", report.summary());
    Ok(report.is_good())
}

/// Runs the checks and the tests of what differs from the revision `since`; returns whether all passed.
pub fn quick(since: Option<&str>) -> Result<bool> {
    let workspace = Workspace::load()?;
    let choice = quick::choose(&workspace, since)?;
    let names = if choice.crates.is_empty() { "no crate".to_owned() } else { choice.crates.join(", ") };
    println!("== quick: {names}");
    let mut report = TestReport::default();
    checks::run_some(&workspace, &choice.crates, &mut report);
    if !choice.crates.is_empty() {
        run(&TestOptions { crates: choice.crates, ..TestOptions::default() }, &workspace, None, &mut report);
    }
    for name in &choice.left_out {
        println!("left out: {name}: its tests take up to {} s; make test runs them", budgets::seconds(name));
    }
    report.judge_time();
    print!("{}", report.summary());
    Ok(report.is_good())
}

/// Installs what the tests need, which waits for a network more than it computes.
fn setup(workspace: &Workspace) -> JoinHandle<Result<ChildEnd>> {
    let mut command = Command::new(workspace.root.join("ci/setup"));
    command.arg("test");
    std::thread::spawn(move || process::run(&mut command, SETUP_LIMIT, process::shown))
}

/// Waits for the end of [`setup`]; the error is what failed.
fn setup_ended(setup: JoinHandle<Result<ChildEnd>>) -> std::result::Result<(), String> {
    match setup.join() {
        Ok(Ok(ended)) if ended.success => Ok(()),
        Ok(Ok(ended)) => Err(format!("ci/setup test: {}", ended.how)),
        Ok(Err(error)) => Err(format!("ci/setup test: {error:#}")),
        Err(_) => Err("ci/setup test: the thread that runs it ended with a panic".to_owned()),
    }
}

/// Builds and runs the chosen tests, once `setup` has ended; all of them include the examples in doc comments.
fn run(
    options: &TestOptions,
    workspace: &Workspace,
    setup: Option<JoinHandle<Result<ChildEnd>>>,
    report: &mut TestReport,
) {
    let crates = &options.crates;
    let binaries = match BuiltPrograms::build(workspace, crates) {
        Ok(binaries) => binaries,
        Err(error) => return report.failed(format!("{error:#}")),
    };
    match binaries.compiled_again(workspace) {
        Ok(again) if again.is_empty() => report.passed(1),
        Ok(again) => report.failed(format!("a build from a shell compiles again: {}", again.join(", "))),
        Err(error) => report.failed(format!("{error:#}")),
    }
    if let Some(Err(words)) = setup.map(setup_ended) {
        return report.failed(words);
    }
    let mut members = workspace.members();
    members.retain(|member| crates.is_empty() || crates.contains(&member.name));
    members.sort_by_key(|member| ORDER.iter().position(|name| *name == member.name).unwrap_or(ORDER.len()));
    let (started, meter) = (Instant::now(), LoadMeter::start());
    let test = TestRun { part: options.name.as_deref(), binaries: &binaries, workspace };
    let lane = |names: &[&str], report: &mut TestReport| {
        let members = members.iter().filter(|member| names.contains(&member.name.as_str()));
        members.for_each(|member| test.one(member, report));
    };
    std::thread::scope(|scope| {
        let waiting: Vec<_> = WAITING
            .iter()
            .map(|names| {
                let lane = &lane;
                scope.spawn(move || {
                    let mut report = TestReport::default();
                    lane(names, &mut report);
                    report
                })
            })
            .collect();
        let waits = |name: &str| WAITING.iter().any(|names| names.contains(&name));
        let others: Vec<&str> = members.iter().map(|member| member.name.as_str()).filter(|name| !waits(name)).collect();
        lane(&others, report);
        if crates.is_empty() && options.name.is_none() {
            doctests(workspace, report);
        }
        for (handle, names) in waiting.into_iter().zip(WAITING) {
            match handle.join() {
                Ok(results) => report.add(results),
                Err(_) => report.failed(format!("{}: the run of these tests ended with a panic", names.join(", "))),
            }
        }
    });
    report.took(started.elapsed(), LoadMeter::share_of_others(meter));
}

/// One process of tests.
struct TestProcess<'a> {
    member: &'a Package,
    binary: &'a BuiltProgram,
    name: String,
    /// The arguments that choose its tests.
    arguments: Vec<String>,
}

/// What all processes of a run share.
struct TestRun<'a> {
    /// The part of the names of the tests to run.
    part: Option<&'a str>,
    binaries: &'a BuiltPrograms,
    workspace: &'a Workspace,
}

impl TestRun<'_> {
    /// Runs the tests of a crate, one process after another.
    fn one(&self, member: &Package, report: &mut TestReport) {
        let meter = LoadMeter::start();
        let processes = self.processes(member, report);
        let mut taken = Duration::ZERO;
        for process in &processes {
            taken += self.process(process, report);
        }
        if !processes.is_empty() {
            self.told(member, taken, meter, report);
        }
    }

    /// Shows and records how long the processes of a crate took together.
    fn told(&self, member: &Package, taken: Duration, meter: Option<LoadMeter>, report: &mut TestReport) {
        let budget_seconds = budgets::seconds(&member.name);
        println!("== {}: {:.1} s of {budget_seconds} s", member.name, taken.as_secs_f64());
        report.timed(&member.name, taken, LoadMeter::share_of_others(meter), budget_seconds);
    }

    /// The processes of a crate's tests.
    fn processes<'b>(&'b self, member: &'b Package, report: &mut TestReport) -> Vec<TestProcess<'b>> {
        let mut processes = Vec::new();
        for binary in self.binaries.tests_of(member) {
            let name = format!("{} {}", member.name, binary.name);
            let is_divided = binary.is_from_outside && PROCESS_PER_MODULE.contains(&member.name.as_str());
            match modules(binary, is_divided, self.part, self.binaries, self.workspace) {
                Ok(modules) => processes.extend(modules.into_iter().map(|(module, arguments)| TestProcess {
                    member,
                    binary,
                    name: format!("{name} {module}").trim_end().to_owned(),
                    arguments,
                })),
                Err(error) => report.failed(format!("{name}: {error:#}")),
            }
        }
        processes
    }

    /// Runs one process, and returns how long it took.
    fn process(&self, process: &TestProcess, report: &mut TestReport) -> Duration {
        let (name, started) = (&process.name, Instant::now());
        println!("== {name}");
        let mut command = self.binaries.command(process.binary, self.workspace);
        command.arg("--show-output").args(&process.arguments);
        let limit = Duration::from_secs(budgets::seconds(&process.member.name) * KILL_FACTOR);
        let ended = process::run(&mut command, limit, is_told);
        let taken = started.elapsed();
        if taken >= LONG {
            println!("== {name}: {:.1} s", taken.as_secs_f64());
        }
        count(name, ended, report);
        taken
    }
}

/// The processes in which a test program runs: for each module, the arguments that choose its tests; one with `part`
/// alone if it is not divided.
fn modules(
    binary: &BuiltProgram,
    is_divided: bool,
    part: Option<&str>,
    binaries: &BuiltPrograms,
    workspace: &Workspace,
) -> Result<Vec<(String, Vec<String>)>> {
    if !is_divided {
        return Ok(vec![(String::new(), part.map(str::to_owned).into_iter().collect())]);
    }
    let mut command = binaries.command(binary, workspace);
    let ended = process::run(command.args(["--list", "--format", "terse"]).args(part), LIST_LIMIT, process::silent)?;
    if !ended.success {
        bail!("it does not list its tests: {}", ended.how);
    }
    Ok(by_module(&ended.output))
}

/// Divides a list of tests by their modules.
fn by_module(list: &str) -> Vec<(String, Vec<String>)> {
    let mut modules: Vec<(String, Vec<String>)> = Vec::new();
    for test in list.lines().filter_map(|line| line.strip_suffix(": test")) {
        let module = test.rsplit_once("::").map_or("", |parts| parts.0);
        match modules.iter_mut().find(|known| known.0 == module) {
            Some(known) => known.1.push(test.to_owned()),
            None => modules.push((module.to_owned(), vec!["--exact".to_owned(), test.to_owned()])),
        }
    }
    modules
}

fn doctests(workspace: &Workspace, report: &mut TestReport) {
    println!("== {DOCTESTS}");
    let mut command = cargo();
    command.current_dir(&workspace.root).args([
        "test",
        "--release",
        "--workspace",
        "--doc",
        "--quiet",
        "--no-fail-fast",
    ]);
    command.args(["--", "--show-output"]);
    let budget_seconds = budgets::seconds(DOCTESTS);
    let (started, meter) = (Instant::now(), LoadMeter::start());
    let ended = process::run(&mut command, Duration::from_secs(budget_seconds * KILL_FACTOR), is_told);
    count(DOCTESTS, ended, report);
    report.timed(DOCTESTS, started.elapsed(), LoadMeter::share_of_others(meter), budget_seconds);
}

/// Counts a test program's results. A program that failed without a failed test (it crashed, hung or did not start)
/// counts as a failure.
fn count(name: &str, ended: Result<ChildEnd>, report: &mut TestReport) {
    match ended {
        Ok(ended) => {
            let counts = TestCounts::parse(&ended.output);
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

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn each_module_is_one_process() {
        let list = "a::first: test\nb::inner::second: test\na::third: test\nalone: test\nc::d: benchmark\n\n4 tests, 1 benchmark\n";
        let modules = by_module(list);
        let expected = [
            ("a", &["--exact", "a::first", "a::third"][..]),
            ("b::inner", &["--exact", "b::inner::second"]),
            ("", &["--exact", "alone"]),
        ];
        assert_eq!(modules.len(), expected.len());
        for ((module, tests), (expected, names)) in modules.iter().zip(expected) {
            assert_eq!(
                (module.as_str(), tests.iter().map(String::as_str).collect::<Vec<_>>().as_slice()),
                (expected, names)
            );
        }
    }
}
