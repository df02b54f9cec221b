//! What a response holds until its body is over: its connection, or its place on a shared one.
//!
//! Owns: reading a response's body within its times, what becomes of the connection then, and what the body says about the
//! server. Leaves to others: the exchange up to the head of the response (`exchange`, `shared`).

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::unfold;
use http::HeaderMap;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming};

use super::error::FetchError;
use super::request::BodyProgress;
use super::shared::StreamUse;
use super::switch::WaitInside;
use super::{ALIVE_MAX, CountedRequest, Destination, IdleConnection, Upstream};
use crate::access_log::OriginAnswer;
use crate::pieces::{BodyError, Pieces};
use crate::stats::{OriginRequest, SharedCounter};

/// The longest time for which the end of a stream is awaited whose body is complete. A worker that stops waits for it.
const END_TIME: Duration = Duration::from_secs(5);

/// A connection in use for one exchange.
///
/// After the response has been read to its end, [`ConnectionLease::finish`] returns the connection. Dropping the lease without it
/// closes the connection, or ends its stream on a shared one.
pub(crate) struct ConnectionLease {
    upstream: Rc<Upstream>,
    to: Destination,
    connection: Option<IdleConnection>,
    /// The place on a shared connection, instead of a connection.
    stream: Option<StreamUse>,
    /// How far the request's body has come. Only if it is complete can the connection be used again.
    pub(super) progress: Option<Rc<BodyProgress>>,
    /// The request, which counts for its server until the response is over.
    under_way: Option<CountedRequest>,
    /// When the whole response must be there.
    ends: Option<tokio::time::Instant>,
    /// Whether the server still has to be judged by the response's body, and may be blamed for one that breaks off.
    pub(super) unjudged: Option<bool>,
    /// How long connecting took; `None` if a kept connection is used.
    connect_time: Option<Duration>,
    /// From sending the request to the end of the response's head.
    pub(super) head_time: Option<Duration>,
    /// The request in the list of what is requested most, which counts when the response is over.
    request: Option<OriginRequest>,
    /// What counts the bytes of the response's body, if another node of the fleet sends it.
    node_bytes: Option<Arc<SharedCounter>>,
}

impl ConnectionLease {
    /// The lease of a connection for one request.
    pub(super) fn of_one(upstream: &Rc<Upstream>, to: &Destination, mut connection: IdleConnection) -> ConnectionLease {
        let mut lease = ConnectionLease::without_connection(upstream, to);
        lease.connect_time = connection.connect_time.take();
        lease.connection = Some(connection);
        lease
    }

    /// The lease of a place on a shared connection, for which connecting took so long.
    pub(super) fn of_stream(
        upstream: &Rc<Upstream>,
        to: &Destination,
        stream: StreamUse,
        connect_time: Option<Duration>,
    ) -> ConnectionLease {
        let mut lease = ConnectionLease::without_connection(upstream, to);
        (lease.stream, lease.connect_time) = (Some(stream), connect_time);
        lease
    }

    fn without_connection(upstream: &Rc<Upstream>, to: &Destination) -> ConnectionLease {
        ConnectionLease {
            upstream: upstream.clone(),
            to: to.clone(),
            connection: None,
            stream: None,
            progress: None,
            under_way: None,
            ends: None,
            unjudged: None,
            connect_time: None,
            head_time: None,
            request: None,
            node_bytes: None,
        }
    }

    /// The same lease, which keeps a request counted and ends at a time.
    pub(super) fn counted(
        mut self,
        under_way: Option<CountedRequest>,
        ends: Option<tokio::time::Instant>,
    ) -> ConnectionLease {
        (self.under_way, self.ends) = (under_way, ends);
        self
    }

    /// The same lease, which counts the bytes of the response's body for a request.
    pub fn of_request(mut self, request: OriginRequest) -> ConnectionLease {
        self.request = Some(request);
        self
    }

    /// The same lease, which counts the bytes of the response's body for the node that sends it.
    pub fn of_node(mut self, bytes: Arc<SharedCounter>) -> ConnectionLease {
        self.node_bytes = Some(bytes);
        self
    }

    /// What the access log tells of the answer.
    pub fn answer(&self) -> OriginAnswer {
        let server = self.to.origin.shown();
        OriginAnswer { server, connect: self.connect_time, first_byte: self.head_time }
    }

    /// What receives the connection after it has switched to another protocol.
    pub(super) fn into_inside(mut self) -> Option<WaitInside> {
        self.connection.as_mut()?.inside.take()
    }

    /// Returns the connection to the worker's idle connections, for the next exchange.
    pub fn finish(mut self) {
        if self.unjudged.take().is_some() {
            self.upstream.note_good(&self.to);
        }
        if let Some(connection) = self.connection.take() {
            connection.watch.end();
            if self.progress.as_ref().is_none_or(|progress| progress.is_complete.get()) {
                self.upstream.keep(&self.to, connection);
            }
        }
    }

    /// Learns how long the origin keeps a waiting connection. Half of that is certain: the rest is on the way.
    pub(super) fn learn(&mut self, headers: &HeaderMap) {
        if let (Some(connection), Some(announced)) = (&mut self.connection, announced_alive(headers)) {
            connection.alive = ALIVE_MAX.min(announced / 2);
        }
    }

    /// Records that the address at the other end has broken off a response.
    fn note_failure(&self, error: &FetchError) {
        if self.unjudged == Some(true) {
            self.upstream.note_bad(&self.to, error);
        }
        let of_stream = self.stream.as_ref().map(StreamUse::address);
        if let Some(address) = self.connection.as_ref().map(|connection| connection.address).or(of_stream) {
            self.upstream.note_failure(&self.to, address);
        }
    }

    /// The error of an exchange that failed in hyper. The connection's watch may know a more exact cause.
    pub(super) fn explain(&self, error: &hyper::Error) -> FetchError {
        if let Some(stream) = &self.stream {
            return stream.explain(error);
        }
        let Some(connection) = &self.connection else { return FetchError::of_hyper(error) };
        if let Some(violation) = connection.watch.violation() {
            return FetchError::Refused(violation);
        }
        if connection.watch.transport.is_killed() {
            return FetchError::TimedOut("responding");
        }
        FetchError::of_hyper(error)
    }
}

impl Drop for ConnectionLease {
    fn drop(&mut self) {
        if let Some(connection) = &self.connection {
            connection.watch.end();
        }
    }
}

/// The time for which an origin keeps a waiting connection, from its `Keep-Alive` header; `None` if it does not say.
fn announced_alive(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get("keep-alive")?.to_str().ok()?;
    let timeout = value.split(',').find_map(|part| part.trim().strip_prefix("timeout="))?;
    timeout.trim().parse().ok().map(Duration::from_secs)
}

/// The next frame of a body. On a shared connection it is also an error if it takes too long (on another one, the connection
/// ends then), and if the stream ends otherwise than by its end: hyper takes a reset without an error for the end.
async fn next_frame(body: &mut Incoming, lease: &ConnectionLease) -> Option<Result<Frame<Bytes>, FetchError>> {
    let frame = match &lease.stream {
        None => body.frame().await,
        Some(stream) => match stream.until_read(body.frame()).await {
            Some(None) if !body.is_end_stream() => {
                return Some(Err(FetchError::Broken("the stream was reset before its end".into())));
            }
            Some(frame) => frame,
            None => return Some(Err(FetchError::TimedOut("responding"))),
        },
    };
    frame.map(|frame| frame.map_err(|error| lease.explain(&error)))
}

/// The pieces of a response's body. After the last piece the connection is kept for the next exchange.
pub(crate) fn pieces(body: Incoming, lease: ConnectionLease) -> Pieces {
    Box::pin(unfold(Some((body, lease)), async |state| {
        let (mut body, lease) = state?;
        loop {
            let next = next_frame(&mut body, &lease);
            let frame = match lease.ends {
                None => next.await,
                // A body of which a part is always ready ends as well. Perhaps it is the client that is slow.
                Some(ends) => match tokio::time::timeout_at(ends, next).await {
                    Ok(frame) if tokio::time::Instant::now() < ends => frame,
                    _ => {
                        let late = FetchError::TimedOut("responding in full").to_string();
                        return Some((Err(BodyError(late)), None));
                    }
                },
            };
            match frame {
                Some(Ok(frame)) => {
                    // Trailers are not forwarded.
                    let Ok(data) = frame.into_data() else { continue };
                    if data.is_empty() {
                        continue;
                    }
                    lease.request.iter().for_each(|request| request.add_bytes(data.len()));
                    lease.node_bytes.iter().for_each(|bytes| bytes.add(data.len() as u64));
                    // A reader that knows the body's length does not poll after the last byte, so the lease is finished
                    // now.
                    if body.is_end_stream() {
                        lease.finish();
                        return Some((Ok(data), None));
                    }
                    if body.size_hint().exact() == Some(0) {
                        await_end(body, lease);
                        return Some((Ok(data), None));
                    }
                    return Some((Ok(data), Some((body, lease))));
                }
                Some(Err(error)) => {
                    lease.note_failure(&error);
                    return Some((Err(BodyError(error.to_string())), None));
                }
                None => {
                    lease.finish();
                    return None;
                }
            }
        }
    }))
}

/// Goes on after a response without a body, whose stream may end later than its head.
pub(crate) fn end_empty(body: Incoming, lease: ConnectionLease) {
    if body.is_end_stream() { lease.finish() } else { await_end(body, lease) }
}

/// Waits, in a separate task, for the end of a stream whose body is complete. Many servers send the end after the last byte,
/// and some take a reset before it for an attack.
fn await_end(mut body: Incoming, lease: ConnectionLease) {
    let tasks = lease.upstream.connections.tasks.clone();
    tasks.spawn_local(async move {
        _ = tokio::time::timeout(END_TIME, next_frame(&mut body, &lease)).await;
        drop(body);
        lease.finish();
    });
}
