//! The report of a run: figures with their targets, a row for each program and lane, and the verdict.
//!
//! Owns: the JSON, and whether the run misses a target. Leaves to others: the tables (`text`) and the pictures
//! (`plot`).

use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

use super::cost::Cost;
use super::execute::{Execution, MODEL, QUEUE_DEPTH};
use super::results::{self, Workload};
use super::{BLOCKS, Plan, plot, text};
use crate::machine;
use crate::store::Figure;

/// A finished run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// `cache-dear`.
    pub experiment: String,
    /// The options and the machine.
    pub setting: Value,
    /// All figures in this order: LRU compared with itself, figures that miss their target, the rest.
    pub figures: Vec<Figure>,
    /// One row for each pair of a lane and a program or mix.
    pub rows: Vec<Value>,
    /// The results of the replays of each program's recorded references.
    pub sensitivity: Vec<Value>,
    #[serde(skip)]
    is_short: bool,
    #[serde(skip)]
    text: String,
    #[serde(skip)]
    plot: String,
}

impl Report {
    /// Makes the report of a run.
    pub fn new(plan: &Plan, workloads: Vec<Workload>, cost: Cost, took: Duration) -> Report {
        let figures = results::figures(&workloads, Some(&cost), plan.is_judged);
        // A quick run has no verdict. In other runs a missing program counts as a missed target.
        let is_missing = !plan.not_run.is_empty() && plan.options.only.is_empty();
        let is_short = !plan.options.quick && (is_missing || figures.iter().any(Figure::is_short));
        let setting = json!({
            "machine": machine::describe(), "seconds": took.as_secs_f64(), "model": MODEL, "queue_depth": QUEUE_DEPTH,
            "blocks": BLOCKS, "executions": plan.executions, "speed": plan.speed, "is_judged": plan.is_judged,
            "not_run": plan.not_run, "cost": cost,
        });
        let rows = workloads.iter().flat_map(|workload| {
            workload.lanes.iter().map(|(lane, executions)| {
                json!({
                    "workload": workload.name(), "lane": lane.name,
                    "block_reads": workload.mean(lane.name, |one| one.block_reads as f64),
                    "device_requests": workload.mean(lane.name, |one| one.device_requests as f64),
                    "response_s": workload.mean(lane.name, Execution::response_s),
                    "executions": executions,
                })
            })
        });
        let known = workloads.iter().filter_map(|workload| Some((workload.name(), workload.known.as_ref()?)));
        let sensitivity = known.map(|(name, known)| json!({ "workload": name, "known": known })).collect();
        let rows = rows.collect();
        let text = text::text(plan, &workloads, &cost, &figures, took);
        let plot = plot::plot(&workloads);
        Report { experiment: "cache-dear".to_owned(), setting, figures, rows, sensitivity, is_short, text, plot }
    }

    /// Whether a figure misses its target or a program could not run; never true for a quick run.
    pub fn is_short(&self) -> bool {
        self.is_short
    }

    /// Tables for the terminal.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The picture, as SVG.
    pub fn svg(&self) -> &str {
        &self.plot
    }
}
