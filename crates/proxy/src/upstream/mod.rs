//! The proxy as a client of origins.
//!
//! Owns: the connections to origins, which each worker keeps for reuse, and the exchanges on them, one at a time on
//! each connection of HTTP/1.1 and many on one of HTTP/2 (`shared`). A request that may be repeated is sent on a kept connection. If this connection is dead, the
//! request is sent once more on a new one, and if an address breaks the exchange or does not answer, at another address
//! of the origin. Any other request is sent once: on a kept connection that is known to be alive, or else on a new one.

mod addresses;
mod checks;
mod connect;
mod discovery;
mod error;
mod exchange;
mod forwarding;
mod health;
mod known;
mod lease;
mod names;
mod pool;
mod probes;
mod race;
mod request;
mod server_limit;
mod server_set;
mod server_state;
mod shared;
mod socket;
mod switch;
mod trust;

pub(crate) use checks::check_all;
pub(crate) use connect::connect_tcp;
pub use discovery::{ServiceFigures, count_service_servers};
pub(crate) use discovery::{ServiceRule, find_all};
pub(crate) use error::FetchError;
pub(crate) use exchange::exchange;
pub(crate) use forwarding::ForwardingHops;
pub(crate) use health::{EjectRule, OriginProbe};
pub(crate) use known::KnownOrigins;
pub(crate) use lease::{ConnectionLease, end_empty, pieces};
pub(crate) use pool::{OriginRules, ServerCheck, ServerPool};
pub(crate) use request::{BodyFault, RequestBody, RequestHead};
pub(crate) use server_limit::{LimitRule, ServerLimit};
pub(crate) use server_set::OriginServer;
pub(crate) use server_state::{CountedRequest, ServerState};
pub use server_state::{OriginDown, ServerFigures};
pub(crate) use switch::{DuplexIo, OfServer, SwitchAnswer, SwitchedConnection, switch};
pub(crate) use trust::{OriginTrust, TrustFiles};

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::client::conn::http1::SendRequest;
use nectary_host::descriptors;
use tokio::sync::Notify;

use self::health::ProbeBy;
use self::names::NameLookups;
use self::server_limit::ServerQueues;
use self::shared::SharedConnections;
use self::socket::SharedSocket;
use self::switch::WaitInside;
use crate::connections::WorkerConnections;
use crate::options::ProxyOptions;
use crate::room::{ConnectionPeer, ConnectionPlace};
use crate::rules::key::UrlOrigin;
use crate::rules::serve::OriginFailure;
use crate::stats::WorkerStats;
use crate::wire::http1::watch::ConnectionWatch;

/// The server to which a request goes, the addresses that may be used to reach it, and the rules for connections to it.
#[derive(Debug, Clone)]
pub(crate) struct Destination {
    pub origin: UrlOrigin,
    pub reach: AddressReach,
    pub rules: Arc<OriginRules>,
    /// The record of whether the server accepts connections and answers; `None` in a forward proxy.
    pub state: Option<Arc<ServerState>>,
    /// The limit on connections to the server, if there is one.
    pub limit: Option<Arc<ServerLimit>>,
    /// The servers of which one is chosen, if there are several.
    pub choice: Option<ServerChoice>,
    /// Whether the origin's name is whole, so that the resolver appends no domain to it.
    has_whole_name: bool,
    /// The client for which the origin's name is looked up. All clients share the connections to a destination.
    pub client: IpAddr,
}

/// The servers of which one is chosen for a request.
#[derive(Debug, Clone)]
pub(crate) struct ServerChoice {
    pub pool: Arc<ServerPool>,
    /// Whether each gets its own authority as `Host`.
    pub sends_own_host: bool,
    /// The hash of the request's key, if that decides.
    pub key_hash: u64,
}

impl PartialEq for Destination {
    fn eq(&self, other: &Destination) -> bool {
        // A server that has left and is back is another one: what is kept for the former is dropped.
        let state = |to: &Destination| to.state.as_ref().map(Arc::as_ptr);
        self.origin == other.origin
            && self.reach == other.reach
            && Arc::ptr_eq(&self.rules, &other.rules)
            && state(self) == state(other)
    }
}

impl Eq for Destination {}

impl Hash for Destination {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.origin, self.reach).hash(state);
    }
}

impl Destination {
    /// A destination whose server is not one of several.
    pub fn new(origin: UrlOrigin, reach: AddressReach, client: IpAddr, rules: Arc<OriginRules>) -> Destination {
        let (state, limit, choice, has_whole_name) = (None, None, None, false);
        Destination { origin, reach, rules, state, limit, choice, has_whole_name, client }
    }

    /// The servers of a pool, for a request with this key.
    pub fn of_pool(pool: &Arc<ServerPool>, sends_own_host: bool, key: &[u8], client: IpAddr) -> Destination {
        let to = Destination::new(pool.named.clone(), AddressReach::Everywhere, client, pool.rules.clone());
        match (pool.servers().all(), &pool.discovery) {
            ([one], None) => to.at(one),
            _ => {
                let choice = ServerChoice { pool: pool.clone(), sends_own_host, key_hash: pool.hash_of(key) };
                Destination { choice: Some(choice), ..to }
            }
        }
    }

    /// A server of a pool, for what no client asks.
    fn at_server(pool: &ServerPool, server: &OriginServer) -> Destination {
        let nobody = IpAddr::V4(Ipv4Addr::LOCALHOST);
        Destination::new(server.origin.clone(), AddressReach::Everywhere, nobody, pool.rules.clone()).at(server)
    }

    /// The name that is looked up, or the address that it is. A name that is whole ends with a dot.
    fn looked_up(&self) -> Cow<'_, str> {
        match self.origin.bare_host() {
            host if self.has_whole_name => Cow::Owned(format!("{host}.")),
            host => Cow::Borrowed(host),
        }
    }

    /// Whether its origin no longer has this server.
    fn has_left(&self) -> bool {
        self.state.as_ref().is_some_and(|state| state.has_left())
    }

    /// The same destination at this server alone.
    fn at(&self, server: &OriginServer) -> Destination {
        Destination {
            origin: server.origin.clone(),
            state: Some(server.state.clone()),
            limit: server.limit.clone(),
            choice: None,
            has_whole_name: server.is_found,
            rules: self.rules.clone(),
            ..*self
        }
    }
}

/// The addresses to which the proxy may connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum AddressReach {
    /// All addresses.
    Everywhere,
    /// All except loopback and link-local addresses. Clients on other machines must not reach services at these
    /// addresses.
    Beyond,
}

impl AddressReach {
    /// Whether the proxy may connect to an address.
    pub fn includes(self, address: IpAddr) -> bool {
        self == AddressReach::Everywhere
            || match address.to_canonical() {
                IpAddr::V4(address) => !(address.is_loopback() || address.is_unspecified() || address.is_link_local()),
                IpAddr::V6(address) => {
                    !(address.is_loopback() || address.is_unspecified() || address.is_unicast_link_local())
                }
            }
    }
}

/// The longest time for which a kept connection is certainly alive, if nothing says that the origin has closed it.
/// Origins close connections that have waited for longer: most after five seconds or more, some after two.
const ALIVE_MAX: Duration = Duration::from_secs(1);

/// A connection that waits for its next request.
struct IdleConnection {
    sender: SendRequest<RequestBody>,
    watch: Rc<ConnectionWatch>,
    socket: SharedSocket,
    /// On a connection that may switch to another protocol: what receives it then.
    inside: Option<WaitInside>,
    /// The origin's address at the other end.
    address: SocketAddr,
    /// How long connecting took, with TLS; `None` on a connection that was used before.
    connect_time: Option<Duration>,
    /// The time since which the connection waits.
    since: Instant,
    /// The time for which the origin will certainly keep the connection open while it waits.
    alive: Duration,
}

impl IdleConnection {
    /// Whether another request may be sent on the connection. None may be sent if the connection has ended, or if the
    /// origin has sent bytes that were refused.
    fn is_usable(&self) -> bool {
        !self.sender.is_closed() && !self.watch.transport.is_killed() && self.watch.violation().is_none()
    }

    /// Whether the next request may be sent now. If `must_be_alive`, only if the origin certainly does not close just now.
    /// *Cost*: one system call.
    fn may_be_used(&self, must_be_alive: bool) -> bool {
        self.is_usable() && self.socket.is_quiet() && (!must_be_alive || self.since.elapsed() < self.alive)
    }
}

/// A worker's connections to origins.
pub(crate) struct Upstream {
    options: Arc<ProxyOptions>,
    stats: Arc<WorkerStats>,
    connections: Rc<WorkerConnections>,
    idle: RefCell<HashMap<Destination, Vec<IdleConnection>>>,
    /// The connections of HTTP/2.
    shared: SharedConnections,
    queues: ServerQueues,
    known: Arc<KnownOrigins>,
    lookups: NameLookups,
    is_closed: Cell<bool>,
    /// Tells probes that the worker stops.
    closing: Notify,
}

impl Upstream {
    /// Starts without connections.
    pub fn new(
        options: Arc<ProxyOptions>,
        stats: Arc<WorkerStats>,
        connections: Rc<WorkerConnections>,
        known: Arc<KnownOrigins>,
    ) -> Rc<Upstream> {
        let lookups = NameLookups::new(known.names.clone(), connections.room.clone(), options.limits.connect_timeout);
        let (idle, is_closed) = (RefCell::default(), Cell::new(false));
        Rc::new(Upstream {
            options,
            stats,
            connections,
            idle,
            shared: SharedConnections::default(),
            queues: ServerQueues::default(),
            known,
            lookups,
            is_closed,
            closing: Notify::new(),
        })
    }

    /// The kind of failure if an origin is failing, and the right to probe it if nobody does. An origin of several servers
    /// is failing if all of them are.
    pub fn failing(&self, to: &Destination) -> Option<(OriginFailure, Option<OriginProbe>)> {
        match &to.choice {
            Some(choice) => choice.pool.failing(&self.known.health, Instant::now()),
            None => self.known.health.look_at(&to.origin, &to.rules.eject, ProbeBy::Request, Instant::now()),
        }
    }

    /// Whether any origin may be failing. *Cost*: an atomic load.
    pub fn has_failing(&self) -> bool {
        self.known.health.has_failing()
    }

    /// Drops idle connections that have ended, and those to servers that their origins no longer have.
    pub fn sweep(&self) {
        self.queues.sweep();
        self.shared.sweep();
        self.idle.borrow_mut().retain(|to, connections| {
            connections.retain(|idle| !idle.sender.is_closed());
            !connections.is_empty() && !to.has_left()
        });
    }

    /// Closes all idle connections. From now on no connection is kept.
    pub fn close(&self) {
        self.is_closed.set(true);
        self.closing.notify_waiters();
        self.close_unused();
    }

    /// Closes all idle connections.
    pub fn close_unused(&self) {
        self.idle.borrow_mut().clear();
        self.shared.close_unused();
    }

    /// The place of a new connection. If there is none, this worker's idle connections are closed first.
    pub async fn place(&self) -> Result<ConnectionPlace, FetchError> {
        if let Some(place) = self.connections.room.take(ConnectionPeer::Origin) {
            return Ok(place);
        }
        self.close_unused();
        // The tasks of the closed connections give their places back.
        tokio::task::yield_now().await;
        self.connections.room.take(ConnectionPeer::Origin).ok_or_else(|| {
            let max = self.connections.room.max(ConnectionPeer::Origin);
            self.stats.excess_connections.add(1);
            descriptors::note_refused(format!("{max} connections to origins are open, which is the limit"));
            FetchError::Crowded
        })
    }

    /// Takes the kept connection that was used last. If `must_be_alive`, only one that the origin certainly does not
    /// close just now.
    fn take(&self, to: &Destination, must_be_alive: bool) -> Option<IdleConnection> {
        let mut idle = self.idle.borrow_mut();
        let connections = idle.get_mut(to)?;
        let may_be_taken = |idle: &mut IdleConnection| !must_be_alive || idle.since.elapsed() < idle.alive;
        while let Some(found) = connections.pop_if(may_be_taken) {
            if found.may_be_used(must_be_alive) {
                return Some(found);
            }
        }
        None
    }

    /// Records that an address has broken off an exchange or did not answer in time. Its idle connections are closed.
    fn note_failure(&self, to: &Destination, address: SocketAddr) {
        self.known.addresses.note_failure(address, Instant::now());
        if let Some(connections) = self.idle.borrow_mut().get_mut(to) {
            connections.retain(|idle| idle.address != address);
        }
    }

    fn keep(&self, to: &Destination, mut connection: IdleConnection) {
        let is_refused = self.is_closed.get() || self.connections.room.is_crowded() || to.has_left();
        if is_refused || connection.inside.is_some() || !connection.is_usable() {
            return;
        }
        connection.since = Instant::now();
        if let Some(limit) = &to.limit {
            match self.queues.hand_over(to, limit, connection) {
                Some(unneeded) => connection = unneeded,
                None => return,
            }
        }
        let mut idle = self.idle.borrow_mut();
        let connections = match idle.get_mut(to) {
            Some(connections) => connections,
            None => idle.entry(to.clone()).or_default(),
        };
        if connections.len() < to.rules.times.idle_max {
            connections.push(connection);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{OriginTimes, ProxyLimits};

    #[test]
    fn returned_server_is_another_destination() {
        let trust = Arc::new(OriginTrust::new(None).expect("no file"));
        let rules = Arc::new(OriginRules::new(OriginTimes::of(&ProxyLimits::default()), trust));
        let origin = UrlOrigin { https: false, host: "a".into(), port: 81 };
        let to = Destination::new(origin.clone(), AddressReach::Everywhere, IpAddr::V4(Ipv4Addr::LOCALHOST), rules);
        let server = OriginServer::new(origin.clone(), 1);
        assert!(to.at(&server) == to.at(&server.with_share(2, 7)), "it is the same with another share");
        assert!(to.at(&server) != to.at(&OriginServer::new(origin, 1)));
    }

    #[test]
    fn remote_clients_cannot_reach_local_listeners() {
        let here = ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "0.0.0.0", "::", "169.254.169.254", "fe80::1"];
        for address in here.map(|text| text.parse::<IpAddr>().expect("an address")) {
            assert!(AddressReach::Everywhere.includes(address) && !AddressReach::Beyond.includes(address), "{address}");
        }
        for address in ["192.0.2.1", "10.0.0.1", "2001:db8::1"].map(|text| text.parse::<IpAddr>().expect("an address"))
        {
            assert!(AddressReach::Beyond.includes(address), "{address}");
        }
    }
}
