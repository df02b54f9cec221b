//! Pictures of a report: the paper's figure 7 shows block reads, its figure 8 the parts of the response time.
//!
//! The result is one SVG file, readable on light and dark backgrounds. Each program has a group of bars, one per lane.
//! Bars are relative to LRU, so programs of any size can be compared.

use std::fmt::Write;

use super::execute::Execution;
use super::results::Workload;
use super::{BASE, Lane};

/// The sizes of the picture, in pixels.
const LEFT: f64 = 50.0;
const BAR: f64 = 9.0;
const GAP: f64 = 26.0;
const HEIGHT: f64 = 170.0;
/// The length at which bars are cut, as a multiple of LRU's value.
const MOST: f64 = 1.5;
/// The colours of lanes, which colour-blind readers can distinguish too.
const COLOURS: [&str; 10] =
    ["#777777", "#aaaaaa", "#cc79a7", "#882255", "#d55e00", "#e69f00", "#0072b2", "#009e73", "#56b4e9", "#999933"];
const INK: &str = "#777";

/// Draws a report.
pub(super) fn plot(workloads: &[Workload]) -> String {
    let lanes: Vec<Lane> =
        workloads.first().map_or(Vec::new(), |workload| workload.lanes.iter().map(|one| one.0).collect());
    let group = BAR * lanes.len() as f64 + GAP;
    let width = (LEFT + group * workloads.len() as f64 + 20.0).max(620.0);
    let mut body = String::new();
    for (index, lane) in lanes.iter().enumerate() {
        words(&mut body, LEFT + 58.0 * index as f64, 18.0, COLOURS[index % COLOURS.len()], lane.name);
    }
    let reads = |one: &Execution| vec![one.block_reads as f64];
    let parts = |one: &Execution| {
        let processor = one.response_s() - one.stall_s;
        if one.is_virtual { vec![one.stall_s, processor] } else { vec![one.response_s()] }
    };
    let mut top = 50.0;
    let titles =
        ["Block reads, LRU = 1 (figure 7)", "Response time, LRU = 1; pale: processor, the rest stall (figure 8)"];
    for (title, of) in titles.into_iter().zip([&reads as &dyn Fn(&Execution) -> Vec<f64>, &parts]) {
        words(&mut body, LEFT, top, INK, title);
        let bottom = top + 14.0 + HEIGHT;
        for level in [0.0, 0.5, 1.0, 1.5] {
            let y = bottom - HEIGHT * level / MOST;
            let line = format!("<line x1=\"{LEFT}\" x2=\"{width:.0}\" y1=\"{y:.1}\" y2=\"{y:.1}\"");
            let _ = writeln!(body, "{line} stroke=\"{INK}\" stroke-opacity=\"0.3\"/>");
            words(&mut body, LEFT - 30.0, y + 4.0, INK, &format!("{level}"));
        }
        for (number, workload) in workloads.iter().enumerate() {
            let left = LEFT + group * number as f64 + 6.0;
            let base = workload.mean(BASE, |one| of(one).iter().sum());
            for (index, lane) in lanes.iter().enumerate() {
                let mut low: f64 = 0.0;
                let count = workload.lane(lane.name).first().map_or(0, |one| of(one).len());
                for part in 0..count {
                    let share = workload.mean(lane.name, |one| of(one)[part]) / base;
                    let high = (low + share).min(MOST);
                    let (x, y) = (left + BAR * index as f64, bottom - HEIGHT * high / MOST);
                    let height = HEIGHT * (high - low).max(0.0) / MOST;
                    let (colour, opacity) = (COLOURS[index % COLOURS.len()], if part == 0 { 1.0 } else { 0.45 });
                    let _ = writeln!(
                        body,
                        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{height:.1}\" fill=\"{colour}\" \
                         fill-opacity=\"{opacity}\"/>",
                        BAR - 1.0
                    );
                    low = high;
                }
            }
            words(&mut body, left, bottom + 16.0, INK, &workload.name());
        }
        top = bottom + 50.0;
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {top:.0}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<title>cache-dear</title>\n{body}</svg>\n"
    )
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
        assert_eq!(picture.matches("<rect").count(), 10 * 3 + 10 * 2);
        assert!(picture.contains(">cscope+sort</text>") && picture.ends_with("</svg>\n"));
        assert!(!picture.contains("NaN") && !picture.contains("height=\"-"), "{picture}");
    }
}
