//! Listening sockets that this process got from the one that started it, as systemd's socket activation passes them.
//!
//! Owns: the protocol of `sd_listen_fds(3)`: the variables `LISTEN_PID` and `LISTEN_FDS`, and descriptors from 3 on.
//! Such sockets stay open while one process ends and the next one starts, so no client is refused in between.

use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering};

use socket2::{Domain, Socket, Type};

/// The first descriptor that is passed.
const FIRST: i32 = 3;
/// The maximum number of sockets that are taken.
const SOCKETS_MAX: i32 = 1024;

/// Listening sockets that another process has, too.
#[derive(Debug, Default)]
pub struct InheritedListeners {
    /// Those with an IP address and a port.
    pub tcp: Vec<TcpListener>,
    /// Those with a path.
    pub unix: Vec<UnixListener>,
}

impl InheritedListeners {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.tcp.is_empty() && self.unix.is_empty()
    }
}

impl From<Vec<TcpListener>> for InheritedListeners {
    fn from(tcp: Vec<TcpListener>) -> InheritedListeners {
        InheritedListeners { tcp, unix: Vec::new() }
    }
}

/// Takes the sockets that were passed to this process; none if the variables name another process. Descriptors that are
/// no listening sockets of TCP or Unix streams are closed. A second call returns nothing.
pub fn listeners() -> InheritedListeners {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let text = |name: &str| std::env::var(name).ok();
    let count = count(text("LISTEN_PID").as_deref(), text("LISTEN_FDS").as_deref(), std::process::id());
    if count == 0 || TAKEN.swap(true, Ordering::Relaxed) {
        return InheritedListeners::default();
    }
    let mut found = InheritedListeners::default();
    (FIRST..FIRST + count).filter_map(take).for_each(|socket| sort(socket, &mut found));
    found
}

/// Adds a socket to those of its kind; closes it if it is none that is served.
fn sort(socket: Socket, found: &mut InheritedListeners) {
    let is_listener = matches!(socket.r#type(), Ok(Type::STREAM)) && socket.is_listener().unwrap_or(false);
    match socket.domain() {
        Ok(Domain::IPV4 | Domain::IPV6) if is_listener => found.tcp.push(socket.into()),
        Ok(Domain::UNIX) if is_listener => found.unix.push(socket.into()),
        _ => {}
    }
}

/// The number of descriptors that the variables pass to the process `own`.
fn count(pid: Option<&str>, count: Option<&str>, own: u32) -> i32 {
    match (pid.and_then(|pid| pid.parse::<u32>().ok()), count.and_then(|count| count.parse::<i32>().ok())) {
        (Some(pid), Some(count)) if pid == own => count.clamp(0, SOCKETS_MAX),
        _ => 0,
    }
}

#[allow(unsafe_code)]
fn take(descriptor: i32) -> Option<Socket> {
    use std::os::fd::FromRawFd;
    // SAFETY: the call takes no pointers. It fails if the descriptor is not open.
    if unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return None;
    }
    // SAFETY: the descriptor is open, and the process that started this one passed it for this process to own. This
    // runs once, so nothing else in this process owns it.
    Some(unsafe { Socket::from_raw_fd(descriptor) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_sorted_by_kind() {
        let path = std::env::temp_dir().join(format!("nectary-host-inherited-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let mut found = InheritedListeners::default();
        sort(TcpListener::bind("127.0.0.1:0").expect("a port").into(), &mut found);
        sort(UnixListener::bind(&path).expect("a path").into(), &mut found);
        sort(Socket::new(Domain::IPV4, Type::DGRAM, None).expect("a socket"), &mut found);
        sort(Socket::new(Domain::UNIX, Type::STREAM, None).expect("one that does not listen"), &mut found);
        std::fs::remove_file(&path).expect("removed");
        assert_eq!((found.tcp.len(), found.unix.len(), found.is_empty()), (1, 1, false));
        assert_eq!(found.unix[0].local_addr().expect("an address").as_pathname(), Some(path.as_path()));
    }

    #[test]
    fn sockets_are_for_the_named_process() {
        assert_eq!(count(Some("7"), Some("2"), 7), 2);
        for (pid, sockets) in [(None, Some("2")), (Some("8"), Some("2")), (Some("7"), None), (Some("7"), Some("x"))] {
            assert_eq!(count(pid, sockets, 7), 0);
        }
        assert_eq!(count(Some("7"), Some("-1"), 7), 0);
    }
}
