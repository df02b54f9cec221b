//! The report of a sweep: xdd's columns, the ceiling, figures, and a picture.

use std::time::Duration;

use serde_json::json;

use super::SweepPlan;
use super::job::OpenMode;
use super::plot::pictures;
use super::results::{CellResult, RateCeilings, headings};
use crate::drawing::svg_file;
use crate::statistics::IntervalEstimate;
use crate::{ExperimentReport, ReportFigure, machine};

/// Makes the report of a sweep.
pub(super) fn report(
    plan: &SweepPlan,
    ceilings: RateCeilings,
    results: Vec<CellResult>,
    took: Duration,
) -> ExperimentReport {
    let named = [("read", ceilings.read), ("write", ceilings.write), ("copy", ceilings.copy)];
    let mut figures: Vec<ReportFigure> = named
        .iter()
        .filter_map(|(name, rate)| {
            Some(ReportFigure::new(format!("io.ceiling.{name}"), "MiB/s", IntervalEstimate::exactly((*rate)?)))
        })
        .collect();
    figures.extend(
        results.iter().map(|result| ReportFigure::new(format!("io.{}", result.cell.name()), "MiB/s", result.rate())),
    );
    let options = &plan.options;
    let setting = json!({
        "target": options.target, "bytes": plan.bytes, "passes": plan.passes, "seconds": plan.seconds,
        "is_warm": options.is_warm, "is_synced": options.is_synced, "read_percent": options.read_percent,
        "quick": options.quick, "machine": machine::describe(), "took_s": took.as_secs_f64(),
    });
    let rows = results.iter().flat_map(CellResult::rows).map(|row| json!(row)).collect();
    let text = text(plan, &named, &results, took);
    let report = ExperimentReport::new("io", setting, figures, rows, text);
    let svg = svg_file("bench io", &pictures(&report));
    report.with_svg(svg)
}

fn text(plan: &SweepPlan, ceilings: &[(&str, Option<f64>)], results: &[CellResult], took: Duration) -> String {
    let options = &plan.options;
    let mut text = format!("bench io {}: {}\n", options.target.display(), machine::describe());
    let limit = plan.seconds.map(|seconds| format!(", {seconds} s at most each")).unwrap_or_default();
    text += &format!(
        "{} pass(es) over {} MiB a stream{limit}; pages of the streams {} before each pass; took {:.0} s\n",
        plan.passes,
        plan.bytes >> 20,
        if options.is_warm { "stay" } else { "are dropped" },
        took.as_secs_f64()
    );
    text += "ceilings, MiB/s:";
    for (name, rate) in ceilings {
        let rate = rate.map_or("not measured".to_owned(), |rate| format!("{rate:.0}"));
        text += &format!(" {name} {rate};");
    }
    text += " read and write are direct, 4 MiB, 8 at once; copy is in memory\n";
    if !options.is_synced
        && results.iter().any(|one| one.cell.mode == OpenMode::Buffered && one.cell.operation.writes())
    {
        text += "buffered writes end in the page cache: add --fsync to count their way to the device\n";
    }
    let mut mode = None;
    for result in results {
        let cell = &result.cell;
        if mode.replace((cell.operation, cell.mode)) != Some((cell.operation, cell.mode)) {
            text += &format!("\n{}, {}\n{}", cell.operation.name(), cell.mode.name(), headings());
        }
        text += &result.average().map(|row| row.line()).unwrap_or_default();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::plan_tests::options;
    use super::super::results::tests::result;
    use super::*;

    /// The report has a figure and a line for each cell, with the ceilings next to them.
    #[test]
    fn io_report_has_every_cell() {
        let plan = SweepPlan::new(options()).unwrap();
        let ceilings = RateCeilings { read: Some(20.0), write: None, copy: Some(9000.0) };
        let report = report(&plan, ceilings, vec![result()], Duration::from_secs(1));
        let names: Vec<&str> = report.figures.iter().map(|figure| figure.name.as_str()).collect();
        assert_eq!(names, ["io.ceiling.read", "io.ceiling.copy", "io.read.direct.streams2.depth1.1m"]);
        assert!(report.text().contains("read 20; write not measured; copy 9000;"), "{}", report.text());
        assert!(report.text().contains("AVERAGE") && report.rows.len() == 7);
        crate::drawing::tests::is_well_formed(report.svg().unwrap());
        // The only size is a point of its line, and the ceiling a line over it.
        for class in ["\"point\"", "\"line dash\""] {
            assert_eq!(report.svg().unwrap().matches(&format!("class={class}")).count(), 1, "{class}");
        }
    }
}
