//! The reports of a policy that detects patterns.

use nectary_cache::StreamId;
use nectary_cache::detect::PeriodReport;

/// One report of a detecting policy during a run.
#[derive(Debug, Clone, PartialEq)]
pub struct PolicyReport {
    /// The report as one line.
    pub line: String,
    /// The figures of the report, if it is about one period of one stream.
    pub period: Option<PeriodFindings>,
}

/// The findings of a detecting policy in one period of one stream.
#[derive(Debug, Clone, PartialEq)]
pub struct PeriodFindings {
    /// The stream.
    pub stream: StreamId,
    /// The findings.
    pub report: PeriodReport,
    /// The name of the replacement policy that the stream uses from the end of this period on.
    pub replacement: &'static str,
}
