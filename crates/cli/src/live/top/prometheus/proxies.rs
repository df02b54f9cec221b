//! The metrics of proxies, and of the state of every part.
//!
//! Owns: their names, which follow the conventions of Prometheus: counters end with `_total`, units are bytes and
//! seconds. A figure that is a text, such as the reason of a failure, is 1 if it is there and 0 if not.

use std::fmt::Write as _;

use nectary_proxy::LATENCY_BOUNDS_US;
use serde_json::Value;

use super::{escaped, fleets, plain};

/// A metric: name, kind, help, and its figures: each the value of a label (or nothing), and a path in the JSON.
type Metric = (&'static str, &'static str, &'static str, &'static [(&'static str, &'static str)]);

/// The name of the histograms of how long requests took, of the ends of certificates, and of orders that failed.
const LATENCY: &str = "nectary_proxy_request_duration_seconds";
const CERTIFICATE: &str = "nectary_proxy_certificate_end_timestamp_seconds";
const ORDERED: &str = "nectary_proxy_certificate_failures";

const COUNTER: &str = "counter";
const GAUGE: &str = "gauge";

/// The metrics of a proxy. Each has one figure, or several with the value of a label each.
const PROXY: &[Metric] = &[
    ("requests_total", COUNTER, "Requests whose head was accepted.", &[("", "/requests")]),
    ("hits_total", COUNTER, "Requests answered from the store without the origin.", &[("", "/hits")]),
    ("misses_total", COUNTER, "Requests whose response was fetched to be stored.", &[("", "/misses")]),
    (
        "results_total",
        COUNTER,
        "Answered requests by what the cache did, as in the access log.",
        &[
            ("hit", "/hits"),
            ("revalidated", "/revalidated"),
            ("stale", "/stale"),
            ("miss", "/misses"),
            ("collapsed", "/collapsed"),
            ("pass", "/passed"),
            ("purged", "/purges"),
            ("tunnel", "/tunnels"),
            ("failed", "/origin_failures"),
            ("own", "/own_responses"),
        ],
    ),
    (
        "responses_total",
        COUNTER,
        "Responses by class of status.",
        &[("2xx", "/responses_2xx"), ("3xx", "/responses_3xx"), ("4xx", "/responses_4xx"), ("5xx", "/responses_5xx")],
    ),
    ("body_bytes_sent_total", COUNTER, "Bytes of bodies sent to clients.", &[("", "/body_bytes_sent")]),
    ("too_large_total", COUNTER, "Responses too long to be stored.", &[("", "/too_large")]),
    (
        "failed_fills_total",
        COUNTER,
        "Responses that were not fetched or stored to their end.",
        &[("", "/failed_fills")],
    ),
    (
        "interrupted_bodies_total",
        COUNTER,
        "Stored bodies that the store lost while they were sent, by what followed.",
        &[("resumed", "/resumed"), ("cut_off", "/cut_off")],
    ),
    ("invalidations_total", COUNTER, "Keys purged because of an unsafe request.", &[("", "/invalidations")]),
    ("requests_limited_total", COUNTER, "Requests of networks that sent too many.", &[("", "/limited_requests")]),
    ("purges_refused_total", COUNTER, "PURGE requests refused.", &[("", "/purges_refused")]),
    ("connections_total", COUNTER, "Connections of clients accepted.", &[("", "/connections")]),
    (
        "handshakes_total",
        COUNTER,
        "Connections of clients with TLS, by whether it was agreed.",
        &[("good", "/handshakes"), ("failed", "/failed_handshakes")],
    ),
    ("http2_connections_total", COUNTER, "Connections of clients that spoke HTTP/2.", &[("", "/http2_connections")]),
    ("http2_streams_cut_total", COUNTER, "Streams of HTTP/2 ended as their clients stalled.", &[("", "/cut_streams")]),
    ("connections_open", GAUGE, "Connections of clients open now.", &[("", "/connections_open")]),
    ("connections_max", GAUGE, "Connections of clients that may be open.", &[("", "/connections/clients_max")]),
    ("open_descriptors", GAUGE, "File descriptors open now.", &[("", "/process/open_descriptors")]),
    ("descriptors_max", GAUGE, "File descriptors that may be open.", &[("", "/connections/descriptors")]),
    (
        "connections_refused_total",
        COUNTER,
        "Connections refused or ended early, by reason: no valid request, too many connections, too many of one \
         network, idle when others came, too slow, no valid header of the PROXY protocol.",
        &[
            ("invalid", "/refused_connections"),
            ("excess", "/excess_connections"),
            ("limited", "/limited_connections"),
            ("displaced", "/displaced_connections"),
            ("overdue", "/overdue_connections"),
            ("proxy_header", "/failed_proxy_headers"),
        ],
    ),
    ("origin_connections_total", COUNTER, "Connections opened to origins.", &[("", "/origin_connections")]),
    ("origin_requests_total", COUNTER, "Requests sent to origins.", &[("", "/origin_requests")]),
    (
        "queued_requests_total",
        COUNTER,
        "Requests that waited for a connection to a server, and those that got none.",
        &[("waited", "/queued"), ("refused", "/queue_refusals")],
    ),
    ("origin_failures_total", COUNTER, "Requests that failed at the origin (502, 504).", &[("", "/origin_failures")]),
    ("origin_down", GAUGE, "Whether the last connections to the origin all failed.", &[("", "/origin_failure")]),
    ("informational_responses_total", COUNTER, "Responses 1xx of origins.", &[("", "/informational")]),
    ("access_log_lines_lost_total", COUNTER, "Lines of the access log that were lost.", &[("", "/log_lines_lost")]),
    ("access_log_failing", GAUGE, "Whether the access log cannot be written.", &[("", "/access_log_failure")]),
    ("resident_memory_bytes", GAUGE, "Resident memory of the process.", &[("", "/process/resident_bytes")]),
];

/// The metrics of a proxy's store.
const STORE: &[Metric] = &[
    ("size_bytes", GAUGE, "Size of the store on its devices.", &[("", "/span_bytes")]),
    ("used_bytes", GAUGE, "Size of what the index points to, at most.", &[("", "/entries_bytes")]),
    ("entries", GAUGE, "Objects, and fragments of long ones.", &[("", "/entries")]),
    ("evictions_total", COUNTER, "Entries whose space was reclaimed.", &[("", "/counts/entries_reclaimed")]),
    ("index_evictions_total", COUNTER, "Entries dropped because the index was full.", &[("", "/index_evictions")]),
    (
        "lookups_total",
        COUNTER,
        "Lookups by result: found in memory, on disk, or not.",
        &[("memory", "/counts/hits_memory"), ("disk", "/counts/hits_disk"), ("miss", "/counts/misses")],
    ),
    ("puts_total", COUNTER, "Objects put.", &[("", "/counts/puts")]),
    ("put_bytes_total", COUNTER, "Bytes of bodies put.", &[("", "/counts/put_bytes")]),
    ("admitted_total", COUNTER, "Objects admitted to the disk.", &[("", "/counts/admitted")]),
    ("admitted_bytes_total", COUNTER, "Bytes of bodies admitted to the disk.", &[("", "/counts/admitted_bytes")]),
    ("puts_refused_total", COUNTER, "Puts refused, as the disk was too slow.", &[("", "/counts/puts_refused")]),
    ("purges_total", COUNTER, "Purges done.", &[("", "/counts/purges")]),
    ("purges_waiting", GAUGE, "Purges that wait for older ones to be forgotten.", &[("", "/purges_waiting")]),
    (
        "memory_bytes",
        GAUGE,
        "Memory of the store by use.",
        &[
            ("objects", "/memory_used_bytes"),
            ("unwritten", "/memory_unwritten_bytes"),
            ("fills", "/fill_bytes"),
            ("index", "/index_bytes"),
        ],
    ),
    ("memory_capacity_bytes", GAUGE, "Memory for objects.", &[("", "/memory_capacity_bytes")]),
    ("device_reads_total", COUNTER, "Records read from the device.", &[("", "/counts/device_reads")]),
    ("device_read_bytes_total", COUNTER, "Bytes read from the device.", &[("", "/counts/device_read_bytes")]),
    ("device_read_errors_total", COUNTER, "Reads that failed on the device.", &[("", "/counts/device_read_errors")]),
    ("reads_late_total", COUNTER, "Reads that missed their deadline.", &[("", "/counts/reads_late")]),
    ("writes_late_total", COUNTER, "Writes and flushes that missed their deadline.", &[("", "/counts/writes_late")]),
    ("writes_failed_total", COUNTER, "Writes that failed on the device.", &[("", "/counts/writes_failed")]),
    ("flushes_failed_total", COUNTER, "Flushes that failed on the device.", &[("", "/counts/flushes_failed")]),
    (
        "device_written_bytes_total",
        COUNTER,
        "Bytes written to the device: objects, and metadata.",
        &[("objects", "/counts/append_bytes"), ("metadata", "/counts/metadata_bytes")],
    ),
    ("damaged_records_total", COUNTER, "Records found damaged; they are misses.", &[("", "/counts/damaged")]),
    ("stopped", GAUGE, "Whether the store takes no more writes.", &[("", "/stopped")]),
    ("spans_lost", GAUGE, "Spans whose device is lost.", &[("", "/spans_lost")]),
    ("index_loading", GAUGE, "Whether the index is still being read.", &[("", "/index_loading")]),
];

/// The name of the label of a metric whose figures have one.
fn label(metric: &str) -> &'static str {
    match metric {
        "responses_total" => "class",
        "connections_refused_total" => "reason",
        "memory_bytes" | "device_written_bytes_total" => "use",
        _ => "result",
    }
}

/// The metrics of a node of a fleet.
const FLEET: &[Metric] = &[
    ("applied_revision", GAUGE, "The last revision that the node has applied.", &[("", "/applied")]),
    ("purges_behind", GAUGE, "Purges that the node knows of and has not applied.", &[("", "/purges_behind")]),
    ("log_purges", GAUGE, "Purges in the log.", &[("", "/log_purges")]),
    ("log_bytes", GAUGE, "Bytes of the purges in the log.", &[("", "/log_bytes")]),
    ("purges_queued", GAUGE, "Purges that wait until etcd can be reached.", &[("", "/purges_queued")]),
    ("purges_accepted_total", COUNTER, "Purges that the node has accepted.", &[("", "/purges_accepted")]),
    ("purges_refused_total", COUNTER, "Purges that the node has refused.", &[("", "/purges_refused")]),
    ("purges_applied_total", COUNTER, "Purges that the node has applied.", &[("", "/purges_applied")]),
    ("everything_purged_total", COUNTER, "How often the node purged everything.", &[("", "/everything_purged")]),
    ("cuts_total", COUNTER, "How often the node lost its membership.", &[("", "/cuts")]),
];

/// Formats the metrics of all proxies and their stores.
pub fn proxies(text: &mut String, proxies: &[Value]) {
    let own: Vec<_> = proxies.iter().map(|proxy| (plain(&proxy["name"]), proxy)).collect();
    let stores: Vec<_> = proxies.iter().map(|proxy| (plain(&proxy["name"]), &proxy["store"])).collect();
    family(text, "nectary_proxy", PROXY, &own);
    family(text, "nectary_store", STORE, &stores);
    let of_fleets: Vec<_> = proxies.iter().map(|proxy| (plain(&proxy["name"]), &proxy["fleet"])).collect();
    family(text, "nectary_fleet", FLEET, &of_fleets);
    fleets::nodes(text, &of_fleets);
    latencies(text, &own);
    certificates(text, &own);
    ordered(text, &own);
    servers(text, &own);
    services(text, &own);
}

/// Formats the histograms of how long requests took.
fn latencies(text: &mut String, proxies: &[(String, &Value)]) {
    let mut lines = String::new();
    for (name, values) in proxies {
        for latency in values["latencies"].as_array().into_iter().flatten() {
            let labels = format!("proxy=\"{}\",result=\"{}\"", escaped(name), escaped(&plain(&latency["result"])));
            let counts = latency["buckets"].as_array().into_iter().flatten().filter_map(Value::as_u64);
            let bounds = LATENCY_BOUNDS_US.iter().map(|us| (*us as f64 / 1e6).to_string());
            let mut sum = 0;
            for (count, bound) in counts.zip(bounds.chain(["+Inf".to_owned()])) {
                sum += count;
                let _ = writeln!(lines, "{LATENCY}_bucket{{{labels},le=\"{bound}\"}} {sum}");
            }
            let seconds = latency["sum_us"].as_u64().unwrap_or_default() as f64 / 1e6;
            let _ = writeln!(lines, "{LATENCY}_sum{{{labels}}} {seconds}\n{LATENCY}_count{{{labels}}} {sum}");
        }
    }
    if !lines.is_empty() {
        let help = "From the end of a request's head to the last byte of its response, by what the cache did.";
        let _ = write!(text, "# HELP {LATENCY} {help}\n# TYPE {LATENCY} histogram\n{lines}");
    }
}

/// Formats the end of each certificate that clients are shown.
fn certificates(text: &mut String, proxies: &[(String, &Value)]) {
    let mut lines = String::new();
    for (name, values) in proxies {
        for certificate in values["certificates"].as_array().into_iter().flatten() {
            let (Some(end), path) = (certificate["not_after_s"].as_i64(), plain(&certificate["path"])) else {
                continue;
            };
            let (name, path) = (escaped(name), escaped(&path));
            let _ = writeln!(lines, "{CERTIFICATE}{{proxy=\"{name}\",certificate=\"{path}\"}} {end}");
        }
    }
    if !lines.is_empty() {
        let help = "When a certificate for clients ends, in Unix time.";
        let _ = write!(text, "# HELP {CERTIFICATE} {help}\n# TYPE {CERTIFICATE} gauge\n{lines}");
    }
}

/// Formats how often ordering the certificate of each name has failed in a row.
fn ordered(text: &mut String, proxies: &[(String, &Value)]) {
    let mut lines = String::new();
    for (proxy, values) in proxies {
        for ordered in values["acme"].as_array().into_iter().flatten() {
            let (proxy, name) = (escaped(proxy), escaped(&plain(&ordered["name"])));
            let count = ordered["failure"]["count"].as_u64().unwrap_or_default();
            let _ = writeln!(lines, "{ORDERED}{{proxy=\"{proxy}\",name=\"{name}\"}} {count}");
        }
    }
    if !lines.is_empty() {
        let help = "Orders of a name's certificate that failed in a row.";
        let _ = write!(text, "# HELP {ORDERED} {help}\n# TYPE {ORDERED} gauge\n{lines}");
    }
}

/// A figure of a server of an origin.
type ServerFigure = fn(&Value) -> Option<u64>;

/// The metrics of the servers of origins: name, kind, help, and the figure.
const SERVER: [(&str, &str, &str, ServerFigure); 3] = [
    ("up", GAUGE, "Whether the last connections, checks and requests did not all fail.", |server| {
        Some(u64::from(server["failure"].is_null()))
    }),
    ("requests_total", COUNTER, "Requests that the server got.", |server| server["requests"].as_u64()),
    ("requests_under_way", GAUGE, "Requests at the server that are not over.", |server| {
        server["requests_under_way"].as_u64()
    }),
];

/// Formats the state of each server of an origin.
fn servers(text: &mut String, proxies: &[(String, &Value)]) {
    for (metric, kind, help, figure) in SERVER {
        let metric = format!("nectary_proxy_server_{metric}");
        let mut lines = String::new();
        for (name, values) in proxies {
            for server in values["servers"].as_array().into_iter().flatten() {
                let Some(number) = figure(server) else { continue };
                let (origin, url) = (escaped(&plain(&server["origin"])), escaped(&plain(&server["url"])));
                let name = escaped(name);
                let _ = writeln!(lines, "{metric}{{proxy=\"{name}\",origin=\"{origin}\",server=\"{url}\"}} {number}");
            }
        }
        if !lines.is_empty() {
            let _ = write!(text, "# HELP {metric} {help}\n# TYPE {metric} {kind}\n{lines}");
        }
    }
}

/// A figure of the look-ups of an origin's servers.
type ServiceFigure = fn(&Value) -> Option<u64>;

/// The metrics of the look-ups of origins' servers: name, help, and the figure.
const SERVICE: [(&str, &str, ServiceFigure); 2] = [
    ("servers", "Servers of an origin by its SRV records.", |service| service["servers"].as_u64()),
    ("failures", "Look-ups of an origin's SRV records in a row that gave no server.", |service| {
        service["failures"].as_u64()
    }),
];

/// Formats how looking up the servers of each origin goes.
fn services(text: &mut String, proxies: &[(String, &Value)]) {
    for (metric, help, figure) in SERVICE {
        let metric = format!("nectary_proxy_srv_{metric}");
        let mut lines = String::new();
        for (name, values) in proxies {
            for service in values["services"].as_array().into_iter().flatten() {
                let Some(number) = figure(service) else { continue };
                let (name, origin) = (escaped(name), escaped(&plain(&service["origin"])));
                let _ = writeln!(lines, "{metric}{{proxy=\"{name}\",origin=\"{origin}\"}} {number}");
            }
        }
        if !lines.is_empty() {
            let _ = write!(text, "# HELP {metric} {help}\n# TYPE {metric} gauge\n{lines}");
        }
    }
}

/// Formats the state of every part.
pub fn parts(text: &mut String, parts: &[Value]) {
    for (metric, help, figure) in [
        ("nectary_part_state", "State of a part: 0 healthy, 1 degraded, 2 broken.", "state"),
        ("nectary_part_problems", "Problems that a part reports.", "problems"),
    ] {
        let mut lines = String::new();
        for part in parts {
            let (component, name) = (escaped(&plain(&part["component"])), escaped(&plain(&part["name"])));
            let Some(number) = part[figure].as_u64() else { continue };
            let _ = writeln!(lines, "{metric}{{component=\"{component}\",name=\"{name}\"}} {number}");
        }
        if !lines.is_empty() {
            let _ = write!(text, "# HELP {metric} {help}\n# TYPE {metric} gauge\n{lines}");
        }
    }
}

fn family(text: &mut String, prefix: &str, metrics: &[Metric], parts: &[(String, &Value)]) {
    for (metric, kind, help, figures) in metrics {
        let mut lines = String::new();
        for (name, values) in parts {
            for (value, figure) in *figures {
                let Some(number) = values.pointer(figure).and_then(number) else { continue };
                let name = escaped(name);
                let second = if value.is_empty() { String::new() } else { format!(",{}=\"{value}\"", label(metric)) };
                let _ = writeln!(lines, "{prefix}_{metric}{{proxy=\"{name}\"{second}}} {number}");
            }
        }
        if !lines.is_empty() {
            let _ = write!(text, "# HELP {prefix}_{metric} {help}\n# TYPE {prefix}_{metric} {kind}\n{lines}");
        }
    }
}

/// The number of a figure; a text counts as true, and its absence as false.
fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Null => Some(0),
        Value::Bool(is_so) => Some(u64::from(*is_so)),
        Value::String(_) => Some(1),
        other => other.as_u64(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    const ALERTS: &str = include_str!("../../../../../../packaging/prometheus/alerts.yml");
    const ALERT_TESTS: &str = include_str!("../../../../../../packaging/prometheus/alerts-test.yml");
    const DASHBOARD: &str = include_str!("../../../../../../packaging/grafana/proxy.json");

    /// Each series of a proxy, with the values of its second label; there are none if clients or files choose them.
    fn series() -> BTreeMap<String, BTreeSet<&'static str>> {
        let mut all = BTreeMap::new();
        for (prefix, metrics) in [("nectary_proxy", PROXY), ("nectary_store", STORE)] {
            for (metric, _, _, figures) in metrics {
                let values = figures.iter().map(|(value, _)| *value).filter(|value| !value.is_empty());
                all.insert(format!("{prefix}_{metric}"), values.collect());
            }
        }
        let further = SERVER.map(|(metric, ..)| format!("nectary_proxy_server_{metric}"));
        let further = further.into_iter().chain(SERVICE.map(|(metric, ..)| format!("nectary_proxy_srv_{metric}")));
        let further = further.chain(["bucket", "sum", "count"].map(|part| format!("{LATENCY}_{part}")));
        let parts = ["nectary_part_state", "nectary_part_problems"];
        let further = further.chain([CERTIFICATE, ORDERED].into_iter().chain(parts).map(str::to_owned));
        all.extend(further.map(|name| (name, BTreeSet::new())));
        all
    }

    /// The names of metrics in a text, each with what is in braces behind it.
    fn named(text: &str) -> Vec<(String, String)> {
        let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        let mut found = Vec::new();
        for (at, _) in text.match_indices("nectary_") {
            if text[..at].ends_with(is_part) {
                continue;
            }
            let rest = &text[at..];
            let (name, rest) = rest.split_at(rest.find(|c: char| !is_part(c)).unwrap_or(rest.len()));
            let braces = rest.strip_prefix('{').and_then(|rest| rest.split('}').next()).unwrap_or_default();
            found.push((name.to_owned(), braces.to_owned()));
        }
        found
    }

    /// The texts of a JSON value, and of all that is in it.
    fn texts(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::String(text) => found.push(text.clone()),
            Value::Array(values) => values.iter().for_each(|value| texts(value, found)),
            Value::Object(members) => members.values().for_each(|value| texts(value, found)),
            _ => {}
        }
    }

    /// What the rules and the dashboard name and a proxy has not.
    fn unknown(text: &str) -> Vec<String> {
        let all = series();
        let mut unknown = Vec::new();
        for (name, braces) in named(text) {
            let Some(values) = all.get(&name) else {
                unknown.push(name);
                continue;
            };
            let second = ["result", "class", "reason", "use"];
            for matched in braces.split(',').filter_map(|matched| matched.split_once('=')) {
                let (label, value) = (matched.0.trim().trim_end_matches('!'), matched.1.trim());
                let is_pattern = value.starts_with('~');
                let value = value.trim_start_matches('~').trim_matches(['"', '\\']);
                let is_known = |value: &str| values.is_empty() || values.contains(value);
                let is_right = if is_pattern { value.split('|').all(is_known) } else { is_known(value) };
                if second.contains(&label) && !is_right {
                    unknown.push(format!("{name}{{{label}={value}}}"));
                }
            }
        }
        unknown
    }

    fn dashboard() -> (Value, Vec<String>) {
        let value: Value = serde_json::from_str(DASHBOARD).expect("JSON");
        let mut found = Vec::new();
        texts(&value, &mut found);
        (value, found)
    }

    #[test]
    fn alerts_and_dashboard_know_their_metrics() {
        let dashboard = dashboard().1.join("\n");
        for (file, text) in [("alerts", ALERTS), ("tests", ALERT_TESTS), ("dashboard", dashboard.as_str())] {
            assert!(named(text).len() > 20, "{file}");
            assert_eq!(unknown(text), [""; 0], "{file}");
        }
        // Names that are gone, and values of labels, are noticed.
        assert_eq!(unknown("rate(nectary_proxy_hits[5m])"), ["nectary_proxy_hits"]);
        let planted = "nectary_proxy_results_total{proxy=\":80\", result=~\"hit|hot\"}";
        assert_eq!(unknown(planted), ["nectary_proxy_results_total{result=hit|hot}"]);
        assert_eq!(unknown(&planted.replace("hit|hot", "hit|miss")), [""; 0]);
    }

    /// An alert without these tells nobody what to do at night.
    #[test]
    fn every_alert_says_what_to_do() {
        let alerts: Vec<&str> = ALERTS.split("- alert: ").skip(1).collect();
        assert!(alerts.len() > 20, "{}", alerts.len());
        for alert in alerts {
            let name = alert.lines().next().unwrap_or_default();
            for part in ["expr: ", "for: ", "severity: ", "summary: ", "description: ", "action: "] {
                assert_eq!(
                    alert.matches(&format!("\n          {part}")).count()
                        + alert.matches(&format!("\n        {part}")).count(),
                    1,
                    "{name}: {part}"
                );
            }
            let fires = format!("alertname=\"{name}\"");
            assert!(ALERT_TESTS.contains(&fires), "no test lets {name} fire");
        }
    }

    #[test]
    fn dashboard_has_no_panel_twice() {
        let (value, _) = dashboard();
        let panels = value["panels"].as_array().expect("panels");
        let ids: BTreeSet<u64> = panels.iter().filter_map(|panel| panel["id"].as_u64()).collect();
        let titles: BTreeSet<&str> = panels.iter().filter_map(|panel| panel["title"].as_str()).collect();
        assert_eq!((ids.len(), titles.len()), (panels.len(), panels.len()));
        for panel in panels.iter().filter(|panel| panel["type"] != "row") {
            let targets = panel["targets"].as_array().map_or(0, Vec::len);
            let place = &panel["gridPos"];
            let is_inside = place["x"].as_u64().zip(place["w"].as_u64()).is_some_and(|(x, w)| x + w <= 24);
            assert!(targets > 0 && is_inside && panel["description"].is_string(), "{}", panel["title"]);
        }
    }
}
