//! A proxy that orders certificates from an authority that does not answer: it serves, and says what is wrong.

use anyhow::{Context, Result, bail};
use nectary_e2e::guard::{self, find_program};
use nectary_e2e::nectary::certificates::ServerCertificates;
use nectary_e2e::nectary::{ProxyCommand, run};
use nectary_e2e::origin::DeterministicOrigin;
use nectary_e2e::report::not_run;
use nectary_e2e::scratch::{ScratchFolder, free_address};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// A site whose certificate nobody gives; `state` is the directory of certificates.
fn text(command: &ProxyCommand, origin: &DeterministicOrigin, (ca, state): (&Path, &Path)) -> Result<String> {
    Ok(format!(
        r#"
[server]
workers = 1

[[listener]]
address = "{}"
tls = true

[[listener]]
address = "{}"
redirect-to-https = true

[tls.acme]
accept-terms = true
directory = "https://{}/dir"
ca = "{}"
state = "{}"

[store]
device = "{}"
size = "{}"
memory = "{}"

[origins.one]
servers = ["{}"]

[[site]]
names = ["one.example", "*.one.example"]

[[site.route]]
origin = "one"
"#,
        command.listen,
        free_address()?,
        free_address()?,
        ca.display(),
        state.display(),
        command.store,
        command.size,
        command.memory,
        origin.url(),
    ))
}

#[test]
fn missing_certificate_names_remedy() -> Result<()> {
    let scratch = ScratchFolder::new("acme-missing")?;
    let origin = DeterministicOrigin::start()?;
    let certificates = ServerCertificates::make(scratch.path(), "localhost")?;
    let command = ProxyCommand::new(scratch.path(), None)?;
    let (file, state) = (scratch.join("proxy.toml"), scratch.join("acme"));
    std::fs::write(&file, text(&command, &origin, (&certificates.ca, &state))?)?;
    let path = file.to_str().context("a path")?;
    let (status, printed) = run(&["proxy", "--config", path, "--check-config"], scratch.path())?;
    // The check makes nothing: it can be another user than that of the proxy.
    let told = format!("`state`: there is no directory {}; the proxy makes it", state.display());
    assert!(status.success() && printed.contains(&told) && !state.exists(), "{printed}");

    let mut nectary = command.start_with_file(&file)?;
    let begun = Instant::now();
    let status = loop {
        let status = nectary.control()?.status()?;
        if status["state"] == "degraded" {
            break status;
        }
        if begun.elapsed() > Duration::from_secs(20) {
            bail!("the status is never degraded: {status}");
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let problem = &status["problems"][0];
    let what = problem["what"].as_str().unwrap_or_default();
    assert!(
        what.starts_with("no certificate for one.example: 127.0.0.1:") && what.contains("attempt 1 failed"),
        "{what}"
    );
    assert!(problem["do"].as_str().is_some_and(|remedy| remedy.contains("reaches the authority")), "{status}");
    let ordered = &status["detail"]["acme"];
    assert_eq!((&ordered[0]["name"], ordered.as_array().map(Vec::len)), (&json!("one.example"), Some(1)));
    assert_eq!(ordered[0]["not_after_s"], Value::Null);
    let log = nectary.process.log_text();
    assert!(log.contains("certificates are ordered for 1 names: one.example") && log.contains("on https://"), "{log}");
    is_served(&scratch, command.listen.port())?;
    nectary.terminate(Duration::from_secs(20))?;

    assert!(state.is_dir(), "the proxy keeps what it knows");

    // A directory that cannot be made is told by the check alone.
    let taken = scratch.join("taken");
    std::fs::write(&taken, "")?;
    std::fs::write(&file, text(&command, &origin, (&certificates.ca, &taken.join("acme")))?)?;
    let (status, printed) = run(&["proxy", "--config", path, "--check-config"], scratch.path())?;
    assert!(status.code() == Some(2) && printed.contains("`state`") && printed.contains("proxy.toml:"), "{printed}");
    let mut nectary = command.start_with_file(&file)?;
    nectary.terminate(Duration::from_secs(20))?;
    Ok(())
}

/// Asks for a page as a client that accepts the placeholder.
fn is_served(scratch: &ScratchFolder, port: u16) -> Result<()> {
    if find_program("curl").is_none() {
        not_run("curl is not installed");
        return Ok(());
    }
    let mut command = Command::new("curl");
    let (place, url) =
        (format!("one.example:{port}:127.0.0.1"), format!("https://one.example:{port}/anything/a?size=10"));
    command.args(["-sSfk", "--noproxy", "*", "-m", "20", "--resolve", &place, "-o", "/dev/null", &url]);
    let (status, text) = guard::run("curl", command, &scratch.join("curl.log"), Duration::from_secs(30))?;
    if !status.success() {
        bail!("{}: {text}", guard::describe(status));
    }
    Ok(())
}
