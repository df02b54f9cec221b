//! What a run has to say: the seeds' columns, the ratios with their intervals and targets, what lost first.

use std::fmt::Write;
use std::time::Duration;

use nectary_block::format_size;
use serde::Serialize;
use serde_json::{Value, json};

use super::Preset;
use super::limit::Limit;
use super::plan::{Group, Plan};
use super::run::LaneResult;
use crate::disk::Timekeeping;
use crate::machine;
use crate::statistics::paired_ratio;
use crate::workload::Totals;

/// One figure of a report.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figure {
    /// Its name, which stays the same between versions.
    pub name: String,
    /// The median.
    pub value: f64,
    /// Its unit.
    pub unit: &'static str,
    /// The interval's ends.
    pub low: f64,
    /// See `low`.
    pub high: f64,
    /// What it should be at least, where something was set.
    pub target: Option<f64>,
}

impl Figure {
    /// Whether it is under its target.
    pub fn is_short(&self) -> bool {
        self.target.is_some_and(|target| self.value < target)
    }
}

/// A finished run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// `store-table4` or `store-table5`.
    pub experiment: String,
    /// How it was asked for and where it ran.
    pub setting: Value,
    /// All figures: Nectary against itself, then what is short of its target, then the rest.
    pub figures: Vec<Figure>,
    /// A row a contender and disk size.
    pub rows: Vec<Value>,
    #[serde(skip)]
    text: String,
}

impl Report {
    /// Makes the report of a run.
    pub fn new(plan: &Plan, totals: Totals, groups: Vec<(Group, Limit, Vec<LaneResult>)>, took: Duration) -> Report {
        let mut figures = Vec::new();
        let mut rows = Vec::new();
        for (group, limit, lanes) in &groups {
            figures.extend(ratios(plan.options.preset, group, lanes));
            rows.extend(lanes.iter().map(|lane| row(group, limit, lane)));
        }
        figures.extend(best_of_xfs(&figures));
        // Stable: what is as short as another keeps its order.
        figures.sort_by_key(|figure| (!figure.name.ends_with(".nectary-again"), !figure.is_short()));
        let experiment = format!("store-{}", plan.options.preset.name());
        let setting = json!({
            "scale": plan.scale, "requests": plan.requests, "quick": plan.options.quick, "seed": plan.options.seed, "pairs": plan.pairs,
            "threads": plan.threads, "disk": plan.disk, "memory_bytes": plan.memory_bytes,
            "group_bytes": plan.group_bytes(), "workload": totals, "machine": machine::describe(),
            "skipped": plan.skipped, "took_s": took.as_secs_f64(),
        });
        let text = text(plan, totals, &groups, &figures, took);
        Report { experiment, setting, figures, rows, text }
    }

    /// The report for people.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// What the design asks for, by preset and peer.
fn target(preset: Preset, name: &str) -> Option<f64> {
    match preset {
        Preset::Table4 if name.starts_with("xfs.") => Some(4.6),
        Preset::Table4 if name.starts_with("ext4-dirsync.") => Some(13.0),
        Preset::Table5 if name.starts_with("ext4-async.") && !name.ends_with("one-disk") => Some(2.3),
        Preset::Table5 if name == "nectary-one-disk" => Some(1.0),
        _ => None,
    }
}

/// Nectary's requests a second over those of each other contender, piece by piece.
fn ratios(preset: Preset, group: &Group, lanes: &[LaneResult]) -> Vec<Figure> {
    let Some(nectary) = lanes.first() else { return Vec::new() };
    let ratio = |lane: &LaneResult| {
        let estimate = paired_ratio(&lane.times(), &nectary.times());
        Figure {
            name: format!("ratio.{}gb.{}", group.seed_gb, lane.name),
            value: estimate.value,
            unit: "x",
            low: estimate.low,
            high: estimate.high,
            target: target(preset, &lane.name),
        }
    };
    let mut figures: Vec<Figure> = lanes.iter().skip(1).map(ratio).collect();
    let peers = lanes.iter().filter(|lane| !lane.name.starts_with("nectary"));
    if let Some(best) = peers.map(|lane| lane.total.hit_rate()).reduce(f64::max) {
        let value = 100.0 * (nectary.total.hit_rate() - best);
        let name = format!("hit_rate_beyond_peers.{}gb", group.seed_gb);
        figures.push(Figure { name, value, unit: "points", low: value, high: value, target: Some(0.0) });
    }
    figures
}

/// The seeds' best ratio against XFS is a target of its own.
fn best_of_xfs(figures: &[Figure]) -> Option<Figure> {
    let against = figures.iter().filter(|figure| figure.name.contains(".xfs."));
    let best = against.max_by(|left, right| left.value.total_cmp(&right.value))?;
    Some(Figure { name: "ratio.best.xfs".to_owned(), target: Some(7.6), ..best.clone() })
}

fn row(group: &Group, limit: &Limit, lane: &LaneResult) -> Value {
    let (total, disk) = (&lane.total, lane.disk());
    json!({
        "contender": lane.name, "stands_for": lane.seed_name, "disk_gb": group.seed_gb, "disk_bytes": group.disk_bytes,
        "disks": lane.disks, "memory": lane.memory, "hit_rate": total.hit_rate(), "fs_read_ms": read_ms(lane),
        "fs_write_ms": write_ms(lane), "disk_ios": disk.operations, "disk_io_ms": lane.disk_io_ms(),
        "run_s": total.run_s, "requests_per_s": total.requests as f64 / total.run_s,
        "limit_requests_per_s": limit.requests_per_s(total, lane.disks), "limit": limit, "memory_use": lane.usage,
        "memory_kept": lane.keeping, "simulated": lane.simulated,
        "disk_counts": lane.counts, "counters": lane.counters, "total": total, "pieces": lane.pieces,
    })
}

/// Mean time of a read: from the file system, or, where memory is the store's own, of every hit, as the seeds have it.
fn read_ms(lane: &LaneResult) -> f64 {
    let total = &lane.total;
    match lane.name.starts_with("nectary") {
        true => 1e3 * total.hit_s / (total.memory_hits + total.disk_hits).max(1) as f64,
        false => 1e3 * total.disk_get_s / total.disk_hits.max(1) as f64,
    }
}

fn write_ms(lane: &LaneResult) -> f64 {
    1e3 * lane.total.put_s / lane.total.misses().max(1) as f64
}

fn text(
    plan: &Plan,
    totals: Totals,
    groups: &[(Group, Limit, Vec<LaneResult>)],
    figures: &[Figure],
    took: Duration,
) -> String {
    let mut text = String::new();
    head(&mut text, plan, totals, took);
    let _ = writeln!(
        text,
        "\nNectary's requests a second over those of each contender; first itself again, which is the noise, then what is short"
    );
    for figure in figures {
        let target = figure.target.map(|target| format!("  target {target}")).unwrap_or_default();
        let short = if figure.is_short() { "  SHORT" } else { "" };
        let Figure { name, value, unit, low, high, .. } = figure;
        let _ = writeln!(text, "  {name:34} {value:7.2} {unit} ({low:.2} to {high:.2}){target}{short}");
    }
    for (group, limit, lanes) in groups {
        table(&mut text, group, limit, lanes);
    }
    for skipped in &plan.skipped {
        let _ = writeln!(text, "not run: {skipped}");
    }
    text
}

fn head(text: &mut String, plan: &Plan, totals: Totals, took: Duration) {
    let Plan { scale, pairs, threads, .. } = plan;
    let mega = |bytes: u64| bytes as f64 / 1e6;
    let _ = writeln!(text, "bench store --seed {}: {}", plan.options.preset.name(), machine::describe());
    let _ = writeln!(
        text,
        "scale {scale:.5}, seed {}, {pairs} pairs, {threads} thread(s), took {:.0} s; {} requests of {}, {:.0} MB unique, {:.0} MB in all",
        plan.options.seed,
        took.as_secs_f64(),
        totals.requests,
        plan.laws.requests,
        mega(totals.unique_bytes),
        mega(totals.bytes)
    );
    let model = plan.disk.model.as_deref().unwrap_or("none");
    let clock = match plan.disk.time {
        Timekeeping::Virtual => "virtual clock".to_owned(),
        Timekeeping::Real { speed } => format!("{speed} times faster than real"),
    };
    let _ = writeln!(
        text,
        "disk model {model} ({clock}) under every contender by FUSE file and loop device with direct I/O; times are the disk's"
    );
    let _ = writeln!(
        text,
        "memory {}, in groups of {}, which is a quarter and 6M more; every byte that was read back was compared, and the hits \
         with a simulation's",
        format_size(plan.memory_bytes),
        format_size(plan.group_bytes())
    );
    if plan.options.quick {
        let _ =
            writeln!(text, "quick: the beginning of the trace alone, which does not fill the disks; for a look only");
    }
}

fn table(text: &mut String, group: &Group, limit: &Limit, lanes: &[LaneResult]) {
    let _ = writeln!(
        text,
        "\n{} GB scaled to {:.0} MB; the disk alone: {:.2} ms a read of 8 KiB, {:.1} MB/s written",
        group.seed_gb,
        group.disk_bytes as f64 / 1e6,
        limit.random_read_ms,
        limit.write_bytes_per_s / 1e6
    );
    let _ = writeln!(
        text,
        "  {:20} {:11} {:>7} {:>5} {:>5} {:>8} {:>8} {:>9} {:>8} {:>9} {:>7} {:>7} {:>8} {:>8}",
        "file system",
        "stands for",
        "memory",
        "hits",
        "sim",
        "read ms",
        "write ms",
        "disk I/Os",
        "I/O ms",
        "run s",
        "req/s",
        "limit",
        "mean mem",
        "peak mem"
    );
    for lane in lanes {
        let total = &lane.total;
        let _ = writeln!(
            text,
            "  {:20} {:11} {:>7} {:>5.3} {:>5.3} {:>8.2} {:>8.2} {:>9} {:>8.2} {:>9.0} {:>7.1} {:>7.0} {:>8} {:>8}",
            lane.name,
            lane.seed_name,
            lane.memory,
            total.hit_rate(),
            lane.simulated.map_or(f64::NAN, |expected| expected.hits as f64 / total.requests.max(1) as f64),
            read_ms(lane),
            write_ms(lane),
            lane.disk().operations,
            lane.disk_io_ms(),
            lane.run_time().as_secs_f64(),
            total.requests as f64 / total.run_s,
            limit.requests_per_s(total, lane.disks),
            mega(lane.keeping.used_mean_bytes),
            mega(lane.keeping.used_max_bytes),
        );
        disks(text, lane);
    }
}

/// What each of several disks did, and how long requests waited for them.
fn disks(text: &mut String, lane: &LaneResult) {
    if lane.counts.len() < 2 {
        return;
    }
    let seconds = lane.total.run_s.max(1e-9);
    let shares = lane.counts.iter().enumerate().map(|(index, disk)| {
        let busy = disk.busy_us as f64 / 1e4 / seconds;
        format!("disk {}: {} I/Os, {busy:.0} % busy", index + 1, disk.operations)
    });
    let shares: Vec<String> = shares.collect();
    let waited = match lane.is_virtual {
        true => {
            format!("; mean wait for a disk {:.2} ms a request", 1e3 * lane.total.waited_s / lane.total.requests as f64)
        }
        false => String::new(),
    };
    let _ = writeln!(text, "    {}{waited}", shares.join("; "));
}

fn mega(bytes: u64) -> String {
    format!("{:.1}M", bytes as f64 / f64::from(1 << 20))
}
