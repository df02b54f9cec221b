//! `nectary trace`: the contents of traces, and conversion to other formats.
//!
//! Owns: the commands, one small function each. Leaves to others: reading and writing traces (`nectary-trace`).

use nectary_block::format_size;
use nectary_trace::convert::convert as convert_trace;
use nectary_trace::formats::{self, FORMATS, TraceFormat};
use nectary_trace::{Error, TraceStat};
use serde_json::{Value, json};

use crate::arguments::{ConvertArguments, TraceCommand, TraceStatArguments};
use crate::exit::{CommandFailure, GOOD};
use crate::{output, progress, trace_record};

/// Runs a command.
pub fn run(command: &TraceCommand) -> Result<u8, CommandFailure> {
    match command {
        TraceCommand::Record(arguments) => trace_record::run(arguments),
        TraceCommand::Stat(arguments) => stat(arguments),
        TraceCommand::Convert(arguments) => convert(arguments),
    }
}

fn stat(arguments: &TraceStatArguments) -> Result<u8, CommandFailure> {
    let options = arguments.read.options();
    let mut traces = Vec::new();
    for path in &arguments.traces {
        let mut reader = formats::open(path, &options)?;
        let bar = progress::references(format!("reading {}", path.display()));
        let stat = TraceStat::count(path, &mut *reader, &|done| bar.set_position(done))?;
        bar.finish_and_clear();
        let warning = reader.warning();
        if arguments.json {
            traces.push(figures(&path.display().to_string(), &stat, warning));
        } else {
            output::text(&text(&path.display().to_string(), &stat, warning))?;
        }
    }
    if arguments.json {
        output::json(&json!({ "traces": traces }))?;
    }
    Ok(GOOD)
}

fn figures(name: &str, stat: &TraceStat, warning: Option<String>) -> Value {
    json!({
        "trace": name,
        "references": stat.references,
        "distinct": stat.distinct,
        "streams": stat.streams,
        "reads": stat.references - stat.writes,
        "writes": stat.writes,
        "deletes": stat.deletes,
        "reuses": stat.reuses(),
        "reuse_median": stat.reuse_median,
        "repeats": stat.repeats,
        "once": stat.once,
        "distinct_bytes": stat.distinct_bytes,
        "block_min": stat.range.0,
        "block_max": stat.range.1,
        "estimate": stat.is_estimate,
        "warning": warning,
    })
}

fn text(name: &str, stat: &TraceStat, warning: Option<String>) -> String {
    let share = |part: u64, whole: u64| format!("{part} ({:.1} %)", 100.0 * part as f64 / whole.max(1) as f64);
    let about = if stat.is_estimate { "about " } else { "" };
    let mut lines = vec![
        name.to_owned(),
        format!("  references       {}", stat.references),
        format!("  distinct blocks  {about}{}, numbers {} to {}", stat.distinct, stat.range.0, stat.range.1),
        format!("  streams          {}", stat.streams),
        format!("  reads            {}", share(stat.references - stat.writes, stat.references)),
        format!("  writes           {}", share(stat.writes, stat.references)),
        format!("  deletes          {}", stat.deletes),
        format!("  reuses           {}", share(stat.reuses(), stat.references)),
        format!("  reuse distance   {} references or less for half of them", stat.reuse_median),
        format!("  immediate        {}", share(stat.repeats, stat.references)),
        format!("  one-time blocks  {}", share(stat.once, stat.distinct)),
    ];
    if stat.distinct_bytes > 0 {
        lines.push(format!("  size of blocks   {}", format_size(stat.distinct_bytes)));
    }
    lines.extend(warning.map(|warning| format!("  note             {warning}")));
    lines.push(String::new());
    lines.join("\n")
}

fn convert(arguments: &ConvertArguments) -> Result<u8, CommandFailure> {
    let format = match arguments.into {
        Some(format) => format,
        None => TraceFormat::by_ending(&arguments.to).ok_or_else(|| {
            let endings: Vec<&str> = FORMATS.iter().filter_map(|entry| entry.endings.first()).copied().collect();
            let to = arguments.to.display();
            Error::Usage(format!("{to}: no format has this ending ({}); name it with --into", endings.join(" ")))
        })?,
    };
    let mut reader = formats::open(&arguments.from, &arguments.read.options())?;
    let bar = progress::references("converting");
    let identity = identity();
    let (from, to) = (&arguments.from, &arguments.to);
    let converted = convert_trace(&mut *reader, from, to, format, identity, &|done| bar.set_position(done))?;
    bar.finish_and_clear();
    if arguments.json {
        output::json(&json!({
            "trace": arguments.to.display().to_string(),
            "format": format.name(),
            "references": converted.references,
            "streams_lost": converted.streams_are_lost,
            "writes_lost": converted.writes_are_lost,
            "sizes_lost": converted.sizes_are_lost,
            "deletes_lost": converted.deletes_are_lost,
            "renumbered": converted.renumbered,
            "warning": reader.warning(),
        }))?;
        return Ok(GOOD);
    }
    let mut text = format!("{}: {} references\n", arguments.to.display(), converted.references);
    if converted.streams_are_lost {
        text += "  its streams are left out: the format has none\n";
    }
    if converted.writes_are_lost {
        text += "  its writes are taken for reads: the format has none\n";
    }
    if converted.sizes_are_lost {
        text += "  the sizes of its objects are left out: the format has none\n";
    }
    if converted.renumbered > 0 {
        text += &format!("  {} block numbers are new: the format has no room for the old ones\n", converted.renumbered);
    }
    if converted.deletes_are_lost {
        text += "  its deletes are left out: the format has none\n";
    }
    if let Some(warning) = reader.warning() {
        text += &format!("  note: {warning}\n");
    }
    output::text(&text)?;
    Ok(GOOD)
}

/// Returns a random identity for a new file.
fn identity() -> [u8; 16] {
    let mut identity = [0; 16];
    getrandom::fill(&mut identity).expect("the kernel has random numbers");
    identity
}
