//! What a run has to say: the seeds' columns, the ratios with their intervals and targets, what lost first.

use std::fmt::Write;
use std::time::Duration;

use nectary_block::format_size;
use serde::Serialize;
use serde_json::{Value, json};

use super::Preset;
use super::limit::Limit;
use super::plan::{Group, Plan};
use super::run::{GroupResult, LaneResult};
use crate::disk::Timekeeping;
use crate::machine;
use crate::statistics::paired_ratio;

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
    /// Whether the target is what it should be at most.
    pub is_at_most: bool,
}

impl Figure {
    /// Whether it is under its target.
    pub fn is_short(&self) -> bool {
        self.target.is_some_and(|target| if self.is_at_most { self.value > target } else { self.value < target })
    }
}

/// A finished run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// `store-table4`, `store-table5` or `store-bare`.
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
    pub fn new(plan: &Plan, groups: Vec<GroupResult>, took: Duration) -> Report {
        let mut figures = Vec::new();
        let mut rows = Vec::new();
        for GroupResult { group, limit, lanes, .. } in &groups {
            figures.extend(ratios(plan.options.preset, group, lanes));
            rows.extend(lanes.iter().map(|lane| row(group, limit, lane)));
        }
        if plan.options.preset != Preset::Bare {
            figures.extend(best_of_xfs(&figures));
        }
        // Stable: what is as short as another keeps its order.
        figures.sort_by_key(|figure| (!figure.name.ends_with(".nectary-again"), !figure.is_short()));
        let experiment = format!("store-{}", plan.options.preset.name());
        let setting = json!({
            "scale": plan.scale, "requests": plan.requests, "quick": plan.options.quick, "seed": plan.options.seed, "pairs": plan.pairs,
            "threads": plan.threads, "disk": plan.disk, "memory_bytes": plan.memory_bytes,
            "group_bytes": plan.group_bytes(), "workload": groups.iter().map(|one| json!({"group": one.group.label, "totals": one.totals})).collect::<Vec<_>>(),
            "machine": machine::describe(),
            "skipped": plan.skipped, "took_s": took.as_secs_f64(),
        });
        let text = text(plan, &groups, &figures, took);
        Report { experiment, setting, figures, rows, text }
    }

    /// The report for people.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// What the design asks for, by preset, group and peer.
fn target(preset: Preset, group: &Group, name: &str) -> Option<f64> {
    match preset {
        Preset::Bare if name.starts_with("xfs.") && group.label == EMBEDDED_AIM => Some(5.0),
        Preset::Bare if name.starts_with("foyer") => Some(1.0),
        Preset::Table4 if name.starts_with("xfs.") => Some(4.6),
        Preset::Table4 if name.starts_with("ext4-dirsync.") => Some(13.0),
        Preset::Table5 if name.starts_with("ext4-async.") && !name.ends_with("one-disk") => Some(2.3),
        Preset::Table5 if name == "nectary-one-disk" => Some(1.0),
        _ => None,
    }
}

/// The pages for which a bare disk has a target with hints, and what the target without hints is.
const EMBEDDED_AIM: &str = "embedded-5";
const HINTS_OFF: &str = "nectary-hints-off";
const HINTS_OFF_AIM: f64 = 2.0;
/// What may be written to the device for each byte that was put.
const WRITTEN_MAX: f64 = 1.25;

/// Nectary's requests a second over those of each other contender, piece by piece.
fn ratios(preset: Preset, group: &Group, lanes: &[LaneResult]) -> Vec<Figure> {
    let Some(nectary) = lanes.first() else { return Vec::new() };
    let label = &group.label;
    let ratio = |name: String, one: &LaneResult, other: &LaneResult, target| {
        let estimate = paired_ratio(&other.times(), &one.times());
        let (value, low, high) = (estimate.value, estimate.low, estimate.high);
        Figure { name, value, unit: "x", low, high, target, is_at_most: false }
    };
    let with = lanes
        .iter()
        .skip(1)
        .map(|lane| ratio(format!("ratio.{label}.{}", lane.name), nectary, lane, target(preset, group, &lane.name)));
    let mut figures: Vec<Figure> = with.collect();
    let single = |name, value, unit, target, is_at_most| Figure {
        name,
        value,
        unit,
        low: value,
        high: value,
        target: Some(target),
        is_at_most,
    };
    if let (Preset::Bare, Some(off)) = (preset, lanes.iter().find(|lane| lane.name == HINTS_OFF)) {
        for lane in lanes.iter().filter(|lane| !lane.name.starts_with("nectary")) {
            let target = lane.name.starts_with("xfs.").then_some(HINTS_OFF_AIM);
            figures.push(ratio(format!("ratio_hints_off.{label}.{}", lane.name), off, lane, target));
        }
    }
    let best = |is_foyer: bool| {
        let peers = lanes.iter().filter(|lane| !lane.name.starts_with("nectary"));
        let peers = peers.filter(|lane| lane.name.starts_with("foyer") == is_foyer);
        peers.map(|lane| lane.total.hit_rate()).reduce(f64::max)
    };
    for (name, best) in [("peers", best(false)), ("foyer", best(true))] {
        let Some(best) = best else { continue };
        let beyond = 100.0 * (nectary.total.hit_rate() - best);
        figures.push(single(format!("hit_rate_beyond_{name}.{label}"), beyond, "points", 0.0, false));
    }
    let written = nectary.written_per_byte();
    figures.push(single(format!("written_per_byte_put.{label}"), written, "B", WRITTEN_MAX, true));
    figures
}

/// The seeds' best ratio against XFS is a target of its own.
fn best_of_xfs(figures: &[Figure]) -> Option<Figure> {
    let against = figures.iter().filter(|figure| figure.name.contains(".xfs."));
    let best = against.max_by(|left, right| left.value.total_cmp(&right.value))?;
    Some(Figure { name: "ratio.best.xfs".to_owned(), target: Some(7.6), is_at_most: false, ..best.clone() })
}

fn row(group: &Group, limit: &Limit, lane: &LaneResult) -> Value {
    let (total, disk) = (&lane.total, lane.disk());
    json!({
        "contender": lane.name, "stands_for": lane.seed_name, "group": group.label, "disk_gb": group.seed_gb, "disk_bytes": group.disk_bytes,
        "disks": lane.disks, "memory": lane.memory, "hit_rate": total.hit_rate(), "fs_read_ms": read_ms(lane),
        "fs_write_ms": write_ms(lane), "disk_ios": disk.operations, "disk_io_ms": lane.disk_io_ms(),
        "written_per_byte_put": lane.written_per_byte(), "run_s": total.run_s, "requests_per_s": total.requests as f64 / total.run_s,
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

fn text(plan: &Plan, groups: &[GroupResult], figures: &[Figure], took: Duration) -> String {
    let mut text = String::new();
    head(&mut text, plan, took);
    let _ = writeln!(
        text,
        "\nNectary's requests a second over those of each contender, and what else has a target; first itself again, which is the noise, then what is short"
    );
    for figure in figures {
        let most = if figure.is_at_most { "at most " } else { "" };
        let target = figure.target.map(|target| format!("  target {most}{target}")).unwrap_or_default();
        let short = if figure.is_short() { "  SHORT" } else { "" };
        let Figure { name, value, unit, low, high, .. } = figure;
        let _ = writeln!(text, "  {name:34} {value:7.2} {unit} ({low:.2} to {high:.2}){target}{short}");
    }
    for result in groups {
        table(&mut text, result);
    }
    for skipped in &plan.skipped {
        let _ = writeln!(text, "not run: {skipped}");
    }
    text
}

fn head(text: &mut String, plan: &Plan, took: Duration) {
    let Plan { scale, pairs, threads, .. } = plan;
    let option = if plan.disk.is_bare { "--disk" } else { "--seed" };
    let _ = writeln!(text, "bench store {option} {}: {}", plan.options.preset.name(), machine::describe());
    let _ = writeln!(
        text,
        "scale {scale:.5}, seed {}, {pairs} pairs, {threads} thread(s), took {:.0} s; {} requests of {}",
        plan.options.seed,
        took.as_secs_f64(),
        plan.requests,
        plan.trace_requests
    );
    let path = match (&plan.disk.model, plan.disk.is_bare, plan.disk.time) {
        (_, true, _) => {
            "a bare disk under every contender: a file on this device and a loop device with direct I/O; times are \
                         real, without the harness's own between calls"
                .to_owned()
        }
        (model, _, time) => {
            let clock = match time {
                Timekeeping::Virtual => "virtual clock".to_owned(),
                Timekeeping::Real { speed } => format!("{speed} times faster than real"),
            };
            let model = model.as_deref().unwrap_or("none");
            format!(
                "disk model {model} ({clock}) under every contender by FUSE file and loop device with direct I/O; times are the \
                 disk's"
            )
        }
    };
    let _ = writeln!(text, "{path}");
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

fn table(text: &mut String, result: &GroupResult) {
    let GroupResult { group, limit, totals, lanes } = result;
    let mega_of = |bytes: u64| bytes as f64 / 1e6;
    let _ = writeln!(
        text,
        "\n{}: {} GB scaled to {:.0} MB, {:.0} MB unique, {:.0} MB in all; the disk alone: {:.3} ms a read of 8 KiB, {:.1} MB/s written",
        group.label,
        group.seed_gb,
        mega_of(group.disk_bytes),
        mega_of(totals.unique_bytes),
        mega_of(totals.bytes),
        limit.random_read_ms,
        limit.write_bytes_per_s / 1e6
    );
    let _ = writeln!(
        text,
        "  {:20} {:11} {:>7} {:>5} {:>5} {:>8} {:>8} {:>9} {:>8} {:>7} {:>6} {:>9} {:>8} {:>7} {:>8} {:>8}",
        "file system",
        "stands for",
        "memory",
        "hits",
        "sim",
        "read ms",
        "write ms",
        "disk I/Os",
        "I/O ms",
        "written",
        "cpu us",
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
            "  {:20} {:11} {:>7} {:>5.3} {:>5.3} {:>8.3} {:>8.3} {:>9} {:>8.3} {:>7.2} {:>6.0} {:>9.1} {:>8.1} {:>7.0} {:>8} {:>8}",
            lane.name,
            lane.seed_name,
            lane.memory,
            total.hit_rate(),
            lane.simulated.map_or(f64::NAN, |expected| expected.hits as f64 / total.requests.max(1) as f64),
            read_ms(lane),
            write_ms(lane),
            lane.disk().operations,
            lane.disk_io_ms(),
            lane.written_per_byte(),
            1e6 * total.processor_s / total.requests.max(1) as f64,
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
