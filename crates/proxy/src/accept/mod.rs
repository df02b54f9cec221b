//! The main loop of a worker: it accepts connections, does the periodic work, and ends when a stop is requested.
//!
//! Owns: accepting connections, and the periodic work: on every [`TICK`] the worker ends overdue connections, sends
//! lines of the access log to their writer and drops ended origin connections. Promises: after a stop is requested,
//! requests under way may still run until the drain timeout has passed.

mod client_socket;
pub(crate) mod proxy_header;
mod stream;
mod tls;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use nectary_host::log::{LogLevel, LogThrottle};
use nectary_host::{Shutdown, descriptors};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;

use crate::client_limits::NetworkPlace;
use crate::connections::{EntranceRole, ProxyEntrance};
use crate::listening::unix_socket::SocketFile;
use crate::room::{ConnectionPeer, ConnectionPlace};
use crate::service::{connection, refusal};
use crate::wire::transport::TICK;
use crate::worker::ProxyWorker;

pub(crate) use client_socket::{ClientSocket, ShownAddress};
pub(crate) use stream::ClientStream;
pub use tls::{CertificateFiles, ShownCertificate, TlsRules};
pub(crate) use tls::{ProxyCertificates, TlsService};

/// The longest time that the worker waits for connections to end after it has cut them off.
const CUT_OFF: Duration = Duration::from_secs(1);

/// The longest time that leaving the store waits for purges.
const LEAVE: Duration = Duration::from_secs(1);

/// The address that stands for this machine where a client has none: one of a Unix socket.
const NO_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Limits how often a failed accept is logged. Without free file descriptors, every accept fails.
static ACCEPT_FAILED: LogThrottle = LogThrottle::every(Duration::from_secs(60));

/// A socket that a worker listens on, and that others may listen on, too.
#[derive(Debug)]
pub(crate) enum WorkerListener {
    Tcp(std::net::TcpListener),
    /// The file of the socket, if this process has made it, goes with the last listener, and before it.
    Unix {
        file: Option<Arc<SocketFile>>,
        listener: std::os::unix::net::UnixListener,
    },
}

/// The same in the runtime of the worker.
enum LiveListener {
    Tcp(TcpListener),
    Unix { _file: Option<Arc<SocketFile>>, listener: UnixListener },
}

impl LiveListener {
    fn of(listener: WorkerListener) -> std::io::Result<LiveListener> {
        Ok(match listener {
            WorkerListener::Tcp(listener) => LiveListener::Tcp(TcpListener::from_std(listener)?),
            WorkerListener::Unix { file, listener } => {
                LiveListener::Unix { _file: file, listener: UnixListener::from_std(listener)? }
            }
        })
    }

    /// The next connection, and the address of its other end, if that has one.
    async fn accept(&self) -> std::io::Result<(ClientSocket, Option<SocketAddr>)> {
        match self {
            LiveListener::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                Ok((ClientSocket::Tcp(stream), Some(peer)))
            }
            LiveListener::Unix { listener, .. } => Ok((ClientSocket::Unix(listener.accept().await?.0), None)),
        }
    }
}

/// Serves until a stop is requested, then finishes requests under way, within the drain timeout.
pub(crate) async fn run(
    worker: Rc<ProxyWorker>,
    listeners: Vec<(WorkerListener, ProxyEntrance)>,
    shutdown: Shutdown,
    exit: WorkerExit,
) -> std::io::Result<()> {
    let tasks = &worker.connections.tasks;
    let mut accepting = Vec::new();
    for (listener, entrance) in listeners {
        let listener = LiveListener::of(listener)?;
        accepting.push(tasks.spawn_local(accept(worker.clone(), listener, entrance)));
    }
    accepting.push(tasks.spawn_local(give_places(worker.clone())));
    accepting.push(tasks.spawn_local(worker.clone().follow_sites()));
    // One worker checks and looks up servers for all.
    if worker.index == 0 {
        accepting.push(tasks.spawn_local(worker.clone().find_servers()));
        accepting.push(tasks.spawn_local(worker.clone().check_servers()));
    }
    let sweeping = sweep(worker.clone());
    tokio::select! {
        () = sweeping => {}
        () = shutdown.requested() => {}
    }
    accepting.iter().for_each(|task| task.abort());
    leave(&worker).await;
    exit.left.add_permits(1);
    worker.upstream.close();
    if exit.has_successor {
        worker.connections.let_go()
    } else {
        worker.connections.drain()
    }
    tasks.close();
    let drained = async {
        tokio::select! {
            () = sweep(worker.clone()) => {}
            () = tasks.wait() => {}
        }
    };
    if tokio::time::timeout(worker.options.limits.drain_timeout, drained).await.is_err() {
        // Requests still under way are cut off: their fills of the store fail, and clients see their connection abort.
        worker.connections.kill();
        _ = tokio::time::timeout(CUT_OFF, tasks.wait()).await;
    }
    worker.log.finish();
    Ok(())
}

/// How a worker stops.
pub(crate) struct WorkerExit {
    /// Gets a permit when the worker no longer changes the store.
    pub left: Arc<Semaphore>,
    /// Whether another process serves the same listeners next, so that no request may be lost.
    pub has_successor: bool,
}

/// Leaves the store. Requests from now on do not use it, and fetches go on for their clients alone once it is closed.
/// What unsafe requests under way may change is purged, because their answers may come too late for that.
async fn leave(worker: &ProxyWorker) {
    worker.is_leaving.set(true);
    let changing = worker.changing.borrow().clone();
    let purges = changing.iter().map(|key| worker.store.purge_key(key));
    // A purge that fails is reported by the request itself.
    _ = tokio::time::timeout(LEAVE, futures_util::future::join_all(purges)).await;
}

/// A connection that was just accepted.
pub(crate) struct NewConnection {
    pub stream: ClientSocket,
    /// The other end of it, which may be a load balancer. That of a Unix socket counts as this machine.
    pub peer: SocketAddr,
    pub door: EntranceRole,
    /// Whether it begins with a header of the PROXY protocol.
    pub has_header: bool,
    /// Its share of the connections of its client's network, until it ends.
    pub counted: Option<NetworkPlace>,
}

/// Accepts connections until the task is aborted.
async fn accept(worker: Rc<ProxyWorker>, listener: LiveListener, entrance: ProxyEntrance) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let has_header = entrance.expects_header(peer.map(|peer| peer.ip()));
                let peer = peer.unwrap_or(NO_ADDRESS);
                admit(&worker, NewConnection { stream, peer, door: entrance.door, has_header, counted: None }).await;
            }
            Err(error) => {
                // Most likely no file descriptor is free. Wait until open connections have ended.
                descriptors::note_failed_accept(&error);
                worker.upstream.close_unused();
                ACCEPT_FAILED.write(LogLevel::Warning, "proxy", format_args!("cannot accept a connection: {error}"));
                tokio::time::sleep(TICK).await;
            }
        }
    }
}

/// Gives other workers the places of idle clients.
async fn give_places(worker: Rc<ProxyWorker>) {
    let mut askers = worker.connections.room.give();
    while let Some(asker) = askers.recv().await {
        // A place that is not wanted any more is free.
        _ = asker.send(worker.connections.displace(ConnectionPeer::Client, &worker.stats));
    }
}

/// Serves a new client if its network has not too many connections and there is a place for it, or a client that is
/// idle. Otherwise refuses it.
async fn admit(worker: &Rc<ProxyWorker>, mut new: NewConnection) {
    let peer = if new.door == EntranceRole::Admin { ConnectionPeer::Admin } else { ConnectionPeer::Client };
    // The client behind a load balancer is known once its header is read. Those of a Unix socket are no network.
    if !new.has_header && peer == ConnectionPeer::Client && new.door != EntranceRole::Fleet && !new.stream.is_unix() {
        match worker.client_limits.count(new.peer.ip()) {
            Ok(counted) => new.counted = counted,
            Err(_) => return refuse_network(worker, &new.stream, new.door),
        }
    }
    let room = &worker.connections.room;
    if let Some(place) = room.take(peer) {
        return serve(worker, new, place);
    }
    if let Some(place) = worker.connections.displace(peer, &worker.stats) {
        serve(worker, new, place);
        // The displaced connection closes its descriptor before the next client is accepted.
        return tokio::task::yield_now().await;
    }
    if new.door == EntranceRole::Admin {
        return refuse(worker, &new, peer);
    }
    let worker = worker.clone();
    worker.clone().connections.tasks.spawn_local(async move {
        match worker.connections.room.ask().await {
            Some(place) => serve(&worker, new, place),
            None => refuse(&worker, &new, peer),
        }
    });
}

/// Refuses a client when there are too many.
fn refuse(worker: &ProxyWorker, new: &NewConnection, peer: ConnectionPeer) {
    let max = worker.connections.room.max(peer);
    worker.stats.excess_connections.add(1);
    descriptors::note_refused(format!("{max} clients are served, which is the limit"));
    write_refusal(&new.stream, new.door, &refusal::too_many_connections(worker.now_ms()));
}

/// Refuses a client whose network has too many connections. That is no problem of the proxy, so `nectary status` shows
/// none.
pub(crate) fn refuse_network(worker: &ProxyWorker, stream: &ClientSocket, door: EntranceRole) {
    worker.stats.limited_connections.add(1);
    write_refusal(stream, door, &refusal::too_many_of_network(worker.now_ms()));
}

/// Writes the answer to a refused client. The send buffer of a new connection has room for it. If the write fails all
/// the same, the client only sees the connection close, as one that expects TLS does.
fn write_refusal(stream: &ClientSocket, door: EntranceRole, answer: &[u8]) {
    if !matches!(door, EntranceRole::Tls | EntranceRole::Fleet) {
        _ = stream.try_write(answer);
    }
}

fn serve(worker: &Rc<ProxyWorker>, new: NewConnection, place: ConnectionPlace) {
    worker.stats.connections.add(1);
    worker.stats.connections_open.add(1);
    new.stream.set_nodelay();
    let watch = worker.connections.new_watch();
    let enlisted = worker.connections.enlist(watch.clone(), Some(place));
    let worker = worker.clone();
    worker.clone().connections.tasks.spawn_local(async move {
        connection::serve(worker.clone(), watch, new, &enlisted).await;
        worker.stats.connections_open.subtract(1);
        drop(enlisted);
    });
}

/// Does the periodic work of the worker on every tick, until the task is dropped.
async fn sweep(worker: Rc<ProxyWorker>) {
    let mut interval = tokio::time::interval(TICK);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        worker.look_at_clocks();
        worker.connections.sweep(&worker.stats);
        worker.upstream.sweep();
        worker.log.flush();
    }
}
