//! The suite itself, installed with npm into a scratch directory, with its server and its client.

use super::SuiteOutput;
use super::contestants::{SuiteContestant, SuiteProtocol};
use crate::guard::{self, GuardedProcess, find_program};
use crate::http::wait_listening;
use crate::scratch::{ScratchFolder, free_address};
use anyhow::{Context, Result, bail};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The suite's name in npm.
pub const PACKAGE: &str = "http-cache-tests";
const CLIENT: &str = include_str!("client.mjs");
const INSTALL_LIMIT: Duration = Duration::from_secs(300);
/// The time limit of a run. Groups of tests run one after another, and some tests pause for three seconds between
/// requests.
const RUN_LIMIT: Duration = Duration::from_secs(900);

/// An installed suite whose server runs.
#[derive(Debug)]
pub struct InstalledSuite {
    /// The suite's server: the origin.
    pub origin: SocketAddr,
    folder: PathBuf,
    client: PathBuf,
    scratch: ScratchFolder,
    _server: GuardedProcess,
}

impl InstalledSuite {
    /// A required program that this machine does not have.
    pub fn missing() -> Option<&'static str> {
        ["node", "npm"].into_iter().find(|program| find_program(program).is_none())
    }

    /// Installs `source` in any form that npm accepts (the name of a package, a folder, a repository), and starts its
    /// server at `origin`, or at a free port.
    pub fn install(source: &str, origin: Option<SocketAddr>) -> Result<Self> {
        let scratch = ScratchFolder::new("cache-tests")?;
        std::fs::write(scratch.join("package.json"), "{\"name\": \"run\", \"version\": \"1.0.0\"}\n")?;
        // Make the path absolute: npm would search relative to its own directory.
        let source = match Path::new(source) {
            folder if folder.is_dir() => folder.canonicalize()?.display().to_string(),
            _ => source.to_owned(),
        };
        let mut npm = Command::new("npm");
        npm.args(["install", "--install-links", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier"])
            .arg(&source)
            .current_dir(scratch.path());
        let (status, text) = guard::run("npm", npm, &scratch.join("npm.log"), INSTALL_LIMIT)?;
        if !status.success() {
            bail!("npm cannot install {source}: {}\n{text}", guard::describe(status));
        }
        let folder = scratch.join("node_modules").join(PACKAGE);
        let client = scratch.join("client.mjs");
        std::fs::write(&client, CLIENT)?;

        let origin = origin.map_or_else(free_address, Ok)?;
        let engine = if folder.join("test-engine").is_dir() { folder.join("test-engine") } else { folder.clone() };
        let mut server = Command::new("node");
        server
            .arg(engine.join("server/server.mjs"))
            .current_dir(&folder)
            .env("npm_config_protocol", "http")
            .env("npm_config_port", origin.port().to_string())
            .env("npm_config_pidfile", scratch.join("server.pid"));
        let server = GuardedProcess::spawn("suite-server", server, &scratch.join("server.log"), None)?;
        wait_listening(origin, Duration::from_secs(30))
            .with_context(|| format!("the suite's server does not listen on {origin}\n{}", server.log_tail()))?;
        Ok(InstalledSuite { origin, folder, client, scratch, _server: server })
    }

    /// Runs every test that is not browser-only against a proxy.
    pub(crate) fn run(&self, contestant: &SuiteContestant) -> Result<SuiteOutput> {
        let file: String = contestant.name.chars().filter(char::is_ascii_alphanumeric).collect();
        let out = self.scratch.join(&format!("{file}.json"));
        let mut node = Command::new("node");
        node.arg("--no-warnings").arg(&self.client).arg(&self.folder).arg(contestant.base()).arg(&out);
        if contestant.protocol == SuiteProtocol::Http2 {
            node.arg("http2");
        }
        if let Some(ca) = &contestant.ca {
            node.env("NODE_EXTRA_CA_CERTS", ca);
        }
        let log = self.scratch.join(&format!("{file}.log"));
        let (status, text) = guard::run("suite-client", node, &log, RUN_LIMIT)?;
        if !status.success() {
            bail!("the suite's client: {}\n{text}", guard::describe(status));
        }
        let written = std::fs::read(&out).with_context(|| format!("the suite's client wrote nothing\n{text}"))?;
        Ok(serde_json::from_slice(&written)?)
    }
}
