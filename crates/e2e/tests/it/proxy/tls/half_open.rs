//! Ten thousand clients that begin a handshake of TLS and do not go on: others are served, and memory is bounded.

use anyhow::{Context, Result, ensure};
use nectary_e2e::filled::FilledProxy;
use nectary_e2e::guard::{self, find_program};
use nectary_e2e::nectary::{self, certificates::ServerCertificates};
use nectary_e2e::report::not_run;
use std::io::Write;
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

const CLIENTS: usize = 10_000;
/// The beginning of a handshake: the head of a record of 512 bytes with a `ClientHello`, and its first bytes.
const HALF_A_HELLO: &[u8] = &[0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03, 0x03];
/// The memory that a connection in its handshake may take. *Units*: bytes.
const CONNECTION_BYTES_MAX: u64 = 20 << 10;

#[test]
fn half_open_connections_keep_nobody_out() -> Result<()> {
    if find_program("curl").is_none() {
        not_run("curl is not installed");
        return Ok(());
    }
    if guard::files_max() < CLIENTS as u64 + 500 {
        not_run(format!("at most {} files may be open", guard::files_max()));
        return Ok(());
    }
    guard::raise_files();
    let mut filled = FilledProxy::new("half-open", 1, 39)?;
    let certificates = ServerCertificates::make(filled.scratch.path(), "localhost,127.0.0.1")?;
    filled.command.arguments.extend(certificates.options());
    let mut nectary = filled.command.start()?;
    let url = format!("https://{}{}", nectary.listen, filled.targets[0]);
    let ask = |limit_s: &str| -> Result<()> {
        let mut command = Command::new("curl");
        command.args(["-sS", "--noproxy", "*", "-f", "-o", "/dev/null", "-m", limit_s, "--cacert"]);
        command.arg(&certificates.ca).arg(&url);
        let log = filled.scratch.join("curl.log");
        _ = std::fs::remove_file(&log);
        let (status, text) = guard::run("curl", command, &log, Duration::from_secs(30))?;
        ensure!(status.success(), "curl: {}: {text}", guard::describe(status));
        Ok(())
    };
    ask("5")?;
    let before = nectary.process.status_bytes("VmRSS")?;
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let mut client = TcpStream::connect(nectary.listen).context("a client that begins a handshake")?;
        // One that has been displaced by a later one is closed already.
        _ = client.write_all(HALF_A_HELLO);
        clients.push(client);
    }
    // Those that came last may not be displaced for a second.
    let begun = Instant::now();
    while let Err(error) = ask("5") {
        ensure!(begun.elapsed() < Duration::from_secs(4), "half-open connections keep others out: {error}");
        std::thread::sleep(Duration::from_millis(50));
    }
    let took = begun.elapsed();
    let grown = nectary.process.resident_bytes_max()?.saturating_sub(before);
    let bound = CLIENTS as u64 * CONNECTION_BYTES_MAX;
    ensure!(grown <= bound, "{CLIENTS} half-open connections take {grown} B, of at most {bound}");
    let (status, text) = nectary::run(&["status"], filled.scratch.path())?;
    drop(clients);
    nectary.terminate(Duration::from_secs(20))?;
    println!(
        "{CLIENTS} half-open connections: an answer in {took:?}, {} B each; status {:?}",
        grown / CLIENTS as u64,
        status.code()
    );
    ensure!(text.contains("proxy"), "{text}");
    Ok(())
}
