//! The server side of a control socket.
//!
//! Owns: the socket file, the connections and their limits. The socket file has mode 0600, replaces a stale socket
//! file, and is removed at the end. Promises: a server never takes over the socket of a running part; a client that is
//! slow, silent or sends without end occupies one buffer of limited size for a limited time; when
//! [`ControlServer::stop`] returns, everything that the server started has ended.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream as BlockingStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use socket2::{Domain, SockAddr, Socket, Type};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use super::message::{ControlFault, ControlResponse, FaultKind, REQUEST_BYTES_MAX, encode};
use super::methods::ControlMethods;
use crate::descriptors::note_failed_accept;
use crate::log::{LogLevel, LogThrottle};
use crate::{Error, RuntimeDirectory, Shutdown};

/// The maximum number of clients that wait to be accepted.
const BACKLOG: i32 = 16;
/// The time for which the server waits after a failed accept, for example because no file descriptor was free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The limits of a server of a control socket.
#[derive(Debug, Clone)]
pub struct ControlLimits {
    /// The maximum number of clients that are served at the same time. A further client is told to try again.
    pub connections_max: usize,
    /// The longest request line, including its newline, in bytes.
    pub request_bytes_max: usize,
    /// The longest time that a client may take to send a request or to read an answer.
    pub idle: Duration,
}

impl Default for ControlLimits {
    fn default() -> ControlLimits {
        ControlLimits { connections_max: 32, request_bytes_max: REQUEST_BYTES_MAX, idle: Duration::from_secs(10) }
    }
}

/// A running server of a control socket.
#[derive(Debug)]
pub struct ControlServer {
    path: PathBuf,
    linked: bool,
    methods: Arc<RwLock<Arc<ControlMethods>>>,
    shutdown: Shutdown,
    task: JoinHandle<()>,
}

impl ControlServer {
    /// Creates the socket of the part called `part` and serves `methods` on it.
    ///
    /// This function must be called in a tokio runtime with I/O and time enabled. The server runs in that runtime.
    /// *Errors*: [`Error::Busy`] if another process serves that part; [`Error::Io`] if the socket cannot be created.
    pub fn start(
        directory: &RuntimeDirectory,
        part: &str,
        methods: ControlMethods,
        limits: ControlLimits,
    ) -> Result<ControlServer, Error> {
        let path = directory.socket(part)?;
        let listener = bind(directory, &path)?;
        let shutdown = Shutdown::new();
        let methods = Arc::new(RwLock::new(Arc::new(methods)));
        let task = tokio::spawn(serve(listener, methods.clone(), limits, shutdown.clone()));
        Ok(ControlServer { path, linked: true, methods, shutdown, task })
    }

    /// Serves other methods to clients that connect from now on. So a part can have its socket before it starts, and
    /// fail early if another process has it.
    pub fn replace(&self, methods: ControlMethods) {
        *self.methods.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(methods);
    }

    /// The path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the socket, ends all connections and waits until they have ended.
    pub async fn stop(mut self) {
        self.unlink();
        self.shutdown.request();
        // Waiting fails only if the task has panicked, so the task has ended in either case.
        let _ = (&mut self.task).await;
    }

    /// Removes the socket file. The socket must still listen at this time. Otherwise another process could already have
    /// replaced the file by its own, and that file would be removed.
    fn unlink(&mut self) {
        if std::mem::take(&mut self.linked) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        self.unlink();
        self.task.abort();
    }
}

/// Creates the socket. The lock keeps two processes from replacing the same stale socket at the same time.
fn bind(directory: &RuntimeDirectory, path: &Path) -> Result<UnixListener, Error> {
    let _lock = directory.lock()?;
    match BlockingStream::connect(path) {
        Ok(_) => return Err(Error::Busy { path: path.to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        // No process listens on the socket: the process that made it was killed.
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(|source| Error::Io { path: path.to_owned(), source })?
        }
        // It is not known whether a process listens there, for example because no file descriptor is free.
        Err(source) => return Err(Error::Io { path: path.to_owned(), source }),
    }
    listen(path).map_err(|source| Error::Io { path: path.to_owned(), source })
}

/// Binds the socket, restricts the file's mode, and only then listens, so that no client can connect before the mode is
/// set.
fn listen(path: &Path) -> io::Result<UnixListener> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    UnixListener::from_std(socket.into())
}

async fn serve(
    listener: UnixListener,
    methods: Arc<RwLock<Arc<ControlMethods>>>,
    limits: ControlLimits,
    shutdown: Shutdown,
) {
    static ACCEPT_FAILED: LogThrottle = LogThrottle::every(Duration::from_secs(60));
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = shutdown.requested() => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) if connections.len() < limits.connections_max => {
                    let methods = methods.read().unwrap_or_else(PoisonError::into_inner).clone();
                    let limits = limits.clone();
                    connections.spawn(async move { converse(stream, &methods, &limits).await });
                }
                Ok((stream, _)) => refuse(&stream, limits.connections_max),
                Err(error) => {
                    note_failed_accept(&error);
                    ACCEPT_FAILED.write(LogLevel::Error, "control", format_args!("cannot accept: {error}"));
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    connections.shutdown().await;
}

/// Tells a client that there are too many clients. Bytes that the socket does not accept at once are dropped.
fn refuse(stream: &UnixStream, connections_max: usize) {
    let message = format!("{connections_max} clients are being served, which is the limit");
    let fault = ControlFault::new(FaultKind::Busy, message, "try again in a moment");
    let _ = stream.try_write(&encode(&ControlResponse::Error(fault)));
}

/// Answers the requests of one client until it disconnects, fails or takes too long.
async fn converse(stream: UnixStream, methods: &ControlMethods, limits: &ControlLimits) {
    let mut stream = BufReader::with_capacity(4096, stream);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = timeout(limits.idle, read_line(&mut stream, &mut line, limits.request_bytes_max)).await;
        let (response, last) = match read {
            Ok(Ok(LineOutcome::Whole)) => (methods.answer(&line).await, false),
            Ok(Ok(LineOutcome::TooLong)) => {
                let message = format!("the request is longer than {} bytes", limits.request_bytes_max);
                (
                    ControlResponse::Error(ControlFault::new(FaultKind::Malformed, message, "send a shorter request")),
                    true,
                )
            }
            Ok(Ok(LineOutcome::End) | Err(_)) | Err(_) => return,
        };
        let written = timeout(limits.idle, stream.get_mut().write_all(&encode(&response))).await;
        if last || !matches!(written, Ok(Ok(()))) {
            return;
        }
    }
}

enum LineOutcome {
    Whole,
    TooLong,
    End,
}

/// Reads one line of at most `bytes_max` bytes. An incomplete line at the end of the stream is dropped.
async fn read_line(
    stream: &mut BufReader<UnixStream>,
    line: &mut Vec<u8>,
    bytes_max: usize,
) -> io::Result<LineOutcome> {
    loop {
        let available = stream.fill_buf().await?;
        if available.is_empty() {
            return Ok(LineOutcome::End);
        }
        let newline = available.iter().position(|&byte| byte == b'\n');
        let wanted = newline.map_or(available.len(), |position| position + 1);
        let taken = wanted.min(bytes_max - line.len());
        line.extend_from_slice(&available[..taken]);
        stream.consume(taken);
        match newline {
            Some(_) if taken == wanted => return Ok(LineOutcome::Whole),
            _ if line.len() >= bytes_max => return Ok(LineOutcome::TooLong),
            _ => {}
        }
    }
}
