//! `nectary cache flush`, `set`, `show`, `drop`, `pin` and `unpin`.
//!
//! Owns: the requests to the running cache, and the presentation of the answers. Leaves to others: answering the
//! requests (`methods`).

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nectary_block::format_size;
use serde_json::{Value, json};

use super::{CacheTarget, printable};
use crate::arguments::{CacheFlushArguments, CachePathArguments, CacheSetArguments};
use crate::exit::{CommandFailure, FAILED, GOOD, USAGE};
use crate::{output, progress};

/// The interval at which the progress of a flush is updated.
const PROGRESS_EVERY: Duration = Duration::from_millis(200);
/// The width of the picture of a file.
const PICTURE_COLUMNS: u64 = 60;
/// The maximum number of files named in the message about files that cannot be written.
const FAILURES_NAMED_MAX: usize = 20;

fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or(0)
}

/// Formats a number of bytes for people; a small number is exact.
fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} bytes"),
        1024..1_048_576 => format!("{}K", bytes.div_ceil(1024)),
        1_048_576..1_073_741_824 => format!("{:.1}M", bytes as f64 / 1_048_576.0),
        _ => format!("{:.1}G", bytes as f64 / 1_073_741_824.0),
    }
}

/// Writes back dirty blocks.
pub fn flush(arguments: &CacheFlushArguments) -> Result<u8, CommandFailure> {
    let target = CacheTarget::named(&arguments.name)?;
    let running = target.running();
    let dirty = || -> Option<u64> {
        let figures = running.ask_for("figures", Value::Null, super::PATIENCE).ok()?;
        Some(figures["caches"].as_array()?.iter().map(|cache| number(&cache["figures"], "dirty_bytes")).sum())
    };
    let before = dirty().unwrap_or(0);
    let bar = progress::bytes("writing back", Some(before));
    let flushed = std::thread::scope(|scope| {
        let (ended, has_ended) = std::sync::mpsc::channel();
        scope.spawn(move || ended.send(running.ask("flush", Value::Null)));
        loop {
            match has_ended.recv_timeout(PROGRESS_EVERY) {
                Ok(flushed) => return flushed,
                // During a flush more blocks may become dirty.
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                    bar.set_position(before.saturating_sub(dirty().unwrap_or(before)));
                }
                Err(error) => return Err(anyhow::Error::from(error).context("the flush ended early").into()),
            }
        }
    });
    bar.finish_and_clear();
    let flushed = flushed?;
    let failed: &[Value] = flushed["failed"].as_array().map_or(&[], Vec::as_slice);
    if arguments.json {
        let mut answer = flushed.clone();
        answer["name"] = target.name().into();
        output::json(&answer)?;
    }
    if failed.is_empty() {
        if !arguments.json {
            let written = size(number(&flushed, "written_bytes"));
            output::text(&format!("{}: {written} written back, all of it is durable\n", target.name()))?;
        }
        return Ok(GOOD);
    }
    let mut message = format!("{}: {} of its files could not be written", target.name(), failed.len());
    for failure in failed.iter().take(FAILURES_NAMED_MAX) {
        let text = |name: &str| printable(failure[name].as_str().unwrap_or_default());
        let _ = write!(message, "\n  {}: {}", text("path"), text("error"));
    }
    let left = size(number(&flushed, "dirty_bytes"));
    let remedy = format!("{left} stay in memory and readable: mend what is below, then flush again");
    Err(CommandFailure::new(FAILED, message, remedy))
}

/// Changes a cache while it runs.
pub fn set(arguments: &CacheSetArguments) -> Result<u8, CommandFailure> {
    let memory = arguments.memory.map(|bytes| bytes.to_string());
    let changes = [("memory", &memory), ("policy", &arguments.policy), ("mode", &arguments.mode)];
    let changes: Vec<(&str, &String)> =
        changes.into_iter().filter_map(|(name, value)| Some((name, value.as_ref()?))).collect();
    if changes.is_empty() {
        let remedy = "give at least one of --memory, --policy and --mode";
        return Err(CommandFailure::new(USAGE, "there is nothing to set", remedy));
    }
    let target = CacheTarget::named(&arguments.name)?;
    let mut answer = Value::Null;
    for (index, (option, value)) in changes.iter().enumerate() {
        let set = target.running().ask("set", json!({ "option": option, "value": value }));
        answer = set.map_err(|failure| {
            let done: Vec<&str> = changes[..index].iter().map(|(name, _)| *name).collect();
            match done.is_empty() {
                true => failure,
                false => failure.context(format!("{} was set, {option} was not", done.join(" and "))),
            }
        })?;
    }
    answer["name"] = target.name().into();
    if arguments.json {
        output::json(&answer)?;
    } else {
        let text = |name: &str| answer[name].as_str().unwrap_or_default().to_owned();
        let memory = format_size(number(&answer, "memory_bytes"));
        output::text(&format!("{}: {memory} of memory, {}, {}\n", target.name(), text("policy"), text("mode")))?;
    }
    Ok(GOOD)
}

/// Shows which parts of a file, directory or device are in memory.
pub fn show(arguments: &CachePathArguments) -> Result<u8, CommandFailure> {
    let target = CacheTarget::of_path(&arguments.path)?;
    let answer = target.running().ask("show", target.place(arguments.offset, arguments.length))?;
    if arguments.json {
        let mut answer = answer;
        answer["name"] = target.name().into();
        output::json(&answer)?;
        return Ok(GOOD);
    }
    let files: &[Value] = answer["files"].as_array().map_or(&[], Vec::as_slice);
    let mut text = String::new();
    for file in files {
        let path = file["path"].as_str().filter(|path| !path.is_empty());
        let name = match path {
            Some(path) => Path::new(target.running().name()).join(path).display().to_string(),
            None => target.name(),
        };
        let (all, cached) = (number(file, "size_bytes"), number(file, "cached_bytes"));
        let percent = if all == 0 { 0.0 } else { 100.0 * cached as f64 / all as f64 };
        let _ = write!(text, "{}  {} of {} cached ({percent:.1} %)", printable(&name), size(cached), size(all));
        for (name, word) in [("dirty_bytes", "dirty"), ("unwritten_bytes", "not written"), ("pinned_bytes", "pinned")] {
            if number(file, name) > 0 {
                let _ = write!(text, ", {} {word}", size(number(file, name)));
            }
        }
        text.push('\n');
        if let Some(ranges) = file["ranges"].as_array() {
            let _ = writeln!(text, "  [{}]", picture(all, ranges));
        }
    }
    let left_out = number(&answer, "files_left_out");
    if left_out > 0 {
        let _ = writeln!(text, "and {left_out} more files");
    }
    if files.is_empty() {
        let _ = writeln!(text, "{}: nothing of it is cached", target.name());
    }
    output::text(&text)?;
    Ok(GOOD)
}

/// Draws a file as one line; each column shows the strongest state of its part.
fn picture(size_bytes: u64, ranges: &[Value]) -> String {
    let columns = PICTURE_COLUMNS.min(size_bytes).max(1);
    let mut picture = vec!['.'; columns as usize];
    for range in ranges {
        let (offset, length) = (number(range, "offset"), number(range, "length"));
        let column = |at: u64| (u128::from(at) * u128::from(columns) / u128::from(size_bytes.max(1))) as usize;
        let is = |name: &str| range[name].as_bool().unwrap_or(false);
        let mark = match (is("dirty"), is("pinned"), is("cached")) {
            (true, ..) => 'D',
            (_, true, _) => 'P',
            (_, _, true) => 'o',
            _ => '.',
        };
        let (first, last) = (column(offset), column(offset + length.saturating_sub(1)));
        let weight = |mark: char| ".oPD".find(mark);
        for place in picture.iter_mut().take(last + 1).skip(first) {
            *place = if weight(mark) > weight(*place) { mark } else { *place };
        }
    }
    picture.into_iter().collect()
}

/// Drops a file, directory or device from memory.
pub fn drop(arguments: &CachePathArguments) -> Result<u8, CommandFailure> {
    let target = CacheTarget::of_path(&arguments.path)?;
    let answer = target.running().ask("drop", target.place(arguments.offset, arguments.length))?;
    if arguments.json {
        let mut answer = answer;
        answer["name"] = target.name().into();
        output::json(&answer)?;
        return Ok(GOOD);
    }
    let mut text = format!("{}: {} dropped", target.name(), size(number(&answer, "dropped_bytes")));
    if number(&answer, "pinned_bytes") > 0 {
        let _ = write!(text, "; {} stay, as they are pinned", size(number(&answer, "pinned_bytes")));
    }
    if number(&answer, "dirty_bytes") > 0 {
        let _ = write!(text, "; {} stay, as they are dirty", size(number(&answer, "dirty_bytes")));
    }
    output::text(&format!("{text}\n"))?;
    Ok(GOOD)
}

/// Pins a file, directory or part of a device in memory.
pub fn pin(arguments: &CachePathArguments) -> Result<u8, CommandFailure> {
    let target = CacheTarget::of_path(&arguments.path)?;
    let mut files = Vec::new();
    if target.path.is_some() && arguments.path.is_dir() {
        files_below(&arguments.path, &mut files)?;
    } else {
        files.push(arguments.path.clone());
    }
    let bar = progress::entries("pinning");
    bar.set_length(files.len() as u64);
    let (mut pinned, mut last) = (0, json!({}));
    for (index, file) in files.iter().enumerate() {
        let one = CacheTarget::of_path(file)?;
        let answer = one.running().ask("pin", one.place(arguments.offset, arguments.length));
        last = answer.map_err(|failure| match index {
            0 => failure,
            _ => failure.context(format!("{index} of {} files were pinned, and stay so", files.len())),
        })?;
        pinned += number(&last, "pinned_bytes");
        bar.set_position(index as u64 + 1);
    }
    bar.finish_and_clear();
    let answer = json!({
        "name": target.name(),
        "files": files.len(),
        "pinned_bytes": pinned,
        "all_pinned_bytes": number(&last, "all_pinned_bytes"),
        "all_pinned_bytes_max": number(&last, "all_pinned_bytes_max"),
    });
    if arguments.json {
        output::json(&answer)?;
    } else {
        let (all, most) = (number(&answer, "all_pinned_bytes"), number(&answer, "all_pinned_bytes_max"));
        let now = if files.is_empty() { String::new() } else { format!("; {} of at most {}", size(all), size(most)) };
        output::text(&format!("{}: {} pinned{now}\n", target.name(), size(pinned)))?;
    }
    Ok(GOOD)
}

/// Returns the files below a directory, in the order of their names; links are not followed.
fn files_below(directory: &Path, files: &mut Vec<PathBuf>) -> Result<(), CommandFailure> {
    let mut entries = std::fs::read_dir(directory)?.collect::<Result<Vec<_>, _>>()?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let kind = entry.file_type()?;
        if kind.is_dir() {
            files_below(&entry.path(), files)?;
        } else if kind.is_file() {
            files.push(entry.path());
        }
    }
    Ok(())
}

/// Unpins a file, directory or part of a device, so that the policy decides again.
pub fn unpin(arguments: &CachePathArguments) -> Result<u8, CommandFailure> {
    let target = CacheTarget::of_path(&arguments.path)?;
    let answer = target.running().ask("unpin", target.place(arguments.offset, arguments.length))?;
    if arguments.json {
        let mut answer = answer;
        answer["name"] = target.name().into();
        output::json(&answer)?;
    } else {
        output::text(&format!("{}: {} unpinned\n", target.name(), size(number(&answer, "unpinned_bytes"))))?;
    }
    Ok(GOOD)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a part of the file, dirty is shown before pinned, and pinned before cached.
    #[test]
    fn picture_shows_strongest_state() {
        let range = |offset: u64, length: u64, is_dirty: bool, is_pinned: bool| {
            let mut range = json!({ "offset": offset, "length": length, "cached": true });
            (range["dirty"], range["pinned"]) = (is_dirty.into(), is_pinned.into());
            range
        };
        let ranges = [range(0, 10, false, false), range(100, 50, false, true), range(599, 1, true, false)];
        let line = picture(600, &ranges);
        assert_eq!(line.len(), 60);
        assert!(line.starts_with("o.........PPPPP.") && line.ends_with('D'), "{line}");
        assert_eq!(picture(0, &[]), ".");
        assert_eq!(picture(3, &[range(0, 3, false, false)]), "ooo");
    }
}
