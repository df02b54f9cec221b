//! `nectary cache`: simulations, and the dispatch of the other commands.
//!
//! Owns: the runs that a command line requests, and their output. Leaves to others: reading, running, drawing
//! (`nectary-trace`).

use std::fmt::Write as _;
use std::path::Path;

use nectary_trace::Error;
use nectary_trace::formats::ReadOptions;
use nectary_trace::simulate::svg::{SvgOptions, svg};
use nectary_trace::simulate::table::{Cell, table};
use nectary_trace::simulate::{LoadOptions, Period, Row, Run, Workload, policies, run_all, sizes};
use serde_json::{Value, json};

use crate::arguments::{CacheCommand, SimulateArguments};
use crate::exit::{Failure, GOOD};
use crate::live::commands;
use crate::mounts::cache as cache_mount;
use crate::{live, output, progress};

/// The maximum number of streams that an explanation names.
const STREAMS_NAMED_MAX: usize = 64;

/// Runs a command.
pub fn run(command: &CacheCommand) -> Result<u8, Failure> {
    match command {
        CacheCommand::Simulate(arguments) => simulate(arguments),
        CacheCommand::Mount(arguments) => cache_mount::mount(arguments),
        CacheCommand::Umount(arguments) => cache_mount::umount(arguments),
        CacheCommand::Stat(arguments) => cache_mount::stat(arguments),
        CacheCommand::Flush(arguments) => commands::flush(arguments),
        CacheCommand::Set(arguments) => commands::set(arguments),
        CacheCommand::Show(arguments) => commands::show(arguments),
        CacheCommand::Drop(arguments) => commands::drop(arguments),
        CacheCommand::Pin(arguments) => commands::pin(arguments),
        CacheCommand::Unpin(arguments) => commands::unpin(arguments),
        CacheCommand::Advise(arguments) => live::advise::run(arguments),
    }
}

fn simulate(arguments: &SimulateArguments) -> Result<u8, Failure> {
    let names = policy_names(&arguments.policy)?;
    let sizes = sizes::parse_list(&arguments.size).map_err(|error| Error::Usage(format!("--size: {error}")))?;
    let workloads = load(arguments)?;
    let mut runs = Vec::new();
    for workload in &workloads {
        let mut blocks = Vec::new();
        let block_bytes = arguments.read.block.or(workload.block_bytes()).unwrap_or(ReadOptions::default().block_bytes);
        for size in &sizes {
            let size = size.blocks(workload.distinct(), block_bytes);
            blocks.push(size.map_err(|error| Error::Usage(format!("--size: {error}")))?);
        }
        blocks.sort_unstable();
        blocks.dedup();
        let is_explained = arguments.explain;
        for size in blocks {
            runs.extend(names.iter().map(|policy| Run { workload, policy, size, is_explained }));
        }
    }
    let bar = progress::runs(runs.len() as u64);
    let threads = arguments.threads.map(usize::from);
    let rows = run_all(&runs, threads, &|done| bar.set_position(done as u64))?;
    bar.finish_and_clear();
    if arguments.json {
        let rows: Vec<Value> = rows.iter().map(row).collect();
        output::json(&json!({ "rows": rows }))?;
    } else {
        output::text(&text(&workloads, &rows, arguments))?;
    }
    // The picture is written after the table, so that the table is printed even if the picture cannot be written.
    if let Some(path) = &arguments.svg {
        let picture = svg(&workloads, &rows, SvgOptions { is_log: arguments.log, is_ratio: arguments.ratio });
        if let Some(folder) = path.parent().filter(|folder| *folder != Path::new("") && !folder.is_dir()) {
            return Err(Error::Absent { path: folder.to_owned() }.into());
        }
        std::fs::write(path, picture).map_err(|error| Error::io(path, error))?;
    }
    Ok(GOOD)
}

/// Returns the requested policies, each once, in the order in which every table has them.
fn policy_names(asked: &[String]) -> Result<Vec<&'static str>, Failure> {
    let known = policies::names();
    let mut names = Vec::new();
    for asked in asked.iter().map(|asked| asked.trim()) {
        if asked == "all" {
            names.extend(policies::all());
        } else if let Some(name) = known.iter().find(|name| **name == asked) {
            names.push(name);
        } else {
            let known = known.join(", ");
            return Err(Error::Usage(format!("--policy: no policy is called \"{asked}\"; there are: {known}")).into());
        }
    }
    names.sort_by_key(|name| policies::order(name));
    names.dedup();
    Ok(names)
}

/// Returns the traces to simulate: each one separately, or all merged into one.
fn load(arguments: &SimulateArguments) -> Result<Vec<Workload>, Failure> {
    let limit = arguments.limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let read = arguments.read.options();
    let mut workloads: Vec<Workload> = Vec::new();
    for path in &arguments.traces {
        let workload = Workload::load(path, &read, &LoadOptions { limit })?;
        if let Some(warning) = workload.warning() {
            eprintln!("nectary: {}: {warning}", path.display());
        }
        workloads.push(workload);
    }
    if arguments.mix {
        return Ok(vec![Workload::mix(&workloads.iter().collect::<Vec<_>>())?]);
    }
    // Rows are distinguished by the names of their traces.
    for index in 1..workloads.len() {
        let (before, rest) = workloads.split_at_mut(index);
        let same = before.iter().filter(|workload| workload.name() == rest[0].name()).count();
        if same > 0 {
            rest[0].rename(&arguments.traces[index].display().to_string());
        }
    }
    Ok(workloads)
}

fn row(row: &Row) -> Value {
    let mut value = json!({
        "trace": row.trace,
        "policy": row.policy,
        "size": row.size,
        "references": row.references,
        "misses": row.misses,
        "miss_ratio": row.miss_ratio(),
        "elapsed_us": u64::try_from(row.elapsed.as_micros()).unwrap_or(u64::MAX),
    });
    if !row.said.is_empty() {
        value["periods"] = row.said.iter().filter_map(|said| said.period.as_ref()).map(period).collect();
        let others = row.said.iter().filter(|said| said.period.is_none());
        value["events"] = others.map(|said| Value::from(said.line.as_str())).collect();
    }
    value
}

fn period(period: &Period) -> Value {
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

fn text(workloads: &[Workload], rows: &[Row], arguments: &SimulateArguments) -> String {
    let mut cells = vec![if arguments.ratio { Cell::Ratio } else { Cell::Misses }];
    if arguments.timing {
        cells.push(Cell::Speed);
    }
    let mut text = String::new();
    for workload in workloads {
        for cell in &cells {
            if !text.is_empty() {
                text.push('\n');
            }
            text += &table(workload, rows, *cell);
        }
        let explained = |row: &&Row| row.trace == workload.name() && policies::explains(row.policy);
        if arguments.explain {
            rows.iter().filter(explained).for_each(|row| text += &explanation(workload, row));
        }
    }
    text
}

/// Describes the periods of a run, one line for each.
fn explanation(workload: &Workload, row: &Row) -> String {
    let mut text = format!("\n{} on {} at {} blocks, period by period\n", row.policy, row.trace, row.size);
    let mut named: Vec<u32> = Vec::new();
    for said in &row.said {
        if let Some(stream) = said.period.as_ref().map(|period| period.stream)
            && !named.contains(&stream.0)
            && named.len() < STREAMS_NAMED_MAX
        {
            named.push(stream.0);
            if let Some(name) = workload.stream_name(stream) {
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
