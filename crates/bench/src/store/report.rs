//! The report of a run: the ratios of run times with their intervals and targets, and a row for each contender. Missed
//! targets come first.
//!
//! Owns: the figures and the JSON. A ratio compares whole runs. On a virtual clock there is one ratio per seed of the
//! workload, and the interval is that of their median. In real time there is one run: its ratio compares the sums of
//! the times of the pieces, and the interval comes from resampling the pieces. The pieces of one run are not
//! repetitions, but show a trend. Leaves to others: the text (`text`) and the plots (`plot`).

use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use super::plan::{DiskSizeGroup, PAIRS, SEEDS_MIN, StorePlan};
use super::results::{DirtyShareResult, GroupResult, LaneResult, RatioTrend, disk_hit_ms, hit_ms, put_ms, spent_ms};
use super::{StorePreset, plot, text};
use crate::contender::ContenderKind;
use crate::disk::DiskTimekeeping;
use crate::drawing::svg_file;
use crate::statistics::{IntervalEstimate, estimate, median, ratio_of_sums};
use crate::{ExperimentReport, ReportFigure, machine};

/// Makes the report of a run.
pub(super) fn report(
    plan: &StorePlan,
    groups: Vec<GroupResult>,
    swept: Vec<DirtyShareResult>,
    took: Duration,
) -> ExperimentReport {
    let (mut figures, mut trends, mut rows) = (Vec::new(), Vec::new(), Vec::new());
    for results in groups.chunk_by(|left, right| left.group.label == right.group.label) {
        figures.extend(figures_of(plan, results));
        trends.extend(trends_of(results));
        rows.extend(results.iter().flat_map(|result| result.lanes.iter().map(|lane| row(result, lane))));
    }
    if plan.options.preset != StorePreset::Bare && plan.options.workload_name().is_none() {
        figures.extend(best_of_xfs(&figures));
    }
    // A stable sort: figures with equal keys keep their order.
    figures.sort_by_key(|figure| (!figure.name.ends_with(".nectary-again"), !figure.is_short()));
    let experiment = plan.options.experiment();
    let workload = groups.iter().map(|one| {
        json!({
            "group": one.group.label, "seed": one.group.source.seed(), "totals": one.totals,
            "laws": one.group.source.json(),
            "locality": one.locality, "demand": one.demand,
        })
    });
    let setting = json!({
        "version": env!("CARGO_PKG_VERSION"), "command": std::env::args().collect::<Vec<_>>(), "tools": tools(plan),
        "scale": plan.scale, "requests": plan.requests, "quick": plan.options.quick, "seeds": plan.seeds,
        "pairs": plan.pairs, "threads": plan.threads, "disk": plan.disk, "memory_bytes": plan.memory_bytes,
        "group_bytes": plan.group_bytes(), "workload": workload.collect::<Vec<_>>(), "dirty_sweep": swept,
        "machine": machine::describe(), "skipped": plan.skipped, "took_s": took.as_secs_f64(),
    });
    let text = text::text(plan, &groups, &figures, &trends, &swept, took);
    let report = ExperimentReport::new(&experiment, setting, figures, rows, text).with("trends", json!(trends));
    let svg = svg_file(&experiment, &plot::pictures(&report));
    report.with_svg(svg)
}

/// The target of the ratio to a peer, by preset and group; `None` if the ratio has no target.
fn target(preset: StorePreset, group: &DiskSizeGroup, name: &str) -> Option<f64> {
    match preset {
        StorePreset::Bare if name.starts_with("xfs.") && group.label == EMBEDDED_AIM => Some(5.0),
        StorePreset::Bare if name.starts_with("foyer") => Some(1.0),
        StorePreset::Table4 if name.starts_with("xfs.") => Some(if group.label == "4gb" { 4.6 } else { 3.5 }),
        StorePreset::Table4 if name.starts_with("ext4-dirsync.") => Some(13.0),
        StorePreset::Table5 if name.starts_with("ext4-async.") && !name.ends_with("one-disk") => Some(2.3),
        StorePreset::Table5 if name == "nectary-one-disk" => Some(1.0),
        _ => None,
    }
}

/// The label of the group that has targets compared with XFS on a bare disk.
const EMBEDDED_AIM: &str = "embedded-5";
/// The name of the contender Nectary without hints, and the target of its ratio to XFS.
const HINTS_OFF: &str = "nectary-hints-off";
const HINTS_OFF_AIM: f64 = 2.0;
/// The largest number of bytes written to the device per byte put.
const WRITTEN_MAX: f64 = 1.25;

/// The run time of `other` divided by that of `one`.
fn ratio(results: &[GroupResult], one: usize, other: usize) -> IntervalEstimate {
    match results {
        [result] => ratio_of_sums(&result.lanes[other].times(), &result.lanes[one].times()),
        _ => {
            let of_seed = |result: &GroupResult| result.lanes[other].total.run_s / result.lanes[one].total.run_s;
            estimate(&results.iter().map(of_seed).collect::<Vec<_>>())
        }
    }
}

/// The figures of one disk size, which has one result per seed.
fn figures_of(plan: &StorePlan, results: &[GroupResult]) -> Vec<ReportFigure> {
    let Some(GroupResult { group, lanes, .. }) = results.first() else { return Vec::new() };
    let (preset, label) = (plan.options.preset, &group.label);
    let is_seed = plan.options.workload_name().is_none();
    let is_virtual = plan.disk.time == DiskTimekeeping::Virtual;
    let is_judged = !plan.options.quick && if is_virtual { results.len() >= SEEDS_MIN } else { plan.pairs >= PAIRS };
    let figure = |name: String, found: IntervalEstimate, unit, target, is_at_most| {
        // The targets are those of the seed's workload.
        let target = if is_seed { target } else { None };
        let figure = ReportFigure::new(name, unit, found).judged(is_judged);
        if is_at_most { figure.at_most(target) } else { figure.at_least(target) }
    };
    let over_seeds = |of: &dyn Fn(&GroupResult) -> f64| estimate(&results.iter().map(of).collect::<Vec<_>>());
    let mut figures = Vec::new();
    for (index, lane) in lanes.iter().enumerate().skip(1) {
        let name = format!("ratio.{label}.{}", lane.name);
        figures.push(figure(name, ratio(results, 0, index), "x", target(preset, group, &lane.name), false));
    }
    let off = lanes.iter().position(|lane| lane.name == HINTS_OFF);
    if let (StorePreset::Bare, Some(off)) = (preset, off) {
        for (index, lane) in lanes.iter().enumerate().filter(|(_, lane)| !lane.name.starts_with("nectary")) {
            let name = format!("ratio_hints_off.{label}.{}", lane.name);
            let target = lane.name.starts_with("xfs.").then_some(HINTS_OFF_AIM);
            figures.push(figure(name, ratio(results, off, index), "x", target, false));
        }
    }
    let beyond = |result: &GroupResult, is_foyer: bool| {
        let peers = result.lanes.iter().filter(|lane| !lane.name.starts_with("nectary"));
        let peers = peers.filter(|lane| lane.name.starts_with("foyer") == is_foyer);
        let best = peers.map(|lane| lane.total.hit_rate()).reduce(f64::max)?;
        Some(100.0 * (result.lanes[0].total.hit_rate() - best))
    };
    for (name, is_foyer) in [("peers", false), ("foyer", true)] {
        if results.iter().any(|result| beyond(result, is_foyer).is_none()) {
            continue;
        }
        let found = over_seeds(&|result| beyond(result, is_foyer).unwrap_or(f64::NAN));
        figures.push(figure(format!("hit_rate_beyond_{name}.{label}"), found, "points", Some(0.0), false));
    }
    let written = over_seeds(&|result| result.lanes[0].written_per_byte());
    figures.push(figure(format!("written_per_byte_put.{label}"), written, "B", Some(WRITTEN_MAX), true));
    figures
}

/// How the ratios of one disk size changed from piece to piece.
fn trends_of(results: &[GroupResult]) -> Vec<RatioTrend> {
    let Some(GroupResult { group, lanes, .. }) = results.first() else { return Vec::new() };
    let others = lanes.iter().enumerate().skip(1);
    let trend = |(index, lane): (usize, &LaneResult)| {
        let times = |result: &GroupResult, lane: usize| result.lanes[lane].times();
        let piece = |at: usize| {
            let of_seed = |result: &GroupResult| times(result, index)[at] / times(result, 0)[at];
            median(&results.iter().map(of_seed).collect::<Vec<_>>())
        };
        let steady = |result: &GroupResult| {
            let late = |lane: usize| times(result, lane).iter().skip(lane_pieces(result) / 2).sum::<f64>();
            late(index) / late(0)
        };
        RatioTrend {
            name: format!("{}.{}", group.label, lane.name),
            pieces: (0..lanes[0].pieces.len()).map(piece).collect(),
            steady: median(&results.iter().map(steady).collect::<Vec<_>>()),
        }
    };
    others.map(trend).collect()
}

fn lane_pieces(result: &GroupResult) -> usize {
    result.lanes[0].pieces.len()
}

/// Makes the figure of the best ratio to XFS. Its target is the best such ratio of the paper.
fn best_of_xfs(figures: &[ReportFigure]) -> Option<ReportFigure> {
    let against = figures.iter().filter(|figure| figure.name.contains(".xfs."));
    let best = against.max_by(|left, right| left.value.total_cmp(&right.value))?;
    Some(ReportFigure { name: "ratio.best.xfs".to_owned(), ..best.clone() }.at_least(7.6))
}

fn row(result: &GroupResult, lane: &LaneResult) -> Value {
    let GroupResult { group, limit, demand, .. } = result;
    let (total, disk) = (&lane.total, lane.disk());
    json!({
        "contender": lane.name, "stands_for": lane.seed_name, "group": group.label, "seed": group.source.seed(),
        "disk_gb": group.seed_gb, "disk_bytes": group.disk_bytes, "disks": lane.disks, "memory": lane.memory,
        "hit_rate": total.hit_rate(), "hit_ms": hit_ms(lane), "disk_hit_ms": disk_hit_ms(lane), "put_ms": put_ms(lane),
        "disk_ios": disk.operations, "disk_io_ms": lane.disk_io_ms(), "written_per_byte_put": lane.written_per_byte(),
        "run_s": total.run_s, "requests_per_s": total.requests as f64 / total.run_s,
        "limit_requests_per_s": limit.requests_per_s(demand, lane.disks),
        "lru_over_groups_per_s": limit.lru_over_groups_per_s(demand, lane.disks), "limit": limit,
        "request_ms": spent_ms(lane), "memory_use": lane.usage, "memory_kept": lane.keeping,
        "simulated": lane.simulated, "disk_counts": lane.counts, "counters": lane.counters, "total": total,
        "pieces": lane.pieces,
    })
}

/// The versions of the programs that made the peers' file systems.
fn tools(plan: &StorePlan) -> Value {
    let kinds = plan.groups.iter().flat_map(|group| group.lanes.iter().map(|lane| &lane.kind));
    let mut programs: Vec<(&str, &str)> = kinds
        .filter_map(|kind| match kind {
            ContenderKind::Files { system, .. } => Some(system.maker()),
            _ => None,
        })
        .collect();
    programs.sort_unstable();
    programs.dedup();
    let version = |(program, _package): (&str, &str)| {
        let said = Command::new(program).arg("-V").output().ok().map(|said| [said.stdout, said.stderr].concat());
        let said = String::from_utf8_lossy(&said.unwrap_or_default()).into_owned();
        (program.to_owned(), Value::from(said.lines().next().unwrap_or_default().trim()))
    };
    Value::Object(programs.into_iter().map(version).collect())
}
