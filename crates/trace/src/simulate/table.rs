//! Writes runs as text tables: one per trace, rows by size, columns by policy.
//!
//! Owns: the layout. Numbers have no thousands separators, so that they can be copied.

use std::fmt::Write as _;

use super::counting::RunCounts;
use super::sizes::CapacityUnit;
use super::{SimulationRow, TraceOutline, policies};

/// The kind of numbers in the cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CellKind {
    /// The number of misses.
    Misses,
    /// The share of references that missed. *Units*: percent.
    Ratio,
    /// The sum of the sizes of the references that missed. *Units*: bytes.
    Bytes,
    /// The share of bytes that missed. *Units*: percent.
    ByteRatio,
    /// The number of references per second, in millions.
    Speed,
}

/// The sizes of the rows of one trace, ascending, and their policies, in the order in which every table has them.
pub(super) fn axes(rows: &[&SimulationRow]) -> (Vec<u64>, Vec<&'static str>) {
    let mut sizes: Vec<u64> = rows.iter().map(|row| row.size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let mut names: Vec<&'static str> = Vec::new();
    for row in rows {
        if !names.contains(&row.policy) {
            names.push(row.policy);
        }
    }
    names.sort_by_key(|name| policies::order(name));
    (sizes, names)
}

/// The rows of a trace as a table, with a headline that gives the length of the trace.
pub fn table(outline: &TraceOutline, rows: &[SimulationRow], cell: CellKind) -> String {
    let rows: Vec<&SimulationRow> = rows.iter().filter(|row| row.trace == outline.name).collect();
    let (sizes, names) = axes(&rows);
    let what = what(cell);
    let mut text = format!("{}: {}; {what}\n", outline.name, contents(outline));
    let shown = |row: Option<&&SimulationRow>| match (row, cell) {
        (None, _) => "-".to_owned(),
        (Some(row), CellKind::Speed) => {
            let references = row.windows.iter().map(|window| window.references).sum::<u64>();
            format!("{:.1}", references as f64 / row.elapsed.as_secs_f64() / 1e6)
        }
        (Some(row), cell) => counted(&row.counts, cell),
    };
    let head = match rows.first().map_or(CapacityUnit::Blocks, |row| row.unit).name(outline.has_sizes) {
        "blocks" => "size",
        unit => unit,
    };
    let mut columns = vec![column(head, sizes.iter().map(u64::to_string))];
    for name in names {
        let of_size = |&size: &u64| shown(rows.iter().find(|row| row.size == size && row.policy == name));
        columns.push(column(name, sizes.iter().map(of_size)));
    }
    layout(&columns, &mut text);
    text
}

/// The windows of the rows of a trace as tables, one for each size: a row for each window, a column for each policy.
pub fn windows(outline: &TraceOutline, rows: &[SimulationRow], cell: CellKind) -> String {
    let rows: Vec<&SimulationRow> = rows.iter().filter(|row| row.trace == outline.name).collect();
    let (sizes, names) = axes(&rows);
    let starts = &outline.windows;
    let mut text = String::new();
    for size in sizes {
        let unit = rows.first().map_or(CapacityUnit::Blocks, |row| row.unit).name(outline.has_sizes);
        let _ = writeln!(text, "{} at {size} {unit}, over time; {}", outline.name, what(cell));
        let mut columns = vec![column("from", starts.iter().map(|start| start.reference.to_string()))];
        if starts.iter().any(|start| start.second.is_some()) {
            columns.push(column("second", starts.iter().map(|start| start.second.unwrap_or(0).to_string())));
        }
        for name in &names {
            let row = rows.iter().find(|row| row.size == size && row.policy == *name);
            let windows = row.map_or(&[][..], |row| &row.windows[..]);
            columns.push(column(name, windows.iter().map(|window| counted(window, cell))));
        }
        layout(&columns, &mut text);
    }
    text
}

/// The length of a trace, in words.
pub(super) fn contents(outline: &TraceOutline) -> String {
    let TraceOutline { references, distinct, distinct_bytes, .. } = outline;
    let about = if outline.is_estimate { "about " } else { "" };
    match outline.has_sizes {
        false => format!("{references} references, {about}{distinct} distinct blocks"),
        true => format!("{references} references, {about}{distinct} distinct objects of {distinct_bytes} bytes"),
    }
}

fn what(cell: CellKind) -> &'static str {
    match cell {
        CellKind::Misses => "misses",
        CellKind::Ratio => "misses in % of references",
        CellKind::Bytes => "missed bytes",
        CellKind::ByteRatio => "misses in % of bytes",
        CellKind::Speed => "million references/s",
    }
}

fn counted(counts: &RunCounts, cell: CellKind) -> String {
    match cell {
        CellKind::Misses => counts.misses.to_string(),
        CellKind::Bytes => counts.missed_bytes.to_string(),
        CellKind::ByteRatio => format!("{:.2}", 100.0 * counts.byte_miss_ratio().unwrap_or(0.0)),
        CellKind::Ratio | CellKind::Speed => format!("{:.2}", 100.0 * counts.miss_ratio()),
    }
}

fn column(head: &str, cells: impl Iterator<Item = String>) -> Vec<String> {
    std::iter::once(head.to_owned()).chain(cells).collect()
}

/// Writes columns side by side, each aligned to the right.
fn layout(columns: &[Vec<String>], text: &mut String) {
    for line in 0..columns.iter().map(Vec::len).max().unwrap_or(0) {
        for (index, column) in columns.iter().enumerate() {
            let width = column.iter().map(String::len).max().unwrap_or(0);
            let gap = if index == 0 { "" } else { "  " };
            // Writing to a String does not fail.
            let _ = write!(text, "{gap}{:>width$}", column.get(line).map_or("", String::as_str));
        }
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Rows are sizes and columns are policies, in the fixed order.
    #[test]
    fn table_order_is_fixed() {
        let outline = TraceOutline { name: "a".to_owned(), references: 3, distinct: 2, ..TraceOutline::default() };
        let row = |policy, size, misses| SimulationRow {
            trace: "a".to_owned(),
            policy,
            size,
            unit: CapacityUnit::Blocks,
            counts: RunCounts { references: 3, misses, ..RunCounts::default() },
            windows: Vec::new(),
            elapsed: Duration::from_micros(1),
            said: Vec::new(),
        };
        let rows = [row("s3fifo", 10, 2), row("lru", 10, 2), row("lru", 1, 3)];
        let text = table(&outline, &rows, CellKind::Misses);
        assert_eq!(
            text,
            "a: 3 references, 2 distinct blocks; misses\nsize  lru  s3fifo\n   1    3       -\n  10    2       2\n"
        );
        assert!(table(&outline, &rows, CellKind::Ratio).contains("66.67"));
    }
}
