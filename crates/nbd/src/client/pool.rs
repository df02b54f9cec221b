//! The connections of a device.
//!
//! Owns: the choice of the connection for a request, replacing connections that have ended, the time for which requests
//! wait for a server that is away, and turning the result of a command into the result of an operation. Promises: one
//! task replaces connections, as soon as they have ended; if the server's export has changed since the device was
//! opened, the connection is refused; a request that may have changed something is never sent twice.
//!
//! | the connection ends | a request |
//! |---|---|
//! | before it was sent | is sent on another connection |
//! | after it was sent, and it changes nothing | is sent again, at most [`REPEATS_MAX`] times |
//! | after it was sent, and it changes something | fails, and so do all later writes and flushes (`journal`) |
//!
//! While no connection works, requests wait until `patience` has passed since the last one ended; later ones fail at
//! once until the server is back.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use nectary_block::{Buffer, DeviceErrorKind, DeviceGeometry, DeviceRequest, Error};
use tokio::sync::{Notify, oneshot, watch};

use super::connect::{ConnectOptions, ConnectResult, open};
use super::connection::{ClientCommand, ClientConnection, ConnectionFailure, Ended, FailedRequest, refusal};
use super::handshake::{ClientAgreement, ConnectGoal};
use super::journal::WriteJournal;
use super::replies::CommandOutcome;
use crate::limits::REPEATS_MAX;
use crate::url::ExportUrl;
use crate::wire::{errno, flag, request};

/// The first and the longest pause between two attempts to reconnect.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// The pause after connections were replaced. A server that ends every connection at once is not asked more often.
const PAUSE_AGAIN: Duration = Duration::from_millis(50);

/// A place for one of the connections of a device. The connection may have ended.
pub(super) struct ConnectionSlot(Mutex<Arc<ClientConnection>>);

impl ConnectionSlot {
    pub fn new(connection: ClientConnection) -> ConnectionSlot {
        ConnectionSlot(Mutex::new(Arc::new(connection)))
    }

    pub fn current(&self) -> Arc<ClientConnection> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn replace(&self, connection: ClientConnection) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(connection);
    }
}

/// Whether the server can be reached.
#[derive(Clone)]
pub(super) enum ServerPresence {
    Here,
    /// No connection works since then, for this reason.
    Away {
        since: Instant,
        reason: Arc<str>,
    },
}

/// The state that a device and its operations share.
pub(super) struct NbdDeviceState {
    pub url: ExportUrl,
    pub spec: String,
    pub options: ConnectOptions,
    pub agreed: ClientAgreement,
    pub geometry: DeviceGeometry,
    /// The number of bytes of the export that are used; the rest of the last block is padding.
    pub exact_bytes: u64,
    pub sector_bytes: u32,
    pub payload_bytes_max: u64,
    pub request_time: Duration,
    pub patience: Duration,
    pub slots: Vec<ConnectionSlot>,
    pub next: AtomicUsize,
    pub journal: WriteJournal,
    pub presence: watch::Sender<ServerPresence>,
    /// Notified when a connection has ended.
    pub ended: Arc<Notify>,
    pub requests: AtomicU64,
    pub reconnects: AtomicU64,
}

/// Connects to an export, so that requests can be sent. `ended` is notified when the connection ends.
pub(super) async fn connect(
    url: &ExportUrl,
    options: &ConnectOptions,
    journal: &WriteJournal,
    request_time: Duration,
    ended: &Arc<Notify>,
) -> Result<(ClientConnection, ClientAgreement), crate::Error> {
    match open(url, options, ConnectGoal::Transmit).await? {
        ConnectResult::Export(stream, agreed) => {
            Ok((ClientConnection::start(stream, &agreed, journal.clone(), request_time, ended.clone()), *agreed))
        }
        ConnectResult::List(_) => {
            Err(crate::Error::new(crate::NbdErrorKind::Protocol, url.to_string(), "the server sent a list"))
        }
    }
}

/// Replaces connections that have ended, until the device is dropped. As long as others work, there is no hurry: a server
/// that is short of connections would otherwise see one attempt after another.
pub(super) async fn keep(inner: Weak<NbdDeviceState>, ended: Arc<Notify>) {
    let has_live = || inner.upgrade().is_some_and(|inner| inner.live().is_some());
    loop {
        ended.notified().await;
        while has_live() {
            let another = ended.notified();
            if tokio::time::timeout(PAUSE_MAX, another).await.is_err() {
                break;
            }
        }
        let mut pause = PAUSE_MIN;
        loop {
            match inner.upgrade() {
                Some(inner) if inner.mend().await => break,
                Some(_) => {}
                None => return,
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
        tokio::time::sleep(PAUSE_AGAIN).await;
    }
}

/// Whether what was agreed on another connection serves a device that was opened with `first`, and uses `exact_bytes`.
/// The longest ranges follow from the headers: shorter headers cannot carry their lengths.
pub(super) fn is_same_export(first: &ClientAgreement, exact_bytes: u64, found: &ClientAgreement) -> bool {
    found.size_bytes >= exact_bytes
        && found.flags & first.flags == first.flags
        && found.flags & flag::READ_ONLY == first.flags & flag::READ_ONLY
        && found.block_sizes == first.block_sizes
        && found.headers >= first.headers
        && found.allocation.is_some() == first.allocation.is_some()
}

impl NbdDeviceState {
    pub fn has(&self, flag: u16) -> bool {
        self.agreed.flags & flag != 0
    }

    /// The part of a request that the export has, without the padding of the last block. *Units*: bytes.
    pub fn stored(&self, request: &DeviceRequest) -> u64 {
        request.length.min(self.exact_bytes.saturating_sub(request.offset))
    }

    /// Whether one command can carry a read or write: it is not too long, and has no padding.
    pub fn is_one_command(&self, request: &DeviceRequest) -> bool {
        request.length <= self.payload_bytes_max && request.offset + request.length <= self.exact_bytes
    }

    /// The failure of the first connection in the list that has ended; `None` if no connection has ended.
    pub fn failure(&self) -> Option<ConnectionFailure> {
        self.slots.iter().find_map(|slot| slot.current().failure().cloned())
    }

    /// A connection that has not ended; `None` if all connections have ended. The connections are used in turn. A device
    /// of a single session has none after one of them has ended.
    fn live(&self) -> Option<Arc<ClientConnection>> {
        if self.options.is_single_session && self.failure().is_some() {
            return None;
        }
        let start = self.next.fetch_add(1, Ordering::Relaxed);
        let count = self.slots.len();
        (0..count).map(|step| self.slots[(start + step) % count].current()).find(|found| found.failure().is_none())
    }

    /// Returns a connection that works; waits for one until `patience` has passed since the last one ended, or, if the
    /// server returns and is lost again meanwhile, since the call.
    async fn connection(&self) -> Result<Arc<ClientConnection>, ConnectionFailure> {
        let (began, mut changes) = (Instant::now(), self.presence.subscribe());
        loop {
            let presence = changes.borrow_and_update().clone();
            if let Some(live) = self.live() {
                return Ok(live);
            }
            if self.options.is_single_session
                && let Some(failure) = self.failure()
            {
                return Err(failure);
            }
            let (since, reason) = match presence {
                ServerPresence::Here => (began, "its connections have ended".into()),
                ServerPresence::Away { since, reason } => (since.min(began), reason),
            };
            let changed = changes.changed();
            if tokio::time::timeout_at((since + self.patience).into(), changed).await.is_err() {
                let away = since.elapsed().as_secs_f64();
                return Err(ConnectionFailure::new(
                    DeviceErrorKind::Io,
                    format!("the server has been away for {away:.1} s: {reason}"),
                ));
            }
        }
    }

    /// Tries once to replace each connection that has ended. *Returns* whether all connections work.
    async fn mend(&self) -> bool {
        if let Some(failure) = self.failure()
            && self.live().is_none()
        {
            self.is_away(failure.reason);
        }
        let mut is_whole = true;
        for slot in self.slots.iter().filter(|slot| slot.current().failure().is_some()) {
            match self.connect_again().await {
                Ok(connection) => {
                    slot.replace(connection);
                    self.reconnects.fetch_add(1, Ordering::Relaxed);
                    self.presence.send_replace(ServerPresence::Here);
                }
                Err(error) => {
                    if self.live().is_none() {
                        self.is_away(error.message.into());
                    }
                    // The server would probably refuse the other connections, too.
                    is_whole = false;
                    break;
                }
            }
        }
        is_whole
    }

    /// Records that no connection works; the time counts from the first call.
    fn is_away(&self, reason: Arc<str>) {
        self.presence.send_modify(|presence| {
            let since = match presence {
                ServerPresence::Here => Instant::now(),
                ServerPresence::Away { since, .. } => *since,
            };
            *presence = ServerPresence::Away { since, reason };
        });
    }

    async fn connect_again(&self) -> Result<ClientConnection, crate::Error> {
        let connected = connect(&self.url, &self.options, &self.journal, self.request_time, &self.ended);
        let (connection, agreed) = connected.await?;
        if is_same_export(&self.agreed, self.exact_bytes, &agreed) {
            return Ok(connection);
        }
        let message = "the export is not what it was when it was opened: size, flags, blocks or headers; open the device \
                       again";
        Err(crate::Error::new(crate::NbdErrorKind::Protocol, self.url.to_string(), message))
    }

    /// Sends a command. If a connection works and has room for the command, it is sent immediately. Otherwise it is sent
    /// when the result is awaited.
    pub fn send(&self, command: ClientCommand) -> CommandDispatch {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let Some(connection) = self.live() else { return CommandDispatch::Waits(command) };
        let Some(permits) = connection.try_permits(&command) else { return CommandDispatch::Waits(command) };
        let form = CommandHeader::of(&command);
        match connection.submit(command, permits) {
            Ok(receiver) => CommandDispatch::Sent(receiver, form),
            Err((failure, _)) if failure.kind == DeviceErrorKind::Latched => CommandDispatch::Failed(failure),
            Err((_, command)) => CommandDispatch::Waits(command),
        }
    }

    /// Sends a command on a connection that works, and waits until it ends.
    async fn carry(&self, mut command: ClientCommand) -> Ended {
        for _ in 0..REPEATS_MAX {
            let connection = self.connection().await?;
            let permits = connection.permits(&command).await?;
            let form = CommandHeader::of(&command);
            command = match connection.submit(command, permits) {
                Ok(receiver) => match received(receiver).await {
                    Err(broken) if self.can_repeat(form, &broken) => form.again(broken.buffers),
                    ended => return ended,
                },
                Err((failure, _)) if failure.kind == DeviceErrorKind::Latched => return Err(failure.into()),
                Err((_, command)) => command,
            };
        }
        let reason = format!("the server has ended the connection at this request {REPEATS_MAX} times");
        Err(ConnectionFailure::new(DeviceErrorKind::Io, reason).into())
    }

    /// Whether a command whose connection has ended may be sent again. Commands that change something may not: a late
    /// first copy could overwrite a later change. A flush may, if nothing is lost that it would have covered.
    fn can_repeat(&self, form: CommandHeader, broken: &FailedRequest) -> bool {
        let changes = form.write.is_some() || (form.command == request::FLUSH && self.journal.latched().is_some());
        broken.failure.is_cut && !changes && !self.options.is_single_session
    }

    /// Checks that the device accepts writes. *Errors*: the reason why it does not.
    pub fn check_writable(&self, request: &DeviceRequest) -> Result<(), Error> {
        if self.has(flag::READ_ONLY) {
            return Err(self.error(request, DeviceErrorKind::Unsupported, "the export is read-only"));
        }
        match self.journal.latched() {
            Some(reason) => Err(self.error(request, DeviceErrorKind::Latched, &reason)),
            None => Ok(()),
        }
    }

    pub fn error(&self, request: &DeviceRequest, kind: DeviceErrorKind, detail: &str) -> Error {
        request.error(kind, || self.spec.clone(), detail.to_owned())
    }

    /// Turns the result of an NBD command into the result of a device operation.
    pub fn outcome(&self, request: &DeviceRequest, ended: Ended) -> Result<(CommandOutcome, Vec<Buffer>), Error> {
        match ended {
            Ok((CommandOutcome::Refused(value, message), _)) => {
                Err(self.error(request, errno::to_kind(value), &refusal(value, &message)))
            }
            Ok(done) => Ok(done),
            Err(FailedRequest { failure: ConnectionFailure { kind, reason, .. }, .. }) => {
                Err(self.error(request, kind, &reason))
            }
        }
    }
}

/// A command without its buffers.
#[derive(Debug, Clone, Copy)]
pub(super) struct CommandHeader {
    flags: u16,
    command: u16,
    offset: u64,
    length: u64,
    write: Option<bool>,
}

impl CommandHeader {
    fn of(command: &ClientCommand) -> CommandHeader {
        let ClientCommand { flags, command, offset, length, write, .. } = *command;
        CommandHeader { flags, command, offset, length, write }
    }

    /// The same command once more.
    fn again(self, buffers: Vec<Buffer>) -> ClientCommand {
        let CommandHeader { flags, command, offset, length, write } = self;
        ClientCommand { flags, command, offset, length, buffers, write }
    }
}

async fn received(receiver: oneshot::Receiver<Ended>) -> Ended {
    receiver
        .await
        .unwrap_or_else(|_| Err(ConnectionFailure::new(DeviceErrorKind::Io, "the connection has ended").into()))
}

/// A command that was sent, waits to be sent, or could not be sent.
pub(super) enum CommandDispatch {
    Sent(oneshot::Receiver<Ended>, CommandHeader),
    Waits(ClientCommand),
    Failed(ConnectionFailure),
}

impl CommandDispatch {
    /// Waits until the command ends.
    pub async fn end(self, inner: &NbdDeviceState) -> Ended {
        match self {
            CommandDispatch::Sent(receiver, form) => match received(receiver).await {
                Err(broken) if inner.can_repeat(form, &broken) => inner.carry(form.again(broken.buffers)).await,
                ended => ended,
            },
            CommandDispatch::Waits(command) => inner.carry(command).await,
            CommandDispatch::Failed(failure) => Err(failure.into()),
        }
    }
}
