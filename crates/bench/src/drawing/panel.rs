//! One chart: its axes and marks, in a box of a fixed size.

use std::fmt::Write;

use super::{ChartGrid, ChartPanel, class, is_broken};
use crate::statistics::IntervalEstimate;

/// The box of a chart.
pub(super) const PANEL_WIDTH: f64 = 320.0;
pub(super) const PANEL_HEIGHT: f64 = 180.0;
/// The room for the text of ticks to the left and below, and for the ends of marks.
const LEFT: f64 = 46.0;
const RIGHT: f64 = 14.0;
const BELOW: f64 = 20.0;
const ABOVE: f64 = 10.0;
/// The room above bars for the values of cut ones, which have at most five characters, and the size of their text.
const VALUES: f64 = 38.0;
const VALUE_FONT: f64 = 9.0;
/// The opacity of each part of a bar, from its lower end.
const OPACITIES: [f64; 4] = [1.0, 0.45, 0.7, 0.25];

/// The values of a chart.
#[derive(Debug, Clone, PartialEq)]
pub enum ChartMarks {
    /// Lines over the horizontal axis.
    Lines(Vec<ChartLine>),
    /// Bars beside each other.
    Bars(Vec<ChartBar>),
}

/// A line.
#[derive(Debug, Clone, PartialEq)]
pub struct ChartLine {
    /// The place of its name in the legend.
    pub series: usize,
    /// Its points, from the left.
    pub points: Vec<ChartPoint>,
    /// Whether it is a limit for the others: grey and broken.
    pub is_limit: bool,
}

/// A point of a line.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ChartPoint {
    /// Its place on the horizontal axis.
    pub x: f64,
    /// Its value with the interval.
    pub found: IntervalEstimate,
}

/// A bar.
#[derive(Debug, Clone, PartialEq)]
pub struct ChartBar {
    /// The place of its name in the legend.
    pub series: usize,
    /// The parts of its value, from the lower end.
    pub parts: Vec<f64>,
    /// Its value with the interval.
    pub found: IntervalEstimate,
}

/// Draws a chart.
pub(super) fn draw(grid: &ChartGrid, panel: &ChartPanel) -> String {
    let mut body = String::new();
    let room = if grid.x.is_none() { VALUES } else { ABOVE };
    let (right, bottom) = (PANEL_WIDTH - RIGHT, PANEL_HEIGHT - BELOW);
    let y = |value: f64| bottom - (bottom - room) * grid.y.share(value);
    for (value, text) in &grid.y.ticks {
        let at = y(*value);
        let _ = write!(body, "<path class=\"axis\" d=\"M{LEFT} {at:.1}H{right}\"/>");
        let _ = writeln!(body, "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>", LEFT - 5.0, at + 4.0);
    }
    match (&grid.x, &panel.marks) {
        (Some(axis), ChartMarks::Lines(lines)) => {
            let x = |value: f64| LEFT + 4.0 + (right - LEFT - 4.0) * axis.share(value);
            let last = axis.ticks.len().saturating_sub(1);
            for (index, (value, text)) in axis.ticks.iter().enumerate() {
                let anchor = if index == last && index > 0 { "end" } else { "middle" };
                let at = x(*value) + if anchor == "end" { RIGHT - 2.0 } else { 0.0 };
                let _ = writeln!(
                    body,
                    "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{text}</text>",
                    bottom + 15.0
                );
            }
            lines.iter().for_each(|line| draw_line(&mut body, line, &x, &y));
        }
        (_, ChartMarks::Bars(bars)) => draw_bars(&mut body, grid, bars, &y),
        (None, ChartMarks::Lines(_)) => {}
    }
    body
}

fn draw_line(body: &mut String, line: &ChartLine, x: &dyn Fn(f64) -> f64, y: &dyn Fn(f64) -> f64) {
    let points: Vec<&ChartPoint> = line.points.iter().filter(|point| point.found.value.is_finite()).collect();
    if points.is_empty() {
        return;
    }
    let colour = if line.is_limit { "limit".to_owned() } else { class(line.series) };
    let dash = if line.is_limit || is_broken(line.series) { " dash" } else { "" };
    let _ = writeln!(body, "<g class=\"{colour}\">");
    let places: Vec<String> =
        points.iter().map(|point| format!("{:.1} {:.1}", x(point.x), y(point.found.value))).collect();
    match places.as_slice() {
        [only] => {
            let _ = writeln!(body, "<path class=\"point\" d=\"M{only}m-3 0h6m-3 -3v6\"/>");
        }
        _ => {
            let _ = writeln!(body, "<path class=\"line{dash}\" d=\"M{}\"/>", places.join("L"));
        }
    }
    for point in points.iter().filter(|point| point.found.low < point.found.high) {
        let (at, low, high) = (x(point.x), y(point.found.low), y(point.found.high));
        let left = at - 2.0;
        let _ = writeln!(
            body,
            "<path class=\"range\" d=\"M{at:.1} {low:.1}V{high:.1}M{left:.1} {low:.1}h4M{left:.1} {high:.1}h4\"/>"
        );
    }
    body.push_str("</g>\n");
}

fn draw_bars(body: &mut String, grid: &ChartGrid, bars: &[ChartBar], y: &dyn Fn(f64) -> f64) {
    // A series has the same place in each chart, so that a missing bar leaves a gap.
    let places = bars.iter().map(|bar| bar.series + 1).max().unwrap_or(1).max(grid.legend.len());
    let slot = (PANEL_WIDTH - RIGHT - LEFT - 4.0) / places as f64;
    let width = (slot - 2.0).min(30.0);
    for bar in bars.iter().filter(|bar| bar.found.value.is_finite()) {
        let left = LEFT + 4.0 + slot * bar.series as f64;
        let middle = left + width / 2.0;
        let _ = writeln!(body, "<g class=\"{}\">", class(bar.series));
        let mut low = 0.0;
        for (part, opacity) in bar.parts.iter().zip(OPACITIES) {
            let (upper, lower) = (y(low + part.max(0.0)), y(low));
            let _ = writeln!(
                body,
                "<rect x=\"{left:.1}\" y=\"{upper:.1}\" width=\"{width:.1}\" height=\"{:.1}\" fill-opacity=\"{opacity}\"/>",
                (lower - upper).max(0.0)
            );
            low += part.max(0.0);
        }
        if is_broken(bar.series) {
            let (from, to) = (y(0.0), y(bar.found.value));
            let _ = writeln!(
                body,
                "<path class=\"dash cut\" d=\"M{middle:.1} {from:.1}V{to:.1}\" style=\"stroke-width:2\"/>"
            );
        }
        let IntervalEstimate { value, low, high } = bar.found;
        let is_cut = grid.y.is_cut(value);
        if low < high && !is_cut {
            let (from, to) = (y(low), y(high));
            let _ = writeln!(
                body,
                "<path class=\"whisker\" d=\"M{middle:.1} {from:.1}V{to:.1}M{:.1} {from:.1}h4M{:.1} {to:.1}h4\"/>",
                middle - 2.0,
                middle - 2.0
            );
        }
        if is_cut {
            let end = y(value);
            let _ = writeln!(
                body,
                "<path class=\"cut\" d=\"M{:.1} {:.1}l{:.1} -5\"/>",
                left - 1.0,
                end + 12.0,
                width + 2.0
            );
            // The value stands upright, so that it is no wider than its bar.
            let (at, above) = (middle + VALUE_FONT * 0.35, end - 4.0);
            let text = match value {
                value if value >= 9999.5 => "&gt;9999".to_owned(),
                value if value >= 99.5 => format!("{value:.0}"),
                value => format!("{value:.2}"),
            };
            let _ = writeln!(
                body,
                "<text x=\"{at:.1}\" y=\"{above:.1}\" font-size=\"{VALUE_FONT}\" transform=\"rotate(-90 {at:.1} \
                 {above:.1})\">{text}</text>"
            );
        }
        body.push_str("</g>\n");
    }
}
