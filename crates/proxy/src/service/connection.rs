//! One client's connection, from the first byte to the last.
//!
//! Owns: running hyper on the watched stream until hyper or the [`Watch`] ends the connection, tunnels after a
//! `CONNECT`, and closing a connection after a refusal. After a refusal, the proxy reads and discards the client's
//! further bytes for a short time: if it closed the connection at once, the refusal could be lost.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::CONNECTION;
use http::{HeaderValue, Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::refusal::Refusal;
use super::request::Client;
use super::{direct, hit, refusal, route, tunnel};
use crate::admin::is_loopback;
use crate::body::ReplyBody;
use crate::connections::Door;
use crate::options::HEADERS;
use crate::wire::deadlines::{Watch, until_killed};
use crate::wire::stream::{SharedStream, WatchedStream};
use crate::worker::{Mode, Worker};

/// The time for which the proxy still reads and discards a refused client's bytes, so that the client can read the
/// refusal.
const LINGER: Duration = Duration::from_secs(1);

/// The maximum number of bytes that hyper buffers in each direction of a connection, unless longer heads are allowed.
const BUFFER_BYTES_MAX: usize = 64 * 1024;

/// Serves a client until its connection ends.
pub(crate) async fn serve(worker: Rc<Worker>, watch: Rc<Watch>, stream: TcpStream, address: SocketAddr, door: Door) {
    let client = Rc::new(Client {
        address,
        is_admitted: worker.options.admits(address.ip()),
        is_loopback: is_loopback(address.ip()),
        is_trusted: worker.options.forwarded.trusts(address.ip()),
        is_admin: door == Door::Admin,
        watch: watch.clone(),
        is_at_fault: Default::default(),
        tunnel: Default::default(),
    });
    let direct = direct::Direct { worker: worker.clone(), client: client.clone() };
    let stream = SharedStream::new(WatchedStream::new(stream, watch.clone()));
    let front = Front { worker: worker.clone(), client: client.clone() };
    let mut builder = http1::Builder::new();
    if worker.options.limits.headers_max != HEADERS {
        builder.max_headers(worker.options.limits.headers_max);
    }
    let mut connection = builder
        .max_buf_size(BUFFER_BYTES_MAX.max(worker.options.limits.request_head_bytes_max + 8192))
        .serve_connection(TokioIo::new(stream.clone()), front);
    let is_direct = !client.is_admin && matches!(worker.mode, Mode::Reverse { .. });
    let mut is_draining = false;
    let ended = poll_fn(|context| {
        watch.register(context);
        if watch.is_killed() {
            return Poll::Ready(if watch.is_settled() { Ended::Well } else { Ended::InAnAnswer });
        }
        if is_direct
            && !watch.is_draining()
            && !worker.is_leaving.get()
            && stream.poll_shortcut(context, &direct, &mut worker.room.borrow_mut()).is_pending()
        {
            return if watch.violation().is_some() && stream.is_refused() {
                Poll::Ready(Ended::Refused)
            } else {
                Poll::Pending
            };
        }
        if watch.is_draining() && !is_draining && watch.is_written() {
            is_draining = true;
            Pin::new(&mut connection).graceful_shutdown();
        }
        // Only one kind of error needs a reset: a response's body that could not be completed. Without a reset the
        // client might not notice that the body is incomplete.
        let polled = connection.poll_without_shutdown(context);
        if polled.is_pending() && watch.has_announced() {
            stream.announce(context);
        }
        if polled.is_pending() && watch.is_draining() && !is_draining && watch.is_written() {
            // The last bytes of an answer have just been written. The next poll ends the connection.
            context.waker().wake_by_ref();
        }
        if polled.is_pending() && watch.violation().is_some() && stream.is_refused() {
            return Poll::Ready(Ended::Refused);
        }
        if polled.is_pending() && is_draining && watch.is_settled() {
            // The client may have sent part of a request. A partial request does not count as under way.
            return Poll::Ready(Ended::Well);
        }
        polled.map(|result| match result {
            Err(error) if error.is_user() => Ended::InAnAnswer,
            Err(error) if error.is_parse() => Ended::Malformed(Malformed::of(&error)),
            _ => Ended::Well,
        })
    })
    .await;
    let parts = connection.into_parts();
    drop(parts.io);
    let start = stream.start();
    let Some(stream) = stream.into_inner() else { return };
    if ended == Ended::InAnAnswer {
        // A body without a length ends when its connection closes. The connection is reset; otherwise a cut body would
        // look complete.
        abort(stream.into_inner());
        return;
    }
    let opened = client.tunnel.borrow_mut().take();
    if let Some(opened) = opened {
        tunnel::run(&watch, stream, parts.read_buf, opened).await;
        return;
    }
    if watch.is_killed() {
        return;
    }
    let malformed = if let Ended::Malformed(malformed) = ended { Some(malformed) } else { None };
    if watch.violation().is_some() || malformed.is_some() {
        worker.stats.refused_connections.add(1);
    }
    // The part of the refused head that hyper got, and the rest.
    let mut head = parts.read_buf.to_vec();
    head.extend_from_slice(&watch.refused_bytes());
    if let Some(malformed) = malformed {
        // The client may still be sending the refused request.
        client.is_at_fault.set(true);
        refusal::note(&worker, &client, malformed.head(&head, &start), malformed.status, 0);
    }
    let refusal = watch.violation().filter(|_| ended == Ended::Refused);
    let refusal = refusal.map(|violation| refusal::of(violation, worker.now_ms()));
    if let Some(refusal) = &refusal {
        refusal::note(&worker, &client, &head, refusal.status, refusal.body_bytes);
    }
    end(&client, stream, refusal).await;
}

/// The way in which hyper's work on a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    /// Nothing remains to be sent.
    Well,
    /// hyper has not read the last request to its end, and this request must still be refused.
    Refused,
    /// hyper has refused the head of the last request, and has answered it.
    Malformed(Malformed),
    /// The connection ended before an answer was complete.
    InAnAnswer,
}

/// A refusal by hyper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Malformed {
    status: u16,
    /// Whether the target is at fault. hyper may then have taken the head out of its buffer.
    is_target: bool,
}

impl Malformed {
    fn of(error: &hyper::Error) -> Malformed {
        let is_about_target = error.to_string().contains("URI");
        let status = match (error.is_parse_too_large(), is_about_target) {
            (true, true) => 414,
            (true, false) => 431,
            (false, _) => 400,
        };
        Malformed { status, is_target: is_about_target && status == 400 }
    }

    /// The head that was refused: at the beginning of hyper's buffer, or at the beginning of the bytes that came last.
    /// It is empty if other requests came between the two.
    fn head<'a>(self, buffer: &'a [u8], start: &'a [u8]) -> &'a [u8] {
        if !self.is_target {
            return buffer;
        }
        [buffer, start].into_iter().find(|head| refusal::has_bad_target(head)).unwrap_or_default()
    }
}

/// Makes a connection end with a reset.
fn abort(stream: TcpStream) {
    _ = socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO));
}

/// Ends a stream: sends the refusal of the unanswered request, shuts down writing, and discards incoming bytes until
/// the client closes or [`LINGER`] has passed.
async fn end(client: &Client, stream: WatchedStream<TcpStream>, refusal: Option<Refusal>) {
    let watch = &client.watch;
    let mut stream = stream.into_inner();
    if let Some(refusal) = refusal {
        until_killed(watch, async { _ = stream.write_all(&refusal.bytes).await }).await;
    }
    if stream.shutdown().await.is_err() || (watch.violation().is_none() && !client.is_at_fault.get()) {
        return;
    }
    let mut left = 256 * 1024;
    let mut room = [0; 4096];
    let drain = async {
        while left > 0 {
            match stream.read(&mut room).await {
                Ok(0) | Err(_) => return,
                Ok(count) => left -= count.min(left),
            }
        }
    };
    _ = tokio::time::timeout(LINGER, until_killed(watch, drain)).await;
}

/// The service that hyper calls for every request of a connection.
struct Front {
    worker: Rc<Worker>,
    client: Rc<Client>,
}

impl Service<Request<Incoming>> for Front {
    type Response = Response<ReplyBody>;
    type Error = std::convert::Infallible;
    type Future = Answer;

    fn call(&self, mut request: Request<Incoming>) -> Answer {
        self.worker.stats.requests.add(1);
        self.client.watch.begin(false);
        let (started, at_ms) = self.worker.now();
        if !self.client.is_admin
            && let Some(response) = hit::resident(&self.worker, &self.client, &mut request, started, at_ms)
        {
            return Answer::Ready(Some(response));
        }
        let (worker, client) = (self.worker.clone(), self.client.clone());
        Answer::Pending(Box::pin(async move {
            let mut response = route::route(worker.clone(), client.clone(), request, started, at_ms).await;
            if worker.is_leaving.get() && client.tunnel.borrow().is_none() {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            client.watch.answered();
            response
        }))
    }
}

/// A response that is ready, or is still being made. A ready response costs no allocation.
enum Answer {
    Ready(Option<Response<ReplyBody>>),
    Pending(Pin<Box<dyn Future<Output = Response<ReplyBody>>>>),
}

impl Future for Answer {
    type Output = Result<Response<ReplyBody>, std::convert::Infallible>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self {
            Answer::Ready(response) => Poll::Ready(Ok(response.take().expect("polled once after it was ready"))),
            Answer::Pending(work) => work.as_mut().poll(context).map(Ok),
        }
    }
}
