//! The report of a run: figures with their targets, a row for each program and lane, and the verdict.
//!
//! Owns: the JSON, and whether the run misses a target. Leaves to others: the tables (`text`) and the pictures
//! (`plot`).

use std::time::Duration;

use serde_json::json;

use super::cost::CacheCosts;
use super::execute::{MODEL, ProgramExecution, QUEUE_DEPTH};
use super::results::{self, RunResults};
use super::{DearPlan, plot, text};
use crate::drawing::svg_file;
use crate::{ExperimentReport, ReportFigure, machine};

/// Makes the report of a run.
pub(super) fn report(plan: &DearPlan, found: &RunResults, cost: CacheCosts, took: Duration) -> ExperimentReport {
    let mut figures = results::figures(found, Some(&cost), plan.is_judged);
    // A quick run has no verdict. In other runs a missing program counts as a missed target, and so do tables of
    // replays that contradict the executions.
    if plan.options.quick {
        figures.iter_mut().for_each(|figure| figure.is_judged = false);
    }
    let is_missing = !plan.not_run.is_empty() && plan.options.only.is_empty();
    let is_short = !plan.options.quick && (is_missing || figures.iter().any(ReportFigure::is_short));
    let is_short = is_short || !found.agrees();
    let setting = json!({
        "machine": machine::describe(), "seconds": took.as_secs_f64(), "quick": plan.options.quick,
        "model": MODEL, "queue_depth": QUEUE_DEPTH,
        "blocks": plan.sizes, "executions": plan.executions, "speed": plan.speed, "is_judged": plan.is_judged,
        "not_run": plan.not_run, "excused": plan.options.excused, "fitting": found.fitting, "cost": cost,
    });
    let rows = found.workloads.iter().flat_map(|workload| {
        workload.lanes.iter().map(|(lane, executions)| {
            let reads = |one: &ProgramExecution| one.block_reads as f64;
            json!({
                "workload": workload.name(), "blocks": workload.blocks, "lane": lane.name,
                "block_reads": workload.mean(lane.name, reads),
                "block_reads_range": workload.range(lane.name, reads),
                "device_requests": workload.mean(lane.name, |one| one.device_requests as f64),
                "response_s": workload.mean(lane.name, ProgramExecution::response_s),
                "response_range_s": workload.range(lane.name, ProgramExecution::response_s),
                "executions": executions,
            })
        })
    });
    let known = found.workloads.iter().filter_map(|workload| Some((workload, workload.known.as_ref()?)));
    let sensitivity = known.map(|(workload, known)| {
        json!({
            "workload": workload.name(), "blocks": workload.blocks, "known": known,
            "agreements": workload.agreements,
        })
    });
    let (rows, sensitivity) = (rows.collect(), sensitivity.collect());
    let text = text::text(plan, found, &cost, &figures, took);
    let report = ExperimentReport::new("cache-dear", setting, figures, rows, text).judged(is_short);
    let report = report.with("sensitivity", sensitivity);
    let svg = svg_file("cache-dear", &plot::pictures(&report));
    report.with_svg(svg)
}
