//! The limit of open file descriptors: idle clients do not keep others out, and a refused client is told so.

use anyhow::{Context, Result};
use nectary_e2e::filled::FilledProxy;
use nectary_e2e::http::HttpConnection;
use nectary_e2e::nectary;
use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

/// Puts a limit before the program.
fn under(limit: &str) -> Vec<String> {
    ["sh", "-c", &format!("{limit}; exec \"$@\""), "sh"].map(str::to_owned).to_vec()
}

/// Clients are served although there are more connections than the soft limit of descriptors.
#[test]
fn idle_clients_exceed_soft_limit() -> Result<()> {
    let mut filled = FilledProxy::new("soft-limit", 5, 1)?;
    filled.command.wrapper = under("ulimit -S -n 128");
    let mut nectary = filled.command.start()?;
    let idle: Vec<_> = (0..200).map(|_| TcpStream::connect(nectary.listen)).collect::<Result<_, _>>()?;
    let mut client = HttpConnection::new(nectary.listen, Duration::from_secs(5));
    let response = client.get(&filled.targets[0]).context("an answer beside 200 idle clients")?;
    assert_eq!(response.status, 200);
    let (status, text) = nectary::run(&["status", "--json"], filled.scratch.path())?;
    assert_eq!(status.code(), Some(0), "{text}");
    let value: serde_json::Value = serde_json::from_str(&text)?;
    let limits = nectary::find(&value, "connections").context("limits of connections")?.clone();
    drop(idle);
    nectary.terminate(Duration::from_secs(20))?;
    println!("soft limit 128: 200 idle clients, then an answer; limits {limits}");
    Ok(())
}

#[test]
fn excess_clients_refused_and_shown() -> Result<()> {
    let mut filled = FilledProxy::new("hard-limit", 5, 2)?;
    filled.command.wrapper = under("ulimit -n 200");
    let mut nectary = filled.command.start()?;
    let mut known = HttpConnection::new(nectary.listen, Duration::from_secs(5));
    assert_eq!(known.get(&filled.targets[0])?.status, 200);
    let rest = format!("{} HTTP/1.1\r\nHost: {}\r\n\r\n", filled.targets[2], nectary.listen);
    known.send(b"GET ")?;
    // More than the whole limit, each with a part of a request: none of them may keep the proxy from accepting the next.
    let mut idle: Vec<_> = (0..250).map(|_| TcpStream::connect(nectary.listen)).collect::<Result<_, _>>()?;
    for stream in &mut idle {
        // Those that were refused may be closed already.
        let _ = stream.write_all(b"GET ");
    }
    let refused = HttpConnection::new(nectary.listen, Duration::from_secs(5)).get(&filled.targets[1])?;
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
    let miss = known.exchange(rest.as_bytes(), "GET")?;
    assert_eq!(miss.status, 200, "a client that is served gets a miss from the origin");
    let (status, text) = nectary::run(&["status", "--json"], filled.scratch.path())?;
    assert!(status.code() == Some(3) && text.contains("connections were refused"), "{text}");
    drop(idle);
    let mut later = HttpConnection::new(nectary.listen, Duration::from_secs(5));
    let begun = std::time::Instant::now();
    while later.get(&filled.targets[3]).map(|response| response.status).ok() != Some(200) {
        assert!(begun.elapsed() < Duration::from_secs(5), "there is room again");
        std::thread::sleep(Duration::from_millis(20));
    }
    nectary.terminate(Duration::from_secs(20))?;
    println!("hard limit 200: 503 beyond the places, a miss for a served client, and shown in the status");
    Ok(())
}

#[test]
fn many_idle_clients_keep_nobody_out() -> Result<()> {
    let mut filled = FilledProxy::new("idle-clients", 5, 3)?;
    filled.command.wrapper = under("ulimit -n 200");
    let mut nectary = filled.command.start()?;
    let idle: Vec<_> = (0..250).map(|_| TcpStream::connect(nectary.listen)).collect::<Result<_, _>>()?;
    let begun = std::time::Instant::now();
    let mut client = HttpConnection::new(nectary.listen, Duration::from_secs(5));
    while client.get(&filled.targets[0]).map(|response| response.status).ok() != Some(200) {
        assert!(begun.elapsed() < Duration::from_secs(3), "idle clients keep a new one out");
        std::thread::sleep(Duration::from_millis(50));
    }
    let status = nectary.control()?.status()?;
    let displaced = nectary::find(&status, "displaced_connections").and_then(|count| count.as_u64());
    assert!(displaced.is_some_and(|count| count > 0), "{status}");
    drop(idle);
    nectary.terminate(Duration::from_secs(20))?;
    println!("hard limit 200: beside 250 idle clients a new one is served in {:?}", begun.elapsed());
    Ok(())
}
