//! Runs the suite for HTTP caches against Nectary (over HTTP/1, TLS and HTTP/2), nginx, Varnish, Squid and no cache at
//! all: `e2e-campaigns cache-tests --suite ./cache-tests --write docs/results`.
//!
//! Prints a table and the tests that Nectary fails. The exit code is 0 only if over each protocol Nectary fails at most 2
//! of 160 required and 10 of 105 optimal tests (of the older package: 18 of 157 and 10 of 86), and each failure is
//! explained.
//! The campaign needs node 18 or later and npm, and takes three minutes.

use anyhow::{Context, Result};
use clap::Args;
use nectary_e2e::cache_tests::contestants::{self, RunningContestant, SuiteProtocol};
use nectary_e2e::cache_tests::{measure, page, suite};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::rounds::NotRunPolicy;

/// Runs the suite for HTTP caches against Nectary and the proxies beside it.
#[derive(Args)]
pub struct CacheTestsArguments {
    /// The package that npm installs: the suite's, or a folder with a clone of its repository, which is newer
    #[arg(long, default_value = suite::PACKAGE)]
    suite: String,
    /// Beside Nectary, run only these: some of nginx, varnish, squid, nothing
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Option<Vec<String>>,
    /// Where the suite's server listens; a free port by default
    #[arg(long, value_name = "ADDRESS")]
    origin: Option<SocketAddr>,
    /// Also run the suite in front of this running proxy of the suite's server; may be repeated
    #[arg(long, value_name = "NAME=ADDRESS", value_parser = contestants::parse_running)]
    beside: Vec<RunningContestant>,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
    /// Write the page cache-tests.md into this directory, for example docs/results
    #[arg(long, value_name = "DIR")]
    write: Option<PathBuf>,
}

/// Runs the campaign.
pub fn campaign(arguments: &CacheTestsArguments) -> Result<ExitCode> {
    if let Some(program) = suite::InstalledSuite::missing() {
        let reason = format!("{program} is not installed (`ci/setup cache-tests` installs it)");
        return Ok(NotRunPolicy::Fails.exit("cache-tests", reason));
    }
    let suite = suite::InstalledSuite::install(&arguments.suite, arguments.origin)?;
    let mut contestants = contestants::start(suite.origin, arguments.only.as_deref())?;
    contestants.extend(arguments.beside.iter().map(RunningContestant::contestant));
    let measured = measure(&suite, &contestants)?;
    let ours = measured.outcomes.get(..SuiteProtocol::ALL.len()).context("Nectary is there once for each protocol")?;
    if let Some(folder) = &arguments.write {
        page::write(folder, &arguments.suite, &measured)?;
    }
    if arguments.json {
        println!("{:#}", page::to_json(&arguments.suite, &measured));
    } else {
        let suite = page::suite(&arguments.suite, &measured);
        println!("{suite}\n\n{}", page::table(&measured.outcomes));
        ours.iter().for_each(|outcome| println!("{}:\n{}", outcome.name, page::failures(outcome)));
    }
    let problems: Vec<String> = ours
        .iter()
        .flat_map(|outcome| {
            outcome.problems(measured.layout).into_iter().map(|problem| format!("{}: {problem}", outcome.name))
        })
        .collect();
    problems.iter().for_each(|problem| eprintln!("PROBLEM: {problem}"));
    Ok(if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
