//! `nectary cache advise`: the effect of other sizes and policies.
//!
//! Owns: the presentation. Leaves to others: the replays (`nectary-buffer`).

use std::fmt::Write as _;

use nectary_block::format_size;
use serde_json::{Value, json};

use super::{CacheTarget, CachingProcess, printable};
use crate::arguments::CacheAdviseArguments;
use crate::exit::{CommandFailure, GOOD, NOT_FOUND};
use crate::output;

/// Shows the advice.
pub fn run(arguments: &CacheAdviseArguments) -> Result<u8, CommandFailure> {
    let mut caches: Vec<Value> = Vec::new();
    let asked = match &arguments.name {
        Some(name) => vec![CacheTarget::named(name)?.running],
        None => CachingProcess::all()?,
    };
    for running in asked {
        let answer = running.ask("advise", Value::Null)?;
        caches.extend(answer["caches"].as_array().cloned().unwrap_or_default());
    }
    if caches.is_empty() {
        let remedy = "mount one with `nectary cache mount`, or attach `cache(SPEC,…)`; then let programs read";
        return Err(CommandFailure::new(NOT_FOUND, "no cache runs", remedy));
    }
    if arguments.json {
        output::json(&json!({ "caches": caches }))?;
    } else {
        output::text(&caches.iter().map(text).collect::<Vec<_>>().join("\n"))?;
    }
    Ok(GOOD)
}

/// Formats the advice for one cache.
fn text(cache: &Value) -> String {
    let word = |value: &Value| printable(value.as_str().unwrap_or_default());
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let references = number(&cache["live"]["references"]);
    let share = cache["share_of_blocks"].as_f64().unwrap_or(1.0);
    let sample = if share < 1.0 { format!(", 1 block in {:.0}", 1.0 / share) } else { String::new() };
    let mut text = format!("{}: the last {references} references{sample}\n", word(&cache["name"]));
    let _ = writeln!(text, "{:>10}  {:<10} {:>7} {:>12} {:>9}", "MEMORY", "POLICY", "HIT %", "MISSES", "CHANGE");
    let rows: &[Value] = cache["rows"].as_array().map_or(&[], Vec::as_slice);
    let now = rows.iter().find(|row| row["now"] == true).map_or(0, |row| number(&row["counted"]["misses"]));
    for row in rows {
        let (memory, policy) = (format_size(number(&row["memory_bytes"])), word(&row["policy"]));
        let counted = &row["counted"];
        let Some(rate) = counted["hit_rate"].as_f64() else {
            let _ = writeln!(text, "{memory:>10}  {policy:<10} too little memory for a cache");
            continue;
        };
        let misses = number(&counted["misses"]);
        let change = 100.0 * (misses as f64 / now.max(1) as f64 - 1.0);
        let change = match row["now"] == true {
            true => "now".to_owned(),
            // Without a miss there is nothing to compare with.
            false if now == 0 => "-".to_owned(),
            false => format!("{change:+.1} %"),
        };
        let _ = writeln!(text, "{memory:>10}  {policy:<10} {:>7.2} {misses:>12} {change:>9}", 100.0 * rate);
    }
    let (misses, rate) = (number(&cache["min"]["misses"]), cache["min"]["hit_rate"].as_f64().unwrap_or(0.0));
    let _ = writeln!(text, "{:>10}  {:<10} {:>7.2} {misses:>12}", "", "least", 100.0 * rate);
    for says in cache["says"].as_array().map_or(&[] as &[Value], Vec::as_slice) {
        let _ = writeln!(text, "  {}", word(says));
    }
    text
}
