//! The report of the matrix: a table for each host and operation, JSON, and a picture of every figure.

use std::time::Duration;

use nectary_block::format_size;
use serde_json::json;

use super::{Host, Measured, NOT_RUN, Plan, Series, figures};
use crate::io::job::Operation;
use crate::io::plot::{Chart, Line, plot};
use crate::io::report::{Report, figure};
use crate::io::timestamps::Timestamps;
use crate::machine;
use crate::statistics::{Estimate, estimate};

/// The largest number of columns of a table.
const COLUMNS_MAX: usize = 6;

/// Makes the report.
pub fn report(plan: &Plan, measured: &[Measured], took: Duration) -> Report {
    let mut all = Vec::new();
    let mut rows = Vec::new();
    for Measured { series, rates } in measured {
        for (size, passes) in rates {
            let name = format!("{}.{}", series.name(), format_size(*size).to_lowercase());
            let Estimate { value, low, high } = estimate(passes);
            rows.push(json!({ "series": series.name(), "request_bytes": size, "mib_s": passes }));
            all.push(figure(format!("ncar.{name}"), "MiB/s", [value, low, high]));
        }
    }
    let setting = json!({
        "target": plan.options.target, "bytes": plan.bytes, "passes": plan.passes, "sizes": plan.sizes,
        "client_memory_bytes": plan.memory_bytes(Host::Client), "server_memory_bytes": plan.memory_bytes(Host::Server),
        "machine": machine::describe(), "took_s": took.as_secs_f64(), "not_run": [NOT_RUN],
    });
    Report {
        experiment: "io-ncar".to_owned(),
        setting,
        figures: all,
        rows,
        is_short: false,
        text: text(plan, measured, took),
        plot: plot("bench io --matrix ncar", &charts(measured)),
        timestamps: Timestamps::default(),
    }
}

fn text(plan: &Plan, measured: &[Measured], took: Duration) -> String {
    let mut text = format!("bench io --matrix ncar: {}\n", machine::describe());
    text += &format!(
        "{NOT_RUN}\n{} pass(es) over files of {} MiB; client {} MiB and server {} MiB of memory; took {:.0} s\n\
         MiB/s, the median of passes. remount: caches emptied by unmount and mount; drop: pages of the files dropped.\n\
         Buffered writes end in the page cache, as in the report. raw is the device below XFS.\n",
        plan.passes,
        plan.bytes >> 20,
        plan.memory_bytes(Host::Client) >> 20,
        plan.memory_bytes(Host::Server) >> 20,
        took.as_secs_f64()
    );
    for host in Host::ALL {
        for operation in [Operation::Read, Operation::Write, Operation::Mixed] {
            let chosen: Vec<&Measured> =
                measured.iter().filter(|one| one.series.host == host && one.series.operation == operation).collect();
            for part in chosen.chunks(COLUMNS_MAX) {
                text += &format!("\n{}, {}\n{}", host.name(), operation.name(), table(part));
            }
        }
    }
    text += "\nFigures of the report, drawn beside this page: its charts 1 to 20 in order, two plots each\n";
    for one in figures::all() {
        text += &format!("  {}\n", one.title());
    }
    text
}

/// Writes a table with one column per series and one line per request size.
fn table(part: &[&Measured]) -> String {
    let names: Vec<String> = part.iter().map(|one| short(&one.series)).collect();
    let widths: Vec<usize> = names.iter().map(|name| name.len().max(8) + 2).collect();
    let mut text = format!("{:>8}", "request");
    names.iter().zip(&widths).for_each(|(name, width)| text += &format!("{name:>width$}"));
    text.push('\n');
    let sizes = part.first().map(|one| one.rates.as_slice()).unwrap_or_default();
    for (index, (size, _)) in sizes.iter().enumerate() {
        text += &format!("{:>8}", format_size(*size));
        for (one, width) in part.iter().zip(&widths) {
            let rate = one.rates.get(index).map_or(f64::NAN, |rates| estimate(&rates.1).value);
            text += &format!("{rate:>width$.1}");
        }
        text.push('\n');
    }
    text
}

/// The name of a series without the words that the table's heading already has.
fn short(series: &Series) -> String {
    let name = series.name();
    let (system, rest) = name.split_once('.').unwrap_or((&name, ""));
    let rest = rest.splitn(3, '.').nth(2).unwrap_or(rest).replace(".streams", "x");
    format!("{system}.{rest}")
}

/// Makes the two plots of each figure, with the report's titles.
fn charts(measured: &[Measured]) -> Vec<Chart> {
    let mut charts = Vec::new();
    for figure in figures::all() {
        for (name, part) in figure.parts() {
            let lines = measured
                .iter()
                .filter(|one| figure.shows(&one.series) && part.shows(&one.series))
                .map(|one| Line {
                    name: one.series.name(),
                    points: one.rates.iter().map(|(size, rates)| (*size, estimate(rates).value)).collect(),
                    is_ceiling: false,
                })
                .collect();
            charts.push(Chart { title: format!("{}; {name}; volume: NOT RUN", figure.title()), lines });
        }
    }
    charts
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::{Options, Plan};
    use super::*;
    use crate::io::plot::tests::is_well_formed;

    #[test]
    fn every_figure_has_two_plots_with_lines_and_the_volume_is_named_as_not_run() {
        let target = PathBuf::from("/tmp");
        let options = Options { target, overwrite: false, quick: true, passes: None, bytes: None, sizes: Vec::new() };
        let plan = Plan::new(&options).unwrap();
        let rates = |factor: f64| plan.sizes.iter().map(|size| (*size, vec![*size as f64 * factor])).collect();
        let measured: Vec<Measured> = plan
            .series
            .iter()
            .enumerate()
            .map(|(index, series)| Measured { series: *series, rates: rates(1.0 + index as f64) })
            .collect();
        let report = report(&plan, &measured, Duration::from_secs(1));
        assert!(report.text().contains("volume: NOT RUN: this matrix does not mount one yet"));
        is_well_formed(report.svg());
        let charts = charts(&measured);
        assert_eq!(charts.len(), 40);
        assert!(charts.iter().all(|chart| chart.lines.len() >= 2), "XFS and the device at least");
        // The plot of figure 13 for the client has XFS, after both ways of emptying caches, and the device.
        assert_eq!(charts[24].lines.len(), 3);
        assert!(report.figures.iter().any(|one| one.name == "ncar.xfs.client.read.buffered.remount.streams2.512k"));
        assert_eq!(short(&measured[0].series), "raw.buffered.dropx1");
    }
}
