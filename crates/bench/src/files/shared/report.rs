//! The report of a run on a shared volume: rates with their medians and quartiles, ratios of pairs, tables.
//!
//! Owns: which ratios are figures. None has a verdict yet, because rounds are few.

use std::fmt::Write;
use std::time::Duration;

use serde::Serialize;
use serde_json::json;

use super::SharedFilesPlan;
use super::contender::{AGAIN, BARE, BASE, CLIENT, LOCAL, PEER, WITH_LOCAL_NAMES};
use crate::files::together::StepTimes;
use crate::statistics::{IntervalEstimate, paired_ratio, quartiles};
use crate::{ExperimentReport, ReportFigure, machine};

/// A volume should do this many times as much a second as JuiceFS.
const TARGET_PEER: f64 = 5.0;

/// A volume with one thread should do these shares of what a bare FUSE server does: creates and unlinks, and stats.
const TARGET_BARE: f64 = 0.5;
const TARGET_BARE_STATS: f64 = 0.9;

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
    ("volume", "the server answers each create and unlink; the kernel shows names and attributes for a second"),
];

/// The times of one contender with one number of threads.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct ThreadSample {
    pub contender: &'static str,
    pub threads: u32,
    pub round: usize,
    pub steps: StepTimes,
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
pub(super) fn report(plan: &SharedFilesPlan, samples: &[ThreadSample], took: Duration) -> ExperimentReport {
    let rates = ThreadRates { plan, samples };
    let figures = figures(&rates);
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
    let setting = json!({
        "machine": machine::describe(), "seconds": took.as_secs_f64(), "rounds": plan.rounds, "files": plan.files,
        "disk_bytes": plan.disk_bytes(), "seed": plan.options.seed, "quick": plan.options.quick,
        "not_run": plan.not_run,
    });
    let text = text(plan, &rates, &figures, took);
    ExperimentReport::new("files-ncar", setting, figures, rows, text)
}

fn figures(rates: &ThreadRates<'_>) -> Vec<ReportFigure> {
    let mut figures = Vec::new();
    let figure = |name: String, unit, found, target: Option<f64>| {
        ReportFigure::new(name, unit, found).at_least(target).judged(false)
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
                    let target = match (other, step) {
                        (BARE, "stat") if threads == 1 => Some(TARGET_BARE_STATS),
                        (BARE, _) if threads == 1 => Some(TARGET_BARE),
                        _ => target,
                    };
                    let name = format!("{step}.threads{threads}.{own}.over_{other}");
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
                figures.push(figure(name, "1/s", found, None));
            }
        }
    }
    figures
}

fn text(plan: &SharedFilesPlan, rates: &ThreadRates<'_>, figures: &[ReportFigure], took: Duration) -> String {
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
    let _ = writeln!(text, "\nRatios of pairs (how many times as many a second; 95 % interval); no verdicts");
    for ReportFigure { name, value, low, high, target, .. } in figures.iter().filter(|figure| figure.unit == "x") {
        let target = target.map(|target| format!("  target {target}")).unwrap_or_default();
        // Local XFS may be thousands of times as fast.
        let digits = if *value < 0.1 { 5 } else { 2 };
        let _ = writeln!(text, "  {name:58} {value:8.digits$} x ({low:.digits$} to {high:.digits$}){target}");
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
        let mut samples = Vec::new();
        for round in 0..3 {
            for contender in &plan.contenders {
                for threads in [1, 4] {
                    let time = seconds(contender.name) * (1.0 + round as f64);
                    let steps = StepTimes { create_s: time, stat_s: time / 10.0, unlink_s: time };
                    samples.push(ThreadSample { contender: contender.name, threads, round, steps });
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
        assert_eq!((peer.value, peer.low, peer.high, peer.target, peer.is_judged), (2.0, 2.0, 2.0, Some(5.0), false));
        // 100 files in 1, 2 and 3 seconds.
        let rate = figure("create.threads4.volume-client");
        assert_eq!((rate.value, &*rate.unit), (50.0, "1/s"));
        assert!(rate.low > 33.0 && rate.low < 50.0 && rate.high > 50.0 && rate.high < 100.0, "{rate:?}");
        assert!(report.figures[0].name.contains("volume-server-again.over_volume-server"), "the noise is first");
        assert!(report.rows.len().is_multiple_of(2) && report.rows.len() >= 2 * 4, "{}", report.rows.len());
        assert_eq!(report.rows[0]["stat_per_s"][0], json!(1000.0));
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
        let without = report(&plan, &[sample(BASE), sample(AGAIN)], Duration::ZERO);
        assert!(without.text().contains("juicefs: NOT RUN: "), "{}", without.text());
    }
}
