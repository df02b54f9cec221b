//! A campaign with many concurrent clients: planted bugs first, then histories from a seed on, then crash states.
//!
//! Owns: the order of these parts, the progress on the terminal, the line of the log, and the exit code. A campaign
//! succeeds if no history and no state breaks a promise, enough was done, and each planted bug was caught by a seed
//! that catches it again. With `--bug NAME --replay SEED` it runs only that seed with that bug planted, and succeeds if
//! the bug is caught. Leaves to others: what a run does, and how much is enough ([`Campaign`]).

use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

use serde_json::{Value, json};

use crate::arguments::Arguments;
use crate::planted::{self, Case, Caught};

const ARGUMENTS: [&str; 7] = ["seed", "runs", "images", "planted", "bug", "replay", "log"];
/// A planted bug must be caught within this many runs.
const PLANTED_RUNS_MAX: u64 = 20_000;
/// The number of crash states that are checked of each recorded run.
const STATES_PER_WORKLOAD: usize = 60;
/// The default number of distinct images of crash states.
const IMAGES: u64 = 10_000;
/// The number of runs between two lines of progress.
const RUNS_TOLD: u64 = 500;

/// The results that every campaign has.
pub trait Account {
    /// Returns how much was done: the number of runs or of distinct images.
    fn done(&self) -> u64;
    /// Returns the number of violations, and descriptions of the first ones.
    fn broken(&self) -> (u64, &[String]);
}

/// The parts that differ between campaigns.
pub trait Campaign {
    /// The name of the campaign's program.
    const PROGRAM: &'static str;
    /// The default number of runs.
    const RUNS: u64;
    /// The bugs that can be planted.
    type Bug: Copy;
    /// The results of histories.
    type Report: Account;
    /// The results of crash states.
    type States: Account;

    /// The bugs to plant, with their names.
    fn bugs() -> Vec<(&'static str, Self::Bug)>;
    /// Runs one seed with one bug planted.
    fn replay_planted(bug: Self::Bug, seed: u64) -> Option<Caught>;
    /// Runs seeds from `first` on.
    fn run_many(first: u64, runs: u64, progress: &mut dyn FnMut(&Self::Report) -> bool) -> Self::Report;
    /// Checks crash states of workloads with the seeds from `first` on, until `images` distinct images were checked.
    fn run_states(
        first: u64,
        images: u64,
        states_per_workload: usize,
        progress: &mut dyn FnMut(&Self::States) -> bool,
    ) -> Self::States;
    /// Prints the results of histories; returns whether enough was done.
    fn print_runs(report: &Self::Report, first: u64) -> bool;
    /// Prints the results of crash states; returns whether enough was done; `images` is the number of requested images.
    fn print_states(states: &Self::States, images: u64) -> bool;
    /// Returns further figures of the histories for the log.
    fn figures(report: &Self::Report) -> Value;
}

/// Runs a campaign according to the process's arguments.
pub fn main<C: Campaign>() -> ExitCode {
    let arguments = match Arguments::parse(C::PROGRAM, &ARGUMENTS) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    let bugs = C::bugs();
    let names: Vec<&str> = bugs.iter().map(|bug| bug.0).collect();
    let named = |name: &str| bugs.iter().find(|bug| bug.0 == name).expect("names are those of the bugs").1;
    let replay = |name: &str, case: Case| C::replay_planted(named(name), case.seed);
    if let Some((name, case)) = Case::of(&arguments, &names) {
        let is_caught = planted::print_replay(name, case, replay(name, case).as_ref());
        return if is_caught { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let (seed, runs) = (arguments.number("seed", 1), arguments.number("runs", C::RUNS).max(1));
    let images = arguments.number("images", IMAGES);
    let begun = Instant::now();
    let first = seed.wrapping_mul(1_000_000);
    let mut caught = Vec::new();
    if arguments.number("planted", 1) == 1 {
        let seeds = first..first + PLANTED_RUNS_MAX;
        let find = |name: &str| seeds.clone().find_map(|seed| C::replay_planted(named(name), seed));
        caught = planted::catch_each(C::PROGRAM, &names, find, replay);
    }
    let survived = caught.iter().filter(|(.., is_good)| !is_good).count();
    let mut progress = Progress { begun, told: 0 };
    let report = C::run_many(first, runs, &mut |report| progress.of(report, runs, "runs", RUNS_TOLD));
    progress.told = 0;
    let states =
        C::run_states(first, images, STATES_PER_WORKLOAD, &mut |states| progress.of(states, images, "images", 1));
    // Report the last workload, because `run_states` reports only before each workload.
    progress.of(&states, images, "images", 1);
    eprintln!();
    let is_whole = report.done() == runs && states.done() >= images;
    let is_broken = report.broken().0 > 0 || states.broken().0 > 0;
    let is_enough = C::print_runs(&report, first) & C::print_states(&states, images);
    let good = is_whole && !is_broken && is_enough && survived == 0;
    let mut line = C::figures(&report);
    let own = json!({
        "check": C::PROGRAM, "seed": seed, "runs": report.done(), "broken": report.broken().0,
        "images": states.done(), "images_broken": states.broken().0, "planted": caught,
        "planted_survived": survived, "seconds": begun.elapsed().as_secs(), "passed": good,
    });
    if let (Value::Object(line), Value::Object(own)) = (&mut line, own) {
        line.extend(own);
    }
    arguments.log(&line);
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What has been printed so far.
struct Progress {
    begun: Instant,
    /// How many violations have been printed.
    told: usize,
}

impl Progress {
    /// Prints new violations at once, and the progress from time to time.
    fn of(&mut self, account: &impl Account, wanted: u64, what: &str, every: u64) -> bool {
        let (broken_count, broken) = account.broken();
        broken[self.told..].iter().for_each(|broken| println!("BROKEN {broken}"));
        self.told = broken.len();
        let done = account.done();
        if done.is_multiple_of(every) {
            let seconds = self.begun.elapsed().as_secs_f64();
            eprint!("\r{done} of {wanted} {what}, {broken_count} broken, {seconds:.0} s    ");
            let _ = std::io::stderr().flush();
        }
        true
    }
}
