//! The metrics of a fleet that each node has of each other one, and of the certificates between them.
//!
//! Owns: their names, by the rules of `proxies`, which has the metrics of a node itself.

use std::fmt::Write as _;

use serde_json::Value;

use super::{escaped, plain};

const BEHIND: &str = "nectary_fleet_node_purges_behind";
const CERTIFICATE: &str = "nectary_fleet_certificate_end_timestamp_seconds";

/// A metric of questions between nodes: name, help, and its figures: labels, and a path in the JSON.
type PeerMetric = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

/// The metrics of questions between nodes. All are counters.
const PEERS: &[PeerMetric] = &[
    (
        "nectary_fleet_questions_total",
        "Questions for objects to another node (asked) and from it (answered).",
        &[(",direction=\"asked\"", "/asked/questions"), (",direction=\"answered\"", "/answered/questions")],
    ),
    (
        "nectary_fleet_answers_total",
        "What became of questions: from the store, with the origin, refused, no response of the origin, no answer.",
        &[
            (",direction=\"asked\",result=\"hit\"", "/asked/hits"),
            (",direction=\"asked\",result=\"miss\"", "/asked/misses"),
            (",direction=\"asked\",result=\"refused\"", "/asked/refused"),
            (",direction=\"asked\",result=\"failed\"", "/asked/failed"),
            (",direction=\"asked\",result=\"unreachable\"", "/unreachable"),
            (",direction=\"answered\",result=\"hit\"", "/answered/hits"),
            (",direction=\"answered\",result=\"miss\"", "/answered/misses"),
            (",direction=\"answered\",result=\"refused\"", "/answered/refused"),
            (",direction=\"answered\",result=\"failed\"", "/answered/failed"),
        ],
    ),
    (
        "nectary_fleet_answer_bytes_total",
        "Bytes of the bodies of answers between nodes.",
        &[(",direction=\"asked\"", "/asked/body_bytes"), (",direction=\"answered\"", "/answered/body_bytes")],
    ),
    (
        "nectary_fleet_questions_late_total",
        "Questions whose answer did not come in the time in which it nearly always does.",
        &[("", "/late")],
    ),
    (
        "nectary_fleet_hedges_total",
        "Questions asked because another node was late, by whether their answer was used.",
        &[(",result=\"won\"", "/hedges_won"), (",result=\"lost\"", "/hedges_lost")],
    ),
];

/// Formats what nodes know of each other; each fleet has the name of the proxy that tells of it.
pub fn nodes(text: &mut String, fleets: &[(String, &Value)]) {
    let behind = each(fleets, "nodes", |proxy, node, lines| {
        let Some(behind) = node["purges_behind"].as_u64() else { return };
        let name = escaped(&plain(&node["name"]));
        let _ = writeln!(lines, "{BEHIND}{{proxy=\"{proxy}\",node=\"{name}\"}} {behind}");
    });
    write_family(text, (BEHIND, "gauge"), "Purges in the log that a living node has not said it has applied.", &behind);
    for (metric, help, figures) in PEERS {
        let lines = each(fleets, "peers", |proxy, peer, lines| {
            let name = escaped(&plain(&peer["name"]));
            for (labels, path) in *figures {
                let Some(count) = peer.pointer(path).and_then(Value::as_u64) else { continue };
                let _ = writeln!(lines, "{metric}{{proxy=\"{proxy}\",node=\"{name}\"{labels}}} {count}");
            }
        });
        write_family(text, (*metric, "counter"), help, &lines);
    }
    let ends = each(fleets, "certificates", |proxy, certificate, lines| {
        let Some(end) = certificate["not_after_s"].as_i64() else { return };
        let (key, path) = (escaped(&plain(&certificate["key"])), escaped(&plain(&certificate["path"])));
        let _ = writeln!(lines, "{CERTIFICATE}{{proxy=\"{proxy}\",key=\"{key}\",certificate=\"{path}\"}} {end}");
    });
    write_family(text, (CERTIFICATE, "gauge"), "When a certificate that [fleet] names ends, in Unix time.", &ends);
}

/// The lines that `line` writes for each element of a list of each fleet.
fn each(fleets: &[(String, &Value)], list: &str, line: impl Fn(&str, &Value, &mut String)) -> String {
    let mut lines = String::new();
    for (proxy, fleet) in fleets {
        let elements = fleet[list].as_array().into_iter().flatten();
        elements.for_each(|element| line(&escaped(proxy), element, &mut lines));
    }
    lines
}

fn write_family(text: &mut String, (metric, kind): (&str, &str), help: &str, lines: &str) {
    if !lines.is_empty() {
        let _ = write!(text, "# HELP {metric} {help}\n# TYPE {metric} {kind}\n{lines}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn questions_are_told_by_node() {
        let peer = json!({
            "name": "b", "asked": { "questions": 9, "hits": 5, "body_bytes": 77 }, "answered": { "failed": 2 },
            "unreachable": 1, "late": 3, "hedges_won": 4, "hedges_lost": 6,
        });
        let certificate = json!({ "key": "ca", "path": "/a.pem", "not_after_s": 1_800_000_000 });
        let fleet = json!({ "nodes": [], "peers": [peer], "certificates": [certificate] });
        let mut text = String::new();
        nodes(&mut text, &[(":80".to_owned(), &fleet)]);
        let node = "{proxy=\":80\",node=\"b\"";
        for line in [
            format!("nectary_fleet_questions_total{node},direction=\"asked\"}} 9\n"),
            format!("nectary_fleet_answers_total{node},direction=\"asked\",result=\"hit\"}} 5\n"),
            format!("nectary_fleet_answers_total{node},direction=\"asked\",result=\"unreachable\"}} 1\n"),
            format!("nectary_fleet_answers_total{node},direction=\"answered\",result=\"failed\"}} 2\n"),
            format!("nectary_fleet_answer_bytes_total{node},direction=\"asked\"}} 77\n"),
            format!("nectary_fleet_questions_late_total{node}}} 3\n"),
            format!("nectary_fleet_hedges_total{node},result=\"won\"}} 4\n"),
            format!("nectary_fleet_hedges_total{node},result=\"lost\"}} 6\n"),
            "nectary_fleet_certificate_end_timestamp_seconds{proxy=\":80\",key=\"ca\",certificate=\"/a.pem\"} 1800000000\n"
                .to_owned(),
        ] {
            assert!(text.contains(&line), "no {line} in\n{text}");
        }
    }
}
