//! Reloads, restarts and upgrades of a proxy under `wrk` and `h2load`.
//!
//! Listeners outlive the processes, as with systemd's socket activation. A reload changes the file. A restart starts
//! the next process and ends the former one. An upgrade first puts another file in the place of the program, as
//! packages do. Promises: a request counts as failed if wrk reports an error of its socket, a timeout or a status of 400
//! or more, or if it has reached the proxy over HTTP/2 and got no whole answer of 200, by the access log. A connection of
//! HTTP/2 that is told that no more requests are taken ends its run of h2load, which cannot make another one. Each stream
//! that ends then makes h2load begin one more request, which its library does not send (with nginx all eight at each
//! `nginx -s quit`): so many may have no answer, and a next run follows. The hit ratio is counted at the origin.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::filled::FilledProxy;
use crate::guard::{self, GuardedProcess};
use crate::load::wrk::{self, WrkResult, WrkSettings};
use crate::nectary::{ControlConnection, binary};
use crate::restart::{start_with_listener, wait_for_control};

/// The objects in the store.
const OBJECTS: usize = 60;
/// The time of the load before the first change, without which there is no ratio to keep.
const BEFORE: Duration = Duration::from_secs(3);
/// The time under load before each change.
const BETWEEN: Duration = Duration::from_millis(300);
/// The time of the load for each change. It is longer than a change takes, and the load must go on after the last one.
const FOR_EACH: Duration = Duration::from_secs(3);
/// The longest time until a reload is done, and until a stopped process ends.
const CHANGE_MAX: Duration = Duration::from_secs(20);
const END_MAX: Duration = Duration::from_secs(30);
/// The requests of a run of h2load, on one connection.
const RUN_REQUESTS: u64 = 500;
const RUN_MAX: Duration = Duration::from_secs(60);
/// The streams of each run.
const STREAMS: u64 = 8;
/// The runs of h2load that go on beside each other.
const RUNS_AT_ONCE: usize = 2;

/// What is done to the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyChange {
    /// SIGHUP, with another file.
    Reload,
    /// A new process of the same program.
    Restart,
    /// A new process of a new file of the program.
    Upgrade,
}

impl ProxyChange {
    /// All of them.
    pub const ALL: [ProxyChange; 3] = [ProxyChange::Reload, ProxyChange::Restart, ProxyChange::Upgrade];

    /// Their name, several of them.
    pub fn plural(self) -> &'static str {
        match self {
            ProxyChange::Reload => "reloads",
            ProxyChange::Restart => "restarts",
            ProxyChange::Upgrade => "upgrades",
        }
    }
}

/// The counts of runs of h2load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamCounts {
    /// The runs.
    pub runs: u64,
    /// Those that did not send all their requests, because their connection took no more.
    pub shorter: u64,
    /// The requests that were begun.
    pub begun: u64,
    /// Those that got no answer of 200.
    pub failed: u64,
    /// The runs that could not connect.
    pub refused: u64,
}

impl StreamCounts {
    fn add(&mut self, other: StreamCounts) {
        self.runs += other.runs;
        self.shorter += other.shorter;
        self.begun += other.begun;
        self.failed += other.failed;
        self.refused += other.refused;
    }
}

/// The results of changes of one kind.
#[derive(Debug)]
pub struct ChangeCounts {
    /// The changes.
    pub changes: u64,
    /// What wrk found.
    pub measured: WrkResult,
    /// What h2load found, if it is installed.
    pub streams: Option<StreamCounts>,
    /// The requests of HTTP/2 that have reached the proxy, and those of them that were answered as a whole.
    pub reached: (u64, u64),
    /// The hit ratio without changes.
    pub ratio_before: f64,
    /// The hit ratio during the changes.
    pub ratio: f64,
    /// The longest time of a change.
    pub slowest: Duration,
}

impl std::fmt::Display for ChangeCounts {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let measured = &self.measured;
        write!(out, "{}: wrk {} requests, {} errors", self.changes, measured.requests, measured.errors)?;
        if let Some(streams) = &self.streams {
            let StreamCounts { runs, shorter, begun, failed, refused } = streams;
            write!(out, "; h2load {begun} requests in {runs} runs ({shorter} shorter), {failed} unanswered")?;
            write!(out, ", {refused} runs refused; {} reached the proxy, {} answered", self.reached.0, self.reached.1)?;
        }
        write!(out, "; hit ratio {:.4}, before {:.4}", self.ratio, self.ratio_before)?;
        write!(out, "; the slowest took {} ms", self.slowest.as_millis())
    }
}

/// How far the hit ratio may fall.
const RATIO_LOSS_MAX: f64 = 0.01;

impl ChangeCounts {
    /// What is wrong with them.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for (kind, count) in wrk::ERROR_KINDS.iter().zip(self.measured.errors_by_kind) {
            if count > 0 {
                problems.push(format!("wrk: {count} errors of the kind {kind}"));
            }
        }
        if self.measured.requests == 0 {
            problems.push("wrk got no answer".to_owned());
        }
        if let Some(streams) = self.streams {
            if streams.failed > STREAMS * streams.shorter || streams.refused > 0 {
                problems.push(format!("h2load: {streams:?}"));
            }
            let answered = streams.begun - streams.failed;
            if self.reached != (answered, answered) {
                let (reached, whole) = self.reached;
                problems
                    .push(format!("{reached} requests of HTTP/2 came, {whole} were answered, {answered} by h2load"));
            }
            if streams.begun == 0 {
                problems.push("h2load began no request".to_owned());
            }
        }
        // A ratio that is no number is not kept, either.
        let is_kept = self.ratio >= self.ratio_before - RATIO_LOSS_MAX;
        if !is_kept {
            problems.push(format!("the hit ratio fell from {:.4} to {:.4}", self.ratio_before, self.ratio));
        }
        problems
    }
}

/// A proxy that is changed under load.
struct ChangingProxy {
    filled: FilledProxy,
    listener: TcpListener,
    /// The program that it is started from.
    program: PathBuf,
    now: GuardedProcess,
    /// The processes of before.
    before: Vec<GuardedProcess>,
    done: u64,
}

/// Makes so many changes of a kind under load.
///
/// *Errors*: a change fails, a process ends otherwise than with success, or the load ends before the changes.
pub fn run(change: ProxyChange, count: u64, seed: u64) -> Result<ChangeCounts> {
    let mut proxy = ChangingProxy::start(change, seed)?;
    let targets = proxy.filled.scratch.join("targets");
    wrk::write_targets(&targets, proxy.filled.targets.iter().cloned())?;
    let folder = proxy.filled.scratch.path().to_owned();
    let address = proxy.filled.command.listen;
    let load =
        |duration| WrkSettings { address, targets: targets.clone(), threads: 1, connections: 8, duration, cpu: None };
    let origin_before = proxy.filled.origin.requests();
    let before = wrk::run(&load(BEFORE), &folder)?;
    let ratio_before = ratio(proxy.filled.origin.requests() - origin_before, before.requests);

    let h2load = guard::find_program("h2load");
    let urls = folder.join("urls");
    let lines = proxy.filled.targets.iter().map(|target| format!("http://{address}{target}"));
    wrk::write_targets(&urls, lines)?;
    let origin_before = proxy.filled.origin.requests();
    let mut running = wrk::start(&load(BETWEEN + FOR_EACH * u32::try_from(count)?), &folder)?;
    let is_over = AtomicBool::new(false);
    let (changed, streams) = std::thread::scope(|scope| {
        let runs: Vec<_> = (0..RUNS_AT_ONCE)
            .filter_map(|index| Some((index, h2load.as_deref()?)))
            .map(|(index, program)| {
                let (urls, over, log) = (&urls, &is_over, folder.join(format!("h2load-{index}.log")));
                scope.spawn(move || streams(program, urls, &log, over))
            })
            .collect();
        let changed = proxy.make(change, count);
        let is_under_load = running.goes_on();
        is_over.store(true, Ordering::Relaxed);
        let mut all = StreamCounts::default();
        for run in runs {
            all.add(run.join().map_err(|_| anyhow::anyhow!("a client panicked"))??);
        }
        let slowest = changed?;
        ensure!(is_under_load, "the load ended before the last change");
        anyhow::Ok((slowest, h2load.is_some().then_some(all)))
    })
    .with_context(|| proxy.now.log_tail())?;
    let measured = running.finish()?;
    let requests = measured.requests + streams.map_or(0, |streams| streams.begun);
    let ratio = ratio(proxy.filled.origin.requests() - origin_before, requests);
    let log = access_log(&proxy.filled);
    proxy.end()?;
    let reached = reached(&fs::read_to_string(&log).with_context(|| log.display().to_string())?);
    Ok(ChangeCounts { changes: count, measured, streams, reached, ratio_before, ratio, slowest: changed })
}

/// The requests of HTTP/2 in an access log, and those of them that were answered as a whole.
fn reached(log: &str) -> (u64, u64) {
    let lines = log.lines().filter(|line| line.contains(" HTTP/2"));
    let is_whole = |line: &&str| {
        let size = line.split_once("size=").and_then(|(_, rest)| rest.split([' ', '&', '"']).next());
        let answer = line.split_once(" HTTP/2").and_then(|(_, rest)| rest.split_once("\" "));
        let mut words = answer.map(|(_, rest)| rest.split(' ')).into_iter().flatten();
        words.next() == Some("200") && size.is_some() && words.next() == size
    };
    (lines.clone().count() as u64, lines.filter(is_whole).count() as u64)
}

/// The share of requests that did not reach the origin.
fn ratio(of_origin: u64, requests: u64) -> f64 {
    1.0 - of_origin as f64 / requests as f64
}

impl ChangingProxy {
    /// Fills a store, and starts a proxy over it whose listener stays.
    fn start(change: ProxyChange, seed: u64) -> Result<ChangingProxy> {
        let mut filled = FilledProxy::new(change.plural(), OBJECTS, seed)?;
        filled.command.size = "160M".to_owned();
        filled.command.memory = "24M".to_owned();
        write_file(&filled, 0)?;
        {
            let mut nectary = filled.command.start_with_file(&file(&filled))?;
            filled.fill(&nectary)?;
            nectary.wait_written(CHANGE_MAX)?;
            nectary.terminate(END_MAX)?;
        }
        let program = filled.scratch.join("nectary");
        install(&filled, &program, 0)?;
        let listener = TcpListener::bind(filled.command.listen)?;
        let now = spawn(&filled, &program, &listener)?;
        let mut proxy = ChangingProxy { filled, listener, program, now, before: Vec::new(), done: 0 };
        wait_for_control(&proxy.filled.command.runtime_folder(), &mut proxy.now)?;
        Ok(proxy)
    }

    /// Makes changes. *Returns*: the longest time of one.
    fn make(&mut self, change: ProxyChange, count: u64) -> Result<Duration> {
        let mut slowest = Duration::ZERO;
        for number in 1..=count {
            std::thread::sleep(BETWEEN);
            let begun = Instant::now();
            match change {
                ProxyChange::Reload => self.reload(),
                ProxyChange::Restart => self.restart(),
                ProxyChange::Upgrade => self.upgrade(number),
            }
            .with_context(|| format!("{change:?} {number}"))?;
            slowest = slowest.max(begun.elapsed());
        }
        Ok(slowest)
    }

    fn reload(&mut self) -> Result<()> {
        self.done += 1;
        write_file(&self.filled, self.done)?;
        self.now.signal(libc::SIGHUP);
        let begun = Instant::now();
        loop {
            let status = ControlConnection::connect(&self.filled.command.runtime_folder())?.status()?;
            if status["detail"]["configuration"]["reloads"].as_u64() == Some(self.done) {
                return Ok(());
            }
            ensure!(begun.elapsed() < CHANGE_MAX, "not done after {CHANGE_MAX:?}: {status}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn restart(&mut self) -> Result<()> {
        self.now.signal(libc::SIGTERM);
        let next = spawn(&self.filled, &self.program, &self.listener)?;
        self.before.push(std::mem::replace(&mut self.now, next));
        wait_for_control(&self.filled.command.runtime_folder(), &mut self.now)
    }

    fn upgrade(&mut self, number: u64) -> Result<()> {
        install(&self.filled, &self.program, number)?;
        let former = fs::read_link(format!("/proc/{}/exe", self.now.id()))?;
        ensure!(former.to_string_lossy().ends_with(" (deleted)"), "{} is not replaced", former.display());
        self.restart()?;
        let program = fs::read_link(format!("/proc/{}/exe", self.now.id()))?;
        ensure!(program == fs::canonicalize(&self.program)?, "{} runs instead", program.display());
        Ok(())
    }

    /// Ends all processes.
    fn end(&mut self) -> Result<()> {
        self.now.signal(libc::SIGTERM);
        for process in self.before.iter_mut().chain([&mut self.now]) {
            let status = process.wait(END_MAX).context("a stopped proxy ends")?;
            ensure!(status.success(), "{}\n{}", guard::describe(status), process.log_tail());
        }
        Ok(())
    }
}

fn access_log(filled: &FilledProxy) -> PathBuf {
    filled.scratch.join("access.log")
}

fn file(filled: &FilledProxy) -> PathBuf {
    filled.scratch.join("proxy.toml")
}

/// Writes the configuration file, which differs for each number.
fn write_file(filled: &FilledProxy, number: u64) -> Result<()> {
    let command = &filled.command;
    let text = format!(
        r#"
[[listener]]
address = "{}"
[store]
device = "{}"
size = "{}"
memory = "{}"
[server]
workers = 2
[limits]
drain = "10s"
[log]
access = "{}"
[origins.app]
servers = ["{}"]
[[site]]
default = true
[[site.route]]
origin = "app"
default-ttl = "{}s"
"#,
        command.listen,
        command.store,
        command.size,
        command.memory,
        access_log(filled).display(),
        filled.origin.url(),
        number + 1,
    );
    Ok(fs::write(file(filled), text)?)
}

/// Puts a file of the program in the place of another one, as a package does. Its length is different each time.
///
/// Another process writes it: a child that this one has just started could still have the file open for writing, and
/// such a program cannot be started.
fn install(filled: &FilledProxy, program: &Path, number: u64) -> Result<()> {
    let next = program.with_extension("new");
    let mut command = Command::new("sh");
    command.args(["-c", "cp -- \"$1\" \"$2\" && truncate -s \"+$3\" \"$2\"", "sh"]);
    command.arg(binary()?).arg(&next).arg(number.to_string());
    let (status, said) = guard::run("cp", command, &filled.scratch.join("cp.log"), CHANGE_MAX)?;
    ensure!(status.success(), "cannot write {}: {said}", next.display());
    Ok(fs::rename(&next, program)?)
}

/// Starts a process that inherits the listener.
fn spawn(filled: &FilledProxy, program: &Path, listener: &TcpListener) -> Result<GuardedProcess> {
    let mut command = Command::new(program);
    command.args(["proxy", "--config"]).arg(file(filled));
    command.env("NECTARY_RUNTIME_DIR", filled.command.runtime_folder());
    start_with_listener(&command, listener, &filled.command.folder.join("nectary.log"))
}

/// Runs h2load again and again, each time on one connection.
fn streams(program: &Path, urls: &Path, log: &Path, is_over: &AtomicBool) -> Result<StreamCounts> {
    let mut all = StreamCounts::default();
    while !is_over.load(Ordering::Relaxed) {
        let mut command = Command::new(program);
        command.args(["-n", &RUN_REQUESTS.to_string(), "-c", "1", "-t", "1", "-i"]).arg(urls);
        command.args(["-m", &STREAMS.to_string()]);
        let _ = fs::remove_file(log);
        let (_, said) = guard::run("h2load", command, log, RUN_MAX)?;
        all.add(read_run(&said)?);
    }
    Ok(all)
}

/// Reads the summary of a run of h2load.
fn read_run(said: &str) -> Result<StreamCounts> {
    let number = |start: &str, word: &str| {
        let line = said.lines().find_map(|line| line.strip_prefix(start))?;
        line.split(',').find_map(|part| part.trim().strip_suffix(word)?.trim().parse::<u64>().ok())
    };
    let request = |word: &str| number("requests:", word).with_context(|| format!("h2load: no count of {word}: {said}"));
    let (total, begun, done) = (request("total")?, request("started")?, request("done")?);
    let good = number("status codes:", "2xx").with_context(|| format!("h2load: no statuses: {said}"))?;
    if begun > total || good > done {
        bail!("h2load counts more answers than requests: {said}");
    }
    let is_refused = said.contains("could not connect");
    let failed = begun.saturating_sub(good.min(request("succeeded")?));
    Ok(StreamCounts { runs: 1, shorter: u64::from(begun < total), begun, failed, refused: u64::from(is_refused) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "finished in 22.60ms, 221248.29 req/s, 9.13MB/s\n\
        requests: 500 total, 500 started, 500 done, 500 succeeded, 0 failed, 0 errored, 0 timeout\n\
        status codes: 500 2xx, 0 3xx, 0 4xx, 0 5xx\n";

    #[test]
    fn runs_of_h2load_are_judged() {
        let counts = |text: &str| read_run(text).unwrap();
        let good = StreamCounts { runs: 1, begun: 500, ..StreamCounts::default() };
        assert_eq!(counts(GOOD), good);
        // The connection takes no more requests: those that were begun are all answered.
        let shorter = GOOD
            .replace("500 started, 500 done, 500 succeeded, 0 failed", "90 started, 90 done, 90 succeeded, 410 failed");
        let shorter = counts(&shorter.replace("500 2xx", "90 2xx"));
        assert_eq!(shorter, StreamCounts { runs: 1, shorter: 1, begun: 90, ..StreamCounts::default() });
        let lost = GOOD.replace("500 done, 500 succeeded, 0 failed", "493 done, 493 succeeded, 7 failed");
        assert_eq!(counts(&lost.replace("500 2xx", "493 2xx")).failed, 7);
        let other = GOOD.replace("500 2xx, 0 3xx, 0 4xx, 0 5xx", "498 2xx, 0 3xx, 0 4xx, 2 5xx");
        assert_eq!(counts(&other.replace("500 succeeded, 0 failed", "498 succeeded, 2 failed")).failed, 2);
        assert_eq!(counts(&format!("client could not connect to host\n{GOOD}")).refused, 1);
        assert!(read_run("nothing").is_err());
    }

    #[test]
    fn answers_are_read_from_the_log() {
        let line = |protocol: &str, status: u16, bytes: u64| {
            format!(
                "127.0.0.1 - - [01/Dec/2026:00:00:00 +0000] \"GET http://a/o/1?size=9 {protocol}\" {status} {bytes} \"-\" \"h2load\" hit\n"
            )
        };
        let all =
            [line("HTTP/2.0", 200, 9), line("HTTP/1.1", 200, 1), line("HTTP/2.0", 200, 8), line("HTTP/2.0", 502, 9)];
        assert_eq!(reached(&all.concat()), (3, 1));
    }

    #[test]
    fn each_failure_is_a_problem() {
        let measured = WrkResult {
            requests: 9,
            requests_per_second: 1.0,
            bytes: 1,
            errors: 0,
            errors_by_kind: [0; wrk::ERROR_KINDS.len()],
            p50_us: 1,
            p99_us: 1,
        };
        let streams = StreamCounts { runs: 1, begun: 5, ..StreamCounts::default() };
        let good = || ChangeCounts {
            changes: 1,
            measured,
            streams: Some(streams),
            reached: (5, 5),
            ratio_before: 1.0,
            ratio: 0.995,
            slowest: Duration::ZERO,
        };
        assert!(good().problems().is_empty());
        assert_eq!(ChangeCounts { ratio: 0.98, ..good() }.problems().len(), 1);
        assert_eq!(ChangeCounts { ratio: f64::NAN, ..good() }.problems().len(), 1);
        let failed = StreamCounts { begun: 6, failed: 1, ..streams };
        assert_eq!(ChangeCounts { streams: Some(failed), ..good() }.problems().len(), 1);
        let unsent = StreamCounts { begun: 13, failed: 8, shorter: 1, ..streams };
        assert!(ChangeCounts { streams: Some(unsent), ..good() }.problems().is_empty());
        for reached in [(5, 4), (6, 5), (6, 6), (0, 0)] {
            assert_eq!(ChangeCounts { reached, ..good() }.problems().len(), 1, "{reached:?}");
        }
        let idle = StreamCounts { begun: 0, ..streams };
        assert_eq!(ChangeCounts { streams: Some(idle), reached: (0, 0), ..good() }.problems().len(), 1);
        let broken = WrkResult { errors_by_kind: [1, 0, 2, 0, 0], requests: 0, ..measured };
        assert_eq!(ChangeCounts { measured: broken, ..good() }.problems().len(), 3);
    }
}
