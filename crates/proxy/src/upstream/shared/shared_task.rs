//! The task of a connection of HTTP/2 to an origin.
//!
//! Owns: beginning HTTP/2 on a stream, and one task for all that hyper does on the connection: hyper hands over a future for
//! the connection and several for each request, and all of them end with the task. Promises: what the origin sends and
//! nobody has read is bounded by the windows below; an origin that is silent for [`PING_INTERVAL`] and then does not answer a
//! ping within [`PING_TIME`] loses the connection. Leaves to others: the limits of each stream (`stream_clock`).

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use hyper::client::conn::http2::{Builder, Connection, SendRequest};
use hyper::rt::Executor;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::super::error::FetchError;
use super::super::server_limit::ServerPlace;
use super::super::switch::Duplex;
use super::super::{Destination, RequestBody, Upstream};
use super::SharedConnection;
use super::stream_clock::{OriginStreams, STREAMS_MAX};
use crate::room::Place;
use crate::wire::http2::{Corked, PIECE_BYTES_MAX};

/// The bytes of a response that the origin may send before they are read. A connection has room for the whole windows of all
/// of its streams, so a client that does not read holds up no other.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = STREAM_WINDOW_BYTES * STREAMS_MAX as u32;

/// The silence after which the origin is asked for a sign of life, and the time that it has for that.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIME: Duration = Duration::from_secs(20);

/// How many streams that were reset here are remembered, and for how long. What the origin has sent of them before it got
/// the reset is no fault then. h2 counts faults, and ends the connection with all of its streams after 1024.
const RESETS_MAX: usize = 10 * STREAMS_MAX;
const RESET_TIME: Duration = Duration::from_secs(30);

/// The stream that hyper reads and writes.
type Io = TokioIo<Corked<HeardStream>>;

/// A future that hyper hands over.
type Work = Pin<Box<dyn Future<Output = ()>>>;

/// Begins HTTP/2 on a stream to an origin, and runs it in a separate task until the connection ends.
pub(in super::super) async fn begin(
    upstream: &Upstream,
    to: &Destination,
    stream: Box<dyn Duplex>,
    address: SocketAddr,
    (place, server_place): (Place, Option<ServerPlace>),
) -> Result<Rc<SharedConnection>, FetchError> {
    let (clock, deadlines) = upstream.connections.origin_clock(&to.rules.times);
    let state = OriginStreams::new(clock, deadlines);
    let stream = Corked::new(HeardStream { stream, state: state.clone() }, state.clone());
    let handed = Handed::default();
    let heads = u32::try_from(upstream.options.limits.response_head_bytes_max).unwrap_or(u32::MAX);
    let mut builder = Builder::new(handed.clone());
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIME)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .initial_max_send_streams(STREAMS_MAX)
        .max_concurrent_reset_streams(RESETS_MAX)
        .reset_stream_duration(RESET_TIME)
        .max_header_list_size(heads)
        .max_send_buf_size(PIECE_BYTES_MAX);
    let begun: hyper::Result<(SendRequest<RequestBody>, Connection<Io, RequestBody, Handed>)> =
        builder.handshake(TokioIo::new(stream.clone())).await;
    let (sender, requests) = begun.map_err(|error| FetchError::Connect(error.to_string()))?;
    // The first future is that of the connection.
    let io = handed.0.borrow_mut().pop();
    let task = ConnectionTask { requests: Some(requests), io, handed, streams: FuturesUnordered::new(), stream, state };
    let state = task.state.clone();
    let of_task = state.clone();
    upstream.connections.supervise(state.clone(), async move {
        let mut task = task;
        let running = poll_fn(|context| task.poll(context));
        match &server_place {
            None => running.await,
            Some(wanted) => tokio::select! {
                () = running => {}
                () = wanted.is_wanted(&of_task.transport) => {}
            },
        }
        // The server must see the end before another connection takes the place.
        drop(task);
        drop((place, server_place));
    });
    Ok(Rc::new(SharedConnection { sender, state, address, connect_time: Cell::new(None) }))
}

/// The futures that hyper has handed over and the task has not begun with.
#[derive(Clone, Default)]
struct Handed(Rc<RefCell<Vec<Work>>>);

impl<F: Future<Output = ()> + 'static> Executor<F> for Handed {
    fn execute(&self, future: F) {
        self.0.borrow_mut().push(Box::pin(future));
    }
}

/// All that hyper does on a connection.
struct ConnectionTask {
    /// Takes requests; `None` after the last.
    requests: Option<Connection<Io, RequestBody, Handed>>,
    /// Reads and writes; `None` when the connection has ended.
    io: Option<Work>,
    handed: Handed,
    /// Those of the streams.
    streams: FuturesUnordered<Work>,
    stream: Corked<HeardStream>,
    state: Rc<OriginStreams>,
}

impl ConnectionTask {
    /// Goes on with everything; ready when the connection has ended, and all of its exchanges know that.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            self.poll_requests(context);
            let handed = std::mem::take(&mut *self.handed.0.borrow_mut());
            self.streams.extend(handed);
            while let Poll::Ready(Some(())) = self.streams.poll_next_unpin(context) {}
            if let Some(io) = &mut self.io
                && io.as_mut().poll(context).is_ready()
            {
                self.io = None;
            }
            // The origin may have said that it takes no more requests, or more at a time.
            self.poll_requests(context);
            if self.handed.0.borrow().is_empty() {
                break;
            }
        }
        // hyper has nothing more to write now. An error of the stream ends its reads, too, and hyper tells the exchanges.
        _ = self.stream.send(context);
        if self.io.is_none() && self.streams.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    }

    fn poll_requests(&mut self, context: &mut Context<'_>) {
        let Some(requests) = &mut self.requests else { return };
        if Pin::new(&mut *requests).poll(context).is_pending() {
            self.state.allow(requests.current_max_send_streams());
        } else {
            self.requests = None;
        }
    }
}

/// The stream of a connection, whose state knows when bytes came.
struct HeardStream {
    stream: Box<dyn Duplex>,
    state: Rc<OriginStreams>,
}

impl AsyncRead for HeardStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_read(context, buffer);
        if result.is_ready() {
            self.state.on_heard();
        }
        result
    }
}

impl AsyncWrite for HeardStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
