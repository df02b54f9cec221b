//! Two evaluations beside each other, figure by figure.
//!
//! Owns: the verdict. It is there only if the two intervals are apart; a value without an interval, such as that of a
//! single run, has none. So it is also with figures of a quick run beside those of a full one: their sizes differ.

use std::fmt::Write;

use serde::Serialize;

use super::{Evaluation, is_quick, number, with_interval};
use crate::ReportFigure;

/// The units of which less is better.
const LESS_IS_BETTER: [&str; 5] = ["us", "ms", "s", "B", "bytes"];
/// The units of which more is better.
const MORE_IS_BETTER: [&str; 8] = ["x", "MiB/s", "MB/s", "IOPS", "1/s", "reads/s", "%", "points"];

/// What a comparison says of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FigureComparison {
    /// The intervals are apart, and the new one is on the worse side.
    Worse,
    /// The intervals are apart, and the new one is on the better side.
    Better,
    /// The intervals are apart, and no side is better.
    Changed,
    /// The intervals overlap.
    NotApart,
    /// A value has no interval, or the runs had other sizes.
    NoVerdict,
    /// Only one evaluation has the figure.
    OnlyOne,
}

impl FigureComparison {
    /// The comparison in words.
    pub fn words(self) -> &'static str {
        match self {
            FigureComparison::Worse => "worse",
            FigureComparison::Better => "better",
            FigureComparison::Changed => "changed",
            FigureComparison::NotApart => "not apart",
            FigureComparison::NoVerdict => "no verdict",
            FigureComparison::OnlyOne => "in one only",
        }
    }
}

/// A figure of two evaluations.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ComparedFigure {
    /// The experiment.
    pub experiment: String,
    /// The name of the figure.
    pub name: String,
    /// What can be said.
    pub comparison: FigureComparison,
    /// The figure in the old evaluation.
    pub old: Option<ReportFigure>,
    /// The figure in the new one.
    pub new: Option<ReportFigure>,
}

/// Compares all figures; what has become worse stands first.
pub fn compare(old: &Evaluation, new: &Evaluation) -> Vec<ComparedFigure> {
    let find = |evaluation: &Evaluation, experiment: &str, name: &str| evaluation.figure(experiment, name).cloned();
    let is_same_size = |experiment: &str| match (old.get(experiment), new.get(experiment)) {
        (Some(old), Some(new)) => is_quick(old) == is_quick(new) && old.setting["scale"] == new.setting["scale"],
        _ => false,
    };
    let mut compared: Vec<ComparedFigure> = Vec::new();
    for (report, figure) in old.figures() {
        let (experiment, name) = (report.experiment.clone(), figure.name.clone());
        let other = find(new, &experiment, &name);
        let comparison = match &other {
            None => FigureComparison::OnlyOne,
            Some(_) if !is_same_size(&experiment) => FigureComparison::NoVerdict,
            Some(new) => comparison(figure, new),
        };
        compared.push(ComparedFigure { experiment, name, comparison, old: Some(figure.clone()), new: other });
    }
    for (report, figure) in new.figures() {
        if find(old, &report.experiment, &figure.name).is_none() {
            let (experiment, name) = (report.experiment.clone(), figure.name.clone());
            let comparison = FigureComparison::OnlyOne;
            compared.push(ComparedFigure { experiment, name, comparison, old: None, new: Some(figure.clone()) });
        }
    }
    compared.sort_by_key(|one| one.comparison);
    compared
}

fn comparison(old: &ReportFigure, new: &ReportFigure) -> FigureComparison {
    let is_interval = |figure: &ReportFigure| figure.low < figure.high;
    if !is_interval(old) || !is_interval(new) || old.unit != new.unit {
        return FigureComparison::NoVerdict;
    }
    let is_more = new.low > old.high;
    if !is_more && new.high >= old.low {
        return FigureComparison::NotApart;
    }
    let is_less_better = match new.target {
        Some(_) => Some(new.is_at_most),
        None if LESS_IS_BETTER.contains(&&*new.unit) => Some(true),
        None if MORE_IS_BETTER.contains(&&*new.unit) => Some(false),
        None => None,
    };
    // What two runs of the same contender differ by is neither good nor bad.
    let is_noise = new.name.contains("again");
    match is_less_better.filter(|_| !is_noise) {
        None => FigureComparison::Changed,
        Some(is_less_better) if is_less_better == is_more => FigureComparison::Worse,
        Some(_) => FigureComparison::Better,
    }
}

/// The comparison as text: the counts, then every figure with a verdict.
pub fn compared_text(compared: &[ComparedFigure]) -> String {
    let mut text = String::new();
    let all = [
        FigureComparison::Worse,
        FigureComparison::Better,
        FigureComparison::Changed,
        FigureComparison::NotApart,
        FigureComparison::NoVerdict,
        FigureComparison::OnlyOne,
    ];
    let count = |comparison| compared.iter().filter(|one| one.comparison == comparison).count();
    let counts: Vec<String> = all.iter().map(|one| format!("{} {}", count(*one), one.words())).collect();
    let _ = writeln!(text, "{} figures: {}", number(compared.len() as f64), counts.join(", "));
    let side = |figure: &Option<ReportFigure>| figure.as_ref().map_or("-".to_owned(), with_interval);
    for one in compared.iter().filter(|one| one.comparison <= FigureComparison::Changed) {
        let ratio = match (&one.old, &one.new) {
            (Some(old), Some(new)) => format!(", {} times", number(new.value / old.value)),
            _ => String::new(),
        };
        let (old, new, words) = (side(&one.old), side(&one.new), one.comparison.words());
        let _ = writeln!(text, "{words:8} {} {}: {old} -> {new}{ratio}", one.experiment, one.name);
    }
    for one in compared.iter().filter(|one| one.comparison == FigureComparison::OnlyOne) {
        let side = if one.old.is_some() { "old" } else { "new" };
        let _ = writeln!(text, "only in the {side} one: {} {}", one.experiment, one.name);
    }
    text
}
