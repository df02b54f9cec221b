//! Listening sockets that this process got from the one that started it, as systemd's socket activation passes them.
//!
//! Owns: the protocol of `sd_listen_fds(3)`: the variables `LISTEN_PID` and `LISTEN_FDS`, and descriptors from 3 on.
//! Such sockets stay open while one process ends and the next one starts, so no client is refused in between.

use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};

use socket2::{Domain, Socket, Type};

/// The first descriptor that is passed.
const FIRST: i32 = 3;
/// The maximum number of sockets that are taken.
const SOCKETS_MAX: i32 = 1024;

/// Takes the TCP sockets that were passed to this process; none if the variables name another process. Descriptors that
/// are no listening TCP sockets are closed. A second call returns nothing.
pub fn tcp_listeners() -> Vec<TcpListener> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let text = |name: &str| std::env::var(name).ok();
    let count = count(text("LISTEN_PID").as_deref(), text("LISTEN_FDS").as_deref(), std::process::id());
    if count == 0 || TAKEN.swap(true, Ordering::Relaxed) {
        return Vec::new();
    }
    (FIRST..FIRST + count).filter_map(take).collect()
}

/// The number of descriptors that the variables pass to the process `own`.
fn count(pid: Option<&str>, count: Option<&str>, own: u32) -> i32 {
    match (pid.and_then(|pid| pid.parse::<u32>().ok()), count.and_then(|count| count.parse::<i32>().ok())) {
        (Some(pid), Some(count)) if pid == own => count.clamp(0, SOCKETS_MAX),
        _ => 0,
    }
}

#[allow(unsafe_code)]
fn take(descriptor: i32) -> Option<TcpListener> {
    use std::os::fd::FromRawFd;
    // SAFETY: the call takes no pointers. It fails if the descriptor is not open.
    if unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return None;
    }
    // SAFETY: the descriptor is open, and the process that started this one passed it for this process to own. This
    // runs once, so nothing else in this process owns it.
    let socket = unsafe { Socket::from_raw_fd(descriptor) };
    let is_tcp = matches!(socket.r#type(), Ok(Type::STREAM))
        && matches!(socket.domain(), Ok(Domain::IPV4 | Domain::IPV6))
        && socket.is_listener().unwrap_or(false);
    is_tcp.then(|| socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_for_the_named_process() {
        assert_eq!(count(Some("7"), Some("2"), 7), 2);
        for (pid, sockets) in [(None, Some("2")), (Some("8"), Some("2")), (Some("7"), None), (Some("7"), Some("x"))] {
            assert_eq!(count(pid, sockets, 7), 0);
        }
        assert_eq!(count(Some("7"), Some("-1"), 7), 0);
    }
}
