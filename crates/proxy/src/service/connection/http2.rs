//! One client's connection of HTTP/2.
//!
//! Owns: the limits that hyper keeps on a connection, running it until hyper or the sweeper ends it, and closing it so
//! that the client gets what was written. Each request becomes one that HTTP/1 would have, and goes the same way from
//! there.

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use http::{Request, Response};
use hyper::body::{Body, Incoming};
use hyper::rt::Executor;
use hyper::server::conn::http2;
use hyper::service::Service;
use hyper_util::rt::TokioIo;
use nectary_host::unsent::unsent_bytes;
use tokio::io::AsyncWriteExt;

use super::super::request::RequestClient;
use super::answer::{ClientAnswer, answer};
use super::{LINGER, discard};
use crate::accept::ClientStream;
use crate::body::ReplyBody;
use crate::wire::exchange::ClientExchange;
use crate::wire::http2::{CorkedStream, Http2Connection, PIECE_BYTES_MAX, to_http1};
use crate::wire::transport::{TICK, until_killed};
use crate::worker::ProxyWorker;

/// The maximum number of requests of one connection at a time.
const STREAMS_MAX: u32 = 100;

/// The bytes of requests' bodies that a client may send before they are read, on one stream and on a connection.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 512 * 1024;

/// The maximum number of streams that a client has reset and the proxy has not seen yet, and of streams that the proxy
/// has reset because of the client. A client with more of them loses its connection.
const RESETS_MAX: usize = 20;
const REFUSED_STREAMS_MAX: usize = 200;

/// Serves a client until its connection ends. `client` is what is known of it, without an exchange.
pub(super) async fn serve(
    worker: Rc<ProxyWorker>,
    connection: Rc<Http2Connection>,
    stream: ClientStream,
    client: RequestClient,
) {
    worker.stats.http2_connections.add(1);
    let stream = CorkedStream::new(stream, connection.clone());
    let executor = StreamExecutor { worker: worker.clone(), connection: connection.clone() };
    let front = Http2Service { worker: worker.clone(), connection: connection.clone(), client };
    let heads = u32::try_from(worker.options.limits.request_head_bytes_max).unwrap_or(u32::MAX);
    let mut serving = http2::Builder::new(executor)
        .max_concurrent_streams(STREAMS_MAX)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_send_buf_size(PIECE_BYTES_MAX)
        .max_header_list_size(heads)
        .max_pending_accept_reset_streams(RESETS_MAX)
        .max_local_error_reset_streams(REFUSED_STREAMS_MAX)
        .serve_connection(TokioIo::new(stream.clone()), front);
    let mut is_draining = false;
    let ended = poll_fn(|context| {
        let transport = &connection.transport;
        transport.register(context);
        if transport.is_killed() || connection.is_let_down() {
            return Poll::Ready(Ok(()));
        }
        if transport.is_draining() && !is_draining {
            is_draining = true;
            Pin::new(&mut serving).graceful_shutdown();
        }
        let served = Pin::new(&mut serving).poll(context);
        // It has nothing more to write now. An error of the stream ends its reads, too.
        if served.is_pending()
            && let Poll::Ready(Err(_)) = stream.send(context)
        {
            return Poll::Ready(Ok(()));
        }
        served
    })
    .await;
    drop(serving);
    // What ended otherwise is the client's affair: it went away, or the proxy has ended it.
    if ended.is_err_and(|error| is_refusal(&error)) || connection.is_abused() {
        worker.stats.refused_connections.add(1);
    }
    until_killed(&connection.transport, poll_fn(|context| stream.send(context))).await;
    if let Some(stream) = stream.into_stream() {
        close(&worker, &connection, stream).await;
    }
}

/// Closes a connection whose client may still send something, as it does while it takes what was written. If the kernel
/// got such bytes after the socket is closed, it would drop what it has not delivered yet. So the proxy reads on until
/// the client closes, too, or [`LINGER`] has passed. When the worker stops, it also waits until all is delivered.
async fn close(worker: &ProxyWorker, connection: &Http2Connection, mut stream: ClientStream) {
    let is_delivered = |stream: &ClientStream| unsent_bytes(stream.socket()).is_none_or(|bytes| bytes == 0);
    // It has lingered already.
    let is_silent = connection.is_let_down() && is_delivered(&stream);
    let transport = &connection.transport;
    let mut is_shut = false;
    until_killed(transport, async { is_shut = stream.shutdown().await.is_ok() }).await;
    if !is_shut || is_silent {
        return;
    }
    let mut limit = LINGER;
    while tokio::time::timeout(limit, discard(&mut stream, transport)).await.is_err()
        && worker.is_leaving.get()
        && !is_delivered(&stream)
    {
        limit = TICK;
    }
}

/// Whether a connection ended because of what its client sent.
fn is_refusal(error: &hyper::Error) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<h2::Error>());
    source.is_some_and(|error| error.is_go_away() && !error.is_remote())
}

/// Runs the futures of hyper: one for each request.
#[derive(Clone)]
struct StreamExecutor {
    worker: Rc<ProxyWorker>,
    connection: Rc<Http2Connection>,
}

impl<F: Future + 'static> Executor<F> for StreamExecutor {
    fn execute(&self, future: F) {
        let (mut running, worker) = (Box::pin(self.connection.run(future)), self.worker.clone());
        // A response from memory is written at once, without a task. What is not ready is polled again by its task, so
        // nobody needs this waker.
        if let Poll::Ready(is_done) = running.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return if !is_done {
                worker.stats.cut_streams.add(1)
            };
        }
        self.worker.connections.tasks.spawn_local(async move {
            if !running.await {
                worker.stats.cut_streams.add(1);
            }
        });
    }
}

/// The service that hyper calls for every request of a connection.
struct Http2Service {
    worker: Rc<ProxyWorker>,
    connection: Rc<Http2Connection>,
    client: RequestClient,
}

impl Service<Request<Incoming>> for Http2Service {
    type Response = Response<ReplyBody>;
    type Error = std::convert::Infallible;
    type Future = ClientAnswer;

    fn call(&self, mut request: Request<Incoming>) -> ClientAnswer {
        let is_empty = request.body().is_end_stream();
        let form = to_http1(&mut request, is_empty, self.worker.options.limits.headers_max);
        let client = Rc::new(self.client.with(ClientExchange::Http2(self.connection.begin())));
        let answer = answer(&self.worker, &client, request, form);
        if matches!(answer, ClientAnswer::Ready(_)) {
            client.exchange.answered();
        }
        answer
    }
}
