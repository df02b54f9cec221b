//! The picture of a sweep, from its JSON: MiB/s over the request size, with the device's ceiling.

use std::collections::BTreeMap;

use nectary_block::parse_size;

use crate::ExperimentReport;
use crate::drawing::{ChartAxis, ChartCard, ChartGrid, ChartLine, ChartMarks, ChartPanel, ChartPoint};
use crate::statistics::IntervalEstimate;

/// The end of a figure's name, which is the size of its requests in bytes, and what is before it.
pub(super) fn size_in_name(name: &str) -> Option<(&str, f64)> {
    let (series, size) = name.rsplit_once('.')?;
    Some((series, parse_size(size).ok()? as f64))
}

/// A picture has a chart for each operation, with a line for each combination of mode, number of streams and depth.
pub fn pictures(report: &ExperimentReport) -> Vec<ChartGrid> {
    let mut series: BTreeMap<&str, Vec<ChartPoint>> = BTreeMap::new();
    let mut ceilings: BTreeMap<&str, IntervalEstimate> = BTreeMap::new();
    for figure in &report.figures {
        let Some(name) = figure.name.strip_prefix("io.") else { continue };
        if let Some(operation) = name.strip_prefix("ceiling.") {
            ceilings.insert(operation, figure.found());
        } else if let Some((name, x)) = size_in_name(name) {
            series.entry(name).or_default().push(ChartPoint { x, found: figure.found() });
        }
    }
    let mut legend: Vec<String> = Vec::new();
    let mut operations: Vec<(&str, Vec<ChartLine>)> = Vec::new();
    for (name, points) in &mut series {
        points.sort_by(|left, right| left.x.total_cmp(&right.x));
        let Some((operation, how)) = name.split_once('.') else { continue };
        let how = how.replace('.', ", ");
        let place = legend.iter().position(|name| *name == how).unwrap_or(legend.len());
        if place == legend.len() {
            legend.push(how);
        }
        let line = ChartLine { series: place, points: points.clone(), is_limit: false };
        match operations.iter_mut().find(|one| one.0 == operation) {
            Some(one) => one.1.push(line),
            None => operations.push((operation, vec![line])),
        }
    }
    let sizes: Vec<f64> = series.values().flatten().map(|point| point.x).collect();
    let rates = series.values().flatten().map(|point| point.found.value).chain(ceilings.values().map(|one| one.value));
    let y = ChartAxis::log("MiB/s", rates.collect::<Vec<_>>());
    let cards = operations.into_iter().map(|(operation, mut lines)| {
        let ceiling = ceilings.get(if operation == "write" { "write" } else { "read" });
        lines.extend(ceiling.map(|&found| ChartLine {
            series: 0,
            // From one end of the axis to the other.
            points: vec![ChartPoint { x: 0.0, found }, ChartPoint { x: f64::MAX, found }],
            is_limit: true,
        }));
        let panels = vec![ChartPanel { name: String::new(), marks: ChartMarks::Lines(lines) }];
        ChartCard { id: format!("io-{operation}"), title: format!("bench io: {operation}"), panels }
    });
    let note = "Grey: the device's ceiling, direct requests of 4 MiB, 8 at once. Upright lines: intervals.".to_owned();
    let cards = cards.collect();
    vec![ChartGrid { legend, note, x: Some(ChartAxis::sizes("bytes of a request", sizes)), y, cards }]
}
