//! The figures of the NCAR report, from the JSON of a run: 20 figures of two plots each, in groups that share a legend.
//!
//! Owns: which series have which colour. Figures 1 to 4 distinguish numbers of streams, 5 to 8 modes, 9 to 12 hosts,
//! and 13 to 20 systems. All have the same axes.

use super::super::plot::size_in_name;
use super::figures::{self, NcarFigure};
use super::{CacheEmptying, MeasuredSystem, NcarSeries};
use crate::ExperimentReport;
use crate::drawing::{ChartAxis, ChartCard, ChartGrid, ChartLine, ChartMarks, ChartPanel, ChartPoint};
use crate::io::job::{OpenMode, RequestOperation};

/// The first figures of the groups.
const GROUPS: [u32; 5] = [1, 5, 9, 13, 21];

/// The series of a run with their points.
type Drawn = Vec<(NcarSeries, Vec<ChartPoint>)>;

/// A picture for each group of figures.
pub fn pictures(report: &ExperimentReport) -> Vec<ChartGrid> {
    let known: Vec<(String, NcarSeries)> = super::series(true).into_iter().map(|one| (one.name(), one)).collect();
    let mut drawn: Drawn = Vec::new();
    for figure in &report.figures {
        let Some((name, x)) = figure.name.strip_prefix("ncar.").and_then(size_in_name) else { continue };
        let Some((_, series)) = known.iter().find(|one| one.0 == name) else { continue };
        let point = ChartPoint { x, found: figure.found() };
        match drawn.iter_mut().find(|one| one.0 == *series) {
            Some(one) => one.1.push(point),
            None => drawn.push((*series, vec![point])),
        }
    }
    let points = || drawn.iter().flat_map(|one| &one.1);
    let x = ChartAxis::sizes("bytes of a request", points().map(|point| point.x));
    let y = ChartAxis::log("MiB/s", points().map(|point| point.found.value));
    let all = figures::all();
    GROUPS
        .windows(2)
        .map(|ends| {
            let group: Vec<&NcarFigure> =
                all.iter().filter(|figure| (ends[0]..ends[1]).contains(&figure.number)).collect();
            let mut legend = Vec::new();
            let cards = group.iter().map(|figure| card(figure, &drawn, &mut legend)).collect();
            let note = "Grey: the device below, direct, with as many streams. Upright lines: intervals.".to_owned();
            ChartGrid { legend, note, x: Some(x.clone()), y: y.clone(), cards }
        })
        .collect()
}

/// The name of a figure in links.
pub fn figure_id(number: u32) -> String {
    format!("ncar-figure-{number}")
}

/// The titles of the figures, in order.
pub fn titles() -> Vec<String> {
    figures::all().iter().map(NcarFigure::title).collect()
}

fn card(figure: &NcarFigure, drawn: &Drawn, legend: &mut Vec<String>) -> ChartCard {
    let panels = figure.parts().into_iter().map(|(name, part)| {
        let mut lines = Vec::new();
        for (series, points) in drawn.iter().filter(|one| figure.shows(&one.0) && part.shows(&one.0)) {
            let key = key(figure, series);
            let place = legend.iter().position(|name| *name == key).unwrap_or(legend.len());
            if place == legend.len() {
                legend.push(key);
            }
            lines.push(ChartLine { series: place, points: points.clone(), is_limit: false });
        }
        let streams = figure.streams.last().copied().unwrap_or(1);
        let is_limit = |series: &NcarSeries| {
            series.system == MeasuredSystem::Raw
                && series.mode == OpenMode::Direct
                && series.operation == figure.operation
                && series.streams == streams
        };
        // Plots of a mode show both hosts; the device is as fast on each.
        let limits: Vec<_> = drawn.iter().filter(|one| is_limit(&one.0)).collect();
        let limit = limits.iter().find(|one| part.shows(&one.0)).or(limits.first());
        lines.extend(limit.map(|(_, points)| ChartLine { series: 0, points: points.clone(), is_limit: true }));
        ChartPanel { name, marks: ChartMarks::Lines(lines) }
    });
    let panels = panels.collect();
    ChartCard { id: figure_id(figure.number), title: figure.title(), panels }
}

/// What distinguishes a series from the others of its figure.
fn key(figure: &NcarFigure, series: &NcarSeries) -> String {
    if figure.is_against_xfs {
        let is_read = series.operation == RequestOperation::Read && series.mode == OpenMode::Buffered;
        return match series.emptied {
            CacheEmptying::Remount => format!("{} (remounted)", series.system.name()),
            CacheEmptying::Drop if is_read => format!("{} (pages dropped)", series.system.name()),
            CacheEmptying::Drop => series.system.name(),
        };
    }
    match (figure.streams.len(), figure.number) {
        (2.., _) if series.streams == 1 => "1 stream".to_owned(),
        (2.., _) => format!("{} streams", series.streams),
        (_, ..=8) => series.mode.name().to_owned(),
        _ => format!("{} host", series.host.name()),
    }
}
