//! The reports of a policy that detects patterns.

use nectary_cache::Stream;
use nectary_cache::detect::PeriodReport;

/// One report of a detecting policy during a run.
#[derive(Debug, Clone, PartialEq)]
pub struct Said {
    /// As one line.
    pub line: String,
    /// The figures behind it, if it is about one period of one stream.
    pub period: Option<Period>,
}

/// What a detecting policy found in one period of one stream.
#[derive(Debug, Clone, PartialEq)]
pub struct Period {
    /// The stream.
    pub stream: Stream,
    /// The findings.
    pub report: PeriodReport,
    /// The policy that replaces the stream's blocks from then on.
    pub replacement: &'static str,
}
