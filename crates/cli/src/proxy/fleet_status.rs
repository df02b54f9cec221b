//! `nectary fleet status`: the fleets of which proxies on this machine are nodes.
//!
//! Owns: the presentation, and the exit code: that of the worst state of these proxies as far as their fleet is concerned.

use std::time::Duration;

use nectary_host::fleet::{FleetFigures, FleetState, NodeFigures};
use nectary_host::{RuntimeDirectory, State};
use serde_json::{Value, json};

use crate::arguments::{FleetCommand, FleetStatusArguments};
use crate::exit::{Failure, NOT_FOUND};
use crate::output;
use crate::services::running_parts::running_parts;

/// The longest time in which each proxy must answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Runs the command.
pub fn run(command: &FleetCommand) -> Result<u8, Failure> {
    match command {
        FleetCommand::Status(arguments) => status(arguments),
    }
}

fn status(arguments: &FleetStatusArguments) -> Result<u8, Failure> {
    let directory = RuntimeDirectory::open()?;
    let mut found: Vec<(String, FleetFigures)> = Vec::new();
    for part in running_parts(&directory, PATIENCE)? {
        let Ok(status) = part.status else { continue };
        let figures = status.detail.get("fleet").cloned().map(serde_json::from_value);
        if let Some(Ok(figures)) = figures {
            found.push((status.name, figures));
        }
    }
    if arguments.json {
        let list: Vec<Value> = found.iter().map(|(proxy, fleet)| json!({ "proxy": proxy, "fleet": fleet })).collect();
        output::json(&list)?;
    } else if found.is_empty() {
        let path = directory.path().display();
        output::text(&format!("no proxy with [fleet] is running (looked in {path})\n"))?;
    } else {
        output::text(&found.iter().map(|(proxy, fleet)| as_text(proxy, fleet)).collect::<String>())?;
    }
    Ok(exit_code(found.iter().map(|(_, fleet)| fleet)))
}

/// The exit code of the worst fleet, or [`NOT_FOUND`] without one.
fn exit_code<'a>(fleets: impl Iterator<Item = &'a FleetFigures>) -> u8 {
    let state = |fleet: &FleetFigures| if fleet.problems.is_empty() { State::Healthy } else { State::Degraded };
    fleets.map(state).max().map_or(NOT_FOUND, State::exit_code)
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
    use nectary_host::Problem;

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
        let problem = Problem { what: "etcd is away".to_owned(), remedy: "start it".to_owned() };
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
    fn worst_fleet_decides_the_exit_code() {
        let wrong =
            FleetFigures { problems: vec![Problem { what: String::new(), remedy: String::new() }], ..figures() };
        assert_eq!(exit_code([].into_iter()), NOT_FOUND);
        assert_eq!((exit_code([&figures()].into_iter()), exit_code([&figures(), &wrong].into_iter())), (0, 3));
    }
}
