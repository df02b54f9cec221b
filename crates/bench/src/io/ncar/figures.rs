//! The figures of the NCAR report, and the series that each shows.
//!
//! Owns: the table. The report has two figures 7, and its captions of figures 11 and 12 say "read" where its list of
//! figures says "write". This table follows the list. Figures 1 to 12 show the volume alone, as in the report. Figures
//! 13 to 20 show it beside XFS, and here beside the device and the bare FUSE server, too.

use super::{Emptied, Series, System, XFS_BLOCK_BYTES};
use crate::hosts::Host;
use crate::io::job::{Mode, Operation};

/// How the two plots of a figure differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plots {
    /// Each plot shows one host.
    Hosts,
    /// Each plot shows one mode, on both hosts.
    Modes,
}

/// A figure.
#[derive(Debug, Clone, Copy)]
pub struct Figure {
    /// The number of the figure.
    pub number: u32,
    /// The operation.
    pub operation: Operation,
    /// The modes that the figure shows.
    pub modes: &'static [Mode],
    /// The numbers of streams.
    pub streams: &'static [usize],
    /// How its two plots differ.
    pub plots: Plots,
    /// Whether the figure compares the volume with XFS.
    pub is_against_xfs: bool,
}

const BUFFERED: &[Mode] = &[Mode::Buffered];
const DIRECT: &[Mode] = &[Mode::Direct];
const BOTH: &[Mode] = &[Mode::Buffered, Mode::Direct];
const ONE: &[usize] = &[1];
const TWO: &[usize] = &[2];
const ONE_AND_TWO: &[usize] = &[1, 2];

/// All figures, in order.
pub fn all() -> Vec<Figure> {
    use Operation::{Read, Write};
    let mut figures = Vec::new();
    let mut add = |operation, modes, streams, plots, is_against_xfs| {
        let number = figures.len() as u32 + 1;
        figures.push(Figure { number, operation, modes, streams, plots, is_against_xfs });
    };
    for operation in [Read, Write] {
        for modes in [BUFFERED, DIRECT] {
            add(operation, modes, ONE_AND_TWO, Plots::Hosts, false);
        }
    }
    for plots in [Plots::Hosts, Plots::Modes] {
        for operation in [Read, Write] {
            for streams in [ONE, TWO] {
                add(operation, BOTH, streams, plots, false);
            }
        }
    }
    for operation in [Read, Write] {
        for streams in [ONE, TWO] {
            for modes in [BUFFERED, DIRECT] {
                add(operation, modes, streams, Plots::Hosts, true);
            }
        }
    }
    figures
}

impl Figure {
    /// The heading.
    pub fn title(&self) -> String {
        let modes: Vec<&str> = self.modes.iter().map(|mode| mode.name()).collect();
        let streams: Vec<String> = self.streams.iter().map(usize::to_string).collect();
        let against = if self.is_against_xfs { ", volume against XFS" } else { "" };
        let (operation, modes, streams) = (self.operation.name(), modes.join(" and "), streams.join(" and "));
        format!("Figure {}: {operation}, {modes}, {streams} stream(s){against}", self.number)
    }

    /// Whether the figure shows a series.
    pub fn shows(&self, series: &Series) -> bool {
        let is_its_system = match series.system {
            System::Volume => true,
            System::Raw | System::Bare | System::Xfs(XFS_BLOCK_BYTES) => self.is_against_xfs,
            System::Xfs(_) => false,
        };
        is_its_system
            && series.operation == self.operation
            && self.modes.contains(&series.mode)
            && self.streams.contains(&series.streams)
    }

    /// The plots, each with its name and its series.
    pub fn parts(&self) -> Vec<(String, Part)> {
        match self.plots {
            Plots::Hosts => Host::ALL.iter().map(|host| (host.name().to_owned(), Part::Host(*host))).collect(),
            Plots::Modes => self.modes.iter().map(|mode| (mode.name().to_owned(), Part::Mode(*mode))).collect(),
        }
    }
}

/// The part of a figure's series that one of its plots shows.
#[derive(Debug, Clone, Copy)]
pub enum Part {
    /// The series of one host.
    Host(Host),
    /// The series of one mode.
    Mode(Mode),
}

impl Part {
    /// Whether the plot shows a series.
    pub fn shows(&self, series: &Series) -> bool {
        match self {
            Part::Host(host) => series.host == *host,
            Part::Mode(mode) => series.mode == *mode,
        }
    }
}

/// Names the figures of the report that show a series.
pub fn shown_in(series: &Series) -> String {
    let of_report = series.emptied == Emptied::Remount || series.mode != Mode::Buffered;
    let of_report = of_report || series.operation != Operation::Read;
    let is_in_report = matches!(series.system, System::Volume | System::Xfs(XFS_BLOCK_BYTES));
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
    fn the_figures_are_those_of_the_reports_list() {
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
        assert_eq!((figures[7].plots, figures[8].plots), (Plots::Hosts, Plots::Modes));
        assert!(figures.iter().all(|figure| figure.parts().len() == 2), "top and bottom");
    }
}
