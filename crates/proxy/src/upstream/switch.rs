//! A request that asks an origin to speak another protocol on its connection.
//!
//! Owns: the only exchange in which a `101` is accepted. Its connection is a new one and is never used for a second
//! exchange. *Source*: RFC 9110, 7.8 and 15.2.2.

use std::rc::Rc;

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use hyper::body::Incoming;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;

use super::connect::connect;
use super::error::FetchError;
use super::exchange::Lease;
use super::{Destination, RequestBody, RequestHead, Upstream};
use crate::room::Place;

/// A stream in both directions.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> Duplex for S {}

/// A connection that no longer speaks HTTP.
pub(crate) struct Inside {
    pub stream: Box<dyn Duplex>,
    /// The bytes that arrived right after the head of the response.
    pub early: Bytes,
    pub place: Place,
}

/// Receives the connection when hyper has ended its work on it.
pub(super) type WaitInside = oneshot::Receiver<Inside>;

/// The answer of an origin that was asked to switch.
pub(crate) enum Switched {
    /// The origin has switched; these are the headers of its response.
    Yes(HeaderMap, Inside),
    /// The origin answered with an ordinary response.
    No(Response<Incoming>, Lease),
}

/// Sends a request whose head asks for another protocol.
pub(crate) async fn switch(
    upstream: &Rc<Upstream>,
    to: &Destination,
    head: RequestHead,
) -> Result<Switched, FetchError> {
    let fresh = connect(upstream, to, &[], true).await;
    if let Err(error) = &fresh {
        upstream.known.health.note_failure(&to.origin, error);
    }
    let Some(mut connection) = fresh? else {
        return Err(FetchError::Connect("the origin has no address".into()));
    };
    upstream.stats.origin_requests.add(1);
    connection.watch.begin(false);
    connection.watch.await_switch();
    let sent = connection.sender.send_request(head.with_body(RequestBody::Empty)).await;
    let lease = Lease::of_one(upstream, to, connection);
    let response = sent.map_err(|error| lease.explain(&error))?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(Switched::No(response, lease));
    }
    let (parts, _) = response.into_parts();
    match lease.into_inside() {
        Some(inside) => match inside.await {
            Ok(inside) => Ok(Switched::Yes(parts.headers, inside)),
            Err(_) => Err(FetchError::Broken("the connection ended".into())),
        },
        None => Err(FetchError::Broken("the connection cannot switch".into())),
    }
}
