//! The report of an experiment: its figures, a row for each measurement, and the text and the picture for people.
//!
//! Owns: the shape of the JSON, which can be read back, and the verdict on each figure and on the whole run. A value
//! that is no number is `null` in JSON. Leaves to others: which figures there are, and their targets (the experiments).

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use crate::statistics::IntervalEstimate;

/// One figure of a report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReportFigure {
    /// Its name, which stays the same between versions.
    pub name: String,
    /// The value: the median over seeds, or the value of the only run.
    #[serde(deserialize_with = "number")]
    pub value: f64,
    /// Its unit.
    pub unit: Cow<'static, str>,
    /// The lower end of the bootstrap interval of the value (`statistics`).
    #[serde(deserialize_with = "number")]
    pub low: f64,
    /// The upper end of the bootstrap interval of the value (`statistics`).
    #[serde(deserialize_with = "number")]
    pub high: f64,
    /// The target, if one was set.
    pub target: Option<f64>,
    /// Whether the target is an upper bound.
    pub is_at_most: bool,
    /// Whether the run was long enough to judge the figure against its target.
    pub is_judged: bool,
}

/// Reads a number; `null` is no number.
fn number<'de, D: Deserializer<'de>>(input: D) -> Result<f64, D::Error> {
    Option::<f64>::deserialize(input).map(|value| value.unwrap_or(f64::NAN))
}

impl ReportFigure {
    /// Makes a figure without a target.
    pub fn new(name: impl Into<String>, unit: &'static str, found: IntervalEstimate) -> ReportFigure {
        let IntervalEstimate { value, low, high } = found;
        let unit = unit.into();
        ReportFigure { name: name.into(), value, unit, low, high, target: None, is_at_most: false, is_judged: true }
    }

    /// Sets the least value that is wanted.
    pub fn at_least(self, target: impl Into<Option<f64>>) -> ReportFigure {
        ReportFigure { target: target.into(), is_at_most: false, ..self }
    }

    /// Sets the greatest value that is wanted.
    pub fn at_most(self, target: impl Into<Option<f64>>) -> ReportFigure {
        ReportFigure { target: target.into(), is_at_most: true, ..self }
    }

    /// Sets whether the run was long enough to judge the figure.
    pub fn judged(self, is_judged: bool) -> ReportFigure {
        ReportFigure { is_judged, ..self }
    }

    /// The value with its interval.
    pub fn found(&self) -> IntervalEstimate {
        IntervalEstimate { value: self.value, low: self.low, high: self.high }
    }

    /// Whether the value misses its target, however short the run was.
    pub fn is_beside_target(&self) -> bool {
        let is_missed = |target| if self.is_at_most { self.value > target } else { self.value < target };
        self.target.is_some_and(is_missed)
    }

    /// Whether the figure misses its target; `false` if the run was too short to judge it.
    pub fn is_short(&self) -> bool {
        self.is_judged && self.is_beside_target()
    }

    /// The figure as a line: its name in `width` columns, the value and its interval with so many `digits`, the target
    /// and the verdict.
    pub fn line(&self, width: usize, digits: usize) -> String {
        let ReportFigure { name, value, unit, low, high, .. } = self;
        let most = if self.is_at_most { "at most " } else { "" };
        let target = self.target.map(|target| format!("  target {most}{target}")).unwrap_or_default();
        let verdict = match (self.is_short(), self.target) {
            (true, _) => "  SHORT",
            (false, Some(_)) if !self.is_judged => "  (no verdict)",
            _ => "",
        };
        format!("  {name:width$} {value:7.digits$} {unit} ({low:.digits$} to {high:.digits$}){target}{verdict}\n")
    }
}

/// A finished run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ExperimentReport {
    /// The name of the experiment, which is that of its page in `docs/results/`.
    pub experiment: String,
    /// The options and the machine.
    pub setting: Value,
    /// All figures; the noise first, then those that miss their target, if there are such.
    pub figures: Vec<ReportFigure>,
    /// The measurements.
    pub rows: Vec<Value>,
    /// What only this experiment reports.
    #[serde(flatten)]
    pub more: Map<String, Value>,
    #[serde(skip)]
    is_short: bool,
    #[serde(skip)]
    text: String,
    #[serde(skip)]
    svg: Option<String>,
}

impl ExperimentReport {
    /// Makes a report, which is short if one of its figures is.
    pub fn new(
        experiment: &str,
        setting: Value,
        figures: Vec<ReportFigure>,
        rows: Vec<Value>,
        text: String,
    ) -> ExperimentReport {
        let is_short = figures.iter().any(ReportFigure::is_short);
        let experiment = experiment.to_owned();
        ExperimentReport { experiment, setting, figures, rows, more: Map::new(), is_short, text, svg: None }
    }

    /// Adds a picture.
    pub fn with_svg(self, svg: String) -> ExperimentReport {
        ExperimentReport { svg: Some(svg), ..self }
    }

    /// Adds what only this experiment reports.
    pub fn with(mut self, name: &str, value: Value) -> ExperimentReport {
        self.more.insert(name.to_owned(), value);
        self
    }

    /// Sets the verdict, if it depends on more than the figures' values.
    pub fn judged(self, is_short: bool) -> ExperimentReport {
        ExperimentReport { is_short, ..self }
    }

    /// Whether the run misses a target.
    pub fn is_short(&self) -> bool {
        self.is_short
    }

    /// Tables for the terminal.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The picture as SVG, if the experiment draws one.
    pub fn svg(&self) -> Option<&str> {
        self.svg.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn figure(value: f64, is_judged: bool) -> ReportFigure {
        ReportFigure::new("ratio", "x", IntervalEstimate { value, low: value, high: value })
            .at_least(4.6)
            .judged(is_judged)
    }

    /// No figure is short if the run was too small to judge it.
    #[test]
    fn small_run_never_falls_short() {
        assert!(figure(4.5, true).is_short() && !figure(4.7, true).is_short());
        assert!(!figure(4.5, false).is_short(), "a quick run gives no verdict");
        assert!(figure(4.7, true).at_most(4.6).is_short());
        assert!(!figure(4.5, true).at_least(None).is_short());
    }

    #[test]
    fn figure_line_has_target_and_verdict() {
        assert_eq!(figure(4.5, true).line(6, 1), "  ratio      4.5 x (4.5 to 4.5)  target 4.6  SHORT\n");
        assert_eq!(figure(4.7, true).line(5, 2), "  ratio    4.70 x (4.70 to 4.70)  target 4.6\n");
        assert!(figure(4.5, false).line(0, 1).ends_with("target 4.6  (no verdict)\n"));
        assert!(figure(4.7, true).at_most(4.6).line(0, 1).ends_with("target at most 4.6  SHORT\n"));
    }

    /// A report also keeps the fields that are added to it.
    #[test]
    fn report_is_short_with_figure() {
        let report =
            |value| ExperimentReport::new("one", json!({}), vec![figure(value, true)], Vec::new(), "text".to_owned());
        assert!(report(4.5).is_short() && !report(4.7).is_short() && report(4.7).judged(true).is_short());
        let report = report(4.7).with("trends", json!([1])).with_svg("<svg/>".to_owned());
        let written = serde_json::to_value(&report).unwrap();
        assert_eq!((&written["experiment"], &written["trends"]), (&json!("one"), &json!([1])));
        assert_eq!((written.get("text"), written.get("svg"), report.svg()), (None, None, Some("<svg/>")));
        let read: ExperimentReport = serde_json::from_value(written.clone()).unwrap();
        assert_eq!((read.figures, read.more, read.is_short), (report.figures, report.more, false));
        let no_number: ReportFigure =
            serde_json::from_value(serde_json::to_value(figure(f64::NAN, true)).unwrap()).unwrap();
        assert!(no_number.value.is_nan() && !no_number.is_beside_target());
    }
}
