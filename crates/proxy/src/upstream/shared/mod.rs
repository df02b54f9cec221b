//! Connections of HTTP/2 to origins, which many exchanges share.
//!
//! Owns: a worker's connections of this kind, the places for exchanges on them, and how a request gets one: on a connection
//! that has room, or else on a new one, for which all requests that come meanwhile wait together. Where connections to a
//! server are limited, a request waits for a place on a connection of its worker, or for the place of a new connection,
//! whichever comes first. A server that does not choose HTTP/2 is remembered for a while, and is then spoken to as if the
//! rules did not ask for it. Leaves to others: what hyper does on a connection (`shared_task`), the limits of each stream
//! (`stream_clock`), and the exchanges (`shared_exchange`).
//!
//! *Circle*: `connect` makes connections of this kind and `exchange` hands requests over; this folder opens connections with
//! the one, and goes on in HTTP/1.1 with the other.

mod shared_exchange;
mod shared_task;
mod stream_clock;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::client::conn::http2::SendRequest;
use tokio::sync::Notify;

pub(super) use self::shared_exchange::{ask, send_on};
pub(super) use self::shared_task::begin;
use self::stream_clock::{OriginStreams, StreamClock};
use super::connect::connect_shared;
use super::error::FetchError;
use super::exchange::note_connection;
use super::request::LentBody;
use super::server_limit::{ConnectionGrant, OTHERS_TURN, ServerLimit, ServerPlace};
use super::{ALIVE_MAX, Destination, IdleConnection, RequestBody, Upstream};
use crate::wire::transport::PhaseDeadlines;

/// The time for which a server that has chosen HTTP/1.1 is not asked again.
const HTTP1_TIME: Duration = Duration::from_secs(60);

/// A connection that exchanges share. When the last handle to it is dropped, it ends after the exchanges under way.
pub(super) struct SharedConnection {
    sender: SendRequest<RequestBody>,
    state: Rc<OriginStreams>,
    /// The origin's address at the other end.
    address: SocketAddr,
    /// How long connecting took, with TLS; `None` after the first exchange has begun.
    connect_time: Cell<Option<Duration>>,
}

impl SharedConnection {
    /// The same connection, for which connecting took so long.
    pub fn connected_in(self: Rc<Self>, time: Duration) -> Rc<SharedConnection> {
        self.connect_time.set(Some(time));
        self
    }

    /// Whether another exchange may begin now or later.
    fn is_usable(&self) -> bool {
        !self.sender.is_closed() && !self.state.transport.is_killed() && !self.state.is_retired()
    }

    /// Whether the server has certainly not closed it.
    fn is_alive(&self) -> bool {
        self.state.unheard_ticks() < PhaseDeadlines::ticks(ALIVE_MAX)
    }
}

/// What a new connection to an origin is for.
pub(super) enum OpenedConnection {
    /// One exchange at a time.
    Alone(IdleConnection),
    /// Many.
    Shared(Rc<SharedConnection>),
}

/// The place of an exchange on a shared connection, until it is dropped.
pub(super) struct StreamUse {
    upstream: Rc<Upstream>,
    to: Destination,
    connection: Rc<SharedConnection>,
    clock: Rc<StreamClock>,
    /// Whether no exchange was on the connection before.
    is_first: bool,
    /// The request's body, if it has one and hyper got it.
    lent: Option<Rc<LentBody>>,
}

impl StreamUse {
    /// Begins an exchange on a connection.
    pub fn begin(upstream: &Rc<Upstream>, to: &Destination, connection: &Rc<SharedConnection>) -> StreamUse {
        StreamUse {
            upstream: upstream.clone(),
            to: to.clone(),
            clock: connection.state.begin(),
            is_first: connection.connect_time.get().is_some(),
            connection: connection.clone(),
            lent: None,
        }
    }

    /// The origin's address at the other end.
    pub fn address(&self) -> SocketAddr {
        self.connection.address
    }

    /// Waits for a part of the response's body; `None` if the origin takes too long.
    pub async fn until_read<F: Future>(&self, read: F) -> Option<F::Output> {
        self.clock.until_read(read).await
    }
}

impl Drop for StreamUse {
    fn drop(&mut self) {
        let state = &self.connection.state;
        state.end(&self.clock);
        // hyper still has the request's body. Before an answer, it ends the stream itself.
        if let Some(lent) = self.lent.take().filter(|lent| Rc::strong_count(lent) > 1) {
            lent.take_back();
            // The origin has answered before it had the whole request. It should end the stream, but it may not.
            if self.clock.is_answered() {
                state.retire();
            }
        }
        self.upstream.shared.on_end(&self.upstream, &self.to, &self.connection);
    }
}

/// How a request gets on.
enum RequestTransport {
    /// On a shared connection.
    Stream(StreamUse),
    /// In HTTP/1.1, on the connection by which the server has just said so, if there is one.
    Http1(Option<Box<IdleConnection>>),
}

/// A connection that is being opened, for which requests wait.
#[derive(Default)]
struct ConnectionOpening {
    done: Notify,
    failure: RefCell<Option<FetchError>>,
}

impl ConnectionOpening {
    /// Waits until the connection is there, or nobody opens it any more. *Errors*: that of connecting.
    async fn wait(&self) -> Result<(), FetchError> {
        self.done.notified().await;
        self.failure.borrow().clone().map_or(Ok(()), Err)
    }
}

/// The request that opens a connection for all. When it is dropped, the others go on.
struct ConnectionOpener {
    upstream: Rc<Upstream>,
    to: Destination,
    opening: Rc<ConnectionOpening>,
}

impl ConnectionOpener {
    fn begin(upstream: &Rc<Upstream>, to: &Destination) -> ConnectionOpener {
        let opening = Rc::<ConnectionOpening>::default();
        upstream.shared.with(to, |server| server.opening = Some(opening.clone()));
        ConnectionOpener { upstream: upstream.clone(), to: to.clone(), opening }
    }
}

impl Drop for ConnectionOpener {
    fn drop(&mut self) {
        self.upstream.shared.with(&self.to, |server| {
            server.opening.take_if(|opening| Rc::ptr_eq(opening, &self.opening));
        });
        self.opening.done.notify_waiters();
    }
}

/// What a worker knows of a server.
#[derive(Default)]
struct SharedServer {
    connections: Vec<Rc<SharedConnection>>,
    opening: Option<Rc<ConnectionOpening>>,
    /// Until when the server counts as one that speaks HTTP/1.1 only.
    http1_until: Option<Instant>,
    /// The requests of this worker that wait for a connection, where connections are limited.
    waiting: usize,
}

impl SharedServer {
    fn is_needed(&self) -> bool {
        let is_http1 = self.http1_until.is_some_and(|until| Instant::now() < until);
        !self.connections.is_empty() || self.opening.is_some() || is_http1 || self.waiting > 0
    }
}

/// A worker's shared connections to origins.
#[derive(Default)]
pub(super) struct SharedConnections {
    servers: RefCell<HashMap<Destination, SharedServer>>,
    /// Tells requests that wait that a place for an exchange is free.
    is_free: Notify,
    /// The exchanges that have ended while other workers waited.
    turns: Cell<u32>,
}

impl SharedConnections {
    /// Does something with what is known of a server.
    fn with<T>(&self, to: &Destination, work: impl FnOnce(&mut SharedServer) -> T) -> T {
        let mut servers = self.servers.borrow_mut();
        match servers.get_mut(to) {
            Some(server) => work(server),
            None => work(servers.entry(to.clone()).or_default()),
        }
    }

    /// The way of a request without a new connection, if there is one: not at the addresses that were `tried`, and if it
    /// `must_be_alive`, only on a connection that the server has certainly not closed.
    fn find(
        &self,
        upstream: &Rc<Upstream>,
        to: &Destination,
        tried: &[SocketAddr],
        must_be_alive: bool,
    ) -> Option<RequestTransport> {
        let found = {
            let mut servers = self.servers.borrow_mut();
            let server = servers.get_mut(to)?;
            if server.http1_until.is_some_and(|until| Instant::now() < until) {
                return Some(RequestTransport::Http1(None));
            }
            server.connections.retain(|connection| connection.is_usable());
            // Exchanges fill one connection after the other, so those that are no longer needed end.
            let is_good = |connection: &&Rc<SharedConnection>| {
                let is_excluded = tried.contains(&connection.address) || (must_be_alive && !connection.is_alive());
                connection.state.has_room() && !is_excluded
            };
            server.connections.iter().find(is_good)?.clone()
        };
        Some(RequestTransport::Stream(StreamUse::begin(upstream, to, &found)))
    }

    /// Adds a new connection. Others to the server that are unused end.
    fn add(&self, to: &Destination, connection: &Rc<SharedConnection>) {
        let unused = self.with(to, |server| {
            server.http1_until = None;
            let (used, unused): (Vec<_>, Vec<_>) =
                server.connections.drain(..).partition(|connection| connection.state.count() > 0);
            server.connections = used;
            server.connections.push(connection.clone());
            unused
        });
        drop(unused);
        self.is_free.notify_waiters();
    }

    /// Goes on after the end of an exchange: another request may have its place, unless the connection shall end.
    fn on_end(&self, upstream: &Upstream, to: &Destination, connection: &Rc<SharedConnection>) {
        let state = &connection.state;
        if let Some(limit) = &to.limit {
            // What no request of this worker waits for, one of another may.
            let own = self.servers.borrow().get(to).map_or(0, |server| server.waiting);
            if limit.waiting() > own {
                self.turns.set(self.turns.get().wrapping_add(1));
                let is_unneeded = own == 0 && state.count() == 0;
                if is_unneeded || self.turns.get().is_multiple_of(OTHERS_TURN) {
                    state.retire();
                }
            }
        }
        let is_unkept = upstream.is_closed.get() || upstream.connections.room.is_crowded() || to.has_left();
        if state.count() == 0 && (is_unkept || !connection.is_usable()) {
            self.remove(to, connection);
        }
        self.is_free.notify_waiters();
    }

    /// Forgets a connection, which ends after the exchanges under way.
    fn remove(&self, to: &Destination, connection: &Rc<SharedConnection>) {
        let mut servers = self.servers.borrow_mut();
        if let Some(server) = servers.get_mut(to) {
            server.connections.retain(|other| !Rc::ptr_eq(other, connection));
        }
    }

    /// Forgets what has ended, and unused connections to servers that their origins no longer have.
    pub fn sweep(&self) {
        self.servers.borrow_mut().retain(|to, server| {
            let is_kept = |count: usize| count > 0 || !to.has_left();
            server.connections.retain(|connection| connection.is_usable() && is_kept(connection.state.count()));
            server.is_needed()
        });
    }

    /// Closes the connections without exchanges.
    pub fn close_unused(&self) {
        for server in self.servers.borrow_mut().values_mut() {
            server.connections.retain(|connection| connection.state.count() > 0);
        }
    }

    /// Waits for a place on a connection, or for the place of a new one. *Errors*: [`FetchError::Busy`].
    async fn wait_for_room(
        &self,
        upstream: &Rc<Upstream>,
        to: &Destination,
        limit: &Arc<ServerLimit>,
        (tried, must_be_alive): (&[SocketAddr], bool),
    ) -> Result<ConnectionGrant<RequestTransport>, FetchError> {
        let _queued = QueuedHere::begin(upstream, to);
        let found = async {
            loop {
                self.is_free.notified().await;
                if let Some(way) = self.find(upstream, to, tried, must_be_alive) {
                    return Some(way);
                }
            }
        };
        limit.take_or(&upstream.stats, found).await
    }
}

/// A request of this worker that waits and is counted, until this value is dropped.
struct QueuedHere {
    upstream: Rc<Upstream>,
    to: Destination,
}

impl QueuedHere {
    fn begin(upstream: &Rc<Upstream>, to: &Destination) -> QueuedHere {
        upstream.shared.with(to, |server| server.waiting += 1);
        QueuedHere { upstream: upstream.clone(), to: to.clone() }
    }
}

impl Drop for QueuedHere {
    fn drop(&mut self) {
        self.upstream.shared.with(&self.to, |server| server.waiting = server.waiting.saturating_sub(1));
    }
}

/// Finds the way of a request, on a new connection if it must be. `is_queued` says meanwhile whether it waits because the
/// server has as many connections as it may have.
async fn way(
    upstream: &Rc<Upstream>,
    to: &Destination,
    (tried, must_be_alive): (&[SocketAddr], bool),
    is_queued: &Cell<bool>,
) -> Result<RequestTransport, FetchError> {
    loop {
        if let Some(way) = upstream.shared.find(upstream, to, tried, must_be_alive) {
            return Ok(way);
        }
        let opening = upstream.shared.with(to, |server| server.opening.clone());
        if let Some(opening) = opening.filter(|_| tried.is_empty()) {
            opening.wait().await?;
            continue;
        }
        let place = match &to.limit {
            None => None,
            Some(limit) => match limit.try_take() {
                Some(place) => Some(place),
                None => {
                    is_queued.set(true);
                    let got = upstream.shared.wait_for_room(upstream, to, limit, (tried, must_be_alive)).await;
                    is_queued.set(false);
                    match got? {
                        ConnectionGrant::Connection(way) => return Ok(way),
                        ConnectionGrant::Place(place) => Some(place),
                    }
                }
            },
        };
        return open(upstream, to, (tried, must_be_alive), place).await;
    }
}

/// Opens a connection for a request, and for all that come meanwhile.
async fn open(
    upstream: &Rc<Upstream>,
    to: &Destination,
    (tried, must_be_alive): (&[SocketAddr], bool),
    place: Option<ServerPlace>,
) -> Result<RequestTransport, FetchError> {
    // While it waited for the place, another request may have found one.
    if let Some(way) = upstream.shared.find(upstream, to, tried, must_be_alive) {
        return Ok(way);
    }
    let opener = tried.is_empty().then(|| ConnectionOpener::begin(upstream, to));
    let connected = connect_shared(upstream, to, tried, place).await;
    note_connection(upstream, to, &connected);
    let result = match connected {
        Ok(Some(OpenedConnection::Shared(connection))) => {
            // It has the first place.
            let stream = StreamUse::begin(upstream, to, &connection);
            upstream.shared.add(to, &connection);
            Ok(RequestTransport::Stream(stream))
        }
        Ok(Some(OpenedConnection::Alone(idle))) => {
            upstream.shared.with(to, |server| server.http1_until = Some(Instant::now() + HTTP1_TIME));
            Ok(RequestTransport::Http1(Some(Box::new(idle))))
        }
        Ok(None) => Err(FetchError::Connect("the origin has no other address".into())),
        Err(error) => Err(error),
    };
    if let (Some(opener), Err(error)) = (&opener, &result) {
        *opener.opening.failure.borrow_mut() = Some(error.clone());
    }
    result
}
