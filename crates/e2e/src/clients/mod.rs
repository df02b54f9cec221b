//! Runs each package client twice through the proxy, each time with an empty cache of the client, and checks that the
//! second run finds its packages in the store.
//!
//! Owns: a run, and the comparison of two runs; each client has its own file: npm, pip, cargo, apt, git. Addresses of
//! registries and mirrors are those of this machine's configuration, or those built into a client; this file contains
//! none.
//!
//! Promises: the files of both runs are equal, and equal to those of a run without the proxy; each package of the
//! second run is a hit. A client that is missing, or cannot reach its registry without the proxy, is not run, and the
//! reason is reported.

pub mod apt;
pub mod cargo;
pub mod git;
pub mod npm;
pub mod pip;
pub(crate) mod small_server;
mod split;

use crate::access_log::{self, AccessLogEntry};
use crate::guard;
use crate::nectary::{NectaryProxy, ProxyCommand};
use anyhow::{Result, bail};
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The longest time that one call of a client may take.
const LIMIT: Duration = Duration::from_secs(100);

/// Files by name.
pub type Files = BTreeMap<String, Vec<u8>>;

/// The results of a client.
#[derive(Debug)]
pub enum ClientVerdict {
    /// The promise of this file held for the client.
    Kept(ClientReport),
    /// The client could not be run; the text is the reason.
    NotRun(String),
}

/// The hits in the second run of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientReport {
    /// The client.
    pub client: &'static str,
    /// The number of files that were equal.
    pub files: usize,
    /// The number of bytes of these files.
    pub bytes: usize,
    /// The number of packages, all of which the second run found in the store.
    pub packages: usize,
    /// The number of URLs that both runs requested.
    pub urls: usize,
    /// The number of URLs that were hits in the second run.
    pub hits: usize,
    /// The URLs that were misses in the second run: the end of each, and its two `Cache-Status` values.
    pub misses: Vec<String>,
}

impl fmt::Display for ClientReport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "{}: {} files ({} bytes) equal in all runs; the second time {} packages, and {} of {} URLs, came from the store",
            self.client, self.files, self.bytes, self.packages, self.hits, self.urls
        )?;
        self.misses.iter().try_for_each(|miss| write!(out, "\n  not a hit: {miss}"))
    }
}

/// Compares two runs with each other and with the right files, and reads the cache's results of both from the log.
///
/// *Errors*: files differ, or a package (a URL for which `is_package` is true) is not a hit in the second run.
fn compare(
    client: &'static str,
    right: &Files,
    runs: &[Files; 2],
    lines: &[AccessLogEntry],
    is_package: impl Fn(&str) -> bool,
) -> Result<ClientReport> {
    if runs[0] != runs[1] || runs[0].is_empty() {
        bail!("{client}: the two runs differ: {}", difference(&runs[0], &runs[1]));
    }
    if let Some((name, _)) = right.iter().find(|(name, bytes)| runs[0].get(*name) != Some(*bytes)) {
        bail!("{client}: {name} differs from that of a run without the proxy");
    }
    let mut urls = BTreeMap::<&str, Vec<&str>>::new();
    for line in lines.iter().filter(|line| line.method == "GET" && line.status < 400) {
        urls.entry(&line.url).or_default().push(&line.result);
    }
    let is_hit = |results: &[&str]| results.len() > 1 && results.last() == Some(&"HIT");
    let of_packages: Vec<_> = urls.iter().filter(|(url, _)| is_package(url)).collect();
    if of_packages.is_empty() {
        bail!("{client}: no package came through the proxy: {urls:?}");
    }
    if let Some((url, results)) = of_packages.iter().find(|(_, results)| !is_hit(results)) {
        bail!("{client}: {url} is no hit the second time: {results:?}");
    }
    let packages = of_packages.len();
    urls.retain(|_, results| results.len() > 1);
    let missed = urls.iter().filter(|(_, results)| !is_hit(results));
    let misses: Vec<_> =
        missed.map(|(url, results)| format!("{} {results:?}", url.rsplit('/').next().unwrap_or(url))).collect();
    Ok(ClientReport {
        client,
        files: runs[0].len(),
        bytes: runs[0].values().map(Vec::len).sum(),
        packages,
        urls: urls.len(),
        hits: urls.len() - misses.len(),
        misses,
    })
}

fn difference(left: &Files, right: &Files) -> String {
    let names = || left.keys().chain(right.keys());
    let differs = |name: &&String| left.get(*name) != right.get(*name);
    names().find(differs).map_or_else(|| "both are empty".to_owned(), Clone::clone)
}

/// Prepares a proxy with an access log. It gives a lifetime to responses without one, and ignores clients' demands for
/// fresh responses.
fn proxy(folder: &Path, origin: Option<String>, default_ttl: &str) -> Result<ProxyCommand> {
    std::fs::create_dir_all(folder)?;
    let mut command = ProxyCommand::new(folder, origin)?;
    command.access_log = true;
    command.arguments.extend(["--default-ttl", default_ttl, "--ignore-request-cache-control"].map(str::to_owned));
    Ok(command)
}

/// Stops a proxy and reads its access log.
fn finish(mut nectary: NectaryProxy, command: &ProxyCommand) -> Result<Vec<AccessLogEntry>> {
    let status = nectary.terminate(Duration::from_secs(20))?;
    if !status.success() {
        bail!("nectary: {}\n{}", guard::describe(status), nectary.process.log_tail());
    }
    access_log::read(&command.access_log_path())
}

/// Runs a client to its end; returns whether it reports success, and its output.
fn call(name: &str, mut command: Command, log: &Path) -> Result<(bool, String)> {
    let _ = std::fs::remove_file(log);
    // Ignore a proxy that this machine is configured for; it would be between the client and our proxy.
    for variable in ["http_proxy", "https_proxy", "all_proxy", "no_proxy"] {
        command.env_remove(variable).env_remove(variable.to_ascii_uppercase());
    }
    let (status, text) = guard::run(name, command, log, LIMIT)?;
    Ok((status.success(), text))
}

/// Returns every file under `folder` with its bytes, by its relative path.
fn tree(folder: &Path) -> Result<Files> {
    fn walk(folder: &Path, name: &str, files: &mut Files) -> Result<()> {
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            let name = format!("{name}/{}", entry.file_name().to_string_lossy());
            match entry.file_type()? {
                kind if kind.is_dir() => walk(&entry.path(), &name, files)?,
                kind if kind.is_file() => _ = files.insert(name, std::fs::read(entry.path())?),
                _ => {}
            }
        }
        Ok(())
    }
    let mut files = Files::new();
    walk(folder, "", &mut files)?;
    Ok(files)
}

fn last_line(text: &str) -> &str {
    text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A package that differs in the second run is an error, too.
    #[test]
    fn package_miss_is_an_error() {
        let line = |url: &str, result: &str| AccessLogEntry {
            method: "GET".to_owned(),
            url: url.to_owned(),
            status: 200,
            body_bytes: 1,
            result: result.to_owned(),
            object_bytes: None,
        };
        let files = Files::from([("a".to_owned(), b"1".to_vec())]);
        let other = Files::from([("a".to_owned(), b"2".to_vec())]);
        let is_package = |url: &str| url.ends_with(".tgz");
        let twice =
            |second: &str| [line("h/a.tgz", "MISS"), line("h/b", "MISS"), line("h/a.tgz", second), line("h/b", "PASS")];
        let runs = [files.clone(), files.clone()];
        let report = compare("c", &files, &runs, &twice("HIT"), is_package).unwrap();
        assert_eq!((report.packages, report.urls, report.hits, report.misses.len()), (1, 2, 1, 1));
        assert!(compare("c", &files, &runs, &twice("MISS"), is_package).is_err());
        assert!(compare("c", &other, &runs, &twice("HIT"), is_package).is_err());
        assert!(compare("c", &files, &[files.clone(), other], &twice("HIT"), is_package).is_err());
        assert!(compare("c", &files, &runs, &twice("HIT")[1..2], is_package).is_err());
        assert!(compare("c", &files, &runs, &twice("HIT")[2..3], is_package).is_err(), "asked for once");
    }
}
