//! Measures requests per second from memory with one worker, and compares Nectary with nginx and Varnish in paired
//! rounds in alternating order.
//!
//! Owns the contestants, the workloads and the rounds. Every server runs pinned to one processor and `wrk` with one
//! thread on another. All contestants run and are warm the whole time; only the measured one is busy. In each round
//! every contestant is measured once; the order is reversed in every second round. Ratios are computed within a round,
//! so that a change of the machine's speed cancels out. Nectary runs twice: the ratio of the two shows the noise.

use crate::guard::{self, GuardedProcess};
use crate::http::{HttpConnection, wait_listening};
use crate::load::wrk::{self, WrkResult, WrkSettings};
use crate::nectary::{NectaryProxy, ProxyCommand};
use crate::origin::DeterministicOrigin;
use crate::peers::PeerProxy;
use crate::report::ValueSpread;
use crate::rng::{SeededRng, Zipf};
use crate::scratch::{ScratchFolder, free_address};
use anyhow::{Context, Result, bail};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The number of connections of the load.
const CONNECTIONS: usize = 64;
/// The number of objects of the mix.
const MIX_OBJECTS: usize = 20_000;
/// The number of requests of the mix before it repeats.
const MIX_REQUESTS: usize = 200_000;
/// The exponent of the mix's Zipf law.
const MIX_EXPONENT: f64 = 0.9;

/// The requests.
#[derive(Clone, Debug)]
pub struct BenchWorkload {
    /// Name for the report.
    pub name: String,
    /// All targets.
    pub targets: Vec<String>,
    /// Indices of `targets`, in the order of requests.
    pub order: Vec<usize>,
}

impl BenchWorkload {
    /// One object of this size.
    pub fn object(bytes: u64) -> Self {
        let name = format!("one object of {} KiB", bytes as f64 / 1024.0);
        Self { name, targets: vec![format!("/o/1?size={bytes}")], order: vec![0] }
    }

    /// 20,000 objects that are requested by a Zipf law. Their sizes are log-normal, from 200 bytes to 64 KiB with a
    /// median of 4 KiB.
    pub fn mix(seed: u64) -> Self {
        let mut rng = SeededRng::new(seed);
        let targets = (0..MIX_OBJECTS).map(|id| {
            let normal = (-2.0 * (1.0 - rng.unit()).ln()).sqrt() * (std::f64::consts::TAU * rng.unit()).cos();
            let bytes = ((8.3 + 1.2 * normal).exp() as u64).clamp(200, 64 << 10);
            format!("/m/{id}?size={bytes}")
        });
        let targets = targets.collect();
        let zipf = Zipf::new(MIX_OBJECTS, MIX_EXPONENT);
        let order = (0..MIX_REQUESTS).map(|_| zipf.sample(&mut rng)).collect();
        Self { name: "Zipf mix of 20,000 objects".to_owned(), targets, order }
    }
}

/// How to measure.
#[derive(Clone, Debug)]
pub struct PairedRoundsPlan {
    /// The number of rounds.
    pub rounds: usize,
    /// The duration of one measurement.
    pub duration: Duration,
    /// The number of threads of Varnish.
    pub varnish_threads: usize,
    /// A program that answers `GET /` on the address given as its argument, to show the best case.
    pub floor: Option<PathBuf>,
    /// Further arguments of Nectary.
    pub arguments: Vec<String>,
}

/// The positions of the peers among the contestants: nginx, nginx tuned, Varnish.
pub const PEERS: std::ops::Range<usize> = 2..5;

/// A server that is measured.
#[derive(Debug)]
struct BenchContestant {
    name: String,
    address: SocketAddr,
    /// Whether the contestant caches. A cache must be warm before it is measured, and must not contact the origin after
    /// that.
    caches: bool,
    server: ContestantServer,
}

/// The handle that keeps a contestant running.
#[derive(Debug)]
enum ContestantServer {
    Nectary(NectaryProxy),
    Peer(PeerProxy),
    Floor(GuardedProcess),
}

impl ContestantServer {
    fn process(&self) -> &GuardedProcess {
        match self {
            ContestantServer::Nectary(nectary) => &nectary.process,
            ContestantServer::Peer(peer) => peer.process(),
            ContestantServer::Floor(process) => process,
        }
    }
}

/// The measurements of one contestant, by round.
#[derive(Clone, Debug)]
pub struct ContestantSeries {
    /// The measured server.
    pub name: String,
    /// One measurement per round.
    pub measured: Vec<WrkResult>,
    /// The server's processor time, in nanoseconds, by round.
    pub cpu_ns: Vec<u64>,
}

impl ContestantSeries {
    /// Requests per second of the server's processor time, by round: the server's rate if its processor were the only
    /// limit.
    pub fn rates_of_cpu(&self) -> Vec<f64> {
        let pairs = self.measured.iter().zip(&self.cpu_ns);
        pairs.map(|(measured, ns)| measured.requests as f64 * 1e9 / (*ns).max(1) as f64).collect()
    }

    /// The share of the time in which the server used its processor, by round; below 1, something else was the limit.
    pub fn busy_shares(&self) -> Vec<f64> {
        let pairs = self.rates().into_iter().zip(self.rates_of_cpu());
        pairs.map(|(rate, rate_of_cpu)| rate / rate_of_cpu).collect()
    }

    /// Requests per second, by round.
    pub fn rates(&self) -> Vec<f64> {
        self.measured.iter().map(|measured| measured.requests_per_second).collect()
    }

    /// The number of errors that wrk reported.
    pub fn errors(&self) -> u64 {
        self.measured.iter().map(|measured| measured.errors).sum()
    }
}

/// The results of one workload. The first series is Nectary, the second is Nectary again.
#[derive(Clone, Debug)]
pub struct WorkloadOutcome {
    /// The workload's name.
    pub workload: String,
    /// All contestants.
    pub series: Vec<ContestantSeries>,
    /// The number of requests that reached the origin while hits were measured; it must be 0.
    pub origin_requests: u64,
}

impl WorkloadOutcome {
    /// Nectary's rate divided by that of the contestant at this index.
    pub fn ratio(&self, index: usize) -> ValueSpread {
        ValueSpread::of_ratios(&self.series[0].rates(), &self.series[index].rates())
    }

    /// Nectary's requests per second of processor time, divided by those of the contestant at this index.
    pub fn ratio_of_cpu(&self, index: usize) -> ValueSpread {
        ValueSpread::of_ratios(&self.series[0].rates_of_cpu(), &self.series[index].rates_of_cpu())
    }
}

/// Measures one workload on all contestants. Call it from a thread that lives as long as the measurement.
pub fn measure(
    plan: &PairedRoundsPlan,
    workload: &BenchWorkload,
    mut progress: impl FnMut(&str),
) -> Result<WorkloadOutcome> {
    let scratch = ScratchFolder::in_memory("bench")?;
    let origin = DeterministicOrigin::start()?;
    let contestants = contestants(plan, &origin, &scratch)?;
    let targets = scratch.join("targets");
    wrk::write_targets(&targets, workload.order.iter().map(|rank| workload.targets[*rank].clone()))?;
    let floor_targets = scratch.join("floor-targets");
    wrk::write_targets(&floor_targets, std::iter::once("/".to_owned()))?;
    for contestant in contestants.iter().filter(|contestant| contestant.caches) {
        warm(contestant, workload, &origin)?;
    }
    let asked_before = origin.requests();
    let mut series: Vec<ContestantSeries> = contestants
        .iter()
        .map(|one| ContestantSeries { name: one.name.clone(), measured: Vec::new(), cpu_ns: Vec::new() })
        .collect();
    for round in 0..plan.rounds {
        let mut order: Vec<usize> = (0..contestants.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for index in order {
            let contestant = &contestants[index];
            let load = WrkSettings {
                address: contestant.address,
                targets: if contestant.caches { targets.clone() } else { floor_targets.clone() },
                threads: 1,
                connections: CONNECTIONS,
                duration: plan.duration,
                cpu: Some(1),
            };
            let process = contestant.server.process();
            let before = process.cpu_ns();
            let measured = wrk::run(&load, scratch.path())?;
            series[index].cpu_ns.push(process.cpu_ns() - before);
            progress(&format!("round {round}: {} {:.0}/s", contestant.name, measured.requests_per_second));
            series[index].measured.push(measured);
        }
    }
    let origin_requests = origin.requests() - asked_before;
    Ok(WorkloadOutcome { workload: workload.name.clone(), series, origin_requests })
}

fn contestants(
    plan: &PairedRoundsPlan,
    origin: &DeterministicOrigin,
    scratch: &ScratchFolder,
) -> Result<Vec<BenchContestant>> {
    let mut contestants = Vec::new();
    for name in ["nectary", "nectary again"] {
        let folder = scratch.join(&name.replace(' ', "-"));
        std::fs::create_dir(&folder)?;
        let mut command = ProxyCommand::new(&folder, Some(origin.url()))?;
        command.size = "2G".to_owned();
        command.memory = "1G".to_owned();
        command.cpu = Some(0);
        command.arguments.extend(["--workers".to_owned(), "1".to_owned()]);
        command.arguments.extend(plan.arguments.iter().cloned());
        let nectary = command.start()?;
        let address = nectary.listen;
        contestants.push(BenchContestant {
            name: name.to_owned(),
            address,
            caches: true,
            server: ContestantServer::Nectary(nectary),
        });
    }
    let peers = [
        PeerProxy::nginx(origin.address(), false, Some(0)),
        PeerProxy::nginx(origin.address(), true, Some(0)),
        PeerProxy::varnish(origin.address(), plan.varnish_threads, Some(0)),
    ];
    for peer in peers {
        let peer = peer?;
        let (name, address) = (peer.name.clone(), peer.address);
        contestants.push(BenchContestant { name, address, caches: true, server: ContestantServer::Peer(peer) });
    }
    if let Some(program) = &plan.floor {
        let address = free_address()?;
        let mut command = Command::new(program);
        command.arg(address.to_string());
        let process = GuardedProcess::spawn("floor", command, &scratch.join("floor.log"), Some(0))?;
        wait_listening(address, Duration::from_secs(10)).with_context(|| process.log_tail())?;
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        contestants.push(BenchContestant { name, address, caches: false, server: ContestantServer::Floor(process) });
    }
    Ok(contestants)
}

/// Requests every target until no request reaches the origin any more.
fn warm(contestant: &BenchContestant, workload: &BenchWorkload, origin: &DeterministicOrigin) -> Result<()> {
    let mut client = HttpConnection::new(contestant.address, Duration::from_secs(30));
    for _ in 0..5 {
        let before = origin.requests();
        for target in &workload.targets {
            let response = client.get(target).with_context(|| format!("{}: {target}", contestant.name))?;
            if response.status != 200 {
                bail!("{}: {target}: status {}", contestant.name, response.status);
            }
        }
        if origin.requests() == before {
            return Ok(());
        }
    }
    bail!("{} still asks the origin after five rounds over {} targets", contestant.name, workload.targets.len())
}

/// The machine and programs of a measurement.
pub fn machine() -> String {
    let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpu = text("/proc/cpuinfo");
    let model =
        cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("").trim_matches([':', '\t', ' ']);
    let count = cpu.lines().filter(|line| line.starts_with("processor")).count();
    let kernel = text("/proc/sys/kernel/osrelease");
    format!("{count} x {model}, Linux {}", kernel.trim())
}

/// True if there are two processors to pin to, and `wrk` is installed.
pub fn has_two_processors() -> bool {
    Path::new("/sys/devices/system/cpu/cpu1").exists() && guard::find_program("wrk").is_some()
}
