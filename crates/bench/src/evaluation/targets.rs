//! The figures of the design pages, each with what was measured of it.
//!
//! Owns: the states, and reading measured figures from JSON or from the pages of `docs/results/`. A figure is *reached*
//! if all measured figures that it names have reached their targets, *not reached* if one has not, *not measured* if
//! the experiments have none of them, or only from a run that was too short to judge. What another command measures
//! says which, and what nothing measures is *not built*. Leaves to others: the list (`design`).

use std::fmt::Write;
use std::fs;
use std::path::Path;

use serde::Serialize;

use super::design::{DESIGN_FIGURES, DesignFigure, FigureMeasure};
use super::{Evaluation, number, with_interval};
use crate::proxy::suite_figure;
use crate::statistics::IntervalEstimate;
use crate::{Error, ExperimentErrorKind, ReportFigure};

/// The page with the results of the suite for HTTP caches, without its ending.
const SUITE_PAGE: &str = "cache-tests";

/// Whether a figure of a design page is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FigureState {
    /// All that is measured of it reaches its target.
    Reached,
    /// Something misses its target.
    NotReached,
    /// An experiment measures it, and has no results, or none that can be judged.
    NotMeasured,
    /// Another command measures and judges it.
    Elsewhere,
    /// Nothing measures it yet.
    NotBuilt,
}

impl FigureState {
    /// The state in words.
    pub fn words(self) -> &'static str {
        match self {
            FigureState::Reached => "reached",
            FigureState::NotReached => "not reached",
            FigureState::NotMeasured => "not measured",
            FigureState::Elsewhere => "by another command",
            FigureState::NotBuilt => "not built",
        }
    }
}

/// A figure of a design page with what was measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StatedFigure {
    /// Its name: the design page, and a word.
    pub name: String,
    /// What it measures.
    pub what: &'static str,
    /// The target, as the page says it.
    pub target: &'static str,
    /// The state.
    pub state: FigureState,
    /// The measured figures, those that miss their targets first; or the command that measures it.
    pub measured: Vec<String>,
    /// The file that has the measured figures.
    pub page: Option<String>,
}

/// A measured figure, and the file that has it.
type Source = (ReportFigure, String);

/// States all figures of the design pages by what is in a directory: JSON of experiments, pages of `docs/results/`, or
/// both. Without a directory nothing is measured.
///
/// *Errors*: [`ExperimentErrorKind::Missing`] if the directory has neither; others if a file cannot be read.
pub fn stated_figures(folder: Option<&Path>) -> Result<Vec<StatedFigure>, Error> {
    let mut sources: Vec<Source> = Vec::new();
    if let Some(folder) = folder {
        match Evaluation::read(folder) {
            Ok(evaluation) => sources.extend(
                evaluation.figures().map(|(report, figure)| (figure.clone(), format!("{}.json", report.experiment))),
            ),
            Err(error) if error.kind == ExperimentErrorKind::Missing && folder.is_dir() => {}
            Err(error) => return Err(error),
        }
        if folder.is_dir() {
            sources.extend(pages(folder)?);
        }
        if sources.is_empty() {
            let message = format!("{}: neither JSON of experiments nor pages with figures are there", folder.display());
            return Err(Error::new(ExperimentErrorKind::Missing, message));
        }
    }
    Ok(DESIGN_FIGURES.iter().map(|figure| state(figure, &sources)).collect())
}

fn state(figure: &DesignFigure, sources: &[Source]) -> StatedFigure {
    let name = format!("{}.{}", figure.page, figure.name);
    let stated =
        |state, measured, page| StatedFigure { name, what: figure.what, target: figure.target, state, measured, page };
    let patterns = match figure.measure {
        FigureMeasure::Elsewhere(command) => return stated(FigureState::Elsewhere, vec![command.to_owned()], None),
        FigureMeasure::Nothing => return stated(FigureState::NotBuilt, Vec::new(), None),
        FigureMeasure::Figures(patterns) => patterns,
    };
    let mut found: Vec<&Source> =
        sources.iter().filter(|source| patterns.iter().any(|pattern| is_like(&source.0.name, pattern))).collect();
    // A figure without a value, because a contender is missing, says nothing.
    found.retain(|source| source.0.value.is_finite());
    // With JSON and a page of the same experiment, the JSON counts. Two experiments may have figures of one name.
    let mut names: Vec<(&str, &str)> = Vec::new();
    found.retain(|source| {
        let experiment = source.1.rsplit_once('.').map_or(source.1.as_str(), |(experiment, _)| experiment);
        let name = (experiment, source.0.name.as_str());
        let is_new = !names.contains(&name);
        names.push(name);
        is_new
    });
    found.sort_by_key(|source| !source.0.is_short());
    let state = match found.as_slice() {
        [] => FigureState::NotMeasured,
        found if found.iter().any(|source| source.0.is_short()) => FigureState::NotReached,
        found if found.iter().any(|source| source.0.is_judged && source.0.target.is_some()) => FigureState::Reached,
        _ => FigureState::NotMeasured,
    };
    let said = |source: &&Source| {
        let figure = &source.0;
        let most = if figure.is_at_most { "at most " } else { "" };
        let target = figure.target.map_or(String::new(), |target| format!(", target {most}{}", number(target)));
        let verdict = match (figure.is_short(), figure.is_judged) {
            (true, _) => ", missed",
            (false, false) => ", no verdict",
            (false, true) => "",
        };
        format!("{} {}{target}{verdict}", figure.name, with_interval(figure))
    };
    let page = found.first().map(|source| source.1.clone());
    let measured = found.iter().map(said).collect();
    stated(state, measured, page)
}

/// Whether a name has the parts of a pattern, between which `*` stands for anything.
fn is_like(name: &str, pattern: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = name.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let mut is_open = false;
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = if part.is_empty() { "" } else { &rest[at + part.len()..] };
        is_open = part.is_empty();
    }
    is_open || rest.is_empty()
}

/// The figures in the pages of a directory: lines that end with a target, as reports print them.
fn pages(folder: &Path) -> Result<Vec<Source>, Error> {
    let mut found = Vec::new();
    let mut paths: Vec<_> = fs::read_dir(folder)
        .map_err(|error| Error::failed(folder.display(), error))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|end| end == "md"))
        .collect();
    paths.sort();
    for path in paths {
        let text = fs::read_to_string(&path).map_err(|error| Error::failed(path.display(), error))?;
        let page = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let experiment = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if experiment == SUITE_PAGE {
            found.extend(text.lines().flat_map(suite_figures).map(|figure| (figure, page.clone())));
        }
        found.extend(text.lines().filter_map(|line| Some((figure_of(line, &experiment)?, page.clone()))));
    }
    Ok(found)
}

/// Reads the counts of Nectary over HTTP/1 from a line `nectary VERSION PASSED/COUNT PASSED/COUNT …`, required tests
/// first.
fn suite_figures(line: &str) -> Vec<ReportFigure> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let ["nectary", _, required, optimal, ..] = words.as_slice() else { return Vec::new() };
    let counts = |text: &str| Some((text.split_once('/')?.0.parse().ok()?, text.split_once('/')?.1.parse().ok()?));
    let kinds = [("required", required), ("optimal", optimal)].into_iter();
    kinds
        .filter_map(|(kind, text)| counts(text).map(|(passed, of)| suite_figure(kind, "nectary", passed, of)))
        .collect()
}

/// Reads a figure from a line `name … value [unit] (low to high)  target [at most ]N[  SHORT]`.
fn figure_of(line: &str, experiment: &str) -> Option<ReportFigure> {
    let (before, after) = line.split_once(" target ")?;
    let words: Vec<&str> = before.split_whitespace().collect();
    let [first, .., to, high] = words.as_slice() else { return None };
    let high = high.strip_suffix(')')?.parse().ok()?;
    let at = words.iter().rposition(|word| word.starts_with('('))?;
    let low = words[at].strip_prefix('(')?.parse().ok()?;
    if *to != "to" || at < 2 {
        return None;
    }
    let (value, unit) = match words[at - 1].parse::<f64>() {
        Ok(value) => (value, "x".to_owned()),
        Err(_) => (words[at - 2].parse().ok()?, words[at - 1].to_owned()),
    };
    let (is_at_most, number) = match after.strip_prefix("at most ") {
        Some(rest) => (true, rest),
        None => (false, after),
    };
    let target = number.split(|end: char| end.is_whitespace() || end == ';').next()?.parse().ok()?;
    let name = match experiment {
        "ram" => format!("ram.{first}.of_nbdkit"),
        "faster" => {
            let other = words.iter().find(|word| ["fio", "checked", "copied"].contains(*word))?;
            format!("limits.{first}.nectary_of_{other}")
        }
        _ => (*first).to_owned(),
    };
    let is_judged = !after.contains("no verdict");
    let mut figure = ReportFigure::new(name, "", IntervalEstimate { value, low, high });
    figure.unit = unit.into();
    Some(ReportFigure { target: Some(target), is_at_most, is_judged, ..figure })
}

/// The figures as text: how many have each state, then each figure.
pub fn stated_text(figures: &[StatedFigure]) -> String {
    let mut text = String::new();
    let all = [
        FigureState::Reached,
        FigureState::NotReached,
        FigureState::NotMeasured,
        FigureState::Elsewhere,
        FigureState::NotBuilt,
    ];
    let count = |state| figures.iter().filter(|one| one.state == state).count();
    let counts: Vec<String> = all.iter().map(|state| format!("{} {}", count(*state), state.words())).collect();
    let _ = writeln!(text, "{} figures of the design pages: {}", figures.len(), counts.join(", "));
    for figure in figures {
        let _ = writeln!(text, "\n{}: {}", figure.name, figure.state.words());
        let _ = writeln!(text, "  {}\n  target: {}", figure.what, figure.target);
        let page = figure.page.as_ref().map_or(String::new(), |page| format!(" ({page})"));
        for measured in &figure.measured {
            let _ = writeln!(text, "  {measured}{page}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_names() {
        for (pattern, is_meant) in [
            ("ratio.*.xfs.*", true),
            ("ratio.4gb.xfs.50", true),
            ("ratio.*", true),
            ("*.50", true),
            ("ratio.*.xfs", false),
            ("xfs.*", false),
        ] {
            assert_eq!(is_like("ratio.4gb.xfs.50", pattern), is_meant, "{pattern}");
        }
    }

    /// A miss in one experiment is not hidden by hits in others.
    #[test]
    fn missed_target_stays_visible() {
        let source = |value: f64, file: &str| {
            let figure =
                ReportFigure::new("written_per_byte_put.4gb", "B", IntervalEstimate { value, low: value, high: value });
            (figure.at_most(1.25), file.to_owned())
        };
        let stated = |sources: &[Source]| {
            let figure = DESIGN_FIGURES.iter().find(|one| match one.measure {
                FigureMeasure::Figures(patterns) => patterns.contains(&"written_per_byte_put.*"),
                _ => false,
            });
            let stated = state(figure.expect("a figure with that pattern"), sources);
            (stated.state, stated.measured.len())
        };
        let good = source(1.2, "store-table4.json");
        assert_eq!(stated(&[good.clone(), source(1.5, "store-table5.json")]), (FigureState::NotReached, 2));
        assert_eq!(stated(&[good, source(1.5, "store-table4.md")]), (FigureState::Reached, 1));
    }

    /// Only the line of Nectary over HTTP/1 counts, and only a suite of a known size has targets.
    #[test]
    fn suite_page_gives_two_figures() {
        let found = suite_figures("nectary 0.1.0                 158/160      95/105      67/100");
        let said: Vec<(&str, f64, Option<f64>, bool)> =
            found.iter().map(|one| (&*one.name, one.value, one.target, one.is_short())).collect();
        let names = ["proxy.cache_tests.required.nectary", "proxy.cache_tests.optimal.nectary"];
        assert_eq!(said, [(names[0], 158.0, Some(158.0), false), (names[1], 95.0, Some(100.0), true)]);
        let package = suite_figures("nectary 0.1.0  140/157  80/86  1/2");
        assert!(package.len() == 2 && package.iter().all(|one| one.target.is_none()));
        for other in ["nectary 0.1.0 over TLS  158/160  95/105", "nginx 1.22.1  100/160  58/105", "nectary 0.1.0 a b"] {
            assert!(suite_figures(other).is_empty(), "{other}");
        }
    }

    #[test]
    fn lines_of_each_page_are_read() {
        let read = |line: &str, page: &str| {
            let figure = figure_of(line, page).unwrap();
            (figure.name.clone(), figure.value, figure.low, figure.target, figure.is_at_most, figure.is_short())
        };
        assert_eq!(
            read("  ratio.4gb.xfs.50                      3.21 x (3.18 to 3.26)  target 4.6  SHORT", "store-table4"),
            ("ratio.4gb.xfs.50".to_owned(), 3.21, 3.18, Some(4.6), false, true)
        );
        assert_eq!(
            read("  written_per_byte_put.4gb   1.23 B (1.22 to 1.24)  target at most 1.25", "store-table4"),
            ("written_per_byte_put.4gb".to_owned(), 1.23, 1.22, Some(1.25), true, false)
        );
        let ram = "  read.4x32   IOPS  158911 3.9  95292 10.5  110406 8.7  8.8  1.66 (1.57 to 1.72) target 1.2; 1.01 (0.95 to 1.07)";
        assert_eq!(read(ram, "ram"), ("ram.read.4x32.of_nbdkit".to_owned(), 1.66, 1.57, Some(1.2), false, false));
        let fill = "  fill  nectary 2351.3 MB/s 4.0 us  copied 4800.6 MB/s 0.7 us  ratio 0.505 (0.466 to 0.546)  target 0.9  SHORT";
        assert_eq!(
            read(fill, "faster"),
            ("limits.fill.nectary_of_copied".to_owned(), 0.505, 0.466, Some(0.9), false, true)
        );
        let quick = figure_of("  a  0.73 x (0.68 to 0.78)  target 4  (no verdict)", "files-nrd").unwrap();
        assert!(!quick.is_judged && !quick.is_short());
        for wrong in ["  target 3", "a b (c to d) target 3", "name 1 x (1 to 2) target many"] {
            assert!(figure_of(wrong, "ram").is_none(), "{wrong}");
        }
    }
}
