//! SIGKILL rounds under load: objects that were written before the kill must be found after it, and purged objects must
//! not be found.
//!
//! In a round, clients load the proxy while the main thread polls the sequences. The main thread then reads the written
//! sequence, kills the process, starts it again, measures the time from exec to the first hit, and gets every key. Odd
//! rounds run with little memory, so that hits come from the disk. There are two loads. With [`ROOMY`], the store is at
//! least twice as large as everything put into it; before the puts exceed half of the store, a new store is made. With
//! [`LAPPING`], the ring completes cycles between kills, while 48 clients purge by key, by tag and by prefix, and purge
//! everything.
//!
//! Promises that a planted bug of each kind is reported (see [`PlantedBug`]), and that a seed repeats the workload; the
//! moment of the kill within it depends on the machine.

pub mod client;
pub mod model;
pub mod purges;
mod runner;

use crate::scratch::ScratchFolder;
use anyhow::{Context, Result};
use client::ClientTally;
use runner::SigkillRunner;
use std::time::Duration;

/// The longest time from exec to the first hit.
pub const FIRST_HIT_MAX: Duration = Duration::from_secs(1);
/// The largest share of answers whose body the ring may overwrite while it is read.
const CUT_SHORT_SHARE_MAX: f64 = 0.001;
/// The largest number of attempts to plant a bug: after a purge of everything just before the kill, there is no key for
/// the bug.
const PLANT_ATTEMPTS_MAX: u64 = 5;

/// The actions of clients between two kills, and the minimum counts per round on average; with smaller counts, a run
/// proves nothing.
#[derive(Debug)]
pub struct SigkillLoad {
    /// The size of the store, in bytes.
    pub store_bytes: u64,
    /// The number of clients.
    pub clients: usize,
    /// The largest number of keys of a client.
    pub keys_max: usize,
    /// The number of body bytes after which a round begins no new fetches from the origin; fetches in flight still
    /// finish.
    pub round_bytes_max: u64,
    /// The share of gets that are replaced by purges of a tag, of a prefix or, rarely, of everything; if it is not 0,
    /// everything is also purged once per round.
    pub wide_purges: f64,
    /// The number of cycles that the ring must complete; 0 means that it must complete none.
    pub laps_min: f64,
    /// The least number of completed purges of each kind: by key, by tag, by prefix, and of everything.
    pub purges_min: [f64; 4],
    /// The minimum number of keys for which the model requires a hit after the kill.
    pub demanded_min: u64,
}

/// A store whose ring never completes a cycle, and few clients.
pub const ROOMY: SigkillLoad = SigkillLoad {
    store_bytes: 1 << 30,
    clients: 4,
    keys_max: usize::MAX,
    round_bytes_max: 40 << 20,
    wide_purges: 0.0,
    laps_min: 0.0,
    purges_min: [1.0, 0.0, 0.0, 0.0],
    demanded_min: 50,
};

/// A store whose ring completes cycles between kills, many clients, and purges of every kind.
pub const LAPPING: SigkillLoad = SigkillLoad {
    store_bytes: 24 << 20,
    clients: 48,
    keys_max: 50,
    round_bytes_max: 96 << 20,
    wide_purges: 0.01,
    laps_min: 2.0,
    purges_min: [20.0, 5.0, 5.0, 1.0],
    // After a late purge of everything few keys remain.
    demanded_min: 20,
};

/// A bug that the harness plants, to show that it would be noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedBug {
    /// One byte of one answer is flipped.
    WrongByte,
    /// A key that must hit is purged without the model's knowledge.
    LostObject,
    /// A purged key is stored again without the model's knowledge.
    ForgottenPurge,
    /// The beginning of the store's file, after the superblock, is overwritten with zeros between kill and restart.
    ZeroedStore,
    /// The model assumes that a newer version of a key is stored, but that version was never put.
    VersionNeverPut,
    /// The model assumes that a key was purged, but the purge was never sent.
    KeyNeverPurged,
    /// The model assumes that all keys with a tag were purged, but the purge was never sent.
    TagNeverPurged,
    /// The model assumes that all keys with a prefix were purged, but the purge was never sent.
    PrefixNeverPurged,
    /// The model assumes that all keys were purged, but the purge was never sent.
    AllNeverPurged,
}

impl PlantedBug {
    /// All planted bugs, with their names.
    pub const ALL: [(&'static str, PlantedBug); 9] = [
        ("wrong-byte", PlantedBug::WrongByte),
        ("lost-object", PlantedBug::LostObject),
        ("forgotten-purge", PlantedBug::ForgottenPurge),
        ("zeroed-store", PlantedBug::ZeroedStore),
        ("version-never-put", PlantedBug::VersionNeverPut),
        ("key-never-purged", PlantedBug::KeyNeverPurged),
        ("tag-never-purged", PlantedBug::TagNeverPurged),
        ("prefix-never-purged", PlantedBug::PrefixNeverPurged),
        ("all-never-purged", PlantedBug::AllNeverPurged),
    ];

    /// True if `total` is the report that the bug must cause.
    fn is_told_by(self, total: &ClientTally) -> bool {
        match self {
            PlantedBug::WrongByte
            | PlantedBug::ForgottenPurge
            | PlantedBug::VersionNeverPut
            | PlantedBug::KeyNeverPurged => total.wrong == 1 && total.missing == 0,
            PlantedBug::LostObject => total.missing == 1 && total.wrong == 0,
            // If the newest version of a key is lost, an older one may answer, which counts as wrong.
            PlantedBug::ZeroedStore => total.missing > total.wrong,
            // There may be only one key with a tag or a prefix.
            PlantedBug::TagNeverPurged | PlantedBug::PrefixNeverPurged => total.wrong > 0 && total.missing == 0,
            PlantedBug::AllNeverPurged => total.wrong == total.verified_hits && total.wrong > 1 && total.missing == 0,
        }
    }
}

/// What to run.
#[derive(Clone, Debug)]
pub struct SigkillCampaign {
    /// The load of the clients.
    pub load: &'static SigkillLoad,
    /// The seed of the workload.
    pub seed: u64,
    /// Numbers of the rounds to run.
    pub rounds: Vec<u64>,
    /// The bug to plant in every round.
    pub plant: Option<PlantedBug>,
    /// The proxy's memory in even and in odd rounds.
    pub memory: [String; 2],
    /// Further arguments of the proxy.
    pub arguments: Vec<String>,
    /// If given, the process is killed not after a time but at the n-th of these system calls of a thread; n is drawn
    /// for each round. The names are in `strace`'s form, with commas.
    pub kill_at_calls: Option<String>,
}

impl SigkillCampaign {
    /// Rounds `0..count` with the default memory.
    pub fn new(load: &'static SigkillLoad, seed: u64, count: u64) -> Self {
        let memory = ["128M".to_owned(), "16M".to_owned()];
        Self {
            load,
            seed,
            rounds: (0..count).collect(),
            plant: None,
            memory,
            arguments: Vec::new(),
            kill_at_calls: None,
        }
    }
}

/// The results of one round.
#[derive(Clone, Debug)]
pub struct RoundReport {
    /// Its number.
    pub round: u64,
    /// All counts, under load and after the restart.
    pub tally: ClientTally,
    /// The number of keys of the model.
    pub keys: usize,
    /// The written sequence that was read before the kill.
    pub written: u64,
    /// The last sequence at that time.
    pub last: u64,
    /// The number of cycles that the ring completed under load.
    pub laps: f64,
    /// Whether the bug of the campaign was planted.
    pub is_planted: bool,
    /// The time from exec to the first hit; `None` if no key had to hit.
    pub first_hit: Option<Duration>,
}

/// The first hits that must come in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InTime {
    /// The first hit of each round.
    #[default]
    Every,
    /// The median of all rounds: on a busy machine some first hits are late without a fault of the proxy.
    Median,
}

/// The results of all rounds.
#[derive(Clone, Debug)]
pub struct SigkillSummary {
    /// The load of the clients.
    pub load: &'static SigkillLoad,
    /// The number of rounds that were run.
    pub rounds: u64,
    /// The number of cycles that the ring completed.
    pub laps: f64,
    /// The sums of all counts.
    pub tally: ClientTally,
    /// The time from exec to the first hit, in each round that had one.
    pub first_hits: Vec<Duration>,
    /// The counts after the clean stop at the end, with the keys that missed or were wrong.
    pub after_stop: ClientTally,
}

impl SigkillSummary {
    /// The errors, in words; empty if there are none.
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
        if total.cut_short as f64 > CUT_SHORT_SHARE_MAX * total.requests as f64 {
            problems.push(format!("cut short: {} of {} answers", total.cut_short, total.requests));
        }
        let [key, tag, prefix, all] = total.purges.map(|count| count as f64);
        let [key_min, tag_min, prefix_min, all_min] = self.load.purges_min;
        let least = [
            ("keys demanded", total.demanded as f64, self.load.demanded_min as f64),
            ("purged keys checked", total.forbidden as f64, 1.0),
            ("laps", self.laps, self.load.laps_min),
            ("purges by key", key, key_min),
            ("purges by tag", tag, tag_min),
            ("purges by prefix", prefix, prefix_min),
            ("purges of everything", all, all_min),
        ];
        for (what, count, a_round) in least {
            let least = a_round * self.rounds as f64;
            if count < least {
                problems.push(format!("{what}: {count:.1} in {} rounds, at least {least:.1} wanted", self.rounds));
            }
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

    /// The median time from exec to the first hit; for an even number of rounds, the upper one of the middle two.
    pub fn first_hit_median(&self) -> Duration {
        let mut sorted = self.first_hits.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).copied().unwrap_or_default()
    }

    fn add(&mut self, report: &RoundReport) {
        self.rounds += 1;
        self.laps += report.laps;
        self.tally.add(&report.tally);
        self.first_hits.extend(report.first_hit);
    }
}

/// Runs the campaign; `report` receives every round.
///
/// Call it from a thread that lives as long as the campaign: the proxies are killed when this thread ends.
pub fn run(campaign: &SigkillCampaign, mut report: impl FnMut(&RoundReport) -> Result<()>) -> Result<SigkillSummary> {
    let scratch = ScratchFolder::new("sigkill")?;
    let mut runner = SigkillRunner::new(campaign, &scratch)?;
    let mut summary = SigkillSummary {
        load: campaign.load,
        rounds: 0,
        laps: 0.0,
        tally: ClientTally::default(),
        first_hits: Vec::new(),
        after_stop: ClientTally::default(),
    };
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

/// Plants every bug in a separate round, and prints the result; true if each was reported correctly.
pub fn run_planted(load: &'static SigkillLoad, seed: u64) -> Result<bool> {
    let mut good = true;
    for (index, (name, plant)) in PlantedBug::ALL.into_iter().enumerate() {
        let (mut total, mut last) = (ClientTally::default(), (0, 0));
        for attempt in 0..PLANT_ATTEMPTS_MAX {
            let seed = seed + 1 + index as u64 + attempt * PlantedBug::ALL.len() as u64;
            let campaign = SigkillCampaign { plant: Some(plant), ..SigkillCampaign::new(load, seed, 1) };
            let mut is_planted = false;
            total = run(&campaign, |report| {
                is_planted = report.is_planted;
                last = (seed, report.round);
                Ok(())
            })?
            .tally;
            // After a late purge of everything, no key may be where the zeros are. Each other bug concerns a certain key.
            if is_planted && (plant != PlantedBug::ZeroedStore || plant.is_told_by(&total)) {
                break;
            }
        }
        let is_caught = plant.is_told_by(&total);
        good &= is_caught;
        let how = if is_caught { "caught" } else { "SURVIVED" };
        let (seed, round) = last;
        println!(
            "planted: {name}: {how} with seed {seed}, round {round} (missing {}, wrong {})",
            total.missing, total.wrong
        );
        total.complaints.iter().filter(|_| !is_caught).for_each(|complaint| println!("    {complaint}"));
    }
    Ok(good)
}

/// The sums in one line, printed at the end.
pub fn describe(summary: &SigkillSummary) -> String {
    let (total, stop) = (&summary.tally, &summary.after_stop);
    let [key, tag, prefix, all] = total.purges;
    format!(
        "sigkill: {} rounds: missing {}, wrong {}, lost alive {}, cut short {}; demanded {}, purged and checked {}, requests {}, replaced {}; \
         purges {key} by key, {tag} by tag, {prefix} by prefix, {all} of everything; {:.1} laps; first hit {} ms after \
         exec in the median, at most {}; after a clean stop: demanded {}, missing {}, wrong {}",
        summary.rounds,
        total.missing,
        total.wrong,
        total.lost_alive,
        total.cut_short,
        total.demanded,
        total.forbidden,
        total.requests,
        total.replaced,
        summary.laps,
        summary.first_hit_median().as_millis(),
        summary.first_hit_max().as_millis(),
        stop.demanded,
        stop.missing,
        stop.wrong,
    )
}
