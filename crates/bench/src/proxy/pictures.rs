//! The pictures of a run, from its JSON: requests a second of each proxy, latencies at the planned rate, and hits after
//! SIGKILL.

use serde_json::Value;

use crate::ExperimentReport;
use crate::drawing::{ChartAxis, ChartBar, ChartCard, ChartGrid, ChartLine, ChartMarks, ChartPanel, ChartPoint};
use crate::statistics::{IntervalEstimate, estimate};

/// The stages at a steady state, with their titles.
pub(crate) const STEADY_STAGES: [(&str, &str); 2] =
    [("memory", "From memory"), ("pressure", "Four times the memory, from disk")];

/// The proxies of a run, in its order.
fn proxies(report: &ExperimentReport) -> Vec<&str> {
    let mut found = Vec::new();
    for name in report.rows.iter().filter(|row| row["stage"] != "cache-tests").filter_map(|row| row["proxy"].as_str()) {
        if !found.contains(&name) {
            found.push(name);
        }
    }
    found
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().map_or(&[][..], Vec::as_slice).iter().filter_map(Value::as_f64).collect()
}

/// Pairs of numbers as points without intervals.
fn points(value: &Value) -> Vec<ChartPoint> {
    let pairs = value.as_array().map_or(&[][..], Vec::as_slice).iter();
    let point =
        |pair: &Value| Some(ChartPoint { x: pair[0].as_f64()?, found: IntervalEstimate::exactly(pair[1].as_f64()?) });
    pairs.filter_map(point).collect()
}

/// The pictures: rates, latencies, hits after SIGKILL.
pub fn pictures(report: &ExperimentReport) -> Vec<ChartGrid> {
    let names = proxies(report);
    let legend: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let rows = |stage: &str| {
        let rows = report.rows.iter().filter(move |row| row["stage"] == stage);
        let series = |row: &Value| names.iter().position(|name| row["proxy"] == *name);
        rows.filter_map(|row| Some((series(row)?, row))).collect::<Vec<_>>()
    };
    let card = |kind: &str, stage: &str, title: &str, marks| ChartCard {
        id: format!("{}-{kind}-{stage}", report.experiment),
        title: title.to_owned(),
        panels: vec![ChartPanel { name: String::new(), marks }],
    };
    let bars = |stage: &str| {
        let bar = |(series, row): (usize, &Value)| {
            let found = estimate(&numbers(&row["capacity_per_s"]));
            ChartBar { series, parts: vec![found.value], found }
        };
        rows(stage).into_iter().map(bar).collect::<Vec<_>>()
    };
    let lines = |stage: &str, list: &dyn Fn(&Value) -> Vec<ChartPoint>| {
        let line = |(series, row): (usize, &Value)| ChartLine { series, points: list(row), is_limit: false };
        rows(stage).into_iter().map(line).filter(|line| !line.points.is_empty()).collect::<Vec<_>>()
    };
    let highest = STEADY_STAGES.iter().flat_map(|(stage, _)| bars(stage)).map(|bar| bar.found.high).fold(0.0, f64::max);
    let rates = ChartGrid {
        legend: legend.clone(),
        note: "As fast as each proxy answers. Upright lines: intervals over rounds.".to_owned(),
        x: None,
        y: ChartAxis::linear("requests a second", highest * 1.05),
        cards: STEADY_STAGES
            .iter()
            .map(|(stage, title)| card("rates", stage, title, ChartMarks::Bars(bars(stage))))
            .collect(),
    };
    let curves: Vec<_> = STEADY_STAGES
        .iter()
        .map(|(stage, title)| (stage, title, lines(stage, &|row| points(&row["latency_curve_us"]))))
        .collect();
    let all = || curves.iter().flat_map(|one| &one.2).flat_map(|line| &line.points);
    let latencies = ChartGrid {
        legend: legend.clone(),
        note: "From the planned time of each request, at the same rate for all proxies; at 100 is the 99th percentile."
            .to_owned(),
        x: Some(ChartAxis::log("one request in so many takes longer", all().map(|point| point.x))),
        y: ChartAxis::log("latency, us", all().map(|point| point.found.value)),
        cards: curves
            .iter()
            .map(|(stage, title, lines)| card("latencies", stage, title, ChartMarks::Lines(lines.clone())))
            .collect(),
    };
    let after = lines("replay", &|row| points(&row["result"]["restart"]["windows"]));
    let last_s = after.iter().flat_map(|line| &line.points).map(|point| point.x).fold(0.0, f64::max);
    let restart = ChartGrid {
        legend,
        note: "Each request is for another object that was stored; windows of a quarter of a second.".to_owned(),
        x: Some(ChartAxis::linear("seconds since SIGKILL", last_s)),
        y: ChartAxis::linear("hit rate", 1.0),
        cards: vec![card("hits", "restart", "After SIGKILL", ChartMarks::Lines(after))],
    };
    vec![rates, latencies, restart]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn proxies_have_bars_and_lines() {
        let steady = |stage: &str, proxy: &str, per_s: f64| {
            json!({ "stage": stage, "proxy": proxy, "capacity_per_s": [per_s, per_s * 1.1],
                    "latency_curve_us": [[2.0, 100], [10.0, 300], [100.0, 9000]] })
        };
        let replay = json!({ "stage": "replay", "proxy": "nectary",
                             "result": { "restart": { "windows": [[0.25, 0.0], [0.5, 1.0]] } } });
        let rows = vec![
            steady("memory", "nectary", 1000.0),
            steady("memory", "haproxy", 900.0),
            steady("pressure", "nectary", 800.0),
            replay,
            json!({ "stage": "cache-tests", "proxy": "nectary-tls" }),
        ];
        let report = ExperimentReport::new("proxy", json!({}), Vec::new(), rows, String::new());
        let [rates, latencies, restart] = pictures(&report).try_into().unwrap();
        assert_eq!(
            (rates.legend.as_slice(), rates.cards.len()),
            (&["nectary".to_owned(), "haproxy".to_owned()][..], 2)
        );
        let ChartMarks::Bars(bars) = &rates.cards[1].panels[0].marks else { panic!("bars") };
        assert_eq!((bars.len(), bars[0].found.value.round()), (1, 840.0));
        let ChartMarks::Lines(lines) = &latencies.cards[0].panels[0].marks else { panic!("lines") };
        assert_eq!((lines.len(), lines[1].series, lines[1].points[2].found.value), (2, 1, 9000.0));
        let ChartMarks::Lines(lines) = &restart.cards[0].panels[0].marks else { panic!("lines") };
        assert_eq!((lines.len(), lines[0].points.len()), (1, 2));
        for report in [report, ExperimentReport::new("proxy", json!({}), Vec::new(), Vec::new(), String::new())] {
            crate::drawing::tests::is_well_formed(&crate::drawing::svg_file("proxy", &pictures(&report)));
        }
    }
}
