//! A detector's report of one period: the verdict and the evidence behind it, as data and as one line.
//!
//! Owns: the report, its text, and the sink to which policies that detect patterns give it. Leaves to others: the
//! choice of the verdict.

use std::fmt;
use std::ops::Deref;

use super::SUBLISTS_MAX;
use crate::StreamId;

/// The pattern in which a stream references its blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum PatternVerdict {
    /// No trend was found.
    #[default]
    None,
    /// Each block is referenced once.
    Sequential,
    /// The same blocks are referenced again and again in about the same order.
    Looping,
    /// Recently referenced blocks are soon referenced again.
    Clustered,
    /// Each block is referenced at its own rate.
    Probabilistic,
}

impl PatternVerdict {
    /// The verdict's name, in lower case.
    pub fn name(self) -> &'static str {
        match self {
            PatternVerdict::None => "none",
            PatternVerdict::Sequential => "sequential",
            PatternVerdict::Looping => "looping",
            PatternVerdict::Clustered => "clustered",
            PatternVerdict::Probabilistic => "probabilistic",
        }
    }
}

impl fmt::Display for PatternVerdict {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// The average forward distances of the sublists, by increasing attribute value. The slice is empty if the period had
/// fewer known blocks than sublists. *Units*: references.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SublistAverages {
    values: [f64; SUBLISTS_MAX],
    count: usize,
}

impl SublistAverages {
    pub(super) fn push(&mut self, average: f64) {
        self.values[self.count] = average;
        self.count += 1;
    }
}

impl Deref for SublistAverages {
    type Target = [f64];

    fn deref(&self) -> &[f64] {
        &self.values[..self.count]
    }
}

impl fmt::Display for SublistAverages {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return formatter.write_str("-");
        }
        for (index, average) in self.iter().enumerate() {
            write!(formatter, "{}{average:.1}", if index > 0 { " " } else { "" })?;
        }
        Ok(())
    }
}

/// The result of one period of one stream.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PeriodReport {
    /// The number of the period in its stream, from 1.
    pub number: u64,
    /// The stream's virtual time at the end of the period.
    pub end: u64,
    /// The pattern that was found.
    pub verdict: PatternVerdict,
    /// The number of blocks referenced in the period and not known at its start.
    pub unknown: u32,
    /// The number of blocks referenced in the period and known at its start. The sublists consist of these blocks.
    pub known: u32,
    /// The number of blocks referenced in the period and known only from another stream.
    pub foreign: u32,
    /// The average forward distances by increasing backward distance.
    pub by_backward: SublistAverages,
    /// The average forward distances by increasing frequency.
    pub by_frequency: SublistAverages,
    /// Kendall's tau of `by_backward`.
    pub tau_backward: f64,
    /// Kendall's tau of `by_frequency`.
    pub tau_frequency: f64,
    /// The length of the loop, if the verdict is looping. *Units*: references.
    pub loop_length: Option<u64>,
}

impl fmt::Display for PeriodReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PeriodReport { number, end, verdict, unknown, known, foreign, .. } = self;
        write!(formatter, "period {number} to {end}: {verdict}; blocks {known} known, {unknown} new")?;
        if *foreign > 0 {
            write!(formatter, ", {foreign} of others")?;
        }
        write!(formatter, "; by backward distance {} (tau {:.1})", self.by_backward, self.tau_backward)?;
        write!(formatter, "; by frequency {} (tau {:.1})", self.by_frequency, self.tau_frequency)?;
        match self.loop_length {
            Some(length) => write!(formatter, "; loop of {length}"),
            None => Ok(()),
        }
    }
}

/// A report that a policy passes to a listener.
#[derive(Debug, Clone, Copy)]
pub struct PeriodEvent<'a> {
    /// The stream whose period ended.
    pub stream: StreamId,
    /// The report on the period.
    pub report: &'a PeriodReport,
    /// The name of the replacement that is active from now on.
    pub replacement: &'static str,
}

impl fmt::Display for PeriodEvent<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "stream {} {}; replacement {}", self.stream.0, self.report, self.replacement)
    }
}

/// A listener that is called at the end of each period, from within the call that counts the period's last reference.
pub type PeriodSink = Box<dyn FnMut(PeriodEvent<'_>) + Send>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_prints_as_one_line() {
        let mut report =
            PeriodReport { number: 2, end: 1000, verdict: PatternVerdict::Looping, known: 3, ..Default::default() };
        report.by_backward.push(4.0);
        report.by_backward.push(1.5);
        report.tau_backward = -1.0;
        report.loop_length = Some(7);
        let event = PeriodEvent { stream: StreamId(9), report: &report, replacement: "mru" };
        assert_eq!(
            event.to_string(),
            "stream 9 period 2 to 1000: looping; blocks 3 known, 0 new; by backward distance 4.0 1.5 (tau -1.0); \
             by frequency - (tau 0.0); loop of 7; replacement mru"
        );
    }
}
