//! The plan of a run: which proxies, which sizes, which requests.
//!
//! Owns: the options, the refusal of wrong ones, and the sizes that follow from the memory of a proxy.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::cache_tests;
use super::peer::ProxyKind;
use super::replay::RestartPlan;
use super::site::ProxyContender;
use super::steady::SteadyPlan;
use crate::workload::{LogWorkload, ProxyRequest, WorkloadPreset, WorkloadSource, WorkloadTotals};
use crate::{Error, ExperimentErrorKind};

/// The size of each memory group, in a full run and in a quick one, and the smallest. *Units*: bytes.
const MEMORY_BYTES: u64 = 256 << 20;
const MEMORY_BYTES_QUICK: u64 = 128 << 20;
const MEMORY_BYTES_MIN: u64 = 64 << 20;
/// The set that fits in memory has a part of it; the other set is so many times as large.
const SMALL_PART: u64 = 4;
const LARGE_TIMES: u64 = 4;
/// The smallest disk. *Units*: bytes; Traffic Server needs 128 MiB.
const DISK_BYTES_MIN: u64 = 192 << 20;
/// The share of the replayed workload's distinct bytes that the disk of the replay has: that of the seed's smallest disk.
const REPLAY_DISK_SHARE: f64 = 4.0 / 14.3;
/// The scale of the drawn workload, and the requests of a quick run.
const REPLAY_SCALE: f64 = 1.0 / 8.0;
const REPLAY_REQUESTS_QUICK: u64 = 20_000;
const REPLAY_REQUESTS_MIN: u64 = 1000;
/// Rounds and seconds of each load.
const ROUNDS: usize = 5;
const ROUNDS_QUICK: usize = 1;
const SECONDS: u64 = 10;
const SECONDS_QUICK: u64 = 1;
/// The shortest loads that get verdicts. *Units*: seconds.
const SECONDS_JUDGED: u64 = 3;
/// The load after a restart.
const RESTART: RestartPlan = RestartPlan { per_s: 400.0, seconds: 20 };
const RESTART_QUICK: RestartPlan = RestartPlan { per_s: 400.0, seconds: 4 };
/// The connections of a load.
const CONNECTIONS: usize = 64;
/// The name of the second Nectary, which shows the noise.
pub(super) const AGAIN: &str = "nectary-again";

/// The options of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct BenchProxyOptions {
    /// A look, without verdicts.
    pub quick: bool,
    /// Only Nectary and the proxies whose names contain one of these; all if the list is empty.
    pub only: Vec<String>,
    /// A directory on the device to be measured.
    pub folder: PathBuf,
    /// The root of a later release that has peers, if it is there.
    pub peers: Option<PathBuf>,
    /// The laws of the replayed requests.
    pub workload: WorkloadPreset,
    /// An access log that is replayed instead.
    pub log: Option<PathBuf>,
    /// The seed of the requests.
    pub seed: u64,
    /// The number of rounds of each load.
    pub rounds: Option<usize>,
    /// The length of each load, in seconds.
    pub seconds: Option<u64>,
    /// The size of each memory group, in bytes.
    pub memory_bytes: Option<u64>,
    /// The most requests that are replayed.
    pub requests: Option<u64>,
    /// The suite for HTTP caches: a package of npm, or a directory with a clone; a quick run needs one to run it.
    pub suite: Option<String>,
}

/// A whole run.
#[derive(Debug, Clone)]
pub struct ProxyPlan {
    /// The options.
    pub options: BenchProxyOptions,
    /// The proxies; the first two are Nectary.
    pub(super) contenders: Vec<ProxyContender>,
    /// The proxies that are not there, with the reason.
    pub not_run: Vec<String>,
    /// The size of each memory group, in bytes.
    pub memory_bytes: u64,
    /// The objects that fit in memory, in bytes.
    pub small_bytes: u64,
    /// The objects that do not, in bytes.
    pub large_bytes: u64,
    pub(super) requests: Arc<[ProxyRequest]>,
    /// The totals of the replayed requests.
    pub totals: WorkloadTotals,
    /// Where the replayed requests come from.
    pub source: WorkloadSource,
    /// The disk of the replay, in bytes.
    pub replay_disk_bytes: u64,
    pub(super) steady: SteadyPlan,
    pub(super) restart: RestartPlan,
    /// The program that runs the suite for HTTP caches, and the suite; or why it does not run.
    pub(super) suite: Result<(PathBuf, String), String>,
}

impl ProxyPlan {
    /// Makes the plan of a run; `nectary` is the path of this program.
    ///
    /// *Errors*: [`ExperimentErrorKind::Usage`] for numbers out of bounds, unknown names, and a log that is none.
    pub fn new(options: BenchProxyOptions, nectary: &Path) -> Result<ProxyPlan, Error> {
        let usage = |message: String| Error::new(ExperimentErrorKind::Usage, message);
        let of_length = |full, quick| if options.quick { quick } else { full };
        let memory_bytes = options.memory_bytes.unwrap_or(of_length(MEMORY_BYTES, MEMORY_BYTES_QUICK));
        if memory_bytes < MEMORY_BYTES_MIN {
            return Err(usage(format!("{memory_bytes} bytes of memory are too few: {MEMORY_BYTES_MIN} at least")));
        }
        let rounds = options.rounds.unwrap_or(if options.quick { ROUNDS_QUICK } else { ROUNDS });
        let seconds = options.seconds.unwrap_or(of_length(SECONDS, SECONDS_QUICK));
        if rounds == 0 || rounds > 100 || seconds == 0 || seconds > 3600 {
            return Err(usage("1 to 100 rounds, each of 1 to 3600 seconds".to_owned()));
        }
        let is_known = |part: &String| ProxyKind::ALL.iter().any(|kind| kind.name().contains(part.as_str()));
        if let Some(part) = options.only.iter().find(|part| !is_known(part)) {
            let known: Vec<&str> = ProxyKind::ALL.iter().map(|kind| kind.name()).collect();
            return Err(usage(format!("no proxy has \"{part}\" in its name; there are {}", known.join(", "))));
        }
        let (contenders, mut not_run) = contenders(&options, nectary);
        let suite = suite(&options, nectary);
        not_run.extend(suite.as_ref().err().map(|why| format!("cache-tests: NOT RUN: {why}")));
        let source = match &options.log {
            Some(path) => WorkloadSource::Log(Arc::new(LogWorkload::read(path)?)),
            None => WorkloadSource::Laws(options.workload.laws(options.seed, REPLAY_SCALE)),
        };
        let most = options.requests.unwrap_or(of_length(u64::MAX, REPLAY_REQUESTS_QUICK));
        if most < REPLAY_REQUESTS_MIN {
            return Err(usage(format!("{most} requests are too few to replay: {REPLAY_REQUESTS_MIN} at least")));
        }
        let count = most.min(source.count());
        let requests: Arc<[ProxyRequest]> = source.requests().take(count as usize).collect();
        let totals = WorkloadTotals::of(&requests);
        let replay_disk_bytes = ((totals.unique_bytes as f64 * REPLAY_DISK_SHARE) as u64).max(DISK_BYTES_MIN);
        let restart = if options.quick { RESTART_QUICK } else { RESTART };
        Ok(ProxyPlan {
            contenders,
            not_run,
            memory_bytes,
            small_bytes: memory_bytes / SMALL_PART,
            large_bytes: memory_bytes * LARGE_TIMES,
            requests,
            totals,
            source,
            replay_disk_bytes: replay_disk_bytes.next_multiple_of(1 << 20),
            steady: SteadyPlan { connections: CONNECTIONS, rounds, seconds },
            restart,
            suite,
            options,
        })
    }

    /// The disk for a set of objects: half as large again, and at least what all proxies accept.
    pub(super) fn disk_bytes(&self, set_bytes: u64) -> u64 {
        (set_bytes + set_bytes / 2).max(DISK_BYTES_MIN).next_multiple_of(1 << 20)
    }

    /// Whether figures get verdicts.
    pub(super) fn is_judged(&self) -> bool {
        !self.options.quick && self.steady.rounds >= ROUNDS && self.steady.seconds >= SECONDS_JUDGED
    }
}

/// The program that runs the suite for HTTP caches, and the suite.
fn suite(options: &BenchProxyOptions, nectary: &Path) -> Result<(PathBuf, String), String> {
    match &options.suite {
        None if options.quick => Err("a quick run leaves it out, unless --suite names it".to_owned()),
        named => {
            let suite = named.clone().unwrap_or_else(|| cache_tests::PACKAGE.to_owned());
            cache_tests::find(nectary).map(|program| (program, suite))
        }
    }
}

fn contenders(options: &BenchProxyOptions, nectary: &Path) -> (Vec<ProxyContender>, Vec<String>) {
    let is_named = |kind: ProxyKind| {
        kind == ProxyKind::Nectary
            || options.only.is_empty()
            || options.only.iter().any(|part| kind.name().contains(part.as_str()))
    };
    let (mut contenders, mut not_run) = (Vec::new(), Vec::new());
    for kind in ProxyKind::ALL.into_iter().filter(|kind| is_named(*kind)) {
        match kind.find(nectary, options.peers.as_deref()) {
            Err(why) => not_run.push(format!("{}: NOT RUN: {why}", kind.name())),
            Ok(program) => {
                let version = kind.version(&program);
                let contender = ProxyContender { name: kind.name().to_owned(), kind, program, version };
                contenders.push(contender.clone());
                if kind == ProxyKind::Nectary {
                    contenders.push(ProxyContender { name: AGAIN.to_owned(), ..contender });
                }
            }
        }
    }
    (contenders, not_run)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> BenchProxyOptions {
        BenchProxyOptions {
            quick: true,
            only: Vec::new(),
            folder: ".".into(),
            peers: None,
            workload: WorkloadPreset::Seed,
            log: None,
            seed: 1,
            rounds: None,
            seconds: None,
            memory_bytes: None,
            requests: None,
            suite: None,
        }
    }

    fn plan(options: BenchProxyOptions) -> Result<ProxyPlan, Error> {
        ProxyPlan::new(options, Path::new("/nowhere/nectary"))
    }

    /// Every proxy runs, or is named with its package.
    #[test]
    fn proxy_plan_names_every_peer() {
        let all = plan(options()).expect("a plan");
        let (suite, peers): (Vec<&String>, Vec<&String>) =
            all.not_run.iter().partition(|line| line.starts_with("cache-tests: NOT RUN: "));
        assert_eq!(all.contenders.len() + peers.len(), ProxyKind::ALL.len() + 1);
        assert!(peers.iter().all(|line| line.contains("NOT RUN: ") && line.contains("Debian package")));
        assert!(suite.len() == 1 && suite[0].contains("--suite"), "{suite:?}");
        let names: Vec<&str> = all.contenders.iter().map(|one| one.name.as_str()).take(2).collect();
        assert_eq!((names, all.is_judged()), (vec!["nectary", AGAIN], false));
        let only = plan(BenchProxyOptions { only: vec!["nectary".to_owned()], ..options() }).expect("a plan");
        assert_eq!(only.contenders.len(), 2);
    }

    /// A full run, or one that names a suite, needs the program that runs it.
    #[test]
    fn proxy_plan_names_missing_suite() {
        let named = BenchProxyOptions { suite: Some("clone".to_owned()), ..options() };
        let full = BenchProxyOptions { quick: false, requests: Some(1000), ..options() };
        for options in [named, full] {
            let missing = plan(options).expect("a plan").not_run.pop().expect("a reason");
            assert!(missing.contains("cargo build --release -p nectary-e2e"), "{missing}");
        }
    }

    /// The large set has four times the memory, and the disk of the replay the seed's share of the workload.
    #[test]
    fn proxy_plan_sizes_follow_memory() {
        let all = plan(BenchProxyOptions { memory_bytes: Some(512 << 20), ..options() }).expect("a plan");
        assert_eq!((all.small_bytes, all.large_bytes, all.requests.len()), (128 << 20, 2 << 30, 20_000));
        assert!(all.disk_bytes(all.large_bytes) > all.large_bytes * 4 / 3);
        assert_eq!(all.totals.requests, 20_000);
        let least = plan(BenchProxyOptions { requests: Some(REPLAY_REQUESTS_MIN), ..options() }).expect("a plan");
        assert_eq!(least.totals.requests, REPLAY_REQUESTS_MIN);
    }

    /// The loads of a whole run have verdicts, shorter ones and fewer rounds have none.
    #[test]
    fn proxy_plan_judges_long_runs() {
        let judged = |rounds, seconds| {
            let (rounds, seconds) = (Some(rounds), Some(seconds));
            let options = BenchProxyOptions { quick: false, requests: Some(1000), rounds, seconds, ..options() };
            plan(options).expect("a plan").is_judged()
        };
        assert!(judged(ROUNDS, SECONDS_JUDGED) && judged(ROUNDS, SECONDS));
        assert!(!judged(ROUNDS - 1, SECONDS) && !judged(ROUNDS, SECONDS_JUDGED - 1));
    }

    #[test]
    fn proxy_plan_refuses_wrong_options() {
        for wrong in [
            BenchProxyOptions { only: vec!["apache".to_owned()], ..options() },
            BenchProxyOptions { rounds: Some(0), ..options() },
            BenchProxyOptions { seconds: Some(0), ..options() },
            BenchProxyOptions { memory_bytes: Some(1 << 20), ..options() },
            BenchProxyOptions { requests: Some(REPLAY_REQUESTS_MIN - 1), ..options() },
            BenchProxyOptions { log: Some("/dev/null".into()), ..options() },
        ] {
            assert_eq!(plan(wrong).expect_err("refused").kind, ExperimentErrorKind::Usage);
        }
        let unknown = BenchProxyOptions { only: vec!["apache".to_owned()], ..options() };
        assert!(plan(unknown).expect_err("refused").message.contains("trafficserver"));
    }
}
