//! The connections of a device.
//!
//! Owns: the choice of the connection for a request, replacing a connection that has ended, and turning the result of a
//! command into the result of an operation. Promises: for each connection, at most one attempt to reconnect is under
//! way; if the server's export has changed since the device was opened, the connection is refused.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nectary_block::{Buffer, Error, ErrorKind, Geometry, Request};
use tokio::sync::oneshot;

use super::connect::{ConnectOptions, Reached, open};
use super::connection::{Command, Connection, Ended, Failure};
use super::handshake::{Agreed, Goal};
use super::journal::Journal;
use super::replies::Outcome;
use crate::url::Url;
use crate::wire::{errno, flag};

/// A place for one of the connections of a device. The connection may have ended.
pub(super) struct Slot {
    pub current: Mutex<Arc<Connection>>,
    pub connecting: tokio::sync::Mutex<()>,
}

impl Slot {
    pub fn current(&self) -> Arc<Connection> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The state that a device and its operations share.
pub(super) struct Inner {
    pub url: Url,
    pub spec: String,
    pub options: ConnectOptions,
    pub agreed: Agreed,
    pub geometry: Geometry,
    pub payload_bytes_max: u64,
    pub request_time: Duration,
    pub slots: Vec<Slot>,
    pub next: AtomicUsize,
    pub journal: Journal,
    pub requests: AtomicU64,
    pub reconnects: AtomicU64,
}

/// Connects to an export, so that requests can be sent.
pub(super) async fn connect(
    url: &Url,
    options: &ConnectOptions,
    journal: &Journal,
    request_time: Duration,
) -> Result<(Connection, Agreed), crate::Error> {
    match open(url, options, Goal::Transmit).await? {
        Reached::Export(stream, agreed) => {
            Ok((Connection::start(stream, &agreed, journal.clone(), request_time), *agreed))
        }
        Reached::List(_) => {
            Err(crate::Error::new(crate::ErrorKind::Protocol, url.to_string(), "the server sent a list"))
        }
    }
}

impl Inner {
    pub fn has(&self, flag: u16) -> bool {
        self.agreed.flags & flag != 0
    }

    /// The failure of the first connection in the list that has ended; `None` if no connection has ended.
    pub fn failure(&self) -> Option<Failure> {
        self.slots.iter().find_map(|slot| slot.current().failure().cloned())
    }

    /// A connection that has not ended; `None` if all connections have ended. The connections are used in turn.
    fn live(&self) -> Option<Arc<Connection>> {
        let start = self.next.fetch_add(1, Ordering::Relaxed);
        let count = self.slots.len();
        (0..count).map(|step| self.slots[(start + step) % count].current()).find(|found| found.failure().is_none())
    }

    /// Returns a connection that works. First replaces the connections that have ended; for each of them, at most one
    /// caller tries to reconnect at a time.
    async fn connection(&self) -> Result<Arc<Connection>, Failure> {
        if self.options.is_single_session
            && let Some(failure) = self.failure()
        {
            return Err(failure);
        }
        for slot in self.slots.iter().filter(|slot| slot.current().failure().is_some()) {
            let _turn = match self.live() {
                // If another caller is already reconnecting this slot, a connection that works is used without waiting.
                Some(live) => match slot.connecting.try_lock() {
                    Ok(turn) => turn,
                    Err(_) => return Ok(live),
                },
                None => slot.connecting.lock().await,
            };
            if slot.current().failure().is_none() {
                continue;
            }
            match self.connect_again().await {
                Ok(connection) => {
                    *slot.current.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(connection);
                    self.reconnects.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => match self.live() {
                    Some(live) => return Ok(live),
                    None => return Err(Failure { kind: ErrorKind::Io, reason: error.to_string().into() }),
                },
            }
        }
        let gone = || Failure { kind: ErrorKind::Io, reason: "all connections have ended".into() };
        self.live().ok_or_else(gone)
    }

    async fn connect_again(&self) -> Result<Connection, crate::Error> {
        let (connection, agreed) = connect(&self.url, &self.options, &self.journal, self.request_time).await?;
        let is_same = agreed.size_bytes >= self.geometry.size_bytes
            && agreed.flags & self.agreed.flags == self.agreed.flags
            && agreed.block_sizes == self.agreed.block_sizes
            && agreed.allocation.is_some() == self.agreed.allocation.is_some();
        if is_same {
            return Ok(connection);
        }
        let message = "the export is not what it was when it was opened: size, flags or blocks; open the device again";
        Err(crate::Error::new(crate::ErrorKind::Protocol, self.url.to_string(), message))
    }

    /// Sends a command. If all connections work and the chosen one has room for the command, it is sent immediately.
    /// Otherwise it is sent when the result is awaited.
    pub fn send(self: &Arc<Inner>, command: Command) -> Sending {
        self.requests.fetch_add(1, Ordering::Relaxed);
        // A connection that has ended is replaced before the command is sent, even if other connections work.
        let is_whole = self.slots.iter().all(|slot| slot.current().failure().is_none());
        if let Some(connection) = self.live().filter(|_| is_whole)
            && let Some(permits) = connection.try_permits(&command)
        {
            return match connection.submit(command, permits) {
                Ok(receiver) => Sending::Sent(receiver),
                Err(failure) => Sending::Failed(failure),
            };
        }
        let inner = self.clone();
        Sending::Waits(Box::pin(async move {
            let connection = inner.connection().await?;
            let permits = connection.permits(&command).await?;
            let receiver = connection.submit(command, permits)?;
            receiver.await.unwrap_or_else(|_| Err(dropped()))
        }))
    }

    /// Checks that the device accepts writes. *Errors*: the reason why it does not.
    pub fn check_writable(&self, request: &Request) -> Result<(), Error> {
        if self.has(flag::READ_ONLY) {
            return Err(self.error(request, ErrorKind::Unsupported, "the export is read-only"));
        }
        match self.journal.latched() {
            Some(reason) => Err(self.error(request, ErrorKind::Latched, &reason)),
            None => Ok(()),
        }
    }

    pub fn error(&self, request: &Request, kind: ErrorKind, detail: &str) -> Error {
        request.error(kind, || self.spec.clone(), detail.to_owned())
    }

    /// Turns the result of an NBD command into the result of a device operation.
    pub fn outcome(&self, request: &Request, ended: Ended) -> Result<(Outcome, Vec<Buffer>), Error> {
        match ended {
            Ok((Outcome::Refused(value, message), _)) => {
                let separator = if message.is_empty() { "" } else { ": " };
                let detail = format!("the server answers {}{separator}{message}", errno::name(value));
                Err(self.error(request, errno::to_kind(value), &detail))
            }
            Ok(done) => Ok(done),
            Err(Failure { kind, reason }) => Err(self.error(request, kind, &reason)),
        }
    }
}

fn dropped() -> Failure {
    Failure { kind: ErrorKind::Io, reason: "the connection has ended".into() }
}

/// A command that was sent, waits to be sent, or could not be sent.
pub(super) enum Sending {
    Sent(oneshot::Receiver<Ended>),
    Waits(std::pin::Pin<Box<dyn Future<Output = Ended> + Send>>),
    Failed(Failure),
}

impl Sending {
    /// Waits until the command ends.
    pub async fn end(self) -> Ended {
        match self {
            Sending::Sent(receiver) => receiver.await.unwrap_or_else(|_| Err(dropped())),
            Sending::Waits(future) => future.await,
            Sending::Failed(failure) => Err(failure),
        }
    }
}
