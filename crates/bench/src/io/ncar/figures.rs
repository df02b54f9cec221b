//! The figures of the NCAR report, and the series that each shows.
//!
//! Owns: the table. The report has two figures 7, and its captions of figures 11 and 12 say "read" where its list of
//! figures says "write". This table follows the list. Figures 1 to 12 show the volume alone, as in the report. Figures
//! 13 to 20 show it beside XFS, and here beside the device and the bare FUSE server, too.

use super::{CacheEmptying, MeasuredSystem, NcarSeries, XFS_BLOCK_BYTES};
use crate::hosts::HostRole;
use crate::io::job::{OpenMode, RequestOperation};

/// How the two plots of a figure differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlotSplit {
    /// Each plot shows one host.
    Hosts,
    /// Each plot shows one mode, on both hosts.
    Modes,
}

/// A figure.
#[derive(Debug, Clone, Copy)]
pub struct NcarFigure {
    /// The number of the figure.
    pub number: u32,
    /// The operation.
    pub operation: RequestOperation,
    /// The modes that the figure shows.
    pub modes: &'static [OpenMode],
    /// The numbers of streams.
    pub streams: &'static [usize],
    /// How its two plots differ.
    pub plots: PlotSplit,
    /// Whether the figure compares the volume with XFS.
    pub is_against_xfs: bool,
}

const BUFFERED: &[OpenMode] = &[OpenMode::Buffered];
const DIRECT: &[OpenMode] = &[OpenMode::Direct];
const BOTH: &[OpenMode] = &[OpenMode::Buffered, OpenMode::Direct];
const ONE: &[usize] = &[1];
const TWO: &[usize] = &[2];
const ONE_AND_TWO: &[usize] = &[1, 2];

/// All figures, in order.
pub fn all() -> Vec<NcarFigure> {
    use RequestOperation::{Read, Write};
    let mut figures = Vec::new();
    let mut add = |operation, modes, streams, plots, is_against_xfs| {
        let number = figures.len() as u32 + 1;
        figures.push(NcarFigure { number, operation, modes, streams, plots, is_against_xfs });
    };
    for operation in [Read, Write] {
        for modes in [BUFFERED, DIRECT] {
            add(operation, modes, ONE_AND_TWO, PlotSplit::Hosts, false);
        }
    }
    for plots in [PlotSplit::Hosts, PlotSplit::Modes] {
        for operation in [Read, Write] {
            for streams in [ONE, TWO] {
                add(operation, BOTH, streams, plots, false);
            }
        }
    }
    for operation in [Read, Write] {
        for streams in [ONE, TWO] {
            for modes in [BUFFERED, DIRECT] {
                add(operation, modes, streams, PlotSplit::Hosts, true);
            }
        }
    }
    figures
}

impl NcarFigure {
    /// The heading.
    pub fn title(&self) -> String {
        let modes: Vec<&str> = self.modes.iter().map(|mode| mode.name()).collect();
        let streams: Vec<String> = self.streams.iter().map(usize::to_string).collect();
        let against = if self.is_against_xfs { ", volume against XFS" } else { "" };
        let (operation, modes, streams) = (self.operation.name(), modes.join(" and "), streams.join(" and "));
        format!("Figure {}: {operation}, {modes}, {streams} stream(s){against}", self.number)
    }

    /// Whether the figure shows a series.
    pub fn shows(&self, series: &NcarSeries) -> bool {
        let is_its_system = match series.system {
            MeasuredSystem::Volume => true,
            MeasuredSystem::Raw | MeasuredSystem::Bare | MeasuredSystem::Xfs(XFS_BLOCK_BYTES) => self.is_against_xfs,
            MeasuredSystem::Xfs(_) => false,
        };
        is_its_system
            && series.operation == self.operation
            && self.modes.contains(&series.mode)
            && self.streams.contains(&series.streams)
    }

    /// The plots, each with its name and its series.
    pub fn parts(&self) -> Vec<(String, PlotPart)> {
        match self.plots {
            PlotSplit::Hosts => {
                HostRole::ALL.iter().map(|host| (host.name().to_owned(), PlotPart::Host(*host))).collect()
            }
            PlotSplit::Modes => self.modes.iter().map(|mode| (mode.name().to_owned(), PlotPart::Mode(*mode))).collect(),
        }
    }
}

/// The part of a figure's series that one of its plots shows.
#[derive(Debug, Clone, Copy)]
pub enum PlotPart {
    /// The series of one host.
    Host(HostRole),
    /// The series of one mode.
    Mode(OpenMode),
}

impl PlotPart {
    /// Whether the plot shows a series.
    pub fn shows(&self, series: &NcarSeries) -> bool {
        match self {
            PlotPart::Host(host) => series.host == *host,
            PlotPart::Mode(mode) => series.mode == *mode,
        }
    }
}

/// Names the figures of the report that show a series.
pub fn shown_in(series: &NcarSeries) -> String {
    let of_report = series.emptied == CacheEmptying::Remount || series.mode != OpenMode::Buffered;
    let of_report = of_report || series.operation != RequestOperation::Read;
    let is_in_report = matches!(series.system, MeasuredSystem::Volume | MeasuredSystem::Xfs(XFS_BLOCK_BYTES));
    let numbers: Vec<String> = all()
        .iter()
        .filter(|figure| is_in_report && of_report && figure.shows(series))
        .map(|figure| figure.number.to_string())
        .collect();
    match numbers.is_empty() {
        true => "in no figure of the report".to_owned(),
        false => format!("figures {}", numbers.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_match_report_list() {
        let figures = all();
        let title = |number: usize| figures[number - 1].title();
        assert_eq!(figures.len(), 20);
        assert_eq!(title(1), "Figure 1: read, buffered, 1 and 2 stream(s)");
        assert_eq!(title(4), "Figure 4: write, direct, 1 and 2 stream(s)");
        assert_eq!(title(6), "Figure 6: read, buffered and direct, 2 stream(s)");
        assert_eq!(title(8), "Figure 8: write, buffered and direct, 2 stream(s)");
        assert_eq!(title(11), "Figure 11: write, buffered and direct, 1 stream(s)");
        assert_eq!(title(14), "Figure 14: read, direct, 1 stream(s), volume against XFS");
        assert_eq!(title(15), "Figure 15: read, buffered, 2 stream(s), volume against XFS");
        assert_eq!(title(20), "Figure 20: write, direct, 2 stream(s), volume against XFS");
        assert_eq!((figures[7].plots, figures[8].plots), (PlotSplit::Hosts, PlotSplit::Modes));
        assert!(figures.iter().all(|figure| figure.parts().len() == 2), "top and bottom");
    }
}
