//! The results of a sweep in xdd's columns.
//!
//! Owns: the meaning of each column. Leaves to others: the tables for people (`report`) and pictures (`plot`).

use serde::Serialize;

use super::SweepCell;
use super::job::{PassOutcome, StreamOutcome};
use crate::statistics::{IntervalEstimate, estimate};

/// A cell and its passes.
#[derive(Debug, Clone)]
pub struct CellResult {
    /// The settings.
    pub cell: SweepCell,
    /// The outcome of each pass.
    pub outcomes: Vec<PassOutcome>,
}

/// Upper limits of the rates on the target. *Units*: MiB per second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct RateCeilings {
    /// The rate of direct reads of 4 MiB, 8 at once.
    pub read: Option<f64>,
    /// The rate of direct writes of 4 MiB, 8 at once.
    pub write: Option<f64>,
    /// The rate of a copy in memory.
    pub copy: Option<f64>,
}

/// A line of xdd's table. It is for one stream of a pass, all streams of a pass, or the mean over passes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct XddRow {
    /// `TARGET_PASS`, `COMBINED` or `AVERAGE`.
    pub what: &'static str,
    /// The number of the pass, from 1; 0 for the mean over passes.
    pub pass: usize,
    /// The number of the stream, from 0; in a line for all streams, how many streams there are.
    pub target: usize,
    /// The number of requests that a stream has in flight.
    pub queue: usize,
    /// The number of bytes read and written.
    pub bytes: u64,
    /// The number of requests.
    pub ops: u64,
    /// The elapsed time. *Units*: seconds.
    pub elapsed_s: f64,
    /// The rate. *Units*: MiB per second (1024 x 1024 bytes, as in the NCAR report).
    pub mib_s: f64,
    /// Requests per second.
    pub iops: f64,
    /// The mean time of a request. *Units*: milliseconds.
    pub latency_ms: f64,
    /// The processor time of the whole process divided by the elapsed time. *Units*: percent of one processor.
    pub cpu_percent: f64,
    /// The name of the operation.
    pub op: &'static str,
    /// The name of the mode.
    pub mode: &'static str,
    /// The size of a request. *Units*: bytes.
    pub request_bytes: u64,
    /// The median time of a request. *Units*: milliseconds.
    pub half_ms: f64,
    /// The 99th percentile of request times; for several streams or passes, the worst one. *Units*: milliseconds.
    pub most_ms: f64,
    /// The longest time of a request. *Units*: milliseconds.
    pub longest_ms: f64,
}

impl SweepCell {
    /// The cell's name in progress and figures, such as `read.direct.streams2.depth1.64k`.
    pub fn name(&self) -> String {
        let (operation, mode) = (self.operation.name(), self.mode.name());
        let (streams, depth, size) = (self.streams, self.depth, nectary_block::format_size(self.request_bytes));
        format!("{operation}.{mode}.streams{streams}.depth{depth}.{}", size.to_lowercase())
    }
}

impl CellResult {
    /// Makes a cell without passes.
    pub fn new(cell: SweepCell) -> CellResult {
        CellResult { cell, outcomes: Vec::new() }
    }

    /// The median rate over the passes. *Units*: MiB per second.
    pub fn rate(&self) -> IntervalEstimate {
        estimate(&self.outcomes.iter().map(PassOutcome::rate).collect::<Vec<_>>())
    }

    /// All lines of the cell.
    pub fn rows(&self) -> Vec<XddRow> {
        let mut rows = Vec::new();
        for (pass, outcome) in self.outcomes.iter().enumerate() {
            for (target, stream) in outcome.streams.iter().enumerate() {
                let cpu_s = outcome.processor_s;
                rows.push(self.row("TARGET_PASS", pass + 1, target, &[stream], stream.seconds, cpu_s));
            }
            let streams: Vec<&StreamOutcome> = outcome.streams.iter().collect();
            rows.push(self.row("COMBINED", pass + 1, streams.len(), &streams, outcome.seconds, outcome.processor_s));
        }
        rows.extend(self.average());
        rows
    }

    /// The mean over all passes. Bytes, requests and the elapsed time are those of an average pass.
    pub fn average(&self) -> Option<XddRow> {
        let streams: Vec<&StreamOutcome> = self.outcomes.iter().flat_map(|outcome| &outcome.streams).collect();
        let passes = self.outcomes.len() as u64;
        let sum = |value: fn(&PassOutcome) -> f64| self.outcomes.iter().map(value).sum::<f64>();
        let (seconds, cpu_s) = (sum(|outcome| outcome.seconds), sum(|outcome| outcome.processor_s));
        if passes == 0 {
            return None;
        }
        let all = self.row("AVERAGE", 0, self.cell.streams, &streams, seconds, cpu_s);
        let elapsed_s = all.elapsed_s / passes as f64;
        Some(XddRow { bytes: all.bytes / passes, ops: all.ops / passes, elapsed_s, ..all })
    }

    fn row(
        &self,
        what: &'static str,
        pass: usize,
        target: usize,
        streams: &[&StreamOutcome],
        elapsed_s: f64,
        cpu_s: f64,
    ) -> XddRow {
        let bytes: u64 = streams.iter().map(|stream| stream.bytes).sum();
        let ops: u64 = streams.iter().map(|stream| stream.count()).sum();
        let waiting_s: f64 = streams.iter().map(|stream| stream.waiting_s).sum();
        let worst = |value: fn(&StreamOutcome) -> f64| streams.iter().map(|one| value(one)).fold(0.0, f64::max);
        let seconds = elapsed_s.max(1e-9);
        XddRow {
            what,
            pass,
            target,
            queue: self.cell.depth,
            bytes,
            ops,
            elapsed_s,
            mib_s: bytes as f64 / (1 << 20) as f64 / seconds,
            iops: ops as f64 / seconds,
            latency_ms: waiting_s * 1e3 / ops.max(1) as f64,
            cpu_percent: cpu_s * 100.0 / seconds,
            op: self.cell.operation.name(),
            mode: self.cell.mode.name(),
            request_bytes: self.cell.request_bytes,
            half_ms: crate::statistics::median(&streams.iter().map(|one| one.half_ms).collect::<Vec<_>>()),
            most_ms: worst(|stream| stream.most_ms),
            longest_ms: worst(|stream| stream.longest_ms),
        }
    }
}

/// The headings in xdd's order: name, unit (in the line below), width.
pub const HEADINGS: [(&str, &str, usize); 16] = [
    ("What", "", 11),
    ("Pass", "", 5),
    ("Target", "", 7),
    ("Queue", "", 6),
    ("Bytes_Xfered", "bytes", 13),
    ("Ops", "#", 8),
    ("Elapsed", "seconds", 9),
    ("Bandwidth", "MiB/s", 10),
    ("IOPS", "ops/s", 10),
    ("Latency", "ms", 9),
    ("Pct_CPU", "%", 8),
    ("Op_Type", "", 8),
    ("Xfer_Size", "bytes", 10),
    ("p50", "ms", 8),
    ("p99", "ms", 8),
    ("Longest", "ms", 8),
];

/// The two lines of headings.
pub fn headings() -> String {
    let line = |part: fn(&(&'static str, &'static str, usize)) -> &'static str| {
        HEADINGS.iter().map(|heading| format!("{:>1$}", part(heading), heading.2)).collect::<String>()
    };
    format!("{}\n{}\n", line(|heading| heading.0), line(|heading| heading.1))
}

impl XddRow {
    /// The row as a line of the table.
    pub fn line(&self) -> String {
        let pass = if self.pass == 0 { "mean".to_owned() } else { self.pass.to_string() };
        let values = [
            self.what.to_owned(),
            pass,
            self.target.to_string(),
            self.queue.to_string(),
            self.bytes.to_string(),
            self.ops.to_string(),
            format!("{:.3}", self.elapsed_s),
            format!("{:.2}", self.mib_s),
            format!("{:.1}", self.iops),
            format!("{:.4}", self.latency_ms),
            format!("{:.1}", self.cpu_percent),
            self.op.to_owned(),
            self.request_bytes.to_string(),
            format!("{:.3}", self.half_ms),
            format!("{:.3}", self.most_ms),
            format!("{:.3}", self.longest_ms),
        ];
        let columns = values.iter().zip(HEADINGS).map(|(value, heading)| format!("{value:>0$}", heading.2));
        columns.collect::<String>() + "\n"
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::job::{OpenMode, RequestOperation};
    use super::*;

    /// Two passes of two streams that read 4 MiB each, in one second or in two.
    pub fn result() -> CellResult {
        let cell = SweepCell {
            operation: RequestOperation::Read,
            mode: OpenMode::Direct,
            streams: 2,
            depth: 1,
            request_bytes: 1 << 20,
        };
        let stream = |seconds: f64| StreamOutcome {
            bytes: 4 << 20,
            reads: 4,
            seconds,
            waiting_s: seconds,
            longest_ms: seconds * 1e3,
            ..StreamOutcome::default()
        };
        let outcome = |seconds: f64| PassOutcome {
            streams: vec![stream(seconds / 2.0), stream(seconds)],
            seconds,
            processor_s: seconds / 10.0,
        };
        CellResult { cell, outcomes: vec![outcome(1.0), outcome(2.0)] }
    }

    #[test]
    fn xdd_columns_and_sums_match() {
        let rows = result().rows();
        let what: Vec<(&str, usize)> = rows.iter().map(|row| (row.what, row.pass)).collect();
        assert_eq!(
            what,
            [
                ("TARGET_PASS", 1),
                ("TARGET_PASS", 1),
                ("COMBINED", 1),
                ("TARGET_PASS", 2),
                ("TARGET_PASS", 2),
                ("COMBINED", 2),
                ("AVERAGE", 0)
            ]
        );
        assert_eq!((rows[0].mib_s, rows[0].ops, rows[0].latency_ms), (8.0, 4, 125.0));
        assert_eq!((rows[2].bytes, rows[2].mib_s, rows[2].iops, rows[2].cpu_percent), (8 << 20, 8.0, 8.0, 10.0));
        let mean = &rows[6];
        assert_eq!((mean.bytes, mean.ops, mean.elapsed_s, mean.longest_ms), (8 << 20, 8, 1.5, 2000.0));
        assert!((mean.mib_s - 16.0 / 3.0).abs() < 1e-9, "all bytes over all time");
        let widths: usize = HEADINGS.iter().map(|heading| heading.2).sum();
        assert_eq!((headings().lines().next().unwrap().len(), mean.line().len()), (widths, widths + 1));
        assert_eq!(result().cell.name(), "read.direct.streams2.depth1.1m");
        assert_eq!(CellResult::new(result().cell).average(), None);
    }
}
