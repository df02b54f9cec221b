//! What the service manager that started this process is told, as `sd_notify(3)` says: that it is ready, what it does,
//! that it stops, and that it lives.
//!
//! Owns: the datagrams to the socket that `NOTIFY_SOCKET` names, and the watchdog's rhythm (`WATCHDOG_USEC`). Promises:
//! without such a socket nothing happens, and a message that cannot be sent disturbs nobody: it is one line in the log.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use nectary_host::log::{LogLevel, LogThrottle};
use tokio::task::JoinHandle;

/// The longest status. *Units*: bytes.
const STATUS_BYTES_MAX: usize = 400;

/// Says that the process serves, and what.
pub fn ready(status: &str) {
    tell(&format!("READY=1\n{}", status_line(status)));
}

/// Says what the process does, in words.
pub fn status(status: &str) {
    tell(&status_line(status));
}

/// Says that the process is about to end.
pub fn stopping(status: &str) {
    tell(&format!("STOPPING=1\n{}", status_line(status)));
}

/// A sign of life in time, until this is dropped.
#[derive(Debug)]
pub struct Watchdog(JoinHandle<()>);

impl Watchdog {
    /// Starts giving signs of life from the runtime of the caller, if the service manager wants them: a runtime that
    /// hangs gives none.
    pub fn start() -> Option<Watchdog> {
        let text = |name: &str| std::env::var(name).ok();
        let patience = patience(text("WATCHDOG_USEC").as_deref(), text("WATCHDOG_PID").as_deref(), std::process::id())?;
        let mut ticks = tokio::time::interval(patience / 2);
        Some(Watchdog(tokio::spawn(async move {
            loop {
                ticks.tick().await;
                tell("WATCHDOG=1");
            }
        })))
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// How long the service manager waits for a sign of life of the process `own`; `None` if it wants none.
fn patience(microseconds: Option<&str>, pid: Option<&str>, own: u32) -> Option<Duration> {
    let is_meant = pid.is_none_or(|pid| pid.parse() == Ok(own));
    let patience = Duration::from_micros(microseconds?.parse().ok()?);
    (is_meant && !patience.is_zero()).then_some(patience)
}

/// The message with a status, which is one line.
fn status_line(status: &str) -> String {
    let line = status.lines().next().unwrap_or_default();
    let end = line.char_indices().map(|(index, _)| index).find(|&index| index >= STATUS_BYTES_MAX);
    format!("STATUS={}\n", &line[..end.unwrap_or(line.len())])
}

fn tell(message: &str) {
    static FAILED: LogThrottle = LogThrottle::every(Duration::from_secs(60));
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET").filter(|socket| !socket.is_empty()) else { return };
    if let Err(error) = send(&socket, message) {
        let socket = socket.to_string_lossy();
        FAILED.write(
            LogLevel::Warning,
            "service",
            format_args!("cannot tell the service manager at {socket}: {error}"),
        );
    }
}

/// Sends a message to a socket; a name that begins with `@` is an abstract one.
fn send(socket: &OsStr, message: &str) -> io::Result<()> {
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(socket)?,
    };
    // Without a connection a full queue would block; nobody is kept from serving by that.
    let sender = UnixDatagram::unbound()?;
    sender.set_nonblocking(true)?;
    sender.send_to_addr(message.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_of_life_name_their_process() {
        let second = Some(Duration::from_secs(1));
        assert_eq!(patience(Some("1000000"), None, 7), second);
        assert_eq!(patience(Some("1000000"), Some("7"), 7), second);
        for (microseconds, pid) in [(None, None), (Some("0"), None), (Some("x"), None), (Some("1000000"), Some("8"))] {
            assert_eq!(patience(microseconds, pid, 7), None);
        }
    }

    #[test]
    fn messages_reach_abstract_and_named_sockets() {
        let name = format!("nectary-test-{}", std::process::id());
        let abstract_address = SocketAddr::from_abstract_name(&name).expect("an address");
        let receiver = UnixDatagram::bind_addr(&abstract_address).expect("bound");
        send(OsStr::new(&format!("@{name}")), "READY=1").expect("sent");
        let mut buffer = [0; 64];
        let length = receiver.recv(&mut buffer).expect("received");
        assert_eq!(&buffer[..length], b"READY=1");
        let path = std::env::temp_dir().join(&name);
        let receiver = UnixDatagram::bind(&path).expect("bound");
        send(path.as_os_str(), "WATCHDOG=1").expect("sent");
        let length = receiver.recv(&mut buffer).expect("received");
        std::fs::remove_file(&path).expect("removed");
        assert_eq!(&buffer[..length], b"WATCHDOG=1");
        assert!(send(path.as_os_str(), "READY=1").is_err());
    }

    #[test]
    fn a_status_is_one_bounded_line() {
        assert_eq!(status_line("a\nREADY=1"), "STATUS=a\n");
        assert_eq!(status_line(&"é".repeat(300)).len(), "STATUS=\n".len() + STATUS_BYTES_MAX);
    }
}
