//! The signals that ask a part to open again what it has open by a name, such as log files that were rotated.
//!
//! Owns: listening for SIGHUP, SIGUSR1 and SIGUSR2, which would otherwise end the process. Leaves to others: what is
//! opened again.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that ask for reopening. From the moment this value is made, they no longer end the process, even after
/// it is dropped.
#[derive(Debug)]
pub struct ReopenSignals {
    hangup: Signal,
    user1: Signal,
    user2: Signal,
}

impl ReopenSignals {
    /// Listens for the signals. It must be called in a tokio runtime with I/O enabled.
    ///
    /// *Errors*: the operating system's error if the signal handlers cannot be set.
    pub fn listen() -> io::Result<ReopenSignals> {
        Ok(ReopenSignals {
            hangup: signal(SignalKind::hangup())?,
            user1: signal(SignalKind::user_defined1())?,
            user2: signal(SignalKind::user_defined2())?,
        })
    }

    /// Waits for the next signal and returns its name. *Cancel safety*: the future can be dropped and the method called
    /// again.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            Some(()) = self.hangup.recv() => "SIGHUP",
            Some(()) = self.user1.recv() => "SIGUSR1",
            Some(()) = self.user2.recv() => "SIGUSR2",
            else => std::future::pending().await,
        }
    }
}
