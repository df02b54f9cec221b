//! An origin with several addresses on one port, each of which can fail in its own way.
//!
//! Owns: the faults, and what the origin has seen: the half answers that it gave, and how often each request with
//! consequences arrived.

use super::OriginRedundancy;
use crate::content;
use anyhow::{Context, Result, bail};
use std::collections::{HashMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::watch;

/// The treatment of connections and requests at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AddressFault {
    /// All is well.
    None,
    /// The first packets of connections are dropped, and open connections are silent.
    Drop,
    /// Connections are refused, and open ones are closed.
    Refuse,
    /// Requests get no answer.
    Stall,
    /// Requests get a reset.
    Reset,
    /// Answers end in the middle.
    Half,
}

impl AddressFault {
    /// All faults.
    pub const ALL: [AddressFault; 5] =
        [AddressFault::Drop, AddressFault::Refuse, AddressFault::Stall, AddressFault::Reset, AddressFault::Half];
}

/// What all addresses of the origin have seen.
#[derive(Debug, Default)]
pub struct OriginObservations {
    /// The targets of requests that got half an answer.
    pub halves: HashSet<String>,
    /// How often each POST arrived.
    pub posts: HashMap<String, u64>,
    /// How many requests each address got.
    pub requests: HashMap<usize, u64>,
}

/// A running origin, which ends when this value is dropped.
#[derive(Debug)]
pub struct FailoverOrigin {
    faults: Vec<watch::Sender<AddressFault>>,
    seen: Arc<Mutex<OriginObservations>>,
    addresses: Vec<SocketAddr>,
    several: OriginRedundancy,
    changed: Mutex<Instant>,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl FailoverOrigin {
    /// Starts an origin whose addresses are all well.
    pub fn start(count: usize, several: OriginRedundancy) -> Result<FailoverOrigin> {
        let port = free_port(count)?;
        let addresses: Vec<_> = (0..count).map(|index| address(index, port)).collect();
        let seen = Arc::default();
        let (stop, mut stopped) = watch::channel(false);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut faults = Vec::new();
        for (index, &address) in addresses.iter().enumerate() {
            let (sender, fault) = watch::channel(AddressFault::None);
            faults.push(sender);
            runtime.spawn(serve(index, address, fault, Arc::clone(&seen)));
        }
        let thread = std::thread::spawn(move || runtime.block_on(async { _ = stopped.changed().await }));
        for &address in &addresses {
            crate::http::wait_listening(address, Duration::from_secs(5))?;
        }
        let changed = Mutex::new(Instant::now());
        Ok(FailoverOrigin { faults, seen, addresses, several, changed, stop, thread: Some(thread) })
    }

    /// Sets the fault of an address.
    pub fn set(&self, index: usize, fault: AddressFault) {
        *self.changed.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        self.faults[index].send_replace(fault);
    }

    /// Whether a fault has changed since then.
    pub fn changed_since(&self, begin: Instant) -> bool {
        *self.changed.lock().unwrap_or_else(PoisonError::into_inner) >= begin
    }

    /// Whether the addresses are those of separate servers.
    pub fn has_servers(&self) -> bool {
        self.several == OriginRedundancy::Servers
    }

    /// Ends the fault of an address, and waits until it accepts connections.
    pub fn restore(&self, index: usize) -> Result<()> {
        self.set(index, AddressFault::None);
        crate::http::wait_listening(self.addresses[index], Duration::from_secs(5))?;
        Ok(())
    }

    /// The lines of a file of hosts that name the addresses.
    pub fn hosts(&self, name: &str) -> String {
        self.addresses.iter().map(|address| format!("{} {name}\n", address.ip())).collect()
    }

    /// One of the addresses.
    pub fn address(&self, index: usize) -> SocketAddr {
        self.addresses[index]
    }

    /// The port of all addresses.
    pub fn port(&self) -> u16 {
        self.addresses[0].port()
    }

    /// What the origin has seen.
    pub fn seen(&self) -> MutexGuard<'_, OriginObservations> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for FailoverOrigin {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        self.thread.take().map(JoinHandle::join);
    }
}

fn address(index: usize, port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 7, 1 + index as u8], port))
}

/// A port that nothing uses at any of the addresses.
fn free_port(count: usize) -> Result<u16> {
    for _ in 0..100 {
        let port = crate::scratch::free_address()?.port();
        if (0..count).all(|index| std::net::TcpListener::bind(address(index, port)).is_ok()) {
            return Ok(port);
        }
    }
    bail!("no port is free at {count} addresses")
}

/// Serves one address for ever.
async fn serve(
    index: usize,
    address: SocketAddr,
    mut fault: watch::Receiver<AddressFault>,
    seen: Arc<Mutex<OriginObservations>>,
) {
    // Connections outlive the listener, as those of a host that has died.
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let now = *fault.borrow_and_update();
        let changed = match now {
            AddressFault::Refuse => fault.changed().await,
            AddressFault::Drop => {
                let _full = full_listener(address).await;
                fault.changed().await
            }
            _ => {
                let Ok(listener) = bound(address).and_then(|socket| socket.listen(128)) else {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    continue;
                };
                loop {
                    tokio::select! {
                        Ok((stream, _)) = listener.accept() => {
                            let connection = FaultyConnection { index, stream, fault: fault.clone(), seen: Arc::clone(&seen) };
                            connections.spawn(connection.run());
                        }
                        changed = fault.changed() => {
                            if changed.is_err() || matches!(*fault.borrow_and_update(), AddressFault::Refuse | AddressFault::Drop) {
                                break changed;
                            }
                        }
                    }
                }
            }
        };
        if changed.is_err() {
            return;
        }
        while connections.try_join_next().is_some() {}
    }
}

/// A socket that is bound to an address.
fn bound(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

/// A listener whose queue is full, so that further first packets are dropped.
async fn full_listener(address: SocketAddr) -> Option<(tokio::net::TcpListener, Vec<TcpStream>)> {
    let listener = bound(address).and_then(|socket| socket.listen(0)).ok()?;
    let mut queue = Vec::new();
    while let Ok(Ok(stream)) = tokio::time::timeout(Duration::from_millis(50), TcpStream::connect(address)).await {
        queue.push(stream);
    }
    Some((listener, queue))
}

struct FaultyConnection {
    /// Which of the addresses it came to.
    index: usize,
    stream: TcpStream,
    fault: watch::Receiver<AddressFault>,
    seen: Arc<Mutex<OriginObservations>>,
}

impl FaultyConnection {
    async fn run(mut self) {
        _ = self.stream.set_nodelay(true);
        let mut input = Vec::new();
        loop {
            let mut fault = self.fault.clone();
            let request = tokio::select! {
                request = read_request(&mut self.stream, &mut input) => request,
                _ = fault.wait_for(|fault| *fault == AddressFault::Refuse) => return,
            };
            let Ok((method, target)) = request else { return };
            *lock(&self.seen).requests.entry(self.index).or_default() += 1;
            if method == "POST" {
                *lock(&self.seen).posts.entry(target.clone()).or_default() += 1;
            }
            let body = if method == "POST" { b"done".to_vec() } else { content::body(&target, 1, size_of(&target)) };
            let head =
                format!("HTTP/1.1 200 OK\r\nCache-Control: max-age=600\r\nContent-Length: {}\r\n\r\n", body.len());
            let now = *self.fault.borrow();
            let sent = match now {
                AddressFault::None => self.stream.write_all(&[head.as_bytes(), &body].concat()).await,
                AddressFault::Half => {
                    lock(&self.seen).halves.insert(target);
                    _ = self.stream.write_all(&[head.as_bytes(), &body[..body.len() / 2]].concat()).await;
                    return;
                }
                AddressFault::Reset => {
                    _ = self.stream.set_zero_linger();
                    return;
                }
                AddressFault::Refuse => return,
                AddressFault::Stall | AddressFault::Drop => {
                    // Until the other side gives up.
                    _ = self.stream.read(&mut [0]).await;
                    return;
                }
            };
            if sent.is_err() {
                return;
            }
        }
    }
}

fn lock(seen: &Mutex<OriginObservations>) -> MutexGuard<'_, OriginObservations> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The size of the body at a target, which names it.
pub fn size_of(target: &str) -> u64 {
    target.rsplit_once("size=").and_then(|(_, digits)| digits.parse().ok()).unwrap_or(0)
}

/// Reads a request and the body that it announces; returns its method and target.
async fn read_request(stream: &mut TcpStream, input: &mut Vec<u8>) -> Result<(String, String)> {
    let end = loop {
        if let Some(at) = input.windows(4).position(|window| window == b"\r\n\r\n") {
            break at;
        }
        if stream.read_buf(input).await? == 0 {
            bail!("closed");
        }
    };
    let head = String::from_utf8_lossy(&input[..end]).into_owned();
    input.drain(..end + 4);
    let length =
        head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse().ok());
    let length: usize = length.unwrap_or(0);
    while input.len() < length {
        if stream.read_buf(input).await? == 0 {
            bail!("closed");
        }
    }
    input.drain(..length);
    let mut words = head.split(' ');
    let (method, target) = (words.next(), words.next());
    Ok((method.context("no method")?.to_owned(), target.context("no target")?.to_owned()))
}
