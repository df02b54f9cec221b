//! The link from a proxy to a member of etcd: a relay of TCP that can be cut.
//!
//! Owns: [`TcpRelay`]. While it is cut, bytes wait and new connections are not answered, as behind a firewall that drops
//! packets; when it is whole again, the connections of before are closed.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Result;

/// The longest time until a change is noticed.
const STEP: Duration = Duration::from_millis(20);
/// The longest time of a connection to the other side.
const CONNECT_MAX: Duration = Duration::from_secs(1);

/// What the threads of a relay share.
#[derive(Debug, Default)]
struct RelayState {
    is_cut: AtomicBool,
    is_over: AtomicBool,
    /// How often the link was cut.
    cuts: AtomicU64,
}

/// A relay to one address.
#[derive(Debug)]
pub struct TcpRelay {
    address: SocketAddr,
    state: Arc<RelayState>,
    thread: Option<JoinHandle<()>>,
}

impl TcpRelay {
    /// Starts a relay to `to` on a free port.
    pub fn start(to: SocketAddr) -> Result<TcpRelay> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let state = Arc::new(RelayState::default());
        let own = Arc::clone(&state);
        let thread = std::thread::Builder::new().name("relay".to_owned()).spawn(move || accept(&listener, to, &own))?;
        Ok(TcpRelay { address, state, thread: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Cuts the link, or makes it whole.
    pub fn set_cut(&self, is_cut: bool) {
        if is_cut {
            self.state.cuts.fetch_add(1, Ordering::Relaxed);
        }
        self.state.is_cut.store(is_cut, Ordering::Relaxed);
    }
}

impl Drop for TcpRelay {
    fn drop(&mut self) {
        self.state.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn accept(listener: &TcpListener, to: SocketAddr, state: &Arc<RelayState>) {
    let mut copies: Vec<JoinHandle<()>> = Vec::new();
    while !state.is_over.load(Ordering::Relaxed) {
        copies.retain(|copy| !copy.is_finished());
        let is_cut = state.is_cut.load(Ordering::Relaxed);
        let accepted = if is_cut { None } else { listener.accept().ok() };
        let Some((client, _)) = accepted else {
            std::thread::sleep(STEP);
            continue;
        };
        let Ok(server) = TcpStream::connect_timeout(&to, CONNECT_MAX) else { continue };
        for (from, into) in [(&client, &server), (&server, &client)] {
            let (Ok(from), Ok(into)) = (from.try_clone(), into.try_clone()) else { continue };
            let state = Arc::clone(state);
            copies.push(std::thread::spawn(move || copy(from, into, &state)));
        }
    }
    copies.into_iter().for_each(|copy| drop(copy.join()));
}

/// Copies bytes one way until an end, or until the link was cut and is whole again.
fn copy(mut from: TcpStream, mut into: TcpStream, state: &RelayState) {
    let cuts = state.cuts.load(Ordering::Relaxed);
    let _ = from.set_nonblocking(false).and_then(|()| from.set_read_timeout(Some(STEP)));
    let _ = into.set_nodelay(true);
    let mut buffer = vec![0; 64 << 10];
    while !state.is_over.load(Ordering::Relaxed) {
        if state.is_cut.load(Ordering::Relaxed) {
            std::thread::sleep(STEP);
            continue;
        }
        if state.cuts.load(Ordering::Relaxed) != cuts {
            break;
        }
        match from.read(&mut buffer) {
            Ok(0) => break,
            // What was read as the link was cut is lost with the connection.
            Ok(_) if state.is_cut.load(Ordering::Relaxed) => {}
            Ok(count) => {
                if into.write_all(&buffer[..count]).is_err() {
                    break;
                }
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => break,
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = into.shutdown(Shutdown::Both);
}
