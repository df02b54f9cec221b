//! The results of a run: figures, and a row for each proxy and stage.
//!
//! Owns: which figures there are. Rates and latencies are medians over rounds with their intervals; the ratio to the
//! best peer is taken within each round. The best peer of a stage is that with the highest median rate, or the lowest
//! p99. Hit rates, memory, bytes and times after SIGKILL are of one run. Counts of payloads and of the suite's tests have
//! a verdict in short runs, too, because they do not depend on time. Leaves to others: tables (`text`), pictures
//! (`pictures`).

use std::time::Duration;

use serde_json::{Value, json};

use super::cache_tests::{PassedTests, SuiteResults};
use super::plan::{AGAIN, ProxyPlan};
use super::replay::ReplayResult;
use super::smuggling::{PAYLOADS, SmugglingResult};
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
/// The tests of the suite for HTTP caches that should pass, of so many that there are; a suite with another number of
/// tests has no target.
const REQUIRED_AIM: (f64, u64) = (158.0, 160);
const OPTIMAL_AIM: (f64, u64) = (100.0, 105);
/// The points of a curve of latencies: one request in so many takes longer.
const ONE_IN: [f64; 7] = [2.0, 5.0, 10.0, 100.0, 1000.0, 10_000.0, 100_000.0];
/// Nectary's name.
pub(super) const NECTARY: &str = "nectary";

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
    pub smuggling: Vec<SmugglingResult>,
    pub suite: SuiteResults,
}

/// The figures of a run: the noise first, then those that are short.
pub(super) fn figures(plan: &ProxyPlan, results: &ProxyResults) -> Vec<ReportFigure> {
    let stages = [("memory", &results.memory, MEMORY_AIM), ("pressure", &results.pressure, PRESSURE_AIM)];
    let mut figures: Vec<ReportFigure> =
        stages.iter().flat_map(|(name, stage, aim)| steady_figures(name, stage, *aim)).collect();
    let observed_s = plan.restart.seconds as f64;
    figures.extend(results.replays.iter().flat_map(|one| replay_figures(one, observed_s)));
    let is_judged = plan.is_judged();
    let mut figures: Vec<ReportFigure> = figures.into_iter().map(|figure| figure.judged(is_judged)).collect();
    figures.extend(conformance_figures(&results.smuggling, &results.suite));
    figures.sort_by_key(|figure| (!figure.name.ends_with("over_again"), !figure.is_short()));
    figures
}

/// Makes the report of a run, of which `text` is for the terminal.
pub(super) fn report(
    plan: &ProxyPlan,
    results: &ProxyResults,
    figures: Vec<ReportFigure>,
    not_run: &[&String],
    (text, took): (String, Duration),
) -> ExperimentReport {
    let mut rows = steady_rows("memory", &results.memory);
    rows.extend(steady_rows("pressure", &results.pressure));
    rows.extend(results.replays.iter().map(|one| json!({ "stage": "replay", "proxy": one.name, "result": one })));
    rows.extend(results.smuggling.iter().map(|one| json!({ "stage": "smuggling", "proxy": one.name, "result": one })));
    rows.extend(
        results.suite.counts.iter().map(|one| json!({ "stage": "cache-tests", "proxy": one.name, "result": one })),
    );
    let versions: Vec<&str> = plan.contenders.iter().map(|one| one.version.as_str()).collect();
    let setting = json!({
        "version": env!("CARGO_PKG_VERSION"), "command": std::env::args().collect::<Vec<_>>(),
        "quick": plan.options.quick, "machine": machine::describe(), "proxies": versions, "not_run": not_run,
        "memory_bytes": plan.memory_bytes, "small_bytes": plan.small_bytes, "large_bytes": plan.large_bytes,
        "replay_disk_bytes": plan.replay_disk_bytes, "workload": plan.source.json(), "totals": plan.totals,
        "payloads": PAYLOADS, "suite": results.suite.suite, "rounds": plan.steady.rounds,
        "seconds": plan.steady.seconds, "rate_share": RATE_SHARE, "took_s": took.as_secs_f64(),
    });
    ExperimentReport::new("proxy", setting, figures, rows, text)
}

fn steady_figures(name: &str, stage: &SteadyStage, aim: f64) -> Vec<ReportFigure> {
    let mut figures = Vec::new();
    let capacity = |wanted: &str| stage.results.iter().find(|one| one.name == wanted).map(|one| &one.capacity);
    if let (Some(own), Some(again)) = (capacity(NECTARY), capacity(AGAIN)) {
        figures.push(ReportFigure::new(format!("proxy.{name}.over_again"), "x", paired_ratio(own, again)));
    }
    let peers = || stage.results.iter().filter(|one| !one.name.starts_with(NECTARY));
    let best = peers().max_by(|left, right| median(&left.capacity).total_cmp(&median(&right.capacity)));
    if let (Some(own), Some(best)) = (capacity(NECTARY), best) {
        let ratio = paired_ratio(own, &best.capacity);
        figures.push(ReportFigure::new(format!("proxy.{name}.over_best"), "x", ratio).at_least(aim));
    }
    let p99 = |one: &SteadyResult| one.percentiles_us.iter().map(|round| round[1]).collect::<Vec<f64>>();
    let own = stage.results.iter().find(|one| one.name == NECTARY).map(p99);
    let best = peers().map(p99).min_by(|left, right| median(left).total_cmp(&median(right)));
    if let (Some(own), Some(best)) = (own, best) {
        let ratio = paired_ratio(&best, &own);
        figures.push(ReportFigure::new(format!("proxy.{name}.p99.over_best"), "x", ratio).at_least(aim));
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

/// The figures of a replay. What did not happen in the time that was observed after SIGKILL took longer.
fn replay_figures(one: &ReplayResult, observed_s: f64) -> Vec<ReportFigure> {
    let exactly = |name: &str, unit, value: f64| {
        ReportFigure::new(format!("proxy.{name}.{}", one.name), unit, IntervalEstimate::exactly(value))
    };
    let recovered = |name: &str, value: Option<f64>| {
        let figure = exactly(name, "s", value.unwrap_or(observed_s));
        if one.name == NECTARY { figure.at_most(RECOVERED_AIM_S) } else { figure }
    };
    vec![
        exactly("hit_rate", "", one.hit_rate),
        exactly("byte_hit_rate", "", one.byte_hit_rate),
        exactly("replay.requests_per_s", "1/s", one.requests_per_s),
        exactly("resident_bytes", "B", one.resident_bytes as f64),
        exactly("written_per_byte_stored", "B", one.written_per_byte_stored()),
        exactly("restart.first_hit_s", "s", one.restart.first_hit_s.unwrap_or(observed_s)),
        recovered("restart.recovered_s", one.restart.recovered_s),
        recovered("restart.requests_recovered_s", one.restart.requests_recovered_s),
        recovered("restart.p99_recovered_s", one.restart.p99_recovered_s),
    ]
}

/// Payloads and tests, as counts. Nothing of Nectary's may be through.
fn conformance_figures(smuggling: &[SmugglingResult], suite: &SuiteResults) -> Vec<ReportFigure> {
    let count = |name: &str, proxy: &str, unit, value: u64| {
        ReportFigure::new(format!("proxy.{name}.{proxy}"), unit, IntervalEstimate::exactly(value as f64))
    };
    let mut figures = Vec::new();
    for SmugglingResult { name, refused, cleaned, through } in smuggling {
        let through = count("smuggling.through", name, "payloads", through.len() as u64);
        figures.push(if name == NECTARY { through.at_most(0.0) } else { through });
        figures.push(count("smuggling.cleaned", name, "payloads", cleaned.len() as u64));
        figures.push(count("smuggling.refused", name, "payloads", *refused as u64));
    }
    for one in &suite.counts {
        for (kind, PassedTests { passed, count: of }) in [("required", one.required), ("optimal", one.optimal)] {
            figures.push(suite_figure(kind, &one.name, passed, of));
        }
    }
    figures
}

/// The figure of the tests of a kind that passed, of so many.
pub(crate) fn suite_figure(kind: &str, proxy: &str, passed: u64, of: u64) -> ReportFigure {
    let (aim, aim_of) = if kind == "required" { REQUIRED_AIM } else { OPTIMAL_AIM };
    let found = IntervalEstimate::exactly(passed as f64);
    let figure = ReportFigure::new(format!("proxy.cache_tests.{kind}.{proxy}"), "tests", found);
    figure.at_least((proxy == NECTARY && of == aim_of).then_some(aim))
}

fn steady_rows(name: &str, stage: &SteadyStage) -> Vec<Value> {
    let row = |one: &SteadyResult| {
        let of_all = QUANTILES.map(|share| one.latency_us.value_at_quantile(share));
        let usage = stage.resident.iter().find(|entry| entry.0 == one.name).map(|entry| entry.1);
        let samples = one.latency_us.len() as f64;
        let curve: Vec<(f64, u64)> = ONE_IN
            .into_iter()
            .filter(|one_in| *one_in <= samples)
            .map(|one_in| (one_in, one.latency_us.value_at_quantile(1.0 - 1.0 / one_in)))
            .collect();
        json!({
            "stage": name, "proxy": one.name, "set_bytes": stage.set_bytes, "objects": stage.objects,
            "planned_per_s": stage.rate, "capacity_per_s": one.capacity, "answered_per_s": one.answered,
            "latency_us": of_all, "latency_curve_us": curve, "latency_us_max": one.latency_us.max(), "percentiles_us": one.percentiles_us,
            "failed": one.failed, "hit_rate": one.hit_rate, "memory": usage,
        })
    };
    stage.results.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::cache_tests::SuiteCounts;
    use crate::proxy::replay::RestartResult;

    fn replay(name: &str, recovered_s: Option<f64>) -> ReplayResult {
        let restart = RestartResult { recovered_s, p99_recovered_s: Some(1.0), ..RestartResult::default() };
        ReplayResult {
            name: name.to_owned(),
            requests_per_s: 100.0,
            hit_rate: 0.5,
            byte_hit_rate: 0.25,
            resident_bytes: 10,
            group_bytes: 20,
            written_bytes: 30,
            stored_bytes: 20,
            restart,
        }
    }

    /// What never recovered is late by the whole time that was observed; only Nectary has targets.
    #[test]
    fn unrecovered_proxy_misses_its_target() {
        let figures = replay_figures(&replay("nectary", None), 20.0);
        let of = |figures: &[ReportFigure], name: &str| {
            let figure = figures.iter().find(|one| one.name == format!("proxy.{name}")).expect("a figure");
            (figure.value, figure.target, figure.is_short())
        };
        assert_eq!(of(&figures, "restart.recovered_s.nectary"), (20.0, Some(RECOVERED_AIM_S), true));
        assert_eq!(of(&figures, "restart.p99_recovered_s.nectary"), (1.0, Some(RECOVERED_AIM_S), false));
        assert_eq!(of(&figures, "written_per_byte_stored.nectary"), (1.5, None, false));
        let peer = replay_figures(&replay("squid", None), 20.0);
        assert_eq!(of(&peer, "restart.recovered_s.squid"), (20.0, None, false));
    }

    /// Rates and latencies are compared with different peers, if different ones are best.
    #[test]
    fn best_peers_differ_by_figure() {
        let one = |name: &str, per_s: f64, p99_us: f64| SteadyResult {
            name: name.to_owned(),
            capacity: vec![per_s; 3],
            answered: vec![per_s; 3],
            latency_us: crate::proxy::load::histogram(),
            percentiles_us: vec![[1.0, p99_us, 2.0 * p99_us]; 3],
            failed: 0,
            hit_rate: 1.0,
        };
        let results = vec![one(NECTARY, 300.0, 10.0), one("nginx", 100.0, 50.0), one("squid", 50.0, 15.0)];
        let stage = SteadyStage { results, rate: 70.0, resident: Vec::new(), set_bytes: 1, objects: 1 };
        let figures = steady_figures("memory", &stage, 2.0);
        let of = |name: &str| {
            let figure = figures.iter().find(|one| one.name == format!("proxy.memory.{name}")).expect("a figure");
            (figure.value, figure.is_short())
        };
        assert_eq!((of("over_best"), of("p99.over_best")), ((3.0, false), (1.5, true)));
    }

    /// One payload through Nectary is short in a run of any length; a peer's counts have no target.
    #[test]
    fn passed_payload_misses_its_target() {
        let through = |name: &str, through: &[&str]| SmugglingResult {
            name: name.to_owned(),
            through: through.iter().map(|what| (*what).to_owned()).collect(),
            ..SmugglingResult::default()
        };
        let short = |results: &[SmugglingResult]| {
            conformance_figures(results, &SuiteResults::default()).iter().filter(|one| one.is_short()).count()
        };
        assert_eq!(short(&[through(NECTARY, &[]), through("squid", &["a bare LF"])]), 0);
        assert_eq!(short(&[through(NECTARY, &["a bare LF"])]), 1);
    }

    #[test]
    fn suite_counts_become_figures() {
        let tests = |passed, count| PassedTests { passed, count };
        let one =
            |name: &str| SuiteCounts { name: name.to_owned(), required: tests(158, 160), optimal: tests(99, 105) };
        let suite = SuiteResults { suite: "suite".to_owned(), counts: vec![one(NECTARY), one("nginx")] };
        let figures = conformance_figures(&[], &suite);
        let short: Vec<&str> = figures.iter().filter(|one| one.is_short()).map(|one| &*one.name).collect();
        assert_eq!((figures.len(), short), (4, vec!["proxy.cache_tests.optimal.nectary"]));
    }
}
