//! The network between one mount and one server: it can be cut, and its far end can move to another server.
//!
//! Owns: a Unix socket, and the bytes between each connection to it and the server's socket. A cut network loses
//! nothing that TCP would not send again: bytes wait until it is whole again. Promises: the threads end soon after the
//! relay is dropped.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};

/// How often threads look whether the network is whole, or the relay gone.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// The largest number of bytes that are passed on at once.
const CHUNK_BYTES: usize = 64 << 10;

#[derive(Default)]
struct SocketRelayState {
    is_over: AtomicBool,
    is_cut: AtomicBool,
    target: Mutex<PathBuf>,
    /// Both ends of each connection, in the order in which they were made.
    connections: Mutex<Vec<[UnixStream; 2]>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SocketRelayState {
    /// Waits while the network is cut; returns whether the relay still exists.
    fn is_passable(&self) -> bool {
        while self.is_cut.load(Ordering::Acquire) && !self.is_over.load(Ordering::Acquire) {
            std::thread::sleep(LOOK_EVERY);
        }
        !self.is_over.load(Ordering::Acquire)
    }
}

/// A relay.
pub struct SocketRelay {
    /// The socket to which the mount connects.
    pub socket: PathBuf,
    state: Arc<SocketRelayState>,
}

impl SocketRelay {
    /// Starts a relay to a server's socket.
    pub fn new(socket: PathBuf, target: PathBuf) -> Result<SocketRelay> {
        let listener = UnixListener::bind(&socket).with_context(|| format!("relay {}", socket.display()))?;
        listener.set_nonblocking(true)?;
        let state = Arc::new(SocketRelayState { target: Mutex::new(target), ..SocketRelayState::default() });
        let accepting = state.clone();
        std::thread::spawn(move || {
            while !accepting.is_over.load(Ordering::Acquire) {
                match listener.accept() {
                    Ok((stream, _)) => {
                        let state = accepting.clone();
                        std::thread::spawn(move || connect(&state, stream));
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::sleep(LOOK_EVERY),
                    Err(_) => return,
                }
            }
        });
        Ok(SocketRelay { socket, state })
    }

    /// Cuts the network, or makes it whole again.
    pub fn set_cut(&self, is_cut: bool) {
        self.state.is_cut.store(is_cut, Ordering::Release);
    }

    /// Lets new connections go to another server. Of the connections that exist, breaks those for which `breaks` says
    /// so; its argument is the number of the connection.
    pub fn move_to(&self, target: &Path, breaks: impl Fn(usize) -> bool) {
        *lock(&self.state.target) = target.to_owned();
        let connections = lock(&self.state.connections);
        let broken = connections.iter().enumerate().filter(|(index, _)| breaks(*index));
        broken.for_each(|(_, ends)| ends.iter().for_each(close));
    }
}

impl Drop for SocketRelay {
    fn drop(&mut self) {
        self.state.is_over.store(true, Ordering::Release);
        lock(&self.state.connections).iter().flatten().for_each(close);
    }
}

fn close(stream: &UnixStream) {
    // It may be closed already.
    let _ = stream.shutdown(Shutdown::Both);
}

/// Connects to the server, and passes bytes on until either side closes its end.
fn connect(state: &Arc<SocketRelayState>, near: UnixStream) {
    if near.set_nonblocking(false).is_err() || !state.is_passable() {
        return;
    }
    let target = lock(&state.target).clone();
    let Ok(far) = UnixStream::connect(target) else { return };
    let (Ok(near_too), Ok(far_too)) = (near.try_clone(), far.try_clone()) else { return };
    if let (Ok(near), Ok(far)) = (near.try_clone(), far.try_clone()) {
        lock(&state.connections).push([near, far]);
    }
    let back = state.clone();
    std::thread::spawn(move || pass(&back, far_too, near_too));
    pass(state, near, far);
}

/// Passes bytes on in one direction.
fn pass(state: &SocketRelayState, mut from: UnixStream, mut to: UnixStream) {
    let mut bytes = vec![0; CHUNK_BYTES];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if !state.is_passable() || to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    // The end of a connection is also told only through a whole network.
    state.is_passable();
    close(&from);
    close(&to);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::ScratchFolder;

    /// A server that answers each byte with its own letter.
    fn server(path: &Path, letter: u8) {
        let listener = UnixListener::bind(path).unwrap();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                std::thread::spawn(move || {
                    while let Ok(1) = stream.read(&mut [0]) {
                        let _ = stream.write_all(&[letter]);
                    }
                });
            }
        });
    }

    /// A cut relay delays bytes, and a moved relay reaches the other server.
    #[test]
    fn relay_cuts_and_moves() {
        let scratch = ScratchFolder::new("relay").unwrap();
        let [first, second] = ["first", "second"].map(|name| scratch.join(name));
        server(&first, b'a');
        server(&second, b'b');
        let relay = SocketRelay::new(scratch.join("relay"), first).unwrap();
        let ask = |stream: &mut UnixStream| {
            stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
            let mut answer = [0];
            let read = stream.read(&mut answer);
            read.map(|count| if count == 1 { answer[0] } else { 0 })
        };
        // The second connection is made when the first one works, so that their numbers are known.
        let mut streams = [0; 2].map(|_| {
            let mut stream = UnixStream::connect(&relay.socket).unwrap();
            stream.write_all(b"?").unwrap();
            assert_eq!(ask(&mut stream).unwrap(), b'a');
            stream
        });
        relay.set_cut(true);
        streams[0].write_all(b"?").unwrap();
        assert!(ask(&mut streams[0]).is_err(), "nothing passes a cut network");
        relay.set_cut(false);
        assert_eq!(ask(&mut streams[0]).unwrap(), b'a', "nothing is lost");
        relay.move_to(&second, |connection| connection == 0);
        assert!(matches!(ask(&mut streams[0]), Ok(0) | Err(_)), "it is broken");
        streams[1].write_all(b"?").unwrap();
        assert_eq!(ask(&mut streams[1]).unwrap(), b'a', "this one is not");
        let mut new = UnixStream::connect(&relay.socket).unwrap();
        new.write_all(b"?").unwrap();
        assert_eq!(ask(&mut new).unwrap(), b'b');
    }
}
