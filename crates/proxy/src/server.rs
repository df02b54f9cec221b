//! A running proxy: its listeners, its workers, and its end.
//!
//! Owns: binding, one thread per worker, and waiting for the threads. Leaves to others: signals (the caller requests
//! the [`Shutdown`]), closing the store (the caller does so when the proxy has ended).

use std::collections::HashSet;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;

use nectary_config::ProxyConfig;
use nectary_host::Shutdown;
use nectary_store::Spans;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::sync::Semaphore;

use crate::accept::{self, Certificates, Exit, Tls};
use crate::access_log::{LogBuffer, LogWriter, OpenLog};
use crate::acme::{AcmeShared, OrderDesk};
use crate::client_limits::ClientLimits;
use crate::configured::sites_of;
use crate::connections::{Door, Entrance};
use crate::error::Error;
use crate::options::{OriginTimes, ProxyOptions};
use crate::reload::Reopener;
use crate::room::{ConnectionLimits, Room};
use crate::rules::key_headers;
use crate::sites::{LiveSites, preset};
use crate::stats::{StatsReader, WorkerStats};
use crate::successor::{PurgeElsewhere, Successor};
use crate::upstream::{KnownOrigins, OriginRules, OriginTrust};
use crate::worker::{Common, Worker};

/// How long the end of a worker waits for its threads.
const BLOCKING_WAIT: std::time::Duration = std::time::Duration::from_millis(500);

/// The maximum number of connections that wait to be accepted, per listener.
const BACKLOG: i32 = 1024;

/// A running proxy.
#[derive(Debug)]
pub struct Proxy {
    addresses: Vec<SocketAddr>,
    redirect_addresses: Vec<SocketAddr>,
    admin_addresses: Vec<SocketAddr>,
    stats: StatsReader,
    shutdown: Shutdown,
    workers: Vec<JoinHandle<Result<(), Error>>>,
    log: Option<LogWriter>,
    sites: LiveSites,
    /// The configuration file with which the proxy started, if there is one.
    started: Option<Arc<ProxyConfig>>,
    tls: Option<Arc<Tls>>,
    left: Arc<Semaphore>,
    /// The thread that orders certificates.
    desk: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Binds and serves: calls [`Proxy::bind`], then [`Bound::serve`].
    pub fn start(options: ProxyOptions, store: impl Into<Spans>, shutdown: Shutdown) -> Result<Proxy, Error> {
        Proxy::bind(options)?.serve(store, shutdown)
    }

    /// Binds the addresses, and makes every check that needs no store. No client can connect yet.
    ///
    /// *Errors*: [`Error::NoAddress`] without an address; [`Error::KeyHeaders`] with too many headers in the key; [`Error::AddressTwice`] if two are the same;
    /// [`Error::Listen`] if an address is not available;
    /// [`Error::OriginCa`] if the file of certificates cannot be read or has none; [`Error::AdminWithoutToken`] if an
    /// address needs a token and there is none; [`Error::AccessLog`] if the log cannot be opened.
    pub fn bind(options: ProxyOptions) -> Result<Bound, Error> {
        Proxy::bind_with(options, Vec::new())
    }

    /// Like [`bind`](Proxy::bind), with listening sockets that the process inherited. Each of them is used instead of a
    /// new one for the address that it has. Another process has them too and serves them next, so at the end no request
    /// on an open connection is lost: the proxy answers each client's next request before it closes its connection.
    ///
    /// *Errors*: also [`Error::Inherited`] if no address is that of an inherited socket.
    pub fn bind_with(options: ProxyOptions, inherited: Vec<TcpListener>) -> Result<Bound, Error> {
        if options.listen.is_empty() {
            return Err(Error::NoAddress);
        }
        options.admin.check()?;
        let count = key_headers::names(&options.origin_rules.key_headers).len();
        if count > key_headers::KEY_HEADERS_MAX {
            return Err(Error::KeyHeaders { count });
        }
        let mut named = HashSet::new();
        let all = options.listen.iter().chain(&options.redirect).chain(&options.admin.listen);
        let fixed = all.filter(|address| address.port() != 0);
        if let Some(&address) = fixed.into_iter().find(|address| !named.insert(**address)) {
            return Err(Error::AddressTwice { address });
        }
        let sites = LiveSites::new(match &options.config {
            Some(config) => sites_of(config, 0).map_err(Error::Config)?,
            None => {
                let trust = Arc::new(OriginTrust::new(options.origin_ca.as_deref())?);
                let times = OriginTimes::of(&options.limits);
                preset(&options, Arc::new(OriginRules::new(times, trust)))
            }
        });
        let acme = options.acme.clone().map(AcmeShared::new);
        let certificates = match options.certificates.as_slice() {
            [] if acme.is_none() => None,
            files => Some(Certificates::new(files.to_vec(), options.tls.clone(), acme)?),
        };
        // Certificates in the state directory are read before the first client comes.
        let desk = certificates.as_ref().and_then(|certificates| {
            let shared = certificates.acme()?;
            let options = certificates.orders_of(&shared.options());
            shared.change(Some(options));
            Some(OrderDesk::open(shared.clone()))
        });
        if let (None, Some(&address)) = (&certificates, options.redirect.first()) {
            return Err(Error::RedirectWithoutTls { address });
        }
        let worker_count = options.worker_count();
        let (mut addresses, mut redirect_addresses, mut admin_addresses) = (Vec::new(), Vec::new(), Vec::new());
        let mut sockets: Vec<Vec<(Socket, Entrance)>> = (0..worker_count).map(|_| Vec::new()).collect();
        let door = if certificates.is_some() { Door::Tls } else { Door::Clients };
        let clients = options.listen.iter().map(|address| (*address, door));
        let redirect = options.redirect.iter().map(|address| (*address, Door::Redirect));
        let admin = options.admin.listen.iter().map(|address| (*address, Door::Admin));
        let has_successor = !inherited.is_empty();
        let mut inherited = inherited.into_iter().map(Some).collect::<Vec<_>>();
        for (mut address, door) in clients.chain(redirect).chain(admin) {
            let entrance = Entrance::new(&options, address, door);
            let found = inherited.iter_mut().find(|socket| {
                let own = socket.as_ref().and_then(|socket| socket.local_addr().ok());
                own.is_some_and(|own| own == address)
            });
            if let Some(socket) = found.and_then(Option::take) {
                let failed = |error| Error::Listen { address, error };
                socket.set_nonblocking(true).map_err(failed)?;
                for of_worker in &mut sockets {
                    of_worker.push((socket.try_clone().map_err(failed)?.into(), entrance.clone()));
                }
                match door {
                    Door::Clients | Door::Tls => addresses.push(address),
                    Door::Redirect => redirect_addresses.push(address),
                    Door::Admin => admin_addresses.push(address),
                }
                continue;
            }
            // The workers share each address with `SO_REUSEPORT`. A second proxy could share the address unnoticed, so
            // the address is first bound exclusively.
            bind(address, false).map_err(|error| Error::Listen { address, error })?;
            for of_worker in &mut sockets {
                let socket = bind(address, true).map_err(|error| Error::Listen { address, error })?;
                // With port 0, the other workers use the port that the first worker's socket got.
                address = local_address(&socket).map_err(|error| Error::Listen { address, error })?;
                of_worker.push((socket, entrance.clone()));
            }
            match door {
                Door::Clients | Door::Tls => addresses.push(address),
                Door::Redirect => redirect_addresses.push(address),
                Door::Admin => admin_addresses.push(address),
            }
        }
        if let Some(socket) = inherited.into_iter().flatten().next() {
            return Err(Error::Inherited { address: socket.local_addr().ok() });
        }
        let log = OpenLog::open(&options.access_log)?;
        let options = Arc::new(options);
        Ok(Bound {
            options,
            tls: certificates
                .zip(addresses.first())
                .map(|(certificates, first): (_, &SocketAddr)| Arc::new(Tls { certificates, port: first.port() })),
            addresses,
            redirect_addresses,
            admin_addresses,
            sockets,
            log,
            sites,
            has_successor,
            successor: Successor::default(),
            desk,
        })
    }

    /// The addresses at which clients are sent to TLS.
    pub fn redirect_addresses(&self) -> &[SocketAddr] {
        &self.redirect_addresses
    }

    /// The addresses on which the proxy listens for clients, in the order of the options, with the ports that were
    /// picked.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The addresses for administration, with the ports that were picked.
    pub fn admin_addresses(&self) -> &[SocketAddr] {
        &self.admin_addresses
    }

    /// A reader of the proxy's counters. It can still be used after the proxy has ended.
    pub fn stats(&self) -> StatsReader {
        self.stats.clone()
    }

    /// What reopens the proxy's files. It can still be used after the proxy has ended.
    pub fn reopener(&self) -> Reopener {
        Reopener {
            log: self.log.as_ref().map(LogWriter::queue),
            sites: self.sites.clone(),
            tls: self.tls.clone(),
            started: self.started.clone(),
        }
    }

    /// The [`Shutdown`] that ends the proxy.
    pub fn shutdown(&self) -> &Shutdown {
        &self.shutdown
    }

    /// Waits until the proxy was told to stop and no worker changes the store any more. From then on the caller may close
    /// the store: requests under way end without it, and what they have not read yet is read by the closed store.
    pub fn left(&self) -> impl Future<Output = ()> + Send + use<> {
        let (left, workers) = (self.left.clone(), self.workers.len() as u32);
        async move { drop(left.acquire_many(workers).await) }
    }

    /// Waits until the proxy has ended; blocks the thread. If one worker fails, the others are stopped.
    ///
    /// *Errors*: the error of the failed worker with the lowest index.
    pub fn wait(self) -> Result<(), Error> {
        let mut result = Ok(());
        for (worker, thread) in self.workers.into_iter().enumerate() {
            let ended = thread.join().unwrap_or_else(|_| Err(Error::Worker { worker, what: "panicked".into() }));
            if ended.is_err() {
                self.shutdown.request();
                result = result.and(ended);
            }
        }
        // Its panic is told on the standard error; clients are served all the same.
        _ = self.desk.map(JoinHandle::join);
        if let Some(log) = self.log {
            log.finish();
        }
        result
    }
}

/// A proxy that has bound its addresses but does not listen yet.
#[derive(Debug)]
pub struct Bound {
    options: Arc<ProxyOptions>,
    addresses: Vec<SocketAddr>,
    redirect_addresses: Vec<SocketAddr>,
    admin_addresses: Vec<SocketAddr>,
    /// The sockets of each worker, and what the address of each is for.
    sockets: Vec<Vec<(Socket, Entrance)>>,
    log: Option<OpenLog>,
    sites: LiveSites,
    tls: Option<Arc<Tls>>,
    has_successor: bool,
    successor: Successor,
    desk: Option<OrderDesk>,
}

impl Bound {
    /// Whether another process serves inherited listeners next.
    pub fn has_successor(&self) -> bool {
        self.has_successor
    }

    /// Sets how the next process is told to purge what requests under way at the end of this one change.
    pub fn with_successor(self, purge: PurgeElsewhere) -> Bound {
        Bound { successor: Successor(Some(purge)), ..self }
    }

    /// Listens, starts the workers and returns; requests are accepted from then on.
    ///
    /// The proxy serves until `shutdown` is requested; then it stops accepting, finishes requests under way within the
    /// drain timeout and ends. The store must stay open until [`Proxy::left`] returns.
    ///
    /// *Errors*: [`Error::Listen`] or [`Error::Worker`] if an address or a thread cannot be used or started. After an
    /// error no thread keeps running.
    pub fn serve(self, store: impl Into<Spans>, shutdown: Shutdown) -> Result<Proxy, Error> {
        let Bound {
            options,
            addresses,
            redirect_addresses,
            admin_addresses,
            sockets,
            log,
            sites,
            tls,
            has_successor,
            successor,
            desk,
        } = self;
        let left = Arc::new(Semaphore::new(0));
        let store: Spans = store.into();
        let mut listeners = Vec::new();
        for of_worker in sockets {
            listeners.push(of_worker.into_iter().map(listen).collect::<Result<Vec<_>, _>>()?);
        }
        let limits = ConnectionLimits::new(options.limits.connections_max, listeners.len());
        let room = Room::new(limits);
        let stats: Vec<_> = listeners.iter().map(|_| Arc::new(WorkerStats::default())).collect();
        let reader =
            StatsReader::new(stats.clone()).with_sites(sites.clone()).with_limits(limits).with_tls(tls.clone());
        let log = log.map(|log| LogWriter::start(log, reader.clone())).transpose()?;
        let reader = reader.with_log(log.as_ref().map(LogWriter::queue));
        let known = Arc::new(KnownOrigins::new(options.names.clone()));
        let (started, log_format) = (options.config.clone(), options.log_format);
        let client_limits = ClientLimits::new(&options.limits.by_network);
        let common = Common {
            options,
            store,
            sites: sites.clone(),
            known,
            room,
            client_limits,
            successor,
            tls: tls.clone(),
            instance: random(),
        };
        let mut workers = Vec::new();
        for (index, listeners) in listeners.into_iter().enumerate() {
            let (common, stats, own) = (common.clone(), stats[index].clone(), shutdown.clone());
            let log = log.as_ref().map(|writer| LogBuffer::new(log_format, writer.queue(), stats.clone()));
            let exit = Exit { left: left.clone(), has_successor };
            let work = move || serve(index, common, (stats, log), listeners, (own, exit));
            let spawned = std::thread::Builder::new().name(format!("proxy-{index}")).spawn(work);
            match spawned {
                Ok(worker) => workers.push(worker),
                Err(error) => {
                    shutdown.request();
                    return Err(Error::Worker { worker: index, what: format!("cannot start: {error}") });
                }
            }
        }
        let desk = desk.map(|desk| order_certificates(desk, shutdown.clone())).transpose()?;
        Ok(Proxy {
            addresses,
            redirect_addresses,
            admin_addresses,
            stats: reader,
            shutdown,
            workers,
            log,
            sites,
            started,
            tls,
            left,
            desk,
        })
    }
}

/// Starts the thread that orders certificates. *Errors*: it does not start; then the workers end.
fn order_certificates(desk: OrderDesk, shutdown: Shutdown) -> Result<JoinHandle<()>, Error> {
    let failed = |error: std::io::Error| Error::Acme { what: error.to_string() };
    let starting = shutdown.clone();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let started = runtime.and_then(|runtime| {
        std::thread::Builder::new().name("proxy-acme".into()).spawn(move || {
            runtime.block_on(desk.run(shutdown));
            // A look-up of a name that nobody answers does not keep the process.
            runtime.shutdown_timeout(BLOCKING_WAIT);
        })
    });
    started.map_err(|error| {
        starting.request();
        failed(error)
    })
}

/// Runs a proxy until `shutdown` is requested; `ready` is called once it accepts requests. Blocks the thread.
pub fn run(
    options: ProxyOptions,
    store: Spans,
    shutdown: Shutdown,
    ready: impl FnOnce(&[SocketAddr], StatsReader),
) -> Result<(), Error> {
    let proxy = Proxy::start(options, store, shutdown)?;
    ready(proxy.addresses(), proxy.stats());
    proxy.wait()
}

fn serve(
    index: usize,
    common: Common,
    (stats, log): (Arc<WorkerStats>, Option<LogBuffer>),
    listeners: Vec<(TcpListener, Entrance)>,
    (shutdown, exit): (Shutdown, Exit),
) -> Result<(), Error> {
    let failed = |error: std::io::Error| Error::Worker { worker: index, what: format!("failed: {error}") };
    // When this worker ends, even by a panic, the other workers end, too.
    let stop_others = StopOnDrop(shutdown.clone());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build_local(tokio::runtime::LocalOptions::default())
        .map_err(failed)?;
    let result = runtime.block_on(async {
        let worker = Worker::new(index, common, stats, log);
        accept::run(worker, listeners, shutdown, exit).await
    });
    drop(stop_others);
    // A thread that waits for a disk which does not answer does not keep the worker.
    runtime.shutdown_timeout(BLOCKING_WAIT);
    result.map_err(failed)
}

struct StopOnDrop(Shutdown);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.request();
    }
}

fn listen((socket, entrance): (Socket, Entrance)) -> Result<(TcpListener, Entrance), Error> {
    let address = local_address(&socket).unwrap_or(SocketAddr::from(([0, 0, 0, 0], 0)));
    socket.listen(BACKLOG).map_err(|error| Error::Listen { address, error })?;
    Ok((socket.into(), entrance))
}

fn local_address(socket: &Socket) -> std::io::Result<SocketAddr> {
    let address = socket.local_addr()?.as_socket();
    address.ok_or_else(|| std::io::Error::other("it is no address of IPv4 or IPv6"))
}

/// Binds a socket to an address. If `is_shared`, other sockets can share the address.
fn bind(address: SocketAddr, is_shared: bool) -> std::io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(is_shared)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

/// A number that distinguishes this proxy from others in `Via`. Other proxies are unlikely to have the same number.
fn random() -> u32 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id()) as u32
}
