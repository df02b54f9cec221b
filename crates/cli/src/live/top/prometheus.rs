//! `nectary top --prometheus`: the same numbers as text for Prometheus.
//!
//! Owns: the names of the metrics, which never change. Promises: the text is valid whatever bytes a name has. Leaves to
//! others: the metrics of proxies and of the state of parts (`proxies`).

mod fleets;
mod proxies;

use std::fmt::Write as _;

use serde_json::Value;

use super::TopSample;

/// The metrics: name, kind, help, and the figure that has the value.
const CACHE: &[(&str, &str, &str, &str)] = &[
    ("hits_total", "counter", "References that were in memory.", "hits"),
    ("misses_total", "counter", "References that were not in memory.", "misses"),
    ("pinned_hits_total", "counter", "Hits of pinned blocks.", "pinned_hits"),
    ("reads_saved_total", "counter", "Hits that an LRU of the same memory would have missed.", "reads_saved"),
    ("reads_lost_total", "counter", "Misses that an LRU of the same memory would have hit.", "reads_lost"),
    ("source_reads_total", "counter", "Reads of what is below.", "source_reads"),
    ("source_read_blocks_total", "counter", "Blocks of these reads.", "source_read_blocks"),
    ("read_errors_total", "counter", "Blocks whose read failed.", "read_errors"),
    ("written_through_blocks_total", "counter", "Blocks written to what is below at once.", "written_through_blocks"),
    ("written_back_blocks_total", "counter", "Blocks written back.", "written_back_blocks"),
    ("write_back_errors_total", "counter", "Write-backs that failed.", "write_back_errors"),
    ("capacity_blocks", "gauge", "Blocks that the policy can hold.", "capacity_blocks"),
    ("resident_blocks", "gauge", "Blocks that the policy holds.", "resident_blocks"),
    ("memory_bytes", "gauge", "Memory for blocks.", "memory_bytes"),
    ("used_bytes", "gauge", "Memory for blocks that is taken.", "used_bytes"),
    ("pinned_bytes", "gauge", "What is pinned.", "pinned_bytes"),
    ("dirty_bytes", "gauge", "What is not written back yet.", "dirty_bytes"),
    ("unwritten_bytes", "gauge", "What a failed write-back did not write.", "unwritten_bytes"),
    ("dirty_age_seconds", "gauge", "How old the oldest of it is.", "dirty_age_ms"),
];

const WINDOW: &[(&str, &str, &str, &str)] = &[
    ("window_references", "gauge", "References of the last window.", "references"),
    ("window_misses", "gauge", "Misses among them.", "misses"),
    ("window_min_misses", "gauge", "The least that any policy could have missed of them.", "min_misses"),
];

const STREAM: &[(&str, &str, &str, &str)] = &[
    ("stream_hits_total", "counter", "References of a stream that were in memory.", "hits"),
    ("stream_misses_total", "counter", "References of a stream that were not.", "misses"),
    ("stream_reads_saved_total", "counter", "Reads saved for a stream against LRU.", "reads_saved"),
    ("stream_reads_lost_total", "counter", "Reads lost for a stream against LRU.", "reads_lost"),
    ("stream_resident_bytes", "gauge", "Memory whose blocks a stream referred to last.", "resident_bytes"),
];

const SERVER: &[(&str, &str, &str, &str)] = &[
    ("operations_total", "counter", "Operations of clients.", "operations"),
    ("questions_total", "counter", "Questions of clients.", "questions"),
    ("commits_total", "counter", "Appends of the journal, each of one or many operations.", "appends"),
    ("checkpoints_total", "counter", "Checkpoints.", "checkpoints"),
    ("inodes", "gauge", "Inodes in use.", "inodes"),
    ("free_bytes", "gauge", "Free space.", "free_bytes"),
    ("size_bytes", "gauge", "The size of the volume.", "size_bytes"),
];

const SESSIONS: &[(&str, &str, &str, &str)] = &[
    ("sessions_active", "gauge", "Sessions of hosts that are there.", "active"),
    ("sessions_suspended", "gauge", "Sessions without a lease.", "suspended"),
    ("sessions_ended", "gauge", "Sessions that ended with space in quarantine.", "ended"),
    ("sessions_expected", "gauge", "Sessions that are not heard of since the start.", "expected"),
];

const TOKENS: &[(&str, &str, &str, &str)] = &[
    ("tokens_held", "gauge", "Tokens that hosts hold.", "held"),
    ("tokens_waiting", "gauge", "Calls that wait for a token.", "waiting"),
];

const LOCKS: &[(&str, &str, &str, &str)] = &[
    ("locks_held", "gauge", "File locks that programs hold.", "held"),
    ("locks_waiting", "gauge", "Requests that wait for a file lock.", "waiting"),
];

const MOUNT: &[(&str, &str, &str, &str)] = &[
    ("operations_total", "counter", "Operations sent to the server.", "operations"),
    ("questions_total", "counter", "Questions sent to the server.", "questions"),
    ("waiting", "gauge", "Calls that wait for the server.", "waiting"),
    ("reconnections_total", "counter", "Connections after the first.", "reconnections"),
    ("open_files", "gauge", "Files that programs have open.", "open_files"),
];

/// Formats all metrics.
pub fn text(sample: &TopSample) -> String {
    let caches = &sample.caches;
    let mut text = String::new();
    proxies::parts(&mut text, &sample.parts);
    let labels = |cache: &Value| {
        let names = [("cache", "name"), ("kind", "kind"), ("policy", "policy"), ("mode", "mode")];
        names.map(|(label, name)| (label, plain(&cache[name])))
    };
    family(&mut text, "nectary_cache", CACHE, || {
        caches.iter().map(|cache| (&cache["figures"], labels(cache).to_vec()))
    });
    family(&mut text, "nectary_cache", WINDOW, || {
        caches.iter().map(|cache| (&cache["window"], labels(cache).to_vec()))
    });
    family(&mut text, "nectary_cache", STREAM, || {
        caches.iter().flat_map(|cache| {
            let streams: &[Value] = cache["streams"].as_array().map_or(&[], Vec::as_slice);
            streams.iter().map(move |stream| {
                let names = ["stream", "process", "command", "path", "verdict"];
                let mut labels = vec![("cache", plain(&cache["name"]))];
                labels.extend(names.map(|name| (name, plain(&stream[name]))));
                (stream, labels)
            })
        })
    });
    proxies::proxies(&mut text, &sample.proxies);
    for (metrics, part) in
        [(SERVER, None), (SESSIONS, Some("sessions")), (TOKENS, Some("tokens")), (LOCKS, Some("locks"))]
    {
        family(&mut text, "nectary_volume", metrics, || {
            sample.volumes.iter().map(move |server| {
                let values: &Value = part.map_or(server, |part| &server[part]);
                (values, vec![("volume", plain(&server["name"]))])
            })
        });
    }
    family(&mut text, "nectary_volume_mount", MOUNT, || {
        sample.volume_mounts.iter().map(|mount| (mount, vec![("directory", plain(&mount["name"]))]))
    });
    text
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

fn family<'a, I: Iterator<Item = (&'a Value, Vec<(&'static str, String)>)>>(
    text: &mut String,
    prefix: &str,
    metrics: &[(&str, &str, &str, &str)],
    parts: impl Fn() -> I,
) {
    for (metric, kind, help, figure) in metrics {
        let mut lines = String::new();
        for (values, labels) in parts() {
            let Some(number) = values[*figure].as_u64() else { continue };
            let labels: Vec<String> =
                labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
            // The unit of Prometheus is the second.
            let number = match figure.strip_suffix("_ms") {
                Some(_) => (number as f64 / 1000.0).to_string(),
                None => number.to_string(),
            };
            let _ = writeln!(lines, "{prefix}_{metric}{{{}}} {number}", labels.join(","));
        }
        if !lines.is_empty() {
            let _ = write!(text, "# HELP {prefix}_{metric} {help}\n# TYPE {prefix}_{metric} {kind}\n{lines}");
        }
    }
}

/// Returns the value of a label, with special characters escaped and invalid ones omitted.
fn escaped(value: &str) -> String {
    let mut text = String::new();
    for c in value.chars() {
        match c {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            c if c.is_control() => text.push('?'),
            c => text.push(c),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sample() -> (TopSample, String) {
        let every: String = (1..=0x2ff).filter_map(char::from_u32).collect();
        let stream = json!({ "stream": 7, "process": 1, "command": every, "path": every, "hits": 3, "misses": 4 });
        let cache = json!({ "name": every, "policy": "lru", "figures": { "hits": 12, "dirty_age_ms": 1250 },
            "window": { "misses": 5 }, "streams": [stream] });
        let server = json!({ "name": every, "operations": 8, "tokens": { "held": 6 }, "sessions": { "active": 2 } });
        let proxy = json!({
            "name": ":80", "requests": 9, "hits": 5, "misses": 4, "responses_5xx": 2, "access_log_failure": "full",
            "origin_failure": null, "process": { "resident_bytes": 77 },
            "store": { "span_bytes": 64, "entries": 6, "stopped": null, "index_loading": true, "counts": { "misses": 4 } },
        });
        let sample = TopSample {
            at: std::time::Instant::now(),
            caches: vec![cache],
            proxies: vec![proxy],
            volumes: vec![server],
            volume_mounts: vec![json!({ "name": every, "open_files": 5 })],
            parts: vec![json!({ "component": "proxy", "name": every, "state": 1, "problems": 3 })],
        };
        (sample, every)
    }

    /// Every line is a metric or a comment, whatever the names contain.
    #[test]
    fn prometheus_lines_survive_any_name() {
        let text = text(&sample().0);
        for line in text.lines().filter(|line| !line.starts_with("# ")) {
            let (labels, value) = line.rsplit_once("} ").expect("labels and a value");
            assert!(labels.starts_with("nectary_") && value.parse::<f64>().is_ok(), "{line}");
            assert!(!line.chars().any(char::is_control), "{line}");
        }
        for line in [
            "nectary_proxy_requests_total{proxy=\":80\"} 9\n",
            "nectary_proxy_results_total{proxy=\":80\",result=\"hit\"} 5\n",
            "nectary_proxy_responses_total{proxy=\":80\",class=\"5xx\"} 2\n",
            "nectary_proxy_access_log_failing{proxy=\":80\"} 1\n",
            "nectary_proxy_origin_down{proxy=\":80\"} 0\n",
            "nectary_proxy_resident_memory_bytes{proxy=\":80\"} 77\n",
            "nectary_store_stopped{proxy=\":80\"} 0\n",
            "nectary_store_index_loading{proxy=\":80\"} 1\n",
            "nectary_store_lookups_total{proxy=\":80\",result=\"miss\"} 4\n",
        ] {
            assert!(text.contains(line), "no {line} in\n{text}");
        }
        assert!(text.contains("# TYPE nectary_cache_hits_total counter\n"), "{text}");
        for metric in
            ["volume_operations_total", "volume_tokens_held", "volume_sessions_active", "volume_mount_open_files"]
        {
            assert!(text.contains(&format!("# TYPE nectary_{metric} ")), "{metric}\n{text}");
        }
        assert!(text.contains("mode=\"\"} 1.25\n"), "{text}");
        assert_eq!(escaped("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
    }

    /// The rules of `promtool check metrics`.
    #[test]
    fn metrics_follow_the_conventions_of_prometheus() {
        let text = text(&sample().0);
        let mut seen = std::collections::HashSet::new();
        let mut current = String::new();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').expect("a text");
                assert!(seen.insert(name.to_owned()), "{name} has its lines in two places");
                assert!(help.len() > 1 && !name.contains("milliseconds"), "{line}");
                assert!(!["_count", "_sum", "_bucket", "_info"].iter().any(|end| name.ends_with(end)), "{name}");
                current = name.to_owned();
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').expect("a kind");
                assert_eq!(name, current);
                assert_eq!(name.ends_with("_total"), kind == "counter", "{line}");
            } else {
                let (name, _) = line.split_once('{').expect("labels");
                assert_eq!(name, current, "{line}");
            }
        }
        assert!(seen.len() > 20);
    }

    #[test]
    fn latency_is_a_histogram_in_seconds() {
        let mut buckets = [0; 16];
        (buckets[0], buckets[1], buckets[13], buckets[15]) = (2, 1, 3, 1);
        let latency = json!({ "result": "hit", "buckets": buckets, "sum_us": 3_000_150 });
        let certificate = json!({ "path": "/a\"b.pem", "not_after_s": 1_800_000_000 });
        let ordered = json!([{ "name": "a.test", "failure": { "count": 3 } }, { "name": "b.test", "failure": null }]);
        let server =
            json!({ "origin": "o", "url": "http://a:1", "requests": 7, "requests_under_way": 2, "failure": "x" });
        let mut proxy =
            json!({ "name": ":80", "latencies": [latency], "certificates": [certificate], "servers": [server] });
        proxy["acme"] = ordered;
        proxy["services"] = json!([{ "origin": "o", "srv": "_http._tcp.a", "servers": 2, "failures": 4 }]);
        let mut text = String::new();
        proxies::proxies(&mut text, &[proxy]);
        let latency = "nectary_proxy_request_duration_seconds";
        let bucket = |bound: &str, count: u64| {
            format!("{latency}_bucket{{proxy=\":80\",result=\"hit\",le=\"{bound}\"}} {count}\n")
        };
        for line in [
            &bucket("0.00005", 2)[..],
            &bucket("0.0001", 3),
            &bucket("0.5", 3),
            &bucket("1", 6),
            &bucket("5", 6),
            &bucket("+Inf", 7),
            &format!("{latency}_sum{{proxy=\":80\",result=\"hit\"}} 3.00015\n"),
            &format!("{latency}_count{{proxy=\":80\",result=\"hit\"}} 7\n"),
            &format!("# TYPE {latency} histogram\n"),
            "nectary_proxy_certificate_failures{proxy=\":80\",name=\"a.test\"} 3\n",
            "nectary_proxy_certificate_failures{proxy=\":80\",name=\"b.test\"} 0\n",
            "nectary_proxy_server_up{proxy=\":80\",origin=\"o\",server=\"http://a:1\"} 0\n",
            "nectary_proxy_server_requests_total{proxy=\":80\",origin=\"o\",server=\"http://a:1\"} 7\n",
            "nectary_proxy_server_requests_under_way{proxy=\":80\",origin=\"o\",server=\"http://a:1\"} 2\n",
            "nectary_proxy_srv_servers{proxy=\":80\",origin=\"o\"} 2\n",
            "nectary_proxy_srv_failures{proxy=\":80\",origin=\"o\"} 4\n",
            "nectary_proxy_certificate_end_timestamp_seconds{proxy=\":80\",certificate=\"/a\\\"b.pem\"} 1800000000\n",
        ] {
            assert!(text.contains(line), "no {line} in\n{text}");
        }
    }
}
