//! The pictures of a run, from its JSON: for each piece of the workload, the run time of each contender divided by that
//! of Nectary; and the mean time of a request, divided into parts.

use serde_json::Value;

use crate::ExperimentReport;
use crate::drawing::{ChartAxis, ChartBar, ChartCard, ChartGrid, ChartLine, ChartMarks, ChartPanel, ChartPoint};
use crate::statistics::{IntervalEstimate, estimate, median};

/// The parts of a request's time, from the lower end of a bar.
const PARTS: [&str; 4] = ["read_ms", "write_ms", "daemon_ms", "other_ms"];
/// The contender with which the others are compared.
const BASE: &str = "nectary";

fn word<'a>(row: &'a Value, name: &str) -> &'a str {
    row[name].as_str().unwrap_or_default()
}

/// The values of a list, in their order and each once.
fn distinct<'a>(report: &'a ExperimentReport, name: &str) -> Vec<&'a str> {
    let mut found = Vec::new();
    for row in &report.rows {
        let word = word(row, name);
        if !found.contains(&word) {
            found.push(word);
        }
    }
    found
}

/// The rows of a contender in a group, one for each seed of the workload.
fn of<'a>(report: &'a ExperimentReport, group: &str, contender: &str) -> Vec<&'a Value> {
    report.rows.iter().filter(|row| word(row, "group") == group && word(row, "contender") == contender).collect()
}

/// The run times of the pieces.
fn times(row: &Value) -> Vec<f64> {
    let pieces = row["pieces"].as_array().map_or(&[][..], Vec::as_slice);
    pieces.iter().map(|piece| piece["run_s"].as_f64().unwrap_or(f64::NAN)).collect()
}

/// The pictures: ratios by piece, and parts of a request's time.
pub fn pictures(report: &ExperimentReport) -> Vec<ChartGrid> {
    let (groups, contenders) = (distinct(report, "group"), distinct(report, "contender"));
    let mut ratios = Vec::new();
    let mut bars = Vec::new();
    for group in &groups {
        let (mut lines, mut spent) = (Vec::new(), Vec::new());
        for (series, contender) in contenders.iter().enumerate() {
            let rows = of(report, group, contender);
            if rows.is_empty() {
                continue;
            }
            if *contender != BASE {
                lines.push(ChartLine { series, points: points(&of(report, group, BASE), &rows), is_limit: false });
            }
            let value = |row: &Value, part: &str| row["request_ms"][part].as_f64().unwrap_or(0.0);
            let parts = PARTS.map(|part| median(&rows.iter().map(|row| value(row, part)).collect::<Vec<_>>()));
            let sums: Vec<f64> = rows.iter().map(|row| PARTS.iter().map(|part| value(row, part)).sum()).collect();
            spent.push(ChartBar { series, parts: parts.to_vec(), found: estimate(&sums) });
        }
        ratios.push((group, lines));
        bars.push((group, spent));
    }
    let id = |kind: &str, group: &str| format!("{}-{kind}-{group}", report.experiment);
    let legend: Vec<String> = contenders.iter().map(|name| (*name).to_owned()).collect();
    let card = |kind: &str, group: &str, marks| {
        let panels = vec![ChartPanel { name: String::new(), marks }];
        ChartCard { id: id(kind, group), title: format!("{group}: {kind}"), panels }
    };
    let highest = |values: Vec<f64>| values.into_iter().filter(|value| value.is_finite()).fold(0.0, f64::max);
    let all_points = ratios.iter().flat_map(|one| &one.1).flat_map(|line| &line.points);
    let y =
        ChartAxis::linear("run time over Nectary's", highest(all_points.map(|one| one.found.high).collect()) * 1.05);
    let pieces = ratios.iter().flat_map(|one| &one.1).map(|line| line.points.len()).max().unwrap_or(1);
    let trend = ChartGrid {
        legend: legend.clone(),
        note: "A piece is a part of the workload, in order. Upright lines: intervals over seeds of the workload."
            .to_owned(),
        x: Some(ChartAxis::linear("piece of the workload", pieces as f64)),
        y,
        cards: ratios.into_iter().map(|(group, lines)| card("ratios", group, ChartMarks::Lines(lines))).collect(),
    };
    // What is more than four times Nectary's is cut, so that the parts of short bars can be seen.
    let own = bars.iter().filter_map(|one| one.1.first()).map(|bar| bar.found.value).collect();
    let all = bars.iter().flat_map(|one| &one.1).map(|bar| bar.found.high).collect();
    let most = highest(all).min(4.0 * highest(own)) * 1.05;
    let spent = ChartGrid {
        legend,
        note: "From below: hits, puts, daemons and memory, misses and other. Upright lines: intervals over seeds. Bars that \
               are too long are cut, and have their value above."
            .to_owned(),
        x: None,
        y: ChartAxis::linear("ms a request", most),
        cards: bars.into_iter().map(|(group, bars)| card("requests", group, ChartMarks::Bars(bars))).collect(),
    };
    vec![trend, spent]
}

/// For each piece, the time of `others` divided by that of `base`, over seeds.
fn points(base: &[&Value], others: &[&Value]) -> Vec<ChartPoint> {
    let (base, others): (Vec<_>, Vec<_>) =
        (base.iter().map(|row| times(row)).collect(), others.iter().map(|row| times(row)).collect());
    let pieces = others.iter().chain(&base).map(Vec::len).min().unwrap_or(0);
    let ratios = |piece: usize| -> IntervalEstimate {
        estimate(&base.iter().zip(&others).map(|(base, other)| other[piece] / base[piece]).collect::<Vec<_>>())
    };
    (0..pieces).map(|piece| ChartPoint { x: piece as f64 + 1.0, found: ratios(piece) }).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn contenders_have_line_and_bar() {
        let row = |group: &str, contender: &str, seed: u64, run_s: f64| {
            json!({
                "group": group, "contender": contender, "seed": seed, "pieces": [{ "run_s": run_s }, { "run_s": 2.0 * run_s }],
                "request_ms": { "read_ms": run_s, "write_ms": 1.0, "daemon_ms": 0.5, "other_ms": 0.25 },
            })
        };
        let rows = vec![
            row("4gb", "nectary", 1, 1.0),
            row("4gb", "xfs.50", 1, 3.0),
            row("4gb", "nectary", 2, 1.0),
            row("4gb", "xfs.50", 2, 5.0),
            row("9gb", "nectary", 1, 1.0),
        ];
        let report = ExperimentReport::new("store-table4", json!({}), Vec::new(), rows, String::new());
        let [trend, spent] = pictures(&report).try_into().unwrap();
        assert_eq!((trend.legend, trend.cards.len()), (vec!["nectary".to_owned(), "xfs.50".to_owned()], 2));
        let ChartMarks::Lines(lines) = &trend.cards[0].panels[0].marks else { panic!("lines") };
        assert_eq!((lines.len(), lines[0].points.len(), lines[0].points[0].found.value), (1, 2, 4.0));
        let ChartMarks::Bars(bars) = &spent.cards[0].panels[0].marks else { panic!("bars") };
        assert_eq!((bars.len(), bars[1].parts.as_slice(), bars[1].found.value), (2, &[4.0, 1.0, 0.5, 0.25][..], 5.75));
        crate::drawing::tests::is_well_formed(&crate::drawing::svg_file("store", &pictures(&report)));
    }
}
