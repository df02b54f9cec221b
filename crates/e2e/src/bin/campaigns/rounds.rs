//! What the campaigns have in common: which rounds they run, how they count problems, and their exit codes.
//!
//! Leaves to others: the seeds and the lines `NOT RUN: reason` (`nectary_e2e::report`).

use std::fmt::Display;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use nectary_e2e::report::not_run;

/// How a campaign mounts volumes.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct MountChoice {
    /// Mount with `--local-names`
    #[arg(long)]
    local_names: bool,
}

impl MountChoice {
    /// Gives the choice to all mounts from now on.
    pub fn apply(self) {
        if self.local_names {
            nectary_e2e::volume::keep_names_local();
        }
    }
}

/// What it means for the exit code that this machine cannot run a campaign.
#[derive(Clone, Copy, Debug)]
pub enum NotRunPolicy {
    /// The campaign fails.
    Fails,
    /// The soak lists the round among those that were not run.
    IsAllowed,
}

impl NotRunPolicy {
    /// The exit code, after a line with the campaign and the reason.
    pub fn exit(self, campaign: &str, reason: impl Display) -> ExitCode {
        not_run(format!("{campaign}: {reason}"));
        self.code()
    }

    /// The exit code.
    pub fn code(self) -> ExitCode {
        match self {
            NotRunPolicy::Fails => ExitCode::FAILURE,
            NotRunPolicy::IsAllowed => ExitCode::from(77),
        }
    }
}

/// The problems of a campaign, each printed when it is found.
#[derive(Debug, Default)]
pub struct ProblemCounter {
    count: usize,
}

impl ProblemCounter {
    /// Prints a problem and counts it.
    pub fn add(&mut self, problem: impl Display) {
        self.count += 1;
        println!("PROBLEM: {problem}");
    }

    /// Prints problems and counts them.
    pub fn extend(&mut self, problems: impl IntoIterator<Item: Display>) {
        problems.into_iter().for_each(|problem| self.add(problem));
    }

    /// Their number.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The exit code: success without problems.
    pub fn exit(&self) -> ExitCode {
        ExitCode::from(u8::from(self.count > 0))
    }
}

/// Reads a shard I/N: of N shards, the one that runs every N-th round, starting with round I, counted from 0.
pub fn shard(text: &str) -> Result<(u64, u64)> {
    let (index, count) = text.split_once('/').with_context(|| format!("--shard {text}: expected I/N, as 0/2"))?;
    let (index, count): (u64, u64) = (index.parse()?, count.parse()?);
    ensure!(index < count, "--shard {text}: the first number must be less than the second");
    Ok((index, count))
}

/// The first line of an error and its causes.
pub fn first_line(error: &anyhow::Error) -> String {
    format!("{error:#}").lines().next().unwrap_or_default().to_owned()
}
