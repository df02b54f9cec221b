//! The open connections of one worker.
//!
//! Owns: the state of each connection ([`SweptConnection`]), the clock of all, and ending connections that are overdue, drained,
//! displaced or cut off. Leaves to others: the decision when connections are drained and cut off (`accept`), and the requests on a
//! connection (`service`, `upstream`).

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::task::TaskTracker;

use crate::listening::unix_socket::UnixSocket;
use crate::options::{ClientNet, OriginTimes, ProxyOptions};
use crate::room::{ConnectionPeer, ConnectionPlace, ConnectionRoom};
use crate::stats::WorkerStats;
use crate::wire::http1::watch::{ConnectionWatch, PeerSide};
use crate::wire::http2::Http2Connection;
use crate::wire::transport::{PhaseDeadlines, RESTING_TICKS, SweptConnection, TickClock, until_killed};

/// The time for which a connection without a request stays open while a worker lets its clients go.
const LINGER: Duration = Duration::from_secs(1);

/// A client that has waited for less than this time between two requests keeps its place when others want one: its next
/// request may be on its way. The same is true for a client that has just come.
const IDLE_MIN: Duration = Duration::from_secs(1);

/// The users of an address that the proxy listens on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EntranceRole {
    /// Clients.
    Clients,
    /// Clients, over TLS.
    Tls,
    /// Clients that are sent to the addresses with TLS.
    Redirect,
    /// Administration only.
    Admin,
    /// The other nodes of a fleet, whose certificates it has signed.
    Fleet,
}

/// An address that the proxy listens on.
#[derive(Debug, Clone)]
pub(crate) struct ProxyEntrance {
    pub door: EntranceRole,
    /// The peers that begin each connection with a header of the PROXY protocol.
    header_from: Arc<[ClientNet]>,
    /// Whether those without an address do, who connect to a Unix socket.
    is_headed: bool,
}

impl ProxyEntrance {
    /// The address of the options that is for these users. Peers at an address for administration send no headers.
    pub fn new(options: &ProxyOptions, address: SocketAddr, door: EntranceRole) -> ProxyEntrance {
        let senders = options
            .proxy_protocol_from
            .iter()
            .filter(|(at, _)| *at == address && !matches!(door, EntranceRole::Admin | EntranceRole::Fleet));
        ProxyEntrance { door, header_from: senders.map(|(_, net)| *net).collect(), is_headed: false }
    }

    /// A Unix socket that is for these users.
    pub fn of_socket(socket: &UnixSocket, door: EntranceRole) -> ProxyEntrance {
        ProxyEntrance {
            door,
            header_from: Vec::new().into(),
            is_headed: socket.has_proxy_header && door != EntranceRole::Admin,
        }
    }

    /// Whether each connection of this peer begins with a header. One without an address uses a Unix socket.
    pub fn expects_header(&self, peer: Option<IpAddr>) -> bool {
        peer.map_or(self.is_headed, |peer| self.header_from.iter().any(|net| net.contains(peer)))
    }
}

/// The limits of the connections of clients.
#[derive(Debug, Clone, Copy)]
struct ClientConnectionLimits {
    deadlines: PhaseDeadlines,
    head_bytes_max: usize,
}

/// The open connections of a worker, to clients and to origins.
pub(crate) struct WorkerConnections {
    /// The tasks of the connections. A worker ends when all of them have ended.
    pub tasks: TaskTracker,
    /// The places for connections, which all workers share.
    pub room: Arc<ConnectionRoom>,
    clock: Rc<TickClock>,
    clients: ClientConnectionLimits,
    origin_head_bytes_max: usize,
    /// The tick at which the worker began to let its clients go; `None` before.
    leaving_since: Cell<Option<u32>>,
    next: Cell<u64>,
    open: RefCell<HashMap<u64, TrackedConnection>>,
}

/// An open connection.
struct TrackedConnection {
    connection: Rc<dyn SweptConnection>,
    /// The place of a client's connection; that of a connection to an origin is elsewhere.
    place: Option<ConnectionPlace>,
}

impl WorkerConnections {
    /// Starts without connections.
    pub fn new(options: &ProxyOptions, room: Arc<ConnectionRoom>) -> Rc<WorkerConnections> {
        let limits = &options.limits;
        let ticks = PhaseDeadlines::ticks;
        let clients = PhaseDeadlines {
            idle: ticks(limits.keep_alive_timeout),
            head: ticks(limits.head_timeout),
            body: silence(limits.body_timeout),
            write: silence(limits.write_timeout),
            tunnel: silence(limits.tunnel_timeout),
            linger: ticks(Duration::from_secs(1)),
        };
        Rc::new(WorkerConnections {
            tasks: TaskTracker::new(),
            room,
            clock: Rc::default(),
            clients: ClientConnectionLimits { deadlines: clients, head_bytes_max: limits.request_head_bytes_max },
            origin_head_bytes_max: limits.response_head_bytes_max,
            leaving_since: Cell::new(None),
            next: Cell::new(0),
            open: RefCell::default(),
        })
    }

    /// The state of a new connection of HTTP/2 from a client.
    pub fn multiplexed(&self) -> Rc<Http2Connection> {
        Http2Connection::new(self.clock.clone(), self.clients.deadlines)
    }

    /// Makes the watch of a new connection of HTTP/1 from a client.
    pub fn new_watch(&self) -> Rc<ConnectionWatch> {
        ConnectionWatch::new(PeerSide::Client, self.clock.clone(), self.clients.deadlines, self.clients.head_bytes_max)
    }

    /// Makes the watch of a new connection of HTTP/1 to an origin with these times.
    pub fn new_origin_watch(&self, times: &OriginTimes) -> Rc<ConnectionWatch> {
        let (clock, deadlines) = self.origin_clock(times);
        ConnectionWatch::new(PeerSide::Origin, clock, deadlines, self.origin_head_bytes_max)
    }

    /// The clock and the limits of a new connection to an origin with these times.
    pub fn origin_clock(&self, times: &OriginTimes) -> (Rc<TickClock>, PhaseDeadlines) {
        let deadlines = PhaseDeadlines {
            idle: PhaseDeadlines::ticks(times.idle),
            head: PhaseDeadlines::ticks(times.response),
            body: silence(times.silence),
            ..self.clients.deadlines
        };
        (self.clock.clone(), deadlines)
    }

    /// Lets the sweeper check a connection until the returned value is dropped. A client's connection keeps its place
    /// until then, unless another client [displaces](Self::displace) it.
    pub fn enlist(
        self: &Rc<Self>,
        connection: Rc<dyn SweptConnection>,
        place: Option<ConnectionPlace>,
    ) -> ConnectionRegistration {
        let number = self.next.get();
        self.next.set(number + 1);
        self.open.borrow_mut().insert(number, TrackedConnection { connection, place });
        ConnectionRegistration { connections: self.clone(), number }
    }

    /// Ends the connection of the peer of this kind that has been idle for longest, and returns its place; `None` if
    /// none is idle. *Cost*: looks at every open connection.
    pub fn displace(&self, peer: ConnectionPeer, stats: &WorkerStats) -> Option<ConnectionPlace> {
        let idle_min = PhaseDeadlines::ticks(IDLE_MIN);
        let mut open = self.open.borrow_mut();
        let idle = open.iter_mut().filter_map(|(number, open)| {
            let is_such = open.place.as_ref().is_some_and(|place| place.peer() == peer);
            let ticks = open.connection.idle_ticks().filter(|ticks| is_such && *ticks >= idle_min)?;
            Some((ticks, Reverse(*number), open))
        });
        let (_, _, longest) = idle.max_by_key(|(ticks, number, _)| (*ticks, *number))?;
        let place = longest.place.take()?;
        longest.connection.transport().drain();
        stats.displaced_connections.add(1);
        Some(place)
    }

    /// Runs a connection to an origin until the connection ends by itself or the sweeper ends it.
    pub fn supervise<F: Future + 'static>(self: &Rc<Self>, connection: Rc<dyn SweptConnection>, work: F) {
        let enlisted = self.enlist(connection.clone(), None);
        self.tasks.spawn_local(async move {
            until_killed(connection.transport(), work).await;
            drop(enlisted);
        });
    }

    /// Advances the clock by one tick and ends overdue connections.
    pub fn sweep(&self, stats: &WorkerStats) {
        self.clock.advance();
        let linger = PhaseDeadlines::ticks(LINGER);
        if self.leaving_since.get().is_some_and(|since| self.clock.since(since) > linger) {
            let open = self.open.borrow();
            let transports = open.values().map(|open| open.connection.transport());
            let settled = transports.filter(|transport| transport.settled_ticks().is_some_and(|ticks| ticks > linger));
            settled.for_each(|transport| transport.drain());
        }
        for TrackedConnection { connection, .. } in self.open.borrow().values() {
            if !connection.transport().is_killed() && connection.is_overdue() {
                stats.overdue_connections.add(1);
                connection.transport().kill();
            } else if connection.idle_ticks() == Some(RESTING_TICKS) {
                connection.transport().wake();
            }
        }
    }

    /// Lets every connection end after its next answer, and one without a request after [`LINGER`]. A client that sends
    /// a request at this moment gets an answer, whereas a connection that is closed at once loses the request.
    pub fn let_go(&self) {
        self.leaving_since.set(Some(self.clock.tick()));
        self.open.borrow().values().for_each(|open| open.connection.let_go());
    }

    /// Lets every connection end after the exchange that is under way on it.
    pub fn drain(&self) {
        self.open.borrow().values().for_each(|open| open.connection.transport().drain());
    }

    /// Ends every connection now.
    pub fn kill(&self) {
        self.open.borrow().values().for_each(|open| open.connection.transport().kill());
    }
}

/// The ticks in which no byte may arrive; zero is for no limit.
fn silence(time: Duration) -> u32 {
    if time.is_zero() { PhaseDeadlines::NEVER } else { PhaseDeadlines::ticks(time) }
}

/// A connection that the sweeper checks.
pub(crate) struct ConnectionRegistration {
    connections: Rc<WorkerConnections>,
    number: u64,
}

impl ConnectionRegistration {
    /// Lets the sweeper check another state of the same connection, which has turned out to be of another protocol.
    pub fn replace(&self, connection: Rc<dyn SweptConnection>) {
        if let Some(open) = self.connections.open.borrow_mut().get_mut(&self.number) {
            open.connection = connection;
        }
    }
}

impl Drop for ConnectionRegistration {
    fn drop(&mut self) {
        self.connections.open.borrow_mut().remove(&self.number);
    }
}
