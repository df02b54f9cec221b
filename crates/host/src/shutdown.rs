//! A request to stop, for which every task of a process can wait, and the signals that trigger it.
//!
//! Owns: [`Shutdown`] and the task that listens for SIGTERM and SIGINT. Leaves to others: how each part stops, and how
//! long stopping may take. A second signal ends the process at once, with the exit code 128 plus the signal's number.
//! This is safe because a cache may be killed at any time.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// A request to stop. All clones share the request, also across threads and runtimes.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    token: CancellationToken,
}

impl Shutdown {
    /// A shutdown that is not requested yet.
    pub fn new() -> Shutdown {
        Shutdown::default()
    }

    /// Requests every holder of a clone to stop.
    pub fn request(&self) {
        self.token.cancel();
    }

    /// Whether stopping was requested.
    pub fn is_requested(&self) -> bool {
        self.token.is_cancelled()
    }

    /// Waits until stopping is requested. *Cancel safety*: the future can be dropped and the method called again.
    pub async fn requested(&self) {
        self.token.cancelled().await;
    }

    /// The underlying token, for code that needs one; cancelling it is the same as [`Shutdown::request`].
    pub fn token(&self) -> CancellationToken {
        self.token.clone()
    }

    /// Makes SIGTERM and SIGINT request this shutdown as long as the returned value exists.
    ///
    /// This method must be called in a tokio runtime with I/O enabled. *Errors*: the operating system's error if the
    /// signal handlers cannot be set.
    pub fn on_signals(&self) -> io::Result<SignalWatch> {
        let terminate = signal(SignalKind::terminate())?;
        let interrupt = signal(SignalKind::interrupt())?;
        let shutdown = self.clone();
        Ok(SignalWatch { task: tokio::spawn(watch(shutdown, terminate, interrupt)) })
    }
}

/// The task that listens for signals. It ends when this value is dropped.
#[derive(Debug)]
pub struct SignalWatch {
    task: JoinHandle<()>,
}

impl Drop for SignalWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn watch(shutdown: Shutdown, mut terminate: Signal, mut interrupt: Signal) {
    loop {
        let kind = tokio::select! {
            Some(()) = terminate.recv() => SignalKind::terminate(),
            Some(()) = interrupt.recv() => SignalKind::interrupt(),
            else => return,
        };
        if shutdown.is_requested() {
            std::process::exit(128 + kind.as_raw_value());
        }
        shutdown.request();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_request_reaches_every_clone() {
        let shutdown = Shutdown::new();
        let other = shutdown.clone();
        assert!(!other.is_requested());
        shutdown.request();
        other.requested().await;
        assert!(other.token().is_cancelled());
    }
}
