//! The report of a run as tables for the terminal.

use std::fmt::Write;
use std::time::Duration;

use nectary_block::format_size;

use super::cache_tests::{PassedTests, SuiteCounts};
use super::plan::{AGAIN, ProxyPlan};
use super::results::{ProxyResults, SteadyStage};
use super::smuggling::{PAYLOADS, SmugglingResult};
use super::steady::{QUANTILES, RATE_SHARE};
use crate::statistics::{estimate, median};
use crate::{ReportFigure, machine};

/// The report of a run as text.
pub(super) fn text(
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
    restart_table(&mut text, results);
    conformance_table(&mut text, results);
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
    let _ = writeln!(text, "  {proxy:14} {hits:>6} {byte_hits:>9} {rate:>7} {resident:>9} {group:>8} {written:>9}");
    let mega = |bytes: u64| format!("{:.1}M", bytes as f64 / f64::from(1 << 20));
    for one in &results.replays {
        let _ = writeln!(
            text,
            "  {:14} {:>6.3} {:>9.3} {:>7.0} {:>9} {:>8} {:>9.2}",
            one.name,
            one.hit_rate,
            one.byte_hit_rate,
            one.requests_per_s,
            mega(one.resident_bytes),
            mega(one.group_bytes),
            one.written_per_byte_stored()
        );
    }
}

fn restart_table(text: &mut String, results: &ProxyResults) {
    let _ = writeln!(
        text,
        "\nSeconds from SIGKILL until the first answer, the first hit, and 95 % of hit rate, answers and p99 before"
    );
    let heads = ["proxy", "hits before", "p99 us", "answer", "first hit", "95 % hits", "answers", "p99", "hits after"];
    let [proxy, before, p99_us, answer, first, recovered, requests, p99, after] = heads;
    let _ = writeln!(
        text,
        "  {proxy:14} {before:>11} {p99_us:>9} {answer:>8} {first:>9} {recovered:>9} {requests:>8} {p99:>8} {after:>10}"
    );
    let seconds = |value: Option<f64>| value.map_or_else(|| "never".to_owned(), |value| format!("{value:.3}"));
    for one in &results.replays {
        let restart = &one.restart;
        let _ = writeln!(
            text,
            "  {:14} {:>11.3} {:>9.0} {:>8} {:>9} {:>9} {:>8} {:>8} {:>10.3}",
            one.name,
            restart.hit_rate_before,
            restart.p99_before_us,
            seconds(restart.first_answer_s),
            seconds(restart.first_hit_s),
            seconds(restart.recovered_s),
            seconds(restart.requests_recovered_s),
            seconds(restart.p99_recovered_s),
            restart.hit_rate_after
        );
    }
}

/// What reached the origin of requests with two meanings, and the tests of the suite.
fn conformance_table(text: &mut String, results: &ProxyResults) {
    let _ = writeln!(
        text,
        "\n{PAYLOADS} requests with two meanings: refused, passed on with one meaning, and with two (through)\n  {:14} \
         {:>8} {:>8} {:>8}",
        "proxy", "refused", "cleaned", "through"
    );
    for one in &results.smuggling {
        let SmugglingResult { name, refused, cleaned, through } = one;
        let _ = writeln!(text, "  {name:14} {refused:>8} {:>8} {:>8}", cleaned.len(), through.len());
        for what in through {
            let _ = writeln!(text, "    through: {what}");
        }
    }
    if results.suite.counts.is_empty() {
        return;
    }
    let _ = writeln!(text, "\n{}\n  {:14} {:>10} {:>10}", results.suite.suite, "proxy", "required", "optimal");
    for SuiteCounts { name, required, optimal } in &results.suite.counts {
        let of = |tests: &PassedTests| format!("{}/{}", tests.passed, tests.count);
        let _ = writeln!(text, "  {name:14} {:>10} {:>10}", of(required), of(optimal));
    }
}
