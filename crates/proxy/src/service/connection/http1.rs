//! One client's connection of HTTP/1, from the first byte to the last.
//!
//! Owns: running hyper on the watched stream until hyper or the [`ConnectionWatch`] ends the connection, tunnels after a
//! `CONNECT`, and closing a connection after a refusal. After a refusal, the proxy reads and discards the client's
//! further bytes for a short time: if it closed the connection at once, the refusal could be lost.

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

use super::super::refusal::RefusalAnswer;
use super::super::request::RequestClient;
use super::super::{direct, refusal, tunnel};
use super::answer::{ClientAnswer, answer};
use super::{LINGER, discard};
use crate::accept::ClientStream;
use crate::body::ReplyBody;
use crate::options::HEADERS;
use crate::wire::http1::stream::{SharedStream, WatchedStream};
use crate::wire::http1::watch::ConnectionWatch;
use crate::wire::transport::until_killed;
use crate::worker::ProxyWorker;

/// The maximum number of bytes that hyper buffers in each direction of a connection, unless longer heads are allowed.
const BUFFER_BYTES_MAX: usize = 64 * 1024;

/// Serves a client until its connection ends.
pub(super) async fn serve(
    worker: Rc<ProxyWorker>,
    watch: Rc<ConnectionWatch>,
    stream: ClientStream,
    client: Rc<RequestClient>,
) {
    let stream = SharedStream::new(WatchedStream::new(stream, watch.clone()));
    let mut builder = http1::Builder::new();
    if worker.options.limits.headers_max != HEADERS {
        builder.max_headers(worker.options.limits.headers_max);
    }
    builder.max_buf_size(BUFFER_BYTES_MAX.max(worker.options.limits.request_head_bytes_max + 8192));
    let begin = || {
        let front = Http1Service { worker: worker.clone(), watch: watch.clone(), client: client.clone() };
        Box::new(builder.serve_connection(TokioIo::new(stream.clone()), front))
    };
    // hyper's buffers are most of what a connection takes, so it has them only while somebody makes requests.
    let mut hyper = None;
    let is_direct = client.gets_content() && worker.sites.borrow().may_be_direct();
    let direct = is_direct.then(|| direct::DirectAnswerer { worker: worker.clone(), client: client.clone() });
    let mut is_draining = false;
    let ended = poll_fn(|context| {
        watch.transport.register(context);
        if watch.transport.is_killed() {
            return Poll::Ready(if watch.transport.is_settled() { Http1Ending::Well } else { Http1Ending::InAnAnswer });
        }
        if stream.is_resting() {
            hyper = None;
        }
        if (is_direct || hyper.is_none())
            && !watch.transport.is_draining()
            && !worker.is_leaving.get()
            && stream.poll_shortcut(context, &direct, &mut worker.room.borrow_mut()).is_pending()
        {
            return if watch.violation().is_some() && stream.is_refused() {
                Poll::Ready(Http1Ending::Refused)
            } else {
                Poll::Pending
            };
        }
        let connection = hyper.get_or_insert_with(begin);
        if watch.transport.is_draining() && !is_draining && watch.transport.is_written() {
            is_draining = true;
            Pin::new(&mut **connection).graceful_shutdown();
        }
        // Only one kind of error needs a reset: a response's body that could not be completed. Without a reset the
        // client might not notice that the body is incomplete.
        let polled = connection.poll_without_shutdown(context);
        if polled.is_pending() && watch.has_announced() {
            stream.announce(context);
        }
        if polled.is_pending() && watch.transport.is_draining() && !is_draining && watch.transport.is_written() {
            // The last bytes of an answer have just been written. The next poll ends the connection.
            context.waker().wake_by_ref();
        }
        if polled.is_pending() && watch.violation().is_some() && stream.is_refused() {
            return Poll::Ready(Http1Ending::Refused);
        }
        if polled.is_pending() && is_draining && watch.transport.is_settled() {
            // The client may have sent part of a request. A partial request does not count as under way.
            return Poll::Ready(Http1Ending::Well);
        }
        polled.map(|result| match result {
            Err(error) if error.is_user() => Http1Ending::InAnAnswer,
            Err(error) if error.is_parse() => Http1Ending::Malformed(MalformedRequest::of(&error)),
            _ => Http1Ending::Well,
        })
    })
    .await;
    // The part of a head that hyper got.
    let read = hyper.map(|connection| connection.into_parts().read_buf).unwrap_or_default();
    let start = stream.start();
    let Some(stream) = stream.into_inner() else { return };
    if ended == Http1Ending::InAnAnswer {
        // A body without a length ends when its connection closes. The connection is reset; otherwise a cut body would
        // look complete.
        abort(&stream.into_inner());
        return;
    }
    let opened = client.tunnel.borrow_mut().take();
    if let Some(opened) = opened {
        tunnel::run(&watch, stream, read, opened).await;
        return;
    }
    if watch.transport.is_killed() {
        return;
    }
    let malformed = if let Http1Ending::Malformed(malformed) = ended { Some(malformed) } else { None };
    if watch.violation().is_some() || malformed.is_some() {
        worker.stats.refused_connections.add(1);
    }
    let mut head = read.to_vec();
    head.extend_from_slice(&watch.refused_bytes());
    if let Some(malformed) = malformed {
        // The client may still be sending the refused request.
        client.is_at_fault.set(true);
        refusal::note(&worker, &client, malformed.head(&head, &start), malformed.status, 0);
    }
    let refusal = watch.violation().filter(|_| ended == Http1Ending::Refused);
    let refusal = refusal.map(|violation| refusal::of(violation, worker.now_ms()));
    if let Some(refusal) = &refusal {
        refusal::note(&worker, &client, &head, refusal.status, refusal.body_bytes);
    }
    end(&watch, client.is_at_fault.get(), stream, refusal).await;
}

/// The way in which hyper's work on a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Http1Ending {
    /// Nothing remains to be sent.
    Well,
    /// hyper has not read the last request to its end, and this request must still be refused.
    Refused,
    /// hyper has refused the head of the last request, and has answered it.
    Malformed(MalformedRequest),
    /// The connection ended before an answer was complete.
    InAnAnswer,
}

/// A refusal by hyper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct MalformedRequest {
    status: u16,
    /// Whether the target is at fault. hyper may then have taken the head out of its buffer.
    is_target: bool,
}

impl MalformedRequest {
    fn of(error: &hyper::Error) -> MalformedRequest {
        let is_about_target = error.to_string().contains("URI");
        let status = match (error.is_parse_too_large(), is_about_target) {
            (true, true) => 414,
            (true, false) => 431,
            (false, _) => 400,
        };
        MalformedRequest { status, is_target: is_about_target && status == 400 }
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

/// Makes a connection end with a reset. The kernel has none for Unix sockets: their clients see an end.
fn abort(stream: &ClientStream) {
    _ = socket2::SockRef::from(stream.socket()).set_linger(Some(Duration::ZERO));
}

/// Ends a stream: sends the refusal of the unanswered request, shuts down writing, and discards incoming bytes until
/// the client closes or [`LINGER`] has passed.
async fn end<S: AsyncRead + AsyncWrite + Unpin>(
    watch: &ConnectionWatch,
    is_at_fault: bool,
    mut stream: WatchedStream<S>,
    refusal: Option<RefusalAnswer>,
) {
    // Both may have to wait for the client to read: TLS ends with a message.
    let ending = async {
        if let Some(refusal) = &refusal {
            _ = stream.write_all(&refusal.bytes).await;
        }
        stream.shutdown().await.is_ok()
    };
    let mut is_shut = false;
    until_killed(&watch.transport, async { is_shut = ending.await }).await;
    if is_shut && (watch.violation().is_some() || is_at_fault) {
        _ = tokio::time::timeout(LINGER, discard(&mut stream.into_inner(), &watch.transport)).await;
    }
}

/// The service that hyper calls for every request of a connection.
struct Http1Service {
    worker: Rc<ProxyWorker>,
    watch: Rc<ConnectionWatch>,
    client: Rc<RequestClient>,
}

impl Service<Request<Incoming>> for Http1Service {
    type Response = Response<ReplyBody>;
    type Error = std::convert::Infallible;
    type Future = ClientAnswer;

    fn call(&self, request: Request<Incoming>) -> ClientAnswer {
        self.watch.begin(false);
        answer(&self.worker, &self.client, request, Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::task::Context;

    use tokio::io::ReadBuf;

    use super::*;
    use crate::wire::http1::watch::PeerSide;
    use crate::wire::transport::{PhaseDeadlines, SweptConnection, TickClock};

    /// A stream with room for no more than was written. TLS has a last message, for which it waits.
    struct FullStream;

    impl AsyncRead for FullStream {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    impl AsyncWrite for FullStream {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    #[tokio::test]
    async fn end_that_nobody_takes_is_overdue() {
        let limits = PhaseDeadlines { idle: 100, head: 100, body: 100, write: 3, tunnel: 100, linger: 100 };
        let clock = Rc::new(TickClock::default());
        let watch = ConnectionWatch::new(PeerSide::Client, clock.clone(), limits, 1000);
        let mut ending = Box::pin(end(&watch, false, WatchedStream::new(FullStream, watch.clone()), None));
        assert!(futures_util::poll!(&mut ending).is_pending());
        for _ in 0..4 {
            assert!(!watch.is_overdue());
            clock.advance();
        }
        assert!(watch.is_overdue());
        watch.transport.kill();
        assert!(futures_util::poll!(&mut ending).is_ready(), "nothing holds the connection");
    }
}
