//! A request that asks an origin to speak another protocol on its connection.
//!
//! Owns: the only exchange in which a `101` is accepted. Its connection is a new one and is never used for a second
//! exchange; it speaks HTTP/1.1 also to servers that are otherwise spoken to in HTTP/2. *Source*: RFC 9110, 7.8 and 15.2.2.
//!
//! *Circle*: this file uses `connect` and `exchange`, whose connections tell the `101` apart with this file's types.

use std::rc::Rc;
use std::time::Instant;

use bytes::Bytes;
use http::header::HOST;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use hyper::body::Incoming;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;

use super::connect::connect;
use super::error::FetchError;
use super::exchange::note_connection;
use super::health::ProbeBy;
use super::lease::ConnectionLease;
use super::server_limit::ServerPlace;
use super::{CountedRequest, Destination, IdleConnection, RequestBody, RequestHead, ServerState, Upstream};
use crate::room::ConnectionPlace;

/// A stream in both directions.
pub(crate) trait DuplexIo: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> DuplexIo for S {}

/// A connection that no longer speaks HTTP.
pub(crate) struct SwitchedConnection {
    pub stream: Box<dyn DuplexIo>,
    /// The bytes that arrived right after the head of the response.
    pub early: Bytes,
    pub place: ConnectionPlace,
    pub of_server: OfServer,
}

/// What a connection that no longer speaks HTTP keeps of its server until it is closed.
#[derive(Debug, Default)]
pub(crate) struct OfServer {
    /// The place of the connection.
    _place: Option<ServerPlace>,
    /// The request that has switched, which counts for the server.
    _under_way: Option<CountedRequest>,
}

impl OfServer {
    pub(super) fn with_place(place: Option<ServerPlace>) -> OfServer {
        OfServer { _place: place, _under_way: None }
    }
}

/// Receives the connection when hyper has ended its work on it.
pub(super) type WaitInside = oneshot::Receiver<SwitchedConnection>;

/// The answer of an origin that was asked to switch.
pub(crate) enum SwitchAnswer {
    /// The origin has switched; these are the headers of its response.
    Yes(HeaderMap, SwitchedConnection),
    /// The origin answered with an ordinary response.
    No(Response<Incoming>, Box<ConnectionLease>),
}

/// Sends a request whose head asks for another protocol.
pub(crate) async fn switch(
    upstream: &Rc<Upstream>,
    to: &Destination,
    mut head: RequestHead,
) -> Result<SwitchAnswer, FetchError> {
    let (chosen, connected) = match &to.choice {
        Some(choice) => {
            let pool = &choice.pool;
            pool.wait_until_known(to.rules.times.connect).await;
            let order = pool.order(&upstream.known.health, choice.key_hash, ProbeBy::Connection, Instant::now());
            if let Some((server, right)) = order.probe {
                upstream.probe(to.at(&server), None, right);
            }
            let mut found = (None, Err(FetchError::Connect("the origin has no server".into())));
            // Nothing is sent to a server that accepts no connection, so the next one may get the request.
            for server in order.servers {
                let at = to.at(&server);
                let connected = connect_at(upstream, &at).await;
                if choice.sends_own_host {
                    let host = HeaderValue::from_str(&server.authority).expect("an authority is visible ASCII");
                    head.headers.insert(HOST, host);
                }
                let has_other = connected.as_ref().err().is_some_and(FetchError::is_of_connecting);
                found = (Some(at), connected);
                if !has_other {
                    break;
                }
            }
            found
        }
        None => (None, connect_at(upstream, to).await),
    };
    let (to, mut connection) = (chosen.as_ref().unwrap_or(to), connected?);
    let under_way = to.state.as_ref().map(ServerState::begin);
    upstream.stats.origin_requests.add(1);
    connection.watch.begin(false);
    connection.watch.await_switch();
    let sent = connection.sender.send_request(head.with_body(RequestBody::Empty)).await;
    let lease = ConnectionLease::of_one(upstream, to, connection);
    let response = sent.map_err(|error| lease.explain(&error))?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(SwitchAnswer::No(response, Box::new(lease.counted(under_way, None))));
    }
    let (parts, _) = response.into_parts();
    match lease.into_inside() {
        Some(inside) => match inside.await {
            Ok(mut inside) => {
                inside.of_server._under_way = under_way;
                Ok(SwitchAnswer::Yes(parts.headers, inside))
            }
            Err(_) => Err(FetchError::Broken("the connection ended".into())),
        },
        None => Err(FetchError::Broken("the connection cannot switch".into())),
    }
}

/// A new connection on which the protocol may be switched. A failure counts for the server's health.
async fn connect_at(upstream: &Rc<Upstream>, to: &Destination) -> Result<IdleConnection, FetchError> {
    let place = match &to.limit {
        Some(limit) => Some(limit.take(&upstream.stats).await?),
        None => None,
    };
    let fresh = connect(upstream, to, &[], place, true).await;
    note_connection(upstream, to, &fresh);
    if let Err(error) = &fresh {
        upstream.known.health.note_failure(&to.origin, error);
    }
    fresh?.ok_or_else(|| FetchError::Connect("the origin has no address".into()))
}
