//! Runs npm, pip, cargo, apt and git through the proxy, twice each: `e2e-campaigns package-clients --only pip,cargo`.
//!
//! For each client, prints the hits of its second run. The exit code is 0 only if every client that could be run got
//! the same bytes in both runs and its packages were hits in the second run; 77 if none could be run.

use anyhow::Result;
use clap::Args;
use nectary_e2e::clients::{ClientVerdict, apt, cargo, git, npm, pip};
use nectary_e2e::report::not_run;
use std::process::ExitCode;

use crate::rounds::NotRunPolicy;

/// Runs package clients through the proxy.
#[derive(Args)]
pub struct PackageClientsArguments {
    /// Run only these: some of npm, pip, cargo, apt, git
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
}

/// Runs the campaign.
pub fn campaign(arguments: &PackageClientsArguments) -> Result<ExitCode> {
    type Run = fn() -> Result<ClientVerdict>;
    let clients: [(&str, Run); 5] =
        [("npm", npm::run), ("pip", pip::run), ("cargo", cargo::run), ("apt", apt::run), ("git", git::run)];
    let is_known = |name: &String| clients.iter().any(|(client, _)| client == name);
    if let Some(unknown) = arguments.only.iter().find(|name| !is_known(name)) {
        eprintln!("there is no client {unknown}; there are npm, pip, cargo, apt and git");
        return Ok(ExitCode::from(2));
    }
    let (mut is_good, mut has_run) = (true, false);
    for (name, run) in clients {
        if !arguments.only.is_empty() && !arguments.only.iter().any(|only| only == name) {
            continue;
        }
        match run() {
            Ok(ClientVerdict::Kept(report)) => {
                has_run = true;
                println!("{report}");
            }
            Ok(ClientVerdict::NotRun(reason)) => not_run(reason),
            Err(error) => {
                is_good = false;
                println!("PROBLEM: {name}: {error:#}");
            }
        }
    }
    Ok(match (is_good, has_run) {
        (false, _) => ExitCode::FAILURE,
        (true, false) => NotRunPolicy::IsAllowed.code(),
        (true, true) => ExitCode::SUCCESS,
    })
}
