//! Pictures of a report: for each piece of the workload, the run time of each contender divided by that of Nectary; and
//! the mean time of a request, divided into parts.
//!
//! The result is one SVG file, readable on light and dark backgrounds. The first picture has one line per contender,
//! the second, below it, one bar per contender.

use std::fmt::Write;

use super::results::{GroupResult, Spent, Trend, spent_ms};

/// The sizes of a picture, in pixels.
const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 60.0;
const NAMES: f64 = 230.0;
const BAR: f64 = 18.0;
/// The colours of contenders, which colour-blind readers can distinguish too.
const COLOURS: [&str; 8] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999933", "#882255"];
const INK: &str = "#777";

/// Draws a report.
pub(super) fn plot(experiment: &str, trends: &[Trend], groups: &[GroupResult]) -> String {
    let mut body = String::new();
    let mut top = 30.0;
    let label_of = |trend: &Trend| trend.name.split_once('.').map_or(String::new(), |parts| parts.0.to_owned());
    for of_group in trends.chunk_by(|left, right| label_of(left) == label_of(right)) {
        ratios(&mut body, &label_of(&of_group[0]), of_group, top);
        top += HEIGHT + 60.0;
    }
    for results in groups.chunk_by(|left, right| left.group.label == right.group.label) {
        top = bars(&mut body, &results[0], top) + 50.0;
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {top}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <title>{experiment}</title>\n{body}</svg>\n"
    )
}

fn words(body: &mut String, x: f64, y: f64, colour: &str, text: &str) {
    let _ = writeln!(body, "<text x=\"{x:.1}\" y=\"{y:.1}\" fill=\"{colour}\">{text}</text>");
}

/// Draws a line for each contender: its run time divided by Nectary's, for each piece of the workload.
fn ratios(body: &mut String, label: &str, trends: &[Trend], top: f64) {
    let most = trends.iter().flat_map(|trend| &trend.pieces).copied().fold(1.0, f64::max).ceil();
    let width = WIDTH - LEFT - NAMES;
    let y = |ratio: f64| top + HEIGHT * (1.0 - ratio / most);
    words(body, LEFT, top - 10.0, INK, &format!("{label}: run time over Nectary's, by piece of the workload"));
    let step = (most / 6.0).ceil().max(1.0);
    let mut line = 0.0;
    while line <= most {
        let _ = writeln!(
            body,
            "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{:.1}\" y2=\"{1:.1}\" stroke=\"{INK}\" stroke-opacity=\"0.3\"/>",
            LEFT + width,
            y(line)
        );
        words(body, LEFT - 30.0, y(line) + 4.0, INK, &format!("{line:.0}"));
        line += step;
    }
    let names = spread(trends.iter().map(|trend| y(trend.pieces.last().copied().unwrap_or(0.0))).collect());
    for (index, (trend, name_y)) in trends.iter().zip(names).enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let last = trend.pieces.len().saturating_sub(1).max(1) as f64;
        let at = |(index, ratio): (usize, &f64)| format!("{:.1},{:.1}", LEFT + width * index as f64 / last, y(*ratio));
        let points: Vec<String> = trend.pieces.iter().enumerate().map(at).collect();
        let _ = writeln!(
            body,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            points.join(" ")
        );
        let name = trend.name.split_once('.').map_or(trend.name.as_str(), |parts| parts.1);
        words(body, LEFT + width + 8.0, name_y + 4.0, colour, name);
    }
}

/// Moves overlapping names apart, but keeps each close to its line.
fn spread(wanted: Vec<f64>) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by(|left, right| wanted[*left].total_cmp(&wanted[*right]));
    let mut placed = wanted.clone();
    let mut least = f64::MIN;
    for index in order {
        placed[index] = wanted[index].max(least);
        least = placed[index] + 14.0;
    }
    placed
}

/// Draws a bar for each contender with the parts of a request's time; returns the lower end of the bars.
fn bars(body: &mut String, result: &GroupResult, top: f64) -> f64 {
    let spent: Vec<_> = result.lanes.iter().map(|lane| (lane.name.clone(), spent_ms(lane))).collect();
    let sum = |spent: &Spent| spent.read_ms + spent.write_ms + spent.daemon_ms + spent.other_ms;
    let most = spent.iter().map(|(_, spent)| sum(spent)).fold(0.001, f64::max);
    let parts = ["hits", "puts", "daemons and memory", "misses and other"];
    let label = format!("{}: time of a request, in ms; of that processor and waiting in brackets", result.group.label);
    words(body, LEFT, top, INK, &label);
    for (index, part) in parts.iter().enumerate() {
        words(body, LEFT + 150.0 * index as f64, top + 16.0, COLOURS[index], part);
    }
    let width = WIDTH - NAMES - LEFT - 150.0;
    let mut y = top + 26.0;
    for (name, spent) in &spent {
        words(body, LEFT - 50.0, y + 13.0, INK, name);
        let mut x = NAMES;
        let each = [spent.read_ms, spent.write_ms, spent.daemon_ms, spent.other_ms];
        for (value, colour) in each.iter().zip(COLOURS) {
            let length = width * value / most;
            let _ = writeln!(
                body,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{length:.1}\" height=\"{BAR}\" fill=\"{colour}\"/>"
            );
            x += length;
        }
        let text = format!("{:.2} ({:.2}, {:.2})", sum(spent), spent.processor_ms, spent.waiting_ms);
        words(body, x + 6.0, y + 13.0, INK, &text);
        y += BAR + 6.0;
    }
    y
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_contender_has_a_line_and_names_do_not_lie_on_each_other() {
        let trend = |name: &str, end: f64| Trend { name: name.to_owned(), pieces: vec![1.0, end], steady: end };
        let trends = [trend("4gb.xfs.50", 3.9), trend("4gb.xfs.128", 3.91), trend("9gb.xfs.50", 3.0)];
        let picture = plot("store-table4", &trends, &[]);
        assert_eq!(picture.matches("<polyline").count(), 3);
        assert!(picture.contains(">xfs.128</text>") && picture.ends_with("</svg>\n"));
        let placed = spread(vec![10.0, 11.0, 5.0]);
        assert!((placed[0] - placed[1]).abs() >= 14.0 && placed[2] == 5.0, "{placed:?}");
    }
}
