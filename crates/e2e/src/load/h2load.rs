//! Runs `h2load`, a load of HTTP/2 or of HTTP/1 with TLS, and reads its results.

use crate::guard::{self, GuardedProcess, find_program};
use anyhow::{Context, Result, bail};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The settings of a run.
#[derive(Clone, Debug)]
pub struct H2Load {
    /// The server's address.
    pub address: SocketAddr,
    /// Whether there is TLS.
    pub is_tls: bool,
    /// Whether the requests are HTTP/1.1 instead of HTTP/2.
    pub is_http1: bool,
    /// The target that is requested repeatedly.
    pub target: String,
    /// The number of connections.
    pub connections: usize,
    /// The number of requests that are under way on each connection.
    pub streams: usize,
    /// The duration of the run.
    pub duration: Duration,
    /// Processor to run on.
    pub cpu: Option<usize>,
}

/// The results of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct H2Measured {
    /// The number of requests that were answered with a status of 200 to 299.
    pub requests: u64,
    /// The number of requests per second.
    pub requests_per_second: f64,
    /// The number of requests that failed, timed out, or had another status.
    pub errors: u64,
}

/// True if `h2load` is installed.
pub fn is_there() -> bool {
    find_program("h2load").is_some()
}

/// A run that has been started.
#[derive(Debug)]
pub struct H2Running {
    process: GuardedProcess,
    limit: Duration,
}

/// Starts a run; its log goes into `folder`.
pub fn start(load: &H2Load, folder: &Path) -> Result<H2Running> {
    let program = find_program("h2load").context("h2load is not installed (Debian package nghttp2-client)")?;
    let log = folder.join("h2load.log");
    _ = std::fs::remove_file(&log);
    let mut command = Command::new(program);
    if load.is_http1 {
        command.arg("--h1");
    }
    let scheme = if load.is_tls { "https" } else { "http" };
    command
        .args(["-t", "1", "-c", &load.connections.to_string(), "-m", &load.streams.to_string()])
        .args(["-D", &load.duration.as_secs().max(1).to_string()])
        .arg(format!("{scheme}://{}{}", load.address, load.target));
    let process = GuardedProcess::spawn("h2load", command, &log, load.cpu)?;
    Ok(H2Running { process, limit: load.duration + Duration::from_secs(60) })
}

impl H2Running {
    /// Waits for the end and reads the summary.
    pub fn finish(mut self) -> Result<H2Measured> {
        let status = self.process.wait(self.limit)?;
        if !status.success() {
            bail!("h2load ended with {}\n{}", guard::describe(status), self.process.log_tail());
        }
        read(&self.process.log_text()).with_context(|| self.process.log_tail())
    }
}

/// Starts a run, and waits for its results.
pub fn run(load: &H2Load, folder: &Path) -> Result<H2Measured> {
    start(load, folder)?.finish()
}

/// Reads the summary that h2load prints at its end.
fn read(text: &str) -> Result<H2Measured> {
    let line =
        |start: &str| text.lines().find_map(|line| line.strip_prefix(start)).with_context(|| format!("no `{start}`"));
    // `finished in 3.00s, 1234.33 req/s, 1.22MB/s`
    let rate = line("finished in ")?.split(", ").nth(1).and_then(|rate| rate.strip_suffix(" req/s"));
    // `requests: 10 total, 10 started, 10 done, 10 succeeded, 0 failed, 0 errored, 0 timeout`
    let counts = numbers(line("requests: ")?);
    // `status codes: 10 2xx, 0 3xx, 0 4xx, 0 5xx`
    let statuses = numbers(line("status codes: ")?);
    let of = |counts: &[(u64, String)], name: &str| {
        counts
            .iter()
            .find(|(_, word)| word == name)
            .map(|(count, _)| *count)
            .with_context(|| format!("no count of {name}"))
    };
    let failures = ["failed", "errored", "timeout"].into_iter().map(|name| of(&counts, name)).sum::<Result<u64>>()?;
    let others = ["3xx", "4xx", "5xx"].into_iter().map(|name| of(&statuses, name)).sum::<Result<u64>>()?;
    Ok(H2Measured {
        requests: of(&statuses, "2xx")?,
        requests_per_second: rate.context("no rate")?.parse()?,
        errors: failures + others,
    })
}

/// The numbers of a line, each with the word behind it.
fn numbers(line: &str) -> Vec<(u64, String)> {
    let pair = |part: &str| {
        let (number, word) = part.trim().split_once(' ')?;
        Some((number.parse().ok()?, word.to_owned()))
    };
    line.split(',').filter_map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_of_h2load_is_read() {
        let text = "progress: 100% done\n\nfinished in 3.00s, 1234.33 req/s, 1.22MB/s\n\
                    requests: 3710 total, 3711 started, 3710 done, 3703 succeeded, 1 failed, 2 errored, 4 timeout\n\
                    status codes: 3700 2xx, 1 3xx, 1 4xx, 1 5xx\n";
        let measured = read(text).expect("a summary");
        assert_eq!(measured, H2Measured { requests: 3700, requests_per_second: 1234.33, errors: 10 });
        assert!(read("finished in 3.00s, 1 req/s\n").is_err(), "a summary that is cut off");
    }
}
