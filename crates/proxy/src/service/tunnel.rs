//! `CONNECT`, and tunnels as a whole: copies bytes both ways between a client and an origin, without reading them.
//!
//! Owns: the check of the port, and copying until both directions have ended, the tunnel was idle for too long, or the
//! worker cuts off its connections. Bytes that the client sent right after the request's head are sent to the origin
//! first.
//!
//! *Circle*: a request (`request`) keeps its [`OriginTunnel`] until it becomes one, and this file answers requests (`reply`).

use std::rc::Rc;

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::reply::{failed, finish, own};
use super::request::ClientRequest;
use crate::accept::ClientStream;
use crate::access_log::CacheOutcome;
use crate::body::{BodyContent, ReplyBody, RequestTicket};
use crate::room::ConnectionPlace;
use crate::rules::cache_status::{CacheStatus, ForwardReason};
use crate::rules::key::UrlOrigin;
use crate::sites::RouteTarget;
use crate::upstream::{DuplexIo, OfServer, connect_tcp};
use crate::wire::http1::stream::WatchedStream;
use crate::wire::http1::watch::ConnectionWatch;
use crate::wire::transport::until_killed;

/// The other end of a tunnel that a request has opened.
pub(crate) struct OriginTunnel {
    pub origin: Box<dyn DuplexIo>,
    /// The bytes that the origin sent right after its response's head.
    pub early: Bytes,
    pub ticket: RequestTicket,
    pub place: ConnectionPlace,
    /// What the tunnel keeps of its server until it ends.
    pub of_server: OfServer,
}

/// The maximum number of bytes that are copied at a time.
const COPY_BYTES: usize = 16 * 1024;

/// Connects to the target of the request. The tunnel begins when the response has been sent.
pub(super) async fn open(request: ClientRequest) -> Response<ReplyBody> {
    let RouteTarget::Named(rules) = &request.route.target else {
        return own(&request, StatusCode::METHOD_NOT_ALLOWED, "connect", "This is no forward proxy.", true);
    };
    let target = request.uri.authority().and_then(|authority| UrlOrigin::new(true, authority));
    let Some(target) = target.filter(|_| request.uri.authority().is_some_and(|it| it.port().is_some())) else {
        return own(&request, StatusCode::BAD_REQUEST, "no-port", "CONNECT needs a host and a port.", true);
    };
    if !request.worker.options.connect_ports.contains(&target.port) {
        let text = format!("This proxy opens no tunnels to port {}.", target.port);
        return own(&request, StatusCode::FORBIDDEN, "port-not-admitted", &text, true);
    }
    let forwarded =
        |status| CacheStatus::Forwarded { why: ForwardReason::Method, status, stored: false, collapsed: false };
    let to = request.named_destination(target, rules.clone());
    match connect_tcp(&request.worker.upstream, &to).await {
        Ok((stream, place)) => {
            let ticket = request.ticket(200, CacheOutcome::Tunnel, None);
            *request.client.tunnel.borrow_mut() = Some(OriginTunnel {
                origin: Box::new(stream),
                early: Bytes::new(),
                ticket,
                place,
                of_server: OfServer::default(),
            });
            finish(&request.client, StatusCode::OK, HeaderMap::new(), BodyContent::Empty, None)
        }
        Err(error) => {
            let mut response = failed(&request, &error, forwarded(None));
            // The connection must end, because the client's next bytes are meant for the origin.
            let close = http::HeaderValue::from_static("close");
            response.headers_mut().insert(http::header::CONNECTION, close);
            response
        }
    }
}

/// Copies until the tunnel ends. `early` has the bytes that the client sent right after its request's head.
pub(super) async fn run(
    watch: &Rc<ConnectionWatch>,
    client: WatchedStream<ClientStream>,
    early: Bytes,
    tunnel: OriginTunnel,
) {
    let OriginTunnel { origin, early: early_of_origin, mut ticket, place: _place, of_server: _of_server } = tunnel;
    let (mut client_read, mut client_write) = tokio::io::split(client);
    let (mut origin_read, mut origin_write) = tokio::io::split(origin);
    let sent_bytes = &mut ticket.sent_bytes;
    let work = async {
        let up = async {
            if send(&mut origin_write, &early).await.is_err() {
                return;
            }
            copy(&mut client_read, &mut origin_write, &mut 0).await;
        };
        let down = async {
            if send(&mut client_write, &early_of_origin).await.is_err() {
                return;
            }
            *sent_bytes += early_of_origin.len() as u64;
            copy(&mut origin_read, &mut client_write, sent_bytes).await;
        };
        // A peer that has stopped sending still receives the rest of the other peer's bytes.
        tokio::join!(up, down);
    };
    until_killed(&watch.transport, work).await;
}

/// Sends bytes. TLS accepts bytes that it keeps back while the peer is slow, so they are flushed: the peer may wait for
/// them before it sends anything.
async fn send(to: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> std::io::Result<()> {
    to.write_all(bytes).await?;
    to.flush().await
}

/// Copies one direction to its end, then shuts down writing on the receiver's stream.
async fn copy(from: &mut (impl AsyncRead + Unpin), to: &mut (impl AsyncWrite + Unpin), copied_bytes: &mut u64) {
    let mut room = vec![0; COPY_BYTES];
    loop {
        match from.read(&mut room).await {
            Ok(count) if count > 0 => {
                if send(to, &room[..count]).await.is_err() {
                    return;
                }
                *copied_bytes += count as u64;
            }
            _ => break,
        }
    }
    _ = to.shutdown().await;
}

#[cfg(test)]
mod tests {
    use tokio::io::BufWriter;

    use super::*;

    #[tokio::test]
    async fn tunnel_writes_before_next_read() {
        let (mut client, mut from) = tokio::io::duplex(64);
        let (to, mut origin) = tokio::io::duplex(64);
        client.write_all(b"ping").await.expect("room");
        let (mut to, mut copied, mut found) = (BufWriter::new(to), 0, [0; 4]);
        // The client sends nothing more before it has an answer.
        tokio::select! {
            () = copy(&mut from, &mut to, &mut copied) => panic!("the client goes on"),
            read = origin.read_exact(&mut found) => { read.expect("four bytes"); }
            () = tokio::time::sleep(std::time::Duration::from_secs(5)) => panic!("the bytes were kept back"),
        }
        assert_eq!(&found, b"ping");
    }
}
