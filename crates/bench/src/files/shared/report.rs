//! The report of a run on a shared volume: rates with their medians and quartiles, ratios of pairs, tables.
//!
//! Owns: which ratios are figures, and their targets.

use std::fmt::Write;
use std::time::Duration;

use serde::Serialize;
use serde_json::json;

use super::SharedFilesPlan;
use super::contender::{AGAIN, BARE, BASE, CLIENT, LOCAL, PEER, WITH_LOCAL_NAMES};
use super::programs::{ProgramMeasure, ProgramSample};
use crate::files::together::StepTimes;
use crate::statistics::{IntervalEstimate, paired_ratio, quartiles};
use crate::{ExperimentReport, ReportFigure, machine};

/// A volume should do this many times as much a second as JuiceFS.
const TARGET_PEER: f64 = 5.0;
/// A mount that makes and removes names itself should do this share of what the bare server does: of creates and unlinks,
/// and of stats of fresh names.
const TARGET_BARE: f64 = 0.5;
const TARGET_BARE_STAT: f64 = 0.9;
/// Its creates and unlinks a second, with one thread and with four.
const TARGET_CREATES: [(u32, f64); 2] = [(1, 5000.0), (4, 10_000.0)];
const TARGET_UNLINKS: f64 = 10_000.0;
/// A cold `ls -l` should take this many times as long as on the bare server, and git as on XFS.
const TARGET_LIST: f64 = 1.3;
const TARGET_GIT: f64 = 2.0;
/// Two hosts in two directories should create this many times as much as one.
const TARGET_TWO: f64 = 1.8;

/// The steps, in the order of the tables.
const STEPS: [&str; 3] = ["create", "stat", "unlink"];

const LEGEND: [(&str, &str); 8] = [
    (BASE, "the metadata server's host, which mounts the volume, too; twice: what the two differ by is noise"),
    (CLIENT, "a host with its own network namespace, which reaches the server over a pair of virtual devices"),
    (PEER, "metadata in SQLite, data in files, both on XFS; the kernel's caches of it off"),
    (BARE, "a FUSE server with names in memory alone, on the server's host: the limit of file systems on FUSE"),
    (LOCAL[0], "local, and not durable when a call returns"),
    (LOCAL[1], "local; files are opened O_SYNC, and the directory is flushed after each create and unlink"),
    ("volume-*-local", "the mount makes and removes names itself in a directory that it alone uses (--local-names)"),
    ("volume", "the server answers each create and unlink; the kernel shows names and attributes for some 4 seconds"),
];

/// The times of one contender with one number of threads.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct ThreadSample {
    pub contender: &'static str,
    pub threads: u32,
    pub round: usize,
    pub steps: StepTimes,
}

/// What a run has measured.
#[derive(Debug, Clone, Default)]
pub(super) struct RunSamples {
    pub threads: Vec<ThreadSample>,
    pub programs: Vec<ProgramSample>,
}

impl RunSamples {
    /// The values of a measure in each round.
    fn of(&self, contender: &str, measure: ProgramMeasure) -> Vec<f64> {
        let is_of = |one: &&ProgramSample| one.contender == contender && one.measure == measure;
        let mut found: Vec<&ProgramSample> = self.programs.iter().filter(is_of).collect();
        found.sort_by_key(|sample| sample.round);
        found.iter().map(|sample| sample.value).collect()
    }
}

/// All samples, with the rates that they imply.
struct ThreadRates<'a> {
    plan: &'a SharedFilesPlan,
    samples: &'a [ThreadSample],
}

impl ThreadRates<'_> {
    /// Steps a second in each round.
    fn of(&self, contender: &str, threads: u32, step: &str) -> Vec<f64> {
        let mut found: Vec<&ThreadSample> =
            self.samples.iter().filter(|one| one.contender == contender && one.threads == threads).collect();
        found.sort_by_key(|sample| sample.round);
        let seconds = |steps: &StepTimes| match step {
            "create" => steps.create_s,
            "stat" => steps.stat_s,
            _ => steps.unlink_s,
        };
        found.iter().map(|sample| f64::from(self.plan.files) / seconds(&sample.steps)).collect()
    }

    fn threads(&self) -> Vec<u32> {
        let mut threads: Vec<u32> = self.samples.iter().map(|sample| sample.threads).collect();
        threads.sort_unstable();
        threads.dedup();
        threads
    }
}

/// Makes the report of a run.
pub(super) fn report(plan: &SharedFilesPlan, samples: &RunSamples, took: Duration) -> ExperimentReport {
    let rates = ThreadRates { plan, samples: &samples.threads };
    let mut figures = figures(&rates);
    figures.extend(program_figures(plan, samples));
    let mut rows = Vec::new();
    for contender in &plan.contenders {
        for threads in rates.threads() {
            let mut row = json!({ "contender": contender.name, "threads": threads, "files": plan.files });
            for step in STEPS {
                row[format!("{step}_per_s")] = json!(rates.of(contender.name, threads, step));
            }
            rows.push(row);
        }
    }
    for contender in &plan.contenders {
        let found = ProgramMeasure::ALL.map(|measure| (measure, samples.of(contender.name, measure)));
        for (measure, values) in found.into_iter().filter(|one| !one.1.is_empty()) {
            let (name, unit) = (measure.name(), measure.unit());
            rows.push(json!({ "contender": contender.name, "measure": name, "unit": unit, "values": values }));
        }
    }
    let setting = json!({
        "machine": machine::describe(), "seconds": took.as_secs_f64(), "rounds": plan.rounds, "files": plan.files,
        "disk_bytes": plan.disk_bytes(), "seed": plan.options.seed, "quick": plan.options.quick,
        "not_run": plan.not_run,
    });
    let text = text(plan, &rates, samples, &figures, took);
    ExperimentReport::new("files-ncar", setting, figures, rows, text)
}

fn figures(rates: &ThreadRates<'_>) -> Vec<ReportFigure> {
    let mut figures = Vec::new();
    let figure = |name: String, unit, found, target: Option<f64>| {
        ReportFigure::new(name, unit, found).at_least(target).judged(is_judged(rates.plan))
    };
    let ratios = [
        (AGAIN, BASE, None),
        (BASE, PEER, Some(TARGET_PEER)),
        (CLIENT, PEER, Some(TARGET_PEER)),
        (CLIENT, BASE, None),
        (BASE, LOCAL[0], None),
        (BASE, LOCAL[1], None),
        (CLIENT, LOCAL[0], None),
        (CLIENT, LOCAL[1], None),
        (WITH_LOCAL_NAMES[0], BASE, None),
        (WITH_LOCAL_NAMES[1], CLIENT, None),
        (WITH_LOCAL_NAMES[0], PEER, Some(TARGET_PEER)),
        (WITH_LOCAL_NAMES[1], PEER, Some(TARGET_PEER)),
        (WITH_LOCAL_NAMES[0], BARE, None),
        (BASE, BARE, None),
        (WITH_LOCAL_NAMES[0], LOCAL[0], None),
        (WITH_LOCAL_NAMES[1], LOCAL[0], None),
    ];
    for (own, other, target) in ratios {
        for threads in rates.threads() {
            for step in STEPS {
                let (above, below) = (rates.of(own, threads, step), rates.of(other, threads, step));
                if !below.is_empty() && above.len() == below.len() {
                    let name = format!("{step}.threads{threads}.{own}.over_{other}");
                    let of_bare = if step == "stat" { TARGET_BARE_STAT } else { TARGET_BARE };
                    let target = target.or((own == WITH_LOCAL_NAMES[0] && other == BARE).then_some(of_bare));
                    figures.push(figure(name, "x", paired_ratio(&above, &below), target));
                }
            }
        }
    }
    for contender in &rates.plan.contenders {
        for threads in rates.threads() {
            for step in STEPS {
                let name = format!("{step}.threads{threads}.{}", contender.name);
                let found = quartiles(&rates.of(contender.name, threads, step));
                let target = match step {
                    "create" => TARGET_CREATES.iter().find(|target| target.0 == threads).map(|target| target.1),
                    "unlink" => Some(TARGET_UNLINKS),
                    _ => None,
                };
                figures.push(figure(name, "1/s", found, target.filter(|_| contender.name == WITH_LOCAL_NAMES[0])));
            }
        }
    }
    figures
}

/// Whether the run was long enough for verdicts.
fn is_judged(plan: &SharedFilesPlan) -> bool {
    !plan.options.quick && plan.rounds >= 3
}

/// The ratios of programs, with their targets, and the values.
fn program_figures(plan: &SharedFilesPlan, samples: &RunSamples) -> Vec<ReportFigure> {
    let [local, local_client] = WITH_LOCAL_NAMES;
    let (at_most, at_least) = (true, false);
    let mut figures = Vec::new();
    let mut ratio = |of: (&str, ProgramMeasure), over: (&str, ProgramMeasure), target: Option<(f64, bool)>| {
        let (above, below) = (samples.of(of.0, of.1), samples.of(over.0, over.1));
        if above.is_empty() || above.len() != below.len() {
            return;
        }
        let other = if of.0 == over.0 { over.1.name() } else { over.0 };
        let name = format!("{}.{}.over_{other}", of.1.name(), of.0);
        let figure = ReportFigure::new(name, "x", paired_ratio(&above, &below)).judged(is_judged(plan));
        figures.push(match target {
            Some((most, true)) => figure.at_most(most),
            Some((least, false)) => figure.at_least(least),
            None => figure,
        });
    };
    for own in [local, BASE] {
        let target = |value, is_most| (own == local).then_some((value, is_most));
        for (measure, other, target) in [
            (ProgramMeasure::List, BARE, target(TARGET_LIST, at_most)),
            (ProgramMeasure::StatStale, BARE, target(TARGET_BARE, at_least)),
            (ProgramMeasure::GitClone, LOCAL[0], target(TARGET_GIT, at_most)),
            (ProgramMeasure::GitStatus, LOCAL[0], target(TARGET_GIT, at_most)),
            (ProgramMeasure::GitStatusLater, LOCAL[0], target(TARGET_GIT, at_most)),
            (ProgramMeasure::List, PEER, None),
            (ProgramMeasure::GitClone, PEER, None),
            (ProgramMeasure::GitStatus, PEER, None),
        ] {
            ratio((own, measure), (other, measure), target);
        }
    }
    for (own, plain) in [(local, BASE), (local_client, CLIENT)] {
        let one_directory = ProgramMeasure::OneDirectory;
        ratio((own, one_directory), (plain, one_directory), Some((1.0, at_least)));
        ratio((own, ProgramMeasure::TwoDirectories), (own, ProgramMeasure::OneHost), Some((TARGET_TWO, at_least)));
    }
    for contender in &plan.contenders {
        for measure in ProgramMeasure::ALL {
            let values = samples.of(contender.name, measure);
            if !values.is_empty() {
                let name = format!("{}.{}", measure.name(), contender.name);
                figures.push(ReportFigure::new(name, measure.unit(), quartiles(&values)).judged(false));
            }
        }
    }
    figures
}

/// The table of programs: a row a contender, a column a measure, medians.
fn program_table(plan: &SharedFilesPlan, samples: &RunSamples) -> String {
    let mut text = String::new();
    if samples.programs.is_empty() {
        return text;
    }
    let _ = writeln!(
        text,
        "\nPrograms: medians; `ls -l` of {} names, git with 5,000 files in seconds; the others a second",
        plan.listed()
    );
    let heads = ["ls -l", "stale stat", "clone", "status", "after 5 s", "one host", "one dir.", "two dirs"];
    let _ = write!(text, "  {:20}", "");
    heads.iter().for_each(|head| _ = write!(text, " {head:>11}"));
    text.push('\n');
    for contender in &plan.contenders {
        let values = ProgramMeasure::ALL.map(|measure| (measure, samples.of(contender.name, measure)));
        if values.iter().all(|one| one.1.is_empty()) {
            continue;
        }
        let _ = write!(text, "  {:20}", contender.name);
        for (measure, values) in values {
            let digits = if measure.unit() == "s" { 3 } else { 0 };
            let _ = match values.is_empty() {
                true => write!(text, " {:>11}", "-"),
                false => write!(text, " {:>11.digits$}", quartiles(&values).value),
            };
        }
        text.push('\n');
    }
    text
}

fn text(
    plan: &SharedFilesPlan,
    rates: &ThreadRates<'_>,
    samples: &RunSamples,
    figures: &[ReportFigure],
    took: Duration,
) -> String {
    let mut text = format!("bench files --seed ncar: {}\n", machine::describe());
    let _ = writeln!(
        text,
        "{} empty files on a disk of {} MiB; {} round(s); took {:.0} s; each thread has its own directory",
        plan.files,
        plan.disk_bytes() >> 20,
        plan.rounds,
        took.as_secs_f64()
    );
    let _ = writeln!(text, "times are real, and neighbours on the machine change them: compare within this run");
    for line in &plan.not_run {
        let _ = writeln!(text, "{line}");
    }
    for threads in rates.threads() {
        let _ = writeln!(text, "\nA second, with {threads} thread(s): median (quartiles)");
        let _ = writeln!(text, "  {:20} {:>26} {:>26} {:>26}", "", "creates", "stats", "unlinks");
        for contender in &plan.contenders {
            let _ = write!(text, "  {:20}", contender.name);
            for step in STEPS {
                let IntervalEstimate { value, low, high } = quartiles(&rates.of(contender.name, threads, step));
                let _ = write!(text, " {:>26}", format!("{value:.0} ({low:.0} to {high:.0})"));
            }
            text.push('\n');
        }
    }
    text.push_str(&program_table(plan, samples));
    let verdicts = if is_judged(plan) { "" } else { "; no verdicts" };
    let _ = writeln!(text, "\nRatios of pairs (how many times as many a second, or as long; 95 % interval){verdicts}");
    for figure in figures.iter().filter(|figure| figure.unit == "x" || figure.target.is_some()) {
        // Local XFS may be thousands of times as fast.
        let digits = if figure.value < 0.1 { 5 } else { 2 };
        text.push_str(&figure.line(58, digits));
    }
    let _ = writeln!(text, "\nContenders");
    for (name, meaning) in LEGEND {
        let _ = writeln!(text, "  {name:15} {meaning}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::tests::options;
    use super::super::{SharedFilesOptions, SharedFilesPlan};
    use super::*;

    /// A run in which each contender takes `seconds` for every step.
    fn reported(seconds: impl Fn(&str) -> f64) -> ExperimentReport {
        let juicefs = Some(std::path::PathBuf::from("/bin/sh"));
        let plan = SharedFilesPlan::new(SharedFilesOptions { files: Some(100), rounds: Some(3), juicefs, ..options() })
            .unwrap();
        let mut samples = RunSamples::default();
        for round in 0..3 {
            for contender in &plan.contenders {
                for threads in [1, 4] {
                    let time = seconds(contender.name) * (1.0 + round as f64);
                    let steps = StepTimes { create_s: time, stat_s: time / 10.0, unlink_s: time };
                    samples.threads.push(ThreadSample { contender: contender.name, threads, round, steps });
                }
            }
        }
        report(&plan, &samples, Duration::from_secs(61))
    }

    #[test]
    fn ratios_paired_rates_have_quartiles() {
        let report = reported(|name| if name == PEER { 2.0 } else { 1.0 });
        let figure = |name: &str| report.figures.iter().find(|figure| figure.name == name).unwrap();
        let peer = figure("create.threads1.volume-server.over_juicefs");
        assert_eq!((peer.value, peer.low, peer.high, peer.target, peer.is_short()), (2.0, 2.0, 2.0, Some(5.0), true));
        // 100 files in 1, 2 and 3 seconds.
        let rate = figure("create.threads4.volume-client");
        assert_eq!((rate.value, &*rate.unit), (50.0, "1/s"));
        assert!(rate.low > 33.0 && rate.low < 50.0 && rate.high > 50.0 && rate.high < 100.0, "{rate:?}");
        assert!(report.figures[0].name.contains("volume-server-again.over_volume-server"), "the noise is first");
        assert!(report.rows.len().is_multiple_of(2) && report.rows.len() >= 2 * 4, "{}", report.rows.len());
        assert_eq!(report.rows[0]["stat_per_s"][0], json!(1000.0));
    }

    /// Ratios of programs have the right sides and targets, and a short one makes the run short.
    #[test]
    fn program_ratios_have_targets() {
        let options = SharedFilesOptions { files: Some(100), rounds: Some(3), has_local_names: true, ..options() };
        let plan = SharedFilesPlan::new(SharedFilesOptions { has_programs: true, ..options }).unwrap();
        let local = WITH_LOCAL_NAMES[0];
        let reported = |list_s: f64, two: f64| {
            let mut samples = RunSamples::default();
            for round in 0..3 {
                let mut add = |contender, measure, value| {
                    samples.programs.push(ProgramSample { contender, round, measure, value });
                };
                add(local, ProgramMeasure::List, list_s);
                add(BARE, ProgramMeasure::List, 2.0);
                add(local, ProgramMeasure::OneHost, 100.0);
                add(local, ProgramMeasure::TwoDirectories, two);
            }
            report(&plan, &samples, Duration::ZERO)
        };
        let good = reported(2.5, 190.0);
        let of = |name: &str| good.figures.iter().find(|figure| figure.name == name).unwrap();
        let list = of("ls.volume-server-local.over_bare");
        assert_eq!((list.value, list.target, list.is_at_most, list.is_short()), (1.25, Some(1.3), true, false));
        let two = of("create-two-directories.volume-server-local.over_create-one-host");
        assert_eq!((two.value, two.target, two.is_at_most), (1.9, Some(1.8), false));
        assert!(good.text().contains("`ls -l` of 500 names") && !good.is_short(), "{}", good.text());
        assert!(reported(2.7, 190.0).is_short() && reported(2.5, 170.0).is_short());
    }

    /// The text has a table for each number of threads, and names the contenders that do not run.
    #[test]
    fn shared_text_has_table_per_threads() {
        let text = reported(|_| 1.0).text().to_owned();
        for part in ["with 1 thread(s)", "with 4 thread(s)", "100 empty files", "took 61 s", "target 5"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(text.lines().all(|line| line.len() < 130) && !text.contains("NaN"), "{text}");
        let plan = SharedFilesPlan::new(options()).unwrap();
        let sample = |contender| ThreadSample { contender, threads: 1, round: 0, steps: StepTimes::default() };
        let without = RunSamples { threads: vec![sample(BASE), sample(AGAIN)], programs: Vec::new() };
        let without = report(&plan, &without, Duration::ZERO);
        assert!(without.text().contains("juicefs: NOT RUN: "), "{}", without.text());
    }
}
