//! Runs `wrk` and reads its results.
//!
//! The script for `wrk` takes targets from a file in order; each thread starts at a different position. It prints the
//! summary as one line of JSON, which is easy to parse.

use crate::guard::{self, GuardedProcess};
use anyhow::{Context, Result, bail};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Takes targets from a file.
const DRAW: &str = r#"
local serial = 0
function setup(thread)
  thread:set("serial", serial)
  serial = serial + 1
end
function init(args)
  requests = {}
  for target in io.lines(args[1]) do
    requests[#requests + 1] = wrk.format("GET", target)
  end
  -- A seventh of the list apart: threads do not walk in step.
  at = math.floor(serial * #requests / 7) % #requests
end
function request()
  at = at + 1
  if at > #requests then at = 1 end
  return requests[at]
end
"#;

/// Prints the summary.
const SUMMARY: &str = r#"
function done(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    'SUMMARY {"requests":%d,"duration_us":%d,"bytes":%d,"connect":%d,"read":%d,"write":%d,"status":%d,"timeout":%d,"p50_us":%d,"p99_us":%d}\n',
    summary.requests, summary.duration, summary.bytes, errors.connect, errors.read, errors.write, errors.status,
    errors.timeout, latency:percentile(50), latency:percentile(99)))
end
"#;

/// The failures that wrk reports.
pub const ERROR_KINDS: [&str; 5] = ["connect", "read", "write", "status", "timeout"];

/// The results of one run.
#[derive(Clone, Copy, Debug)]
pub struct WrkResult {
    /// The number of requests that were answered.
    pub requests: u64,
    /// The number of requests per second.
    pub requests_per_second: f64,
    /// The number of bytes received.
    pub bytes: u64,
    /// The number of errors: connections, reads and writes that failed, timeouts, and answers with a status of 400 and
    /// above.
    pub errors: u64,
    /// The number of errors of each kind, in the order of [`ERROR_KINDS`].
    pub errors_by_kind: [u64; 5],
    /// The median latency.
    pub p50_us: u64,
    /// The 99th percentile of the latency.
    pub p99_us: u64,
}

/// The settings of a run of `wrk`.
#[derive(Clone, Debug)]
pub struct WrkSettings {
    /// The server's address.
    pub address: SocketAddr,
    /// File with one target per line, requested in this order, repeatedly.
    pub targets: PathBuf,
    /// The number of threads.
    pub threads: usize,
    /// The number of connections of all threads together.
    pub connections: usize,
    /// The duration of the run.
    pub duration: Duration,
    /// Processor to run on.
    pub cpu: Option<usize>,
}

/// Writes a file of targets.
pub fn write_targets(path: &Path, targets: impl Iterator<Item = String>) -> Result<()> {
    let mut text = String::new();
    for target in targets {
        text.push_str(&target);
        text.push('\n');
    }
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// A run that has been started.
#[derive(Debug)]
pub struct WrkRun {
    process: GuardedProcess,
    limit: Duration,
}

/// Starts a run; script and log go into `folder`.
pub fn start(load: &WrkSettings, folder: &Path) -> Result<WrkRun> {
    let program = guard::find_program("wrk").context("wrk is not installed (Debian package wrk)")?;
    let script = folder.join("wrk.lua");
    let targets = std::fs::read_to_string(&load.targets)?;
    // Taking a target costs wrk some time per request, so a single target is set once.
    let draw = match targets.strip_suffix('\n').unwrap_or(&targets) {
        one if !one.contains('\n') => format!("wrk.path = \"{one}\"\n"),
        _ => DRAW.to_owned(),
    };
    std::fs::write(&script, draw + SUMMARY)?;
    let log = folder.join("wrk.log");
    let _ = std::fs::remove_file(&log);
    let mut command = Command::new(program);
    command
        .arg(format!("-t{}", load.threads))
        .arg(format!("-c{}", load.connections))
        .arg(format!("-d{}", load.duration.as_secs().max(1)))
        .arg("--timeout=30s")
        .arg("-s")
        .arg(&script)
        .arg(format!("http://{}/", load.address))
        .arg("--")
        .arg(&load.targets);
    let process = GuardedProcess::spawn("wrk", command, &log, load.cpu)?;
    Ok(WrkRun { process, limit: load.duration + Duration::from_secs(60) })
}

impl WrkRun {
    /// Whether the run goes on.
    pub fn goes_on(&mut self) -> bool {
        self.process.try_status().is_none()
    }

    /// Waits for the end and reads the summary.
    pub fn finish(mut self) -> Result<WrkResult> {
        let status = self.process.wait(self.limit)?;
        if !status.success() {
            bail!("wrk ended with {}\n{}", guard::describe(status), self.process.log_tail());
        }
        read_summary(&self.process.log_text()).with_context(|| self.process.log_tail())
    }
}

/// Starts a run, and waits for its results.
pub fn run(load: &WrkSettings, folder: &Path) -> Result<WrkResult> {
    start(load, folder)?.finish()
}

fn read_summary(text: &str) -> Result<WrkResult> {
    let line = text.lines().find_map(|line| line.strip_prefix("SUMMARY ")).context("no summary of wrk")?;
    let summary: serde_json::Value = serde_json::from_str(line)?;
    let number = |name: &str| summary[name].as_u64().with_context(|| format!("wrk's summary lacks {name}"));
    let mut errors_by_kind = [0; ERROR_KINDS.len()];
    for (name, errors) in ERROR_KINDS.iter().zip(&mut errors_by_kind) {
        *errors = number(name)?;
    }
    let (requests, duration_us) = (number("requests")?, number("duration_us")?);
    Ok(WrkResult {
        requests,
        requests_per_second: requests as f64 * 1e6 / duration_us.max(1) as f64,
        bytes: number("bytes")?,
        errors: errors_by_kind.iter().sum(),
        errors_by_kind,
        p50_us: number("p50_us")?,
        p99_us: number("p99_us")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::origin::DeterministicOrigin;
    use crate::scratch::ScratchFolder;

    #[test]
    fn one_target_needs_no_script() {
        let scratch = ScratchFolder::new("wrk-one").unwrap();
        let origin = DeterministicOrigin::start().unwrap();
        let targets = scratch.join("targets");
        write_targets(&targets, std::iter::once("/o/7?size=100".to_owned())).unwrap();
        let duration = Duration::from_secs(1);
        let load = WrkSettings { address: origin.address(), targets, threads: 1, connections: 4, duration, cpu: None };
        let measured = run(&load, scratch.path()).unwrap();
        assert_eq!((measured.errors, origin.count("/o/7?size=100").requests >= measured.requests), (0, true));
    }

    #[test]
    fn wrk_requests_targets_of_file() {
        let scratch = ScratchFolder::new("wrk").unwrap();
        let origin = DeterministicOrigin::start().unwrap();
        let targets = scratch.join("targets");
        write_targets(&targets, (0..10).map(|id| format!("/o/{id}?size=100"))).unwrap();
        let duration = Duration::from_secs(1);
        let load = WrkSettings { address: origin.address(), targets, threads: 1, connections: 4, duration, cpu: None };
        let measured = run(&load, scratch.path()).unwrap();
        assert_eq!(measured.errors, 0);
        assert!(measured.requests > 100 && origin.requests() >= measured.requests);
        assert!((0..10).all(|id| origin.count(&format!("/o/{id}?size=100")).requests > 0));
    }
}
