//! curl gets HTTP/2 and HTTP/1.1 over TLS, is sent there from http, and sees a new certificate without a restart; and
//! who watches a proxy gets its state and its metrics.

mod half_open;

use anyhow::{Context, Result, bail};
use nectary_e2e::filled::FilledProxy;
use nectary_e2e::guard::{self, find_program};
use nectary_e2e::http::HttpConnection;
use nectary_e2e::nectary::AUTHORIZATION;
use nectary_e2e::nectary::certificates::ServerCertificates;
use nectary_e2e::report::not_run;
use nectary_e2e::scratch::{ScratchFolder, free_address};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Runs curl, which must succeed; returns what it printed.
fn curl(scratch: &ScratchFolder, ca: &Path, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new("curl");
    command.args(["-sS", "--noproxy", "*", "-m", "20", "--cacert"]).arg(ca).args(arguments);
    let log = scratch.join("curl.log");
    let _ = std::fs::remove_file(&log);
    let (status, text) = guard::run("curl", command, &log, Duration::from_secs(30))?;
    if !status.success() {
        bail!("curl {arguments:?}: {}: {text}", guard::describe(status));
    }
    Ok(text)
}

#[test]
fn new_certificate_needs_no_restart() -> Result<()> {
    if find_program("curl").is_none() {
        not_run("curl is not installed");
        return Ok(());
    }
    let mut filled = FilledProxy::new("tls", 1, 39)?;
    let certificates = ServerCertificates::make(filled.scratch.path(), "localhost,127.0.0.1")?;
    let (plain, admin) = (free_address()?, free_address()?);
    filled.command.arguments.extend(certificates.options());
    filled.command.arguments.extend(["--redirect-listen", &plain.to_string()].map(str::to_owned));
    filled.command.arguments.extend(["--admin-listen", &admin.to_string()].map(str::to_owned));
    let mut nectary = filled.command.start()?;
    let url = format!("https://{}{}", nectary.listen, filled.targets[0]);
    let ask = |ca: &Path, arguments: &[&str]| {
        let body = filled.scratch.join("body");
        let print = "%{http_version} %{http_code} %{url_effective}";
        let own = ["-o", body.to_str().context("a path")?, "-w", print, "-L"];
        curl(&filled.scratch, ca, &[&own[..], arguments].concat())
    };
    assert_eq!(ask(&certificates.ca, &["--http2", &url])?, format!("2 200 {url}"));
    assert_eq!(ask(&certificates.ca, &["--http1.1", &url])?, format!("1.1 200 {url}"));
    let from = format!("http://{plain}{}", filled.targets[0]);
    assert_eq!(ask(&certificates.ca, &["--http2", &from])?, format!("2 200 {url}"));
    assert_eq!(ask(&certificates.ca, &["--http2-prior-knowledge", "-o", "/dev/null", &url])?, format!("2 200 {url}"));

    // A certificate of another authority is put into place, then read.
    let other = ScratchFolder::new("tls-other")?;
    let new = ServerCertificates::make(other.path(), "localhost,127.0.0.1")?;
    assert!(ask(&new.ca, &[&url]).is_err(), "the authority is not known yet");
    std::fs::copy(&new.certificate, &certificates.certificate)?;
    std::fs::copy(&new.key, &certificates.key)?;
    nectary.process.signal(libc::SIGHUP);
    let begun = Instant::now();
    while ask(&new.ca, &[&url]).is_err() {
        assert!(begun.elapsed() < Duration::from_secs(10), "the new certificate is not shown");
    }
    assert!(ask(&certificates.ca, &[&url]).is_err(), "the old certificate is still shown");

    // Who balances load needs no token; the metrics do.
    let mut watcher = HttpConnection::new(admin, Duration::from_secs(5));
    for path in ["/healthz", "/readyz"] {
        assert_eq!(watcher.get(path)?.status, 200, "{path}");
    }
    assert_eq!(HttpConnection::new(admin, Duration::from_secs(5)).get("/metrics")?.status, 401);
    let metrics = watcher.request("GET", "/metrics", &[AUTHORIZATION])?;
    let text = String::from_utf8_lossy(&metrics.body).into_owned();
    for line in [
        "nectary_proxy_http2_connections_total{",
        "nectary_proxy_handshakes_total{",
        "nectary_proxy_certificate_end_timestamp_seconds{",
        "nectary_proxy_request_duration_seconds_bucket{",
        "nectary_store_entries{",
        "nectary_part_state{component=\"proxy\"",
    ] {
        assert!(text.lines().any(|found| found.starts_with(line)), "no {line} in\n{text}");
    }
    nectary.terminate(Duration::from_secs(20))?;
    Ok(())
}
