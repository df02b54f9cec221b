//! After SIGTERM the proxy finishes requests in flight, accepts no new ones, and stops cleanly with all objects that were
//! whole in the store.

use anyhow::Result;
use nectary_e2e::content;
use nectary_e2e::filled::{FilledProxy, ObjectCheckCounts};
use nectary_e2e::guard::describe;
use nectary_e2e::http::HttpConnection;
use nectary_e2e::nectary;
use nectary_e2e::origin::OriginBehaviour;
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Transfers in progress are finished, and no new ones are accepted.
#[test]
fn shutdown_finishes_transfers() -> Result<()> {
    let filled = FilledProxy::new("shutdown", 50, 1)?;
    let mut nectary = filled.command.start()?;
    filled.fill(&nectary)?;
    let target = "/slow/1?size=1000000";
    let slow = OriginBehaviour::Slow { piece_bytes: 20_000, pause: Duration::from_millis(30) };
    filled.origin.set_behaviour(target, Some(slow));
    let listen = nectary.listen;
    // Connections that are idle or have sent half a request do not delay the stop.
    let idle = TcpStream::connect(listen)?;
    let half = TcpStream::connect(listen)?;
    std::io::Write::write_all(&mut &half, b"GET /half HTTP/1.1\r\nHost:")?;
    let request = format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n");
    let mut clients: Vec<_> = (0..4).map(|_| HttpConnection::new(listen, Duration::from_secs(20))).collect();
    for client in &mut clients {
        client.send(request.as_bytes())?;
        client.wait_begun()?;
    }
    nectary.process.signal(libc::SIGTERM);
    // The bodies take 1.5 s; long before that, new clients must no longer be served.
    let signalled = Instant::now();
    while HttpConnection::new(listen, Duration::from_secs(2)).get(&filled.targets[0]).is_ok() {
        assert!(signalled.elapsed() < Duration::from_secs(1), "new connections are served after SIGTERM");
    }
    for mut client in clients {
        let response = client.receive("GET")?;
        assert!(response.status == 200 && response.body == content::body(target, 1, 1_000_000));
    }
    let exit = nectary.process.wait(Duration::from_secs(15))?;
    assert!(exit.success(), "{}\n{}", describe(exit), nectary.process.log_tail());
    drop((idle, half));
    filled.origin.set_behaviour(target, None);
    let nectary = filled.command.start()?;
    assert_eq!(filled.check(&nectary), ObjectCheckCounts { hits: 50, ..ObjectCheckCounts::default() });
    // What was under way has left the store, so that the store could be closed at once.
    let again = nectary.client().get(target)?;
    assert!(!again.is_hit() && again.body == content::body(target, 1, 1_000_000));
    println!("SIGTERM: 4 transfers finished, nothing new taken, 50 objects hit after the restart");
    Ok(())
}

/// The client of the transfer does not read.
#[test]
fn second_sigterm_ends_stuck_transfer() -> Result<()> {
    let filled = FilledProxy::new("stuck", 5, 2)?;
    let mut nectary = filled.command.start()?;
    filled.fill(&nectary)?;
    let target = "/big/1?size=50000000";
    let mut stuck = HttpConnection::new(nectary.listen, Duration::from_secs(20));
    stuck.send(format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes())?;
    stuck.wait_begun()?;
    nectary.process.signal(libc::SIGTERM);
    // The first signal has taken effect when new connections are no longer served.
    let signalled = Instant::now();
    while HttpConnection::new(nectary.listen, Duration::from_secs(2)).get(&filled.targets[0]).is_ok() {
        assert!(signalled.elapsed() < Duration::from_secs(5), "new connections are served after SIGTERM");
    }
    assert!(nectary.process.try_status().is_none(), "it waits for the transfer");
    let status = nectary.terminate(Duration::from_secs(5))?;
    assert_eq!(status.code(), Some(128 + libc::SIGTERM), "{}", describe(status));
    drop(stuck);
    let nectary = filled.command.start()?;
    assert_eq!(filled.check(&nectary).wrong, 0);
    println!("a second SIGTERM ends a stop that a client holds up, with exit code 143");
    Ok(())
}

/// The status shows the running proxy, and afterwards its end.
#[test]
fn status_follows_proxy_until_end() -> Result<()> {
    let filled = FilledProxy::new("status", 5, 3)?;
    let mut nectary = filled.command.start()?;
    filled.fill(&nectary)?;
    let (status, text) = nectary::run(&["status", "--json"], filled.scratch.path())?;
    assert_eq!(status.code(), Some(0), "{text}");
    let value: serde_json::Value = serde_json::from_str(&text)?;
    let sequences = nectary::find(&value, "sequences").expect("the status has sequences");
    assert!(sequences["last"].as_u64() >= sequences["written"].as_u64(), "{sequences}");
    nectary.terminate(Duration::from_secs(20))?;
    let (status, text) = nectary::run(&["status"], filled.scratch.path())?;
    assert_eq!(status.code(), Some(4), "{text}");
    Ok(())
}
