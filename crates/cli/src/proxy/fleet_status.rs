//! `nectary fleet status`: the fleets of which proxies on this machine are nodes.
//!
//! Owns: the presentation, and the exit code: that of the worst state of these proxies as far as their fleet is
//! concerned. A proxy that does not say whether it is a node is shown, as it may be one that has lost its fleet.

use std::time::Duration;

use nectary_block::format_size;
use nectary_host::control::RunningPart;
use nectary_host::fleet::{FleetCertificate, FleetFigures, FleetState, NodeFigures, PeerFigures, QuestionFigures};
use nectary_host::{PartHealth, RuntimeDirectory};
use serde_json::{Value, json};

use super::fleet_report;
use crate::arguments::{FleetCommand, FleetStatusArguments};
use crate::exit::{CommandFailure, NOT_FOUND};
use crate::output;
use crate::services::running_parts::running_parts;

/// The longest time in which each proxy must answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Runs the command.
pub fn run(command: &FleetCommand) -> Result<u8, CommandFailure> {
    match command {
        FleetCommand::Status(arguments) => status(arguments),
    }
}

/// A proxy that is a node of a fleet, or may be one.
#[derive(Debug)]
enum FoundProxy {
    /// A node: the name of the proxy, and its fleet.
    Node(String, Box<FleetFigures>),
    /// A proxy that does not say whether it is one, and why.
    Silent(String, String),
}

fn status(arguments: &FleetStatusArguments) -> Result<u8, CommandFailure> {
    let directory = RuntimeDirectory::open()?;
    let found: Vec<FoundProxy> = running_parts(&directory, PATIENCE)?.into_iter().filter_map(found_in).collect();
    if arguments.json {
        let list: Vec<Value> = found.iter().map(as_json).collect();
        output::json(&list)?;
    } else if found.is_empty() {
        let path = directory.path().display();
        output::text(&format!("no proxy with [fleet] is running (looked in {path})\n"))?;
    } else {
        output::text(&found.iter().map(found_text).collect::<String>())?;
    }
    Ok(exit_code(&found))
}

/// What a part says of its fleet; `None` if it is no proxy, or one without a fleet.
fn found_in(part: RunningPart) -> Option<FoundProxy> {
    let socket = part.path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let status = match part.status {
        Ok(status) if status.component == "proxy" => status,
        Err(error) if socket.starts_with("proxy-") => return Some(FoundProxy::Silent(socket, error.to_string())),
        _ => return None,
    };
    match status.detail.get("fleet").cloned().map(serde_json::from_value) {
        Some(Ok(figures)) => Some(FoundProxy::Node(status.name, Box::new(figures))),
        Some(Err(error)) => {
            let why = format!("its figures are those of another version: {error}");
            Some(FoundProxy::Silent(status.name, why))
        }
        None if status.detail["addresses"].is_null() => {
            Some(FoundProxy::Silent(status.name, "it is starting".to_owned()))
        }
        None => None,
    }
}

/// The exit code of the worst of them, or [`NOT_FOUND`] without any.
fn exit_code(found: &[FoundProxy]) -> u8 {
    let state = |proxy: &FoundProxy| match proxy {
        FoundProxy::Node(_, fleet) if fleet.problems.is_empty() => PartHealth::Healthy,
        _ => PartHealth::Degraded,
    };
    found.iter().map(state).max().map_or(NOT_FOUND, PartHealth::exit_code)
}

fn as_json(found: &FoundProxy) -> Value {
    match found {
        FoundProxy::Node(proxy, fleet) => json!({ "proxy": proxy, "fleet": fleet }),
        FoundProxy::Silent(proxy, why) => json!({ "proxy": proxy, "fleet": null, "problem": why }),
    }
}

fn found_text(found: &FoundProxy) -> String {
    match found {
        FoundProxy::Node(proxy, fleet) => as_text(proxy, fleet),
        FoundProxy::Silent(proxy, why) => format!(
            "proxy {proxy}: it may be a node of a fleet, but does not say: {why}\n  what to do: see `nectary status`\n"
        ),
    }
}

fn as_text(proxy: &str, fleet: &FleetFigures) -> String {
    let mut text = format!("fleet {}: node {} (proxy {proxy}) {}\n", fleet.fleet, fleet.node, state_text(fleet));
    let (purges, bytes) = (fleet.log_purges, fleet.log_bytes);
    text += &format!("  applied up to revision {}; {purges} purges ({bytes} bytes) in the log\n", fleet.applied);
    if fleet.purges_behind > 0 {
        let seconds = fleet.behind_ms / 1000;
        text += &format!("  behind: {} purges, the oldest for {seconds} s\n", fleet.purges_behind);
    }
    if fleet.purges_queued > 0 {
        text += &format!("  waiting for etcd: {} purges\n", fleet.purges_queued);
    }
    text += &nodes_text(&fleet.nodes);
    text += &peers_text(&fleet.peers);
    text += &certificates_text(&fleet.certificates, fleet_report::now_s());
    for problem in &fleet.problems {
        text += &format!("  {}\n  what to do: {}\n", problem.what, problem.remedy);
    }
    text
}

fn nodes_text(nodes: &[NodeFigures]) -> String {
    if nodes.is_empty() {
        return String::new();
    }
    let width = nodes.iter().map(|node| node.name.len()).max().unwrap_or_default().max(4);
    let mut text = format!("  {:width$}  {:>6}  {:>12}  {:>6}  state\n", "node", "share", "applied", "behind");
    for node in nodes {
        let state = match (node.is_living, node.has_common_rules) {
            (false, _) => "away",
            (true, false) => "rules differ",
            (true, true) => "living",
        };
        let own = if node.is_this { ", this one" } else { "" };
        let zone = if node.zone.is_empty() { String::new() } else { format!(", zone {}", node.zone) };
        let (name, share) = (&node.name, node.share * 100.0);
        let (applied, behind) = (node.applied, node.purges_behind);
        text += &format!("  {name:width$}  {share:>5.1}%  {applied:>12}  {behind:>6}  {state}{own}{zone}\n");
    }
    text
}

/// What this node and each other one have asked each other.
fn peers_text(peers: &[PeerFigures]) -> String {
    if peers.is_empty() {
        return String::new();
    }
    let width = peers.iter().map(|peer| peer.name.len()).max().unwrap_or_default().max(8);
    let line = |name: &str, of: &QuestionFigures, more: String| {
        let QuestionFigures { questions, hits, misses, refused, failed, body_bytes } = of;
        let bytes = format_size(*body_bytes);
        format!(
            "  {name:width$}  {questions:>10}  {hits:>10}  {misses:>10}  {refused:>7}  {failed:>7}  {bytes:>8}{more}\n"
        )
    };
    let head = |name: &str, more: &str| {
        format!(
            "  {name:width$}  {:>10}  {:>10}  {:>10}  {:>7}  {:>7}  {:>8}{more}\n",
            "questions", "hits", "misses", "refused", "failed", "bytes"
        )
    };
    let mut text = head("asked", "  no answer     late  hedges won/lost");
    for peer in peers {
        let PeerFigures { unreachable, late, hedges_won, hedges_lost, .. } = peer;
        let more = format!("  {unreachable:>9}  {late:>7}  {hedges_won}/{hedges_lost}");
        text += &line(&peer.name, &peer.asked, more);
    }
    text += &head("answered", "");
    text + &peers.iter().map(|peer| line(&peer.name, &peer.answered, String::new())).collect::<String>()
}

/// When each certificate ends.
fn certificates_text(certificates: &[FleetCertificate], now_s: i64) -> String {
    if certificates.is_empty() {
        return String::new();
    }
    let ends = certificates.iter().map(|certificate| match fleet_report::days_left(certificate, now_s) {
        ..0 => format!("{} has ended", certificate.key),
        days => format!("{} in {days} days", certificate.key),
    });
    format!("  certificates end: {}\n", ends.collect::<Vec<_>>().join(", "))
}

fn state_text(fleet: &FleetFigures) -> &'static str {
    match fleet.state {
        FleetState::Away if fleet.serve_ms_left > 0 => "is cut off, and still serves from its store",
        FleetState::Away => "is cut off: origins answer",
        FleetState::CatchingUp => "applies what it missed: origins answer",
        FleetState::Member => "is a member",
        FleetState::RulesDiffer => "has other rules than most nodes: origins answer",
        FleetState::Left => "leaves",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nectary_host::{PartProblem, PartStatus};

    fn figures() -> FleetFigures {
        let node = |name: &str, is_this| NodeFigures {
            name: name.to_owned(),
            share: 0.5,
            applied: 7,
            purges_behind: 2,
            is_living: true,
            has_common_rules: is_this,
            is_this,
            ..NodeFigures::default()
        };
        let nodes = vec![node("a", true), node("b", false)];
        FleetFigures { fleet: "edge".to_owned(), node: "a".to_owned(), nodes, ..FleetFigures::default() }
    }

    #[test]
    fn fleet_text_has_nodes_and_remedies() {
        let problem = PartProblem { what: "etcd is away".to_owned(), remedy: "start it".to_owned() };
        let text = as_text(":80", &FleetFigures { problems: vec![problem], purges_behind: 3, ..figures() });
        for part in [
            "fleet edge: node a (proxy :80) is cut off: origins answer\n",
            "behind: 3 purges",
            " 50.0% ",
            "living, this one\n",
            "rules differ\n",
            "  etcd is away\n  what to do: start it\n",
        ] {
            assert!(text.contains(part), "no {part} in\n{text}");
        }
    }

    #[test]
    fn fleet_text_has_questions_and_certificates() {
        let asked = QuestionFigures { questions: 90, hits: 71, misses: 12, refused: 3, failed: 1, body_bytes: 5 << 20 };
        let answered = QuestionFigures { questions: 8, ..QuestionFigures::default() };
        let peer = PeerFigures {
            name: "b".to_owned(),
            asked,
            answered,
            unreachable: 4,
            late: 6,
            hedges_won: 2,
            hedges_lost: 5,
        };
        let end = |key: &str, days: i64| FleetCertificate {
            key: key.to_owned(),
            not_after_s: fleet_report::now_s() + days * 24 * 3600 + 60,
            ..FleetCertificate::default()
        };
        let certificates = vec![end("cert", 80), end("ca", -1)];
        let text = as_text(":80", &FleetFigures { peers: vec![peer], certificates, ..figures() });
        let words = |start: &str| {
            let line = text.lines().rfind(|line| line.starts_with(start)).unwrap_or_default();
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert!(text.contains("certificates end: cert in 80 days, ca has ended\n"), "{text}");
        let asked = text.lines().find(|line| line.starts_with("  b ") && line.ends_with("2/5")).unwrap_or_default();
        let asked = asked.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(asked, "b 90 71 12 3 1 5M 4 6 2/5", "{text}");
        assert_eq!(words("  b "), "b 8 0 0 0 0 0", "{text}");
        assert_eq!(as_text(":80", &figures()).lines().count(), 5, "nothing is told of nothing");
    }

    #[test]
    fn worst_fleet_decides_the_exit_code() {
        let problems = vec![PartProblem { what: String::new(), remedy: String::new() }];
        let node = |figures| FoundProxy::Node(String::new(), Box::new(figures));
        assert_eq!((exit_code(&[]), exit_code(&[node(figures())])), (NOT_FOUND, 0));
        assert_eq!(exit_code(&[node(figures()), node(FleetFigures { problems, ..figures() })]), 3);
    }

    #[test]
    fn silent_proxies_are_shown() {
        let part =
            |socket: &str, status| found_in(RunningPart { path: format!("/run/nectary/{socket}.sock").into(), status });
        let absent = || Err(nectary_host::Error::Absent { path: "/run/nectary/x.sock".into() });
        let proxy = |detail| Ok(PartStatus { detail, ..PartStatus::healthy("proxy", ":80") });
        let found = [
            part("proxy-:80", absent()),
            part("proxy-:80", proxy(json!({ "addresses": null }))),
            part("proxy-:80", proxy(json!({ "addresses": [], "fleet": { "fleet": 7 } }))),
        ];
        for (found, said) in found.into_iter().zip(["nothing is listening", "it is starting", "another version"]) {
            let found = found.expect("it may be a node");
            let text = found_text(&found);
            assert!(text.contains(":80") && text.contains(said), "{text}");
            assert_eq!((exit_code(&[found]), text.lines().count()), (3, 2));
        }
        let others = [part("volume-a", absent()), part("proxy-:80", proxy(json!({ "addresses": [] })))];
        assert!(others.iter().all(Option::is_none) && part("a", Ok(PartStatus::healthy("volume", "a"))).is_none());
    }
}
