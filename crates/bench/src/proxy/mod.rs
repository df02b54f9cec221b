//! `bench proxy`: caching proxies over HTTP, all in one run, with equal memory and equal disks.
//!
//! Owns: the order of the stages. Each proxy has a memory group, which also counts its page cache, a disk (a file on
//! the measured device and a loop device with direct I/O), and one processor; the load and the origin have another.
//! Stages: a set of objects that fits in memory; a set of four times the memory, from disk; the replay of a workload
//! with an empty cache, and SIGKILL behind it; requests with two meanings; the suite for HTTP caches. Promises: every
//! body of the replay and of warming is compared as a whole, the others by length and first bytes; a wrong one makes the
//! run void. A peer that is not there, or fails, is named with the reason and not left out silently. Leaves to others:
//! the suite itself (`e2e-campaigns cache-tests`).
//!
//! | file | what is in it |
//! |---|---|
//! | `plan` | options, sizes, contenders |
//! | `peer`, `peers/` | programs, versions, configurations with the source of each line |
//! | `site` | disks, memory groups, roots of other releases, processes |
//! | `origin`, `load`, `answer`, `objects` | the origin, the load with planned times, an answer, sets of objects |
//! | `steady`, `replay` | the stages with a load |
//! | `payloads`, `strict`, `smuggling` | requests with two meanings, the rule for them, the stage |
//! | `cache_tests` | the suite for HTTP caches |
//! | `results`, `text`, `pictures` | figures and rows, tables for the terminal, pictures from the JSON |

mod answer;
mod cache_tests;
mod load;
mod objects;
mod origin;
mod payloads;
mod peer;
mod pictures;
mod plan;
mod replay;
mod results;
mod site;
mod smuggling;
mod steady;
mod strict;
mod text;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::guardian::Guardian;
use crate::store::RunProgress;
use crate::{Error, ExperimentErrorKind, ExperimentReport, machine, sys};

pub use peer::ProxyKind;
pub(crate) use pictures::STEADY_STAGES;
pub use pictures::pictures;
pub use plan::{BenchProxyOptions, ProxyPlan};
pub(crate) use results::suite_figure;

use cache_tests::SuiteResults;
use objects::ObjectSet;
use origin::BenchOrigin;
use peer::ProxyStorage;
use plan::AGAIN;
use results::{ProxyResults, SteadyStage};
use site::{ProxyContender, ProxySite, RunningProxy};
use smuggling::{PayloadOrigin, SmugglingResult};

/// The processor of the load and the origin.
const LOAD_PROCESSOR: usize = 1;
/// The first numbers of the objects of each stage, so that no two stages share an object.
const SMALL_FIRST: u32 = 1 << 30;
const LARGE_FIRST: u32 = 1 << 31;
/// The directory of the later release beside this program, which `ci/setup peers` makes.
const PEERS: &str = "tools/debian13";

/// The experiments, each with its subject and its approximate duration.
pub const EXPERIMENTS: [(&str, &str, &str); 2] = [
    ("bench proxy --folder DIR --quick", "a look at all proxies that are installed, without verdicts", "2 minutes"),
    (
        "bench proxy --folder DIR",
        "proxies beside nginx, Varnish, Squid, HAProxy and Traffic Server: rates, latencies, hit rates, SIGKILL, conformance",
        "1 hour",
    ),
];

/// The root of a later release with peers, if `ci/setup peers` has made it beside this program.
pub fn find_peers(program: &Path) -> Option<PathBuf> {
    let root = program.ancestors().map(|folder| folder.join(PEERS)).find(|root| root.join("usr/sbin").is_dir())?;
    // Programs that were unpacked without their root's set-up cannot be run in it.
    root.join("etc/passwd").is_file().then_some(root)
}

/// A run in progress.
struct ProxyRun<'a> {
    plan: &'a ProxyPlan,
    site: ProxySite,
    guardian: Guardian,
    origin: BenchOrigin,
    progress: &'a mut (dyn FnMut(&RunProgress) + Send),
    done: u64,
    of: u64,
    failures: Vec<String>,
}

/// Runs a plan; `nectary` is the path of this program.
///
/// It gives the calling thread its own mounts and, with two processors, one of them; the thread must live as long as the
/// process. *Errors*: [`ExperimentErrorKind::Void`] for a wrong byte; [`ExperimentErrorKind::Missing`] if this machine
/// cannot run the plan.
pub fn run(
    plan: &ProxyPlan,
    nectary: &Path,
    progress: &mut (dyn FnMut(&RunProgress) + Send),
) -> Result<ExperimentReport, Error> {
    machine::check()?;
    let _ = nectary_attach::release_stale();
    let began = Instant::now();
    let mut command = Command::new(nectary);
    command.args(["bench", "guardian"]);
    let mut guardian = Guardian::start(command)?;
    let named = &plan.options.folder;
    let folder = std::fs::canonicalize(named).map_err(|error| Error::failed(named.display(), error))?;
    let base = folder.join(format!("nectary-bench-proxy-{}", std::process::id()));
    guardian.make_folder(&base)?;
    let runtime = PathBuf::from(format!("/dev/shm/nectary-bench-proxy-{}", std::process::id()));
    guardian.guard(&runtime)?;
    let is_pinned = std::thread::available_parallelism().is_ok_and(|count| count.get() > LOAD_PROCESSOR);
    let mut roots: Vec<PathBuf> = plan.contenders.iter().filter_map(|one| one.program.root.clone()).collect();
    roots.dedup();
    let origin = || {
        if is_pinned {
            sys::run_on(LOAD_PROCESSOR);
        }
        BenchOrigin::start()
    };
    let started = origin().and_then(|origin| {
        let site = ProxySite {
            nectary: nectary.to_owned(),
            base,
            runtime,
            origin: origin.address(),
            memory_bytes: plan.memory_bytes,
            connections: plan.steady.connections,
            is_pinned,
        };
        site.begin(&roots).map(|()| (site, origin))
    });
    let (site, origin) = match started {
        Ok(started) => started,
        Err(error) => {
            guardian.finish();
            return Err(error);
        }
    };
    // Each contender is started five times, loaded twice a round in two stages, replayed, and gets the payloads.
    let of = plan.contenders.len() as u64 * (5 + 4 * plan.steady.rounds as u64 + 5) + 2;
    let mut run = ProxyRun { plan, site, guardian, origin, progress, done: 0, of, failures: Vec::new() };
    let results = run.all();
    let ProxyRun { guardian, failures, .. } = run;
    guardian.finish();
    let (results, took) = (results?, began.elapsed());
    let not_run: Vec<&String> = plan.not_run.iter().chain(&failures).collect();
    let figures = results::figures(plan, &results);
    let text = text::text(plan, &results, &figures, &not_run, took);
    Ok(results::report(plan, &results, figures, &not_run, (text, took)))
}

impl ProxyRun<'_> {
    fn all(&mut self) -> Result<ProxyResults, Error> {
        let memory = self.steady(ProxyStorage::Memory, self.plan.small_bytes, SMALL_FIRST)?;
        let pressure = self.steady(ProxyStorage::Disk, self.plan.large_bytes, LARGE_FIRST)?;
        let mut replays = Vec::new();
        for contender in &self.plan.contenders {
            let disk_bytes = self.plan.replay_disk_bytes;
            let Some(mut proxy) = self.start(contender, ProxyStorage::Disk, disk_bytes)? else { continue };
            let (plan, counts) = (self.plan, self.origin.counts().clone());
            let mut step = |what: &str| self.step(what);
            let result = replay::run(&mut proxy, &plan.requests, &plan.restart, &counts, &mut step);
            if let Some(result) = self.kept(contender, result)? {
                replays.push(result);
            }
        }
        let smuggling = self.smuggling()?;
        let suite = self.suite()?;
        self.step("done");
        Ok(ProxyResults { memory, pressure, replays, smuggling, suite })
    }

    /// Sends requests with two meanings through each proxy. The second Nectary would say the same.
    fn smuggling(&mut self) -> Result<Vec<SmugglingResult>, Error> {
        let origin = PayloadOrigin::start(smuggling::ORIGIN_WAIT)?;
        self.site.origin = origin.address();
        let mut results = Vec::new();
        for contender in self.plan.contenders.iter().filter(|one| one.name != AGAIN) {
            let disk_bytes = self.plan.disk_bytes(self.plan.small_bytes);
            let Some(proxy) = self.start(contender, ProxyStorage::Memory, disk_bytes)? else { continue };
            self.step(&format!("{}: requests with two meanings", contender.name));
            let result = smuggling::run(&proxy.name, proxy.address, &origin);
            // The origin's threads end with the connections of the proxy.
            drop(proxy);
            results.extend(self.kept(contender, result)?);
        }
        Ok(results)
    }

    /// Runs the suite for HTTP caches in front of all proxies at once, because it mostly waits.
    fn suite(&mut self) -> Result<SuiteResults, Error> {
        let (program, suite) = match &self.plan.suite {
            Ok(suite) => suite.clone(),
            Err(_) => return Ok(SuiteResults::default()),
        };
        self.site.origin = site::free_address()?;
        let mut proxies = Vec::new();
        for contender in self.plan.contenders.iter().filter(|one| one.kind != ProxyKind::Nectary) {
            let disk_bytes = self.plan.disk_bytes(self.plan.small_bytes);
            proxies.extend(self.start(contender, ProxyStorage::Memory, disk_bytes)?);
        }
        self.step("the suite for HTTP caches, about three minutes");
        let peers: Vec<_> = proxies.iter().map(|proxy| (proxy.name.clone(), proxy.address)).collect();
        match cache_tests::run(&program, &suite, &self.site.nectary, self.site.origin, &peers) {
            Ok(results) => Ok(results),
            Err(error) => {
                self.failures.push(format!("cache-tests: NOT RUN: {error}"));
                Ok(SuiteResults::default())
            }
        }
    }

    /// Runs a stage at a steady state with a set of objects of so many bytes.
    fn steady(&mut self, storage: ProxyStorage, set_bytes: u64, first: u32) -> Result<SteadyStage, Error> {
        let set = ObjectSet::new(set_bytes, first, self.plan.options.seed);
        let counts = self.origin.counts().clone();
        let mut proxies = Vec::new();
        for contender in &self.plan.contenders {
            if storage == ProxyStorage::Disk && !contender.kind.has_disk() {
                continue;
            }
            let Some(proxy) = self.start(contender, storage, self.plan.disk_bytes(set_bytes))? else { continue };
            let warmed = steady::warm(&proxy, &set, &counts);
            if self.kept(contender, warmed)?.is_some() {
                proxies.push(proxy);
            }
        }
        let plan = self.plan.steady;
        let mut step = |what: &str| self.step(what);
        let (results, rate) = steady::run(&plan, &proxies, &set, &counts, &mut step)?;
        let resident = proxies.iter().map(|proxy| (proxy.name.clone(), proxy.usage())).collect();
        Ok(SteadyStage { results, rate, resident, set_bytes: set.bytes(), objects: set.objects.len() })
    }

    fn start(
        &mut self,
        contender: &ProxyContender,
        storage: ProxyStorage,
        disk_bytes: u64,
    ) -> Result<Option<RunningProxy>, Error> {
        self.step(&format!("{}: starting", contender.name));
        let started = self.site.start(contender, storage, disk_bytes, &mut self.guardian);
        self.kept(contender, started)
    }

    /// A peer that fails is named and left out; Nectary, and a wrong byte, end the run.
    fn kept<T>(&mut self, contender: &ProxyContender, result: Result<T, Error>) -> Result<Option<T>, Error> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error) if contender.kind == ProxyKind::Nectary || error.kind == ExperimentErrorKind::Void => Err(error),
            Err(error) => {
                self.failures.push(format!("{}: NOT RUN: {error}", contender.name));
                Ok(None)
            }
        }
    }

    fn step(&mut self, what: &str) {
        (self.progress)(&RunProgress { done: self.done.min(self.of), of: self.of, what: what.to_owned() });
        self.done += 1;
    }
}
