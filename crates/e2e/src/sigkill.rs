//! SIGKILL rounds under load: what was written before the kill must be there after it, what was purged must not.
//!
//! A round: clients load the proxy while the main thread polls the sequences; it reads the written sequence, kills the
//! process, starts it again, measures the time from exec to the first hit, and asks for every key. The store has twice the
//! room of everything put into it; a new one is made when that would no longer hold. Odd rounds run with little memory, so
//! that hits come from the disk.
//!
//! Promises that a planted bug of each kind is reported (see [`Plant`]), and that a seed chooses the same workload again;
//! the moment of the kill within it is up to the machine.

pub mod client;
pub mod model;
mod runner;

use crate::scratch::Scratch;
use anyhow::{Context, Result};
use client::Tally;
use runner::Runner;
use std::time::Duration;

/// The longest time from exec to the first hit.
pub const FIRST_HIT_MAX: Duration = Duration::from_secs(1);
/// The fewest keys that must have been demanded, a round in the mean: fewer prove nothing.
pub const DEMANDED_PER_ROUND_MIN: u64 = 50;

/// A bug that the harness makes, to show that it would be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// One byte of one answer is flipped.
    WrongByte,
    /// A key that must hit is purged behind the model's back.
    LostObject,
    /// A purged key is stored again behind the model's back.
    ForgottenPurge,
    /// The front of the store's file, behind the superblock, is overwritten with zeros between kill and restart.
    ZeroedStore,
}

impl Plant {
    /// All of them, with their names.
    pub const ALL: [(&'static str, Plant); 4] = [
        ("wrong-byte", Plant::WrongByte),
        ("lost-object", Plant::LostObject),
        ("forgotten-purge", Plant::ForgottenPurge),
        ("zeroed-store", Plant::ZeroedStore),
    ];

    /// The planted bug of this name.
    pub fn by_name(name: &str) -> Option<Plant> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, plant)| *plant)
    }
}

/// What to run.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// Chooses the workload.
    pub seed: u64,
    /// Numbers of the rounds to run.
    pub rounds: Vec<u64>,
    /// Bug to plant in every round.
    pub plant: Option<Plant>,
    /// Memory of even and of odd rounds.
    pub memory: [String; 2],
    /// Further arguments of the proxy.
    pub arguments: Vec<String>,
    /// Instead of after a time, kill it at one of these system calls (names as `strace` takes them, with commas), the
    /// n-th of a thread, n drawn for each round.
    pub kill_at_calls: Option<String>,
}

impl Campaign {
    /// Rounds `0..count` with the default memory.
    pub fn new(seed: u64, count: u64) -> Self {
        let memory = ["128M".to_owned(), "16M".to_owned()];
        Self { seed, rounds: (0..count).collect(), plant: None, memory, arguments: Vec::new(), kill_at_calls: None }
    }
}

/// What came out of one round.
#[derive(Clone, Debug)]
pub struct RoundReport {
    /// Its number.
    pub round: u64,
    /// Everything counted, under load and after the restart.
    pub tally: Tally,
    /// Keys that the model knew.
    pub keys: usize,
    /// The written sequence that was read before the kill.
    pub written: u64,
    /// The last sequence at that time.
    pub last: u64,
    /// From exec to the first hit; `None` where no key had to hit.
    pub first_hit: Option<Duration>,
}

/// Which first hits have to come in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InTime {
    /// Each of them.
    #[default]
    Every,
    /// The one in the middle: on a machine that does other work besides, some come late for no reason of ours.
    Median,
}

/// What came out of all rounds.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Rounds that were run.
    pub rounds: u64,
    /// Sums of everything counted.
    pub tally: Tally,
    /// The time from exec to the first hit, in each round that had one.
    pub first_hits: Vec<Duration>,
    /// Keys that missed or were wrong after the clean stop at the end.
    pub after_stop: Tally,
}

impl Summary {
    /// What is wrong, in words; empty where everything is as it must be.
    pub fn problems(&self, in_time: InTime) -> Vec<String> {
        let mut problems = Vec::new();
        let (total, stop) = (&self.tally, &self.after_stop);
        let counted = [
            ("missing after SIGKILL", total.missing),
            ("wrong", total.wrong),
            ("lost while the process lived", total.lost_alive),
            ("missing after a clean stop", stop.missing),
            ("wrong after a clean stop", stop.wrong),
        ];
        problems.extend(counted.iter().filter(|(_, count)| *count > 0).map(|(what, count)| format!("{what}: {count}")));
        if total.demanded < DEMANDED_PER_ROUND_MIN * self.rounds {
            problems.push(format!("only {} keys demanded in {} rounds", total.demanded, self.rounds));
        }
        if total.forbidden == 0 && self.rounds > 0 {
            problems.push("no purged key was checked".to_owned());
        }
        let judged = match in_time {
            InTime::Every => self.first_hit_max(),
            InTime::Median => self.first_hit_median(),
        };
        if judged > FIRST_HIT_MAX {
            problems.push(format!("first hit {judged:?} after exec ({in_time:?}), at most {FIRST_HIT_MAX:?} allowed"));
        }
        problems
    }

    /// The longest time from exec to the first hit.
    pub fn first_hit_max(&self) -> Duration {
        self.first_hits.iter().copied().max().unwrap_or_default()
    }

    /// The median time from exec to the first hit; the upper one of two.
    pub fn first_hit_median(&self) -> Duration {
        let mut sorted = self.first_hits.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).copied().unwrap_or_default()
    }

    fn add(&mut self, report: &RoundReport) {
        self.rounds += 1;
        self.tally.add(&report.tally);
        self.first_hits.extend(report.first_hit);
    }
}

/// Runs the campaign; `report` is told of every round.
///
/// Call it from a thread that lives as long as the campaign: the proxies die with it.
pub fn run(campaign: &Campaign, mut report: impl FnMut(&RoundReport) -> Result<()>) -> Result<Summary> {
    let scratch = Scratch::new("sigkill")?;
    let mut runner = Runner::new(campaign, &scratch)?;
    let mut summary = Summary::default();
    for &round in &campaign.rounds {
        let done = runner.round(round).with_context(|| format!("round {round}, seed {}", campaign.seed))?;
        summary.add(&done);
        report(&done)?;
    }
    if campaign.plant.is_none() {
        summary.after_stop = runner.clean_stop().context("clean stop at the end")?;
    }
    Ok(summary)
}

/// The sums in one line, for the closing note.
pub fn describe(summary: &Summary) -> String {
    let (total, stop) = (&summary.tally, &summary.after_stop);
    format!(
        "sigkill: {} rounds: missing {}, wrong {}, lost alive {}; demanded {}, purged and checked {}, requests {}, \
         purges {}, replaced {}; first hit {} ms after exec in the median, at most {}; after a clean stop: demanded {}, missing {}, wrong {}",
        summary.rounds,
        total.missing,
        total.wrong,
        total.lost_alive,
        total.demanded,
        total.forbidden,
        total.requests,
        total.purges,
        total.replaced,
        summary.first_hit_median().as_millis(),
        summary.first_hit_max().as_millis(),
        stop.demanded,
        stop.missing,
        stop.wrong,
    )
}
