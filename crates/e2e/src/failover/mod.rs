//! Rounds of a proxy whose origin has several addresses, or several servers, some of which fail, behind a load.
//!
//! In each phase of a round another address is well, and the one before fails after that. Every GET must be answered
//! within [`ANSWER_MAX`], because an address can answer it at any time. The exception is half an answer: it ends the client's
//! connection, is counted, and never stored. A POST may fail, but it never arrives twice.
//!
//! After a round over servers all are well again, and each must get its share of the requests.
//!
//! The planted fault: if no address is well, the checks must complain.

mod servers;
mod site;

pub use site::{AddressFault, FailoverOrigin};

use crate::content;
use crate::http::{HttpConnection, HttpResponse, RequestFailure};
use crate::nectary::{NectaryProxy, ProxyCommand, binary, find};
use crate::rng::SeededRng;
use crate::scratch::ScratchFolder;
use anyhow::{Context, Result};
use std::collections::HashMap;
use std::fmt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The longest time for which the origin's first byte is waited for in these rounds.
pub const FIRST_BYTE: Duration = Duration::from_secs(1);

/// The longest time of an answer: the first byte's, and two seconds.
pub const ANSWER_MAX: Duration = Duration::from_secs(3);

/// The name of the origin.
const NAME: &str = "origin.test";

/// Clients of the load.
const CLIENTS: usize = 4;

/// The extent of a round.
#[derive(Clone, Copy, Debug)]
pub struct FailoverRoundPlan {
    /// How often the faults change.
    pub phases: u64,
    /// The time between two changes.
    pub phase: Duration,
    /// Whether no address is well, which the checks must find.
    pub is_planted: bool,
    /// What the origin has several of.
    pub several: OriginRedundancy,
}

/// What an origin has several of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OriginRedundancy {
    /// Addresses of one name.
    Addresses,
    /// Servers, with weights.
    Servers,
}

/// What happened in rounds.
#[derive(Clone, Debug, Default)]
pub struct FailoverCounts {
    /// Requests of the load.
    pub requests: u64,
    /// GETs that were answered whole and in time.
    pub answered: u64,
    /// GETs that ended with half an answer of the origin.
    pub halves: u64,
    /// GETs without an answer that were under way while the servers' faults changed: none was well from begin to end.
    pub between: u64,
    /// POSTs that were answered by the origin.
    pub posts: u64,
    /// POSTs that failed.
    pub posts_failed: u64,
    /// The longest time of an answer.
    pub longest: Duration,
    /// How often each fault was set.
    pub faults: HashMap<AddressFault, u64>,
    /// What was wrong.
    pub problems: Vec<String>,
}

impl FailoverCounts {
    /// Adds other counts.
    pub fn add(&mut self, other: FailoverCounts) {
        self.requests += other.requests;
        self.answered += other.answered;
        self.halves += other.halves;
        self.between += other.between;
        self.posts += other.posts;
        self.posts_failed += other.posts_failed;
        self.longest = self.longest.max(other.longest);
        other.faults.into_iter().for_each(|(fault, count)| *self.faults.entry(fault).or_default() += count);
        self.problems.extend(other.problems);
    }
}

impl fmt::Display for FailoverCounts {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FailoverCounts { requests, answered, halves, between, posts, posts_failed, longest, .. } = self;
        write!(out, "{requests} requests: {answered} answered, {halves} halves, {between} between two phases, ")?;
        write!(out, "{posts} POSTs answered and ")?;
        write!(out, "{posts_failed} failed, longest {:.2} s; faults:", longest.as_secs_f64())?;
        for fault in AddressFault::ALL {
            write!(out, " {fault:?} {}", self.faults.get(&fault).unwrap_or(&0))?;
        }
        write!(out, "; {} problems", self.problems.len())
    }
}

/// Why this machine cannot run rounds; `None` if it can. They need a mount namespace, for a file of hosts of their own,
/// and a `nectary` that has an option for the time of the first byte.
pub fn missing() -> Option<String> {
    let mut command = Command::new("unshare");
    command.args([namespace(), "mount", "--bind", "/etc/hosts", "/etc/hosts"]);
    if !command.output().is_ok_and(|done| done.status.success()) {
        return Some("no mount namespace with a file of hosts can be made (`unshare`, `mount --bind`)".to_owned());
    }
    let help = binary().ok().and_then(|binary| Command::new(binary).args(["proxy", "--help"]).output().ok());
    let has_option = help.is_some_and(|help| String::from_utf8_lossy(&help.stdout).contains("--first-byte"));
    (!has_option).then(|| "this `nectary proxy` has no option --first-byte".to_owned())
}

/// The option for a mount namespace: one who is not root becomes root of a user namespace.
fn namespace() -> &'static str {
    // SAFETY: the call only reads the process's user.
    if unsafe { libc::geteuid() } == 0 { "-m" } else { "-rm" }
}

/// Runs one round.
pub fn round(seed: u64, extent: &FailoverRoundPlan) -> Result<FailoverCounts> {
    let mut rng = SeededRng::new(seed);
    let scratch = ScratchFolder::new("failover")?;
    let count = if extent.several == OriginRedundancy::Servers { servers::COUNT } else { 2 + rng.index(3) };
    let site = FailoverOrigin::start(count, extent.several)?;
    let shares = servers::ServerWeights::new(&mut rng);
    let nectary = match extent.several {
        OriginRedundancy::Addresses => over_addresses(&scratch, &site)?,
        OriginRedundancy::Servers => shares.start(&scratch, &site)?,
    };
    let mut good = rng.index(count);
    let stop = AtomicBool::new(false);
    let mut counts = FailoverCounts::default();
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (rng, nectary, site, stop) = (rng.split(), &nectary, &site, &stop);
                scope.spawn(move || load(client, rng, nectary, site, stop))
            })
            .collect();
        for _ in 0..extent.phases {
            let next = (good + 1 + rng.index(count - 1)) % count;
            if let Err(error) = site.restore(next) {
                counts.problems.push(format!("an address cannot be restored: {error:#}"));
            }
            for index in (0..count).filter(|index| extent.is_planted || *index != next) {
                // The address that was good, and so the one in use, always fails.
                let fails = index == good || rng.chance(0.7);
                let fault =
                    if fails { AddressFault::ALL[rng.index(AddressFault::ALL.len())] } else { AddressFault::None };
                let fault = if extent.is_planted { AddressFault::Refuse } else { fault };
                site.set(index, fault);
                if fault != AddressFault::None {
                    *counts.faults.entry(fault).or_default() += 1;
                }
            }
            good = next;
            std::thread::sleep(extent.phase);
        }
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            match client.join() {
                Ok(done) => counts.add(done),
                Err(_) => counts.problems.push("a client panicked".into()),
            }
        }
    });
    if extent.several == OriginRedundancy::Servers && !extent.is_planted {
        for index in 0..count {
            site.restore(index)?;
        }
        counts.problems.extend(shares.judge(&nectary, &site)?);
    }
    judge(&mut counts, &site, &nectary, seed)?;
    Ok(counts)
}

/// A proxy of an origin whose name has the addresses of a site.
fn over_addresses(scratch: &ScratchFolder, site: &FailoverOrigin) -> Result<NectaryProxy> {
    let hosts = scratch.join("hosts");
    std::fs::write(&hosts, site.hosts(NAME))?;
    let mut command = ProxyCommand::new(scratch.path(), Some(format!("http://{NAME}:{}", site.port())))?;
    command.arguments.extend(["--first-byte", "1s"].map(str::to_owned));
    let script = format!("mount --bind '{}' /etc/hosts && exec \"$@\"", hosts.display());
    command.wrapper = ["unshare", namespace(), "sh", "-c", &script, "sh"].map(str::to_owned).to_vec();
    command.start()
}

/// Checks what the origin and the proxy have counted.
fn judge(counts: &mut FailoverCounts, site: &FailoverOrigin, nectary: &NectaryProxy, seed: u64) -> Result<()> {
    let status = nectary.control()?.status()?;
    let failed_fills = find(&status, "failed_fills").and_then(serde_json::Value::as_u64).context("no failed_fills")?;
    let seen = site.seen();
    if failed_fills < counts.halves {
        counts.problems.push(format!("{} halves, but only {failed_fills} failed fills are counted", counts.halves));
    }
    for (target, times) in seen.posts.iter().filter(|(_, times)| **times > 1) {
        counts.problems.push(format!("POST {target} arrived {times} times"));
    }
    if counts.answered == 0 {
        counts.problems.push("no request was answered".into());
    }
    counts.problems.iter_mut().for_each(|problem| problem.push_str(&format!(", seed {seed}")));
    Ok(())
}

/// One client: sends requests one after another until it is stopped.
fn load(
    client: usize,
    mut rng: SeededRng,
    nectary: &NectaryProxy,
    site: &FailoverOrigin,
    stop: &AtomicBool,
) -> FailoverCounts {
    let mut counts = FailoverCounts::default();
    let mut connection = HttpConnection::new(nectary.listen, Duration::from_secs(20));
    let mut known: Vec<String> = Vec::new();
    for number in 0u64.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        counts.requests += 1;
        let chance = rng.unit();
        if chance < 0.2 {
            post(&mut connection, &format!("/post/{client}/{number}"), &mut counts);
        } else if chance < 0.4 && !known.is_empty() {
            let target = known[rng.index(known.len())].clone();
            get(&mut connection, &target, site, &mut counts);
        } else {
            let target = format!("/{client}/{number}?size={}", 1000 + rng.below(60_000));
            if get(&mut connection, &target, site, &mut counts) == GetResult::Half {
                // Nothing of it was stored, and the rest can be had now.
                if get(&mut connection, &target, site, &mut counts) == GetResult::Hit {
                    counts.problems.push(format!("{target}: half an answer was stored"));
                }
            }
            known.push(target);
        }
        std::thread::sleep(Duration::from_millis(rng.below(20)));
    }
    counts
}

/// The answer to a GET.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GetResult {
    Fetched,
    Hit,
    Half,
    Nothing,
}

fn get(connection: &mut HttpConnection, target: &str, site: &FailoverOrigin, counts: &mut FailoverCounts) -> GetResult {
    let begin = Instant::now();
    let result = connection.get(target);
    let time = begin.elapsed();
    counts.longest = counts.longest.max(time);
    if time > ANSWER_MAX {
        let what = match &result {
            Ok(response) => format!("status {}", response.status),
            Err(failure) => failure.to_string(),
        };
        let during = if site.changed_since(begin) { ", while faults changed" } else { "" };
        counts.problems.push(format!("GET {target} took {:.2} s{during}: {what}", time.as_secs_f64()));
    }
    match result {
        Ok(response) if is_whole(&response, target) => {
            counts.answered += 1;
            // A copy of the request may have got half an answer.
            site.seen().halves.remove(target);
            if response.is_hit() { GetResult::Hit } else { GetResult::Fetched }
        }
        Err(RequestFailure::Truncated { .. } | RequestFailure::Connection(_)) if site.seen().halves.remove(target) => {
            counts.halves += 1;
            GetResult::Half
        }
        // Servers are asked one after the other, so one that has failed before is not asked again when it is well.
        Ok(response) if matches!(response.status, 502 | 504) && site.has_servers() && site.changed_since(begin) => {
            counts.between += 1;
            GetResult::Nothing
        }
        Ok(response) => {
            counts.problems.push(format!("GET {target}: status {}, {} bytes", response.status, response.body.len()));
            GetResult::Nothing
        }
        Err(failure) => {
            counts.problems.push(format!("GET {target}: {failure}"));
            GetResult::Nothing
        }
    }
}

fn is_whole(response: &HttpResponse, target: &str) -> bool {
    response.status == 200 && response.body == content::body(target, 1, site::size_of(target))
}

fn post(connection: &mut HttpConnection, target: &str, counts: &mut FailoverCounts) {
    let begin = Instant::now();
    let request = format!("POST {target} HTTP/1.1\r\nHost: {NAME}\r\nContent-Length: 4\r\n\r\nbody");
    let result = connection.exchange(request.as_bytes(), "POST");
    let time = begin.elapsed();
    counts.longest = counts.longest.max(time);
    if time > ANSWER_MAX {
        counts.problems.push(format!("POST {target} took {:.2} s", time.as_secs_f64()));
    }
    match result {
        Ok(response) if response.status == 200 && response.body == b"done" => counts.posts += 1,
        // Half an answer and a broken exchange must not be repeated.
        Err(RequestFailure::Truncated { .. } | RequestFailure::Connection(_)) => counts.posts_failed += 1,
        Ok(response) if matches!(response.status, 502 | 504) => counts.posts_failed += 1,
        Ok(response) => counts.problems.push(format!("POST {target}: status {}", response.status)),
        Err(failure) => counts.problems.push(format!("POST {target}: {failure}")),
    }
}
