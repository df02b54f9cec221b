//! The figures as a table for people, and as a page of the documents.

use std::fmt::Write as _;

use super::{FILE_BLOCKS_MAX, PlacementFigures, SimulationSettings, WARM_UP_ROUNDS};

const HEADS: [&str; 13] = [
    "workload",
    "policy",
    "transfers",
    "theory",
    "ratio",
    "sent",
    "data",
    "parity",
    "reads",
    "cleaning",
    "flush parity",
    "messages",
    "target",
];

/// Formats the figures of a row, in the order of the table's head.
fn cells(row: &PlacementFigures) -> [String; 13] {
    let counts = &row.counts;
    let each = |count: u64| format!("{:.3}", count as f64 / counts.written.max(1) as f64);
    let target = match row.target {
        None => String::new(),
        Some(target) => format!("{target:.3} {}", if row.is_missed() { "MISSED" } else { "met" }),
    };
    [
        row.workload.clone(),
        row.policy.to_string(),
        format!("{:.3}", row.transfers),
        format!("{:.3}", row.theory),
        format!("{:.3}", row.transfers / row.theory),
        format!("{:.3}", row.sent),
        each(counts.data + counts.copies),
        each(counts.parity + counts.parity_room),
        each(counts.reads),
        format!("{} + {}", each(counts.cleaning_reads), each(counts.cleaning_writes)),
        each(counts.parity_flush),
        each(counts.messages),
        target,
    ]
}

/// Formats a table with aligned columns, and the memory of each policy below it.
pub fn table(rows: &[PlacementFigures]) -> String {
    let lines: Vec<[String; 13]> = std::iter::once(HEADS.map(str::to_owned)).chain(rows.iter().map(cells)).collect();
    let mut widths = [0; 13];
    for line in &lines {
        line.iter().zip(&mut widths).for_each(|(cell, width)| *width = cell.len().max(*width));
    }
    let mut text = String::new();
    for line in &lines {
        let mut shown = String::new();
        for (index, (cell, width)) in line.iter().zip(widths).enumerate() {
            // Writing to a `String` cannot fail.
            let _ = match index {
                0 | 1 => write!(shown, "{cell:width$}  "),
                _ => write!(shown, "{cell:>width$}  "),
            };
        }
        text += shown.trim_end();
        text.push('\n');
    }
    text.push('\n');
    memory(rows).iter().for_each(|line| {
        text += line;
        text.push('\n');
    });
    text
}

/// Returns the memory that each policy needs, one line each.
fn memory(rows: &[PlacementFigures]) -> Vec<String> {
    let mut seen = Vec::new();
    let mut lines = Vec::new();
    for row in rows.iter().filter(|row| {
        let is_new = !seen.contains(&row.policy);
        seen.push(row.policy);
        is_new
    }) {
        lines.push(format!(
            "{}: {:.2} slots of donors and {:.2} bytes of tables a block, up to {} blocks in the client's memory",
            row.policy, row.donor_slots_a_block, row.table_bytes_a_block, row.memory.client_blocks_max
        ));
    }
    lines
}

/// Formats a page in Markdown: the command line, the table of transfers, and the memory that each policy needs.
pub fn page(rows: &[PlacementFigures], settings: &SimulationSettings, command: &str) -> String {
    let mut text = format!(
        "# Transfers of the network RAM disk, by policy\n\n\
         Belongs to decision [0044](../decisions/0044-ram-placement.md).\n\n\
         Written by `{command}`. The figures are counts of the placement's steps and do not depend on the machine.\n\n\
         - Device: {} blocks, groups of {} members, {} % overflow; {} stream caches of {} columns of {} blocks, rule \
         for stale streams `{}`; seed {}.\n\
         - Each run fills the device, overwrites as much {} times, and counts the next {} times.\n\
         - Files have 1 to {} blocks, requests 1 to {}. `files-K`: K writers rewrite whole files; `-flushed`: a flush \
         after each file; `-random-30%`: three of ten blocks are random single ones; `uniform`: all are.\n\n\
         Transfers for each written block; cleaning is reads + writes; parity stored by flushes is not in `transfers`. \
         Messages are runs of slots that follow each other on one donor. Data are below 1 where blocks were overwritten \
         before they were sent.\n\n",
        settings.blocks,
        settings.members,
        settings.overflow_percent,
        settings.caches,
        settings.members,
        settings.column_blocks,
        settings.stale,
        settings.seed,
        WARM_UP_ROUNDS,
        settings.rounds,
        FILE_BLOCKS_MAX,
        settings.request_blocks,
    );
    let _ = writeln!(text, "| {} |\n|{}", HEADS.join(" | "), "---|".repeat(HEADS.len()));
    for row in rows {
        let _ = writeln!(text, "| {} |", cells(row).join(" | "));
    }
    text += "\n## Memory\n";
    memory(rows).iter().for_each(|line| {
        let _ = writeln!(text, "- {line}");
    });
    text
}
