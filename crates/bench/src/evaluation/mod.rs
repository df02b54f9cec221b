//! The evaluation: all experiments in one directory, one report over them, and what follows from it.
//!
//! Owns: the directory. It has a JSON file for each experiment, which is the whole state: `bench all` runs what has no
//! file yet, and everything else is drawn from the files alone. A file is complete or not there, and a finished one
//! never changes. Leaves to others: the experiments, and pictures (`drawing`).
//!
//! | file | what is in it |
//! |---|---|
//! | `steps`, `run` | the experiments of a whole run; running them, and going on after SIGKILL |
//! | `seeds` | the tables and figures of the seed documents, with their values |
//! | `page`, `sections`, `proxy_tables`, `losses` | the report as one HTML file |
//! | `claims`, `checks` | what the seed documents claim, and what the measurements say of it |
//! | `compare` | two evaluations beside each other |
//! | `targets`, `design` | the figures of the design pages: target, measured, state |

mod checks;
mod claims;
mod compare;
mod design;
mod losses;
mod page;
mod proxy_tables;
mod run;
mod sections;
mod seeds;
mod steps;
mod targets;
#[cfg(test)]
mod tests;

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Error, ExperimentErrorKind, ExperimentReport, ReportFigure};

pub use claims::{ClaimVerdict, JudgedClaim, claims, claims_text};
pub use compare::{ComparedFigure, FigureComparison, compare, compared_text};
pub use page::page;
pub use run::{AllOptions, PROGRESS_LINES, progress_line, run};
pub use seeds::{DrawnItem, SeedItem, drawn_items, seed_items};
pub use steps::{EVALUATION_STEPS, EvaluationStep};
pub use targets::{FigureState, StatedFigure, stated_figures, stated_text};

/// The name of the report in its directory.
pub const PAGE_NAME: &str = "report.html";
/// The member of an experiment's JSON that says how it ran.
const RUN: &str = "run";

/// The experiments of this command, each with its subject and its approximate duration.
pub const EXPERIMENTS: [(&str, &str, &str); 2] = [
    ("bench all --report DIR --quick", "a look at everything, as one report, without verdicts", "15 minutes"),
    (
        "bench all --report DIR",
        "every experiment at a size for two cores, as one report; may be interrupted",
        "2 hours",
    ),
];

/// How an experiment of an evaluation ran.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunNote {
    /// The command.
    pub command: String,
    /// How long it took. *Units*: seconds.
    pub took_s: f64,
    /// The load of the machine before it began.
    pub load: Option<f64>,
    /// Whether it was a quick run, which gives no verdicts.
    pub is_quick: bool,
    /// The version and the commit of the program.
    pub version: String,
    /// The commit of the current directory, as `git describe --always --dirty` says it; empty outside of a repository.
    pub commit: String,
    /// Why it has no results; `None` if it has.
    pub not_run: Option<String>,
    /// Its tables, as it printed them.
    pub text: String,
}

/// An evaluation: the experiments in a directory.
#[derive(Debug, Clone, Default)]
pub struct Evaluation {
    /// The experiments, first those of [`EVALUATION_STEPS`] in order, then others by name.
    pub experiments: Vec<ExperimentReport>,
}

impl Evaluation {
    /// Reads the JSON files of a directory, or one JSON file.
    ///
    /// *Errors*: [`ExperimentErrorKind::Missing`] if there is none; [`ExperimentErrorKind::ResourceUsage`] if a file is not an experiment's.
    pub fn read(path: &Path) -> Result<Evaluation, Error> {
        let failed = |error| match path.exists() {
            true => Error::failed(path.display(), error),
            false => Error::new(ExperimentErrorKind::Missing, format!("{}: no such directory or file", path.display())),
        };
        let mut experiments = Vec::new();
        if path.is_file() {
            experiments.push(read_report(path)?);
            return Ok(Evaluation { experiments });
        }
        let mut paths: Vec<PathBuf> = Vec::new();
        for entry in fs::read_dir(path).map_err(failed)? {
            let path = entry.map_err(|error| Error::failed(path.display(), error))?.path();
            let is_hidden = path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
            if !is_hidden && path.extension().is_some_and(|end| end == "json") {
                paths.push(path);
            }
        }
        paths.sort();
        for path in paths {
            experiments.push(read_report(&path)?);
        }
        if experiments.is_empty() {
            let message = format!("{}: no experiment has a JSON file there", path.display());
            return Err(Error::new(ExperimentErrorKind::Missing, message));
        }
        let place = |name: &str| EVALUATION_STEPS.iter().position(|step| step.name == name);
        experiments.sort_by_key(|one| (place(&one.experiment).unwrap_or(usize::MAX), one.experiment.clone()));
        Ok(Evaluation { experiments })
    }

    /// An experiment that ran.
    pub fn get(&self, name: &str) -> Option<&ExperimentReport> {
        self.experiments.iter().find(|one| one.experiment == name && !is_not_run(one))
    }

    /// Why an experiment has no results.
    pub fn why_not(&self, name: &str) -> String {
        let found = self.experiments.iter().find(|one| one.experiment == name);
        found.and_then(|one| note(one).not_run).unwrap_or_else(|| "it is not in this directory".to_owned())
    }

    /// All figures, each with its experiment.
    pub fn figures(&self) -> impl Iterator<Item = (&ExperimentReport, &ReportFigure)> {
        self.experiments.iter().flat_map(|report| report.figures.iter().map(move |figure| (report, figure)))
    }

    /// The figure of this name in an experiment.
    pub fn figure(&self, experiment: &str, name: &str) -> Option<&ReportFigure> {
        self.get(experiment)?.figures.iter().find(|figure| figure.name == name)
    }

    /// Whether any experiment was a quick run.
    pub fn is_quick(&self) -> bool {
        self.experiments.iter().any(is_quick)
    }
}

/// How an experiment ran; a note without a command if nothing is known.
pub fn note(report: &ExperimentReport) -> RunNote {
    report.more.get(RUN).and_then(|note| serde_json::from_value(note.clone()).ok()).unwrap_or_default()
}

/// Whether an experiment has no results.
pub fn is_not_run(report: &ExperimentReport) -> bool {
    note(report).not_run.is_some()
}

/// Whether an experiment was a quick run.
fn is_quick(report: &ExperimentReport) -> bool {
    note(report).is_quick || report.setting["quick"] == Value::Bool(true)
}

fn read_report(path: &Path) -> Result<ExperimentReport, Error> {
    let text = fs::read_to_string(path).map_err(|error| Error::failed(path.display(), error))?;
    serde_json::from_str(&text).map_err(|error| {
        let message =
            format!("{}: not the JSON of an experiment ({error}): remove it, or name another path", path.display());
        Error::new(ExperimentErrorKind::Usage, message)
    })
}

/// Writes a file as a whole: after a crash at any moment there is the old one or the new one, on the disk.
pub fn replace_file(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let part = part_of(path);
    let written = File::create(&part).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&part, path)?;
        File::open(folder)?.sync_all()
    });
    written.map_err(|error| Error::failed(path.display(), error))
}

/// The file that takes the place of another one when it is complete.
fn part_of(path: &Path) -> PathBuf {
    path.with_file_name(format!(".{}.part", path.file_name().unwrap_or_default().to_string_lossy()))
}

/// The text of a number with a fitting number of digits.
fn number(value: f64) -> String {
    match value.abs() {
        _ if !value.is_finite() => "-".to_owned(),
        size if size >= 1000.0 || value == value.trunc() => grouped(value),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

/// A whole number in groups of three digits.
fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 && digits != "0" { format!("-{text}") } else { text }
}

/// A value with its interval.
fn with_interval(figure: &ReportFigure) -> String {
    let ReportFigure { value, low, high, unit, .. } = figure;
    format!("{} {unit} ({} to {})", number(*value), number(*low), number(*high))
}
