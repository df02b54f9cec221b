//! The reports of a running cache for `top` and `advise`, as JSON.
//!
//! Owns: the reports, and the times at which their expensive part is recomputed. Leaves to others: the presentation of
//! the reports (`top`, `advise`).

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nectary_buffer::{BufferCache, CacheStats, MissCount, StreamStats};
use serde_json::{Map, Value, json};

use super::cached::ProcessCaches;

/// The time after which the smallest possible number of misses is recomputed.
const WINDOW_VALID: Duration = Duration::from_secs(10);
/// The result for a window with fewer references than this is not kept, but recomputed each time.
const REFERENCES_KEPT_MIN: u64 = 10_000;
/// The default number of reported streams.
const STREAMS_DEFAULT: usize = 256;

/// The cached results of windows, by cache.
#[derive(Default)]
pub struct ReportCache {
    windows: Mutex<HashMap<String, (Instant, Value)>>,
}

/// Returns the figures of a cache by name.
pub fn figures(stats: &CacheStats) -> Map<String, Value> {
    stats.values().into_iter().map(|(name, value)| (name.to_owned(), Value::from(value))).collect()
}

impl ReportCache {
    /// Returns the activity of each cache, by stream; streams with most references come first.
    pub fn top(&self, cached: &ProcessCaches, streams_max: Option<usize>) -> Value {
        let streams_max = streams_max.unwrap_or(STREAMS_DEFAULT);
        let caches = cached.all().into_iter().map(|(name, cache)| self.cache(cached, &name, &cache, streams_max));
        json!({ "caches": caches.collect::<Vec<Value>>() })
    }

    fn cache(&self, cached: &ProcessCaches, name: &str, cache: &BufferCache, streams_max: usize) -> Value {
        let options = cache.options();
        let (kind, source) = match cached {
            ProcessCaches::Tree(tree) => ("mount", tree.options().source.display().to_string()),
            ProcessCaches::Devices(caches, _) => {
                let opened = caches.opened();
                let same = opened.iter().find(|opened| opened.cache().is_same(cache));
                ("device", same.map(|opened| opened.spec()).unwrap_or_default())
            }
        };
        let mut streams = cache.streams();
        streams.retain(|stream| stream.hits + stream.misses > 0);
        streams.sort_by_key(|stream| std::cmp::Reverse(stream.hits + stream.misses));
        let left_out = streams.len().saturating_sub(streams_max);
        let resident = cache.resident_bytes();
        let rows = streams.iter().take(streams_max).map(|stream| {
            let bytes = match (&resident, stream.stream) {
                (Some(resident), Some(stream)) => Some(resident.get(&stream).copied().unwrap_or(0)),
                _ => None,
            };
            row(cached, stream, bytes, &options.policy)
        });
        let rows: Vec<Value> = rows.collect();
        json!({
            "name": name,
            "kind": kind,
            "source": source,
            "policy": options.policy,
            "mode": options.mode.name(),
            "block_bytes": options.block_bytes,
            "memory_limit_bytes": options.memory_bytes,
            "figures": figures(&cache.stats()),
            "window": self.window(name, cache),
            "streams": rows,
            "streams_left_out": left_out,
        })
    }

    /// Returns the misses in the last references, and the smallest possible number.
    fn window(&self, name: &str, cache: &BufferCache) -> Value {
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((since, value)) = windows.get(name)
            && since.elapsed() < WINDOW_VALID
        {
            return value.clone();
        }
        let window = cache.window();
        let (live, min) = (window.live(), window.min());
        let value = json!({
            "references": live.references,
            "misses": live.misses,
            "min_misses": min.misses,
            "share_of_blocks": window.share(),
            "whole": window.is_whole(),
        });
        // A short window is cheap to recompute and soon out of date.
        if live.references >= REFERENCES_KEPT_MIN {
            windows.insert(name.to_owned(), (Instant::now(), value.clone()));
        }
        value
    }
}

fn row(cached: &ProcessCaches, stream: &StreamStats, resident: Option<u64>, policy: &str) -> Value {
    let name = match (cached, stream.stream) {
        (ProcessCaches::Tree(tree), Some(stream)) => tree.stream_name(stream),
        _ => None,
    };
    let verdict = stream.verdict.map(|verdict| verdict.name());
    json!({
        "stream": stream.stream.map(|stream| stream.0),
        "process": name.as_ref().map(|name| name.process),
        "command": name.as_ref().map(|name| name.command.as_str()),
        "path": name.as_ref().map(|name| name.path.as_str()),
        "region_offset": region(cached, stream),
        "hits": stream.hits,
        "misses": stream.misses,
        "reads_saved": stream.saved,
        "reads_lost": stream.lost,
        "dirty_bytes": stream.dirty_bytes,
        "resident_bytes": resident,
        "verdict": verdict,
        "period": stream.period,
        "replacement": stream.replacement,
        "why": why(verdict, stream.replacement, policy),
    })
}

/// Returns the start of the region of a device's stream; `None`: the stream has no region.
fn region(cached: &ProcessCaches, stream: &StreamStats) -> Option<u64> {
    match cached {
        ProcessCaches::Devices(..) => stream.stream.and_then(nectary_buffer::region_of),
        ProcessCaches::Tree(_) => None,
    }
}

/// Explains why a stream has this much memory: the pattern found in its references, and the policy that replaces its
/// blocks.
fn why(verdict: Option<&str>, replacement: &str, policy: &str) -> String {
    let found = match verdict {
        Some("sequential") => "reads each block once",
        Some("looping") => "reads the same blocks again, in order",
        Some("clustered") => "reads again what it read lately",
        Some("probabilistic") => "reads some blocks often",
        Some(_) => "no pattern was found",
        None if matches!(policy, "dear" | "adaptive") => "no period has ended yet",
        None => return format!("{policy} decides for all streams alike"),
    };
    if replacement.is_empty() { found.to_owned() } else { format!("{found}; replaced by {replacement}") }
}

fn counted(counted: MissCount) -> Value {
    json!({ "references": counted.references, "misses": counted.misses, "hit_rate": counted.hit_rate() })
}

/// Returns the effect of other sizes and policies on each cache.
pub fn advise(cached: &ProcessCaches) -> Value {
    let caches = cached.all().into_iter().map(|(name, cache)| {
        let advice = cache.window().advise();
        let rows = advice.rows.iter().map(|row| {
            json!({
                "memory_bytes": row.memory_bytes,
                "policy": row.policy,
                "capacity_blocks": row.capacity_blocks,
                "now": row.is_now,
                "counted": row.counted.map(counted),
            })
        });
        json!({
            "name": name,
            "policy": cache.options().policy,
            "memory_bytes": cache.options().memory_bytes,
            "share_of_blocks": advice.share,
            "live": counted(advice.live),
            "min": counted(advice.min),
            "rows": rows.collect::<Vec<Value>>(),
            "says": advice.says,
        })
    });
    json!({ "caches": caches.collect::<Vec<Value>>() })
}
