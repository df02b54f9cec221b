//! The pictures of a run on network RAM disks, from its JSON: the paper's figure 11 (creating files) and figure 12
//! (deleting them at random), with a chart for each kind of link.

use serde_json::Value;

use super::contender::LIMIT;
use super::loops::ms_a_file;
use crate::ExperimentReport;
use crate::drawing::{ChartAxis, ChartCard, ChartGrid, ChartLine, ChartMarks, ChartPanel, ChartPoint};
use crate::statistics::estimate;

/// The name of the link of contenders on this machine.
const NO_LINK: &str = "none";

/// The pictures: creating, and deleting in random order; asynchronous mounts, the final sync counted.
pub fn pictures(report: &ExperimentReport) -> Vec<ChartGrid> {
    ["create", "delete"].map(|step| grid(report, step)).into()
}

fn grid(report: &ExperimentReport, step: &str) -> ChartGrid {
    let rows: Vec<&Value> = report
        .rows
        .iter()
        .filter(|row| row["order"] == "random" && row["is_synchronous"] == Value::Bool(false))
        .collect();
    let (mut legend, mut links): (Vec<String>, Vec<&str>) = (Vec::new(), Vec::new());
    for row in &rows {
        let (contender, link) =
            (row["contender"].as_str().unwrap_or_default(), row["link"].as_str().unwrap_or(NO_LINK));
        if !legend.iter().any(|name| name == contender) {
            legend.push(contender.to_owned());
        }
        if link != NO_LINK && !links.contains(&link) {
            links.push(link);
        }
    }
    if links.is_empty() && !rows.is_empty() {
        links.push(NO_LINK);
    }
    let mut values = Vec::new();
    let cards = links.iter().map(|link| {
        let mut lines: Vec<ChartLine> = Vec::new();
        for row in rows.iter().filter(|row| row["link"] == *link || row["link"] == NO_LINK) {
            let series = legend.iter().position(|name| row["contender"] == **name).unwrap_or(0);
            let point = point(row, step);
            values.push(point.found.value);
            match lines.iter_mut().find(|line| line.series == series) {
                Some(line) => line.points.push(point),
                None => lines.push(ChartLine { series, points: vec![point], is_limit: row["contender"] == LIMIT }),
            }
        }
        lines.iter_mut().for_each(|line| line.points.sort_by(|left, right| left.x.total_cmp(&right.x)));
        let title = if *link == NO_LINK { "on this machine".to_owned() } else { format!("links: {link}") };
        let panels = vec![ChartPanel { name: String::new(), marks: ChartMarks::Lines(lines) }];
        ChartCard { id: format!("nrd-{step}-{link}"), title: format!("{step}, {title}"), panels }
    });
    let cards = cards.collect();
    let counts = rows.iter().filter_map(|row| row["files"].as_f64());
    ChartGrid {
        legend,
        note: format!("Files of 2 KB; the final sync is counted. Grey: {LIMIT}. Upright lines: intervals over rounds."),
        x: Some(ChartAxis::counts("files", counts)),
        y: ChartAxis::log("ms a file", values),
        cards,
    }
}

/// The time of a step for each file, over rounds.
fn point(row: &Value, step: &str) -> ChartPoint {
    let files = row["files"].as_u64().and_then(|files| u32::try_from(files).ok()).unwrap_or(1);
    let samples = row["samples"].as_array().map_or(&[][..], Vec::as_slice);
    let seconds = |taken: &Value| {
        let part = |name: String| taken[name.as_str()].as_f64().unwrap_or(f64::NAN);
        part(format!("{step}_s")) + part(format!("{step}_sync_s"))
    };
    let times: Vec<f64> = samples.iter().map(|sample| ms_a_file(seconds(&sample["taken"]), files)).collect();
    ChartPoint { x: f64::from(files), found: estimate(&times) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::results::{report, tests::sampled};
    use super::*;

    #[test]
    fn local_contenders_are_on_every_link() {
        let (plan, samples) = sampled(|name| if name == "disk" { 3.0 } else { 1.0 });
        let report = report(&plan, samples, Duration::from_secs(1));
        let grids = pictures(&report);
        assert_eq!((grids.len(), grids[0].cards.len()), (2, 2));
        for card in grids.iter().flat_map(|grid| &grid.cards) {
            let ChartMarks::Lines(lines) = &card.panels[0].marks else { panic!("lines") };
            // Disk, model, memory, and a network RAM disk twice.
            assert_eq!((lines.len(), lines.iter().filter(|line| line.is_limit).count()), (5, 1), "{}", card.id);
        }
        let ChartMarks::Lines(lines) = &grids[0].cards[0].panels[0].marks else { panic!("lines") };
        // 100 files in 3 s, and 3 s for the sync.
        assert_eq!((lines[0].points[0].x, lines[0].points[0].found.value), (100.0, 60.0));
        crate::drawing::tests::is_well_formed(&crate::drawing::svg_file("files-nrd", &grids));
    }
}
