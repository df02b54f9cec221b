//! The pictures of a run, from its JSON: the paper's figure 7 shows block reads and response times, its figure 8 the
//! parts of the response time.
//!
//! Each program has a chart, with a bar for each lane. Bars are relative to LRU, so programs of any size can be
//! compared.

use serde_json::Value;

use super::{BASE, BLOCKS};
use crate::ExperimentReport;
use crate::drawing::{ChartAxis, ChartBar, ChartCard, ChartGrid, ChartMarks, ChartPanel};
use crate::statistics::IntervalEstimate;

/// The length at which bars are cut, as a multiple of LRU's value.
const MOST: f64 = 1.5;

/// What a picture shows of a row, in parts that add up, and the least and the greatest execution.
type Parts<'a> = &'a dyn Fn(&Value) -> (Vec<f64>, (f64, f64));

fn float(value: &Value) -> f64 {
    value.as_f64().unwrap_or(f64::NAN)
}

/// The pictures: block reads, and response times in their parts.
pub fn pictures(report: &ExperimentReport) -> Vec<ChartGrid> {
    let reads = |row: &Value| (vec![float(&row["block_reads"])], range(&row["block_reads_range"]));
    let note =
        "Lines reach from the least to the greatest execution. Bars beyond 1.5 are cut, and have their value above.";
    vec![
        grid(report, "reads", "block reads, LRU = 1", note, &reads),
        grid(
            report,
            "times",
            "response time, LRU = 1",
            &format!("From below: I/O stall, system, user; programs together have no parts. {note}"),
            &|row| (time_parts(row), range(&row["response_range_s"])),
        ),
    ]
}

fn range(value: &Value) -> (f64, f64) {
    (float(&value[0]), float(&value[1]))
}

/// The parts of the response time as the paper divides it: I/O stall, system, user; one part if the clock was real.
fn time_parts(row: &Value) -> Vec<f64> {
    let executions = row["executions"].as_array().map_or(&[][..], Vec::as_slice);
    let is_virtual = executions.first().is_some_and(|one| one["is_virtual"] == Value::Bool(true));
    let mean = |names: &[&str]| {
        let sums =
            executions.iter().map(|one| names.iter().map(|name| one[*name].as_f64().unwrap_or(0.0)).sum::<f64>());
        super::results::mean(sums)
    };
    match is_virtual {
        true => vec![mean(&["stall_s"]), mean(&["system_s", "cache_system_s"]), mean(&["user_s", "cache_user_s"])],
        false => vec![float(&row["response_s"])],
    }
}

fn grid(report: &ExperimentReport, kind: &str, label: &str, note: &str, of: Parts<'_>) -> ChartGrid {
    let mut legend: Vec<String> = Vec::new();
    let mut workloads: Vec<(String, String, Vec<&Value>)> = Vec::new();
    for row in &report.rows {
        let lane = row["lane"].as_str().unwrap_or_default();
        if !legend.iter().any(|name| name == lane) {
            legend.push(lane.to_owned());
        }
        let name = row["workload"].as_str().unwrap_or_default();
        let blocks = row["blocks"].as_u64().unwrap_or(BLOCKS);
        let title = if blocks == BLOCKS { name.to_owned() } else { format!("{name}, {blocks} blocks") };
        match workloads.iter_mut().find(|one| one.0 == title) {
            Some(one) => one.2.push(row),
            None => workloads.push((title, format!("dear-{kind}-{}-{blocks}", name.replace('+', "-")), vec![row])),
        }
    }
    let cards = workloads.into_iter().map(|(title, id, rows)| {
        let base = rows.iter().find(|row| row["lane"] == BASE).map_or(f64::NAN, |row| of(row).0.iter().sum());
        let bars = rows.iter().map(|row| {
            let (parts, (low, high)) = of(row);
            let sum: f64 = parts.iter().sum();
            let found = IntervalEstimate { value: sum / base, low: low / base, high: high / base };
            let series = legend.iter().position(|name| row["lane"] == **name).unwrap_or(0);
            ChartBar { series, parts: parts.iter().map(|part| part / base).collect(), found }
        });
        let marks = ChartMarks::Bars(bars.collect());
        ChartCard { id, title, panels: vec![ChartPanel { name: String::new(), marks }] }
    });
    let cards = cards.collect();
    ChartGrid { legend, note: note.to_owned(), x: None, y: ChartAxis::linear(label, MOST), cards }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn row(workload: &str, lane: &str, reads: f64) -> Value {
        let execution = json!({
            "is_virtual": !workload.contains('+'), "stall_s": reads / 200.0, "system_s": 1.0, "user_s": 2.0,
            "cache_system_s": 0.5, "cache_user_s": 0.5,
        });
        json!({
            "workload": workload, "blocks": 768, "lane": lane, "block_reads": reads, "response_s": reads / 100.0,
            "block_reads_range": [reads - 10.0, reads + 10.0], "response_range_s": [1.0, 2.0], "executions": [execution],
        })
    }

    #[test]
    fn lanes_of_programs_have_bars() {
        let rows = vec![row("sort", "lru", 1000.0), row("sort", "mru", 2550.0), row("cscope+sort", "lru", 100.0)];
        let report = ExperimentReport::new("cache-dear", json!({}), Vec::new(), rows, String::new());
        let [reads, times] = pictures(&report).try_into().unwrap();
        let bars = |grid: &ChartGrid, card: usize| match &grid.cards[card].panels[0].marks {
            ChartMarks::Bars(bars) => bars.clone(),
            ChartMarks::Lines(_) => Vec::new(),
        };
        let cut = &bars(&reads, 0)[1];
        assert_eq!((cut.found.value, cut.found.low, cut.series), (2.55, 2.54, 1));
        // Stall, system, user: 5, 1.5 and 2.5 s of 9 s.
        let parts: Vec<f64> = bars(&times, 0)[0].parts.iter().map(|part| (part * 9.0 * 10.0).round() / 10.0).collect();
        assert_eq!(parts, [5.0, 1.5, 2.5]);
        assert_eq!(bars(&times, 1)[0].parts, [1.0], "programs together have one part");
        assert_eq!(reads.cards[1].id, "dear-reads-cscope-sort-768");
        let svg = crate::drawing::svg_file("cache-dear", &[reads, times]);
        crate::drawing::tests::is_well_formed(&svg);
        assert_eq!(svg.matches(">2.55</text>").count(), 1);
    }

    #[test]
    fn rows_without_numbers_have_no_bar() {
        let mut wrong = row("sort", "lru", 1.0);
        wrong["block_reads"] = Value::Null;
        let report = ExperimentReport::new("cache-dear", json!({}), Vec::new(), vec![wrong], String::new());
        let svg = crate::drawing::svg_file("cache-dear", &pictures(&report));
        crate::drawing::tests::is_well_formed(&svg);
    }
}
