//! Measures TLS and HTTP/2 beside nginx, one worker each: `e2e-campaigns bench-edge --rounds 5 --seconds 3`.
//!
//! In each round both servers do the same work one after the other, in alternating order, on processor 0; the load runs
//! on processor 1, and ratios are taken within a round. Nectary runs twice; the ratio of the two is the noise. A ratio is
//! that of the rates if both servers used their processor for nine tenths of the time, and else that of the rates per
//! second of the server's processor time, because then the load was the limit. The exit code is 0 only if every median
//! ratio reaches what is wanted, memory included, no request failed, and none reached the origin.
//!
//! nginx is that of Debian 13 if `ci/setup peers` has unpacked it, otherwise the one that is installed.

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use nectary_e2e::bench;
use nectary_e2e::guard::{self, GuardedProcess, find_program};
use nectary_e2e::load::h2load::{self, H2Load};
use nectary_e2e::nectary::certificates::ServerCertificates;
use nectary_e2e::nectary::{NectaryProxy, ProxyCommand};
use nectary_e2e::origin::DeterministicOrigin;
use nectary_e2e::peers::PeerProxy;
use nectary_e2e::report::ValueSpread;
use nectary_e2e::scratch::ScratchFolder;

use crate::rounds::{NotRunPolicy, ProblemCounter};

/// The share of its processor that a server must use for the rate to be its own.
const BUSY_MIN: f64 = 0.9;
/// The programs that make new connections at the same time.
const CONNECTORS: usize = 4;
/// Opens connections with TLS, makes one request on each, and keeps them.
const IDLE: &str = r#"
import socket, ssl, sys, time
host, port, count, ca = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
context = ssl.create_default_context(cafile=ca)
kept = []
for _ in range(count):
    secure = context.wrap_socket(socket.create_connection((host, port)), server_hostname=host)
    secure.sendall(b"GET /o/1?size=1024 HTTP/1.1\r\nHost: idle\r\n\r\n")
    received = b""
    while b"\r\n\r\n" not in received or len(received.split(b"\r\n\r\n", 1)[1]) < 1024:
        piece = secure.recv(65536)
        if not piece:
            sys.exit("the connection ended")
        received += piece
    kept.append(secure)
print("OPEN", len(kept), flush=True)
time.sleep(600)
"#;

/// Measures TLS and HTTP/2 beside nginx.
#[derive(Args)]
pub struct BenchEdgeArguments {
    /// Paired rounds.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Length of each measurement.
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// Idle connections whose memory is measured; 0 for none.
    #[arg(long, default_value_t = 10_000)]
    idle: usize,
    /// Print every measurement.
    #[arg(long)]
    verbose: bool,
}

/// What is measured.
#[derive(Clone, Debug)]
struct EdgeWorkload {
    name: String,
    kind: EdgeWorkloadKind,
    /// The least median ratio to nginx.
    ratio_min: f64,
}

#[derive(Clone, Debug)]
enum EdgeWorkloadKind {
    /// Requests for one object that is in memory.
    Requests { bytes: u64, is_http1: bool, connections: usize, streams: usize },
    /// New connections, each with a whole handshake and one request.
    Handshakes,
}

/// All workloads, with the ratios of the design.
fn workloads() -> Vec<EdgeWorkload> {
    let mut all = Vec::new();
    for (bytes, ratio_min) in [(1024, 1.3), (32 * 1024, 1.0)] {
        let size = format!("{} KiB", bytes / 1024);
        let requests =
            |is_http1, connections, streams| EdgeWorkloadKind::Requests { bytes, is_http1, connections, streams };
        all.push(EdgeWorkload { name: format!("HTTP/1 with TLS, {size}"), kind: requests(true, 64, 1), ratio_min });
        all.push(EdgeWorkload { name: format!("HTTP/2, 1 stream, {size}"), kind: requests(false, 64, 1), ratio_min });
        all.push(EdgeWorkload {
            name: format!("HTTP/2, 100 streams, {size}"),
            kind: requests(false, 10, 100),
            ratio_min,
        });
    }
    all.push(EdgeWorkload {
        name: "new connections with TLS".to_owned(),
        kind: EdgeWorkloadKind::Handshakes,
        ratio_min: 0.9,
    });
    all
}

/// A server that is measured.
enum EdgeServer {
    Nectary(NectaryProxy),
    Nginx(PeerProxy),
}

impl EdgeServer {
    fn process(&self) -> &GuardedProcess {
        match self {
            EdgeServer::Nectary(nectary) => &nectary.process,
            EdgeServer::Nginx(nginx) => nginx.process(),
        }
    }

    fn address(&self) -> std::net::SocketAddr {
        match self {
            EdgeServer::Nectary(nectary) => nectary.listen,
            EdgeServer::Nginx(nginx) => nginx.address,
        }
    }

    fn name(&self) -> &str {
        match self {
            EdgeServer::Nectary(_) => "nectary",
            EdgeServer::Nginx(nginx) => &nginx.name,
        }
    }
}

/// One measurement.
#[derive(Clone, Copy, Debug)]
struct EdgeMeasurement {
    per_second: f64,
    per_cpu_second: f64,
}

/// Runs the campaign.
pub fn campaign(arguments: &BenchEdgeArguments) -> Result<ExitCode> {
    let is_lacking = |program: &&str| find_program(program).is_none();
    let lacking: Vec<&str> = ["nginx", "h2load", "openssl", "python3"].into_iter().filter(is_lacking).collect();
    if !bench::has_two_processors() || !lacking.is_empty() {
        let reason = format!("it needs wrk, two processors, and {}", lacking.join(", "));
        return Ok(NotRunPolicy::Fails.exit("bench-edge", reason));
    }
    let scratch = ScratchFolder::in_memory("bench-edge")?;
    let origin = DeterministicOrigin::start()?;
    let certificates = ServerCertificates::make(scratch.path(), "localhost,127.0.0.1")?;
    let servers = [
        nectary(&scratch, "nectary", &origin, &certificates)?,
        nectary(&scratch, "again", &origin, &certificates)?,
        EdgeServer::Nginx(PeerProxy::nginx_edge(origin.address(), &certificates, Some(0))?),
    ];
    println!("bench-edge: {}, {} rounds of {} s", bench::machine(), arguments.rounds, arguments.seconds);
    println!("servers on processor 0, load on processor 1; nginx is {}", servers[2].name());
    let mut problems = ProblemCounter::default();
    for workload in workloads() {
        let found = measure(arguments, &workload, &servers, &origin, &scratch)?;
        let rates = |index: usize| found[index].iter().map(|one: &EdgeMeasurement| one.per_second).collect::<Vec<_>>();
        let of_cpu = |index: usize| found[index].iter().map(|one| one.per_cpu_second).collect::<Vec<_>>();
        let busy = |index: usize| {
            ValueSpread::of(&found[index].iter().map(|one| one.per_second / one.per_cpu_second).collect::<Vec<_>>())
        };
        let is_busy = busy(0).median >= BUSY_MIN && busy(2).median >= BUSY_MIN;
        let ratio = |other: usize| match is_busy {
            true => ValueSpread::of_ratios(&rates(0), &rates(other)),
            false => ValueSpread::of_ratios(&of_cpu(0), &of_cpu(other)),
        };
        let (to_nginx, noise) = (ratio(2), ratio(1));
        let is_short = to_nginx.median < workload.ratio_min;
        let verdict = if is_short { "SHORT" } else { "good" };
        println!(
            "{}: {:.0}/s ({:.0} % busy), nginx {:.0}/s ({:.0} %); {to_nginx} times nginx by {}, at least {} wanted: {verdict}; to itself {noise}",
            workload.name,
            ValueSpread::of(&rates(0)).median,
            100.0 * busy(0).median,
            ValueSpread::of(&rates(2)).median,
            100.0 * busy(2).median,
            if is_busy { "rate" } else { "processor time" },
            workload.ratio_min,
        );
        if is_short {
            problems.add(format!(
                "{}: {:.2} times nginx, at least {} wanted",
                workload.name, to_nginx.median, workload.ratio_min
            ));
        }
    }
    if arguments.idle > 0 {
        let ours = idle_bytes(&servers[0], arguments.idle, &certificates, &scratch)?;
        let peers = idle_bytes(&servers[2], arguments.idle, &certificates, &scratch)?;
        let verdict = if ours > peers { "SHORT" } else { "good" };
        println!("an idle connection with TLS of {}: {ours} B, nginx {peers} B: {verdict}", arguments.idle);
        if ours > peers {
            problems.add(format!("an idle connection with TLS takes {ours} B, nginx {peers} B"));
        }
    }
    Ok(problems.exit())
}

fn nectary(
    scratch: &ScratchFolder,
    name: &str,
    origin: &DeterministicOrigin,
    certificates: &ServerCertificates,
) -> Result<EdgeServer> {
    let folder = scratch.join(name);
    std::fs::create_dir(&folder)?;
    let mut command = ProxyCommand::new(&folder, Some(origin.url()))?;
    command.size = "1G".to_owned();
    command.memory = "256M".to_owned();
    command.cpu = Some(0);
    command.arguments.extend(["--workers", "1", "--connections-max", "15000"].map(str::to_owned));
    command.arguments.extend(certificates.options());
    Ok(EdgeServer::Nectary(command.start()?))
}

/// Measures a workload with every server, in paired rounds.
fn measure(
    arguments: &BenchEdgeArguments,
    workload: &EdgeWorkload,
    servers: &[EdgeServer; 3],
    origin: &DeterministicOrigin,
    scratch: &ScratchFolder,
) -> Result<[Vec<EdgeMeasurement>; 3]> {
    let load = |server: &EdgeServer, seconds: u64| {
        let (target, is_http1, connections, streams) = match workload.kind {
            EdgeWorkloadKind::Requests { bytes, is_http1, connections, streams } => {
                (format!("/o/1?size={bytes}"), is_http1, connections, streams)
            }
            EdgeWorkloadKind::Handshakes => ("/o/1?size=1024".to_owned(), true, 4, 1),
        };
        let (address, duration) = (server.address(), Duration::from_secs(seconds));
        H2Load { address, is_tls: true, is_http1, target, connections, streams, duration, cpu: Some(1) }
    };
    for server in servers {
        h2load::run(&load(server, 1), scratch.path())?;
    }
    let asked_before = origin.requests();
    let mut found: [Vec<EdgeMeasurement>; 3] = Default::default();
    for round in 0..arguments.rounds {
        let mut order = [0, 1, 2];
        if round % 2 == 1 {
            order.reverse();
        }
        for index in order {
            let (server, begun) = (&servers[index], Instant::now());
            let cpu_before = server.process().cpu_ns();
            let (count, per_second) = match workload.kind {
                EdgeWorkloadKind::Requests { .. } => {
                    let measured = h2load::run(&load(server, arguments.seconds), scratch.path())?;
                    if measured.errors > 0 || measured.requests == 0 {
                        bail!("{}: {}: {measured:?}", workload.name, server.name());
                    }
                    (measured.requests, measured.requests_per_second)
                }
                EdgeWorkloadKind::Handshakes => {
                    let count = handshakes(server, arguments.seconds, scratch)?;
                    (count, count as f64 / begun.elapsed().as_secs_f64())
                }
            };
            let cpu_s = (server.process().cpu_ns() - cpu_before).max(1) as f64 / 1e9;
            let per_cpu_second = count as f64 / cpu_s;
            if arguments.verbose {
                println!(
                    "  {}, round {round}: {} {per_second:.0}/s, {per_cpu_second:.0} per s of processor",
                    workload.name,
                    server.name()
                );
            }
            found[index].push(EdgeMeasurement { per_second, per_cpu_second });
        }
    }
    let asked = origin.requests() - asked_before;
    if asked > 0 {
        bail!("{}: {asked} requests reached the origin", workload.name);
    }
    Ok(found)
}

/// Makes new connections for some seconds; returns how many.
fn handshakes(server: &EdgeServer, seconds: u64, scratch: &ScratchFolder) -> Result<u64> {
    let mut running = Vec::new();
    for number in 0..CONNECTORS {
        let log = scratch.join(&format!("s_time-{number}.log"));
        _ = std::fs::remove_file(&log);
        let mut command = Command::new("openssl");
        command.args(["s_time", "-new", "-time", &seconds.to_string(), "-www", "/o/1?size=1024"]);
        command.args(["-connect", &server.address().to_string()]);
        running.push(GuardedProcess::spawn("openssl", command, &log, Some(1))?);
    }
    let mut count = 0;
    for mut process in running {
        let status = process.wait(Duration::from_secs(seconds + 30))?;
        if !status.success() {
            bail!("openssl s_time ended with {}\n{}", guard::describe(status), process.log_tail());
        }
        // `1234 connections in 3.01s; 410.00 connections/user sec, bytes read 1234`
        let text = process.log_text();
        let line = text.lines().find(|line| line.contains(" connections in ")).with_context(|| process.log_tail())?;
        count += line.split(' ').next().unwrap_or_default().parse::<u64>().with_context(|| line.to_owned())?;
    }
    Ok(count)
}

/// The memory of the server that one of `count` idle connections takes. *Units*: bytes.
fn idle_bytes(
    server: &EdgeServer,
    count: usize,
    certificates: &ServerCertificates,
    scratch: &ScratchFolder,
) -> Result<u64> {
    let script = scratch.join("idle.py");
    std::fs::write(&script, IDLE)?;
    let before = server.process().status_bytes("VmRSS")?;
    let mut command = Command::new("python3");
    command.arg(&script).args([server.address().ip().to_string(), server.address().port().to_string()]);
    command.arg(count.to_string()).arg(&certificates.ca);
    let log = scratch.join(&format!("idle-{}.log", server.address().port()));
    let mut clients = GuardedProcess::spawn("idle clients", command, &log, Some(1))?;
    wait_open(&mut clients, count, &log)?;
    let after = server.process().status_bytes("VmRSS")?;
    Ok(after.saturating_sub(before) / count as u64)
}

/// Waits until all connections are open.
fn wait_open(clients: &mut GuardedProcess, count: usize, log: &Path) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(240);
    while Instant::now() < deadline {
        if clients.log_text().contains(&format!("OPEN {count}\n")) {
            return Ok(());
        }
        if let Some(status) = clients.try_status() {
            bail!("the idle clients ended with {}\n{}", guard::describe(status), clients.log_tail());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    bail!("{count} connections were not open in time, see {}", log.display())
}
