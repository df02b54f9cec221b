//! Runs h2spec, the conformance tests of HTTP/2, against a proxy with and without TLS, and against nginx:
//! `e2e-campaigns http2-spec`.
//!
//! h2spec is built from its Go module into `target/tools`. The exit code is 0 only if the proxy fails no test that nginx
//! passes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use nectary_e2e::guard::{self, find_program};
use nectary_e2e::nectary::certificates::ServerCertificates;
use nectary_e2e::nectary::{ProxyCommand, binary};
use nectary_e2e::origin::DeterministicOrigin;
use nectary_e2e::peers::PeerProxy;
use nectary_e2e::scratch::ScratchFolder;

use crate::rounds::{NotRunPolicy, ProblemCounter};

const MODULE: &str = "github.com/summerwind/h2spec/cmd/h2spec@latest";
/// The longest time of a build, and of a run of the tests.
const LIMIT: Duration = Duration::from_secs(600);
/// What begins otherwise than HTTP/2 is HTTP/1 where both are served at one address, and is answered as such (`400`).
const ANSWERED_AS_HTTP1: &str = "http2/3.5 Sends invalid connection preface";
/// The fewest tests of a run that counts.
const TESTS_MIN: usize = 90;

/// Runs the conformance tests of HTTP/2 against a proxy and nginx.
#[derive(Args)]
pub struct Http2SpecArguments {
    /// The program h2spec, if it is not to be built
    #[arg(long, value_name = "PROGRAM")]
    h2spec: Option<PathBuf>,
}

/// Runs the campaign.
pub fn campaign(arguments: &Http2SpecArguments) -> Result<ExitCode> {
    let scratch = ScratchFolder::new("http2-spec")?;
    let program = match find(arguments, &scratch)? {
        Ok(program) => program,
        Err(reason) => return Ok(NotRunPolicy::IsAllowed.exit("http2-spec", reason)),
    };
    let origin = DeterministicOrigin::start()?;
    let mut problems = ProblemCounter::default();
    let nginx = PeerProxy::nginx_http2(origin.address())?;
    let of_nginx = run(&program, &nginx.name, nginx.address.port(), false, &scratch)?;
    for is_tls in [false, true] {
        let folder = scratch.join(if is_tls { "tls" } else { "plain" });
        std::fs::create_dir_all(&folder)?;
        let mut command = ProxyCommand::new(&folder, Some(format!("http://{}", origin.address())))?;
        if is_tls {
            command.arguments.extend(ServerCertificates::make(&folder, "localhost,127.0.0.1")?.options());
        }
        let proxy = command.start()?;
        let name = if is_tls { "nectary with TLS" } else { "nectary" };
        let found = run(&program, name, proxy.listen.port(), is_tls, &scratch)?;
        let is_meant = |test: &&String| !is_tls && *test == ANSWERED_AS_HTTP1;
        for test in found.failed.difference(&of_nginx.failed).filter(|test| !is_meant(test)) {
            problems.add(format!("{name} fails a test that {} passes: {test}", nginx.name));
        }
        if found.count < TESTS_MIN {
            problems.add(format!("{name}: only {} tests were run", found.count));
        }
    }
    Ok(problems.exit())
}

/// Finds or builds the program; or says why it cannot be had.
fn find(arguments: &Http2SpecArguments, scratch: &ScratchFolder) -> Result<Result<PathBuf, String>> {
    if let Some(program) = &arguments.h2spec {
        return Ok(Ok(program.clone()));
    }
    let tools = binary()?.parent().and_then(Path::parent).context("a target directory")?.join("tools");
    let program = tools.join("h2spec");
    if program.is_file() {
        return Ok(Ok(program));
    }
    let go = find_program("go").or_else(|| Some(PathBuf::from("/usr/local/go/bin/go")).filter(|go| go.is_file()));
    let Some(go) = go else {
        return Ok(Err("h2spec is built with Go, which is not installed".to_owned()));
    };
    std::fs::create_dir_all(&tools)?;
    let mut command = Command::new(go);
    command.arg("install").arg(MODULE).env("GOBIN", std::path::absolute(&tools)?);
    let (status, output) = guard::run("go", command, &scratch.join("go.log"), LIMIT)?;
    if !status.success() {
        return Ok(Err(format!("h2spec could not be built: {}", output.trim())));
    }
    Ok(Ok(program))
}

/// The result of a run.
struct H2SpecResult {
    count: usize,
    failed: BTreeSet<String>,
}

fn run(program: &Path, name: &str, port: u16, is_tls: bool, scratch: &ScratchFolder) -> Result<H2SpecResult> {
    let report = scratch.join(&format!("{port}.xml"));
    let mut command = Command::new(program);
    command.args(["-h", "127.0.0.1", "-p", &port.to_string(), "-o", "5", "-P", "/"]).arg("-j").arg(&report);
    if is_tls {
        command.args(["-t", "-k"]);
    }
    let (_, output) = guard::run("h2spec", command, &scratch.join(&format!("{port}.log")), LIMIT)?;
    let text = std::fs::read_to_string(&report).with_context(|| format!("no report of h2spec: {output}"))?;
    let found = read(&text);
    println!("{name}: {} tests, {} failed", found.count, found.failed.len());
    found.failed.iter().for_each(|test| println!("  failed: {test}"));
    Ok(found)
}

/// Reads a report in JUnit's XML.
fn read(text: &str) -> H2SpecResult {
    let (mut count, mut failed) = (0, BTreeSet::new());
    for case in text.split("<testcase ").skip(1) {
        count += 1;
        let attribute = |name: &str| {
            let start = case.split_once(&format!("{name}=\""))?.1;
            Some(start.split_once('"')?.0.to_owned())
        };
        let body = case.split("</testcase>").next().unwrap_or_default();
        if body.contains("<failure") || body.contains("<error") {
            let (package, class) = (attribute("package"), attribute("classname"));
            failed.insert(format!("{} {}", package.unwrap_or_default(), class.unwrap_or_default()));
        }
    }
    H2SpecResult { count, failed }
}
