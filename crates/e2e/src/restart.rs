//! Restarts of a proxy under load, with listeners that outlive each process, as systemd's socket activation passes them.
//!
//! Promises: clients neither repeat a request nor forgive anything. A request counts as failed if its connection breaks
//! before the whole answer, if its status is not 200, or if a byte differs from the origin's.

use crate::content;
use crate::filled::FilledProxy;
use crate::guard::{GuardedProcess, describe};
use crate::http::HttpConnection;
use crate::nectary::ControlConnection;
use crate::origin::{OriginBehaviour, TargetAnswer};
use crate::rng::SeededRng;
use anyhow::{Context, Result, bail, ensure};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The clients that ask for small objects on kept connections.
const CLIENTS: u64 = 4;
/// The time under load before each restart.
const BETWEEN: Duration = Duration::from_millis(300);
/// The longest time in which the next process must answer.
const START_MAX: Duration = Duration::from_secs(20);
/// The longest time in which a stopped process must end: the drain time of the command, and some more.
const END_MAX: Duration = Duration::from_secs(20);
/// A stored body that is read slowly, so that a restart happens in the middle of it.
const LONG: &str = "/long/1?size=24000000&ranges";

/// The counts of a run.
#[derive(Debug, Default)]
pub struct RestartCounts {
    /// The number of restarts.
    pub restarts: u64,
    /// The number of requests that were answered as they should be.
    pub good: u64,
    /// The number of them that came from the store.
    pub hits: u64,
    /// The number of bodies that were fetched from the origin during a restart or between restarts.
    pub fetched: u64,
    /// The number of stored bodies that were read slowly to their end.
    pub long: u64,
    /// The number of unsafe requests.
    pub unsafe_requests: u64,
    /// The longest time from SIGTERM until the next process had opened the store.
    pub slowest: Duration,
    /// What failed.
    pub failed: Vec<String>,
}

impl std::fmt::Display for RestartCounts {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            out,
            "{} restarts, {} requests good ({} hits, {} slow fetches, {} long bodies, {} unsafe), {} failed; the slowest \
             restart took {} ms",
            self.restarts,
            self.good,
            self.hits,
            self.fetched,
            self.long,
            self.unsafe_requests,
            self.failed.len(),
            self.slowest.as_millis()
        )
    }
}

#[derive(Default)]
struct RestartLoad {
    stop: AtomicBool,
    good: AtomicU64,
    hits: AtomicU64,
    fetched: AtomicU64,
    long: AtomicU64,
    unsafe_requests: AtomicU64,
    failed: Mutex<Vec<String>>,
}

impl RestartLoad {
    fn fail(&self, what: String) {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }

    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }
}

/// Restarts the proxy of a filled store so often, under load.
pub fn run(restarts: u64, seed: u64) -> Result<RestartCounts> {
    let mut filled = FilledProxy::new("restarts", 60, seed)?;
    filled.command.size = "160M".to_owned();
    filled.command.memory = "24M".to_owned();
    filled.command.arguments = ["--drain", "10s", "--workers", "2"].map(str::to_owned).to_vec();
    {
        let mut nectary = filled.command.start()?;
        filled.fill(&nectary)?;
        ensure!(nectary.client().get(LONG)?.status == 200, "the long body");
        nectary.wait_written(Duration::from_secs(20))?;
        nectary.terminate(Duration::from_secs(20))?;
    }
    let listener = TcpListener::bind(filled.command.listen)?;
    let mut now = start(&filled, &listener)?;
    wait_for(&filled, &mut now)?;
    let load = RestartLoad::default();
    let mut counts = RestartCounts { restarts, ..RestartCounts::default() };
    let mut before = Vec::new();
    let listen = filled.command.listen;
    let result = std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (load, targets) = (&load, &filled.targets);
            scope.spawn(move || ask(load, listen, targets, SeededRng::new(seed ^ (client + 1))));
        }
        scope.spawn(|| fetch(&load, listen, &filled, SeededRng::new(seed ^ 99)));
        scope.spawn(|| read_slowly(&load, listen));
        let result: Result<()> = (0..restarts).try_for_each(|_| {
            std::thread::sleep(BETWEEN);
            let begun = Instant::now();
            now.signal(libc::SIGTERM);
            before.push(std::mem::replace(&mut now, start(&filled, &listener)?));
            wait_for(&filled, &mut now)?;
            counts.slowest = counts.slowest.max(begun.elapsed());
            Ok(())
        });
        std::thread::sleep(BETWEEN);
        load.stop.store(true, Ordering::Relaxed);
        result
    });
    result.with_context(|| now.log_tail())?;
    now.signal(libc::SIGTERM);
    before.push(now);
    for process in &mut before {
        let status = process.wait(END_MAX).context("a stopped proxy ends")?;
        ensure!(status.success(), "{}\n{}", describe(status), process.log_tail());
    }
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    (counts.good, counts.hits, counts.fetched) = (count(&load.good), count(&load.hits), count(&load.fetched));
    (counts.long, counts.unsafe_requests) = (count(&load.long), count(&load.unsafe_requests));
    counts.failed = load.failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(counts)
}

fn start(filled: &FilledProxy, listener: &TcpListener) -> Result<GuardedProcess> {
    start_with_listener(&filled.command.command()?, listener, &filled.command.folder.join("nectary.log"))
}

/// Starts the process of a proxy that inherits the listener as descriptor 3.
pub(crate) fn start_with_listener(proxy: &Command, listener: &TcpListener, log: &Path) -> Result<GuardedProcess> {
    // The number of the process is not known before it runs, so a shell sets the variable and becomes the proxy.
    let mut command = Command::new("sh");
    command.args(["-c", "LISTEN_PID=$$ LISTEN_FDS=1 exec \"$@\"", "sh"]).arg(proxy.get_program());
    command.args(proxy.get_args());
    proxy.get_envs().for_each(|(name, value)| {
        if let Some(value) = value {
            command.env(name, value);
        }
    });
    let descriptor = listener.as_raw_fd();
    // SAFETY: dup2 and fcntl are plain system calls, allowed between fork and exec.
    unsafe {
        command.pre_exec(move || {
            let done = match descriptor {
                3 => libc::fcntl(3, libc::F_SETFD, 0),
                _ => libc::dup2(descriptor, 3),
            };
            if done < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
        });
    }
    GuardedProcess::spawn("nectary", command, log, None)
}

fn wait_for(filled: &FilledProxy, process: &mut GuardedProcess) -> Result<()> {
    wait_for_control(&filled.command.runtime_folder(), process)
}

/// Waits until this process answers on the control socket, which it makes after it has opened the store.
pub(crate) fn wait_for_control(runtime: &Path, process: &mut GuardedProcess) -> Result<()> {
    let deadline = Instant::now() + START_MAX;
    let answers = |runtime: &Path, id: u32| -> Result<bool> {
        Ok(ControlConnection::connect(runtime)?.status()?["pid"].as_u64() == Some(id.into()))
    };
    while !answers(runtime, process.id()).unwrap_or(false) {
        if let Some(status) = process.try_status() {
            bail!("the next process ended: {}", describe(status));
        }
        ensure!(Instant::now() < deadline, "the next process does not answer after {START_MAX:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Asks for stored objects on one kept connection after the other.
fn ask(load: &RestartLoad, listen: SocketAddr, targets: &[String], mut rng: SeededRng) {
    let mut client = HttpConnection::new(listen, START_MAX);
    while load.goes_on() {
        let target = &targets[rng.index(targets.len())];
        match client.get(target) {
            Ok(response) if response.status == 200 && is_right(target, &response.body) => {
                load.good.fetch_add(1, Ordering::Relaxed);
                load.hits.fetch_add(u64::from(response.is_hit()), Ordering::Relaxed);
            }
            Ok(response) => load.fail(format!("{target}: status {}, or wrong bytes", response.status)),
            Err(error) => load.fail(format!("{target}: {error}")),
        }
    }
}

/// Fetches bodies that the origin sends slowly, so that fills are under way at a restart, and sends unsafe requests.
fn fetch(load: &RestartLoad, listen: SocketAddr, filled: &FilledProxy, mut rng: SeededRng) {
    let mut client = HttpConnection::new(listen, START_MAX);
    let mut number = 0;
    while load.goes_on() {
        number += 1;
        let target = format!("/slow/{number}?size={}", 200_000 + rng.below(400_000));
        let slow = OriginBehaviour::Slow { piece_bytes: 20_000, pause: Duration::from_millis(15) };
        filled.origin.set_behaviour(&target, Some(slow));
        match client.get(&target) {
            Ok(response) if response.status == 200 && is_right(&target, &response.body) => {
                load.good.fetch_add(1, Ordering::Relaxed);
                load.fetched.fetch_add(1, Ordering::Relaxed);
            }
            Ok(response) => load.fail(format!("{target}: status {}, or wrong bytes", response.status)),
            Err(error) => load.fail(format!("{target}: {error}")),
        }
        match client.request("POST", "/form/1", &[("Content-Length", "0")]) {
            Ok(response) if response.status == 200 => {
                load.good.fetch_add(1, Ordering::Relaxed);
                load.unsafe_requests.fetch_add(1, Ordering::Relaxed);
            }
            Ok(response) => load.fail(format!("POST: status {}", response.status)),
            Err(error) => load.fail(format!("POST: {error}")),
        }
    }
}

/// Reads a long stored body slowly, again and again; each takes longer than the time between restarts.
fn read_slowly(load: &RestartLoad, listen: SocketAddr) {
    while load.goes_on() {
        match read_long(load, listen) {
            Ok(true) => {
                load.good.fetch_add(1, Ordering::Relaxed);
                load.long.fetch_add(1, Ordering::Relaxed);
            }
            Ok(false) => load.fail(format!("{LONG}: not the whole body")),
            Err(error) => load.fail(format!("{LONG}: {error}")),
        }
    }
}

fn read_long(load: &RestartLoad, listen: SocketAddr) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect(listen)?;
    stream.set_read_timeout(Some(START_MAX))?;
    stream.write_all(format!("GET {LONG} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").as_bytes())?;
    let (mut room, mut found) = (vec![0; 256 << 10], Vec::new());
    loop {
        match stream.read(&mut room)? {
            0 => break,
            count => found.extend_from_slice(&room[..count]),
        }
        if load.goes_on() {
            std::thread::sleep(Duration::from_millis(8));
        }
    }
    let head = found.windows(4).position(|window| window == b"\r\n\r\n").map(|end| end + 4).unwrap_or(found.len());
    Ok(found.starts_with(b"HTTP/1.1 200") && is_right(LONG, &found[head..]))
}

fn is_right(target: &str, body: &[u8]) -> bool {
    let bytes = TargetAnswer::parse(target).bytes;
    body.len() as u64 == bytes && content::first_difference(content::seed(target, 1), 0, body).is_none()
}
