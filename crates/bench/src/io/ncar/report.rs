//! The report of the matrix: a table for each host and operation, JSON, and a picture of every figure.

use std::time::Duration;

use nectary_block::format_size;
use serde_json::json;

use super::{
    CacheEmptying, MeasuredSystem, NcarMatrixPlan, NcarSeries, SeriesRates, XFS_BLOCK_BYTES, figures, pictures,
};
use crate::drawing::svg_file;
use crate::hosts::HostRole;
use crate::io::job::{OpenMode, RequestOperation};
use crate::statistics::{IntervalEstimate, estimate};
use crate::{ExperimentReport, ReportFigure, machine};

/// The time that a volume adds to a direct request, divided by that of a bare FUSE server, should be at most this.
const ADDED_MAX: f64 = 1.25;
/// The share of the rate of XFS that a volume should have with direct requests in two streams.
const OF_XFS_MIN: f64 = 0.9;
/// The largest number of columns of a table.
const COLUMNS_MAX: usize = 6;

/// Makes the report.
pub fn report(plan: &NcarMatrixPlan, measured: &[SeriesRates], took: Duration) -> ExperimentReport {
    let mut all = Vec::new();
    let mut rows = Vec::new();
    for SeriesRates { series, rates } in measured {
        for (size, passes) in rates {
            let name = format!("{}.{}", series.name(), format_size(*size).to_lowercase());
            rows.push(json!({ "series": series.name(), "request_bytes": size, "mib_s": passes }));
            all.push(ReportFigure::new(format!("ncar.{name}"), "MiB/s", estimate(passes)));
        }
    }
    all.extend(added_times(measured));
    all.extend(over_xfs(measured));
    let setting = json!({
        "target": plan.options.target, "bytes": plan.bytes, "passes": plan.passes, "sizes": plan.sizes,
        "client_memory_bytes": plan.memory_bytes(HostRole::Client), "server_memory_bytes": plan.memory_bytes(HostRole::Server),
        "quick": plan.options.quick,
        "machine": machine::describe(), "took_s": took.as_secs_f64(), "only": plan.options.only,
    });
    let report = ExperimentReport::new("io-ncar", setting, all, rows, text(plan, measured, took));
    let svg = svg_file("bench io --matrix ncar", &pictures(&report));
    report.with_svg(svg)
}

fn text(plan: &NcarMatrixPlan, measured: &[SeriesRates], took: Duration) -> String {
    let mut text = format!("bench io --matrix ncar: {}\n", machine::describe());
    text += &format!(
        "{} pass(es) over files of {} MiB; client {} MiB and server {} MiB of memory; took {:.0} s\n\
         MiB/s, the median of passes. remount: caches emptied by unmount and mount; drop: pages of the files dropped.\n\
         Buffered writes end in the page cache, as in the report; a volume's go to the disk.\n\
         volume: served on the server's host and mounted on the host that is measured; the client has its own network\n\
         namespace. raw: the device below; bare: a FUSE server that only reads and writes it.\n",
        plan.passes,
        plan.bytes >> 20,
        plan.memory_bytes(HostRole::Client) >> 20,
        plan.memory_bytes(HostRole::Server) >> 20,
        took.as_secs_f64()
    );
    for host in HostRole::ALL {
        for operation in [RequestOperation::Read, RequestOperation::Write, RequestOperation::Mixed] {
            let chosen: Vec<&SeriesRates> =
                measured.iter().filter(|one| one.series.host == host && one.series.operation == operation).collect();
            for part in chosen.chunks(COLUMNS_MAX) {
                text += &format!("\n{}, {}\n{}", host.name(), operation.name(), table(part));
            }
        }
    }
    text += &comparison(measured);
    text += "\nFigures of the report, drawn beside this page, two plots each\n";
    for one in figures::all() {
        text += &format!("  {}\n", one.title());
    }
    text
}

/// The volume's rates divided by those of XFS, of the device and of the bare FUSE server under the same conditions.
fn comparison(measured: &[SeriesRates]) -> String {
    let mut lines = String::new();
    for volume in measured.iter().filter(|one| one.series.system == MeasuredSystem::Volume) {
        for other in [MeasuredSystem::Xfs(XFS_BLOCK_BYTES), MeasuredSystem::Raw, MeasuredSystem::Bare] {
            let Some(peer) = peer(measured, &volume.series, other) else { continue };
            let name = format!("{} / {}", volume.series.name(), other.name());
            lines += &format!("  {name:<58}");
            for ((_, own), (_, others)) in volume.rates.iter().zip(&peer.rates) {
                lines += &format!("{:>8.2}", estimate(own).value / estimate(others).value);
            }
            lines.push('\n');
        }
        if let Some(added) = added_by_size(measured, volume) {
            let name = format!("{} added / bare's", volume.series.name());
            let ratios = added.iter().map(|(_, ratio)| ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}")));
            lines += &format!("  {name:<58}{}\n", ratios.map(|ratio| format!("{ratio:>8}")).collect::<String>());
        }
    }
    if lines.is_empty() {
        return lines;
    }
    let sizes = measured.first().map(|one| one.rates.as_slice()).unwrap_or_default();
    let sizes: String = sizes.iter().map(|(size, _)| format!("{:>8}", format_size(*size))).collect();
    format!(
        "\nThe volume beside others: ratios of the medians. added: the time that a direct request takes longer than on \
         XFS,\ndivided by the same of the bare FUSE server (at most {ADDED_MAX} is wanted)\n  {:<58}{sizes}\n{lines}",
        "request"
    )
}

/// How much longer than on XFS a request takes on the volume, divided by the same for the bare FUSE server. `None` if
/// the bare server is not slower than XFS.
fn added(volume: f64, bare: f64, xfs: f64) -> Option<f64> {
    let added = |rate: f64| 1.0 / rate - 1.0 / xfs;
    (added(bare) > 0.0).then(|| added(volume) / added(bare))
}

/// The time that the volume adds to direct requests of each size, as [`added`] says; `None` without the others.
fn added_by_size(measured: &[SeriesRates], volume: &SeriesRates) -> Option<Vec<(u64, Option<f64>)>> {
    let peer = |system| peer(measured, &volume.series, system).filter(|_| volume.series.mode == OpenMode::Direct);
    let (xfs, bare) = (peer(MeasuredSystem::Xfs(XFS_BLOCK_BYTES))?, peer(MeasuredSystem::Bare)?);
    let rates = volume.rates.iter().zip(&bare.rates).zip(&xfs.rates);
    let of = |one: &[f64]| estimate(one).value;
    Some(rates.map(|((own, bare), xfs)| (own.0, added(of(&own.1), of(&bare.1), of(&xfs.1)))).collect())
}

/// The figures of the time that the volume adds to direct requests.
fn added_times(measured: &[SeriesRates]) -> Vec<ReportFigure> {
    let volumes = measured.iter().filter(|one| one.series.system == MeasuredSystem::Volume);
    let each = volumes.flat_map(|volume| {
        let sizes = added_by_size(measured, volume).unwrap_or_default();
        sizes.into_iter().filter_map(|(size, ratio)| Some((volume.series.name(), size, ratio?)))
    });
    each.map(|(series, size, ratio)| {
        let name = format!("ncar.{series}.{}.added_over_bare", format_size(size).to_lowercase());
        ReportFigure::new(name, "x", IntervalEstimate::exactly(ratio)).at_most(ADDED_MAX).judged(false)
    })
    .collect()
}

/// The figures of the volume's direct requests in two streams, as shares of those of XFS.
fn over_xfs(measured: &[SeriesRates]) -> Vec<ReportFigure> {
    let is_meant = |one: &&SeriesRates| {
        let NcarSeries { system, mode, streams, .. } = one.series;
        system == MeasuredSystem::Volume && mode == OpenMode::Direct && streams == 2
    };
    let mut figures = Vec::new();
    for volume in measured.iter().filter(is_meant) {
        let Some(xfs) = peer(measured, &volume.series, MeasuredSystem::Xfs(XFS_BLOCK_BYTES)) else { continue };
        for ((size, own), (_, other)) in volume.rates.iter().zip(&xfs.rates) {
            let name = format!("ncar.{}.{}.over_xfs", volume.series.name(), format_size(*size).to_lowercase());
            let ratio = IntervalEstimate::exactly(estimate(own).value / estimate(other).value);
            figures.push(ReportFigure::new(name, "x", ratio).at_least(OF_XFS_MIN).judged(false));
        }
    }
    figures
}

/// The series of another system under the conditions of `series`: caches emptied in the same way, if it has that.
fn peer<'a>(measured: &'a [SeriesRates], series: &NcarSeries, system: MeasuredSystem) -> Option<&'a SeriesRates> {
    let is_buffered_read = series.operation == RequestOperation::Read && series.mode == OpenMode::Buffered;
    let with = |emptied| {
        let wanted = NcarSeries { system, emptied, ..*series };
        measured.iter().find(|one| one.series == wanted)
    };
    with(series.emptied).or_else(|| with(CacheEmptying::Drop).filter(|_| is_buffered_read))
}

/// Writes a table with one column per series and one line per request size.
fn table(part: &[&SeriesRates]) -> String {
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
fn short(series: &NcarSeries) -> String {
    let name = series.name();
    let (system, rest) = name.split_once('.').unwrap_or((&name, ""));
    let rest = rest.splitn(3, '.').nth(2).unwrap_or(rest).replace(".streams", "x");
    format!("{system}.{rest}")
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::{NcarMatrixOptions, NcarMatrixPlan};
    use super::*;
    use crate::drawing::ChartMarks;
    use crate::drawing::tests::is_well_formed;

    /// The time that the volume adds is divided by the time that the bare server adds.
    #[test]
    fn added_time_is_relative_to_bare() {
        // Requests take 1 s on XFS, 2 s on the bare server and 2.5 s on the volume.
        assert_eq!(added(1.0 / 2.5, 0.5, 1.0), Some(1.5));
        assert_eq!(added(0.5, 1.5, 1.0), None);
    }

    /// Every plot has lines, and shows the volume with the systems that it is compared with.
    #[test]
    fn figures_have_two_plots() {
        let target = PathBuf::from("/tmp");
        let (sizes, only) = (Vec::new(), Vec::new());
        let options =
            NcarMatrixOptions { target, overwrite: false, quick: true, passes: None, bytes: None, sizes, only };
        let plan = NcarMatrixPlan::new(&options).unwrap();
        let rates = |factor: f64| plan.sizes.iter().map(|size| (*size, vec![*size as f64 * factor])).collect();
        let measured: Vec<SeriesRates> = plan
            .series
            .iter()
            .enumerate()
            .map(|(index, series)| SeriesRates { series: *series, rates: rates(1.0 + index as f64) })
            .collect();
        let report = report(&plan, &measured, Duration::from_secs(1));
        let text = report.text();
        // Ratios: each series has its number as its rate.
        let number = |name: &str| 1.0 + measured.iter().position(|one| one.series.name() == name).unwrap() as f64;
        let ratio = number("volume.server.write.direct.streams2") / number("bare.server.write.direct.streams2");
        let line = text.lines().find(|line| line.contains("volume.server.write.direct.streams2 / bare")).unwrap();
        assert!(line.ends_with(&format!("{ratio:.2}")), "{line}");
        // The device has no mount, so its pages are dropped.
        for other in ["xfs", "raw", "bare"] {
            assert!(text.contains(&format!("volume.client.read.buffered.remount.streams1 / {other}")), "{text}");
        }
        is_well_formed(report.svg().unwrap());
        let cards: Vec<_> = pictures(&report).into_iter().flat_map(|grid| grid.cards).collect();
        assert_eq!(cards.len(), 20);
        let lines = |card: usize, panel: usize| match &cards[card].panels[panel].marks {
            ChartMarks::Lines(lines) => lines.len(),
            ChartMarks::Bars(_) => 0,
        };
        assert!((0..20).all(|card| cards[card].panels.len() == 2 && lines(card, 0) > 2 && lines(card, 1) > 2));
        // The plot of figure 13 for the client has the volume, the device, the bare server, and XFS after both ways of
        // emptying caches; and the device's direct requests as the limit.
        assert_eq!((cards[12].id.as_str(), lines(12, 0)), ("ncar-figure-13", 6));
        assert!(report.figures.iter().any(|one| one.name == "ncar.xfs.client.read.buffered.remount.streams2.512k"));
        assert_eq!(short(&measured[0].series), "raw.buffered.dropx1");
    }
}
