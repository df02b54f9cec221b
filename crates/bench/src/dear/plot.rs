//! Pictures of a report: the paper's figure 7 shows block reads, its figure 8 the parts of the response time.
//!
//! The result is one SVG file, readable on light and dark backgrounds. Each program has a group of bars, one per lane.
//! Bars are relative to LRU, so programs of any size can be compared. A thin line on each bar reaches from the least to
//! the greatest execution. A bar that is too long is cut: it has a gap near its end, and its value stands above it.

use std::fmt::Write;

use super::execute::Execution;
use super::results::Workload;
use super::{BASE, BLOCKS, Lane};

/// The sizes of the picture, in pixels.
const LEFT: f64 = 50.0;
const BAR: f64 = 9.0;
const GAP: f64 = 26.0;
const HEIGHT: f64 = 170.0;
/// The length at which bars are cut, as a multiple of LRU's value.
const MOST: f64 = 1.5;
/// The room for the values of cut bars.
const VALUES: f64 = 30.0;
/// The colours of lanes, which colour-blind readers can distinguish too.
const COLOURS: [&str; 11] = [
    "#777777", "#aaaaaa", "#cc79a7", "#882255", "#d55e00", "#e69f00", "#0072b2", "#009e73", "#56b4e9", "#999933",
    "#44aa99",
];
const INK: &str = "#777";
/// The distance between the names of lanes.
const NAMES: f64 = 64.0;

/// What a picture shows of an execution, in parts that add up.
type Parts<'a> = &'a dyn Fn(&Execution) -> Vec<f64>;

/// Draws a report.
pub(super) fn plot(workloads: &[Workload]) -> String {
    let most = workloads.iter().max_by_key(|workload| workload.lanes.len());
    let lanes: Vec<Lane> = most.map_or(Vec::new(), |workload| workload.lanes.iter().map(|one| one.0).collect());
    let group = BAR * lanes.len() as f64 + GAP;
    let width = (LEFT + group * workloads.len() as f64 + 20.0).max(LEFT + NAMES * lanes.len() as f64 + 20.0);
    let mut body = String::new();
    for (index, lane) in lanes.iter().enumerate() {
        words(&mut body, LEFT + NAMES * index as f64, 18.0, COLOURS[index % COLOURS.len()], lane.name);
    }
    let reads = |one: &Execution| vec![one.block_reads as f64];
    let parts = |one: &Execution| {
        let processor = one.response_s() - one.stall_s;
        if one.is_virtual { vec![one.stall_s, processor] } else { vec![one.response_s()] }
    };
    let mut top = 50.0;
    let titles = [
        "Block reads, LRU = 1 (figure 7); lines: least and greatest execution",
        "Response time, LRU = 1; pale: processor, the rest stall (figure 8); lines: least and greatest execution",
    ];
    for (title, of) in titles.into_iter().zip([&reads as Parts<'_>, &parts]) {
        words(&mut body, LEFT, top, INK, title);
        let bottom = top + VALUES + HEIGHT;
        for level in [0.0, 0.5, 1.0, 1.5] {
            let y = height(bottom, level);
            let line = format!("<line x1=\"{LEFT}\" x2=\"{width:.0}\" y1=\"{y:.1}\" y2=\"{y:.1}\"");
            let _ = writeln!(body, "{line} stroke=\"{INK}\" stroke-opacity=\"0.3\"/>");
            words(&mut body, LEFT - 30.0, y + 4.0, INK, &format!("{level}"));
        }
        for (number, workload) in workloads.iter().enumerate() {
            let left = LEFT + group * number as f64 + 6.0;
            for (index, lane) in lanes.iter().enumerate() {
                let colour = COLOURS[index % COLOURS.len()];
                bar(&mut body, (left + BAR * index as f64, bottom), colour, (workload, lane), of);
            }
            words(&mut body, left, bottom + 16.0, INK, &label(workload));
        }
        top = bottom + 50.0;
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {top:.0}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<title>cache-dear</title>\n{body}</svg>\n"
    )
}

/// The name of a workload; with the size of the cache, if it is not the paper's.
fn label(workload: &Workload) -> String {
    match workload.blocks {
        BLOCKS => workload.name(),
        blocks => format!("{} ({blocks})", workload.name()),
    }
}

/// The place of a value, which is a multiple of LRU's.
fn height(bottom: f64, value: f64) -> f64 {
    bottom - HEIGHT * value / MOST
}

/// Draws the bar of a lane with its parts, its range, and the mark if it is cut. A lane that did not run has none.
fn bar(body: &mut String, (x, bottom): (f64, f64), colour: &str, (workload, lane): (&Workload, &Lane), of: Parts<'_>) {
    let sum = |one: &Execution| of(one).iter().sum::<f64>();
    let base = workload.mean(BASE, sum);
    let Some(first) = workload.lane(lane.name).first().filter(|_| base > 0.0) else { return };
    let mut low: f64 = 0.0;
    for part in 0..of(first).len() {
        let share = workload.mean(lane.name, |one| of(one)[part]) / base;
        let high = (low + share).min(MOST);
        let (y, length) = (height(bottom, high), HEIGHT * (high - low).max(0.0) / MOST);
        let opacity = if part == 0 { 1.0 } else { 0.45 };
        let _ = writeln!(
            body,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{length:.1}\" fill=\"{colour}\" \
             fill-opacity=\"{opacity}\"/>",
            BAR - 1.0
        );
        low = high;
    }
    let middle = x + (BAR - 1.0) / 2.0;
    let (least, greatest) = workload.range(lane.name, sum);
    let (from, to) = (height(bottom, (least / base).min(MOST)), height(bottom, (greatest / base).min(MOST)));
    if least < greatest {
        let _ = writeln!(
            body,
            "<path class=\"range\" d=\"M{middle:.1} {from:.1}V{to:.1}M{:.1} {from:.1}h4M{0:.1} {to:.1}h4\" \
             stroke=\"#000\" stroke-width=\"0.8\" fill=\"none\"/>",
            middle - 2.0
        );
    }
    let value = workload.mean(lane.name, sum) / base;
    if value > MOST {
        let end = height(bottom, MOST);
        let _ = writeln!(
            body,
            "<path class=\"cut\" d=\"M{:.1} {:.1}l{:.1} -5\" stroke=\"#fff\" stroke-width=\"2.5\"/>",
            x - 1.0,
            end + 12.0,
            BAR + 1.0
        );
        let (at, y) = (middle + 3.0, end - 3.0);
        let _ = writeln!(
            body,
            "<text x=\"{at:.1}\" y=\"{y:.1}\" font-size=\"9\" fill=\"{colour}\" \
             transform=\"rotate(-90 {at:.1} {y:.1})\">{value:.2}</text>"
        );
    }
}

fn words(body: &mut String, x: f64, y: f64, colour: &str, text: &str) {
    let _ = writeln!(body, "<text x=\"{x:.1}\" y=\"{y:.1}\" fill=\"{colour}\">{text}</text>");
}

#[cfg(test)]
mod tests {
    use super::super::PROGRAMS;
    use super::super::results::tests::workload;
    use super::*;

    #[test]
    fn every_lane_of_every_program_has_its_bars() {
        let all = [workload(&[&PROGRAMS[0]], |_| 1.0), workload(&[&PROGRAMS[0], &PROGRAMS[2]], |_| 9.0)];
        let picture = plot(&all);
        // A single program has three bars per lane (reads, disk time, processor time), a mix has two (reads, time).
        assert_eq!(picture.matches("<rect").count(), 11 * 3 + 11 * 2);
        assert!(picture.contains(">cscope+sort</text>") && picture.ends_with("</svg>\n"));
        assert!(!picture.contains("NaN") && !picture.contains("height=\"-"), "{picture}");
        assert!(!picture.contains("class=\"cut\"") && !picture.contains("class=\"range\""), "nothing is cut or varies");
    }

    #[test]
    fn cut_bars_are_marked_with_their_value() {
        let picture = plot(&[workload(&[&PROGRAMS[3]], |lane| if lane == "mru" { 2.55 } else { 1.0 })]);
        // The reads and the time are cut.
        assert_eq!(picture.matches("class=\"cut\"").count(), 2);
        assert_eq!(picture.matches(">2.55</text>").count(), 2);
    }

    #[test]
    fn ranges_reach_from_least_to_greatest() {
        let mut one = workload(&[&PROGRAMS[3]], |_| 1.0);
        // The mean stays that of LRU.
        for (execution, reads) in one.lanes[4].1.iter_mut().zip([500, 1000, 1500]) {
            execution.block_reads = reads;
        }
        let picture = plot(&[one]);
        assert_eq!(picture.matches("class=\"range\"").count(), 1);
        let bottom = 50.0 + VALUES + HEIGHT;
        let ends = format!("{:.1}V{:.1}", height(bottom, 0.5), height(bottom, 1.5));
        assert!(picture.contains(&ends), "{ends} in {picture}");
    }

    #[test]
    fn lanes_not_run_have_no_bar() {
        let mut large = workload(&[&PROGRAMS[3]], |_| 1.0);
        large.blocks = 1024;
        large.lanes.truncate(2);
        let picture = plot(&[workload(&[&PROGRAMS[3]], |_| 1.0), large]);
        assert_eq!(picture.matches("<rect").count(), 11 * 3 + 2 * 3);
        assert!(picture.contains(">ld (1024)</text>") && !picture.contains("NaN"), "{picture}");
    }
}
