//! A running proxy: its listeners, its workers, and its end.
//!
//! Owns: the order of a start, one thread per worker, and waiting for the threads. Leaves to others: the sockets
//! (`bound_sockets`), signals (the caller requests the [`Shutdown`]), closing the store (the caller does so when the
//! proxy has ended).

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;

use nectary_config::ProxyConfig;
use nectary_host::Shutdown;
use nectary_host::inherited::InheritedListeners;
use nectary_store::SpanSet;
use tokio::sync::Semaphore;

use crate::accept::{self, ProxyCertificates, TlsService, WorkerExit, WorkerListener};
use crate::access_log::{LogBuffer, LogWriter, OpenLog};
use crate::acme::{AcmeShared, OrderDesk};
use crate::client_limits::ClientLimits;
use crate::configured::sites_of;
use crate::connections::ProxyEntrance;
use crate::error::Error;
use crate::fleet::{FleetPeers, FleetSeat};
use crate::listening::bound_sockets::{BoundSockets, ListenAddresses, check_addresses};
use crate::listening::unix_socket::UnixSocket;
use crate::options::{OriginTimes, ProxyOptions};
use crate::reload::ProxyReopener;
use crate::room::{ConnectionLimits, ConnectionRoom};
use crate::rules::key_headers;
use crate::sites::{LiveSites, preset};
use crate::stats::{StatsReader, WorkerStats};
use crate::successor::{PurgeElsewhere, SuccessorNotice};
use crate::upstream::{KnownOrigins, OriginRules, OriginTrust};
use crate::worker::{ProxyWorker, WorkerCommon};

/// How long the end of a worker waits for its threads.
const BLOCKING_WAIT: std::time::Duration = std::time::Duration::from_millis(500);

/// The port that an `https` URL has without naming one.
const HTTPS_PORT: u16 = 443;

/// A running proxy.
#[derive(Debug)]
pub struct Proxy {
    addresses: ListenAddresses,
    stats: StatsReader,
    shutdown: Shutdown,
    workers: Vec<JoinHandle<Result<(), Error>>>,
    log: Option<LogWriter>,
    sites: LiveSites,
    /// The configuration file with which the proxy started, if there is one.
    started: Option<Arc<ProxyConfig>>,
    fleet: Option<FleetSeat>,
    peers: Option<Arc<FleetPeers>>,
    tls: Option<Arc<TlsService>>,
    left: Arc<Semaphore>,
    /// The thread that orders certificates.
    desk: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Binds and serves: calls [`Proxy::bind`], then [`BoundProxy::serve`].
    pub fn start(options: ProxyOptions, store: impl Into<SpanSet>, shutdown: Shutdown) -> Result<Proxy, Error> {
        Proxy::bind(options)?.serve(store, shutdown)
    }

    /// Binds the addresses, and makes every check that needs no store. No client can connect yet, but to a Unix socket,
    /// where it waits. The files of Unix sockets are removed if the result is dropped.
    ///
    /// *Errors*: [`Error::NoAddress`] without an address; [`Error::KeyHeaders`] with too many headers in the key; [`Error::AddressTwice`] if two are the same;
    /// [`Error::Listen`] or [`Error::UnixSocket`] if an address is not available;
    /// [`Error::OriginCa`] if the file of certificates cannot be read or has none; [`Error::AdminWithoutToken`] if an
    /// address needs a token and there is none; [`Error::AccessLog`] if the log cannot be opened.
    pub fn bind(options: ProxyOptions) -> Result<BoundProxy, Error> {
        Proxy::bind_with(options, InheritedListeners::default())
    }

    /// Like [`bind`](Proxy::bind), with listening sockets that the process inherited. Each of them is used instead of a
    /// new one for the address that it has. Another process has them too and serves them next, so at the end no request
    /// on an open connection is lost: the proxy answers each client's next request before it closes its connection.
    ///
    /// *Errors*: also [`Error::Inherited`] or [`Error::InheritedUnix`] if no address is that of an inherited socket.
    pub fn bind_with(options: ProxyOptions, inherited: InheritedListeners) -> Result<BoundProxy, Error> {
        check_addresses(&options)?;
        options.admin.check()?;
        let count = key_headers::names(&options.origin_rules.key_headers).len();
        if count > key_headers::KEY_HEADERS_MAX {
            return Err(Error::KeyHeaders { count });
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
            files => Some(ProxyCertificates::new(files.to_vec(), options.tls.clone(), acme)?),
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
        let peers =
            options.peers.as_ref().map(|peers| FleetPeers::new(peers, &options.limits)).transpose()?.map(Arc::new);
        let has_successor = !inherited.is_empty();
        let sockets = BoundSockets::bind(&options, certificates.is_some(), inherited)?;
        let log = OpenLog::open(&options.access_log)?;
        let options = Arc::new(options);
        Ok(BoundProxy {
            options,
            tls: certificates.map(|certificates| {
                let port = sockets.addresses.clients.first().map_or(HTTPS_PORT, SocketAddr::port);
                Arc::new(TlsService { certificates, port })
            }),
            sockets,
            log,
            sites,
            has_successor,
            successor: SuccessorNotice::default(),
            fleet: None,
            peers,
            desk,
        })
    }

    /// The addresses at which clients are sent to TLS.
    pub fn redirect_addresses(&self) -> &[SocketAddr] {
        &self.addresses.redirect
    }

    /// The addresses on which the proxy listens for clients, in the order of the options, with the ports that were
    /// picked.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses.clients
    }

    /// The Unix sockets on which the proxy listens, for clients and for administration.
    pub fn unix_sockets(&self) -> &[UnixSocket] {
        &self.addresses.unix
    }

    /// The address for the other nodes of a fleet, with the port that was picked.
    pub fn peer_addresses(&self) -> &[SocketAddr] {
        &self.addresses.peers
    }

    /// The addresses for administration, with the ports that were picked.
    pub fn admin_addresses(&self) -> &[SocketAddr] {
        &self.addresses.admin
    }

    /// A reader of the proxy's counters. It can still be used after the proxy has ended.
    pub fn stats(&self) -> StatsReader {
        self.stats.clone()
    }

    /// What reopens the proxy's files. It can still be used after the proxy has ended.
    pub fn reopener(&self) -> ProxyReopener {
        ProxyReopener {
            log: self.log.as_ref().map(LogWriter::queue),
            sites: self.sites.clone(),
            tls: self.tls.clone(),
            started: self.started.clone(),
            fleet: self.fleet.clone(),
            peers: self.peers.clone(),
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

/// A proxy that has bound its addresses but does not serve yet.
#[derive(Debug)]
pub struct BoundProxy {
    options: Arc<ProxyOptions>,
    sockets: BoundSockets,
    log: Option<OpenLog>,
    sites: LiveSites,
    tls: Option<Arc<TlsService>>,
    has_successor: bool,
    successor: SuccessorNotice,
    fleet: Option<FleetSeat>,
    peers: Option<Arc<FleetPeers>>,
    desk: Option<OrderDesk>,
}

impl BoundProxy {
    /// Whether another process serves inherited listeners next.
    pub fn has_successor(&self) -> bool {
        self.has_successor
    }

    /// Sets how the next process is told to purge what requests under way at the end of this one change.
    pub fn with_successor(self, purge: PurgeElsewhere) -> BoundProxy {
        BoundProxy { successor: SuccessorNotice(Some(purge)), ..self }
    }

    /// Makes the proxy a node of a fleet: purges go to every node, and the store is used only as the fleet allows.
    pub fn with_fleet(self, fleet: FleetSeat) -> BoundProxy {
        if let Some(peers) = &self.peers {
            fleet.tell_of(peers);
        }
        BoundProxy { fleet: Some(fleet), ..self }
    }

    /// Listens, starts the workers and returns; requests are accepted from then on.
    ///
    /// The proxy serves until `shutdown` is requested; then it stops accepting, finishes requests under way within the
    /// drain timeout and ends. The store must stay open until [`Proxy::left`] returns.
    ///
    /// *Errors*: [`Error::Listen`] or [`Error::ProxyWorker`] if an address or a thread cannot be used or started. After an
    /// error no thread keeps running.
    pub fn serve(self, store: impl Into<SpanSet>, shutdown: Shutdown) -> Result<Proxy, Error> {
        let BoundProxy { options, sockets, log, sites, tls, has_successor, successor, fleet, peers, desk } = self;
        let left = Arc::new(Semaphore::new(0));
        let store: SpanSet = store.into();
        let addresses = sockets.addresses.clone();
        let listeners = sockets.listen()?;
        let limits = ConnectionLimits::new(options.limits.connections_max, listeners.len());
        let room = ConnectionRoom::new(limits);
        let stats: Vec<_> = listeners.iter().map(|_| Arc::new(WorkerStats::default())).collect();
        let reader =
            StatsReader::new(stats.clone()).with_sites(sites.clone()).with_limits(limits).with_tls(tls.clone());
        let log = log.map(|log| LogWriter::start(log, reader.clone())).transpose()?;
        let reader = reader.with_log(log.as_ref().map(LogWriter::queue));
        let known = Arc::new(KnownOrigins::new(options.names.clone()));
        let (started, log_format) = (options.config.clone(), options.log_format);
        let client_limits = ClientLimits::new(&options.limits.by_network);
        let common = WorkerCommon {
            options,
            store,
            sites: sites.clone(),
            known,
            room,
            client_limits,
            successor,
            part_purges: Arc::default(),
            fleet: fleet.clone(),
            peers: peers.clone(),
            tls: tls.clone(),
            instance: random(),
        };
        let mut workers = Vec::new();
        for (index, listeners) in listeners.into_iter().enumerate() {
            let (common, stats, own) = (common.clone(), stats[index].clone(), shutdown.clone());
            let log = log.as_ref().map(|writer| LogBuffer::new(log_format, writer.queue(), stats.clone()));
            let exit = WorkerExit { left: left.clone(), has_successor };
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
        Ok(Proxy { addresses, stats: reader, shutdown, workers, log, sites, started, fleet, peers, tls, left, desk })
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
    store: SpanSet,
    shutdown: Shutdown,
    ready: impl FnOnce(&[SocketAddr], StatsReader),
) -> Result<(), Error> {
    let proxy = Proxy::start(options, store, shutdown)?;
    ready(proxy.addresses(), proxy.stats());
    proxy.wait()
}

fn serve(
    index: usize,
    common: WorkerCommon,
    (stats, log): (Arc<WorkerStats>, Option<LogBuffer>),
    listeners: Vec<(WorkerListener, ProxyEntrance)>,
    (shutdown, exit): (Shutdown, WorkerExit),
) -> Result<(), Error> {
    let failed = |error: std::io::Error| Error::Worker { worker: index, what: format!("failed: {error}") };
    // When this worker ends, even by a panic, the other workers end, too.
    let stop_others = StopOnDrop(shutdown.clone());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build_local(tokio::runtime::LocalOptions::default())
        .map_err(failed)?;
    let result = runtime.block_on(async {
        let worker = ProxyWorker::new(index, common, stats, log);
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

/// A number that distinguishes this proxy from others in `Via`. Other proxies are unlikely to have the same number.
fn random() -> u32 {
    getrandom::u32().expect("the kernel has random numbers")
}
