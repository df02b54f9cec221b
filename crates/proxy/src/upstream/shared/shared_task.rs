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
use super::super::switch::DuplexIo;
use super::super::{Destination, RequestBody, Upstream};
use super::SharedConnection;
use super::stream_clock::{OriginStreams, STREAMS_MAX};
use crate::room::ConnectionPlace;
use crate::wire::http2::{CorkedStream, PIECE_BYTES_MAX};

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
type Io = TokioIo<CorkedStream<HeardStream>>;

/// A future that hyper hands over.
type Work = Pin<Box<dyn Future<Output = ()>>>;

/// Begins HTTP/2 on a stream to an origin, and runs it in a separate task until the connection ends.
pub(in super::super) async fn begin(
    upstream: &Upstream,
    to: &Destination,
    stream: Box<dyn DuplexIo>,
    address: SocketAddr,
    (place, server_place): (ConnectionPlace, Option<ServerPlace>),
) -> Result<Rc<SharedConnection>, FetchError> {
    let (clock, deadlines) = upstream.connections.origin_clock(&to.rules.times);
    let state = OriginStreams::new(clock, deadlines);
    let stream = CorkedStream::new(HeardStream { stream, state: state.clone() }, state.clone());
    let handed = HandedFutures::default();
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
    let begun: hyper::Result<(SendRequest<RequestBody>, Connection<Io, RequestBody, HandedFutures>)> =
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
struct HandedFutures(Rc<RefCell<Vec<Work>>>);

impl<F: Future<Output = ()> + 'static> Executor<F> for HandedFutures {
    fn execute(&self, future: F) {
        self.0.borrow_mut().push(Box::pin(future));
    }
}

/// All that hyper does on a connection.
struct ConnectionTask {
    /// Takes requests; `None` after the last.
    requests: Option<Connection<Io, RequestBody, HandedFutures>>,
    /// Reads and writes; `None` when the connection has ended.
    io: Option<Work>,
    handed: HandedFutures,
    /// Those of the streams.
    streams: FuturesUnordered<Work>,
    stream: CorkedStream<HeardStream>,
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
    stream: Box<dyn DuplexIo>,
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

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::path::PathBuf;
    use std::sync::Arc;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
    use tokio::task::LocalSet;
    use tokio::time::Instant;

    use super::*;
    use crate::connections::WorkerConnections;
    use crate::options::{NameFiles, OriginTimes, ProxyLimits, ProxyOptions};
    use crate::room::{ConnectionLimits, ConnectionPeer, ConnectionRoom};
    use crate::rules::key::UrlOrigin;
    use crate::stats::WorkerStats;
    use crate::upstream::{AddressReach, KnownOrigins, OriginRules, OriginTrust};

    fn upstream() -> Rc<Upstream> {
        let options = Arc::new(ProxyOptions::default());
        let room = ConnectionRoom::new(ConnectionLimits { descriptors: 100, clients_max: 1, origins_max: 9 });
        let nowhere = NameFiles { hosts: PathBuf::new(), resolv_conf: PathBuf::new() };
        let connections = WorkerConnections::new(&options, room);
        Upstream::new(options, Arc::new(WorkerStats::default()), connections, Arc::new(KnownOrigins::new(nowhere)))
    }

    fn destination() -> Destination {
        let trust = Arc::new(OriginTrust::new(None).expect("no file"));
        let rules = Arc::new(OriginRules::new(OriginTimes::of(&ProxyLimits::default()), trust));
        let origin = UrlOrigin { https: false, host: "a".into(), port: 80 };
        Destination::new(origin, AddressReach::Everywhere, IpAddr::V4(Ipv4Addr::LOCALHOST), rules)
    }

    /// Answers the requests on a connection until its end. *Returns*: when pings came, which it does not answer.
    async fn serve(mut stream: DuplexStream) -> Vec<Instant> {
        let mut pings = Vec::new();
        stream.read_exact(&mut [0; 24]).await.expect("a preface");
        let mut head = [0; 9];
        while stream.read_exact(&mut head).await.is_ok() {
            let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
            stream.read_exact(&mut payload).await.expect("a frame");
            let answer: &[u8] = match (head[3], head[4]) {
                // Settings, and that those of the client are confirmed.
                (4, 0) => &[0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 4, 1, 0, 0, 0, 0],
                // `:status: 200` ends the first stream.
                (1, _) => &[0, 0, 1, 1, 5, 0, 0, 0, 1, 0x88],
                (6, 0) => {
                    pings.push(Instant::now());
                    continue;
                }
                _ => continue,
            };
            stream.write_all(answer).await.expect("room");
        }
        pings
    }

    /// The server answers one request, and then nothing more.
    #[tokio::test(start_paused = true)]
    async fn connection_without_answers_to_pings_ends() {
        let (upstream, to, address) = (upstream(), destination(), SocketAddr::from(([127, 0, 0, 1], 80)));
        let (near, far) = tokio::io::duplex(1 << 16);
        let server = tokio::spawn(serve(far));
        let used = async {
            let place = upstream.connections.room.take(ConnectionPeer::Origin).expect("a place");
            let connection = begin(&upstream, &to, Box::new(near), address, (place, None)).await.expect("it begins");
            let request = http::Request::get("http://a/").body(RequestBody::Empty).expect("a request");
            let answer = connection.sender.clone().send_request(request).await.expect("an answer");
            let answered = Instant::now();
            assert_eq!(answer.status(), 200);
            let pings = server.await.expect("the server ends");
            assert!(connection.sender.is_closed());
            (pings.iter().map(|at| *at - answered).collect::<Vec<_>>(), answered.elapsed())
        };
        let ended = PING_INTERVAL + PING_TIME;
        let used = LocalSet::new().run_until(tokio::time::timeout(10 * ended, used)).await;
        let (pings, end) = used.expect("the connection goes on");
        let is_near = |time: Duration, to: Duration| time.abs_diff(to) < Duration::from_millis(100);
        assert!(pings.len() == 1 && is_near(pings[0], PING_INTERVAL) && is_near(end, ended), "{pings:?}, {end:?}");
    }
}
