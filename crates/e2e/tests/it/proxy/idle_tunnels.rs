//! Tunnels that idle hold no restart up: the next process has the store at once, and the former one ends in its drain
//! time.

use anyhow::{Context, Result, ensure};
use nectary_e2e::guard::describe;
use nectary_e2e::nectary::ProxyCommand;
use nectary_e2e::origin::DeterministicOrigin;
use nectary_e2e::scratch::ScratchFolder;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(20);
const DRAIN: Duration = Duration::from_secs(3);
const SWITCH: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";

/// A client's connection, and that of the server to which it is joined.
struct IdleTunnel {
    near: TcpStream,
    far: TcpStream,
}

/// Reads a head, byte by byte.
fn head(stream: &mut TcpStream) -> Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).with_context(|| String::from_utf8_lossy(&head).into_owned())?;
        head.push(byte[0]);
    }
    Ok(String::from_utf8(head)?)
}

impl IdleTunnel {
    /// Opens a tunnel by `CONNECT`, or as a WebSocket.
    fn open(proxy: SocketAddr, server: &TcpListener, is_websocket: bool) -> Result<IdleTunnel> {
        let (mut near, to) = (nectary_e2e::http::connect(proxy, LIMIT)?, server.local_addr()?);
        if !is_websocket {
            write!(near, "CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n")?;
            let (far, _) = server.accept()?;
            let answer = head(&mut near)?;
            ensure!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
            return Ok(IdleTunnel { near, far });
        }
        let upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: k";
        write!(near, "GET http://{to}/socket HTTP/1.1\r\nHost: {to}\r\n{upgrade}\r\n\r\n")?;
        let (mut far, _) = server.accept()?;
        let asked = head(&mut far)?;
        far.write_all(SWITCH)?;
        let answer = head(&mut near)?;
        ensure!(answer.starts_with("HTTP/1.1 101 "), "{asked}{answer}");
        Ok(IdleTunnel { near, far })
    }

    /// Sends bytes both ways.
    fn carries(&mut self) -> Result<()> {
        self.far.set_read_timeout(Some(LIMIT))?;
        let mut found = [0; 4];
        self.near.write_all(b"ping")?;
        self.far.read_exact(&mut found)?;
        self.far.write_all(b"pong")?;
        self.near.read_exact(&mut found)?;
        ensure!(&found == b"pong", "{found:?}");
        Ok(())
    }

    /// Whether the proxy has ended it on both sides.
    fn is_over(&mut self) -> bool {
        let is_over = |stream: &mut TcpStream| {
            stream
                .read(&mut [0; 8])
                .map_or_else(|error| error.kind() == std::io::ErrorKind::ConnectionReset, |count| count == 0)
        };
        is_over(&mut self.near) && is_over(&mut self.far)
    }
}

#[test]
fn idle_tunnels_hold_no_restart_up() -> Result<()> {
    let (scratch, origin) = (ScratchFolder::new("idle-tunnels")?, DeterministicOrigin::start()?);
    let server = TcpListener::bind("127.0.0.1:0")?;
    let mut command = ProxyCommand::new(scratch.path(), None)?;
    let (port, drain) = (server.local_addr()?.port().to_string(), format!("{}s", DRAIN.as_secs()));
    command.arguments = ["--connect-port", &port, "--drain", &drain].map(str::to_owned).to_vec();
    let target = format!("{}/o/1?size=40000", origin.url());
    let mut first = command.start()?;
    ensure!(first.client().get(&target)?.status == 200);
    first.wait_written(LIMIT)?;
    let mut tunnels = Vec::new();
    for is_websocket in [false, true] {
        tunnels.push(IdleTunnel::open(first.listen, &server, is_websocket)?);
    }
    for tunnel in &mut tunnels {
        tunnel.carries().context("before the stop")?;
    }
    first.process.signal(libc::SIGTERM);
    let begun = Instant::now();
    while TcpStream::connect(first.listen).is_ok() {
        ensure!(begun.elapsed() < LIMIT, "the first process still listens");
    }
    let mut second = loop {
        // A store that another process has open is an error at once.
        let mut second = command.spawn()?;
        if second.wait_ready(LIMIT).is_ok() {
            break second;
        }
        ensure!(begun.elapsed() < LIMIT, "{}", second.process.log_tail());
    };
    let response = second.client().get(&target)?;
    let taken = begun.elapsed();
    ensure!(response.is_hit() && response.body.len() == 40_000, "the next process has what was stored");
    ensure!(
        first.process.try_status().is_none(),
        "the first process ended after {taken:?}, before the next one served"
    );
    for tunnel in &mut tunnels {
        tunnel.carries().context("while the next process serves")?;
    }
    let exit = first.process.wait(DRAIN + LIMIT)?;
    let ended = begun.elapsed();
    ensure!(exit.success(), "{}\n{}", describe(exit), first.process.log_tail());
    ensure!(ended < DRAIN + Duration::from_secs(5), "the first process ended after {ended:?}");
    ensure!(tunnels.iter_mut().all(|tunnel| tunnel.is_over()), "its tunnels end with it");
    println!("the next process served after {taken:?}, the first one with two idle tunnels ended after {ended:?}");
    second.terminate(LIMIT)?;
    Ok(())
}
