//! The options and the steps that all campaigns share.
//!
//! Owns: the seed, the planted bugs, the repetition of a case, the progress on the terminal, and the line of the log.
//! Leaves to others: how a bug is caught, and whether its case catches it again (`nectary_sim::planted`).

use std::fmt::Display;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use nectary_sim::planted::{BugCase, CaughtBug, is_caught};

/// The name of this program.
pub const PROGRAM: &str = "sim-campaigns";

/// The options of every campaign.
#[derive(Debug, clap::Args)]
pub struct CampaignOptions {
    /// The seed from which the seeds of all runs follow
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Whether bugs are planted first
    #[arg(long, value_name = "0|1", default_value_t = 1, value_parser = clap::value_parser!(u8).range(..=1))]
    planted: u8,
    /// Plants only this bug, and only in the run that --replay names
    #[arg(long, value_name = "NAME")]
    pub bug: Option<String>,
    /// Runs only this seed
    #[arg(long, value_name = "SEED")]
    pub replay: Option<u64>,
    /// Appends the results to this file, as one line of JSON
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
}

impl CampaignOptions {
    /// The seed of the first run.
    pub fn first(&self) -> u64 {
        self.seed.wrapping_mul(1_000_000)
    }

    /// Whether bugs are planted.
    pub fn is_planting(&self) -> bool {
        self.planted == 1
    }

    /// Appends a line to the log, if there is one.
    pub fn log(&self, line: &serde_json::Value) {
        let Some(path) = &self.log else { return };
        let appended = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .and_then(|mut file| writeln!(file, "{line}"));
        if let Err(error) = appended {
            eprintln!("{PROGRAM}: cannot append to {}: {error}", path.display());
        }
    }
}

/// How the cases that caught the bugs are logged: the name of the bug, the seed, and whether the bug was caught again.
pub type Outcomes = Vec<(&'static str, Option<u64>, bool)>;

/// The number of bugs that were not caught, or not caught again.
pub fn survived(outcomes: &Outcomes) -> usize {
    outcomes.iter().filter(|(.., is_good)| !is_good).count()
}

/// The bugs of a campaign.
pub struct CampaignBugs<'a, B> {
    /// The campaign, with the options that all its cases need.
    pub campaign: &'a str,
    /// The bugs.
    pub list: Vec<B>,
    /// Returns the printed name of a bug.
    pub name: fn(B) -> &'static str,
    /// Runs one case with one bug planted.
    pub replay: &'a dyn Fn(B, BugCase) -> Option<CaughtBug>,
}

impl<B: Copy> CampaignBugs<'_, B> {
    /// The bug called `name`. If there is none, prints the names and ends the process with code 2.
    pub fn named(&self, name: Option<&str>) -> B {
        self.list.iter().copied().find(|bug| Some((self.name)(*bug)) == name).unwrap_or_else(|| self.refuse())
    }

    fn refuse(&self) -> ! {
        eprintln!("--bug NAME --replay SEED: a name is one of");
        self.list.iter().for_each(|bug| eprintln!("  {}", (self.name)(*bug)));
        std::process::exit(2);
    }

    /// Runs the case that the command line names, if any; returns the exit code.
    ///
    /// `state` is the number of the case's crash state, for campaigns that check crash states.
    pub fn repeat(&self, shared: &CampaignOptions, state: Option<u64>) -> Option<ExitCode> {
        if shared.bug.is_none() && shared.replay.is_none() && state.is_none() {
            return None;
        }
        let bug = self.named(shared.bug.as_deref());
        let Some(seed) = shared.replay else { self.refuse() };
        let (name, case) = ((self.name)(bug), BugCase { seed, state });
        let caught = (self.replay)(bug, case);
        match &caught {
            Some(caught) => println!("planted: {name}: caught with {}: {}", caught.case, caught.broken),
            None => println!("planted: {name}: SURVIVED {case}"),
        }
        Some(exit_code(caught.is_some()))
    }

    /// Tries to catch each bug, unless the command line says that none is planted. Prints the case that caught it, the
    /// command that repeats this, and whether the case catches the bug again.
    pub fn catch_each(&self, shared: &CampaignOptions, find: impl Fn(B) -> Option<CaughtBug>) -> Outcomes {
        if !shared.is_planting() {
            return Outcomes::new();
        }
        let command = format!("{PROGRAM} {}", self.campaign);
        let catch = |&bug: &B| {
            let (name, caught) = ((self.name)(bug), find(bug));
            let (is_good, text) = is_caught(&command, name, caught.as_ref(), |case| (self.replay)(bug, case));
            println!("{text}");
            (name, caught.map(|caught| caught.case.seed), is_good)
        };
        self.list.iter().map(catch).collect()
    }
}

/// The exit code of a campaign.
pub fn exit_code(is_good: bool) -> ExitCode {
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Writes the line of progress again.
pub fn progress(line: impl Display) {
    eprint!("\r{line}    ");
    let _ = std::io::stderr().flush();
}

/// Prints the violations that were not printed yet.
pub fn print_new(violations: &[String], told: &mut usize) {
    violations.iter().skip(*told).for_each(|broken| println!("BROKEN {broken}"));
    *told = violations.len();
}

/// Reads a share of the runs: `I/K` is every K-th run, from the I-th on.
pub fn shard(text: &str) -> Result<(u64, u64), String> {
    let parts = text.split_once('/').and_then(|(at, of)| Some((at.parse().ok()?, of.parse().ok()?)));
    parts.filter(|(at, of)| at < of).ok_or_else(|| "I counts from 0 and is below K, as 0/4".to_owned())
}
