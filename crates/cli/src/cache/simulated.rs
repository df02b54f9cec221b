//! The output of `nectary cache simulate`: tables, JSON and CSV.
//!
//! Owns: the forms of the output. Leaves to others: tables and pictures (`nectary-trace`).

use std::fmt::Write as _;

use nectary_trace::simulate::table::{CellKind, table, windows};
use nectary_trace::simulate::{PeriodFindings, RunCounts, SimulationRow, TraceOutline, WindowStart, policies};
use serde_json::{Value, json};

use crate::arguments::SimulateArguments;

/// The maximum number of streams that an explanation names.
const STREAMS_NAMED_MAX: usize = 64;

/// The results of a simulation.
pub struct SimulationResults<'a> {
    /// The traces.
    pub outlines: &'a [TraceOutline],
    /// The runs.
    pub rows: &'a [SimulationRow],
    /// The command line.
    pub arguments: &'a SimulateArguments,
}

impl SimulationResults<'_> {
    /// The rows of each trace, with the trace.
    fn all(&self) -> impl Iterator<Item = (&TraceOutline, impl Iterator<Item = &SimulationRow>)> {
        self.outlines.iter().map(|outline| (outline, self.rows.iter().filter(move |row| row.trace == outline.name)))
    }

    /// The rows as JSON.
    pub fn json(&self) -> Value {
        let rows = self.all().flat_map(|(outline, rows)| rows.map(|one| row(one, outline)).collect::<Vec<_>>());
        json!({ "rows": rows.collect::<Vec<_>>() })
    }

    /// The rows as CSV, or their windows if there are any.
    pub fn csv(&self) -> String {
        let mut text = String::from(
            "trace,policy,size,unit,from,from_s,references,misses,miss_ratio,bytes,missed_bytes,byte_miss_ratio\n",
        );
        for (outline, rows) in self.all() {
            for row in rows {
                for (start, counts) in outline.windows.iter().zip(&row.windows) {
                    let second = start.second.map(|second| second.to_string()).unwrap_or_default();
                    let bytes = match counts.byte_miss_ratio() {
                        Some(ratio) => format!("{},{},{ratio}", counts.bytes, counts.missed_bytes),
                        None => ",,".to_owned(),
                    };
                    let RunCounts { references, misses, .. } = counts;
                    // Writing to a String never fails.
                    let _ = writeln!(
                        text,
                        "{},{},{},{},{},{second},{references},{misses},{},{bytes}",
                        quoted(&row.trace),
                        row.policy,
                        row.size,
                        row.unit.name(outline.has_sizes),
                        start.reference,
                        counts.miss_ratio(),
                    );
                }
            }
        }
        text
    }

    /// The rows as tables.
    pub fn text(&self) -> String {
        let SimulationResults { arguments, rows, .. } = self;
        let mut text = String::new();
        for outline in self.outlines {
            let mut cells = vec![if arguments.ratio { CellKind::Ratio } else { CellKind::Misses }];
            if outline.has_sizes {
                cells.push(if arguments.ratio { CellKind::ByteRatio } else { CellKind::Bytes });
            }
            if arguments.timing {
                cells.push(CellKind::Speed);
            }
            for cell in &cells {
                if !text.is_empty() {
                    text.push('\n');
                }
                text += &table(outline, rows, *cell);
            }
            if outline.windows.len() > 1 {
                text.push('\n');
                text += &windows(outline, rows, cells[0]);
            }
            let explained = |row: &&SimulationRow| row.trace == outline.name && policies::explains(row.policy);
            if arguments.explain {
                rows.iter().filter(explained).for_each(|row| text += &explanation(outline, row));
            }
        }
        text
    }
}

/// A value of CSV, quoted if it must be.
pub fn quoted(value: &str) -> String {
    let is_plain = !value.contains([',', '"', '\n', '\r']);
    if is_plain { value.to_owned() } else { format!("\"{}\"", value.replace('"', "\"\"")) }
}

/// Adds the counts of bytes of a trace that has sizes.
fn add_bytes(value: &mut Value, counts: &RunCounts) {
    if let Some(ratio) = counts.byte_miss_ratio() {
        value["bytes"] = counts.bytes.into();
        value["missed_bytes"] = counts.missed_bytes.into();
        value["byte_miss_ratio"] = ratio.into();
    }
}

fn row(row: &SimulationRow, outline: &TraceOutline) -> Value {
    let mut value = json!({
        "trace": row.trace,
        "policy": row.policy,
        "size": row.size,
        "unit": row.unit.name(outline.has_sizes),
        "references": row.counts.references,
        "misses": row.counts.misses,
        "miss_ratio": row.counts.miss_ratio(),
        "elapsed_us": u64::try_from(row.elapsed.as_micros()).unwrap_or(u64::MAX),
    });
    add_bytes(&mut value, &row.counts);
    if row.windows.len() > 1 {
        let window = |(start, counts): (&WindowStart, &RunCounts)| {
            let mut value = json!({
                "from": start.reference,
                "from_s": start.second,
                "references": counts.references,
                "misses": counts.misses,
                "miss_ratio": counts.miss_ratio(),
            });
            add_bytes(&mut value, counts);
            value
        };
        value["windows"] = outline.windows.iter().zip(&row.windows).map(window).collect();
    }
    if !row.said.is_empty() {
        value["periods"] = row.said.iter().filter_map(|said| said.period.as_ref()).map(period).collect();
        let others = row.said.iter().filter(|said| said.period.is_none());
        value["events"] = others.map(|said| Value::from(said.line.as_str())).collect();
    }
    value
}

fn period(period: &PeriodFindings) -> Value {
    let report = &period.report;
    json!({
        "stream": period.stream.0,
        "number": report.number,
        "end": report.end,
        "verdict": report.verdict.name(),
        "unknown": report.unknown,
        "known": report.known,
        "foreign": report.foreign,
        "by_backward": *report.by_backward,
        "by_frequency": *report.by_frequency,
        "tau_backward": report.tau_backward,
        "tau_frequency": report.tau_frequency,
        "loop_length": report.loop_length,
        "replacement": period.replacement,
    })
}

/// Describes the periods of a run, one line for each.
fn explanation(outline: &TraceOutline, row: &SimulationRow) -> String {
    let unit = row.unit.name(outline.has_sizes);
    let mut text = format!("\n{} on {} at {} {unit}, period by period\n", row.policy, row.trace, row.size);
    let mut named: Vec<u32> = Vec::new();
    for said in &row.said {
        if let Some(stream) = said.period.as_ref().map(|period| period.stream)
            && !named.contains(&stream.0)
            && named.len() < STREAMS_NAMED_MAX
        {
            named.push(stream.0);
            if let Some(name) = outline.stream_name(stream) {
                // Writing to a String never fails.
                let _ = writeln!(text, "  stream {} is {name}", stream.0);
            }
        }
        let _ = writeln!(text, "  {}", said.line);
    }
    if row.said.is_empty() {
        text += "  no stream was referenced for a whole period\n";
    }
    text
}
