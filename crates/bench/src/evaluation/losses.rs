//! What lost, and by how much: missed targets, and peers that are faster.
//!
//! Owns: which figures count as lost, and their order: by the share of the target that is missing.

use super::Evaluation;
use crate::ReportFigure;

/// A lost figure.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct LostFigure {
    /// The experiment.
    pub experiment: String,
    /// The figure.
    pub figure: ReportFigure,
    /// What it has to be compared with: the target, or 1 for a peer that is faster.
    pub wanted: f64,
    /// The missing share. *Units*: percent of `wanted`.
    pub missing_percent: f64,
    /// Whether the run was long enough for a verdict.
    pub is_judged: bool,
}

/// All lost figures, the worst first; those without a verdict last.
pub(super) fn losses(evaluation: &Evaluation) -> Vec<LostFigure> {
    let mut lost: Vec<LostFigure> = Vec::new();
    for (report, figure) in evaluation.figures() {
        let wanted = match figure.target {
            Some(target) if figure.is_beside_target() => target,
            None if is_faster_peer(figure) => 1.0,
            _ => continue,
        };
        // Without a target of 1 or so, the difference itself is the share.
        let scale = if wanted.abs() < 1e-9 { 1.0 } else { wanted.abs() };
        let missing_percent = 100.0 * (figure.value - wanted).abs() / scale;
        let (experiment, figure) = (report.experiment.clone(), figure.clone());
        let is_judged = figure.is_judged && !super::is_quick(report);
        lost.push(LostFigure { experiment, figure, wanted, missing_percent, is_judged });
    }
    lost.sort_by(|left, right| {
        (right.is_judged.cmp(&left.is_judged)).then(right.missing_percent.total_cmp(&left.missing_percent))
    });
    lost
}

/// Whether a figure is a ratio to another contender, whole interval included, that is faster.
fn is_faster_peer(figure: &ReportFigure) -> bool {
    let name = &figure.name;
    let is_to_peer = match name.strip_prefix("ratio.") {
        Some(rest) => !rest.contains("nectary"),
        None => name.contains("nectary_of_") || name.contains(".over_") && !name.contains(".over_volume"),
    };
    figure.unit == "x" && figure.high < 1.0 && is_to_peer && !name.contains("again")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::ExperimentReport;
    use crate::statistics::IntervalEstimate;

    #[test]
    fn worst_losses_are_first() {
        let figure = |name: &str, value: f64| {
            ReportFigure::new(name, "x", IntervalEstimate { value, low: value - 0.1, high: value + 0.1 })
        };
        let figures = vec![
            figure("ratio.4gb.xfs.50", 3.0).at_least(4.0),
            figure("ratio.4gb.btrfs.50", 0.5),
            figure("ratio.4gb.nectary-one-disk", 0.5),
            figure("create.threads1.volume-server-again.over_volume-server", 0.5),
            figure("written", 2.5).at_most(1.25),
            figure("ratio.9gb.xfs.50", 5.0).at_least(4.0),
            figure("delete.sync.unshaped.none-2.over_disk", 0.7).at_least(4.0).judged(false),
        ];
        let report = ExperimentReport::new("store-table4", json!({}), figures, Vec::new(), String::new());
        let lost = losses(&Evaluation { experiments: vec![report] });
        let names: Vec<(&str, f64)> =
            lost.iter().map(|lost| (lost.figure.name.as_str(), lost.missing_percent.round())).collect();
        let expected = [
            ("written", 100.0),
            ("ratio.4gb.btrfs.50", 50.0),
            ("ratio.4gb.xfs.50", 25.0),
            ("delete.sync.unshaped.none-2.over_disk", 83.0),
        ];
        assert_eq!(names, expected);
    }
}
