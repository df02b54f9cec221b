//! The results of a run: figures, a row for each proxy and stage, and the text.
//!
//! Owns: which figures there are. Rates and latencies are medians over rounds with their intervals; the ratio to the best
//! peer is taken within each round. The best peer of a stage is that with the highest median. Hit rates, memory, bytes and
//! times after SIGKILL are of one run.

use std::fmt::Write;
use std::time::Duration;

use nectary_block::format_size;
use serde_json::{Value, json};

use super::plan::{AGAIN, ProxyPlan};
use super::replay::ReplayResult;
use super::steady::{QUANTILES, RATE_SHARE, SteadyResult};
use crate::group::GroupUsage;
use crate::statistics::{IntervalEstimate, estimate, median, paired_ratio};
use crate::{ExperimentReport, ReportFigure, machine};

/// The names of the percentiles.
const QUANTILE_NAMES: [&str; 3] = ["p50_us", "p99_us", "p999_us"];
/// The targets: requests/s over the best peer, and the time until the hit rate is back. *Units*: seconds.
const MEMORY_AIM: f64 = 2.0;
const PRESSURE_AIM: f64 = 1.5;
const RECOVERED_AIM_S: f64 = 5.0;
/// Nectary's name.
const NECTARY: &str = "nectary";

/// A stage at a steady state.
#[derive(Debug, Clone)]
pub(super) struct SteadyStage {
    pub results: Vec<SteadyResult>,
    /// The planned requests a second.
    pub rate: f64,
    /// The memory of each proxy behind the stage.
    pub resident: Vec<(String, GroupUsage)>,
    /// The bytes and the number of the objects.
    pub set_bytes: u64,
    pub objects: usize,
}

/// All stages.
#[derive(Debug, Clone)]
pub(super) struct ProxyResults {
    pub memory: SteadyStage,
    pub pressure: SteadyStage,
    pub replays: Vec<ReplayResult>,
}

/// Makes the report of a run.
pub(super) fn report(
    plan: &ProxyPlan,
    results: &ProxyResults,
    failures: &[String],
    took: Duration,
) -> ExperimentReport {
    let stages = [("memory", &results.memory, MEMORY_AIM), ("pressure", &results.pressure, PRESSURE_AIM)];
    let mut figures: Vec<ReportFigure> =
        stages.iter().flat_map(|(name, stage, aim)| steady_figures(name, stage, *aim)).collect();
    figures.extend(results.replays.iter().flat_map(replay_figures));
    let is_judged = plan.is_judged();
    let mut figures: Vec<ReportFigure> = figures.into_iter().map(|figure| figure.judged(is_judged)).collect();
    figures.sort_by_key(|figure| (!figure.name.ends_with("over_again"), !figure.is_short()));
    let mut rows: Vec<Value> = stages.iter().flat_map(|(name, stage, _)| steady_rows(name, stage)).collect();
    rows.extend(results.replays.iter().map(|one| json!({ "stage": "replay", "proxy": one.name, "result": one })));
    let not_run: Vec<&String> = plan.not_run.iter().chain(failures).collect();
    let versions: Vec<&str> = plan.contenders.iter().map(|one| one.version.as_str()).collect();
    let setting = json!({
        "version": env!("CARGO_PKG_VERSION"), "command": std::env::args().collect::<Vec<_>>(),
        "quick": plan.options.quick, "machine": machine::describe(), "proxies": versions, "not_run": not_run,
        "memory_bytes": plan.memory_bytes, "small_bytes": plan.small_bytes, "large_bytes": plan.large_bytes,
        "replay_disk_bytes": plan.replay_disk_bytes, "workload": plan.source.json(), "totals": plan.totals,
        "rounds": plan.steady.rounds, "seconds": plan.steady.seconds, "rate_share": RATE_SHARE,
        "took_s": took.as_secs_f64(),
    });
    let text = text(plan, results, &figures, &not_run, took);
    ExperimentReport::new("proxy", setting, figures, rows, text)
}

fn steady_figures(name: &str, stage: &SteadyStage, aim: f64) -> Vec<ReportFigure> {
    let mut figures = Vec::new();
    let capacity = |wanted: &str| stage.results.iter().find(|one| one.name == wanted).map(|one| &one.capacity);
    if let (Some(own), Some(again)) = (capacity(NECTARY), capacity(AGAIN)) {
        figures.push(ReportFigure::new(format!("proxy.{name}.over_again"), "x", paired_ratio(own, again)));
    }
    let peers = stage.results.iter().filter(|one| !one.name.starts_with(NECTARY));
    let best = peers.max_by(|left, right| median(&left.capacity).total_cmp(&median(&right.capacity)));
    if let (Some(own), Some(best)) = (capacity(NECTARY), best) {
        let ratio = paired_ratio(own, &best.capacity);
        figures.push(ReportFigure::new(format!("proxy.{name}.over_best"), "x", ratio).at_least(aim));
    }
    for one in &stage.results {
        let rate = estimate(&one.capacity);
        figures.push(ReportFigure::new(format!("proxy.{name}.requests_per_s.{}", one.name), "1/s", rate));
        for (index, quantile) in QUANTILE_NAMES.iter().enumerate() {
            let of_rounds: Vec<f64> = one.percentiles_us.iter().map(|round| round[index]).collect();
            figures.push(ReportFigure::new(
                format!("proxy.{name}.{quantile}.{}", one.name),
                "us",
                estimate(&of_rounds),
            ));
        }
    }
    figures
}

fn replay_figures(one: &ReplayResult) -> Vec<ReportFigure> {
    let exactly = |name: &str, unit, value: f64| {
        ReportFigure::new(format!("proxy.{name}.{}", one.name), unit, IntervalEstimate::exactly(value))
    };
    let seconds = |value: Option<f64>| value.unwrap_or(f64::NAN);
    let recovered = exactly("restart.recovered_s", "s", seconds(one.restart.recovered_s));
    let recovered = match one.name == NECTARY {
        // A time that was not reached is no number, which no comparison finds too large.
        true if one.restart.recovered_s.is_none() => {
            exactly("restart.recovered_s", "s", f64::INFINITY).at_most(RECOVERED_AIM_S)
        }
        true => recovered.at_most(RECOVERED_AIM_S),
        false => recovered,
    };
    vec![
        exactly("hit_rate", "", one.hit_rate),
        exactly("byte_hit_rate", "", one.byte_hit_rate),
        exactly("replay.requests_per_s", "1/s", one.requests_per_s),
        exactly("resident_bytes", "B", one.resident_bytes as f64),
        exactly("written_per_byte_stored", "B", written_per_byte(one)),
        exactly("restart.first_hit_s", "s", seconds(one.restart.first_hit_s)),
        recovered,
    ]
}

fn written_per_byte(one: &ReplayResult) -> f64 {
    one.written_bytes as f64 / one.stored_bytes.max(1) as f64
}

fn steady_rows(name: &str, stage: &SteadyStage) -> Vec<Value> {
    let row = |one: &SteadyResult| {
        let of_all = QUANTILES.map(|share| one.latency_us.value_at_quantile(share));
        let usage = stage.resident.iter().find(|entry| entry.0 == one.name).map(|entry| entry.1);
        json!({
            "stage": name, "proxy": one.name, "set_bytes": stage.set_bytes, "objects": stage.objects,
            "planned_per_s": stage.rate, "capacity_per_s": one.capacity, "answered_per_s": one.answered,
            "latency_us": of_all, "latency_us_max": one.latency_us.max(), "percentiles_us": one.percentiles_us,
            "failed": one.failed, "hit_rate": one.hit_rate, "memory": usage,
        })
    };
    stage.results.iter().map(row).collect()
}

fn text(
    plan: &ProxyPlan,
    results: &ProxyResults,
    figures: &[ReportFigure],
    not_run: &[&String],
    took: Duration,
) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "bench proxy: {}", machine::describe());
    let versions: Vec<String> = plan
        .contenders
        .iter()
        .filter(|one| one.name != AGAIN)
        .map(|one| match &one.program.root {
            Some(root) => format!("{} ({})", one.version, root.display()),
            None => one.version.clone(),
        })
        .collect();
    let _ = writeln!(text, "{}; took {:.0} s", versions.join(", "), took.as_secs_f64());
    for line in not_run {
        let _ = writeln!(text, "{line}");
    }
    let _ = writeln!(
        text,
        "each proxy: a memory group of {}, which counts its page cache too, a disk with direct I/O below, one worker on one \
         processor; origin and load on another; {} connections",
        format_size(plan.memory_bytes),
        plan.steady.connections
    );
    if plan.options.quick {
        let _ = writeln!(text, "quick: short loads and an empty disk, for a look only");
    }
    let _ = writeln!(text, "\nNectary over itself, which is the noise, and over the best peer; then what is short");
    for figure in figures.iter().filter(|figure| figure.name.contains(".over_") || figure.is_short()) {
        text.push_str(&figure.line(34, 2));
    }
    steady_table(&mut text, "From memory", &results.memory);
    steady_table(&mut text, "Four times the memory, from disk (HAProxy has no disk)", &results.pressure);
    replay_table(&mut text, plan, results);
    text
}

fn steady_table(text: &mut String, title: &str, stage: &SteadyStage) {
    let _ = writeln!(
        text,
        "\n{title}: {} objects of {} in all, by Zipf's law; latencies from planned times at {:.0} requests a second, {:.0} % \
         of the best one's capacity",
        stage.objects,
        format_size(stage.set_bytes >> 20 << 20),
        stage.rate,
        100.0 * RATE_SHARE
    );
    let heads =
        ["proxy", "req/s", "(interval)", "answered", "p50 us", "p99 us", "p99.9 us", "hits", "failed", "resident"];
    let [proxy, rate, interval, answered, p50, p99, p999, hits, failed, resident] = heads;
    let _ = writeln!(
        text,
        "  {proxy:14} {rate:>8} {interval:>19} {answered:>9} {p50:>9} {p99:>9} {p999:>9} {hits:>6} {failed:>7} {resident:>9}"
    );
    for one in &stage.results {
        let found = estimate(&one.capacity);
        let [p50, p99, p999] = QUANTILES.map(|share| one.latency_us.value_at_quantile(share));
        let usage = stage.resident.iter().find(|entry| entry.0 == one.name).map_or(0, |entry| entry.1.resident_bytes);
        let interval = format!("({:.0} to {:.0})", found.low, found.high);
        let _ = writeln!(
            text,
            "  {:14} {:>8.0} {interval:>19} {:>9.0} {p50:>9} {p99:>9} {p999:>9} {:>6.3} {:>7} {:>8.1}M",
            one.name,
            found.value,
            median(&one.answered),
            one.hit_rate,
            one.failed,
            usage as f64 / f64::from(1 << 20)
        );
    }
}

fn replay_table(text: &mut String, plan: &ProxyPlan, results: &ProxyResults) {
    let _ = writeln!(
        text,
        "\nReplay with an empty cache and a disk of {}, then SIGKILL and {:.0} requests a second for {} s, each for another \
         stored object: {}",
        format_size(plan.replay_disk_bytes),
        plan.restart.per_s,
        plan.restart.seconds,
        plan.source.describe()
    );
    let _ = writeln!(
        text,
        "  {} requests for {:.0} MB, {} objects with {:.0} MB",
        plan.totals.requests,
        plan.totals.bytes as f64 / 1e6,
        plan.totals.objects,
        plan.totals.unique_bytes as f64 / 1e6
    );
    let heads = ["proxy", "hits", "byte hits", "req/s", "resident", "group", "written/B"];
    let [proxy, hits, byte_hits, rate, resident, group, written] = heads;
    let after = ["hits before", "answer s", "first hit s", "95 % s", "hits after"];
    let [before, answer, first, recovered, hits_after] = after;
    let _ = writeln!(
        text,
        "  {proxy:14} {hits:>6} {byte_hits:>9} {rate:>7} {resident:>9} {group:>8} {written:>9}   {before:>11} {answer:>8} \
         {first:>11} {recovered:>7} {hits_after:>10}"
    );
    let mega = |bytes: u64| format!("{:.1}M", bytes as f64 / f64::from(1 << 20));
    let seconds = |value: Option<f64>| value.map_or_else(|| "never".to_owned(), |value| format!("{value:.3}"));
    for one in &results.replays {
        let restart = &one.restart;
        let _ = writeln!(
            text,
            "  {:14} {:>6.3} {:>9.3} {:>7.0} {:>9} {:>8} {:>9.2}   {:>11.3} {:>8} {:>11} {:>7} {:>10.3}",
            one.name,
            one.hit_rate,
            one.byte_hit_rate,
            one.requests_per_s,
            mega(one.resident_bytes),
            mega(one.group_bytes),
            written_per_byte(one),
            restart.hit_rate_before,
            seconds(restart.first_answer_s),
            seconds(restart.first_hit_s),
            seconds(restart.recovered_s),
            restart.hit_rate_after
        );
    }
}
