//! The results as text, as JSON and as a page of `docs/results/`.

use super::contestants::SuiteProtocol;
use super::{SuiteLayout, SuiteOutcome, SuiteResults, SuiteTestResult, explanations};
use crate::bench::machine;
use anyhow::Result;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

/// The name of the page, without its ending.
const PAGE: &str = "cache-tests";

/// A table of figures; the first outcomes are Nectary's.
pub fn table(outcomes: &[SuiteOutcome]) -> String {
    let width = outcomes.iter().map(|outcome| outcome.name.len()).max().unwrap_or(0);
    let mut text = format!("{:width$}  {:>10}  {:>10}  {:>10}\n", "", "required", "optimal", "checks: yes");
    for outcome in outcomes {
        let of = |kind| {
            let (passed, count) = outcome.passed(kind);
            format!("{passed}/{count}")
        };
        let checks = outcome.rows.iter().filter(|row| row.kind == "check");
        let yes = checks.clone().filter(|row| row.result == "yes").count();
        let name = &outcome.name;
        text += &format!(
            "{name:width$}  {:>10}  {:>10}  {:>10}\n",
            of("required"),
            of("optimal"),
            format!("{yes}/{}", checks.count())
        );
    }
    text
}

/// The tests that Nectary fails over one protocol, one line each, and those that this protocol has no words for.
pub fn failures(nectary: &SuiteOutcome) -> String {
    let left_out = |row: &&SuiteTestResult| {
        format!("{} ({}): {} has no words for it: {}\n", row.id, row.kind, nectary.name, row.detail)
    };
    let line = |row: &&SuiteTestResult| {
        let explanation = explanations::of(row).unwrap_or_else(|| "NOT EXPLAINED".to_owned());
        format!("{} ({}, {}): {}\n  {explanation}\n", row.id, row.kind, row.result, row.detail)
    };
    nectary.failures().iter().map(line).chain(nectary.inexpressible().iter().map(left_out)).collect()
}

/// Returns all results as JSON, for programs.
pub fn to_json(source: &str, measured: &SuiteResults) -> Value {
    let contestants: Vec<Value> = measured
        .outcomes
        .iter()
        .map(|outcome| {
            let failures: Vec<Value> = outcome
                .failures()
                .iter()
                .map(|row| json!({"id": row.id, "kind": row.kind, "result": row.result, "detail": row.detail}))
                .collect();
            let of = |kind| {
                let (passed, count) = outcome.passed(kind);
                json!({"passed": passed, "count": count})
            };
            json!({
                "name": outcome.name, "required": of("required"), "optimal": of("optimal"), "failures": failures,
                "inexpressible": outcome.inexpressible().iter().map(|row| &row.id).collect::<Vec<_>>(),
            })
        })
        .collect();
    json!({"suite": suite(source, measured), "machine": machine(), "commit": commit(), "contestants": contestants})
}

/// Returns the suite's version and layout, and the commit if it is a clone.
pub fn suite(source: &str, measured: &SuiteResults) -> String {
    let layout = match measured.layout {
        SuiteLayout::Package => "the package",
        SuiteLayout::Repository => "the repository",
    };
    let commit = if Path::new(source).is_dir() { git(Path::new(source)) } else { String::new() };
    let at = if commit.is_empty() { String::new() } else { format!(" at {commit}") };
    format!("http-cache-tests {} ({layout}{at})", measured.version)
}

/// Writes the page into a folder.
pub fn write(folder: &Path, source: &str, measured: &SuiteResults) -> Result<()> {
    let path = folder.join(format!("{PAGE}.md"));
    std::fs::write(path, page(source, measured))?;
    Ok(())
}

fn page(source: &str, measured: &SuiteResults) -> String {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcomes = &measured.outcomes;
    let mut text = format!(
        "# {PAGE}\n\nThe suite for HTTP caches, {}, in front of Nectary and the proxies beside it. Written by\n\
         `cargo run --release -p nectary-e2e -- {}`, commit {}, {}.\n\n\
         The suite's own code counts: a test passes only where those that it depends on do. Tests for browsers alone are left \
         out.\n\n```\n{}```\n",
        suite(source, measured),
        arguments.join(" "),
        commit(),
        machine(),
        table(outcomes)
    );
    let Some((nectary, others)) = outcomes.split_first() else { return text };
    text += "\n## What Nectary fails, and why\n\n| test | kind | what it wants | why it fails |\n|---|---|---|---|\n";
    let row_text = |row: &SuiteTestResult| {
        let explanation = explanations::of(row).unwrap_or_else(|| "not explained".to_owned());
        format!("| `{}` | {} | {} | {explanation} |\n", row.id, row.kind, cell(&row.name))
    };
    text.extend(nectary.failures().into_iter().map(row_text));
    for other in others.iter().take(SuiteProtocol::ALL.len() - 1) {
        let is_new = |row: &&SuiteTestResult| !nectary.failures().iter().any(|known| known.id == row.id);
        let new: Vec<&SuiteTestResult> = other.failures().into_iter().filter(is_new).collect();
        let names: Vec<String> = other.inexpressible().iter().map(|row| format!("`{}`", row.id)).collect();
        text += &format!("\n{}: {} tests beside these fail", other.name, new.len());
        text += &match names.is_empty() {
            true => ".\n".to_owned(),
            false => {
                format!("; {} are left out, because it has no words for them: {}.\n", names.len(), names.join(", "))
            }
        };
        if !new.is_empty() {
            text += "\n| test | kind | what it wants | why it fails |\n|---|---|---|---|\n";
            text.extend(new.into_iter().map(row_text));
        }
    }
    text
}

/// A sentence of the suite as a table cell, without its links.
fn cell(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text.replace('|', "\\|").replace('\n', " ");
    while let Some((before, link)) = rest.split_once('[') {
        let Some((label, behind)) = link.split_once("](") else { break };
        let Some((_, after)) = behind.split_once(')') else { break };
        plain += before;
        plain += label;
        rest = after.to_owned();
    }
    plain + &rest
}

fn commit() -> String {
    git(Path::new("."))
}

/// Returns the commit of a folder; an empty text if the folder is not under git.
fn git(folder: &Path) -> String {
    let said = Command::new("git").arg("-C").arg(folder).args(["describe", "--always", "--dirty"]).output().ok();
    said.filter(|said| said.status.success())
        .map(|said| String::from_utf8_lossy(&said.stdout).trim().to_owned())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suite_texts_fit_their_cell() {
        assert_eq!(cell("A [`b`](https://c/#d) | e"), "A `b` \\| e");
        assert_eq!(cell("a [b"), "a [b");
    }
}
