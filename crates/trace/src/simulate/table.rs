//! Writes runs as text tables: one per trace, rows by size, columns by policy.
//!
//! Owns: the layout. Numbers have no thousands separators, so that they can be copied.

use std::fmt::Write as _;

use super::{Row, Workload, policies};

/// The kind of numbers in the cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cell {
    /// The number of misses.
    Misses,
    /// The share of references that missed. *Units*: percent.
    Ratio,
    /// The number of references per second, in millions.
    Speed,
}

/// The sizes of the rows of one trace, ascending, and their policies, in the order in which every table has them.
pub(super) fn axes(rows: &[&Row]) -> (Vec<u64>, Vec<&'static str>) {
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

/// The rows of `workload` as a table, with a headline that gives the length of the trace.
pub fn table(workload: &Workload, rows: &[Row], cell: Cell) -> String {
    let rows: Vec<&Row> = rows.iter().filter(|row| row.trace == workload.name()).collect();
    let (sizes, names) = axes(&rows);
    let what = match cell {
        Cell::Misses => "misses",
        Cell::Ratio => "misses in % of references",
        Cell::Speed => "million references/s",
    };
    let (name, references, distinct) = (workload.name(), workload.references(), workload.distinct());
    let mut text = format!("{name}: {references} references, {distinct} distinct blocks; {what}\n");
    let shown = |row: Option<&&Row>| match (row, cell) {
        (None, _) => "-".to_owned(),
        (Some(row), Cell::Misses) => row.misses.to_string(),
        (Some(row), Cell::Ratio) => format!("{:.2}", 100.0 * row.miss_ratio()),
        (Some(row), Cell::Speed) => format!("{:.1}", row.references as f64 / row.elapsed.as_secs_f64() / 1e6),
    };
    let columns: Vec<Vec<String>> = names
        .iter()
        .map(|name| {
            let of_size = |&size: &u64| shown(rows.iter().find(|row| row.size == size && row.policy == *name));
            std::iter::once((*name).to_owned()).chain(sizes.iter().map(of_size)).collect()
        })
        .collect();
    let sizes: Vec<String> =
        std::iter::once("size".to_owned()).chain(sizes.iter().map(|size| size.to_string())).collect();
    for line in 0..sizes.len() {
        for column in std::iter::once(&sizes).chain(&columns) {
            let width = column.iter().map(String::len).max().unwrap_or(0);
            let gap = if std::ptr::eq(column, &sizes) { "" } else { "  " };
            // Writing to a String does not fail.
            let _ = write!(text, "{gap}{:>width$}", column[line]);
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use nectary_cache::Stream;
    use std::time::Duration;

    #[test]
    fn rows_are_sizes_and_columns_policies_in_the_fixed_order() {
        let workload = Workload::new("a", [1, 2, 1].map(|block| (block, Stream(0))));
        let row = |policy, size, misses| Row {
            trace: "a".to_owned(),
            policy,
            size,
            references: 3,
            misses,
            elapsed: Duration::from_micros(1),
            said: Vec::new(),
        };
        let rows = [row("s3fifo", 10, 2), row("lru", 10, 2), row("lru", 1, 3)];
        let text = table(&workload, &rows, Cell::Misses);
        assert_eq!(
            text,
            "a: 3 references, 2 distinct blocks; misses\nsize  lru  s3fifo\n   1    3       -\n  10    2       2\n"
        );
        assert!(table(&workload, &rows, Cell::Ratio).contains("66.67"));
    }
}
