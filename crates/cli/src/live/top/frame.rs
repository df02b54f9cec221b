//! The frames of `nectary top`: lines of limited width.
//!
//! Owns: the lines. Each cache has four lines and a table of its streams; a proxy has one line. Leaves to others: the
//! lines of volumes (`volumes`). Without an earlier sample, numbers are totals since the start.

use serde_json::Value;

use super::volumes;
use super::words::{number, percent, rate, short, size, word};
use super::{SampleChange, TopSample};

/// The number of columns from which reasons are shown.
const COLUMNS_WIDE: usize = 110;
/// The narrowest frame.
const COLUMNS_MIN: usize = 60;
/// The columns of numbers of a stream, with the blanks between them.
const NUMBERS_COLUMNS: usize = 52;
/// The columns of a stream's name if reasons are shown.
const NAME_COLUMNS_WIDE: usize = 34;

/// Draws a frame.
pub fn lines(now: &TopSample, before: Option<&TopSample>, columns: usize, streams_max: usize) -> Vec<String> {
    let columns = columns.max(COLUMNS_MIN);
    let change = SampleChange::new(before, now);
    let mut lines = Vec::new();
    let parts = |count: usize, word: &str| if count == 1 { format!("1 {word}") } else { format!("{count} {word}s") };
    let (caches, proxies) = (parts(now.caches.len(), "cache"), now.proxies.len());
    let proxies = if proxies == 1 { "1 proxy".to_owned() } else { format!("{proxies} proxies") };
    let counts = [(now.volumes.len(), "volume server"), (now.volume_mounts.len(), "volume mount")];
    let volumes: String = counts
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, word)| format!(", {}", parts(count, word)))
        .collect();
    lines.push(format!("nectary top: {caches}, {proxies}{volumes}"));
    let donors = now.parts.iter().filter(|part| part["component"] == "donor").count();
    if donors > 0 {
        lines.push(format!("not shown: {}; `nectary status --verbose`", parts(donors, "donor")));
    }
    for cache in &now.caches {
        lines.push(String::new());
        lines.extend(head(cache, change.as_ref()));
        lines.extend(streams(cache, change.as_ref(), columns, streams_max));
    }
    if !now.proxies.is_empty() {
        lines.push(String::new());
        lines.extend(now.proxies.iter().map(|proxy| of_proxy(proxy, change.as_ref())));
    }
    if !volumes.is_empty() {
        lines.push(String::new());
        lines.extend(now.volumes.iter().flat_map(|server| volumes::of_server(server, change.as_ref())));
        lines.extend(now.volume_mounts.iter().map(|mount| volumes::of_mount(mount, change.as_ref())));
    }
    lines.into_iter().map(|line| cut(&line, columns)).collect()
}

/// Cuts a line to `columns`.
fn cut(line: &str, columns: usize) -> String {
    if line.chars().count() <= columns {
        return line.trim_end().to_owned();
    }
    let cut: String = line.chars().take(columns - 1).collect();
    format!("{cut}…")
}

/// Returns the end of a name, because the end distinguishes files.
fn end(name: &str, columns: usize) -> String {
    let count = name.chars().count();
    if count <= columns {
        return format!("{name:<columns$}");
    }
    format!("…{}", name.chars().skip(count - columns + 1).collect::<String>())
}

/// Returns the lines with the properties and totals of a cache.
fn head(cache: &Value, change: Option<&SampleChange<'_>>) -> Vec<String> {
    let figures = &cache["figures"];
    let figure = |name: &str| number(&figures[name]);
    let grown = |name: &str| change.and_then(|change| change.grown(cache, |cache| cache["figures"][name].as_u64()));
    let mut lines = vec![format!(
        "{}  {}, {}, {} of {}",
        word(&cache["name"]),
        word(&cache["policy"]),
        word(&cache["mode"]),
        word(&cache["kind"]),
        word(&cache["source"])
    )];
    let (hits, misses) = (figure("hits"), figure("misses"));
    let mut line = format!("  hits    {} % of {} references", percent(hits, hits + misses), short(hits + misses));
    if let (Some(hits), Some(misses)) = (grown("hits"), grown("misses")) {
        let a_second = rate(Some(hits + misses), change).unwrap_or(0);
        line += &format!("; now {} % of {}/s", percent(hits, hits + misses), short(a_second));
    }
    lines.push(line);
    let (saved, lost) = (figure("reads_saved"), figure("reads_lost"));
    let sign = if saved >= lost { "saved" } else { "lost" };
    let mut line = format!(
        "  reads   {} {sign} against LRU ({} - {}); {} below",
        short(saved.abs_diff(lost)),
        short(saved),
        short(lost),
        short(figure("source_reads"))
    );
    if let Some(a_second) = rate(grown("source_reads"), change) {
        line += &format!(", now {}/s", short(a_second));
    }
    if figure("read_errors") + figure("write_back_errors") > 0 {
        line += &format!("; FAILED {}", short(figure("read_errors") + figure("write_back_errors")));
    }
    lines.push(line);
    lines.push(format!(
        "  memory  {} of {} taken, limit {}; pinned {}; dirty {}, {} ms old",
        size(figure("used_bytes")),
        size(figure("memory_bytes")),
        size(number(&cache["memory_limit_bytes"])),
        size(figure("pinned_bytes")),
        size(figure("dirty_bytes")),
        short(figure("dirty_age_ms"))
    ));
    lines.push(to_min(&cache["window"]));
    lines
}

/// Formats the distance of the misses from the smallest possible number.
fn to_min(window: &Value) -> String {
    let (misses, least) = (number(&window["misses"]), number(&window["min_misses"]));
    if least == 0 {
        return "  to MIN  not known yet".to_owned();
    }
    let over = 100.0 * (misses as f64 / least as f64 - 1.0);
    let share = window["share_of_blocks"].as_f64().unwrap_or(1.0);
    let sample = if share < 1.0 { format!(", of 1 block in {:.0}", 1.0 / share) } else { String::new() };
    format!(
        "  to MIN  {over:+.1} % misses ({}, least {}) in the last {}{sample}",
        short(misses),
        short(least),
        short(number(&window["references"]))
    )
}

/// Returns the table of a cache's streams; currently active ones come first.
fn streams(cache: &Value, change: Option<&SampleChange<'_>>, columns: usize, streams_max: usize) -> Vec<String> {
    let Some(streams) = cache["streams"].as_array().filter(|streams| !streams.is_empty()) else {
        return vec!["  no stream has referred to it yet".to_owned()];
    };
    let references = |stream: &Value| number(&stream["hits"]) + number(&stream["misses"]);
    let before = |stream: &Value| -> u64 {
        let cache = change.and_then(|change| change.before.get(cache["name"].as_str()?));
        let same = |other: &&Value| other["stream"] == stream["stream"];
        let found = cache.and_then(|cache| cache["streams"].as_array()?.iter().find(same));
        found.map_or(0, references)
    };
    let mut rows: Vec<(u64, &Value)> =
        streams.iter().map(|stream| (references(stream).saturating_sub(before(stream)), stream)).collect();
    rows.sort_by_key(|(grown, stream)| std::cmp::Reverse((*grown, references(stream))));
    let is_wide = columns >= COLUMNS_WIDE;
    let name_columns = if is_wide { NAME_COLUMNS_WIDE } else { columns - 2 - NUMBERS_COLUMNS };
    let why = if is_wide { "  WHY" } else { "" };
    let mut lines = vec![format!(
        "  {:<name_columns$} {:<13} {:>5} {:>5} {:>6} {:>5} {:>6} {:>5}{why}",
        "STREAM", "VERDICT", "REFS", "HIT%", "SAVED", "LOST", "MEMORY", "DIRTY"
    )];
    for (_, stream) in rows.iter().take(streams_max) {
        let memory = stream["resident_bytes"].as_u64().map_or_else(|| "-".to_owned(), size);
        let verdict = stream["verdict"].as_str().unwrap_or("-");
        let why = if is_wide { format!("  {}", word(&stream["why"])) } else { String::new() };
        lines.push(format!(
            "  {} {verdict:<13} {:>5} {:>5} {:>6} {:>5} {memory:>6} {:>5}{why}",
            end(&name(stream), name_columns),
            short(references(stream)),
            percent(number(&stream["hits"]), references(stream)),
            short(number(&stream["reads_saved"])),
            short(number(&stream["reads_lost"])),
            size(number(&stream["dirty_bytes"])),
        ));
    }
    let left_out = rows.len().saturating_sub(streams_max) as u64 + number(&cache["streams_left_out"]);
    if left_out > 0 {
        lines.push(format!("  and {} more streams", short(left_out)));
    }
    lines
}

/// Returns the name of a stream.
fn name(stream: &Value) -> String {
    if let Some(process) = stream["process"].as_u64() {
        return format!("{process} {} {}", word(&stream["command"]), word(&stream["path"]));
    }
    match (stream["region_offset"].as_u64(), stream["stream"].as_u64()) {
        (Some(offset), _) => format!("64M at {}", size(offset)),
        (None, Some(0)) => "no stream".to_owned(),
        (None, Some(number)) => format!("stream {number}"),
        (None, None) => "all others".to_owned(),
    }
}

fn of_proxy(proxy: &Value, change: Option<&SampleChange<'_>>) -> String {
    let (hits, misses) = (number(&proxy["hits"]), number(&proxy["misses"]));
    let grown = change.and_then(|change| change.grown(proxy, |proxy| proxy["requests"].as_u64()));
    let now = rate(grown, change).map(|a_second| format!(", now {}/s", short(a_second))).unwrap_or_default();
    format!(
        "proxy {}  {}, {} requests{now}, hits {} %, {} sent",
        word(&proxy["name"]),
        word(&proxy["state"]),
        short(number(&proxy["requests"])),
        percent(hits, hits + misses),
        size(number(&proxy["body_bytes_sent"]))
    )
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use serde_json::json;

    use super::*;

    fn cache(hits: u64) -> Value {
        let stream = |number: u64, hits: u64| {
            json!({
                "stream": number, "process": 100 + number, "command": "grep\u{1b}[2J", "hits": hits, "misses": 10,
                "path": "a/very/long/path/that/no/terminal/of/eighty/columns/has/room/for/file.c",
                "verdict": "looping", "reads_saved": 1_234_567, "reads_lost": 12, "dirty_bytes": 8192,
                "resident_bytes": 123_456_789, "why": "loops: a part of the loop stays, the newest leave (mru)",
            })
        };
        json!({
            "name": "/mnt/a", "kind": "mount", "source": "/srv/a", "policy": "adaptive", "mode": "writethrough",
            "memory_limit_bytes": 1 << 28,
            "figures": { "hits": hits, "misses": 20, "reads_saved": 5, "reads_lost": 7, "source_reads": 20,
                "used_bytes": 1 << 20, "memory_bytes": 1 << 27, "dirty_age_ms": 1500 },
            "window": { "references": 1000, "misses": 120, "min_misses": 100, "share_of_blocks": 0.125 },
            "streams": [stream(1, hits - 5), stream(2, 5)], "streams_left_out": 3,
        })
    }

    fn sample(at: Instant, hits: u64) -> TopSample {
        let proxy = json!({ "name": ":80", "state": "healthy", "requests": hits, "hits": 3, "misses": 1 });
        let server = json!({
            "name": "builds", "state": "healthy", "operations": hits, "questions": 2, "appends": 1, "free_bytes": 1 << 20,
            "size_bytes": 1 << 30, "sessions": { "active": 2, "ended": 1 }, "tokens": { "held": 12, "waiting": 1 },
        });
        let mount = json!({ "name": "/mnt/b", "state": "healthy", "session": 7, "operations": hits, "open_files": 3 });
        let (volumes, volume_mounts) = (vec![server], vec![mount]);
        TopSample { at, caches: vec![cache(hits)], proxies: vec![proxy], volumes, volume_mounts, parts: Vec::new() }
    }

    /// A frame leaves nothing out in order to fit.
    #[test]
    fn frame_fits_any_terminal_size() {
        let start = Instant::now();
        let (before, now) = (sample(start, 100), sample(start + Duration::from_secs(2), 300));
        for columns in [0, 60, 80, 109, 110, 140, 1000] {
            for before in [None, Some(&before)] {
                let lines = lines(&now, before, columns, 5);
                let text = lines.join("\n");
                assert!(lines.iter().all(|line| line.chars().count() <= columns.max(COLUMNS_MIN)), "{columns}\n{text}");
                assert!(!text.contains('\u{1b}'), "a name moves the cursor");
                let parts = ["looping", "2 lost against LRU (5 - 7)", "+20.0 % misses", "file.c", "of 1 block in 8"];
                // The narrowest frame omits the last two parts.
                for part in &parts[..if columns <= COLUMNS_MIN { 3 } else { 5 }] {
                    assert!(text.contains(part), "{columns}: no {part} in\n{text}");
                }
                assert_eq!(text.contains("100.0 % of 100/s"), before.is_some(), "{columns}\n{text}");
                assert_eq!(text.contains("now 100/s, hits 75.0 %"), before.is_some(), "{columns}\n{text}");
                assert_eq!(text.contains("operations, now 100/s; "), before.is_some(), "{columns}\n{text}");
                assert!(text.contains("tokens  12 held, 1 wait") && text.contains("1 ended with"), "{columns}\n{text}");
                assert!(text.contains("session 7, 3 open; "), "{columns}\n{text}");
                assert_eq!(text.contains("the newest leave (mru)"), columns > 140, "{columns}\n{text}");
            }
        }
    }
}
