//! `nectary trace record`: records a program, then prints a summary of the trace to the standard error stream.
//!
//! Owns: the summary in its two forms. Only the recorded program writes to the standard output. Leaves to others: the
//! recording.

use std::fmt::Write;
use std::io::{ErrorKind, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::Command;

use nectary_block::format_size;
use nectary_trace::formats::nectary::RecordingOutcome;
use nectary_trace::record::{Error, RecordingOptions, RecordingProgress, RecordingSummary, record};
use serde_json::{Value, json};

use crate::arguments::RecordArguments;
use crate::exit::{CommandFailure, FAILED, USAGE};
use crate::progress;

/// The exit code of shells for a program that cannot be run.
const NOT_RUNNABLE: u8 = 126;
/// The exit code of shells for a missing program.
const NO_PROGRAM: u8 = 127;
/// The maximum number of mapped files that the text names; JSON names all of them.
const MAPS_SHOWN: usize = 8;

/// Runs the command.
pub fn run(arguments: &RecordArguments) -> Result<u8, CommandFailure> {
    let Some((program, rest)) = arguments.command.split_first() else {
        return Err(CommandFailure::new(USAGE, "no command", "give it after --"));
    };
    let output = arguments.output.clone().unwrap_or_else(|| default_output(Path::new(program)));
    let mut options = RecordingOptions::new(&output);
    options.is_overwriting = arguments.force;
    options.block_bytes = arguments.block;
    options.is_reads_only = arguments.only_reads;
    options.is_collapsed = arguments.collapse;
    options.is_whole_program = true;
    let mut command = Command::new(program);
    command.args(rest);

    // There is no progress bar if the program writes to the terminal.
    let is_shown = std::io::stderr().is_terminal() && !std::io::stdout().is_terminal();
    let bar = is_shown.then(|| progress::references("recording"));
    let mut is_told = false;
    let result = record(command, &options, &mut |now: &RecordingProgress| {
        if let Some(bar) = &bar {
            bar.set_position(now.references);
        }
        if now.is_command_over && !is_told {
            is_told = true;
            eprint("nectary: the command has ended, its children go on; Ctrl-C stops the recording and leaves them\n");
        }
    });
    if let Some(bar) = &bar {
        bar.finish_and_clear();
    }
    let summary = result.map_err(failure)?;
    let text = if arguments.json { format!("{}\n", figures(&output, &summary)) } else { text(&output, &summary) };
    eprint(&text);
    Ok(summary.exit_code())
}

/// Prints to the standard error stream; a closed stream must not cause a panic.
fn eprint(text: &str) {
    let _ = std::io::Write::write_all(&mut std::io::stderr().lock(), text.as_bytes());
}

fn default_output(program: &Path) -> PathBuf {
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    PathBuf::from(format!("{name}.nectrace.gz"))
}

fn failure(error: Error) -> CommandFailure {
    let code = match &error {
        Error::Command { source, .. } if source.kind() == ErrorKind::NotFound => NO_PROGRAM,
        Error::Command { .. } => NOT_RUNNABLE,
        Error::Usage(_) | Error::Exists { .. } => USAGE,
        _ => FAILED,
    };
    match error.remedy() {
        Some(remedy) => CommandFailure::new(code, error.to_string(), remedy),
        None => CommandFailure::new(code, error.to_string(), "see `nectary trace record --help`"),
    }
}

fn ended(summary: &RecordingSummary) -> String {
    match summary.outcome {
        RecordingOutcome::Exited(code) => format!("exit code {code}"),
        RecordingOutcome::Killed(signal) => format!("killed by signal {signal}"),
        RecordingOutcome::Stopped => "still running".to_owned(),
    }
}

fn text(output: &Path, summary: &RecordingSummary) -> String {
    let totals = &summary.totals;
    let pages = |pages: u64| format_size(pages * summary.page_bytes);
    let mut text = format!("nectary: {}: {}, {:.1} s", output.display(), ended(summary), summary.seconds);
    text += if summary.is_stopped { ", stopped before its children ended\n" } else { "\n" };
    let more = if summary.is_lower_bound { " or more" } else { "" };
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "  {name:<17}{value}");
    };
    line("processes", totals.processes.to_string());
    line("files", totals.files.to_string());
    line("streams", totals.streams.to_string());
    line("references", totals.references.to_string());
    line("distinct blocks", format!("{}{more}", summary.blocks));
    line("size of trace", format_size(summary.file_bytes));
    for (kind, calls) in &summary.unseen {
        line("unseen", format!("{calls} {}", kind.as_str()));
    }
    if totals.lost_references > 0 {
        line("lost", format!("{} references", totals.lost_references));
    }
    if !summary.maps.is_empty() {
        let sum: u64 = summary.maps.iter().map(|map| map.pages).sum();
        let files = summary.maps.len();
        line("unseen maps", format!("{} of {files} files, whose pages are referred to without a call", pages(sum)));
        for map in summary.maps.iter().take(MAPS_SHOWN) {
            let times = if map.maps == 1 { String::new() } else { format!(", {} times", map.maps) };
            let kind = if map.is_executable { "code" } else { "data" };
            line("", format!("{} {kind}{times}  {}", pages(map.pages), map.name.escape_debug()));
        }
        if files > MAPS_SHOWN {
            line("", format!("and {} more files (--json names all)", files - MAPS_SHOWN));
        }
    }
    text
}

fn figures(output: &Path, summary: &RecordingSummary) -> Value {
    let (exit, signal) = match summary.outcome {
        RecordingOutcome::Exited(code) => (Some(code), None),
        RecordingOutcome::Killed(signal) => (None, Some(signal)),
        RecordingOutcome::Stopped => (None, None),
    };
    let unseen: serde_json::Map<String, Value> =
        summary.unseen.iter().map(|(kind, calls)| (kind.as_str().replace(' ', "_"), json!(calls))).collect();
    let maps: Vec<Value> = summary
        .maps
        .iter()
        .map(|map| json!({"file": map.name, "maps": map.maps, "pages": map.pages, "executable": map.is_executable}))
        .collect();
    json!({
        "trace": output.display().to_string(),
        "exit_code": exit,
        "signal": signal,
        "stopped": summary.is_stopped,
        "seconds": summary.seconds,
        "processes": summary.totals.processes,
        "files": summary.totals.files,
        "streams": summary.totals.streams,
        "references": summary.totals.references,
        "lost_references": summary.totals.lost_references,
        "distinct": summary.blocks,
        "distinct_is_lower_bound": summary.is_lower_bound,
        "trace_bytes": summary.file_bytes,
        "page_bytes": summary.page_bytes,
        "unseen": unseen,
        "maps": maps,
    })
}
