//! What a policy that detects patterns says of itself in the course of a run.

use nectary_cache::Stream;
use nectary_cache::detect::PeriodReport;

/// What a detecting policy said in the course of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Said {
    /// As one line.
    pub line: String,
    /// The figures behind it, where it is about one period of one stream.
    pub period: Option<Period>,
}

/// What a detecting policy found in one period of one stream.
#[derive(Debug, Clone, PartialEq)]
pub struct Period {
    /// Whose period it was.
    pub stream: Stream,
    /// What was found.
    pub report: PeriodReport,
    /// How blocks are replaced from there on.
    pub replacement: &'static str,
}
