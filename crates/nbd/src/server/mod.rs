//! The server: devices as exports for any NBD client.
//!
//! Owns: listeners, connections and their limits, and the order of steps when the server stops. Promises: a flush on
//! any connection covers the operations that were completed on all connections; a faulty, slow or lost client uses a
//! limited amount of memory, and only its own connection ends; when [`NetworkBlockServer::stop`] returns, the devices are flushed,
//! and all requests have ended except those that took longer than [`STOP_TIME_MAX`].
//!
//! | file | what is in it |
//! |---|---|
//! | `export` | devices under names, flags, counters |
//! | `handshake` | haggling: a plain state machine |
//! | `command` | checks of a request, without I/O |
//! | `execute` | the execution of a request on the device |
//! | `ranges` | locks for parts of blocks |
//! | `connection` | one connection: reading, executing, replying |
//! | `listen` | the addresses of the server |
//! | `threads` | threads that share the connections |

mod command;
mod connection;
mod execute;
mod export;
pub(crate) mod handshake;
mod listen;
mod ranges;
mod threads;

pub(crate) use command::check;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use nectary_block::IoContext;
use nectary_host::log::{LogLevel, LogThrottle};
use nectary_host::tls::ServerTls;
use nectary_host::{Newcomer, Newcomers, Shutdown, descriptors};
use serde::Serialize;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use self::listen::EndpointListener;
use self::threads::ConnectionThreads;
use crate::error::Error;
use crate::limits::{CONNECTIONS_MAX, SERVER_BYTES_MAX, STOP_TIME_MAX, THREADS_MAX};
use crate::transport::Transport;

pub use export::{Export, ExportFigures, ExportRefusal, ExportSource, ExportTable};
pub use listen::ListenEndpoint;

/// The time for which the server waits after it could not accept a connection, for example because no file descriptor
/// was free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The time that a displaced connection gets to close its descriptor.
const DISPLACE_PAUSE: Duration = Duration::from_millis(1);

/// The settings of a server. Callers start from the default and change single fields.
#[derive(Clone)]
#[non_exhaustive]
pub struct ServerOptions {
    /// The maximum number of clients that are served at the same time, reduced to what the limit of open descriptors
    /// allows. A further client gets the place of one that has sent no request yet; if there is none, the server
    /// disconnects it.
    pub connections_max: usize,
    /// The maximum number of bytes of requests in flight on all connections together. Values below 64 MiB count as 64
    /// MiB.
    pub bytes_max: usize,
    /// The server's certificate. If there is one, every connection must be encrypted.
    pub tls: Option<ServerTls>,
    /// Whether addresses that other machines can reach are allowed without TLS.
    pub insecure: bool,
    /// The number of threads that share the connections of each address, at most [`THREADS_MAX`]. With 0, the runtime
    /// that starts the server serves all connections, which is necessary for devices that belong to this runtime.
    pub threads: usize,
}

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        ServerOptions {
            connections_max: CONNECTIONS_MAX,
            bytes_max: SERVER_BYTES_MAX,
            tls: None,
            insecure: false,
            threads: 0,
        }
    }
}

/// The counters of a server.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct ServerFigures {
    /// The number of open connections.
    pub connections: u64,
    /// The number of connections that were accepted.
    pub accepted: u64,
    /// The number of connections that were refused because there were too many.
    pub turned_away: u64,
    /// The number of connections without a request that were ended to make room for others.
    pub displaced: u64,
    /// The number of connections that ended because of a fault of the client or the network.
    pub broken: u64,
    /// The reason why the last broken connection ended.
    pub last_reason: Option<String>,
}

/// The state that all connections share.
struct NbdServerState {
    exports: Arc<ExportTable>,
    options: ServerOptions,
    bytes: Arc<Semaphore>,
    stop: Shutdown,
    connections: AtomicU64,
    accepted: AtomicU64,
    turned_away: AtomicU64,
    displaced: AtomicU64,
    newcomers: Newcomers,
    broken: AtomicU64,
    next: AtomicU32,
    last_reason: std::sync::Mutex<Option<String>>,
}

/// A running server, with its listeners and connections.
///
/// # Examples
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use std::sync::Arc;
/// use nectary_block::{Buffer, MemoryDevice, read, write};
/// use nectary_nbd::{ConnectOptions, Export, ExportTable, ListenEndpoint, NbdDevice, NetworkBlockServer, ServerOptions, ExportUrl};
///
/// let export = Export::new("disk", "", Arc::new(MemoryDevice::new(1 << 20)), false).unwrap();
/// let listen = "tcp:127.0.0.1:0".parse::<ListenEndpoint>().unwrap();
/// let server = NetworkBlockServer::start(&[listen], ExportTable::new(vec![export]).unwrap(), ServerOptions::default()).unwrap();
/// let url = ExportUrl::parse(&server.urls()[0]).unwrap();
/// let device = NbdDevice::connect(&url, ConnectOptions::default()).await.unwrap();
/// write(&device, 4096, Buffer::copy_of(&[7; 4096])).await.unwrap();
/// assert_eq!(read(&device, 4096, 4096).await.unwrap()[0], 7);
/// server.stop().await.unwrap();
/// # });
/// ```
pub struct NetworkBlockServer {
    shared: Arc<NbdServerState>,
    addresses: Vec<ListenEndpoint>,
    tasks: JoinSet<()>,
}

/// Addresses that are bound, and not served yet.
pub struct BoundServer {
    listeners: Vec<EndpointListener>,
    options: ServerOptions,
}

impl BoundServer {
    /// Serves clients, in the tokio runtime of the caller.
    ///
    /// *Errors*: a thread cannot be started.
    pub fn serve(self, exports: ExportTable) -> Result<NetworkBlockServer, Error> {
        let BoundServer { listeners, mut options } = self;
        options.connections_max = descriptors::connections_max(options.connections_max);
        let bytes = options.bytes_max.max(crate::limits::CONNECTION_BYTES_MAX);
        let shared = Arc::new(NbdServerState {
            exports: Arc::new(exports),
            options,
            bytes: Arc::new(Semaphore::new(bytes)),
            stop: Shutdown::new(),
            connections: AtomicU64::new(0),
            accepted: AtomicU64::new(0),
            turned_away: AtomicU64::new(0),
            displaced: AtomicU64::new(0),
            newcomers: Newcomers::default(),
            broken: AtomicU64::new(0),
            next: AtomicU32::new(0),
            last_reason: std::sync::Mutex::new(None),
        });
        let addresses = listeners.iter().map(|listener| listener.address().clone()).collect();
        let count = shared.options.threads.min(THREADS_MAX);
        let mut tasks = JoinSet::new();
        for listener in listeners {
            let threads = if count == 0 { None } else { Some(ConnectionThreads::start(count, &shared)?) };
            tasks.spawn(accept(listener, threads, shared.clone()));
        }
        Ok(NetworkBlockServer { shared, addresses, tasks })
    }
}

impl NetworkBlockServer {
    /// Listens and serves clients, in the tokio runtime of the caller.
    ///
    /// *Errors*: [`NbdErrorKind::Busy`](crate::NbdErrorKind::Busy) if an address is in use, another kind if it cannot be
    /// bound for another reason; [`NbdErrorKind::Invalid`](crate::NbdErrorKind::Invalid) if other machines can reach an
    /// address and there is no TLS, unless [`ServerOptions::insecure`] is set.
    pub fn start(
        listen: &[ListenEndpoint],
        exports: ExportTable,
        options: ServerOptions,
    ) -> Result<NetworkBlockServer, Error> {
        NetworkBlockServer::bind(listen, options)?.serve(exports)
    }

    /// Listens without serving yet: clients that connect wait. So an address that cannot be bound is known before the
    /// devices are opened, which may take them from another process. *Errors*: those of [`start`](NetworkBlockServer::start).
    pub fn bind(listen: &[ListenEndpoint], options: ServerOptions) -> Result<BoundServer, Error> {
        if options.tls.is_none() && !options.insecure {
            listen.iter().try_for_each(ListenEndpoint::check_private)?;
        }
        let listeners = listen.iter().map(EndpointListener::bind).collect::<Result<Vec<_>, _>>()?;
        Ok(BoundServer { listeners, options })
    }

    /// The addresses of the server, with the real port if port 0 was requested.
    pub fn addresses(&self) -> &[ListenEndpoint] {
        &self.addresses
    }

    /// The URLs of all exports at all addresses.
    pub fn urls(&self) -> Vec<String> {
        let tls = self.shared.options.tls.is_some();
        let urls = |address: &ListenEndpoint| {
            let url = |export: &Arc<Export>| address.url(export.name(), tls).to_string();
            self.shared.exports.iter().map(url).collect::<Vec<_>>()
        };
        self.addresses.iter().flat_map(urls).collect()
    }

    /// A function that returns the server's figures and exports, also after the server has stopped.
    pub fn reader(&self) -> impl Fn() -> (ServerFigures, Vec<Arc<Export>>) + Send + Sync + Clone + use<> {
        let shared = self.shared.clone();
        move || (shared.figures(), shared.exports.iter().cloned().collect())
    }

    /// Stops accepting clients, waits for requests in flight, closes all connections, and flushes the devices.
    ///
    /// *Errors*: the error of the first flush that failed. The server does not wait for requests that take longer than
    /// [`STOP_TIME_MAX`], and logs a warning about them.
    pub async fn stop(mut self) -> Result<(), nectary_block::Error> {
        self.shared.stop.request();
        let ended = async { while self.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(STOP_TIME_MAX, ended).await.is_err() {
            static LATE: LogThrottle = LogThrottle::once();
            LATE.write(
                LogLevel::Warning,
                "nbd",
                format_args!("requests still run after {STOP_TIME_MAX:?}; they are left"),
            );
        }
        let mut flushed = Ok(());
        for export in self.shared.exports.iter().filter(|export| !export.is_read_only()) {
            flushed = flushed.and(export.device().flush(IoContext::default()).await);
        }
        flushed
    }
}

impl Drop for NetworkBlockServer {
    fn drop(&mut self) {
        self.shared.stop.request();
        // Requests in flight hold locks until the device has completed them, so the tasks are not cancelled here.
        std::mem::take(&mut self.tasks).detach_all();
    }
}

impl NbdServerState {
    fn figures(&self) -> ServerFigures {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ServerFigures {
            connections: load(&self.connections),
            accepted: load(&self.accepted),
            turned_away: load(&self.turned_away),
            displaced: load(&self.displaced),
            broken: load(&self.broken),
            last_reason: self.reason().clone(),
        }
    }

    /// Ends the connection that has been open for longest without a request, if there is one.
    fn displace(&self) -> bool {
        let is_displaced = self.newcomers.displace();
        if is_displaced {
            self.displaced.fetch_add(1, Ordering::Relaxed);
        }
        is_displaced
    }

    fn reason(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.last_reason.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Accepts connections until the server stops, then waits until all of them have ended.
async fn accept(listener: EndpointListener, threads: Option<ConnectionThreads>, shared: Arc<NbdServerState>) {
    static ACCEPT_FAILED: LogThrottle = LogThrottle::every(Duration::from_secs(60));
    static TURNED_AWAY: LogThrottle = LogThrottle::every(Duration::from_secs(60));
    let mut connections = JoinSet::new();
    loop {
        let (stream, peer) = tokio::select! {
            () = shared.stop.requested() => break,
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                // No descriptor is free.
                Err(error) if descriptors::is_lack(&error) && shared.displace() => {
                    tokio::time::sleep(DISPLACE_PAUSE).await;
                    continue;
                }
                Err(error) => {
                    descriptors::note_failed_accept(&error);
                    ACCEPT_FAILED.write(LogLevel::Error, "nbd", format_args!("cannot accept: {error}"));
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
        };
        let max = shared.options.connections_max as u64;
        // The displaced connection ends soon; until then there is one more than `max`.
        if shared.connections.fetch_add(1, Ordering::Relaxed) >= max && !shared.displace() {
            shared.connections.fetch_sub(1, Ordering::Relaxed);
            shared.turned_away.fetch_add(1, Ordering::Relaxed);
            TURNED_AWAY.write(LogLevel::Warning, "nbd", format_args!("{peer} is turned away: there are {max} clients"));
            continue;
        }
        shared.accepted.fetch_add(1, Ordering::Relaxed);
        let newcomer = shared.newcomers.add();
        match &threads {
            None => {
                let shared = shared.clone();
                connections.spawn(async move { serve_and_count(Ok(stream.stay()), peer, newcomer, &shared).await });
            }
            Some(threads) => match stream.leave() {
                Ok(stream) => threads.serve(stream, peer, newcomer).await,
                Err(error) => serve_and_count(Err(error), peer, newcomer, &shared).await,
            },
        }
    }
    // Dropping the listener removes the file of a Unix socket before it closes the socket.
    drop(listener);
    while connections.join_next().await.is_some() {}
    if let Some(threads) = threads {
        threads.end().await;
    }
}

/// Serves a connection that was counted when it was accepted.
async fn serve_and_count(
    stream: std::io::Result<Transport>,
    peer: String,
    newcomer: Newcomer,
    shared: &Arc<NbdServerState>,
) {
    match stream {
        Ok(stream) => serve(stream, peer, newcomer, shared).await,
        Err(error) => break_off(&peer, &format!("its socket cannot be used: {error}"), shared),
    }
    shared.connections.fetch_sub(1, Ordering::Relaxed);
}

async fn serve(stream: Transport, peer: String, newcomer: Newcomer, shared: &Arc<NbdServerState>) {
    if let Err(reason) = connection::converse(stream, &peer, newcomer, shared).await {
        break_off(&peer, &reason, shared);
    }
}

/// Counts and logs a connection that has ended because of the client or the network.
fn break_off(peer: &str, reason: &str, shared: &NbdServerState) {
    static BROKEN: LogThrottle = LogThrottle::every(Duration::from_secs(1));
    shared.broken.fetch_add(1, Ordering::Relaxed);
    BROKEN.write(LogLevel::Warning, "nbd", format_args!("{peer}: {reason}"));
    *shared.reason() = Some(format!("{peer}: {reason}"));
}
