//! The stage that runs the suite for HTTP caches in front of each proxy.
//!
//! Owns: the program of the suite (`e2e-campaigns cache-tests`, beside this program), its arguments, and reading its JSON.
//! It starts Nectary itself, with HTTP/1, TLS and HTTP/2; the peers are those of this run, which know the address of the
//! suite's server before it listens. Promises: the suite's own code counts; a suite that cannot run is named with the
//! reason. Leaves to others: the suite, and why a test of Nectary fails (`nectary-e2e`).

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use serde_json::Value;

use crate::process::ProcessEnvironment;
use crate::{Error, ExperimentErrorKind};

/// The suite's package, which is used if no clone is named.
pub(super) const PACKAGE: &str = "http-cache-tests";
/// The program that runs it.
const PROGRAM: &str = "e2e-campaigns";
/// The end of what a failed run said that an error quotes. *Units*: bytes.
const SAID_BYTES: usize = 1000;

/// The tests of a kind that passed, and all of that kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub(super) struct PassedTests {
    pub passed: u64,
    pub count: u64,
}

/// The counts of one proxy.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub(super) struct SuiteCounts {
    /// The contender's name; Nectary has one for each protocol.
    pub name: String,
    pub required: PassedTests,
    pub optimal: PassedTests,
}

/// The results of the suite.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct SuiteResults {
    /// The suite's name with its version; empty if it did not run.
    pub suite: String,
    pub counts: Vec<SuiteCounts>,
}

/// Finds the program that runs the suite.
///
/// *Errors*: it is not there; the text says how to make it.
pub(super) fn find(nectary: &Path) -> Result<PathBuf, String> {
    let program = nectary.with_file_name(PROGRAM);
    match program.is_file() {
        true => Ok(program),
        false => Err(format!("{} is not there: `cargo build --release -p nectary-e2e`", program.display())),
    }
}

/// Runs the suite in front of Nectary and of the `peers`; its server listens at `origin`.
///
/// *Errors*: the suite cannot run, for example without node; the text has what it said last.
pub(super) fn run(
    program: &Path,
    suite: &str,
    nectary: &Path,
    origin: SocketAddr,
    peers: &[(String, SocketAddr)],
) -> Result<SuiteResults, Error> {
    // The process ends with this one.
    let mut command = ProcessEnvironment::default().command(nectary, program);
    command.args(["cache-tests", "--json", "--only", "nothing", "--suite", suite]);
    command.arg("--origin").arg(origin.to_string());
    for (name, address) in peers {
        command.arg("--beside").arg(format!("{name}={address}"));
    }
    let output = command.env("NECTARY_BIN", nectary).stdin(Stdio::null()).output();
    let output = output.map_err(|error| Error::failed(program.display(), error))?;
    results_of(&output)
}

/// The counts that a run printed. It exits with 1 if Nectary fails too many tests, which the counts say, too.
fn results_of(output: &Output) -> Result<SuiteResults, Error> {
    parse(&output.stdout).map_err(|why| {
        let said = String::from_utf8_lossy(&output.stderr[output.stderr.len().saturating_sub(SAID_BYTES)..]);
        let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
        let said = if said.is_empty() { why } else { said };
        Error::new(ExperimentErrorKind::Failed, format!("{PROGRAM} cache-tests: {}: {said}", output.status))
    })
}

/// Reads the program's JSON.
fn parse(bytes: &[u8]) -> Result<SuiteResults, String> {
    let all: Value = serde_json::from_slice(bytes).map_err(|error| format!("its output is no JSON: {error}"))?;
    let passed = |one: &Value, kind: &str| {
        Some(PassedTests { passed: one[kind]["passed"].as_u64()?, count: one[kind]["count"].as_u64()? })
    };
    let counts = all["contestants"].as_array().map_or(&[][..], Vec::as_slice).iter().map(|one| {
        let name = name_of(one["name"].as_str()?);
        Some(SuiteCounts { name, required: passed(one, "required")?, optimal: passed(one, "optimal")? })
    });
    let counts: Option<Vec<SuiteCounts>> = counts.collect();
    match (all["suite"].as_str(), counts) {
        (Some(suite), Some(counts)) if !counts.is_empty() => Ok(SuiteResults { suite: suite.to_owned(), counts }),
        _ => Err("its output has no counts".to_owned()),
    }
}

/// The name in figures: without the version, and with the protocol.
fn name_of(contestant: &str) -> String {
    let first = contestant.split(' ').next().unwrap_or_default();
    match contestant {
        "no cache" => "no-cache".to_owned(),
        _ if contestant.ends_with(" over TLS") => format!("{first}-tls"),
        _ if contestant.ends_with(" over HTTP/2") => format!("{first}-http2"),
        _ => first.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    const JSON: &str = r#"{"suite": "http-cache-tests 0.4.5 (the package)", "machine": "m", "commit": "c", "contestants": [
        {"name": "nectary 0.1.0", "required": {"passed": 158, "count": 160}, "optimal": {"passed": 95, "count": 105}},
        {"name": "nectary 0.1.0 over HTTP/2", "required": {"passed": 157, "count": 159}, "optimal": {"passed": 1, "count": 2}},
        {"name": "varnish", "required": {"passed": 119, "count": 160}, "optimal": {"passed": 45, "count": 105}},
        {"name": "no cache", "required": {"passed": 22, "count": 160}, "optimal": {"passed": 0, "count": 105}}]}"#;

    #[test]
    fn suite_json_becomes_counts() {
        let results = parse(JSON.as_bytes()).expect("counts");
        let names: Vec<&str> = results.counts.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["nectary", "nectary-http2", "varnish", "no-cache"]);
        assert_eq!(results.counts[0].optimal, PassedTests { passed: 95, count: 105 });
        assert!(results.suite.contains("0.4.5"));
        for wrong in
            ["", "{}", r#"{"suite": "s", "contestants": []}"#, &JSON.replace("\"count\": 2}", "\"count\": -2}")]
        {
            assert!(parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn missing_suite_says_how_to_build() {
        let why = find(Path::new("/nowhere/nectary")).expect_err("nothing is there");
        assert!(why.contains("/nowhere/e2e-campaigns") && why.contains("cargo build"), "{why}");
    }

    /// A run that fails says why, and gives no counts; one with too many failures gives counts.
    #[test]
    fn failed_suite_quotes_its_output() {
        let output = |stdout: &str, stderr: &str| Output {
            status: ExitStatusExt::from_raw(1 << 8),
            stdout: stdout.into(),
            stderr: stderr.into(),
        };
        let error = results_of(&output("", "NOT RUN:\n node is not installed\n")).expect_err("no counts");
        assert!(error.message.ends_with("exit status: 1: NOT RUN: node is not installed"), "{error}");
        assert!(results_of(&output("[]", "")).expect_err("no counts").message.contains("no counts"));
        assert_eq!(results_of(&output(JSON, "PROBLEM")).expect("counts").counts.len(), 4);
    }
}
