//! The tables of `bench proxy` in the report, from its JSON: rates and latencies, hit rates and bytes, SIGKILL, requests
//! with two meanings, and the suite for HTTP caches.

use serde_json::Value;

use super::number;
use super::sections::{cell, table};
use crate::ExperimentReport;
use crate::drawing::escaped;
use crate::proxy::STEADY_STAGES;
use crate::statistics::{estimate, median};

/// The tables, each with its heading.
pub(super) fn tables(report: &ExperimentReport) -> String {
    let mut html = String::new();
    for (stage, title) in STEADY_STAGES {
        html += &titled(title, &steady(&of(report, stage)));
    }
    let replays = of(report, "replay");
    html += &titled("The same requests, memory and disk for all", &replay(&replays));
    html += &titled("After SIGKILL, in seconds since the signal", &restart(&replays));
    html += &titled("Requests with two meanings", &smuggling(&of(report, "smuggling")));
    let suite =
        report.setting["suite"].as_str().filter(|suite| !suite.is_empty()).unwrap_or("The suite for HTTP caches");
    html + &titled(suite, &cache_tests(&of(report, "cache-tests")))
}

fn of<'a>(report: &'a ExperimentReport, stage: &str) -> Vec<&'a Value> {
    report.rows.iter().filter(|row| row["stage"] == stage).collect()
}

fn titled(title: &str, rows: &str) -> String {
    let rows = if rows.is_empty() { "<p class=\"bad\">NOT RUN</p>\n" } else { rows };
    format!("<h4>{}</h4>\n{rows}", escaped(title))
}

/// A table of rows; nothing without rows.
fn filled(headings: &[&str], rows: &[&Value], line: impl Fn(&Value) -> Vec<String>) -> String {
    let name = |row: &Value| escaped(row["proxy"].as_str().unwrap_or_default());
    let lines: Vec<Vec<String>> =
        rows.iter().map(|row| [name(row)].into_iter().chain(line(row)).collect::<Vec<_>>()).collect();
    if lines.is_empty() { String::new() } else { table(headings, &lines) }
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().map_or(&[][..], Vec::as_slice).iter().filter_map(Value::as_f64).collect()
}

/// A number, or `absent`.
fn of_value(value: &Value, absent: &str) -> String {
    value.as_f64().map_or_else(|| absent.to_owned(), number)
}

/// Bytes in MiB.
fn mebibytes(value: &Value) -> String {
    value.as_f64().map_or_else(|| "-".to_owned(), |bytes| number((bytes / f64::from(1 << 20) * 10.0).round() / 10.0))
}

fn steady(rows: &[&Value]) -> String {
    let planned = rows.first().map_or(f64::NAN, |row| row["planned_per_s"].as_f64().unwrap_or(f64::NAN).round());
    let answered = format!("answered of {} planned/s", number(planned));
    let headings = [
        "proxy",
        "most requests/s",
        &answered,
        "p50, us",
        "p99, us",
        "p99.9, us",
        "hit rate",
        "failed",
        "resident, MiB",
    ];
    filled(&headings, rows, |row| {
        let mut line = vec![
            cell(estimate(&numbers(&row["capacity_per_s"]))),
            number(median(&numbers(&row["answered_per_s"])).round()),
        ];
        line.extend((0..3).map(|index| of_value(&row["latency_us"][index], "-")));
        line.extend([of_value(&row["hit_rate"], "-"), of_value(&row["failed"], "-")]);
        line.push(mebibytes(&row["memory"]["resident_bytes"]));
        line
    })
}

fn replay(rows: &[&Value]) -> String {
    let headings = [
        "proxy",
        "hit rate",
        "byte hit rate",
        "requests/s",
        "resident, MiB",
        "with page cache, MiB",
        "written for each byte stored",
    ];
    filled(&headings, rows, |row| {
        let result = &row["result"];
        let written = result["written_bytes"].as_f64().unwrap_or(f64::NAN);
        let stored = result["stored_bytes"].as_f64().unwrap_or(f64::NAN).max(1.0);
        vec![
            of_value(&result["hit_rate"], "-"),
            of_value(&result["byte_hit_rate"], "-"),
            of_value(&result["requests_per_s"], "-"),
            mebibytes(&result["resident_bytes"]),
            mebibytes(&result["group_bytes"]),
            number(written / stored),
        ]
    })
}

fn restart(rows: &[&Value]) -> String {
    let headings = [
        "proxy",
        "hit rate before",
        "first answer",
        "first hit",
        "95 % of hit rate",
        "95 % of answers",
        "p99 as before",
        "hit rate after",
    ];
    filled(&headings, rows, |row| {
        let restart = &row["result"]["restart"];
        let mut line = vec![of_value(&restart["hit_rate_before"], "-")];
        let times = ["first_answer_s", "first_hit_s", "recovered_s", "requests_recovered_s", "p99_recovered_s"];
        line.extend(times.map(|time| of_value(&restart[time], "never")));
        line.push(of_value(&restart["hit_rate_after"], "-"));
        line
    })
}

fn smuggling(rows: &[&Value]) -> String {
    let headings = ["proxy", "refused", "passed on with one meaning", "through, with two", "which"];
    filled(&headings, rows, |row| {
        let result = &row["result"];
        let list = |name: &str| result[name].as_array().map_or(&[][..], Vec::as_slice);
        let through: Vec<String> = list("through").iter().filter_map(Value::as_str).map(escaped).collect();
        let class = if through.is_empty() { "good" } else { "bad" };
        vec![
            of_value(&result["refused"], "-"),
            list("cleaned").len().to_string(),
            format!("<span class=\"{class}\">{}</span>", through.len()),
            through.join("<br>"),
        ]
    })
}

fn cache_tests(rows: &[&Value]) -> String {
    filled(&["proxy", "required", "optimal"], rows, |row| {
        let of = |kind: &str| {
            let tests = &row["result"][kind];
            format!("{} of {}", of_value(&tests["passed"], "-"), of_value(&tests["count"], "-"))
        };
        vec![of("required"), of("optimal")]
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::drawing::tests::is_well_formed;

    #[test]
    fn proxy_tables_have_every_stage() {
        let steady = |stage: &str| {
            json!({ "stage": stage, "proxy": "nginx", "planned_per_s": 700.4, "capacity_per_s": [1000.0, 1100.0],
                    "answered_per_s": [700.0], "latency_us": [10, 20, 30], "hit_rate": 1.0, "failed": 0,
                    "memory": { "resident_bytes": 3 << 20 } })
        };
        let restart = json!({ "hit_rate_before": 0.9, "first_answer_s": 0.1, "first_hit_s": 0.2, "recovered_s": null });
        let rows = vec![
            steady("memory"),
            steady("pressure"),
            json!({ "stage": "replay", "proxy": "nginx", "result": {
                "hit_rate": 0.5, "written_bytes": 30, "stored_bytes": 10, "restart": restart } }),
            json!({ "stage": "smuggling", "proxy": "nginx", "result": {
                "refused": 30, "cleaned": ["a"], "through": ["a <bare> LF: why"] } }),
            json!({ "stage": "cache-tests", "proxy": "nginx", "result": {
                "required": { "passed": 100, "count": 160 }, "optimal": { "passed": 58, "count": 105 } } }),
        ];
        let report = ExperimentReport::new("proxy", json!({ "suite": "suite 1" }), Vec::new(), rows, String::new());
        let html = tables(&report);
        is_well_formed(&html);
        for text in [
            "answered of 700 planned/s",
            "<td>3</td>",
            "<td>never</td>",
            "a &lt;bare&gt; LF: why",
            "<h4>suite 1</h4>",
            "100 of 160",
        ] {
            assert!(html.contains(text), "{text}: {html}");
        }
        assert!(!html.contains("NOT RUN"));
        let nothing = ExperimentReport::new("proxy", json!({}), Vec::new(), Vec::new(), String::new());
        assert_eq!(tables(&nothing).matches("NOT RUN").count(), 6);
    }
}
